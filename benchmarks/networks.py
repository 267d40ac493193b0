"""Networks that people train, of torchvision and timm: what becomes of each as a training step.

    python -m benchmarks.networks [--json FILE [--resume]] [--models PATTERN,…] [--failed]
                                  [--time-budget 3600] [--onnx | --aot | --open] [--check | --train]
                                  [--seconds 600] [--gib 14]

Without a mode a row says whether the network was imported, whether its gradient was made, in
float16 as a GPU has it, whether NHWC left no change of layout between operators, and how many of
its convolutions go to a library (`partition`, which needs no GPU); and in how many seconds.
`--onnx`: the same of what `torch.onnx.export` writes of the network in training mode, imported by
`from_onnx` (`pip install onnxscript`).  `--aot`: of the joint graph of AOTAutograd, imported by
`from_aot`, how many of the gradients of convolutions that it asks for are recognised, and how many
convolutions go to a library.  `--check`: loss and every parameter's gradient in float64
beside autograd's, in training mode, with the same random numbers (by way of ONNX with none);
`--open --check`: of one step compiled for batches of any size, for 1, 3 and 8 images.
`--train`: 50 steps in float32 beside PyTorch's.  Each network has a process of its own, and a row
with the reason where it fails, dies or takes too much.  PATTERN is the shell's, as `timm/conv*`.
"""

from __future__ import annotations

import argparse
import fnmatch
import multiprocessing
import os
import resource
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.kept import Rows, add_options

GIB = 1 << 30
STAGES = ("made", "imported", "gradient", "layout", "partition")
_SERVER = multiprocessing.get_context("forkserver")
Key = tuple[str, str]


