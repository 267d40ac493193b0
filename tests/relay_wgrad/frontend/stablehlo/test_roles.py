"""Every reading of a convolution computes the same: against sums over taps, in NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from relay_wgrad.frontend.stablehlo.roles import Convolution, Reading, readings
from relay_wgrad.problem import ConvKind
from tests.support.problems import relative_error, torch_reference

Array = np.ndarray[Any, Any]


def drawn(seed: int) -> Convolution:
    """A convolution of few pixels, of whatever StableHLO can say."""
    rng = np.random.default_rng(seed)
    while True:
        rank = int(rng.integers(2, 4)) if rng.random() < 0.3 else 2
        n, c, k, g = (int(v) for v in rng.integers(1, 4, 4))
        groups, images = [(1, 1), (g, 1), (1, g)][int(rng.integers(3))]
        sizes, taps, out = (rng.integers(1, 5, rank) for _ in range(3))
        low = rng.integers(-2, 4, rank)
        spatial = [str(a) for a in range(rank)]
        numbers = ["".join(rng.permutation([*x, *spatial])) for x in ("bf", "fo", "bo")]
        of = [
            {"b": n * images, "f": c * groups}, {"f": c, "o": k * g if groups + images > 2 else k},
            {"b": n, "o": k * g if groups + images > 2 else k},
        ]  # fmt: skip
        for sizes_of, some in zip(of, (sizes, taps, out), strict=True):
            sizes_of |= {str(a): int(v) for a, v in enumerate(some)}
        return Convolution(
            tuple(tuple(s[x] for x in t) for s, t in zip(of, numbers, strict=True)),
            (numbers[0], numbers[1], numbers[2]),
            *(tuple(int(v) for v in rng.integers(1, 4, rank)) for _ in range(1)),
            tuple(int(v) for v in low),
            *(tuple(int(v) for v in rng.choice([1, 1, 2, 3], rank)) for _ in range(2)),
            tuple(bool(v) for v in rng.integers(0, 2, rank)),
            groups, images, ("float64",) * 3,
        )  # fmt: skip


def said(conv: Convolution, lhs: Array, rhs: Array) -> Array:
    """The definition, tap by tap."""
    spatial = "".join(map(str, range(conv.rank)))
    x = lhs.transpose([conv.numbers[0].index(a) for a in f"bf{spatial}"])
    w = rhs.transpose([conv.numbers[1].index(a) for a in f"fo{spatial}"])
    pixels = [conv.size(2, a) for a in spatial]
    g = max(conv.groups, conv.images)
    out = np.zeros((conv.size(2, "b"), conv.size(2, "o"), *pixels))
    xs = np.split(x, conv.groups, 1) if conv.groups > 1 else np.split(x, conv.images, 0)
    ws, parts = np.split(w, g, 1), np.split(out, g, 1)
    axes = [range(n) for n in (*w.shape[2:], *pixels)]
    for place in itertools.product(*axes):
        taps, at = place[: conv.rank], place[conv.rank :]
        total = [
            s * o + r * (n - 1 - k if turned else k) - p
            for s, o, r, k, p, n, turned in zip(
                conv.stride, at, conv.rhs_dilation, taps, conv.low, w.shape[2:], conv.reverse,
                strict=True,
            )
        ]  # fmt: skip
        index = [divmod(v, d) for v, d in zip(total, conv.lhs_dilation, strict=True)]
        if any(r or not 0 <= i < n for (i, r), n in zip(index, x.shape[2:], strict=True)):
            continue
        here = tuple(i for i, _ in index)
        for xg, wg, part in zip(xs, ws, parts, strict=True):
            part[(..., *at)] += xg[(slice(None), slice(None), *here)] @ wg[(..., *taps)]
    order = [f"bo{spatial}".index(a) for a in conv.numbers[2]]
    return out.transpose(order)


def moved(x: Array, numbers: str, move: tuple[str, str] | None, groups: int) -> Array:
    """Groups, which lead in one axis, as what leads in another."""
    if move is None:
        return x
    here, there = (numbers.index(a) for a in move)
    x = np.stack(np.split(x, groups, here))
    x = np.moveaxis(x, 0, there)
    shape = list(x.shape)
    return x.reshape([*shape[:there], shape[there] * shape[there + 1], *shape[there + 2 :]])


def read(conv: Convolution, reading: Reading, lhs: Array, rhs: Array) -> Array:
    """What a reading computes, its convolution by PyTorch."""
    given = [lhs, rhs]
    if reading.spread:
        slots = tuple(
            slice(None, None, conv.lhs_dilation[int(a)]) if a.isdigit() else slice(None)
            for a in conv.numbers[0]
        )
        given[0] = np.zeros(conv.spread().shapes[0])
        given[0][slots] = lhs
    problem = reading.problem
    for i, x in enumerate(given):
        numbers = conv.numbers[i]
        x = moved(x, numbers, reading.moves[i], problem.groups)
        x = np.flip(x, [numbers.index(str(a)) for a in reading.flips[i]])
        if reading.roles[i] == "data":
            cut = {str(a): slice(b, -e or None) for a, (b, e) in enumerate(reading.crop)}
            x = x[tuple(cut.get(a, slice(None)) for a in numbers)]
        given[i] = x
    pair = given if reading.roles[0] == problem.roles[0] else given[::-1]
    out = torch_reference(problem, *pair)
    numbers = conv.numbers[2]
    if reading.roles[2] == "data":
        widths = {str(a): pair for a, pair in enumerate(reading.crop)}
        out = np.pad(out, [widths.get(a, (0, 0)) for a in numbers])
    move = reading.moves[2]
    out = moved(out, numbers, (move[1], move[0]) if move else None, problem.groups)
    return np.flip(out, [numbers.index(str(a)) for a in reading.flips[2]])


@pytest.mark.parametrize("block", range(4))
def test_all_readings(block: int) -> None:
    """Of 60 convolutions, the result's size whatever it is; StableHLO would refuse some."""
    kinds = set()
    for seed in range(60 * block, 60 * block + 60):
        conv = drawn(seed)
        rng = np.random.default_rng(seed)
        lhs, rhs = (rng.standard_normal(shape) for shape in conv.shapes[:2])
        wanted = said(conv, lhs, rhs)
        found = readings(conv)
        assert found or not wanted.any(), conv
        for reading in found:
            reading.problem.check()
            error = relative_error(read(conv, reading, lhs, rhs), wanted)
            assert error < 1e-12, (seed, conv, reading)
            kinds.add((reading.roles, reading.spread))
    assert len(kinds) >= 8  # six, and those of a spread operand


