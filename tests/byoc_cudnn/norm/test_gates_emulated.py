"""What the kernels around a gate compute, on a device that is the CPU, against float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from byoc_cudnn.norm import check
from tests.support import cuda_emulated
from tests.support.cuda_emulated import DTYPES, aligned
from tests.support.gate_cases import (
    CASES,
    RESULTS,
    calls,
    expected,
    mask_shape,
    size_of,
    taken,
    through,
)  # fmt: skip

ROWS = {"float16": 5e-4, "bfloat16": 4e-3, "float32": 5e-7, "float64": 1e-14}
SUMS = {"float16": 1e-6, "bfloat16": 1e-6, "float32": 1e-6, "float64": 1e-14}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gates")


def run(
    folder: Path, dtype: str, shape: tuple[int, ...], activation: str, residual: bool, last: str,
    changed: dict[str, tuple[tuple[int, ...], float]] | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """All tensors by name, results full of NaN before; `changed`: an element of an operand."""
    rng, t = np.random.default_rng(0), dict[str, np.ndarray]()
    sums = np.float64 if dtype == "float64" else np.float32
    for call in calls(dtype, activation, residual, last):
        assert check(call), check(call).reason
        for name in (*call.operands, *call.results):
            if name == "mask":
                if name in call.results:
                    t[name] = aligned(np.full(mask_shape(shape, dtype), 0xA5, np.uint8))
                continue
            size, of_rows = size_of(name, shape)
            kind = DTYPES[dtype] if of_rows else sums
            if name in call.results:
                t[name] = aligned(np.full(size, np.nan, kind))
            elif name not in t:
                t[name] = aligned((1.5 * rng.standard_normal(size) + 0.3).astype(kind))
                if changed and name in changed:
                    place, value = changed[name]
                    t[name][place] = value
        cuda_emulated.norm(folder, call, taken(call, t), True)
    return t


@pytest.mark.share(2)
@pytest.mark.parametrize(("dtype", "shape", "activation", "residual", "last"), CASES)
def test_all_four(
    folder: Path, dtype: str, shape: tuple[int, ...], activation: str, residual: bool, last: str
) -> None:
    t = run(folder, dtype, shape, activation, residual, last)
    made = {n: torch.tensor(v.astype("float64")) for n, v in t.items() if n != "mask"}
    given = {n: v for n, v in made.items() if n not in RESULTS or n == "dresidual"}
    if "dresidual" in t:
        wanted = through(given, made["y"]).numpy().astype(DTYPES[dtype])
        assert np.array_equal(t["dresidual"], wanted)
    want = expected(given, activation, last)
    for name in (n for n in RESULTS if n in t):
        limit = ROWS[dtype] if size_of(name, shape)[1] else SUMS[dtype]
        got = t[name].astype("float64")
        error = np.linalg.norm(got - want[name].numpy().reshape(got.shape))
        scale = np.linalg.norm(want[name].numpy())
        if name in ("dx", "dgamma", "dbeta"):  # differences, of terms of this size
            scale += 1e-2 * np.linalg.norm(t["dy"].astype("float64")) * t["rstd"].max()
        assert error <= 2 * limit * scale, (name, error / scale)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_channel(folder: Path, value: float) -> None:
    """A gate and a gradient of one image and channel, an element of x of another channel."""
    shape = (3, 9, 5, 24)
    changed = {
        "gate": ((1, 0, 0, 3), value), "dy": ((2, 4, 1, 6), value), "x": ((0, 2, 2, 20), value),
    }  # fmt: skip
    t = run(folder, "float32", shape, "silu", False, "", changed)
    bad = {name: ~np.isfinite(t[name]) for name in RESULTS if name in t}
    assert bad["y"][1, ..., 3].all()
    assert bad["y"][..., 20].all()
    bad["y"][1, ..., 3] = bad["y"][..., 20] = False
    assert not bad["y"].any()
    channels = {"mean": {20}, "rstd": {20}, "dgamma": {3, 6, 20}, "dbeta": {3, 6, 20}}
    for name, wanted in channels.items():
        assert set(np.flatnonzero(bad[name])) == wanted, name
    assert {c for *_, c in np.argwhere(bad["dx"])} == {3, 6, 20}
    assert bad["dgate"][2, 0, 0, 6]
    assert {c for *_, c in np.argwhere(bad["dgate"])} == {6, 20}


def test_nan_passes_relu_and_what_relu_holds_back_is_zero(folder: Path) -> None:
    nan = np.nan
    changed = {
        "residual": ((1, 2, 3, 7), nan),
        "dy": ((2, 4, 1, 6), nan),
        "x": ((0, 2, 2, 20), nan),
    }
    t = run(folder, "float32", (3, 9, 5, 24), "", True, "relu summed", changed)
    assert np.isnan(t["y"][1, 2, 3, 7])
    assert np.isnan(t["y"][..., 20]).all()
    made = {n: torch.tensor(t[n]) for n in ("y", "dy", "dy2")}
    assert np.array_equal(t["dresidual"], through(made, made["y"]).numpy(), equal_nan=True)
    assert np.array_equal(t["dresidual"][..., 20], (t["dy"] + t["dy2"])[..., 20])


def test_what_no_kernel_is_for_has_a_reason() -> None:
    squeeze, excite, sums, _ = calls("float32", "silu", False, "")
    for call, changes, reason in (
        (excite, {"last": "relu6"}, "relu, or nothing"),
        (excite, {"bits": True}, "bits are of excite's last relu"),
        (squeeze, {"bits": True}, "bits are of excite's last relu"),
        (sums, {"summed": True}, "before a mask of bits"),
        (excite, {"last": "relu", "bits": True, "summed": True}, "gate_sums alone adds"),
        (sums, {"pooled": (2, 2, 2, 2, 0, 0, 0, 0)}, "no further normalizations, pooling"),
        (sums, {"last": "relu"}, "ends excite alone"),
        (squeeze, {"residual": True}, "a residual is added by excite"),
        (sums, {"running": True}, "running statistics are updated forward"),
    ):
        decision = check(replace(call, **changes))
        assert not decision, changes
        assert reason in decision.reason
