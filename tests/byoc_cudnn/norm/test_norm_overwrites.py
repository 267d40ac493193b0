"""Normalizations' results in the place of operands: the same bits, on a device that is the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byoc_cudnn.norm import NormCall, check
from byoc_cudnn.norm.codegen import NORMS
from relay_wgrad.pipeline.overwrites import matched
from tests.support import cuda_emulated, gate_cases
from tests.support.cuda_emulated import DTYPES, aligned

SHAPE = (2, 40, 16)
ROWS = (
    "x", "x2", "x3", "dx", "dx2", "dx3", "y", "dy", "dy2", "residual", "dresidual", "more", "skip",
    "total",
)  # fmt: skip
CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("forward", "leaky_relu", {"grouped": True, "alpha": 0.01}),
    ("backward", "leaky_relu", {"grouped": True, "alpha": 0.01}),
    ("forward", "relu", {"residual": True, "bits": True}),
    ("backward", "relu", {"residual": True, "bits": True, "summed": True}),
    ("backward", "relu", {"residual": True}),
    ("backward", "gelu", {"grouped": True, "by_row": True}),
    ("forward", "", {"grouped": True, "by_row": True}),
    ("forward", "relu", {"residual": True, "bits": True, "others": 1}),
    ("backward", "relu", {"residual": True, "bits": True, "others": 1, "summed": True}),
    ("forward", "relu", {"residual": True, "bits": True, "others": 2}),
    ("backward", "relu", {"residual": True, "bits": True, "others": 2, "summed": True}),
    ("forward", "silu", {"residual": True, "after": True, "total": True}),
    ("backward", "silu", {"summed": True, "total": True, "skip": True}),
    ("backward", "relu", {"residual": True, "bits": True, "summed": True, "skip": True}),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("over")


def operands(call: NormCall) -> dict[str, np.ndarray]:
    """Random ones; a standard deviation is positive."""
    rng, found = np.random.default_rng(0), {}
    for name in call.operands:
        size, kind = _size(call, name)
        value = (
            np.abs(rng.standard_normal(size)) + 0.3 if "std" in name else rng.standard_normal(size)
        )
        found[name] = (
            value.astype(kind) if kind is not np.uint8 else rng.integers(0, 255, size, kind)
        )
    return found


def _size(call: NormCall, name: str) -> tuple[tuple[int, ...], Any]:
    kind = DTYPES[call.dtype]
    shape = (SHAPE[0] * SHAPE[1], 1, SHAPE[2]) if call.by_row else SHAPE
    if name in ROWS:
        return shape, kind
    if name == "mask":
        return (*SHAPE[:-1], SHAPE[-1] * np.dtype(kind).itemsize // 16), np.uint8
    if call.gated:
        return gate_cases.size_of(name, SHAPE)[0], np.float32
    if call.grouped and name in ("mean", "rstd"):
        return (shape[0], 1 if call.by_row else 4), np.float32
    return SHAPE[-1:], np.float32


def results(folder: Path, call: NormCall, together: bool, over: dict[str, str]) -> dict[str, bytes]:
    """The bits of a call's results, of which some lie where operands do."""
    t = {name: aligned(value) for name, value in operands(call).items()}
    for name in call.results:
        size, kind = _size(call, name)
        t[name] = t[over[name]] if name in over else aligned(np.zeros(size, kind))
    cuda_emulated.norm(folder, call, t, together)
    return {name: t[name].tobytes() for name in call.results}


def called(direction: str, activation: str, how: dict[str, Any]) -> NormCall:
    call = NormCall("f", direction, "bfloat16", activation, **how)
    assert check(call), check(call).reason
    return call


@pytest.mark.share(4)
@pytest.mark.longer_cases(
    "backward-gelu", "forward-relu-residual-bits-others", "backward-relu-residual-bits-others",
    "backward-relu-residual-bits-summed-skip",
    why="a compilation for each kernel",
)  # fmt: skip
@pytest.mark.parametrize(
    ("direction", "activation", "how"), CALLS,
    ids=[f"{d}-{a or 'none'}-{'-'.join(h)}" for d, a, h in CALLS],
)  # fmt: skip
def test_bits_are_those_of_results_apart(
    folder: Path, direction: str, activation: str, how: dict[str, Any]
) -> None:
    _compared(folder, called(direction, activation, how))


@pytest.mark.longer
def test_around_a_gate(folder: Path) -> None:
    for call in gate_cases.calls("bfloat16", "silu", True, ""):
        _compared(folder, call)


def _compared(folder: Path, call: NormCall) -> None:
    """Each pair by itself, and all that a plan can take at once."""
    pairs = call.overwrites
    assert (len(pairs) > 0) == (call.direction not in ("squeeze", "gate_sums"))
    assert all(r in call.results and o in call.operands for r, o in pairs)
    for together in (False, True):
        apart = results(folder, call, together, {})
        most = matched(pairs, lambda result, operand: True)
        for over in [*({result: operand} for result, operand in pairs), most]:
            assert results(folder, call, together, over) == apart, over


def test_what_a_later_pass_reads_is_no_place(folder: Path) -> None:
    """The second pass reads x, so the first may not write on it: it would be found here."""
    call = called("backward", "relu", {"residual": True})
    assert ("dresidual", "x") not in call.overwrites
    apart = results(folder, call, False, {})
    assert results(folder, call, False, {"dresidual": "x"})["dx"] != apart["dx"]


def test_windows_are_several_threads() -> None:
    windows = (3, 3, 2, 2, 1, 1, 1, 1)
    for direction in ("forward", "backward"):
        assert not called(direction, "relu", {"pooled": windows}).overwrites


def test_places_are_those_of_a_call() -> None:
    call = called("backward", "leaky_relu", {"grouped": True, "alpha": 0.01})
    assert NORMS.overwrites_of(call) == [(6, 0), (6, 1)]
