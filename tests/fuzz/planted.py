"""A generator for the harness' tests: its cases' names say how they end."""

from __future__ import annotations

import os
import signal
import sys
import time

from .harness import Generator, main

KINDS = ("right", "refused", "wrong", "raises", "crash", "exit", "hang")


def case(seed: int, index: int) -> str:
    return f"{KINDS[index % len(KINDS)]} {seed} {index}"


def labels(line: str) -> dict[str, str]:
    return {"kind": line.partition(" ")[0]}


def check(line: str) -> str | None:
    kind = line.partition(" ")[0]
    print("what a case prints is no answer")
    if kind == "raises":
        raise KeyError(line)
    if kind == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "exit":
        os._exit(3)
    if kind == "hang":
        time.sleep(600)
    return {"refused": "refused: for a reason", "wrong": "3 is not 4"}.get(kind)


GENERATOR = Generator("planted", "tests of the harness", case, labels, check, timeout=20)

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
