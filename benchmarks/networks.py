"""Networks that people train, of torchvision and timm: what becomes of each as a training step.

--mode: `table`: whether the network was imported, whether its gradient was made, in float16 as a
GPU has it, whether NHWC left no change of layout between operators, and how many of its
convolutions go to a library (`partition`, which needs no GPU); and in how many seconds.  `onnx`:
the same of what `torch.onnx.export` writes of the network in training mode, imported by
`from_onnx` (`pip install onnxscript`).  `aot`: of the joint graph of AOTAutograd, imported by
`from_aot`, how many of the gradients of convolutions that it asks for are recognised, and how many
convolutions go to a library.  `check`: loss and every parameter's gradient in float64 beside
autograd's, in training mode, with the same random numbers; `onnx-check` (with none), `aot-check`;
`open-check`: of one step compiled for batches of any size, for 1, 3 and 8 images.  `train`: 50
steps in float32 beside PyTorch's; `compile`: those through `torch.compile`.

Each network has a process of its own, and a row with the reason where it fails, dies or takes too
much.  A pattern of --models is the shell's, as `timm/conv*`.
"""

from __future__ import annotations

import argparse
import fnmatch
import multiprocessing
import os
import resource
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import network_zoo
from benchmarks.child import GIB
from benchmarks.runner import Benchmark, Case, Measure, Option, Row

_SERVER = multiprocessing.get_context("forkserver")
MODES = ("table", "check", "open-check", "train", "compile", "onnx", "onnx-check", "aot",
         "aot-check")  # fmt: skip


def _child(pipe: Any, mode: str, name: str, gib: float) -> None:
    """Sends the facts of a row as they are found, the last one {"done": True} or an error."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (int(gib * GIB), hard))
    from benchmarks.network_modes import MODES

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


def cases(args: argparse.Namespace) -> Iterator[Case]:
    names = network_zoo.networks()
    for pattern in args.models:
        if not fnmatch.filter(names, pattern):
            args.error(f"--models: no network is like {pattern!r}")
    for name in names:
        if not args.models or any(fnmatch.fnmatchcase(name, p) for p in args.models):
            yield Case({"mode": args.mode, "name": name})


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    os.nice(args.nice)
    return lambda case: measured(*case.key.values(), args.seconds, args.gib)


def summary(rows: Sequence[Row]) -> Iterator[str]:
    total = sum(row.get("convolutions", 0) for row in rows)
    if total:
        gone = sum(row.get("offloaded", 0) for row in rows)
        yield f"{gone} of {total} convolutions go to a library"


BENCHMARK = Benchmark(
    cases, begin, summary=summary,
    options={
        "mode": Option("table", "what is looked at", MODES),
        "models": Option((), "patterns of names; else all"),
        "seconds": Option(600.0, "of one row, at most"),
        "gib": Option(14.0, "of memory for one row, at most"),
        "nice": Option(0, "how much to leave to other processes"),
    },
    columns=(
        ("network", "name"), ("image",), ("params", "parameters"), ("import s", "import_s", ".3g"),
        ("of it export", "export_s", ".3g"), ("gradient s", "gradient_s", ".3g"), ("between",),
        ("fixed",), ("asked",), ("recognised",), ("offloaded",), ("convolutions",), ("random",),
        ("loss error", "loss_error", ".3g"), ("worst", None, ".3g"), ("of", "worst_of"),
        ("first", None, ".3g"), ("last", None, ".3g"), ("PyTorch's last", "last_pytorch", ".3g"),
        ("furthest", None, ".3g"), ("seconds", None, ".3g"), ("reason",),
    ),
)  # fmt: skip
