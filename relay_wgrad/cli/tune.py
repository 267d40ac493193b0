"""`python -m relay_wgrad tune`: times cuDNN, CUTLASS and TVM's kernels on the GPU here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from rich.markup import escape
from rich.table import Table

from byoc_cudnn.backends.base import option_names
from byoc_cudnn.table import backend_of
from byoc_cudnn.tuning.record import Record
from byoc_cudnn.tuning.tune import tune
from legalize import cuda

from .. import registry
from ..backend_names import STOCK
from ..display import Display
from ..keys import SYMBOL
from ..problem import ConvProblem
from . import arguments


def run(args: argparse.Namespace) -> int:
    """Does it; returns the exit code."""
    if bool(args.model) == bool(args.problem):
        print("tune: give a model, or problems with --problem", file=sys.stderr)
        return 2

    registry.register()
    path = Record.default_path() if args.record is None else args.record
    record = Record.load(path)
    Record.check(path)
    known = len(record)
    libraries = [name for name in args.backends if name != STOCK]
    if not libraries:
        raise arguments.WrongArgumentsError(f"--backends needs a library beside {STOCK}")
    display = Display(args.quiet)
    with display.progress as bar:
        task = bar.add_task("importing", total=None)

        def show(what: str, done: int, of: int) -> None:
            bar.update(task, description=escape(what[:60]), completed=done, total=of)

        what = args.problem if args.problem is not None else _module(args)
        stock = _stock if STOCK in args.backends else None
        record = tune(
            what, libraries, stock=stock, candidates=args.candidates, record=record, progress=show,
            **_options(args, libraries),
        )  # fmt: skip
    record.save(path)
    display.out.print(_table(record, args.backends))
    print(f"{len(record) - known} new measurements in {path}", file=sys.stderr)
    return 0


def _options(args: argparse.Namespace, libraries: Sequence[str]) -> dict[str, Any]:
    """What the switches say, of each library's options those that it has."""
    found: dict[str, dict[str, Any]] = {}
    for name in libraries:
        known = option_names(backend_of(name).options)
        found[name] = {"allow_tf32": not args.no_tf32} if "allow_tf32" in known else {}
        if args.wgmma and "wgmma" in known:
            found[name] |= {"arch": 90, "wgmma": True}
    return found


def _module(args: argparse.Namespace) -> tvm.IRModule:
    return arguments.step_of(args, arguments.graph_of(args))


def _stock(problem: ConvProblem) -> Callable[..., Any]:
    """The kernel that a convolution gets if no library takes it."""
    target = tvm.target.Target.from_device(tvm.cuda(0))
    func = cuda.prim_func(problem, target).with_attr(SYMBOL, "main")
    call: Callable[..., Any] = tvm.compile(tvm.IRModule({"main": func}), target=target)["main"]
    return call


def _table(record: Any, backends: Sequence[str]) -> Table:
    """A line per problem: the milliseconds of each backend on this machine."""
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for one in record:
        if one.machine == record.machine:
            lines.setdefault((one.problem, one.epilogue), {})[one.backend] = one
    columns = tuple(dict.fromkeys([*backends, *(b for found in lines.values() for b in found)]))
    table = Table(title=f"milliseconds on {record.machine}")
    for column in ("problem", *columns, "fastest"):
        table.add_column(column, justify="right" if column in columns else "left")
    for (problem, epilogue), found in lines.items():
        best = min(found.values(), key=lambda m: m.ms)
        pins = " ".join(str(value) for value in best.pins.values())
        table.add_row(
            escape(problem + (f" +{epilogue}" if epilogue else "")),
            *(f"{found[b].ms:.4f}" if b in found else "" for b in columns),
            escape(f"{best.backend} {pins}".strip()),
        )
    return table