def _child(pipe: Any, mode: str, name: str, gib: float) -> None:
    """Sends the facts of a row as they are found, the last one {"done": True} or an error."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (int(gib * GIB), hard))
    from benchmarks.network_server import MODES

    try:
        MODES[mode](name, pipe.send)
        pipe.send({"done": True})
    except Exception as error:  # its reason is what the row is for
        lines = str(error).strip().splitlines() or [""]
        said = f"{type(error).__name__}: {lines[0]}"
        where = traceback.extract_tb(error.__traceback__)[-1]
        pipe.send({"reason": said[:400], "at": f"{Path(where.filename).name}:{where.lineno}"})
    finally:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
        pipe.send({"peak_gib": round(peak, 2)})


def measured(mode: str, name: str, seconds: float, gib: float) -> dict[str, Any]:
    """The row of one network, from a process of its own."""
    # Not where this is imported: a process has one such server, and tests import this and have
    # another list.
    _SERVER.set_forkserver_preload(["benchmarks.network_server"])
    here, there = _SERVER.Pipe(duplex=False)
    process = _SERVER.Process(target=_child, args=(there, mode, name, gib), daemon=True)
    process.start()
    there.close()
    began, row = time.monotonic(), {"mode": mode, "name": name}
    ended = ""
    try:
        while True:
            if not here.poll(max(began + seconds - time.monotonic(), 0)):
                ended = f"took more than {seconds:g} s"
                break
            row |= here.recv()
    except EOFError:
        process.join(30)
        if not row.get("done") and "reason" not in row:
            ended = f"the process died (exit status {process.exitcode})"
    finally:
        process.kill()
        process.join()
        here.close()
    if ended:
        row["reason"] = ended
    row["seconds"] = round(time.monotonic() - began, 1)
    return row


def _ok(row: dict[str, Any]) -> bool:
    return bool(row.get("done")) and "reason" not in row


# ---- all rows ------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Looks at what the command line asks for; 1 where a network is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.networks")
    parser.add_argument("--models", metavar="PATTERN,…", help="some of the networks; else all")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--onnx", action="store_true", help="table or gradients by way of ONNX")
    way.add_argument("--aot", action="store_true", help="the same by way of AOTAutograd's graph")
    way.add_argument("--open", action="store_true", help="--check of one step for any batch")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="gradients in float64 by autograd's")
    mode.add_argument("--train", action="store_true", help="50 steps beside PyTorch's")
    add_options(parser)
    parser.add_argument("--seconds", type=float, default=600, help="of one row, at most")
    parser.add_argument("--gib", type=float, default=14, help="of memory for one row, at most")
    parser.add_argument("--nice", type=int, default=0, help="how much to leave to other processes")
    args = parser.parse_args(argv)
    rows = Rows(parser, args, ("mode", "name"), {"date": date.today().isoformat()})
    from benchmarks.network_zoo import networks

    names = networks()
    if args.models:
        patterns = args.models.split(",")
        for pattern in patterns:
            if not fnmatch.filter(names, pattern):
                parser.error(f"--models: no network is like {pattern!r}")
        names = [n for n in names if any(fnmatch.fnmatchcase(n, p) for p in patterns)]
    if (args.onnx or args.aot) and args.train:
        parser.error("--onnx and --aot are not for --train")
    if args.open and not args.check:
        parser.error("--open is for --check")
    chosen = "check" if args.check else "train" if args.train else "table"
    if args.onnx or args.aot:
        chosen = ("onnx" if args.onnx else "aot") + ("-check" if args.check else "")
    chosen = "open-check" if args.open else chosen
    os.nice(args.nice)
    keys = [(chosen, name) for name in names]
    rows.measure(keys, lambda mode, name: measured(mode, name, args.seconds, args.gib))
    asked = rows.of(keys)
    printed = Console(width=160)
    printed.print(_TABLES[chosen](asked))
    printed.print(_summary(asked, len(names)))
    return int(not all(map(_ok, asked)))


def _summary(rows: Sequence[dict[str, Any]], wanted: int) -> str:
    said = [f"{len(rows)} of {wanted} networks, {sum(map(_ok, rows))} without a failure"]
    for package in ("torchvision", "timm"):
        own = [row for row in rows if row["name"].startswith(f"{package}/")]
        if own:
            said.append(f"{package} {sum(map(_ok, own))} of {len(own)}")
    total = sum(row.get("convolutions", 0) for row in rows)
    if total:
        gone = sum(row.get("offloaded", 0) for row in rows)
        said.append(f"{gone} of {total} convolutions go to a library")
    return "; ".join(said)


def _stage_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table()
    for name in ("network", "image", "params", "import s", "of it export", "gradient s", "between",
                 "fixed", "offloaded", "reason"):  # fmt: skip
        table.add_column(name, justify="left" if name in ("network", "reason") else "right")
    for row in rows:
        table.add_row(
            row["name"], *(_cell(row, key) for key in ("image", "parameters", "import_s",
                                                       "export_s", "gradient_s", "between",
                                                       "fixed")),
            f"{row['offloaded']}/{row['convolutions']}" if "offloaded" in row else "",
            escape(row.get("reason", "")),
        )  # fmt: skip
    return table


def _of_keys(*keys: str) -> Callable[[Sequence[dict[str, Any]]], Table]:
    """A table with these values of a row, between its network and its reason."""

    def made(rows: Sequence[dict[str, Any]]) -> Table:
        table = Table()
        for name in ("network", *keys, "reason"):
            table.add_column(name.replace("_", " "))
        for row in rows:
            values = (_cell(row, key) for key in keys)
            table.add_row(row["name"], *values, escape(row.get("reason", "")))
        return table

    return made


def _cell(row: dict[str, Any], key: str) -> str:
    value = row.get(key, "")
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value)


_check_table = _of_keys(
    "image", "parameters", "random", "loss_error", "worst", "worst_of", "seconds"
)
_TABLES = {
    "table": _stage_table, "onnx": _stage_table,
    "check": _check_table, "aot-check": _check_table, "onnx-check": _check_table,
    "open-check": _check_table,
    "aot": _of_keys("image", "asked", "recognised", "convolutions", "offloaded", "import_s"),
    "train": _of_keys("image", "first", "last", "last_pytorch", "furthest", "seconds"),
}  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main())
