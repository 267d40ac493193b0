"""What each command takes: seconds of a process of its own, with what it starts.

    python -m benchmarks.commands [--turns 2] [--only env,inspect] [--json FILE]

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
from datetime import date
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.cpu_compile import processor_time
from benchmarks.cpu_timing import cpu_model
from relay_wgrad import output
from relay_wgrad.cores import usable_cores

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--only", default=",".join(COMMANDS), help=", ".join(COMMANDS))
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    names, found = args.only.split(","), dict[str, list[tuple[float, float]]]()
    for _ in range(args.turns):
        with tempfile.TemporaryDirectory() as folder:
            for name in names:
                found.setdefault(name, []).append(measured(COMMANDS[name], folder))
    rows = [
        {"command": name, "words": COMMANDS[name], "seconds": min(s for s, _ in times),
         "processor": min(p for _, p in times)}
        for name, times in found.items()
    ]  # fmt: skip
    table = Table("command", "s", "processor, s")
    for row in rows:
        table.add_row(str(row["command"]), f"{row['seconds']:.1f}", f"{row['processor']:.1f}")
    Console().print(table)
    if args.json:
        about = {"cpu": cpu_model(), "cores": len(usable_cores()), "date": str(date.today())}
        output.write_json(args.json, {**about, "turns": args.turns, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
