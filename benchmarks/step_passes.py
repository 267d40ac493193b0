"""What a training step on a GPU moves through memory, kernel by kernel; no GPU is needed.

    python -m benchmarks.step_passes [--model resnet50] [--batch 256] [--dtype bf16] [--written-out]

The step is partitioned, legalized and fused as it is for a run.  Each line is a kind of kernel: its
calls, the tensors that they read and write in GB, each tensor once.  What a kernel reads twice, or
from a cache, is not told, so the time of a line is at least its GB over the memory's rate.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import tvm
from rich.console import Console
from rich.table import Table
from tvm import relax

import byoc_cudnn
import relay_wgrad
from byoc_cudnn.cast_transpose.lower import lower_cast_transposes
from byoc_cudnn.norm.lower import lower_norms
from byoc_cudnn.pool.lower import lower_pools
from relay_wgrad import keys
from relay_wgrad.frontend import BUNDLED, from_onnx
from relay_wgrad.ir import bytes_of
from relay_wgrad.pipeline.fused_kernels import fused_kernels
from relay_wgrad.training.step import ADJOINT, converted, step_module

DTYPES = {"f32": None, "f16": "float16", "bf16": "bfloat16"}
TARGET = {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024,
          "max_shared_memory_per_block": 49152, "thread_warp_size": 32}  # fmt: skip


@dataclass
class Line:
    """A kind of kernel: how many calls, bytes read, bytes written."""

    calls: int = 0
    read: int = 0
    written: int = 0


def lowered(model: str, batch: int, dtype: str | None, raise_norms: bool = True) -> tvm.IRModule:
    """The step's module with its calls of kernels, before they are scheduled."""
    graph = from_onnx(model, batch=batch)
    module = step_module(
        graph, dtype=dtype, scaled=dtype == "float16", wide_weight_gradients=False,
        raise_norms=raise_norms,
    )  # fmt: skip
    module, _ = byoc_cudnn.partition_for_cudnn(
        converted(module, "NHWC", blocks=True), products=True
    )
    module, _ = lower_norms(module, 90)
    module, _ = lower_pools(module, 90)
    module, _ = lower_cast_transposes(module, 90)
    with tvm.target.Target(TARGET, host="llvm"):
        return tvm.transform.Sequential(fused_kernels())(module)


def passes(module: tvm.IRModule, function: str = ADJOINT) -> dict[str, Line]:
    """The kernels of a function by their names, numbers at their ends left out."""
    lines: dict[str, Line] = defaultdict(Line)
    for block in module[function].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if not isinstance(call, relax.Call):
                continue
            name, args = _named(module, call)
            if not name:
                continue
            line = lines[name]
            line.calls += 1
            line.read += sum(bytes_of(a.ty) for a in dict.fromkeys(args) if _is_tensor(a))
            line.written += bytes_of(call.ty)
    return dict(sorted(lines.items(), key=lambda item: -item[1].read - item[1].written))


def _is_tensor(expr: Any) -> bool:
    return isinstance(expr.ty, relax.TensorType) and expr.ty.shape is not None


def _named(module: tvm.IRModule, call: relax.Call) -> tuple[str, list[Any]]:
    """A kernel's kind and its operands; "" for what is no kernel."""
    if isinstance(call.op, tvm.ir.GlobalVar):
        func = module[call.op]
        inner = [str(f.attrs[keys.COMPOSITE]) for f in _inside(func)]
        return (inner[0] if inner else call.op.name_hint), list(call.args)
    name = str(getattr(call.op, "name", ""))
    if name == "relax.call_dps_packed":
        return str(call.args[0].global_symbol), list(call.args[1].fields)
    if name == "relax.call_tir":
        return call.args[0].name_hint.rstrip("0123456789_"), list(call.args[1].fields)
    return "", []


def _inside(func: Any) -> list[Any]:
    values = [b.value for block in func.body.blocks for b in block.bindings]
    return [
        v for v in values if isinstance(v, relax.Function) and keys.COMPOSITE in (v.attrs or {})
    ]


def main() -> int:
    """Prints the table that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_passes")
    parser.add_argument("--model", default="resnet50", choices=list(BUNDLED))
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--dtype", default="bf16", choices=list(DTYPES))
    parser.add_argument(
        "--written-out", action="store_true", help="batch normalization as front ends write it"
    )
    args = parser.parse_args()
    relay_wgrad.register()
    module = lowered(args.model, args.batch, DTYPES[args.dtype], not args.written_out)
    lines = passes(module)
    table = Table(title=f"{args.model}, batch {args.batch}, {args.dtype}: GB of a step")
    for name in ("kernel", "calls", "read", "written", "both"):
        table.add_column(name, justify="left" if name == "kernel" else "right")
    for name, line in [*lines.items(), ("all", _sum(lines))]:
        both = line.read + line.written
        cells = (f"{n / 1e9:.3f}" for n in (line.read, line.written, both))
        table.add_row(name, str(line.calls), *cells)
    Console(width=140).print(table)
    return 0


def _sum(lines: dict[str, Line]) -> Line:
    values = lines.values()
    return Line(*(sum(getattr(v, n) for v in values) for n in ("calls", "read", "written")))


if __name__ == "__main__":
    raise SystemExit(main())
