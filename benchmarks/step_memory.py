"""What a training step on a GPU keeps in memory and moves through it; no GPU is needed.

The step is made as `benchmarks gpu steps` makes it; models are those of `benchmarks.gpu_models`.
In MiB: what TVM's static plan takes for intermediate results; what ours does; the most that is
alive at once, which no plan can be below; parameters and inputs, results, and the sum of ours and
these.  Not among them: the code of kernels, and what cuDNN takes.

Below, a line is a kind of kernel: its calls, the tensors that they read and write in GB, each
tensor once.  What a kernel reads twice, or from a cache, is not told, so its time is at least its
GB over the memory's rate.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.relax.backend.cuda.pipeline import dataflow_lower_passes

import byoc_cudnn
import relay_wgrad
from benchmarks.compile_steps import DTYPES, TARGET, graph_of
from benchmarks.gpu_models import SUITES
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from byoc_cudnn.cast_transpose.lower import lower_cast_transposes
from byoc_cudnn.codegen.external import register
from byoc_cudnn.norm.lower import lower_norms
from byoc_cudnn.pool.lower import lower_pools
from byoc_cudnn.table import BACKENDS
from relay_wgrad import keys
from relay_wgrad.ir import bytes_of
from relay_wgrad.pipeline.arena import Arena, lifetimes
from relay_wgrad.pipeline.fused_kernels import fused_kernels
from relay_wgrad.pipeline.packing import Lifetime, most_alive
from relay_wgrad.pipeline.storages import static_bytes
from relay_wgrad.training.step import ADJOINT, converted, step_module


def partitioned(model: str, batch: int, dtype: str, raise_norms: bool) -> tvm.IRModule:
    """The step's module with its convolutions and products at cuDNN."""
    half = DTYPES[dtype]
    module = step_module(
        graph_of(model, batch), dtype=half, scaled=half == "float16", wide_weight_gradients=False,
        raise_norms=raise_norms,
    )  # fmt: skip
    module = converted(module, "NHWC", blocks=True)
    return byoc_cudnn.partition(module, ("cudnn",), products=True)[0]


def fused(module: tvm.IRModule) -> tvm.IRModule:
    """With its calls of kernels, before they are scheduled."""
    for lower in (lower_norms, lower_pools, lower_cast_transposes):
        module, _ = lower(module, 90)
    with tvm.target.Target(TARGET, host="llvm"):
        return tvm.transform.Sequential(fused_kernels())(module)


def planned(module: tvm.IRModule) -> tvm.IRModule:
    """Once TVM has planned the memory of a partitioned step."""
    register(BACKENDS["cudnn"])
    target = tvm.target.Target(TARGET, host="llvm")
    with target:
        module = fused(relax.transform.RunCodegen()(module))
        passes = [*dataflow_lower_passes(target), relax.transform.StaticPlanBlockMemory()]
        return tvm.transform.Sequential(passes)(module)


def memory(module: tvm.IRModule) -> Row:
    """Of a module that TVM has planned: bytes, and the seconds that packing took."""
    func = module[ADJOINT]
    tensors = lifetimes(func)
    began = time.process_time()
    ours = Arena()(module)[ADJOINT]
    seconds = time.process_time() - began
    found = {
        "upstream": _storages(func), "ours": _storages(ours),
        "alive": most_alive([Lifetime(t.size, t.first, t.last) for t in tensors]),
        "arguments": sum(bytes_of(p.ty) for p in func.params), "results": _size(func.ret_ty),
    }  # fmt: skip
    together = found["ours"] + found["arguments"] + found["results"]
    return {**found, "together": together, "seconds": seconds}


def _storages(func: relax.Function) -> int:
    bindings = (b for block in func.body.blocks for b in block.bindings)
    return sum(static_bytes(b.value) or 0 for b in bindings)


def _size(ty: Any) -> int:
    return sum(map(_size, ty.fields)) if isinstance(ty, relax.TupleType) else int(bytes_of(ty))


def passes(module: tvm.IRModule, function: str = ADJOINT) -> dict[str, dict[str, int]]:
    """The kernels of a function by their names, numbers at their ends left out."""
    lines: dict[str, dict[str, int]] = defaultdict(lambda: {"calls": 0, "read": 0, "written": 0})
    for block in module[function].body.blocks:
        for binding in block.bindings:
            call = binding.value
            name, args = _named(module, call) if isinstance(call, relax.Call) else ("", [])
            if name:
                line = lines[name]
                line["calls"] += 1
                line["read"] += sum(bytes_of(a.ty) for a in dict.fromkeys(args) if _is_tensor(a))
                line["written"] += bytes_of(call.ty)
    return dict(sorted(lines.items(), key=lambda item: -item[1]["read"] - item[1]["written"]))


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


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for model in args.models:
        yield Case({"model": model, "batch": args.batch, "dtype": args.dtype})


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    relay_wgrad.register()

    def one(case: Case) -> Row:
        module = partitioned(*case.key.values(), not args.written_out)
        kinds = passes(fused(module))
        sums = {what: sum(line[what] for line in kinds.values()) for what in ("read", "written")}
        return {**memory(planned(module)), **sums, "kinds": kinds}

    return one


BENCHMARK = Benchmark(
    cases, begin,
    options={
        "models": Option(SUITES["known"], "of `benchmarks.gpu_models`, or bundled ones"),
        "batch": Option(128, "images"),
        "dtype": Option("bf16", "", tuple(DTYPES)),
        "written_out": Option(False, "batch normalization as front ends write it"),
    },
    summary=lambda rows: (
        f"{row['model']}, {name}: {line['calls']} calls, {line['read'] / 1e9:.3f} GB read,"
        f" {line['written'] / 1e9:.3f} written, {(line['read'] + line['written']) / 1e9:.3f} both"
        for row in rows for name, line in row["kinds"].items()
    ),
    columns=(
        ("network", "model"),
        *((head, key, ",.0f", 2**-20) for head, key in (
            ("TVM's plan", "upstream"), ("ours", "ours"), ("alive", "alive"),
            ("arguments", "arguments"), ("results", "results"), ("together", "together"))),
        ("s", "seconds", ".2f"), ("GB read", "read", ".3f", 1e-9), ("written", None, ".3f", 1e-9),
        ("reason",),
    ),
)  # fmt: skip
