"""Workspaces of streams and of captured graphs: `cuda_common.h` on a runtime that writes down."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from byoc_cudnn.building.toolchain import find
from byoc_cudnn.codegen.templates import shared

HEADERS = ("algorithm", "cstdio", "cstdlib", "map", "memory", "mutex", "set", "string", "tuple",
           "utility", "cuda_runtime_api.h")  # fmt: skip
RUNTIME = r"""
static char memory[1 << 12], *next_free = memory;
static cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
extern "C" {
cudaError_t cudaMalloc(void** made, size_t n) {
  if (n > 1000) return cudaErrorMemoryAllocation;
  *made = next_free;
  next_free += n;
  std::printf("malloc %zu\n", n);
  return cudaSuccess;
}
cudaError_t cudaFree(void* p) { std::printf("free %td\n", (char*)p - memory); return cudaSuccess; }
cudaError_t cudaMallocAsync(void** made, size_t n, cudaStream_t) {
  *made = memory;
  std::printf("graph takes %zu\n", n);
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void*, cudaStream_t) { std::puts("graph gives"); return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* to) {
  *to = capturing;
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* to) { *to = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { std::printf("device %d\n", device); return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "words"; }
cudaError_t cudaDeviceGetAttribute(int*, cudaDeviceAttr, int) { return cudaSuccess; }
}
"""
MAIN = r"""
int main() {
  cudaStream_t one = nullptr, two = reinterpret_cast<cudaStream_t>(8);
  auto call = [](int device, cudaStream_t stream, int64_t bytes) {
    with_workspace(device, stream, bytes, is_captured(stream), [](void* block) {
      if (block == nullptr) std::puts("at null");
      else std::printf("at %td\n", (char*)block - memory);
    });
  };
  call(0, one, 0);
  call(0, one, 100);
  call(0, one, 60);
  call(1, two, 50);
  call(0, one, 200);
  try {
    call(0, one, 2000);
  } catch (const Failure& failure) {
    std::puts(failure.what.c_str());
  }
  call(0, one, 10);
  capturing = cudaStreamCaptureStatusActive;
  call(0, one, 300);
  std::puts("release");
  release_workspaces();
  release_workspaces();
  capturing = cudaStreamCaptureStatusNone;
  call(0, one, 10);
}
"""
WANTED = """\
at null
malloc 100
at 0
at 0
malloc 50
at 100
free 0
malloc 200
at 150
free 150
allocating a workspace of 2000 bytes: words
malloc 10
at 350
graph takes 300
at 0
graph gives
release
free 350
device 1
free 100
device 0
malloc 10
at 360
"""


def test_what_streams_and_graphs_take(tmp_path: Path) -> None:
    found = find()
    if not found.cuda.includes:
        pytest.skip("needs the headers of CUDA's runtime")
    source = tmp_path / "workspaces.cc"
    heads = "".join(f"#include <{name}>\n" for name in HEADERS)
    source.write_text("\n".join([heads, RUNTIME, shared("cuda_common.h"), MAIN]))
    folders = [f"-I{folder}" for folder in found.cuda.includes]
    program = tmp_path / "workspaces"
    subprocess.run(["c++", "-std=c++17", *folders, "-o", program, source], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout == WANTED
