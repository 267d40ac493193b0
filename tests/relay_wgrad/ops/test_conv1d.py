"""Gradients of upstream's convolutions of one dimension, against autograd in float64."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from tvm import relax, tirx

from relay_wgrad.transform import grad
from tests.support.built import built
from tests.support.compiled import virtual_machine
from tests.support.fast import FAST

pytestmark = pytest.mark.usefixtures("registered")


def network(n: Any) -> tvm.IRModule:
    """sum((conv_transpose(conv(x, w)^2, v))^3)"""
    shapes = [[n, 4, 9], [6, 2, 3], [6, 2, 2]]
    x, w, v = (
        relax.Var(name, relax.TensorType(shape, "float64"))
        for name, shape in zip("xwv", shapes, strict=True)
    )
    bb = relax.BlockBuilder()
    with bb.function("main", [x, w, v]):
        with bb.dataflow():
            y = bb.emit(relax.op.nn.conv1d(x, w, 2, (2, 1), 2, 2))
            y = bb.emit(relax.op.multiply(y, y))
            y = bb.emit(relax.op.nn.conv1d_transpose(y, v, 3, (1, 0), 2, groups=2))
            cube = bb.emit(relax.op.multiply(bb.emit(relax.op.multiply(y, y)), y))
            out = bb.emit_output(relax.op.sum(cube))
        bb.emit_func_output(out)
    return bb.get()


def torch_value(x: Any, w: Any, v: Any) -> Any:
    y = F.conv1d(F.pad(x, (2, 1)), w, stride=2, dilation=2, groups=2) ** 2
    full = F.conv_transpose1d(y, v, stride=3, output_padding=2, groups=2)
    return (full[..., 1:] ** 3).sum()


@pytest.mark.share(3)
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("symbolic", [False, True])
def test_against_autograd(order: int, symbolic: bool) -> None:
    mod = grad(network(tirx.Var("n", "int64") if symbolic else 2), order=order)
    rng = np.random.default_rng(order)
    shapes = [(2, 4, 9), (6, 2, 3), (6, 2, 2)]
    args = [rng.standard_normal(s) for s in shapes]
    directions = [rng.standard_normal(s) for s in shapes * (order - 1)]
    vm = virtual_machine(mod, FAST)
    value, gradients = vm["main_adjoint" + ("2" if order == 2 else "")](
        *[tvm.runtime.tensor(a) for a in args + directions]
    )
    params = [torch.tensor(a, requires_grad=True) for a in args]
    scalar = torch_value(*params)
    if order == 2:
        partials = torch.autograd.grad(scalar, params, create_graph=True)
        given = zip(partials, directions, strict=True)
        scalar = sum((p * torch.tensor(d)).sum() for p, d in given)
    wanted = (scalar, *torch.autograd.grad(scalar, params))
    for mine, theirs in zip((value, *gradients), wanted, strict=True):
        want = theirs.detach().numpy()
        assert np.linalg.norm(mine.numpy() - want) <= 1e-11 * np.linalg.norm(want)


def test_other_layouts() -> None:
    """Channels last in data and result, the weight's letters in another order."""
    x = relax.Var("x", relax.TensorType([2, 9, 4], "float64"))
    w = relax.Var("w", relax.TensorType([3, 4, 6], "float64"))

    def body(emit: Any) -> Any:
        y = emit(relax.op.nn.conv1d(x, w, 1, 1, data_layout="NWC", kernel_layout="WIO"))
        return relax.op.sum(emit(relax.op.multiply(y, y)))

    mod = grad(built([x, w], body))
    rng = np.random.default_rng(0)
    args = [rng.standard_normal((2, 9, 4)), rng.standard_normal((3, 4, 6))]
    vm = virtual_machine(mod, FAST)
    _, gradients = vm["main_adjoint"](*map(tvm.runtime.tensor, args))
    params = [torch.tensor(a, requires_grad=True) for a in args]
    (F.conv1d(params[0].mT, params[1].permute(2, 1, 0), padding=1) ** 2).sum().backward()
    for mine, param in zip(gradients, params, strict=True):
        want = param.grad.numpy()
        assert np.linalg.norm(mine.numpy() - want) <= 1e-12 * np.linalg.norm(want)


