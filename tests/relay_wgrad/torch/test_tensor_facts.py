"""What compiled code goes by of tensors: differences are seen, by the library in C++, by PyTorch's
guards or by loops."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from relay_wgrad.torch import host_library, tensor_facts
from relay_wgrad.torch.tensor_facts import TensorFacts, look_at

CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "elsewhere": lambda x: setattr(x, "data", x.data.clone()),
    "strides": lambda x: setattr(x, "data", x.data.t()),
    "shape": lambda x: setattr(x, "data", x.data.reshape(2, 8)),
    "negated": lambda x: setattr(x, "data", torch._neg_view(x.data)),
    "no gradient": lambda x: x.requires_grad_(not x.requires_grad),
    "dtype": lambda x: setattr(x, "data", x.data.double()),
    "without memory": lambda x: x.untyped_storage().resize_(0),
    "in place": lambda x: x.data.zero_(),
}
WAYS = ("library", "guards", "loops")


@pytest.fixture(params=WAYS)
def tensors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """A parameter of four by four among others."""
    if request.param != "library":
        monkeypatch.setattr(tensor_facts, "functions", lambda: None)
    if request.param == "loops":
        monkeypatch.setattr(tensor_facts, "guards_of", lambda tensors: None)
    square = torch.nn.Parameter(torch.randn(4, 4))
    return [torch.nn.Parameter(torch.randn(4, 4, 3, 3)), square, torch.zeros(4), torch.tensor(0)]


@pytest.mark.parametrize("place", [1, 2])
@pytest.mark.parametrize("change", CHANGES)
def test_changes(change: str, place: int, tensors: list[torch.Tensor]) -> None:
    if place == 2:  # a buffer, of the parameter's shape
        tensors[2] = torch.zeros(4, 4)
    facts = TensorFacts(tensors)
    assert facts.hold()
    CHANGES[change](tensors[place])
    seen = facts.hold()
    tensors[place].untyped_storage().resize_(128)  # for who prints them
    assert seen is (change == "in place")
    assert TensorFacts(tensors).hold()


def test_modes_are_no_difference(tensors: list[torch.Tensor]) -> None:
    facts = TensorFacts(tensors)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            assert facts.hold()
        with torch.no_grad():
            assert facts.hold()
        assert facts.hold()
    tensors[1].requires_grad_(False)
    with torch.autocast("cpu", torch.bfloat16):
        assert not facts.hold()


def test_of_none() -> None:
    assert TensorFacts([]).hold()


def test_the_library_is_there() -> None:
    """Else nothing here is about it."""
    assert host_library.reason() == ""


def facts_of(x: torch.Tensor) -> list[Any]:
    size = x.untyped_storage().nbytes()
    at, is_neg = x.data_ptr() if size or not x.numel() else 0, x.is_neg()
    return [type(x), at, x.shape, x.stride(), x.dtype, x.device, x.requires_grad, is_neg]


@pytest.mark.parametrize("seed", range(20))
def test_looks_at_random(seed: int) -> None:
    """Tensors of all kinds, changed and put in others' places: yes where nothing is another."""
    draw = random.Random(seed)
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)

    def one() -> torch.Tensor:
        sizes = [draw.choice((0, 1, 2, 4)) for _ in range(draw.randrange(5))]
        made = torch.zeros(sizes, dtype=draw.choice(dtypes))
        if made.is_floating_point() and draw.random() < 0.5:
            made = torch.nn.Parameter(made, requires_grad=draw.random() < 0.7)
        return made.movedim(0, -1) if draw.random() < 0.2 and made.dim() > 1 else made

    some = [one() for _ in range(draw.randrange(1, 40))]
    look, was = look_at(some), [*map(facts_of, some)]
    assert look(some)
    assert not look([*some, some[0]])
    assert not look(some[1:])
    kinds = ("other", "same place", "view", "data", "gradient", "exchange", "nothing")
    for _ in range(40):
        given, place = list(some), draw.randrange(len(some))
        x, what = given[place], draw.choice(kinds)
        turned = x.detach().movedim(0, -1) if x.dim() > 1 else x.detach()
        if what == "other":
            given[place] = one()
        elif what == "same place":
            given[place] = draw.choice(some)
        elif what == "view":
            given[place] = draw.choice((x.detach(), turned))
        elif what == "data":
            x.data = draw.choice((x.data, x.data.clone(), turned))
        elif what == "gradient" and x.is_leaf and x.is_floating_point():
            x.requires_grad_(not x.requires_grad)
        elif what == "exchange":
            given.reverse()
        assert look(given) is ([*map(facts_of, given)] == was), what


@pytest.mark.parametrize("what", [1, None, "x", [], torch.float32])
def test_what_is_no_tensor_is_none(what: Any) -> None:
    """PyTorch's interface would take any object's memory for a tensor's."""
    if host_library.functions() is None:
        pytest.skip("no library")
    assert not look_at([torch.ones(2), torch.ones(3)])([torch.ones(2), what])


def test_what_has_no_memory_is_another() -> None:
    if host_library.functions() is None:
        pytest.skip("no library")
    assert not look_at([torch.eye(3)])([torch.eye(3).to_sparse()])


def test_it_may_come_and_go() -> None:
    tensors = [torch.ones(3) for _ in range(5)]
    for _ in range(200):
        facts = TensorFacts(tensors)
        assert facts.hold()
    del facts
