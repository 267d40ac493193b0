"""Soundness: whatever a chain of views and a convolution compute, the pass keeps it.

Programs are the three forms with steps swapped for random ones, over sizes that coincide as often
as not.  Most are no gradients; `raised` compares the numbers of every one before and after.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relay_wgrad.rules import out_size
from tests.support.raise_cases import flipped_form, op, program, raised, stock_form, tile_form

SIZES = st.sampled_from([1, 2, 2, 3, 4])
SETTINGS = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
outcomes: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _registered(registered: None) -> None:
    pass


def shuffled(letters: str) -> st.SearchStrategy[str]:
    return st.permutations(letters).map("".join) | st.just(letters)


LAYOUTS = st.tuples(shuffled("NCHW"), shuffled("OIHW"), shuffled("NCHW"))


@st.composite
def twisted(draw: Any, rank: int, sizes: tuple[int, ...]) -> Any:
    """A random view of a tensor that keeps its shape: (emit, x) -> x."""
    kind = draw(st.sampled_from(["none", "none", "swap", "flip", "blocks", "roll"]))
    same = [(i, j) for i in range(rank) for j in range(i) if sizes[i] == sizes[j]]
    axis = draw(st.integers(0, rank - 1))
    if kind == "swap" and same:
        i, j = draw(st.sampled_from(same))
        axes = list(range(rank))
        axes[i], axes[j] = j, i
        return lambda emit, x: emit(op.permute_dims(x, axes))
    if kind == "flip":
        return lambda emit, x: emit(op.flip(x, axis))
    if kind == "blocks" and sizes[axis] == 4:
        wide = [*sizes[:axis], 2, 2, *sizes[axis + 1 :]]
        order = list(range(rank + 1))
        order[axis], order[axis + 1] = axis + 1, axis

        def swap(emit: Any, x: Any) -> Any:
            x = emit(op.permute_dims(emit(op.reshape(x, wide)), order))
            return emit(op.reshape(x, list(sizes)))

        return swap
    if kind == "roll":  # through another order of all axes and back by a reshape
        order = draw(st.permutations(range(rank)))
        return lambda emit, x: emit(op.reshape(emit(op.permute_dims(x, order)), list(sizes)))
    return lambda emit, x: x


def judge(shapes: dict[str, Any], body: Any) -> None:
    _, report = raised(program(shapes, body))
    outcomes["raised" if report.raised else "left" if report.left else "silent"] += 1


@SETTINGS
@given(st.data())
@pytest.mark.filterwarnings("ignore:.*Relay's composite")
def test_tile_form(data: Any) -> None:
    draw = data.draw
    n, c, k, pixels, taps = (draw(SIZES) for _ in range(5))
    pixels += taps + 1
    stride, dilation = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2)]))
    pad = draw(st.sampled_from([0, 1, (1, 0, 0, 2)]))
    before = {1: (2, 2), 0: (0, 0)}.get(pad if isinstance(pad, int) else -1, (1, 2))
    p = out_size(pixels, before[0], taps, stride, dilation)
    q = out_size(pixels, before[1], taps, stride, dilation)
    if p < 1 or q < 1:
        return
    x_view = draw(twisted(4, (n, c, pixels, pixels)))
    g_view = draw(twisted(4, (n, k, p, q)))
    reps = draw(st.sampled_from([(1, c, 1, 1)] * 3 + [(c, 1, 1, 1)]))
    parts = draw(st.sampled_from([(n, c, k)] * 3 + [(n, k, c), (c, n, k)]))
    axes = draw(st.sampled_from([[0]] * 4 + [[1], [2], [0, 1]]))
    order = draw(st.permutations(range(5 - len(axes))) | st.just([1, 0, 2, 3][: 5 - len(axes)]))
    layouts = draw(LAYOUTS)

    def body(emit: Any, x: Any, g: Any) -> Any:
        return tile_form(
            emit, x_view(emit, x), g_view(emit, g), tile=lambda g: op.tile(g, reps), parts=parts,
            total=lambda y: op.sum(y, axes), strides=dilation, dilation=stride, padding=pad,
            last=lambda y: op.permute_dims(y, order), layouts=layouts,
        )  # fmt: skip

    judge({"data": (n, c, pixels, pixels), "grad": (n, k, p, q)}, body)


@SETTINGS
@given(st.data())
@pytest.mark.filterwarnings("ignore:.*Relay's composite")
def test_stock_form(data: Any) -> None:
    draw = data.draw
    n, cg, kg = (draw(SIZES) for _ in range(3))
    groups = draw(st.sampled_from([1, 1, 2, 3, 4]))
    shape_x, shape_g = (n, groups * cg, 5, 5), (n, groups * kg, 4, 5)
    x_view, g_view = draw(twisted(4, shape_x)), draw(twisted(4, shape_g))
    order = draw(st.sampled_from([(1, 0, 2, 3, 4)] * 3 + [None, (2, 0, 1, 3, 4), (0, 2, 1, 3, 4)]))
    layouts = draw(st.sampled_from([("CNHW", "IOHW", "CNHW")] * 3 + [("NCHW", "IOHW", "CNHW")]))
    turn = draw(twisted(4, (groups * kg, cg, 2, 1)))

    def body(emit: Any, x: Any, g: Any) -> Any:
        y = stock_form(emit, x_view(emit, x), g_view(emit, g), groups=groups, order=order,
                       layouts=layouts, padding=0)  # fmt: skip
        return turn(emit, y)

    try:
        program({"data": shape_x, "grad": shape_g}, body)
    except ValueError:
        return  # no convolution of these shapes
    judge({"data": shape_x, "grad": shape_g}, body)


@SETTINGS
@given(st.data())
def test_flipped_form(data: Any) -> None:
    draw = data.draw
    n, cg, kg, r, s = (draw(SIZES) for _ in range(5))
    groups = draw(st.sampled_from([1, 1, 2]))
    shape_g, shape_w = (n, groups * kg, 3, 2), (groups * kg, cg, r, s)
    g_view, w_view = draw(twisted(4, shape_g)), draw(twisted(4, shape_w))
    options = {
        "groups": groups,
        "stride": draw(st.sampled_from([(1, 1), (2, 2), (1, 3)])),
        "dilation": draw(st.sampled_from([1, 1, 2])),
        "value": draw(st.sampled_from([0.0, 0.0, 1.0])),
        "flips": draw(st.sampled_from([(2, 3)] * 4 + [(3, 2), (2,), (), (1, 2, 3), (2, 3, 2)])),
        "extra": draw(st.sampled_from([(0, 0), (0, 0), (1, 0), (2, 2)])),
        "padding": draw(st.sampled_from([None, None, 0, 1, (1, 0, 2, 1)])),
        "regroup": draw(st.sampled_from([(0, 2, 1, 3, 4)] * 3 + [(2, 0, 1, 3, 4)])),
        "layouts": draw(LAYOUTS),
    }

    def body(emit: Any, g: Any, w: Any) -> Any:
        return flipped_form(emit, g_view(emit, g), w_view(emit, w), **options)

    try:
        program({"grad": shape_g, "weight": shape_w}, body)
    except ValueError:
        return  # the taps don't fit
    judge({"grad": shape_g, "weight": shape_w}, body)


def test_many_of_both_kinds_were_seen() -> None:
    """Runs last: a fuzzer that raises nothing, or everything, shows nothing."""
    if sum(outcomes.values()) < 100:
        pytest.skip("runs after the others of this file")
    assert outcomes["raised"] > 30, outcomes
    assert outcomes["left"] > 20, outcomes
