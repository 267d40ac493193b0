"""cuBLAS's batched product without a GPU: a library of its name, for `LD_PRELOAD`, on the CPU.

It is as strict as cuBLAS where code that calls it may be wrong: a stream takes the workspace back,
a handle serves one call at a time, leads are as long as columns.  Sums are float64.

    python -m tests.support.cublas_stand_in FIRST COUNT

is to run where it and `cuda_fake` are loaded: it computes random products by generated code and
prints, as a line of JSON, of each its number, how far it is
from NumPy's and how far it may be.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_SOURCE = r"""
#include <cstdint>
#include <cstring>
#include <cstdlib>
#include <atomic>

struct cublasContext {
  void* workspace = nullptr;
  size_t bytes = 0;
  int math = 0;
  std::atomic<int> busy{0};
};
using Handle = cublasContext*;
enum { kHalf = 2, kFloat = 0, kDouble = 1, kBfloat16 = 14, kInvalid = 7, kFailed = 13 };

static double get(const void* from, int type, long long at) {
  if (type == kDouble) return static_cast<const double*>(from)[at];
  if (type == kFloat) return static_cast<const float*>(from)[at];
  if (type == kHalf) return static_cast<double>(static_cast<const _Float16*>(from)[at]);
  uint32_t bits = uint32_t{static_cast<const uint16_t*>(from)[at]} << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

static void put(void* to, int type, long long at, double value) {
  if (type == kDouble) static_cast<double*>(to)[at] = value;
  if (type == kFloat) static_cast<float*>(to)[at] = static_cast<float>(value);
  if (type == kHalf) static_cast<_Float16*>(to)[at] = static_cast<_Float16>(value);
  if (type != kBfloat16) return;
  const float narrow = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &narrow, 4);
  static_cast<uint16_t*>(to)[at] = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

extern "C" {

int cublasCreate_v2(Handle* made) { *made = new cublasContext(); return 0; }
int cublasSetPointerMode_v2(Handle, int mode) { return mode == 0 ? 0 : kInvalid; }
int cublasSetMathMode(Handle handle, int mode) { handle->math = mode; return 0; }
int cublasSetStream_v2(Handle handle, void*) { handle->workspace = nullptr; return 0; }
int cublasSetWorkspace_v2(Handle handle, void* block, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(block) % 256 != 0) return kInvalid;
  handle->workspace = block;
  handle->bytes = bytes;
  return 0;
}
const char* cublasGetStatusString(int status) {
  return status == kInvalid ? "invalid value" : "execution failed";
}
int cublasGemmStridedBatchedEx(
    Handle handle, int of_a, int of_b, int m, int n, int k, const void* alpha, const void* a,
    int type_a, int lda, long long step_a, const void* b, int type_b, int ldb, long long step_b,
    const void* beta, void* c, int type_c, int ldc, long long step_c, int count, int compute, int) {
  if (handle->workspace == nullptr || handle->bytes < 16384) return kFailed;
  if (handle->math != 16 || handle->busy.exchange(1) != 0) return kFailed;
  if (lda < (of_a ? k : m) || ldb < (of_b ? n : k) || ldc < m || count > 65535) return kInvalid;
  const bool wide = compute == 70;
  if (wide != (type_a == kDouble) || type_a != type_b) return kInvalid;
  if (!wide && compute != 68 && !(compute == 77 && type_a == kFloat)) return kInvalid;
  if (type_c != type_a && type_c != kFloat) return kInvalid;
  if (get(alpha, wide, 0) != 1.0 || get(beta, wide, 0) != 0.0) return kInvalid;
  std::memset(handle->workspace, 0xff, handle->bytes);
  for (long long i = 0; i < count; ++i) {
    for (long long row = 0; row < m; ++row) {
      for (long long column = 0; column < n; ++column) {
        double sum = 0;
        for (long long t = 0; t < k; ++t) {
          const long long at_a = of_a ? t + row * lda : row + t * lda;
          const long long at_b = of_b ? column + t * ldb : t + column * ldb;
          sum += get(a, type_a, i * step_a + at_a) * get(b, type_b, i * step_b + at_b);
        }
        put(c, type_c, i * step_c + row + column * ldc, sum);
      }
    }
  }
  handle->busy = 0;
  return 0;
}

}  // extern "C"
"""
TARGET = {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024,
          "max_shared_memory_per_block": 49152, "thread_warp_size": 32}  # fmt: skip


def library(folder: Path) -> Path:
    """The library, built into a folder."""
    source, made = folder / "cublas.cc", folder / "libcublas.so.13"
    source.write_text(_SOURCE, encoding="utf-8")
    subprocess.run(
        ["g++", "-std=c++17", "-O2", "-shared", "-fPIC", str(source), "-o", str(made),
         f"-Wl,-soname,{made.name}"],
        check=True,
    )  # fmt: skip
    return made


FILLED = "relay_wgrad_softmax_copy"
"""A function of a name for which rows of products are filled up; it takes what they are."""


def _filled(order: list[int]) -> Any:
    """A product whose rows are filled up, of odd sizes, and the function that reads them."""
    import tvm_ffi
    from tvm import relax

    @tvm_ffi.register_global_func(FILLED, override=True)
    def copy(x: Any, y: Any) -> None:
        assert x.shape[-1] % 8 == 0
        y.copyfrom(x.numpy()[..., : y.shape[-1]].copy())

    bb = relax.BlockBuilder()
    shapes = [[3, 2, 21, 30], [3, 2, 30, 19]]
    given = [
        relax.Var(n, relax.TensorType(s, "float16")) for n, s in zip("ab", shapes, strict=True)
    ]
    with bb.function("main", given):
        with bb.dataflow():
            y = bb.emit(relax.op.permute_dims(bb.emit(relax.op.matmul(*given)), order))
            out = bb.emit_output(relax.call_dps_packed(FILLED, [y], y.ty))
        bb.emit_func_output(out)
    return bb.get()["main"]


def _errors(first: int, count: int) -> list[Any]:
    import numpy as np
    import tvm

    import byoc_cudnn
    import relay_wgrad
    from tests.support.batched_products import alone, apart

    relay_wgrad.register()
    # Of others a part is a kernel of TVM's, which would do nothing here.
    cases = alone(range(first, first + count))
    functions = {
        name: case.module()["main"].with_attr("global_symbol", name) for name, case in cases.items()
    }
    orders = {"rows": [0, 1, 2, 3], "columns": [0, 1, 3, 2]}
    for name, order in orders.items():
        functions[name] = _filled(order).with_attr("global_symbol", name)
    library = byoc_cudnn.build(tvm.IRModule(functions), TARGET, direct=True)
    vm, found = library.virtual_machine(tvm.cuda(0)), list[Any]()
    for name, case in cases.items():
        arrays = case.operands()
        made = vm[name](*(tvm.runtime.tensor(np.asarray(a), tvm.cuda(0)) for a in arrays))
        found.append([case.seed, apart(made.numpy(), case.wanted(arrays)), case.limit])
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype("float16") for s in ((3, 2, 21, 30), (3, 2, 30, 19)))
    for name, order in orders.items():
        made = vm[name](*(tvm.runtime.tensor(t, tvm.cuda(0)) for t in (a, b)))
        wanted = (a.astype("float64") @ b.astype("float64")).transpose(order)
        found.append([name, apart(made.numpy(), wanted), 6e-4])
    return found


if __name__ == "__main__":
    print(json.dumps(_errors(*map(int, sys.argv[1:]))))
