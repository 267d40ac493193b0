"""Whole programs by a digest of all that they depend on: a second process compiles nothing.

What is kept of one is the virtual machine's code, the keys of its kernels' objects, which are kept
by themselves (`objects`), and facts about it as JSON.  If one of the objects has gone, so has the
program.  Nothing of Python's is in there.

A digest sees the module, the target, the pass context, TVM, this project's files.  Code that
somebody has put in the place of TVM's or this project's functions, in the process, is not seen:
for work on such, RELAY_WGRAD_PROGRAMS=0 keeps and uses kernels alone.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm.target import Target
from tvm_ffi.structural import structural_walk

from .disk_cache import DiskCache, key_of
from .objects import Object, get_object, settings, text_of
from .program import Program, loads
from .versions import compilers, sources

SWITCH = "RELAY_WGRAD_PROGRAMS"


def key_of_program(module: tvm.IRModule, target: Target, facts: Sequence[str]) -> str | None:
    """The digest; None where programs are not kept.

    facts : what else decides what is made of the module.
    Raises ValueError where the variable is neither 0 nor 1.
    """
    switch = os.environ.get(SWITCH, "").strip() or "1"
    if switch not in ("0", "1"):
        raise ValueError(f"{SWITCH} must be 0 or 1, got {switch!r}")
    if switch == "0" or not loads():
        return None
    return key_of([
        "program", *text_of(module), _constants(module), *settings(target), *facts,
        *compilers(), *sources(),
    ])  # fmt: skip


def _constants(module: tvm.IRModule) -> str:
    """A digest of the tensors in a module, whose text has their types alone."""
    digest = hashlib.sha256()

    def add(constant: Any) -> None:
        value = constant.value
        content = np.ascontiguousarray(value.numpy() if hasattr(value, "numpy") else value)
        digest.update(f"{content.dtype} {content.shape} ".encode() + content.tobytes())

    structural_walk(module, (tvm.ir.GenericConst, add))
    return digest.hexdigest()


def get(kept: DiskCache, key: str) -> tuple[Program, dict[str, Any]] | None:
    """A program and the facts that were kept with it."""
    content = kept.get(key)
    if content is None:
        return None
    line, _, code = content.partition(b"\n")
    told = json.loads(line)
    parts = [get_object(kept, name) for name in told["objects"]]
    known = [part[-1] for part in parts if part is not None]
    return (Program([code, *known]), told["facts"]) if len(known) == len(parts) else None


def put(
    kept: DiskCache, key: str, code: bytes, made: Sequence[Object], facts: Mapping[str, Any]
) -> None:
    """Keeps a program whose objects have been kept."""
    told = {"objects": [each.key for each in made], "facts": facts}
    kept.put(key, json.dumps(told).encode() + b"\n" + code)


def put_told(kept: DiskCache, key: str, program: str, told: Mapping[str, Any]) -> None:
    """Keeps which program, by its key, is what something else was made into, and facts about it."""
    kept.put(key, json.dumps({"program": program, "told": told}).encode())


def get_told(kept: DiskCache, key: str) -> tuple[str, dict[str, Any]] | None:
    """What `put_told` kept."""
    content = kept.get(key)
    if content is None:
        return None
    found = json.loads(content)
    return found["program"], found["told"]
