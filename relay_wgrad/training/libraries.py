"""A step's convolutions and matrix products on libraries of a GPU: which go where, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tvm
from tvm import relax

import byoc_cudnn
from byoc_cudnn.backends.base import option_names
from byoc_cudnn.building import toolchain
from byoc_cudnn.report import BY_CUBLAS, PRODUCT
from byoc_cudnn.table import BACKENDS
from byoc_cudnn.tuning.missing_measurements import record_with
from byoc_cudnn.tuning.versions import arch_of

from .. import keys
from ..facts import Lowered
from ..graph.walk import bindings_of, functions_in
from .options import HOPPER, Options


def partitioned(
    mod: tvm.IRModule,
    backends: Sequence[str],
    options: Options,
    notes: list[str],
    device: Any = None,
    progress: Callable[[str], None] = lambda what: None,
) -> tuple[tvm.IRModule, list[Lowered]]:
    """The module with its convolutions and matrix products sent to libraries, and where each went.

    Those that stay are noted with their reasons; with `strict` convolutions among them are a
    ValueError.  With a choice by measurement `device` measures what the user's record lacks.
    """
    arch = None if device is None else arch_of(device)
    given: dict[str, Any] = backend_options(backends, options, arch)
    record = None
    if options.select == "measured" and device is not None and len(backends) > 1:
        record = record_with(mod, backends, given, device, progress)
    out, report = byoc_cudnn.partition(
        mod, tuple(backends), options.strict, select=options.select, record=record, products=True,
        **given,
    )  # fmt: skip
    reasons = report.reasons()
    if toolchain.find().cublas is not None:
        del reasons[BY_CUBLAS]
    if reasons:
        text = "; ".join(f"{n}: {reason}" for reason, n in reasons.most_common())
        notes.append(
            f"{reasons.total()} of {report.total} convolutions and matrix products by generated"
            f" kernels ({text})"
        )
    symbols = library_symbols(out)
    gone = [entry for entry in report.entries if entry.problem or entry.op != PRODUCT]
    return out, [_lowered(e, next(symbols) if e.backend else "") for e in gone]


def library_symbols(mod: tvm.IRModule) -> Iterator[str]:
    """The functions of libraries that a module calls, in the order of the report's entries."""
    for _, func in functions_in(mod, by_name=True):
        if _of_a_library(func):
            continue
        for value in (binding.value for binding in bindings_of(func)):
            if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
                called = mod[value.op]
                if _of_a_library(called):
                    yield str(called.attrs[keys.SYMBOL])


def _of_a_library(func: Any) -> bool:
    return func.attrs is not None and keys.CODEGEN in func.attrs


def backend_options(
    backends: Sequence[str], options: Options, arch: int | None = None
) -> dict[str, dict[str, Any]]:
    """For each library those of its options that are of training, on a GPU (its number).

    Where libraries are compared, each with its best.
    """
    compared = options.select == "measured"
    wanted: dict[str, Any] = {
        "allow_tf32": options.tf32, "deterministic": options.deterministic,
        "benchmark": options.benchmark or compared, "faster": not compared and len(backends) > 1,
    }  # fmt: skip
    if arch == HOPPER and compared:
        wanted |= {"arch": HOPPER, "wgmma": True}
    elif arch == HOPPER and wanted["faster"]:
        wanted["arch"] = HOPPER  # some kernels are for it alone
    return {
        name: {key: value for key, value in wanted.items() if key in known}
        for name in backends
        if (known := option_names(BACKENDS[name].options))
    }


def _lowered(entry: Any, symbol: str) -> Lowered:
    source = f"{entry.backend}.{entry.row}" if entry.backend else "generated"
    return Lowered(
        entry.op, entry.problem, source, symbol, reason=entry.reason or "the first that takes it"
    )
