"""What each command takes: seconds of a process of its own, with what it starts.

Each turn has an empty cache of what is compiled, in which `train` runs twice.  The shortest of the
turns counts, of wall time and of processor time; on a machine that others use too, the latter says
more.  Answers, which need neither TVM nor PyTorch, are a suite of their own, and so is what works:

    python -m benchmarks cpu commands --suite answers --turns 5 --json commands.json
    python -m benchmarks cpu commands --suite work --turns 2 --json commands.json --resume
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
from relay_wgrad.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
_TRAIN = "train squeezenet --batch 2 --image-size 64 --steps 2 --lr 0.001 --quiet"
REFUSED = {"an unknown command": "trian resnet50", "an unknown option": "train resnet50 --bach 4"}
ANSWERS = {
    "version": "--version",
    "help": "--help",
    **{f"{name}, help": f"{name} --help" for name in COMMANDS},
    **REFUSED,
}
WORK = {
    "env": "env",
    "emit": "emit --problem 'wgrad n=8 c=64 h=56 w=56 k=64 r=3 s=3 pad=1,1,1,1' -o {folder}/w.cc",
    "partition": "partition resnet50",
    "inspect": "inspect resnet50 --report {folder}/report.html --quiet",
    "export": "export squeezenet -o {folder}/step.onnx",
    "train": _TRAIN,
    "train again": _TRAIN,
}
"""Name -> its words; files go to a folder that is removed."""
SUITES = {"answers": ANSWERS, "work": WORK}


def measured(words: str, folder: str, code: int = 0) -> tuple[float, float]:
    """(seconds, processor seconds) of a command.

    Raises RuntimeError where it ends with another exit code.
    """
    line = f"{sys.executable} -m relay_wgrad {words.format(folder=folder)}"
    env = {**os.environ, "RELAY_WGRAD_CACHE": f"{folder}/cache"}
    start, used = time.perf_counter(), processor_time()
    done = subprocess.run(line, shell=True, cwd=ROOT, env=env, capture_output=True, text=True)
    seconds, used = time.perf_counter() - start, processor_time() - used
    if done.returncode != code:
        raise RuntimeError(f"{line}: exit code {done.returncode}: {done.stderr}")
    return seconds, used


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for suite in args.suite:
        for name, words in SUITES[suite].items():
            yield Case({"command": name, "words": words, "turns": args.turns})


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    """Each turn has a folder, which its commands share."""
    folders = [tempfile.mkdtemp(dir=args.folder) for _ in range(args.turns)]

    def one(case: Case) -> Row:
        code = 2 if case.key["command"] in REFUSED else 0
        found = [measured(case.key["words"], folder, code) for folder in folders]
        seconds, processor = zip(*found, strict=True)
        return {"seconds": min(seconds), "processor": min(processor)}

    return one


BENCHMARK = Benchmark(
    cases, begin, suites=SUITES, options={"turns": Option(2, "of each command")},
    columns=(("command",), ("s", "seconds", ".2f"), ("processor, s", "processor", ".2f"),
             ("reason",)),
)  # fmt: skip
