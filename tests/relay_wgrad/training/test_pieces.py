"""A backward part in pieces: what each gives, and what crosses from one to the next."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from relay_wgrad.frontend import from_torch
from relay_wgrad.graph.def_use import Graph
from relay_wgrad.ir import bytes_of, op_name
from relay_wgrad.training.forward_backward import BACKWARD, TwoParts, two_parts

pytestmark = pytest.mark.usefixtures("registered")

SIDE, WIDTH, LAYERS = 8, 8, 4
WEIGHT = 4 * WIDTH * WIDTH * 9  # bytes of a convolution's


class Net(nn.Module):
    """A stem, residual blocks, one weight that two layers share, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU()
            )
            for _ in range(LAYERS)
        )
        self.layers[2][0].weight = self.layers[1][0].weight
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.stem(x))
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x.mean((2, 3)))


@pytest.fixture(scope="module")
def graph() -> Any:
    return from_torch(Net(), (torch.zeros(2, 3, SIDE, SIDE),), loss="none")


def cut(graph: Any, limits: tuple[int, int] | None, **options: Any) -> TwoParts:
    wrt = ["x", *graph.trainable]
    return two_parts(graph, wrt=wrt, pieces=limits, **options)


def names(parts: TwoParts) -> list[list[str]]:
    return [[parts.wrt[i] for i in piece.gradients] for piece in parts.pieces]


def test_pieces_have_the_bytes_that_are_asked(graph: Any) -> None:
    parts = cut(graph, (64, 2 * WEIGHT))
    first, *others = names(parts)
    assert {"head_weight", "head_bias"} <= {*first}
    assert sum(graph.params[n].nbytes for n in first) < WEIGHT
    sizes = [sum(graph.params[n].nbytes for n in some if n != "x") for some in others]
    assert all(size >= 2 * WEIGHT for size in sizes[:-1])
    assert len(others) == 2
    given = [name for some in (first, *others) for name in some]
    assert sorted(given) == sorted(parts.wrt)
    assert "x" in others[-1]  # whoever waits for an input's gradient waits for all


def test_one_piece_where_that_is_enough(graph: Any) -> None:
    for limits in (None, (1 << 40, 1 << 40)):
        (piece,) = cut(graph, limits).pieces
        assert piece.name == BACKWARD
        assert (piece.takes, piece.hands) == ((0,), ())


@pytest.mark.parametrize("options", [{}, {"checkpoint": "auto"}, {"dtype": "bfloat16"}], ids=str)
def test_what_crosses(graph: Any, options: dict[str, Any]) -> None:
    """Each value that a piece takes an earlier one has handed on, and no operator of a convolution
    is computed twice; who has a gradient may write its parameter."""
    parts = cut(graph, (64, 1024), **options)
    assert len(parts.pieces) == LAYERS + 1  # the shared weight is ready once
    handed, types, counts = {0}, dict[int, Any](), 0
    done: set[int] = set()
    order = [var.name for var in graph.main.params]
    for piece in parts.pieces:
        func = parts.module[piece.name]
        count = len(piece.given)
        assert set(piece.takes) <= handed
        taken = zip(piece.takes, func.params[count:], strict=True)
        assert all(str(types[i]) == str(var.ty) for i, var in taken if i)
        sources = [parts.sources[i] for i in piece.given]
        read = {source.index for source in sources if source.kind == "argument"}
        assert not read & done
        done |= {order.index(parts.wrt[i]) for i in piece.gradients}
        results = func.body.body.fields
        assert len(results) == len(piece.gradients) + len(piece.hands)
        types |= {i: var.ty for i, var in zip(piece.hands, results[-len(piece.hands) :])}  # noqa: B905
        handed |= {*piece.hands}
        calls = [op_name(b.value) for b in Graph(func).bindings]
        counts += sum(name.startswith("relax.nn.conv2d") for name in calls)
    whole = cut(graph, None, **options)
    calls = [op_name(b.value) for b in Graph(whole.module[BACKWARD]).bindings]
    assert counts == sum(name.startswith("relax.nn.conv2d") for name in calls)


class Left(nn.Module):
    """Products whose gradient by the parameter is computed before the one that reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = (nn.Parameter(torch.ones(8, 8)) for _ in range(2))

    def forward(self, x: Any) -> Any:
        return self.last @ torch.relu(self.first @ x)


def test_a_gradient_waits_for_what_reads_its_parameter() -> None:
    one = from_torch(Left(), (torch.zeros(8, 4),), loss="none")
    parts = two_parts(one, wrt=one.trainable, pieces=(1, 1))
    assert names(parts) == [["last"], ["first"]]
    later = parts.pieces[1]
    read = {parts.sources[i].index for i in later.given if parts.sources[i].kind == "argument"}
    assert [var.name for var in one.main.params].index("last") not in read


def test_little_crosses(graph: Any) -> None:
    """Of a residual network what its backward pass has at hand: a gradient or two."""
    activation = 4 * 2 * WIDTH * SIDE * SIDE
    parts = cut(graph, (64, 1024))
    for piece in parts.pieces[1:]:
        count = len(piece.given)
        size = sum(bytes_of(var.ty) for var in parts.module[piece.name].params[count:])
        assert size <= 2 * activation + 1024
