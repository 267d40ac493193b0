"""A stand-in for CUDA's runtime whose device is the CPU, and a place that trains with it.

Copies are made when they are asked for; memory is poisoned when it is pinned, and everything is
counted, so that a test sees what the host waits for.  What else there is, is refused.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm

from byoc_cudnn.building import toolchain
from relay_wgrad.training import cudart
from relay_wgrad.training.devices import place
from relay_wgrad.training.places import Place
from relay_wgrad.training.transfers import CudaTransfers

_SOURCE = r"""
#include <stdlib.h>
#include <string.h>
static long moment = 0;
int cudaSetDevice(int device) { return device == 0 ? 0 : 101; }
int cudaDeviceSynchronize(void) { return 0; }
static struct { char *from; size_t size; } pinned[1024];
static int pin(void *from, size_t size) {
  for (int i = 0; i < 1024; ++i) {
    if (pinned[i].from) continue;
    pinned[i].from = from;
    pinned[i].size = size;
    return 0;
  }
  return 2;
}
static int unpin(void *from) {
  for (int i = 0; i < 1024; ++i) {
    if (pinned[i].from != from) continue;
    pinned[i].from = 0;
    return 0;
  }
  return 1;
}
int cudaHostAlloc(void **made, size_t size, unsigned flags) {
  if (size > (1ul << 32)) return 2;
  *made = malloc(size);
  memset(*made, 0xff, size);
  return pin(*made, size);
}
int cudaFreeHost(void *given) { unpin(given); free(given); return 0; }
int cudaHostRegister(void *given, size_t size, unsigned flags) { return pin(given, size); }
int cudaHostUnregister(void *given) { return unpin(given); }
int cudaPointerGetAttributes(int *found, char *given) {
  *found = 0;
  for (int i = 0; i < 1024; ++i) {
    char *from = pinned[i].from;
    if (from && from <= given && given < from + pinned[i].size) *found = 1;
  }
  return 0;
}
int cudaGetLastError(void) { return 0; }
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
  memcpy(to, from, size);
  return 0;
}
int cudaStreamCreateWithFlags(void **made, unsigned flags) { *made = malloc(1); return 0; }
int cudaStreamDestroy(void *given) { free(given); return 0; }
int cudaStreamSynchronize(void *given) { return 0; }
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) { return 0; }
int cudaEventCreate(void **made) { *made = calloc(1, sizeof(long)); return 0; }
int cudaEventDestroy(void *given) { free(given); return 0; }
int cudaEventRecord(void *event, void *stream) { *(long *)event = ++moment; return 0; }
int cudaEventSynchronize(void *event) { return 0; }
int cudaEventElapsedTime(float *found, void *from, void *to) {
  *found = (float)(*(long *)to - *(long *)from);
  return *(long *)from > 0 && *found > 0 ? 0 : 400;
}
int cudaMemGetInfo(size_t *left, size_t *total) { *left = 1ul << 30; *total = 2ul << 30; return 0; }
const char *cudaGetErrorString(int status) { return status == 2 ? "out of memory" : "unknown"; }
"""


class Counting(cudart.Runtime):
    """The stand-in; `calls` counts its functions."""

    def __init__(self, path: str) -> None:
        self.calls: Counter[str] = Counter()
        super().__init__(path)

    def call(self, name: str, *args: Any) -> None:
        self.calls[name] += 1
        super().call(name, *args)


def runtime(folder: Path) -> Counting:
    """Builds the stand-in in a folder and loads it."""
    library, source = folder / "libstandin.so", folder / "standin.c"
    if not library.exists():
        others = [name for name in cudart._SIGNATURES if f"int {name}(" not in _SOURCE]
        refused = [f"int {name}(void) {{ return 801; }}" for name in others]
        source.write_text("\n".join([_SOURCE, *refused]), encoding="utf-8")
        compiler, *flags = toolchain.find().compiler
        subprocess.run(
            [compiler, *flags, "-xc", "-shared", "-fPIC", str(source), "-o", str(library)],
            check=True,
        )
    return Counting(str(library))


class Repeating:
    """Stands in for `relay_wgrad.training.capture.Lane`: what is captured is called again.

    As a graph does, it gives the results of the capture no new place, and does between its parts
    what the first of its repetitions had there.  `done`, `captured`, `launches` and what is
    `outside` are counted, and `refuses` is what a capture raises.
    """

    def __init__(self, refuses: Exception | None = None) -> None:
        self.refuses = refuses
        self.calls: Counter[str] = Counter()
        self._actions: list[Callable[[], None]] = []  # of the graph that is launched
        self._place: int | None = None  # among them
        self._is_rehearsal = False

    def done(self, function: Callable[[], Any]) -> Any:
        self.calls["done"] += 1
        return function()

    def rehearsed(self, function: Callable[[], Any]) -> None:
        self._is_rehearsal = True
        self.done(function)
        self._is_rehearsal = False

    def outside(self, action: Callable[[], None]) -> None:
        if self._is_rehearsal:
            return
        self.calls["outside"] += 1
        if self._place is not None:
            self._actions[self._place :] = self._actions[self._place :] or [action]
            action = self._actions[self._place]
            self._place += 1
        action()

    def captured(self, function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        self.calls["captured"] += 1
        if self.refuses is not None:
            raise self.refuses

        actions: list[Callable[[], None]] = []

        def launch() -> None:
            self.calls["launches"] += 1
            self._actions, self._place = actions, 0
            function()
            assert self._place == len(actions)
            self._place = None

        return None, launch

    def copy(self, to: Any, source: Any) -> None:
        source.copyto(to)


def stand_in(
    made: Counting, work: Repeating | None = None, sizes: int = 4, target: Any = "cpu"
) -> Place:
    """A place that a trainer takes for a GPU, compiled for a CPU's target."""
    cpu = place(target)
    return Place(
        "cuda:0", tvm.cpu(), None, cpu.compile, lambda: CudaTransfers(made, tvm.cpu(), 0),
        made.memory, work=None if work is None else lambda: work, sizes=sizes, norms=cpu.norms,
        wait=lambda: made.call("cudaDeviceSynchronize"),
    )  # fmt: skip
