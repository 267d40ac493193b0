"""What each command takes: seconds of a process of its own, with what it starts.

Commands take turns.  Each turn has an empty cache of what is compiled, in which `train` runs twice.
The shortest of the turns counts, of wall time and of processor time; on a machine that others use
too, the latter says more.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.cpu_timing import processor_time
from benchmarks.runner import Benchmark, Case, Measure, Option, Row

ROOT = Path(__file__).parents[1]
_TRAIN = "train squeezenet --batch 2 --image-size 64 --steps 2 --lr 0.001 --quiet"
COMMANDS = {
    "help": "--help",
    "env": "env",
    "emit": "emit --problem 'wgrad n=8 c=64 h=56 w=56 k=64 r=3 s=3 pad=1,1,1,1' -o {folder}/w.cc",
    "partition": "partition resnet50",
    "inspect": "inspect resnet50 --report {folder}/report.html --quiet",
    "export": "export squeezenet -o {folder}/step.onnx",
    "train": _TRAIN,
    "train again": _TRAIN,
}
"""Name -> its words; files go to a folder that is removed."""


def measured(words: str, folder: str) -> tuple[float, float]:
    """(seconds, processor seconds) of a command.  Raises RuntimeError where it fails."""
    line = f"{sys.executable} -m relay_wgrad {words.format(folder=folder)}"
    env = {**os.environ, "RELAY_WGRAD_CACHE": f"{folder}/cache"}
    start, used = time.perf_counter(), processor_time()
    done = subprocess.run(line, shell=True, cwd=ROOT, env=env, capture_output=True, text=True)
    seconds, used = time.perf_counter() - start, processor_time() - used
    if done.returncode:
        raise RuntimeError(f"{line}: exit code {done.returncode}: {done.stderr}")
    return seconds, used


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for name in args.suite:
        yield Case({"command": name, "words": COMMANDS[name]})


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    """Each turn has a folder, which its commands share."""
    folders = [tempfile.mkdtemp(dir=args.folder) for _ in range(args.turns)]

    def one(case: Case) -> Row:
        seconds, processor = zip(*(measured(case.key["words"], f) for f in folders), strict=True)
        return {"seconds": min(seconds), "processor": min(processor)}

    return one


BENCHMARK = Benchmark(
    cases, begin, suites=COMMANDS, options={"turns": Option(2, "of all commands")},
    columns=(("command",), ("s", "seconds", ".1f"), ("processor, s", "processor", ".1f"),
             ("reason",)),
)  # fmt: skip
