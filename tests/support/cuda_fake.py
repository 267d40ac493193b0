"""CUDA's runtime and driver without a GPU, for TVM's own runtime: `LD_PRELOAD` of two libraries.

Memory and copies are the host's, and kernels do nothing: a step takes the memory, streams and
graphs that it takes on a GPU, and its numbers mean nothing.  As CUDA's, the runtime refuses
everything once the process is ending (cudaErrorCudartUnloading), some time before it has ended.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

_RUNTIME = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef unsigned long size;
static int gone = 0;
static void end(void) { gone = 4; usleep(100000); }
__attribute__((constructor)) static void begin(void) { atexit(end); }
#define DOES(name, arguments, what) int name arguments { if (gone) return gone; what; return 0; }
#define MAKES(name, arguments) DOES(name, arguments, *made = calloc(1, 8))
DOES(cudaDeviceGetAttribute, (int *value, int which, int device),
     *value = which == 75 ? 9 : which == 76 ? 0 : which == 10 ? 32 : which == 16 ? 132
            : which == 8 ? 49152 : 1024)
DOES(cudaGetDevice, (int *device), *device = 0)
DOES(cudaSetDevice, (int device), )
DOES(cudaDeviceSynchronize, (void), )
DOES(cudaGetDeviceCount, (int *count), *count = 1)
DOES(cudaGetDeviceProperties, (char *to, int device), memset(to, 0, 1024); strcpy(to, "fake"))
DOES(cudaMemGetInfo, (size *left, size *total), *left = 1ul << 34; *total = 1ul << 35)
DOES(cudaMalloc, (void **made, size n), if (posix_memalign(made, 256, n + 1)) return 2;
     memset(*made, 0, n))
DOES(cudaMallocAsync, (void **made, size n, void *stream), if (posix_memalign(made, 256, n + 1))
     return 2)
DOES(cudaFreeAsync, (void *given, void *stream), free(given))
DOES(cudaStreamIsCapturing, (void *stream, int *found), *found = 0)
DOES(cudaThreadExchangeStreamCaptureMode, (int *mode), )
DOES(cudaMallocHost, (void **made, size n), *made = calloc(1, n + 1))
DOES(cudaHostAlloc, (void **made, size n, unsigned flags), *made = calloc(1, n + 1))
DOES(cudaFree, (void *given), free(given))
DOES(cudaFreeHost, (void *given), free(given))
DOES(cudaHostRegister, (void *given, size n, unsigned flags), )
DOES(cudaHostUnregister, (void *given), )
DOES(cudaPointerGetAttributes, (int *found, void *given), *found = 0)
DOES(cudaMemcpyAsync, (void *to, const void *from, size n, int kind, void *stream),
     memcpy(to, from, n))
DOES(cudaMemcpyPeerAsync, (void *to, int at, const void *from, int of, size n, void *stream),
     memcpy(to, from, n))
MAKES(cudaStreamCreate, (void **made))
MAKES(cudaStreamCreateWithFlags, (void **made, unsigned flags))
DOES(cudaStreamDestroy, (void *given), free(given))
DOES(cudaStreamSynchronize, (void *stream), )
DOES(cudaStreamWaitEvent, (void *stream, void *event, unsigned flags), )
DOES(cudaStreamBeginCapture, (void *stream, int mode), )
MAKES(cudaStreamEndCapture, (void *stream, void **made))
MAKES(cudaGraphInstantiate, (void **made, void *graph, unsigned long long flags))
DOES(cudaGraphGetNodes, (void *graph, void **nodes, size *count), *count = 0)
DOES(cudaGraphNodeGetType, (void *node, int *kind), *kind = 0)
DOES(cudaGraphLaunch, (void *graph, void *stream), usleep(1000))
DOES(cudaGraphDestroy, (void *given), free(given))
DOES(cudaGraphExecDestroy, (void *given), free(given))
MAKES(cudaEventCreate, (void **made))
DOES(cudaEventDestroy, (void *given), free(given))
DOES(cudaEventRecord, (void *event, void *stream), )
DOES(cudaEventSynchronize, (void *event), )
DOES(cudaEventElapsedTime, (float *found, void *from, void *to), *found = 1)
int cudaGetLastError(void) { return 0; }
int cudaPeekAtLastError(void) { return 0; }
const char *cudaGetErrorName(int e) { return e == 4 ? "cudaErrorCudartUnloading" : "another"; }
const char *cudaGetErrorString(int e) { return e == 4 ? "driver shutting down" : "another"; }
"""
_DRIVER = r"""
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int cuDeviceGetName(char *to, int n, int device) { strcpy(to, "fake"); return 0; }
int cuFuncSetAttribute(void *function, int which, int value) { return 0; }
int cuGetErrorName(int e, const char **to) { *to = "error"; return 0; }
int cuGetErrorString(int e, const char **to) { *to = "error"; return 0; }
int cuLaunchKernelEx(void *how, void *function, void **args, void **more) { usleep(200); return 0; }
int cuModuleGetFunction(void **made, void *module, const char *name) {
  *made = malloc(8);
  return 0;
}
int cuModuleLoadData(void **made, const void *image) { *made = malloc(8); return 0; }
int cuModuleUnload(void *module) { return 0; }
int cuTensorMapEncodeTiled(void) { return 0; }
"""


def environment(folder: Path) -> dict[str, str]:
    """The variables of a process that is to find them, built into a folder."""
    for soname, source in (("libcudart.so.13", _RUNTIME), ("libcuda.so.1", _DRIVER)):
        (folder / f"{soname}.c").write_text(source, encoding="utf-8")
        (folder / f"{soname}.map").write_text(f"{soname} {{ *; }};\n", encoding="utf-8")
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-w", "-o", soname, f"{soname}.c", f"-Wl,-soname,{soname}",
             *([f"-Wl,--version-script={soname}.map"] if "cudart" in soname else [])],
            cwd=folder, check=True,
        )  # fmt: skip
    paths = f"{folder}/libcudart.so.13 {folder}/libcuda.so.1"
    return {"LD_PRELOAD": paths, "LD_LIBRARY_PATH": str(folder)}
