"""What the normalizations' and the poolings' kernels compute, on a device that is the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from byoc_cudnn.norm import NormCall, check
from byoc_cudnn.pool import PoolCall
from tests.support import cuda_emulated
from tests.support.cuda_emulated import DTYPES, aligned
from tests.support.norm_groups import alpha_of, expected
from tests.support.norm_tensors import ROWS, SUMS, Tensors


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def wanted(t: Tensors, back: NormCall) -> dict[str, np.ndarray]:
    """In float64, but for what a pooling rounds; masks are those of the stored y."""
    z: Any = 0
    found, normals = {}, []
    ends = ("", *(str(n + 2) for n in range(back.others)))
    for which in ends:
        x = t.wide("x" + which)
        mean, var = x.mean(0), x.var(0)
        rstd = 1 / np.sqrt(var + 1e-5)
        normals.append((x - mean) * rstd)
        z = z + normals[-1] * t["gamma" + which] + t["beta" + which]
        m = len(x)
        found |= {
            "mean" + which: mean, "rstd" + which: rstd,
            f"new_running_mean{which}": 0.9 * t["running_mean" + which] + 0.1 * mean,
            f"new_running_var{which}":
                0.9 * t["running_var" + which] + 0.1 * var * m / (m - 1),
        }  # fmt: skip
    if "residual" in t:
        z = z + t.wide("residual")
    found["y"] = np.maximum(z, 0)
    dy = t["dy"].astype(t.sums)
    if back.summed:
        dy = (dy + t["dy2"].astype(t.sums)).astype(t.rows)
    g = dy.astype("float64").reshape(z.shape) * (t.wide("y") > 0)
    found["dresidual"] = g
    for which, normal in zip(ends, normals, strict=True):
        dbeta, dgamma = g.sum(0), (g * normal).sum(0)
        scale = t["gamma" + which] * found["rstd" + which]
        found |= {
            "dbeta" + which: dbeta, "dgamma" + which: dgamma,
            "dx" + which: scale * (g - dbeta / m - normal * dgamma / m),
        }  # fmt: skip
    return found


@pytest.mark.longer_cases(
    "float32-shape0-together0-how0",
    "float16",
    "float64",
    "float32-shape4",
    "float32-shape6",
    "float32-shape7",
    "bfloat16-shape5",
    "float32-shape10",
)
@pytest.mark.parametrize(
    ("dtype", "shape", "together", "how"),
    [
        ("float32", (300, 64), (False, True), {}),
        ("bfloat16", (20, 35, 136), (True,), {"residual": True, "bits": True, "summed": True}),
        ("float16", (9, 6, 24), (False, True), {"residual": True}),
        ("float64", (200, 6), (True,), {"residual": True, "bits": True}),
        ("float32", (70, 13), (True,), {"residual": True, "bits": True}),
        ("bfloat16", (300, 72), (True,), {"residual": True, "bits": True, "others": 1}),
        ("float32", (90, 13), (True,), {"residual": True, "bits": True, "others": 1}),
        (
            "float32", (600, 32), (True,),
            {"residual": True, "bits": True, "others": 1, "summed": True},
        ),
        (
            "float16", (130, 72), (True,),
            {"residual": True, "bits": True, "others": 2, "summed": True},
        ),
        ("bfloat16", (37, 21), (True,), {"residual": True, "bits": True, "others": 2}),
        ("float32", (50, 36), (True,), {"residual": True, "bits": True, "others": 3}),
        ("float64", (20, 7), (True,), {"residual": True, "bits": True, "others": 3}),
    ],
)  # fmt: skip
def test_forward_and_backward(
    folder: Path, dtype: str, shape: tuple[int, ...], together: tuple[bool, ...], how: Any
) -> None:
    how = dict(how)
    summed = how.pop("summed", False)
    forward = NormCall("f", "forward", dtype, "relu", running=True, **how)
    back = NormCall("b", "backward", dtype, "relu", summed=summed, **how)
    channels_fit = shape[-1] * np.dtype(DTYPES[dtype]).itemsize % 16 == 0
    for one in together:
        t = Tensors(shape, dtype)
        launches = [
            cuda_emulated.norm(folder, call, t.ready(call), one) for call in (forward, back)
        ]
        assert launches == [one and channels_fit and not forward.others] * 2
        want = wanted(t, back)
        for name in (*forward.results, *back.results):
            if name == "mask":
                continue
            limit = ROWS[dtype] if t[name].ndim > 1 else SUMS[dtype]
            error = np.linalg.norm(t.wide(name) - want[name])
            assert error <= limit * np.linalg.norm(want[name]), (one, name, error)


@pytest.mark.longer_cases("float16")
@pytest.mark.parametrize(
    ("dtype", "activation"), [("bfloat16", "relu"), ("float16", "relu6"), ("float16", "leaky_relu")]
)
def test_what_passes_is_told_of_what_would_be_stored(
    folder: Path, dtype: str, activation: str
) -> None:
    """Beside 0 and 6: half of the least number, which goes to 0, and of the last below 6, to 6."""
    kind = DTYPES[dtype]
    least, last = (2.0**-133, 6 - 2.0**-5) if dtype == "bfloat16" else (2.0**-24, 6 - 2.0**-8)
    edges = np.array([0, least / 2, -least / 2, least, (6 + last) / 2, last, 6], "float32")
    values = np.concatenate([np.nextafter(edges, np.float32(side)) for side in (-9, 9)])
    values = np.concatenate([edges, values, np.array([np.nan, 1, -1], "float32")])
    beta = np.resize(values, 24).astype("float32")
    t = Tensors((2, 24), dtype)
    t["x"] = aligned(np.zeros((2, 24), kind))  # so that what would be stored is beta, rounded
    t["dy"] = aligned(np.array([[1.0] * 24, [0.0] * 24]).astype(kind))
    for name, value in (("gamma", 1), ("mean", 0), ("rstd", 1)):
        t[name] = aligned(np.full(24, value, "float32"))
    t["beta"] = aligned(beta)
    call = NormCall("b", "backward", dtype, activation, alpha=alpha_of(activation))
    cuda_emulated.norm(folder, call, t.ready(call), False)
    stored = beta.astype(kind).astype("float32")
    passes = stored > 0 if activation == "leaky_relu" else ~(stored <= 0)
    if activation == "relu6":
        passes &= ~(stored >= 6)
    held = alpha_of(activation) if activation == "leaky_relu" else 0
    assert np.array_equal(t["dbeta"], np.where(passes, 1, np.float32(held)))


@pytest.mark.parametrize("shape", [(300, 64), (300, 6)])
@pytest.mark.parametrize("together", [False, True])
def test_parameters_that_lie_anywhere(folder: Path, shape: tuple[int, ...], together: bool) -> None:
    """Bit for bit as where they lie at 16 bytes, by which they are read where they can be."""
    calls = [NormCall("f", "forward", "float32", "relu", running=True)]
    calls.append(NormCall("b", "backward", "float32", "relu"))
    found = []
    for offset in (0, 4):
        t = Tensors(shape, "float32")
        for call in calls:
            t.ready(call)
            for name in (*call.operands, *call.results):
                t[name] = t[name] if t[name].ndim > 1 else aligned(t[name], offset)
            cuda_emulated.norm(folder, call, t, together)
        found.append(t)
    for name, value in found[0].items():
        np.testing.assert_array_equal(found[1][name], value, name)
    t = found[0]
    want = {"mean": t.wide("x").mean(0), "dbeta": (t.wide("dy") * (t.wide("y") > 0)).sum(0)}
    for name, value in want.items():
        assert np.linalg.norm(t[name] - value) <= SUMS["float32"] * np.linalg.norm(value), name


@pytest.mark.parametrize(
    ("dtype", "activation", "shape", "groups", "slices"),
    [
        ("float16", "relu", (3, 40, 24), 0, ((8, 40), (0, 24))),  # rows side by side
        ("float16", "relu", (400, 136), 0, ((16, 152),)),
        ("bfloat16", "relu", (60, 104), 0, ((0, 208), (104, 208))),
        ("float32", "silu", (2, 90, 16), 4, ((4, 24),)),
        ("float16", "relu", (50, 26), 0, ((26, 104), (0, 26))),  # no whole packs
        ("float64", "relu", (30, 5), 0, ((3, 9),)),
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_gradients_that_are_channels_of_others(
    folder: Path, dtype: str, activation: str, shape: tuple[int, ...], groups: int,
    slices: tuple[tuple[int, int], ...], together: bool,
) -> None:  # fmt: skip
    """As those of a copy, bit for bit where rows are as wide at once; the sum of two is rounded."""
    grouped, width = groups > 0, shape[-1]
    apart = Tensors(shape, dtype, groups=groups)
    cuda_emulated.norm(
        folder, forward := NormCall("f", "forward", dtype, activation, grouped=grouped),
        apart.ready(forward), together,
    )  # fmt: skip
    names = ("dy", "dy2")[: len(slices)]
    rng = np.random.default_rng(1)
    wide = {
        name: aligned(rng.standard_normal((*shape[:-1], n)).astype(DTYPES[dtype]))
        for name, (_, n) in zip(names, slices, strict=True)
    }
    parts = [wide[name][..., i : i + width] for name, (i, _) in zip(names, slices, strict=True)]
    total = parts[0]
    for part in parts[1:]:
        total = (total.astype(apart.sums) + part.astype(apart.sums)).astype(DTYPES[dtype])
    apart["dy"] = aligned(total)
    back = NormCall("b", "backward", dtype, activation, grouped=grouped)
    cuda_emulated.norm(folder, back, apart.ready(back), together)
    sliced = Tensors(shape, dtype, groups=groups)
    sliced |= {name: apart[name] for name in back.operands if name != "dy"} | wide
    there = replace(back, slices=slices, summed=len(slices) > 1)
    assert check(there)
    cuda_emulated.norm(folder, there, sliced.ready(there), together)
    whole = all(n * np.dtype(DTYPES[dtype]).itemsize % 16 == 0 for n in (width, *sum(slices, ())))
    for name in back.results:
        if whole:
            assert np.array_equal(sliced[name].view(np.uint8), apart[name].view(np.uint8)), name
        else:
            error = np.linalg.norm(sliced.wide(name) - apart.wide(name))
            assert error <= ROWS[dtype] * np.linalg.norm(apart.wide(name)), name


@pytest.mark.parametrize(
    ("dtype", "activation", "shape", "groups", "within"),
    [
        ("float16", "relu", (3, 40, 24), 0, (8, 40)),  # rows side by side
        ("bfloat16", "relu", (60, 104), 0, (0, 208)),
        ("float32", "silu", (2, 90, 16), 4, (4, 24)),
        ("float16", "relu", (400, 136), 0, (0, 152)),
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_operands_that_are_channels_of_others(
    folder: Path, dtype: str, activation: str, shape: tuple[int, ...], groups: int,
    within: tuple[int, int], together: bool,
) -> None:  # fmt: skip
    """Both directions as those of a copy, bit for bit."""
    rng = np.random.default_rng(1)
    wide = aligned(rng.standard_normal((*shape[:-1], within[1])).astype(DTYPES[dtype]))
    apart, part = (Tensors(shape, dtype, groups=groups) for _ in range(2))
    apart["x"] = aligned(wide[..., within[0] : within[0] + shape[-1]])
    for direction in ("forward", "backward"):
        plain = NormCall("f", direction, dtype, activation, grouped=groups > 0)
        there = replace(plain, within=within)
        assert check(there)
        cuda_emulated.norm(folder, plain, apart.ready(plain), together)
        part |= {name: apart[name] for name in plain.operands if name != "x"}
        part["x"] = wide
        cuda_emulated.norm(folder, there, part.ready(there), together)
        for name in plain.results:
            assert np.array_equal(part[name].view(np.uint8), apart[name].view(np.uint8)), name


@pytest.mark.parametrize(
    ("dtype", "how", "shape", "groups", "place"),
    [
        ("float16", {"activation": "relu"}, (3, 40, 24), 0, (8, 40)),  # rows side by side
        ("bfloat16", {"activation": "relu", "residual": True, "bits": True}, (60, 104), 0,
         (104, 208)),
        ("float32", {"activation": "silu"}, (2, 90, 16), 4, (4, 24)),
        ("float16", {"activation": "relu"}, (400, 136), 0, (16, 152)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("together", [False, True])
def test_results_that_are_channels_of_a_joined_tensor(
    folder: Path, dtype: str, how: dict[str, Any], shape: tuple[int, ...], groups: int,
    place: tuple[int, int], together: bool,
) -> None:  # fmt: skip
    """As by itself, bit for bit; what is beside it stays, and it is written by itself too."""
    plain = NormCall("f", "forward", dtype, grouped=groups > 0, **how)
    apart = Tensors(shape, dtype, groups=groups)
    cuda_emulated.norm(folder, plain, apart.ready(plain), together)
    rng, kind = np.random.default_rng(1), DTYPES[dtype]
    for own in (False, True):
        call = replace(plain, place=place, own=own)
        assert check(call)
        placed = Tensors(shape, dtype, groups=groups)
        placed |= {name: apart[name] for name in plain.operands}
        for name in call.results:
            placed[name] = aligned(np.zeros_like(apart[name] if name != "own" else apart["y"]))
        around = aligned(rng.standard_normal((*shape[:-1], place[1])).astype(kind))
        placed["y"] = aligned(around)
        cuda_emulated.norm(folder, call, placed, together)
        around[..., place[0] : place[0] + shape[-1]] = apart["y"]
        assert np.array_equal(placed["y"].view(np.uint8), around.view(np.uint8))
        for name in (*plain.results[1:], *["own"] * own):
            want = apart["y" if name == "own" else name]
            assert np.array_equal(placed[name].view(np.uint8), want.view(np.uint8)), name


def pooled_size(shape: tuple[int, ...], windows: tuple[int, ...]) -> tuple[int, ...]:
    (n, h, w, c), (r, s, down, across, top, left, bottom, right) = shape, windows
    return (n, (h + top + bottom - r) // down + 1, (w + left + right - s) // across + 1, c)


def windows_of(image: np.ndarray, windows: tuple[int, ...]) -> np.ndarray:
    """Of an image in float64 all windows, taps behind channels; what is outside is least."""
    r, s, down, across, top, left, bottom, right = windows
    wide = np.pad(image.astype("float64"), ((0, 0), (top, bottom), (left, right), (0, 0)),
                  constant_values=-np.inf)  # fmt: skip
    seen = np.lib.stride_tricks.sliding_window_view(wide, (r, s), (1, 2))[:, ::down, ::across]
    return seen.reshape(*seen.shape[:4], -1)


@pytest.mark.longer
@pytest.mark.parametrize(
    ("dtype", "activation", "shape", "windows"),
    [
        # Sizes of which no rows are side by side: their sums are added in another order.
        ("bfloat16", "relu", (2, 5, 6, 64), (3, 3, 2, 2, 1, 1, 1, 1)),
        ("float32", "relu6", (1, 7, 9, 13), (3, 3, 2, 2, 1, 1, 1, 1)),
        ("float16", "silu", (1, 18, 6, 8), (3, 2, 1, 2, 1, 0, 1, 0)),
        ("bfloat16", "relu", (1, 37, 5, 16), (5, 3, 2, 2, 2, 1, 2, 1)),  # more rows than are kept
    ],
)
def test_a_pooled_normalization_has_the_bits_of_both_apart(
    folder: Path, dtype: str, activation: str, shape: tuple[int, ...], windows: tuple[int, ...]
) -> None:
    """But for sums over pixels, which go by cells, and what is made of them."""
    r, s, down, across, top, left, bottom, right = windows
    both = Tensors(shape, dtype, pooled_size(shape, windows))
    for direction in ("forward", "backward"):
        call = NormCall(
            "f", direction, dtype, activation, running=direction == "forward", pooled=windows
        )
        cuda_emulated.norm(folder, call, both.ready(call), True)
    apart = Tensors(shape, dtype)
    apart |= {name: both[name] for name in ("x", "gamma", "beta", "running_mean", "running_var")}
    call = NormCall("f", "forward", dtype, activation, running=True)
    cuda_emulated.norm(folder, call, apart.ready(call), False)
    pooled = {"x": apart["y"], "y": both["y"].copy(), "index": both["index"].copy()}
    kind = ((r, s), (down, across), (top, left, bottom, right))
    cuda_emulated.pool(folder, PoolCall("f", "forward", dtype, *kind, index=True), pooled)
    seen = windows_of(apart["y"], windows)
    assert np.array_equal(pooled["y"].astype("float64"), seen.max(-1))
    assert np.array_equal(pooled["index"], seen.argmax(-1))
    gradients = []
    for index in (True, False):  # by the index, and by finding the maxima again
        given = pooled | {"dy": both["dy"], "dx": np.full_like(both["x"], np.nan)}
        cuda_emulated.pool(folder, PoolCall("b", "backward", dtype, *kind, index=index), given)
        gradients.append(given["dx"])
    assert np.array_equal(*(g.view(np.uint8) for g in gradients))
    apart["dy"] = gradients[0]
    call = NormCall("b", "backward", dtype, activation)
    cuda_emulated.norm(folder, call, apart.ready(call), False)
    for name in ("mean", "rstd", "new_running_mean", "new_running_var"):
        assert np.array_equal(apart[name].view(np.uint8), both[name].view(np.uint8)), name
    for name in ("y", "index"):
        assert np.array_equal(pooled[name].view(np.uint8), both[name].view(np.uint8)), name
    for name in ("dx", "dgamma", "dbeta"):
        error = np.linalg.norm(both.wide(name) - apart.wide(name))
        limit = (ROWS[dtype] if name == "dx" else SUMS[dtype]) / 2
        assert error <= limit * np.linalg.norm(apart.wide(name)), (name, error)


@pytest.mark.longer_cases("float32", "float16", "bfloat16-shape1")
@pytest.mark.parametrize(
    ("dtype", "shape", "windows"),
    [
        ("bfloat16", (2, 5, 6, 16), (3, 3, 2, 2, 1, 1, 1, 1)),
        ("bfloat16", (1, 9, 7, 16), (3, 3, 2, 2, 0, 0, 1, 1)),  # the last windows end outside
        ("bfloat16", (1, 11, 8, 16), (5, 3, 2, 2, 2, 1, 2, 1)),  # six windows reach a pixel
        ("float32", (1, 7, 9, 13), (3, 3, 1, 1, 1, 1, 1, 1)),
        ("float16", (1, 8, 9, 8), (2, 1, 3, 2, 0, 0, 0, 0)),  # six pixels a cell, some of no window
    ],
)
def test_a_pooled_normalization_of_whole_numbers(
    folder: Path, dtype: str, shape: tuple[int, ...], windows: tuple[int, ...]
) -> None:
    """Of many that are equal the first counts; sums are the same in any order, and so the gradient
    has the bits of both apart."""
    _, s, down, across, top, left, *_ = windows
    size = pooled_size(shape, windows)
    t, rng = Tensors(shape, dtype, size), np.random.default_rng(2)
    t["x"] = aligned(rng.integers(-4, 5, shape).astype(DTYPES[dtype]))
    t["dy"] = aligned(rng.integers(-3, 4, size).astype(DTYPES[dtype]))
    for name, value in (("gamma", -1), ("beta", 0.3)):
        t[name] = aligned(np.full(shape[-1], value, "float32"))
    call = NormCall("f", "forward", dtype, "relu", pooled=windows)
    cuda_emulated.norm(folder, call, t.ready(call), True)
    pixels = t.wide("x")
    rstd = 1 / np.sqrt(pixels.var(0) + 1e-5)
    y = np.maximum(0.3 - (t["x"].astype("float64") - pixels.mean(0)) * rstd, 0)
    seen = windows_of(y, windows)
    taps = seen.argmax(-1)
    assert np.array_equal(t["index"], taps)
    error = np.linalg.norm(t["y"].astype("float64") - seen.max(-1))
    assert error <= ROWS[dtype] * np.linalg.norm(seen.max(-1))
    for name, value in (("gamma", -1), ("beta", 1), ("mean", 0), ("rstd", 0.5)):
        t[name] = aligned(np.full(shape[-1], value, "float32"))
    gathered = np.zeros(shape)
    for (n, p, q, c), tap in np.ndenumerate(taps):
        pixel = (n, p * down - top + tap // s, q * across - left + tap % s, c)
        gathered[pixel] += t["dy"][n, p, q, c]
    call = NormCall("b", "backward", dtype, "relu", pooled=windows)
    cuda_emulated.norm(folder, call, t.ready(call), True)
    apart = Tensors(shape, dtype)
    apart |= {name: t[name] for name in ("x", "gamma", "beta", "mean", "rstd")}
    apart["dy"] = aligned(gathered.astype(DTYPES[dtype]))
    call = NormCall("b", "backward", dtype, "relu")
    cuda_emulated.norm(folder, call, apart.ready(call), False)
    through = gathered * (t["x"].astype("float64") < 2)
    assert np.array_equal(t["dbeta"], through.sum((0, 1, 2)))
    assert np.array_equal(t["dgamma"], 0.5 * (through * t["x"]).sum((0, 1, 2)))
    assert np.array_equal(t["dx"].view(np.uint8), apart["dx"].view(np.uint8))


# ---- groups of an image's channels, and all activations ------------------------------------------

GROUPED = [  # dtype, shape, groups, activation, what else the calls are
    ("float32", (2, 150, 64), 64, "leaky_relu", {}),
    ("bfloat16", (2, 5, 7, 6, 40), 40, "leaky_relu", {}),
    ("float32", (3, 70, 13), 13, "leaky_relu", {"residual": True, "bits": True}),
    ("bfloat16", (2, 90, 24), 24, "leaky_relu", {"residual": True, "bits": True, "summed": True}),
    ("float32", (3, 40, 24), 4, "leaky_relu", {"residual": True}),
    ("float64", (2, 30, 10), 5, "elu", {}),
    ("float16", (2, 50, 48), 2, "gelu_tanh", {}),
    ("float32", (1, 60, 12), 3, "hardswish", {}),  # one image, of groups
    ("float32", (1, 60, 12), 12, "relu6", {}),  # one image: as a batch, by one launch
    ("float32", (2, 1, 8), 8, "silu", {}),  # one pixel
    ("float32", (5, 3, 4), 1, "gelu", {}),
    ("float32", (90, 12), 0, "leaky_relu", {"residual": True, "bits": True}),
    ("float32", (90, 12), 0, "gelu", {}),
    ("float32", (90, 12), 0, "elu", {}),
]


def by_torch(t: Tensors, groups: int, activation: str, summed: bool) -> dict[str, np.ndarray]:
    """All results in float64."""
    names = [n for n in ("x", "gamma", "beta", "residual") if n in t]
    given = {n: torch.tensor(t[n].astype("float64")) for n in names}
    dy = t["dy"].astype(t.sums)
    if summed:
        dy = (dy + t["dy2"].astype(t.sums)).astype(t.rows)
    others = (torch.tensor(v.astype("float64")) for v in (dy, t["y"]))
    return {n: v.numpy() for n, v in expected(given, *others, groups, activation).items()}


@pytest.mark.share(5)
@pytest.mark.longer_cases("float32-shape10", why="groups of several channels, as in float64")
@pytest.mark.parametrize(("dtype", "shape", "groups", "activation", "how"), GROUPED)
def test_groups_and_activations(
    folder: Path, dtype: str, shape: tuple[int, ...], groups: int, activation: str, how: Any
) -> None:
    compared(folder, dtype, shape, groups, activation, how)


@pytest.mark.parametrize(
    ("dtype", "shape", "groups", "activation", "how"),
    [
        ("bfloat16", (2, 6, 4, 26), 26, "silu", {}),
        ("float16", (3, 48, 12), 0, "leaky_relu", {"residual": True, "bits": True, "summed": True}),
        ("float32", (2, 9, 13), 0, "gelu", {}),  # an odd number of rows: as they are
    ],
)
def test_rows_side_by_side_are_whole_packs(
    folder: Path, dtype: str, shape: tuple[int, ...], groups: int, activation: str, how: Any
) -> None:
    compared(folder, dtype, shape, groups, activation, how)


def compared(
    folder: Path, dtype: str, shape: tuple[int, ...], groups: int, activation: str, how: Any
) -> None:
    """Both directions, with float64."""
    how = dict(how)
    summed = how.pop("summed", False)
    how |= {"alpha": alpha_of(activation), "grouped": groups > 0}
    forward = NormCall("f", "forward", dtype, activation, **how)
    back = NormCall("b", "backward", dtype, activation, summed=summed, **how)
    assert check(forward), check(forward).reason
    assert check(back), check(back).reason
    t = Tensors(shape, dtype, groups=groups)
    launches = [cuda_emulated.norm(folder, call, t.ready(call), True) for call in (forward, back)]
    whole = shape[-1] * np.dtype(DTYPES[dtype]).itemsize % 16 == 0
    alone = groups == 0 or (shape[0] == 1 and groups == shape[-1])
    assert launches == [whole and alone] * 2
    want = by_torch(t, groups, activation, summed)
    pixel = groups == shape[-1] and shape[1:-1] == (1,)
    for name in (*forward.results, *back.results):
        if name == "mask":
            continue
        limit = ROWS[dtype] if t[name].shape == shape else SUMS[dtype]
        got = t[name].astype("float64")
        if pixel and name in ("dx", "dgamma"):
            assert not got.any(), name
            continue
        error = np.linalg.norm(got - want[name].reshape(got.shape))
        assert error <= 2 * limit * np.linalg.norm(want[name]), (name, error)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_group(folder: Path, value: float) -> None:
    """Of one image; the parameters' gradients are those of all images."""
    t = Tensors((2, 40, 12), "float32", groups=3)
    for direction in ("forward", "backward"):
        call = NormCall("f", direction, "float32", "leaky_relu", alpha=0.2, grouped=True)
        t.ready(call)
        t["x"][1, 3, 5] = value  # of group 1
        cuda_emulated.norm(folder, call, t, True)
    for name in ("y", "dx"):
        bad = ~np.isfinite(t[name])
        assert bad[1, :, 4:8].all(), name
        bad[1, :, 4:8] = False
        assert not bad.any(), name
    assert np.isfinite(t["mean"]).sum() == 5
    assert np.isnan(t["dgamma"]).tolist() == [c // 4 == 1 for c in range(12)]


# ---- rows, whose statistics are their own --------------------------------------------------------

BY_ROW = [  # dtype, rows, channels, activation
    ("float16", 66, 80, ""),  # threads of a warp have several rows
    ("bfloat16", 21, 320, ""),
    ("float32", 9, 13, ""),  # not whole packs
    ("float64", 6, 10, "gelu"),
    ("bfloat16", 35, 24, "gelu"),
    ("float32", 18, 772, "relu"),  # several warps have a row, and blocks several turns
    ("float16", 34, 2500, ""),  # both, and no whole packs
    ("float32", 1, 4, "silu"),
]


@pytest.mark.share(3)
@pytest.mark.longer_cases("float16-34-2500", why="a thread of the CPU for each of many blocks'")
@pytest.mark.parametrize(("dtype", "rows", "channels", "activation"), BY_ROW)
def test_rows(folder: Path, dtype: str, rows: int, channels: int, activation: str) -> None:
    how: Any = {"grouped": True, "by_row": True}
    calls = [NormCall("f", d, dtype, activation, **how) for d in ("forward", "backward")]
    t = Tensors((rows, 1, channels), dtype, groups=1)
    for call in calls:
        assert check(call), check(call).reason
        cuda_emulated.norm(folder, call, t.ready(call), True)
    want = by_torch(t, 1, activation, False)
    scale = np.linalg.norm(t["dy"].astype("float64")) * float(want["rstd"].max())
    for name in (n for call in calls for n in call.results):
        limit = ROWS[dtype] if t[name].shape == t.shape else SUMS[dtype]
        got = t[name].astype("float64")
        error = np.linalg.norm(got - want[name].reshape(got.shape))
        rounding = SUMS[dtype] * scale  # of what dx is a difference of
        assert error <= 2 * limit * np.linalg.norm(want[name]) + rounding, (name, error)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_row(folder: Path, value: float) -> None:
    t = Tensors((9, 1, 12), "float32", groups=1)
    for direction in ("forward", "backward"):
        call = NormCall("f", direction, "float32", grouped=True, by_row=True)
        t.ready(call)
        t["x"][4, 0, 5] = value
        cuda_emulated.norm(folder, call, t, True)
    for name in ("y", "dx"):
        bad = ~np.isfinite(t[name][:, 0])
        assert bad[4].all(), name
        assert bad.sum() == 12, name
    assert np.isfinite(t["mean"]).sum() == 8
    assert np.isnan(t["dgamma"]).all()
    assert np.isfinite(t["dbeta"]).all()


@pytest.mark.parametrize(
    ("dtype", "channels", "slice_"),
    [("bfloat16", 16, (8, 40)), ("float16", 6, (3, 13)), ("float32", 8, (0, 12))],
)
def test_a_pooling_of_channels_of_a_wider_tensor(
    folder: Path, dtype: str, channels: int, slice_: tuple[int, int]
) -> None:
    """As of a copy, bit for bit, and so its gradient that reads x."""
    rng, kind = np.random.default_rng(0), DTYPES[dtype]
    wide = aligned(rng.standard_normal((2, 7, 6, slice_[1])).astype(kind))
    x = aligned(wide[..., slice_[0] : slice_[0] + channels])
    windows = (2, 3, 3, channels)
    dy = aligned(rng.standard_normal(windows).astype(kind))
    found = []
    for image, place in ((x, ()), (wide, slice_)):
        forward = PoolCall("f", "forward", dtype, (3, 2), (2, 2), (0, 1, 0, 0), slice=place)
        back = replace(forward, direction="backward")
        t = {"x": image, "dy": dy, "y": aligned(np.full(windows, np.nan, kind)),
             "dx": aligned(np.full(x.shape, np.nan, kind)),
             "index": aligned(np.full(windows, 90, np.uint8))}  # fmt: skip
        cuda_emulated.pool(folder, back, t)
        for index in (False, True):
            cuda_emulated.pool(folder, replace(forward, index=index), t)
            found.append(
                [t[name].tobytes() for name in ("y", "dx")] + [t["index"].tobytes()] * index
            )
    assert found[:2] == found[2:]
