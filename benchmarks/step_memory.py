"""What a training step on a GPU keeps in memory, and what a plan makes of it; no GPU is needed.

    python -m benchmarks.step_memory [--models unet,onnx:inception_v1,…] [--batch 128] [--dtype …]

The step is `benchmarks.gpu_sides`' own, lowered as it is for a run; models are those of
`benchmarks.gpu_models`.  In MiB: what TVM's static plan takes for intermediate results; what ours
does; the most that is alive at once, which no plan can be below; parameters and inputs, results,
and the sum of ours and these.  Not among them: the code of kernels, and what cuDNN takes.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import torch
import tvm
from rich.console import Console
from rich.table import Table
from tvm import relax
from tvm.relax.backend.cuda.pipeline import dataflow_lower_passes

import byoc_cudnn
import relay_wgrad
from benchmarks.gpu_models import DEFAULT, build
from benchmarks.step_passes import TARGET
from byoc_cudnn.cast_transpose.lower import lower_cast_transposes
from byoc_cudnn.codegen.external import register
from byoc_cudnn.norm.lower import lower_norms
from byoc_cudnn.pool.lower import lower_pools
from byoc_cudnn.table import BACKENDS
from relay_wgrad.frontend import from_torch
from relay_wgrad.ir import bytes_of
from relay_wgrad.pipeline.arena import Arena, lifetimes
from relay_wgrad.pipeline.fused_kernels import fused_kernels
from relay_wgrad.pipeline.packing import Lifetime, most_alive
from relay_wgrad.pipeline.storages import static_bytes
from relay_wgrad.training.step import ADJOINT, converted, step_module

DTYPES = {"tf32": None, "f16": "float16", "bf16": "bfloat16"}
MIB = 1 << 20


class Memory(NamedTuple):
    """Bytes of a step, and the seconds that packing took."""

    upstream: int
    ours: int
    alive: int
    arguments: int
    results: int
    seconds: float


def planned(model: str, batch: int, dtype: str) -> tvm.IRModule:
    """The step's module once TVM has planned its memory."""
    built = build(model, batch, None)
    images = torch.zeros(batch, 3, built.image, built.image)
    half = DTYPES[dtype]
    module = step_module(
        built.graph or from_torch(built.module, (images,)), dtype=half, scaled=half == "float16",
        wide_weight_gradients=False, raise_norms=True,
    )  # fmt: skip
    module = converted(module, "NHWC", blocks=True)
    module, _ = byoc_cudnn.partition(module, ("cudnn",), products=True)
    register(BACKENDS["cudnn"])
    target = tvm.target.Target(TARGET, host="llvm")
    with target:
        module = relax.transform.RunCodegen()(module)
        for lower in (lower_norms, lower_pools, lower_cast_transposes):
            module, _ = lower(module, 90)
        passes = [*fused_kernels(), *dataflow_lower_passes(target)]
        return tvm.transform.Sequential([*passes, relax.transform.StaticPlanBlockMemory()])(module)


def memory(module: tvm.IRModule) -> Memory:
    """Of a module that TVM has planned."""
    func = module[ADJOINT]
    tensors = lifetimes(func)
    began = time.process_time()
    ours = Arena()(module)[ADJOINT]
    seconds = time.process_time() - began
    alive = most_alive([Lifetime(t.size, t.first, t.last) for t in tensors])
    arguments = sum(bytes_of(p.ty) for p in func.params)
    return Memory(_storages(func), _storages(ours), alive, arguments, _size(func.ret_ty), seconds)


def _storages(func: relax.Function) -> int:
    bindings = (b for block in func.body.blocks for b in block.bindings)
    return sum(static_bytes(b.value) or 0 for b in bindings)


def _size(ty: Any) -> int:
    return sum(map(_size, ty.fields)) if isinstance(ty, relax.TupleType) else int(bytes_of(ty))


def main() -> int:
    """Prints the table that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_memory")
    parser.add_argument("--models", default=",".join(DEFAULT))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--dtype", default="bf16", choices=list(DTYPES))
    args = parser.parse_args()
    relay_wgrad.register()
    table = Table(title=f"MiB of a step, batch {args.batch}, {args.dtype}")
    names = ("network", "TVM's plan", "ours", "alive", "arguments", "results", "together", "s")
    for name in names:
        table.add_column(name, justify="left" if name == "network" else "right")
    for model in args.models.split(","):
        found = memory(planned(model, args.batch, args.dtype))
        together = found.ours + found.arguments + found.results
        sizes = (*found[:5], together)
        cells = (f"{size / MIB:,.0f}" for size in sizes)
        table.add_row(model, *cells, f"{found.seconds:.2f}")
    Console(width=110).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
