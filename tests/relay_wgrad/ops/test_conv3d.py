"""Convolutions of three dimensions: types, refusals, gradients of every order, kernels of a module.

The rules are those of two dimensions, by the number of strides; here is that all of them count the
depth.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from tvm import relax, tirx

import relay_wgrad
from relay_wgrad.layouts import permutation
from relay_wgrad.problem import ConvKind, ConvProblem
from relay_wgrad.relation import as_size
from relay_wgrad.transform import ConvertLayout, grad
from tests.support.compiled import virtual_machine
from tests.support.fast import FAST

pytestmark = pytest.mark.usefixtures("registered")

Arrays = list[np.ndarray[Any, Any]]


def var(name: str, shape: Any, dtype: str = "float64") -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, dtype))


def typed(call: relax.Expr, *params: relax.Var) -> Any:
    """The type that a function of the call alone returns."""
    bb = relax.BlockBuilder()
    with bb.function("main", list(params)):
        bb.emit_func_output(bb.emit(call))
    mod = bb.get()
    again = tvm.script.from_source(mod.script())
    tvm.ir.assert_structural_equal(again, mod)
    return mod["main"].ret_ty


# ---- types ---------------------------------------------------------------------------------------


def test_types_and_text() -> None:
    n = tirx.Var("n", "int64")
    x, w, g = var("x", [n, 4, 9, 8, 7]), var("w", [6, 2, 3, 2, 1]), var("g", [n, 6, 4, 4, 9])
    how: dict[str, Any] = {
        "strides": (2, 2, 1), "padding": (1, 0, 1, 0, 1, 1), "dilation": (1, 2, 1), "groups": 2
    }  # fmt: skip
    got = typed(relay_wgrad.conv3d(x, w, **how), x, w)
    assert [*map(as_size, got.shape)][1:] == [6, 4, 4, 9]
    got = typed(relay_wgrad.conv3d_backward_weight(g, x, (3, 2, 1), **how), g, x)
    assert [int(v) for v in got.shape] == [6, 2, 3, 2, 1]
    got = typed(relay_wgrad.conv3d_backward_data(g, w, (n, 4, 9, 8, 7), **how), g, w)
    assert [*map(as_size, got.shape)][1:] == [4, 9, 8, 7]
    last = var("x", [2, 9, 8, 7, 4])
    call = relay_wgrad.conv3d(last, w, **how, data_layout="NDHWC", out_dtype="float32")
    got = typed(call, last, w)
    assert [int(v) for v in got.shape] == [2, 4, 4, 9, 6]
    assert str(got.dtype) == "float32"


REFUSED = [
    ("conv3d", {"groups": 3}, "groups must divide C, got C=4, groups=3"),
    ("conv3d", {"groups": 2}, "data's C must be weight's C/groups times groups (groups=2)"),
    ("conv3d", {"dilation": (5, 1, 1)}, "Z must be positive, got Z=-1 from D=9, T=3"),
    ("conv3d", {"padding": (0, 0, 0, -1, 0, 0)}, "padding must be at least 0"),
    ("conv3d", {"strides": (1, 1)}, "strides must have 1 or 3 values, got 2: [1, 1]"),
    ("conv3d", {"padding": [1] * 4}, "padding must have 1, 3 or 6 values, got 4"),
    ("conv3d", {"data_layout": "NDHW"}, "data_layout must be a permutation of NCDHW"),
    ("conv3d_backward_weight", {"kernel_size": (3, 3)}, "kernel_size must have 1 or 3 values"),
    ("conv3d_backward_weight", {"strides": 2}, "grad's Z must be what the convolution makes"),
    ("conv3d_backward_weight", {"kernel_layout": "OIHW"}, "kernel_layout must be a permutation of"),
    ("conv3d_backward_data", {"strides": (1, 2, 1)}, "grad's P must be what the convolution makes"),
    ("conv3d_backward_data", {"shape": (2, 4, 9, 8)}, "shape must have the 5 sizes of NCDHW"),
    ("conv3d_backward_data", {"grad_layout": "NCHW"}, "grad_layout must be a permutation of NCDHW"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "attrs", "words"), REFUSED)
def test_refused_in_words(op: str, attrs: dict[str, Any], words: str) -> None:
    x, w, g = var("x", [2, 4, 9, 8, 7]), var("w", [6, 4, 3, 3, 3]), var("g", [2, 6, 7, 6, 5])
    given: dict[str, Any] = {
        "conv3d": {"data": x, "weight": w},
        "conv3d_backward_weight": {"grad": g, "data": x, "kernel_size": 3},
        "conv3d_backward_data": {"grad": g, "weight": w, "shape": (2, 4, 9, 8, 7)},
    }[op]
    operands = [v for v in given.values() if isinstance(v, relax.Var)]
    with pytest.raises(ValueError, match=re.escape(f"{op}: {words}")):
        typed(getattr(relay_wgrad, op)(**{**given, **attrs}), *operands)


def test_four_axes_are_no_volume() -> None:
    x, w = var("x", [2, 4, 9, 8]), var("w", [6, 4, 3, 3, 3])
    with pytest.raises(ValueError, match="data with layout NCDHW must have 5 dimensions, got 4"):
        typed(relay_wgrad.conv3d(x, w), x, w)


def test_a_problem_says_its_depth() -> None:
    line = (
        "wgrad n=2 c=4 d=9 h=8 w=7 k=6 t=3 r=2 s=1 stride=2,2,1 pad=1,0,1,0,1,1 dil=1,2,1 groups=2"
        " layout=NDHWC/ODHWI/NCDHW dtype=f16/f32/f16"
    )
    problem = ConvProblem.parse(line)
    assert problem.repro() == line
    assert (problem.rank, problem.pixels, problem.z) == (3, (4, 4, 9), 4)
    assert problem.shape("weight") == (6, 3, 2, 1, 2)
    assert problem.flop == 2 * 2 * 4 * 4 * 9 * 6 * 2 * 3 * 2 * 1
    assert ConvProblem.parse("fprop n=1 c=2 d=3 h=3 w=3 k=4 t=1 r=1 s=1").grad_layout == "NCDHW"
    with pytest.raises(ValueError, match="size 't' is missing"):
        ConvProblem.parse("fprop n=1 c=2 d=3 h=3 w=3 k=4 r=1 s=1")


# ---- gradients -----------------------------------------------------------------------------------


def network(n: Any, transposed: bool) -> tvm.IRModule:
    """sum(relu(conv + b)^3): every order of it is something else than zero."""
    x, b = var("x", [n, 4, 5, 6, 4]), var("b", [6, 1, 1, 1])
    w = var("w", [4, 3, 3, 2, 3] if transposed else [6, 2, 3, 2, 3])
    bb = relax.BlockBuilder()
    with bb.function("main", [x, w, b]):
        with bb.dataflow():
            if transposed:
                y = relax.op.nn.conv3d_transpose(
                    x, w, (2, 1, 1), (1, 0, 1, 1, 0, 1), (1, 0, 0), (1, 2, 1), 2
                )
            else:
                y = relay_wgrad.conv3d(x, w, (2, 1, 1), (1, 0, 1, 2, 1, 0), (1, 2, 1), 2)
            y = bb.emit(relax.op.nn.relu(bb.emit(relax.op.add(bb.emit(y), b))))
            y = bb.emit(relax.op.multiply(bb.emit(relax.op.multiply(y, y)), y))
            out = bb.emit_output(relax.op.sum(y))
        bb.emit_func_output(out)
    return bb.get()


def torch_value(transposed: bool, x: Any, w: Any, b: Any) -> Any:
    if transposed:
        y = F.conv_transpose3d(
            x, w, stride=(2, 1, 1), padding=(1, 0, 1), output_padding=(1, 0, 0), groups=2,
            dilation=(1, 2, 1),
        )  # fmt: skip
    else:
        y = F.conv3d(F.pad(x, (1, 0, 0, 1, 1, 2)), w, None, (2, 1, 1), 0, (1, 2, 1), 2)
    return (F.relu(y + b) ** 3).sum()


def run(mod: tvm.IRModule, name: str, args: Arrays) -> Arrays:
    vm = virtual_machine(mod, FAST)
    out = vm[name](*[tvm.runtime.tensor(a) for a in args])
    return [out[0].numpy(), *(g.numpy() for g in out[1])]


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("order", "symbolic", "transposed"),
    [(1, False, False), (2, False, False), (2, True, False), (2, False, True)],
)
def test_orders_against_pytorch(order: int, symbolic: bool, transposed: bool) -> None:
    mod = grad(network(tirx.Var("n", "int64") if symbolic else 2, transposed), order=order)
    rng = np.random.default_rng(order)
    shapes = [tuple(x.shape) for x in (np.empty((2, 4, 5, 6, 4)), np.empty((6, 1, 1, 1)))]
    shapes.insert(1, (4, 3, 3, 2, 3) if transposed else (6, 2, 3, 2, 3))
    args = [rng.standard_normal(s) for s in shapes]
    directions = [rng.standard_normal(s) for s in shapes * (order - 1)]
    got = run(mod, "main_adjoint" + ("2" if order == 2 else ""), args + directions)

    params = [torch.tensor(a, requires_grad=True) for a in args]
    scalar = torch_value(transposed, *params)
    if order == 2:
        partials = torch.autograd.grad(scalar, params, create_graph=True)
        given = zip(partials, directions, strict=True)
        scalar = sum((p * torch.tensor(d)).sum() for p, d in given)
    for mine, theirs in zip(got, (scalar, *torch.autograd.grad(scalar, params)), strict=True):
        want = theirs.detach().numpy()
        assert np.linalg.norm(mine - want) <= 1e-11 * np.linalg.norm(want)


def test_layouts_follow() -> None:
    """The whole gradient channels last, and no change of layout between two operators."""
    mod = grad(network(2, False))
    last = ConvertLayout("NHWC")(mod)
    text = last["main_adjoint"].script()
    assert text.count('"NDHWC"') >= 3
    assert text.count('"ODHWI"') == 3
    assert text.count("permute_dims") == 6  # x, w, b and their gradients
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(s) for s in ((2, 4, 5, 6, 4), (6, 2, 3, 2, 3), (6, 1, 1, 1))]
    for a, b in zip(run(mod, "main_adjoint", args), run(last, "main_adjoint", args), strict=True):
        assert np.linalg.norm(a - b) <= 1e-12 * np.linalg.norm(a)


@pytest.mark.parametrize("kind", list(ConvKind))
def test_half_is_summed_in_float32(kind: ConvKind) -> None:
    """4,000 ones: in float16 their sum would stop at 2,048."""
    line = f"{kind.value} n=1 c=4 d=10 h=10 w=10 k=4 t=10 r=10 s=10 dtype=f16/f16/f16"
    if kind is not ConvKind.FPROP:
        line = f"{kind.value} n=4 c=4 d=10 h=10 w=10 k=4000 t=1 r=1 s=1 dtype=f16/f16/f16"
    problem = ConvProblem.parse(line)
    names = dict(zip(problem.roles[:2], ("a", "b"), strict=True))
    a, b = (var(x, problem.shape(role), "float16") for role, x in names.items())
    call = {
        ConvKind.FPROP: lambda: relay_wgrad.conv3d(a, b),
        ConvKind.DGRAD: lambda: relay_wgrad.conv3d_backward_data(a, b, problem.shape("data")),
        ConvKind.WGRAD: lambda: relay_wgrad.conv3d_backward_weight(a, b, problem.taps),
    }[kind]()
    bb = relax.BlockBuilder()
    with bb.function("main", [a, b]):
        bb.emit_func_output(bb.emit(call))
    vm = virtual_machine(bb.get(), FAST)
    ones = [np.ones(problem.shape(role), "float16") for role in problem.roles[:2]]
    out = vm["main"](*map(tvm.runtime.tensor, ones)).numpy()
    assert np.unique(out) == [4000]


def test_permutations_of_the_letters() -> None:
    assert permutation("NCDHW", "NDHWC") == (0, 2, 3, 4, 1)
    assert math.prod(permutation("OIDHW", "ODHWI")[1:]) == 24
