"""Compiles the training steps of networks for CUDA, each in a process of its own; needs no GPU.

A step is made as `benchmarks gpu steps` makes it: channels last, its convolutions and matrix
products to libraries, normalizations and poolings to generated kernels, the rest to TVM's, of which
nvcc makes PTX where it is there.  A row says whether that was done, what went to a library, and for
each call that did not the reason.

A process that dies, or takes more time or memory than it may, fails; so does one in which a call
stayed that no report names, or a kernel asks TVM's pool for memory, which a captured graph would
lose (`silent`).
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import child
from benchmarks.modes import HALF
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from relay_wgrad.frontend import BUNDLED
from tests.support import training_models

TARGET = {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024,
          "max_shared_memory_per_block": 49152, "thread_warp_size": 32}  # fmt: skip


OWN = {
    "residual": training_models.residual_net, "inverted": training_models.inverted_net,
    "attention": training_models.AttentionNet,
}  # fmt: skip


def graph_of(model: str, batch: int) -> Any:
    """The training graph of a small network of ours, or of a bundled one."""
    return training_models.graph(OWN[model]() if model in OWN else model, batch)


# ---- one row, in a process of its own ------------------------------------------------------------


def measure(model: str, dtype: str, batch: int, backends: Sequence[str]) -> Row:
    """What became of one step; raises what its compilation raises."""
    import tvm

    import byoc_cudnn
    import relay_wgrad
    from byoc_cudnn.report import PRODUCT
    from relay_wgrad.training.step import converted, step_module
    from tests.support.cuda_source import pool_calls

    relay_wgrad.register()
    graph = graph_of(model, batch)
    step = step_module(
        graph, dtype=HALF[dtype], scaled=dtype == "f16", wide_weight_gradients=False,
        raise_norms=True,
    )  # fmt: skip
    step = converted(step, "NHWC", blocks=True)
    options: dict[str, Any] = {name: {"allow_tf32": dtype != "f32"} for name in backends}
    module, report = byoc_cudnn.partition(step, backends, products=True, **options)
    target = tvm.target.Target(TARGET)
    library = byoc_cudnn.build(module, target, direct=True)
    _by_nvcc(library, target)
    fallbacks = Counter(f"{entry.op}: {entry.reason}" for entry in report.left)
    fallbacks.update(f"{entry.op}: {entry.reason}" for entry in library.direct if not entry.symbol)
    row: Row = {"fallbacks": dict(fallbacks.most_common())}
    for key, are in (("convolutions", False), ("products", True)):
        found = [entry for entry in report.entries if (entry.op == PRODUCT) is are]
        row[key] = {"total": len(found), "offloaded": sum(bool(e.backend) for e in found)}
    stay = Counter(e.op == PRODUCT for e in report.left)
    silent = {name: count - stay[name == "products"] for name, count in _staying(module).items()}
    silent["calls of TVM's memory pool"] = pool_calls(library.executable.mod)
    row["silent"] = {name: count for name, count in silent.items() if count}
    row["kernels"] = {
        "generated": sum(bool(entry.symbol) for entry in library.direct),
        "all": len(library.direct),
    }
    row["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / child.GIB
    if row["silent"]:
        row["reason"] = f"silent: {row['silent']}"
    return row


def _by_nvcc(library: Any, target: Any) -> None:
    """Compiles TVM's kernels where there is an nvcc; raises its errors."""
    from tvm.support import nvcc

    from byoc_cudnn.building.ieee_cuda import exact_kernels
    from byoc_cudnn.building.kernels import kept_kernels
    from byoc_cudnn.building.toolchain import find

    if (path := find().nvcc) is None:
        return
    os.environ["PATH"] += f"{os.pathsep}{Path(path).parent}"
    for module in _modules(library.executable.mod):
        if str(module.kind) == "cuda":
            with target, kept_kernels(), exact_kernels():
                text = module.inspect_source("cuda")
                nvcc.compile_cuda(text, target_format="ptx", compiler="nvcc")


def _modules(module: Any) -> list[Any]:
    return [module, *(inner for each in module.imports for inner in _modules(each))]


def _staying(module: Any) -> dict[str, int]:
    """How many convolutions and products of a partitioned module are TVM's, by its text alone."""
    from tvm import relax

    from relay_wgrad.ir import is_taken, op_name

    names: Counter[str] = Counter()
    for func in module.functions.values():
        if isinstance(func, relax.Function) and not is_taken(func):
            bindings = [b for block in func.body.blocks for b in block.bindings]
            names.update(op_name(binding.value) for binding in bindings)
    convolutions = sum(n for name, n in names.items() if name.startswith("relax.nn.conv2d"))
    return {"convolutions": convolutions, "products": names["relax.matmul"]}


# ---- all rows ------------------------------------------------------------------------------------


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for model, batch, dtype in itertools.product(args.suite, map(int, args.batches), args.dtypes):
        yield Case({"model": model, "dtype": dtype, "batch": batch})


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    def one(case: Case) -> Row:
        began, step = time.perf_counter(), case.key.values()
        with tempfile.TemporaryDirectory() as cache:
            row = child.row(measure, *step, args.backends, seconds=args.seconds, gib=args.gib,
                            environment={"RELAY_WGRAD_CACHE": cache})  # fmt: skip
        return {**row, "seconds": time.perf_counter() - began}

    return one


def _share(what: str, some: str, of: str) -> Callable[[Row], str]:
    return lambda row: f"{row[what][some]}/{row[what][of]}"


BENCHMARK = Benchmark(
    cases, begin, suites=(*OWN, *BUNDLED),
    options={
        "dtypes": Option(tuple(HALF), "", HALF),
        "batches": Option(("1", "3", "32", "256"), "images"),
        "backends": Option(("cudnn",), "libraries, the preferred first"),
        "seconds": Option(600.0, "of one row, at most"),
        "gib": Option(12.0, "of memory for one row, at most"),
    },
    columns=(
        ("model",), ("dtype",), ("batch",), ("s", "seconds", ".0f"),
        ("GiB", "peak_gib", ".1f"),
        ("convolutions", _share("convolutions", "offloaded", "total")),
        ("products", _share("products", "offloaded", "total")),
        ("kernels", _share("kernels", "generated", "all")),
        ("what stays, and why",
         lambda row: "; ".join(f"{n} {why}" for why, n in row["fallbacks"].items())), ("reason",),
    ),
)  # fmt: skip
