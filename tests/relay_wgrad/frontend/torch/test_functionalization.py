"""Programs without ops in place by one pass of ours: as PyTorch's own gives them, or left to it."""

from __future__ import annotations

import operator
import random
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from relay_wgrad.frontend.torch.functionalization import functionalized
from relay_wgrad.frontend.torch.ops import OPS
from relay_wgrad.frontend.torch.program import _without_regions
from tests.support.torch import op_cases as cases

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")

X = torch.rand(2, 4, 6, 6, dtype=torch.float64)
GROUPS = ("math", "activations", "sums", "layers", "shapes", "stops", "random", "resizing",
          "indexing", "products")  # fmt: skip
LEFT = {
    "alpha dropout", "assigned", "batch norm", "by places", "cross entropy, of pixels",
    "cross entropy, of probabilities", "dropout 2d", "no_grad, given back", "shrink",
}  # fmt: skip
"""Cases that are left to PyTorch's pass, or come out as other nodes."""


def program_of(module: nn.Module, *inputs: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(module, inputs)


def nodes(program: Any) -> list[tuple[Any, ...]]:
    """What a program computes, its nodes by their places."""
    place: dict[Any, int] = {}
    found: list[tuple[Any, ...]] = []
    for node in program.graph.nodes:
        if "_assert_tensor" in str(node.target):
            continue
        place[node] = len(found)
        args = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: place[n])
        value = node.meta.get("val")
        values = value if isinstance(value, (list, tuple)) else [value]
        kinds = [(tuple(v.shape), v.dtype) for v in values if hasattr(v, "shape")]
        target = node.name if node.op == "placeholder" else str(node.target)
        found.append((target, repr(args), kinds))
    specs = program.graph_signature.output_specs
    return [*found, *((spec.kind.name, spec.target) for spec in specs)]


class Some(nn.Module):
    """Cases of one group, and a layer with statistics."""

    def __init__(self, functions: Any) -> None:
        super().__init__()
        self.side = cases.Side(functions, X.dtype)
        self.norm = nn.BatchNorm2d(4, dtype=X.dtype)
        self.frozen = nn.BatchNorm2d(4, dtype=X.dtype)

    def train(self, mode: bool = True) -> Some:
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x: Any) -> Any:
        return self.side(self.frozen(nn.functional.relu_(self.norm(x))))


@pytest.mark.share(3)
@pytest.mark.longer_cases("math", "resizing", "products", "indexing", "sums")
@pytest.mark.parametrize("group", GROUPS)
def test_as_pytorch_makes_it(group: str) -> None:
    functions = [f for name, f in cases.GROUPS[group].items() if name not in LEFT]
    program = _without_regions(torch, program_of(Some(functions).train(), X), False)
    made = functionalized(torch, program, _Any())
    assert made is not None
    assert nodes(made) == nodes(program.run_decompositions({}))


class _Any:
    def __contains__(self, op: object) -> bool:
        return True


def test_an_op_that_has_no_row_is_left() -> None:
    """Its decomposition may have one, or the error names what PyTorch makes of it."""
    program = program_of(cases.Side([lambda y: nn.functional.hardshrink(y)], X.dtype), X)
    assert functionalized(torch, program, OPS) is None
    assert functionalized(torch, program, _Any()) is not None


# ---- memory that tensors share -------------------------------------------------------------------


def evaluated(made: Any, program: Any, x: torch.Tensor) -> list[torch.Tensor]:
    """The user's outputs of a functional program."""
    held = {**program.state_dict, **program.constants}
    given = [held[s.target] if s.kind.name != "USER_INPUT" else x
             for s in program.graph_signature.input_specs]  # fmt: skip
    outputs = torch.fx.Interpreter(torch.fx.GraphModule({}, made.graph)).run(*given)
    kinds = [spec.kind.name for spec in made.graph_signature.output_specs]
    return [y for y, kind in zip(outputs, kinds, strict=True) if kind == "USER_OUTPUT"]


class Drawn(nn.Module):
    """A few tensors; views, changes in place and reads of them, by a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.register_buffer("held", torch.ones(4, 4, dtype=X.dtype))

    def forward(self, x: Any) -> Any:
        draw = random.Random(self.seed)
        values = [x * 2, x + 1]
        for _ in range(draw.randint(3, 7)):
            a, b = draw.choice(values), draw.choice(values)
            kind = draw.randrange(9)
            if kind == 0:
                values.append(a.t())
            elif kind == 1:
                values.append(a.reshape(2, 8).reshape(4, 4))
            elif kind == 2:
                values.append(a.contiguous())
            elif kind == 3:
                values.append(torch.cat(a.chunk(2)[::-1]))
            elif kind == 4:
                values.append(a.mul_(3))
            elif kind == 5:
                a.add_(b)
            elif kind == 6:
                values.append(nn.functional.dropout(a, 0.5, False))
            elif kind == 7:
                values.append(a.view(4, 4).relu_())
            else:
                values.append(a - b)
        return sum((i + 1) * v for i, v in enumerate(values)), values[-1] * 1


def test_changes_in_place() -> None:
    """Drawn programs: as PyTorch computes them, or left to PyTorch's pass; some of each."""
    x, taken = torch.rand(4, 4, dtype=X.dtype), 0
    for seed in range(60):
        module = Drawn(seed)
        program = program_of(module, x)
        made = functionalized(torch, program, _Any())
        if made is None:
            continue
        taken += 1
        calls = [n.target for n in made.graph.nodes if n.op == "call_function"]
        assert not any(t._schema.is_mutable for t in calls if t is not operator.getitem)
        for got, want in zip(evaluated(made, program, x), module(x), strict=True):
            torch.testing.assert_close(got, want)
    assert 20 <= taken < 60


class Changes(nn.Module):
    """What changes its input, its parameter, or a part of its buffer."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.weight = nn.Parameter(torch.ones(4, dtype=X.dtype))
        self.register_buffer("held", torch.ones(4, dtype=X.dtype))

    def forward(self, x: Any) -> Any:
        if self.what == "input":
            x.mul_(2)
        elif self.what == "parameter":
            with torch.no_grad():
                self.weight.mul_(2)
        elif self.what == "part":
            self.held[:2].mul_(2)
        else:
            self.held.mul_(2)
        return x * self.weight * self.held


@pytest.mark.parametrize("what", ["input", "part", "buffer"])
def test_what_the_module_holds(what: str) -> None:
    program = program_of(Changes(what), X[0, 0, :4, :4].clone())
    made = functionalized(torch, program, _Any())
    assert (made is None) == (what != "buffer")
    if made is not None:
        assert nodes(made) == nodes(program.run_decompositions({}))