@pytest.mark.parametrize(
    ("attrs", "rule"),
    [
        ({"strides": 0}, "strides must be at least 1, got strides=[0]"),
        ({"dilation": 0}, "dilation must be at least 1, got dilation=[0]"),
        ({"padding": (-1, 1)}, "padding must be at least 0, got padding=[-1, 1]"),
        ({"data_layout": "NWX"}, "data_layout must be a permutation of NCW, blocked or not"),
        ({"out_dtype": "int8"}, "out_dtype must be one of float16, bfloat16, float32, float64"),
        ({"out_dtype": "void"}, "out_dtype must name a dtype, got 'void'"),
        ({"groups": 3}, "groups must divide "),
    ],
)
@pytest.mark.parametrize("op", ["conv1d", "conv1d_transpose"])
def test_refused_as_an_image_is(op: str, attrs: dict[str, Any], rule: str) -> None:
    """What upstream's relation takes: a dilation of 0 reads one pixel for every tap."""
    x = relax.Var("x", relax.TensorType((1, 4, 8), "float32"))
    w = relax.Var("w", relax.TensorType((4, 4, 3), "float32"))
    call = getattr(relax.op.nn, op)(x, w, **attrs)
    with pytest.raises((TypeError, ValueError), match=re.escape(f"{op}: {rule}")):
        relax.BlockBuilder().normalize(call)


@pytest.mark.parametrize("op", ["conv1d", "conv1d_transpose"])
def test_integers_and_blocks_stay_upstreams(op: str) -> None:
    x = relax.Var("x", relax.TensorType((1, 4, 8), "int8"))
    w = relax.Var("w", relax.TensorType((4, 4, 3), "int8"))
    call = getattr(relax.op.nn, op)(x, w, out_dtype="int32")
    assert relax.BlockBuilder().normalize(call).ty.dtype == "int32"


LAYOUTS = [
    ("NCW", "OIW", "NCW"),
    ("NWC", "WIO", "NCW"),
    ("CWN", "IWO", "WCN"),
    ("WNC", "OWI", "NWC"),
]


@pytest.mark.parametrize(("data", "kernel", "out"), LAYOUTS)
@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("op", ["conv1d", "conv1d_transpose"])
def test_every_layout_has_a_kernel(op: str, dtype: str, data: str, kernel: str, out: str) -> None:
    """Upstream has none where data and result differ, nor of transposed ones but in NCW: its
    virtual machine's compiler then meets the operator itself."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((2, 4, 9)).astype(dtype)
    weights = rng.standard_normal((4, 3, 3) if op == "conv1d_transpose" else (6, 2, 3)).astype(
        dtype
    )
    settings: dict[str, Any] = {"groups": 2, "dilation": 2}
    x, w = (torch.from_numpy(v.astype("float64")) for v in (images, weights))
    if op == "conv1d":
        want = F.conv1d(F.pad(x, (2, 1)), w, stride=2, **settings)
        letters = "OIW"
    else:
        want = F.conv_transpose1d(x, w, stride=2, output_padding=1, **settings)[..., 2:-1]
        letters, settings["output_padding"] = "IOW", 1
        kernel = kernel.translate(str.maketrans("OI", "IO"))
    given = [
        np.ascontiguousarray(v.transpose([src.index(letter) for letter in dst]))
        for v, src, dst in ((images, "NCW", data), (weights, letters, kernel))
    ]
    params = [
        relax.Var(name, relax.TensorType(v.shape, dtype))
        for name, v in zip("xw", given, strict=True)
    ]
    layouts = {"data_layout": data, "kernel_layout": kernel, "out_layout": out}
    call = getattr(relax.op.nn, op)(*params, strides=2, padding=(2, 1), **settings, **layouts)
    machine = virtual_machine(built(params, lambda emit: emit(call)), FAST)
    got = machine["main"](*map(tvm.runtime.tensor, given)).numpy()
    wanted = want.numpy().transpose(["NCW".index(letter) for letter in out])
    assert got.dtype == dtype
    assert got.shape == wanted.shape
    distance = np.linalg.norm(got - wanted) / np.linalg.norm(wanted)
    assert distance < (1e-12 if dtype == "float64" else 1e-3)