def test_what_jax_writes() -> None:
    """The forward convolution and both of its gradients, of stride 2 and uneven padding."""
    x, w, y = (2, 9, 9, 3), (3, 3, 3, 8), (2, 5, 5, 8)
    plain: dict[str, Any] = {"reverse": (False, False)}
    forward = Convolution((x, w, y), ("b01f", "01fo", "b01o"), (2, 2), (1, 1), (1, 1), (1, 1),
                          **plain)  # fmt: skip
    wgrad = Convolution((x, y, w), ("f01b", "f01o", "01bo"), (1, 1), (1, 1), (1, 1), (2, 2),
                        **plain)  # fmt: skip
    dgrad = Convolution((y, w, x), ("b01f", "01of", "b01o"), (1, 1), (1, 1), (2, 2), (1, 1),
                        (True, True))  # fmt: skip
    for conv, kind in ((forward, "fprop"), (wgrad, "wgrad"), (dgrad, "dgrad")):
        best = max(readings(conv), key=lambda r: r.likely((False, kind != "wgrad")) - 2 * r.cost())
        assert best.kind is ConvKind(kind)
        assert best.cost() == 0
        assert best.problem.repro() == (
            f"{kind} n=2 c=3 h=9 w=9 k=8 r=3 s=3 stride=2,2 pad=1,1,1,1 dil=1,1 groups=1"
            " layout=NHWC/HWIO/NHWC dtype=f32/f32/f32"
        )
