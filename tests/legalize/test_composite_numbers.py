"""The composite's numbers, compiled by upstream's rules alone, against PyTorch in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tvm import relax, tirx

import relay_wgrad
from legalize.composite import Composite, composite
from relay_wgrad.dtypes import numpy_dtype
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.gradient_calls import (
    NAMED,
    gradient_call,
    module,
    ops,
    problem_module,
    run,
    stock_compiled,
)
from tests.support.problems import (
    random_operands,
    random_problem,
    relative_error,
    tolerance,
    torch_reference,
)

pytestmark = pytest.mark.usefixtures("registered")


def check_numbers(p: ConvProblem, seed: int = 0) -> None:
    a, b = random_operands(p, np.random.default_rng(seed))
    got = run(stock_compiled(problem_module(p)), a, b)
    assert got.dtype == numpy_dtype(p.dtype(p.roles[2]))
    assert relative_error(got, torch_reference(p, a, b)) <= tolerance(p), p.repro()


# ---- numbers -------------------------------------------------------------------------------------


@pytest.mark.share(5)
@pytest.mark.parametrize("kind", ["wgrad", "dgrad"])
@pytest.mark.parametrize("name", NAMED)
def test_numbers(kind: str, name: str) -> None:
    check_numbers(ConvProblem.parse(f"{kind} {NAMED[name]}"))


@pytest.mark.share(3)
@pytest.mark.parametrize("kind", [ConvKind.WGRAD, ConvKind.DGRAD])
@pytest.mark.parametrize("seed", range(6))
def test_numbers_of_random_problems(kind: ConvKind, seed: int) -> None:
    rng = np.random.default_rng(seed)
    check_numbers(random_problem(rng, kind, max_flop=3e5), seed)


def test_half_precision_sums_do_not_overflow_or_stall() -> None:
    """8192 ones: an f16 accumulator stops at 2048."""
    p = ConvProblem.parse("wgrad n=2 c=1 h=64 w=64 k=1 r=1 s=1 dtype=f16/f16/f16")
    ones = np.ones((2, 1, 64, 64), "float16")
    assert run(stock_compiled(problem_module(p)), ones, ones).item() == 8192


# ---- symbolic sizes ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["wgrad", "dgrad"])
@pytest.mark.parametrize(
    ("symbols", "rest"),
    [
        ("n", "k=6 r=3 s=2 pad=1,1,1,0"),
        ("n", "k=6 r=3 s=2 stride=2,1 pad=1,1,0,1 groups=2"),
        ("n", "k=6 r=2 s=2 groups=2 dtype=f16/f16/f16"),
        ("hw", "k=6 r=3 s=2 pad=1,1,1,0 groups=2"),
        ("h", "k=6 r=3 s=2 stride=2,3 pad=1,1,1,0 dil=1,2"),
        ("nhw", "k=8 r=3 s=3 stride=2,2 pad=1,1,1,1 groups=4 layout=NHWC/OHWI/NHWC"),
    ],
)
def test_symbolic_sizes(kind: str, symbols: str, rest: str) -> None:
    """One compiled function serves several sizes, among them such that need a crop and none."""
    letters = dict(zip(("n", "h", "w"), tirx_vars(symbols), strict=True))
    vm = None
    for n, h, w in ((2, 8, 9), (1, 9, 8), (3, 10, 10)):
        sizes = {"n": n, "h": h, "w": w}
        static = {key: v if key in symbols else 8 for key, v in sizes.items()}
        p = ConvProblem.parse(f"{kind} n={static['n']} c=4 h={static['h']} w={static['w']} {rest}")
        if vm is None:
            symbolic = {key: v for key, v in letters.items() if v is not None}
            vm = stock_compiled(problem_module(replace(p, **symbolic)))
        a, b = random_operands(p, np.random.default_rng(n))
        operands = [a, b]
        if kind == "dgrad":
            operands.append(np.zeros(p.shape("data"), numpy_dtype(p.data_dtype)))
        assert relative_error(run(vm, *operands), torch_reference(p, a, b)) <= tolerance(p)


def tirx_vars(symbols: str) -> list[tirx.Var | None]:
    return [tirx.Var(x, "int64") if x in symbols else None for x in "nhw"]


@pytest.mark.parametrize("groups", [1, 2])
def test_symbolic_channels(groups: int) -> None:
    """C as a symbol, K as a number: no number can be conv2d's groups."""
    c = tirx.Var("c", "int64")
    p = ConvProblem.parse(f"wgrad n=2 c=4 h=6 w=6 k=6 r=3 s=3 groups={groups}")
    symbolic = replace(p, c=c * groups)
    types = {role: relax.TensorType(symbolic.shape(role)) for role in ("grad", "data")}
    types["c"] = relax.TensorType((c,))  # a product of symbols is not solved for them
    mod = module(types, lambda grad, data, _: gradient_call(symbolic, grad, data))
    assert "relax.tile" not in ops(composite(mod))
    a, b = random_operands(p, np.random.default_rng(0))
    got = run(stock_compiled(mod), a, b, np.zeros(p.c // groups, "float32"))
    assert relative_error(got, torch_reference(p, a, b)) <= tolerance(p)


def test_unknown_shape_is_refused() -> None:
    params = {
        "grad": relax.TensorType((2, 4, 6, 6), "float32"),
        "data": relax.TensorType(None, "float32", ndim=4),
    }
    mod = module(params, lambda g, x: relay_wgrad.conv2d_backward_weight(g, x, 3))
    with pytest.raises(ValueError, match="conv2d_backward_weight: shape or dtype of data"):
        Composite()(mod)


def test_differs_from_relay_between_one_group_and_depthwise() -> None:
    """What Relay computed there: the whole K tiled, so that filters meet others' channels."""
    p = ConvProblem.parse("wgrad n=2 c=4 h=6 w=6 k=6 r=3 s=3 pad=1,1,1,1 groups=2")
    a, b = random_operands(p, np.random.default_rng(0))
    grad, data = torch.from_numpy(a), torch.from_numpy(b)
    filters = grad.tile(1, 2, 1, 1).reshape(-1, 1, 6, 6)
    relay = torch.nn.functional.conv2d(data.reshape(1, -1, 6, 6), filters, padding=1, groups=8)
    relay = relay.reshape(2, 2, 6, 3, 3).sum(0).transpose(0, 1)
    want = torch_reference(p, a, b)
    assert relative_error(relay.numpy(), want) > 0.5
    got = run(stock_compiled(problem_module(p)), a, b)
    assert relative_error(got, want) <= tolerance(p)
