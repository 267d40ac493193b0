"""Attention's kernels on a device that is the CPU, against float64; results are NaN before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byoc_cudnn.attention import AttentionCall, Place, check
from byoc_cudnn.softmax import Added
from tests.support.attention import (
    LIMITS,
    computed,
    emulated,
    joined,
    operands_of,
    results_of,
)
from tests.support.batched_products import apart
from tests.support.cuda_emulated import DTYPES, aligned


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attention")


def tensors(
    seed: int, call: AttentionCall, offset: int = 0
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """(q, k and v's arrays, the result's and its gradient's, results' of dq, dk and dv), NaN where
    nothing has been written."""
    rng = np.random.default_rng(seed)
    count, kind = int(np.prod(call.sizes)) * int(call.width), DTYPES[call.dtype]
    one = call.results == (0, 0, 0)
    sizes = [3 * count * call.rows] if one else [
        count * n for n in (call.rows, call.columns, call.columns)
    ]  # fmt: skip
    given = [aligned(rng.standard_normal(n).astype(kind), offset) for n in sizes]
    made = [aligned(np.full(n, np.nan, kind), offset) for n in sizes]
    outs = [np.full(count * call.rows, np.nan, kind), rng.standard_normal(count * call.rows)]
    return given * (3 if one else 1), [aligned(o.astype(kind), offset) for o in outs], made


def both(
    folder: Path, forward: AttentionCall, backward: AttentionCall, seed: int = 0, offset: int = 0,
    races: bool = False, factor: float = 1.0, added: Sequence[Added] = (),
) -> None:  # fmt: skip
    """Runs a forward call and its gradient on random numbers; checks everything that they write.

    factor : of q, k and v; gradients of q and k are as far off as weights of 1 are rounded.
    added : to the scores, some of it -inf; their gradient is computed too.
    """
    forward = replace(forward, added=tuple(added))
    backward = replace(backward, added=tuple(added), wide=bool(added))
    assert check(forward)
    assert check(backward)
    given, (out, dout), made = tensors(seed, backward, offset)
    for array in {id(a): a for a in given}.values():
        array *= np.asarray(factor, array.dtype)
    rows = int(np.prod(forward.sizes)) * forward.rows
    logs, inner = (aligned(np.full(rows, np.nan, np.float32)) for _ in range(2))
    limit = LIMITS[forward.dtype]
    rng = np.random.default_rng(seed + 1)
    masks = [aligned(rng.standard_normal(a.extent).astype(DTYPES[a.dtype])) for a in added]
    for mask in masks:
        mask[3::7] = -np.inf
    found = emulated(folder, forward, [*given, *masks, out, logs], races)
    want = computed(forward, operands_of(forward, [*given, *masks]))
    assert apart(results_of(forward, [out])["out"], want["out"]) < limit, forward
    assert apart(logs, want["logs"].reshape(-1)) < 1e-5, forward
    arrays = [*given, out, logs, dout, *masks]
    wide = [np.full(rows * forward.columns, np.nan, np.float32)] if added else []
    found += emulated(folder, backward, [*arrays, *made, *wide, inner], races)
    want = computed(backward, operands_of(backward, arrays))
    least = 0.05 * np.linalg.norm(want["dv"]) * factor**2  # of one column the gradient is 0
    for name, matrices in results_of(backward, made).items():
        far = np.linalg.norm(matrices.astype("float64") - want[name])
        norm = np.linalg.norm(want[name])
        assert far < 2 * limit * (norm if name == "dv" else max(norm, least)), (name, backward)
    for slopes in wide:
        assert apart(slopes, want["wide"].reshape(-1)) < 2 * limit, backward
    assert all(np.isfinite(array.astype("float32")).all() for array in (*made, *wide, out))
    assert found == 0, "races in shared memory"


# Tokens: one; a part of sixteen; a window's; some that end within a warp's rows, and with a tile.
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("tokens", [1, 5, 49, 64, 83, 197])
def test_tokens(folder: Path, dtype: str, tokens: int) -> None:
    both(folder, *joined(dtype, 32, tokens, tokens))


@pytest.mark.longer_cases("8", "16", "64", "128", why="g++ builds two kernels of each")
@pytest.mark.parametrize("width", [8, 16, 24, 64, 72, 128])
def test_widths(folder: Path, width: int) -> None:
    both(folder, *joined("float16", width, 70, 70, (1, 2)))


@pytest.mark.parametrize(("rows", "columns"), [(1, 130), (130, 3), (65, 64)])
def test_rows_and_columns_of_their_own(folder: Path, rows: int, columns: int) -> None:
    both(folder, *joined("float16", 32, rows, columns))


def test_what_does_not_lie_at_16_bytes(folder: Path) -> None:
    both(folder, *joined("float16", 32, 21, 21), offset=2)


@pytest.mark.longer_cases("80", why="g++ builds two kernels")
@pytest.mark.parametrize("width", [32, 80])
def test_races(folder: Path, width: int) -> None:
    """Reads and writes of shared memory that no barrier keeps apart: none."""
    both(folder, *joined("float16", width, 135, 135, (1, 1)), races=True)


# Of two images and two heads: a bias of pairs for each head; a mask of keys for each image, and a
# bias; of pairs, the same for all.
def added_to(rows: int, columns: int) -> tuple[tuple[Added, ...], ...]:
    return (
        (Added("float32", ((1, 2 * rows, columns),), 2 * rows * columns),),
        (
            Added("float16", ((2 * rows, 2, columns),), 2 * columns),
            Added("bfloat16", ((1, 2 * rows, columns),), 2 * rows * columns),
        ),
        (Added("float16", ((1, rows, columns),), rows * columns),),
    )


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize(("rows", "columns"), [(83, 83), (21, 70)])
def test_what_is_added(folder: Path, which: int, rows: int, columns: int) -> None:
    both(folder, *joined("float16", 32, rows, columns), added=added_to(rows, columns)[which])


def test_races_of_what_is_added(folder: Path) -> None:
    added = (Added("float32", ((1, 135, 135),), 135 * 135),)
    both(folder, *joined("float16", 32, 135, 135, (1, 1)), races=True, added=added)


def test_scores_of_thousands(folder: Path) -> None:
    """Weights of one column and of no other: powers neither overflow nor are they NaN."""
    both(folder, *joined("float16", 32, 83, 83), factor=40.0)


def test_special_numbers(folder: Path) -> None:
    """As PyTorch has them: a row of q with inf or NaN is NaN, others are not."""
    forward, _ = joined("float16", 32, 70, 70, (1, 1))
    given, (out, _), _ = tensors(1, replace(forward, direction="backward", results=(0, 0, 0)))
    q = operands_of(forward, given)["q"]
    q[0, 0, 0, 3, 5], q[0, 0, 0, 66, 1] = np.inf, np.nan
    logs = np.full(70, np.nan, np.float32)
    emulated(folder, forward, [*given, out, logs])
    made = results_of(forward, [out])["out"][0, 0, 0].astype("float32")
    assert np.isnan(made[[3, 66]]).all()
    assert np.isfinite(np.delete(made, [3, 66], 0)).all()


def test_columns_of_nothing_but_the_least(folder: Path) -> None:
    """The first tile's scores are -inf: the others' count; with all of them -inf a row is NaN."""
    forward, _ = joined("float16", 16, 80, 80, (1, 2))
    given, (out, _), _ = tensors(2, replace(forward, direction="backward", results=(0, 0, 0)))
    of = operands_of(forward, given)
    of["q"][..., 0] = 1
    of["k"][0, 0, 0, :64, 0] = -np.inf
    of["k"][0, 1, 0, :, 0] = -np.inf
    logs = np.full(160, np.nan, np.float32)
    emulated(folder, forward, [*given, out, logs])
    want = computed(forward, of)["out"][0, :, 0]
    made = results_of(forward, [out])["out"][0, :, 0]
    assert apart(made[0], want[0]) < LIMITS["float16"]
    assert np.isnan(made[1].astype("float32")).all()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": "float32"}, "dtype 'float32'"),
        ({"width": "20"}, "width '20'"),
        ({"width": "136"}, "width '136'"),
        ({"rows": 0}, "0 rows"),
        ({"scale": -1.0}, "not above 0"),
        ({"sizes": (2, 0, 3)}, "matrices of"),
        ({"results": (1,)}, "results (1,)"),
        ({"places": ()}, "0 places, expected 4"),
        ({"added": added_to(21, 21)[0] * 3}, "3 tensors are added"),
        ({"wide": True}, "is of backward calls"),
        ({"places": (Place(0, (0, 0, 0), 16),) * 4}, "its rows overlap"),
    ],
)
def test_what_is_refused(change: dict[str, Any], reason: str) -> None:
    forward, _ = joined("float16", 32, 21, 21)
    assert reason in check(replace(forward, **change)).reason
