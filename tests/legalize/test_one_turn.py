"""Axes of one pixel, where loops have one turn and TVM simplifies the quotients in an index."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from tvm import te

from legalize.generic import cpu_schedule, te_conv
from legalize.pooling import te_max_pool2d_backward
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.problems import random_operands, relative_error, torch_reference

SHAPES = [
    (size, taps, stride, pad)
    for size, taps, stride, pad in itertools.product((1, 2), (2, 3), (2, 3), (0, 1, 3))
    if size + 2 * pad >= taps
]


@pytest.mark.parametrize("kind", list(ConvKind))
def test_convolutions(kind: ConvKind) -> None:
    module, problems = {}, []
    for i, (size, taps, stride, pad) in enumerate(SHAPES):
        p = ConvProblem.parse(
            f"{kind.value} n=1 c=1 h={size} w=3 k=1 r={taps} s=1 stride={stride},1"
            f" pad={pad},0,{pad},0"
        )
        a, b = (te.placeholder(p.shape(role), p.dtype(role), name=role) for role in p.roles[:2])
        func = cpu_schedule(te.create_prim_func([a, b, te_conv(p, a, b)]))
        module[f"f{i}"] = func.with_attr("global_symbol", f"f{i}")
        problems.append(p)
    built = tvm.compile(tvm.IRModule(module), target="llvm")
    for i, p in enumerate(problems):
        values = random_operands(p, np.random.default_rng(i))
        want = torch_reference(p, *values)
        out = tvm.runtime.tensor(np.full(want.shape, np.nan, "float32"))
        built[f"f{i}"](*map(tvm.runtime.tensor, values), out)
        assert relative_error(out.numpy(), want) < 1e-5, p.repro()


@pytest.mark.parametrize("stride", [2, 3, 4])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_max_pooling_backward(size: int, stride: int) -> None:
    x = torch.randn(1, 2, size, 3, requires_grad=True)
    y = F.max_pool2d(x, (3, 1), (stride, 1), (1, 0))
    grad = torch.randn_like(y)
    y.backward(grad)
    assert x.grad is not None
    g, data = te.placeholder(y.shape, "float32"), te.placeholder(x.shape, "float32")
    out = te_max_pool2d_backward(g, data, (2, 3), (3, 1), (stride, 1), (1, 1), (1, 0))
    func = te.create_prim_func([g, data, out]).with_attr("global_symbol", "main")
    got = tvm.runtime.tensor(np.full(x.shape, np.nan, "float32"))
    values = (grad.numpy(), x.detach().numpy())
    tvm.compile(func, target="llvm")["main"](*map(tvm.runtime.tensor, values), got)
    np.testing.assert_allclose(got.numpy(), x.grad.numpy())
