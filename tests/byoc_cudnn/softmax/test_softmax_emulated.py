"""Softmax's kernels on a device that is the CPU, against float64; results are NaN before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from byoc_cudnn.softmax import Added, SoftmaxCall, check
from byoc_cudnn.softmax.call import padded
from tests.support.batched_products import apart
from tests.support.cuda_emulated import DTYPES, aligned
from tests.support.softmax import LIMITS, emulated, values

PAIRS = (
    ("float16", "float16"), ("bfloat16", "bfloat16"), ("float32", "float32"),
    ("float32", "float16"), ("bfloat16", "float32"),
)  # fmt: skip
# Rows of one column, of less than a pack, of a few threads, a warp's, a block's, and of none's.
COLUMNS = (1, 7, 49, 197, 333, 1000, 1025, 3001, 17000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("softmax")


def rows(seed: int, shape: tuple[int, int], pitch: int, dtype: str) -> np.ndarray:
    """Random rows; what is behind them is NaN, which no result may have looked at."""
    whole = aligned(np.full((shape[0], pitch), np.nan, DTYPES[dtype]))
    whole[:, : shape[1]] = 3 * np.random.default_rng(seed).standard_normal(shape)
    return whole


def results(call: SoftmaxCall, count: int, pitch: int) -> list[np.ndarray]:
    made = [aligned(np.full((count, pitch), np.nan, DTYPES[call.dtype]))]
    wide = aligned(np.full((count, call.columns), np.nan, np.float32))
    return [*made, *([wide] if call.wide else [])]


def compared(call: SoftmaxCall, operands: list[np.ndarray], made: list[np.ndarray]) -> None:
    for got, want in zip(made, values(call, operands), strict=True):
        kind = "float32" if got is not made[0] and call.wide else call.dtype
        limit = 2 * LIMITS[kind] + 3e-6  # of a long row the sum
        assert apart(got[:, : call.columns], want) < limit, (call, got.dtype)
        assert not np.any(got[:, call.columns :]), call  # NaN is true


@pytest.mark.longer_cases("bfloat16", "float32-float32", why="thousands of emulated threads")
@pytest.mark.parametrize(("source", "dtype"), PAIRS, ids=map("-".join, PAIRS))
def test_both_directions(folder: Path, source: str, dtype: str) -> None:
    """Whole packs, and rows that are as long in memory as they are; a block that is not full."""
    for columns in COLUMNS:
        count = 3 if columns > 1000 else 11
        for pitch in {columns, padded(columns, dtype)}:
            call = SoftmaxCall("f", "forward", source, dtype, columns, 0.3)
            assert check(call)
            given, out = (
                [rows(columns, (count, columns), pitch, source)],
                results(call, count, pitch),
            )
            emulated(folder, call, [*given, *out])
            compared(call, given, out)
            if source != dtype:
                continue
            back = replace(call, direction="backward", wide=columns != 49)
            given = [rows(columns + 1, (count, columns), pitch, source), out[0]]
            out = results(back, count, pitch)
            emulated(folder, back, [*given, *out])
            compared(back, given, out)


def test_pitches_are_each_ones_own(folder: Path) -> None:
    for first, second in ((56, 49), (49, 56), (56, 64)):
        call = SoftmaxCall("f", "forward", "float16", "float16", 49)
        given, out = [rows(0, (9, 49), first, "float16")], results(call, 9, second)
        emulated(folder, call, [*given, *out])
        compared(call, given, out)


# Of a bias for pairs; for keys of each image; of each window, and of each head; of rows alone.
MASKS = (
    (Added("float32", ((1, 12, 5),), 60),),
    (Added("float16", ((12, 0, 5),), 10),),
    (Added("float16", ((1, 4, 5), (12, 2, 20)), 40), Added("bfloat16", ((1, 12, 5),), 60)),
    (Added("float32", (), 5),),
)  # fmt: skip


@pytest.mark.parametrize("added", MASKS, ids=lambda added: str(len(added[0].steps)))
@pytest.mark.parametrize("longer", [False, True])
def test_what_is_added(folder: Path, added: tuple[Added, ...], longer: bool) -> None:
    """Of 2 images, 3 heads and 4 rows; the same added to rows that no registers hold."""
    scale = 4000 if longer else 1
    own = tuple(
        replace(a, steps=tuple((d, n, s * scale) for d, n, s in a.steps), extent=a.extent * scale)
        for a in added
    )
    call = SoftmaxCall("f", "forward", "float16", "float16", 5 * scale, 0.5, own)
    assert check(call)
    rng = np.random.default_rng(1)
    masks = [aligned(rng.standard_normal(a.extent).astype(DTYPES[a.dtype])) for a in own]
    for mask in masks:
        mask[3::7] = -np.inf
    given = [rows(2, (24, 5 * scale), 5 * scale + 24, "float16"), *masks]
    out = results(call, 24, 5 * scale + 3)
    emulated(folder, call, [*given, *out])
    compared(call, given, out)


def test_rows_of_special_numbers(folder: Path) -> None:
    """As PyTorch has them: of -inf alone, with inf, and with NaN a row is NaN; others are not."""
    torch = pytest.importorskip("torch")
    for columns in (9, 40, 700, 17000):
        call = SoftmaxCall("f", "forward", "float16", "float16", columns)
        given = rows(3, (6, columns), columns, "float16")
        given[1], given[2, 5], given[3, 1], given[4, ::2] = -np.inf, np.inf, np.nan, -np.inf
        out = results(call, 6, columns + 8)
        emulated(folder, call, [given, *out])
        want = torch.tensor(given.astype("float64")).softmax(-1).numpy()
        made = out[0][:, :columns].astype("float64")
        assert (np.isnan(made) == np.isnan(want)).all()
        assert np.nanmax(np.abs(made - want)) < 5e-4
        assert not np.any(out[0][:, columns:])
        # A row of weights that are 0 has a gradient of 0.
        back = replace(call, direction="backward")
        weights, d = out[0][:, :columns].copy(), rows(4, (6, columns), columns, "float16")
        weights[1], d[5, 2] = 0, np.nan
        out = results(back, 6, columns)
        emulated(folder, back, [aligned(d), aligned(weights), *out])
        assert not np.any(out[0][1])
        assert np.isnan(out[0][[2, 3, 5]].astype("float32")).all()
        assert np.isfinite(out[0][[0, 4]].astype("float32")).all()


def test_what_weights_lose_to_rounding_is_no_gradient(folder: Path) -> None:
    """The same for all columns is none, however large."""
    call = SoftmaxCall("f", "backward", "float16", "float16", 197)
    weights = values(replace(call, direction="forward"), [rows(5, (4, 197), 197, "float16")])[0]
    given = [aligned(np.full((4, 197), 1000, np.float16)), aligned(weights.astype("float16"))]
    out = results(call, 4, 200)
    emulated(folder, call, [*given, *out])
    assert np.abs(out[0]).max() < 1e-3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"source": "bfloat16"}, "forward of bfloat16 in float16"),
        ({"direction": "backward", "source": "float32"}, "backward of float32"),
        ({"columns": 0}, "0 columns"),
        ({"scale": float("inf")}, "not finite"),
        ({"wide": True}, "a second result of backward"),
        ({"added": MASKS[0] * 3}, "3 tensors are added"),
        ({"added": (Added("float64", (), 5),)}, "what is added is float64"),
        ({"added": (Added("float16", ((1, 2, 5),) * 4, 5),)}, "rows of 4 axes"),
        ({"added": (Added("float16", ((0, 2, 5),), 5),)}, "divisors from 1"),
    ],
)
def test_what_is_refused(change: dict[str, object], reason: str) -> None:
    call = replace(SoftmaxCall("f", "forward", "float16", "float16", 5), **change)
    assert reason in check(call).reason
