"""Gradients of what joins, parts and fills tensors of symbolic sizes, of two orders, by PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax, tirx

from relay_wgrad.transform import grad
from tests.support.built import built
from tests.support.compiled import virtual_machine
from tests.support.fast import FAST

pytestmark = pytest.mark.usefixtures("registered")

op = relax.op
END = 1 << 40
Shape = tuple[Any, ...]

# (operands' shapes by N and M, the function in Relax of an emitter, N, M and operands, in PyTorch)
CASES: dict[str, tuple[list[Shape], Callable[..., Any], Callable[..., torch.Tensor]]] = {
    "filled": (
        [("N", 3), ()], lambda e, n, m, x, y: op.multiply(x, e(op.full((n, 3), y))),
        lambda n, m, x, y: x * y,
    ),
    "filled as another": (
        [("N", 3), ()], lambda e, n, m, x, y: op.multiply(x, e(op.full_like(x, y))),
        lambda n, m, x, y: x * y,
    ),
    "views": (
        [("N", 3)], lambda e, n, m, x: op.concat([x, e(op.multiply(x, x))], 0),
        lambda n, m, x: torch.cat([x, x * x]),
    ),
    "two sizes": (
        [("N", 3), ("M", 3)], lambda e, n, m, x, y: op.concat([x, y, x], -2),
        lambda n, m, x, y: torch.cat([x, y, x]),
    ),
    "a number last": (
        [("N", 3), (5, 3)], lambda e, n, m, x, y: op.concat([x, y], 0),
        lambda n, m, x, y: torch.cat([x, y]),
    ),
    "a number first": (
        [(5, 3), ("N", 3), ("N", 3)], lambda e, n, m, x, y, z: op.concat([x, y, z], 0),
        lambda n, m, x, y, z: torch.cat([x, y, z]),
    ),
    "numbers": (
        [("N", 3), ("N", 2)], lambda e, n, m, x, y: op.concat([x, y, x], 1),
        lambda n, m, x, y: torch.cat([x, y, x], 1),
    ),
    "one part": (
        [("N", 3)], lambda e, n, m, x: op.concat([x], 0), lambda n, m, x: x,
    ),
    "a slice of views": (
        [("N", 3)],
        lambda e, n, m, x: op.strided_slice(e(op.concat([x] * 3, 0)), [0], [n], [2 * n]),
        lambda n, m, x: torch.cat([x] * 3)[n : 2 * n],
    ),
    "all but the first": (
        [("N", 3)], lambda e, n, m, x: op.strided_slice(x, [0, 1], [1, 0], [END, 2]),
        lambda n, m, x: x[1:, :2],
    ),
    "all but the last": (
        [("N", 3)], lambda e, n, m, x: op.strided_slice(x, [0], [0], [-1]), lambda n, m, x: x[:-1],
    ),
    "the last": (
        [("N", 3)], lambda e, n, m, x: op.strided_slice(x, [0], [-1], [END]),
        lambda n, m, x: x[-1:],
    ),
    "as many as others": (
        [("N", 3), ("M",)], lambda e, n, m, x, y: op.strided_slice(x, [0], [0], [m]),
        lambda n, m, x, y: x[:m] + 0 * y.sum(),
    ),
    "of a number": (
        [("N", 7), ("M",)], lambda e, n, m, x, y: op.strided_slice(x, [1], [m], [END]),
        lambda n, m, x, y: x[:, m:] + 0 * y.sum(),
    ),
    "turned": ([("N", 3)], lambda e, n, m, x: op.flip(x, 0), lambda n, m, x: x.flip(0)),
}  # fmt: skip


@pytest.mark.share(4)
@pytest.mark.longer_cases("numbers", "a number first", "of a number", "all but the first")
@pytest.mark.parametrize(("shapes", "build", "function"), CASES.values(), ids=CASES)
def test_two_orders(shapes: list[Shape], build: Any, function: Any) -> None:
    names = {name: tirx.Var(name, "int64") for name in "NM"}
    params = [
        relax.Var(f"x{i}", relax.TensorType([names.get(n, n) for n in shape], "float64"))
        for i, shape in enumerate(shapes)
    ]

    def body(emit: Any) -> Any:
        y = emit(build(emit, *names.values(), *params))
        return op.sum(emit(op.multiply(emit(op.sin(y)), y)))

    mod = grad(built(params, body), order=2)
    vm = virtual_machine(mod, FAST)
    for n, m in ((1, 1), (2, 3), (5, 2)):
        rng, sizes = np.random.default_rng(n), {"N": n, "M": m}
        x, d = (
            [rng.standard_normal([sizes.get(v, v) for v in shape]) for shape in shapes]
            for _ in range(2)
        )
        given = [torch.tensor(a, requires_grad=True) for a in x]
        made = function(n, m, *given)
        first = torch.autograd.grad((made.sin() * made).sum(), given, create_graph=True)
        inner = sum((a * torch.tensor(b)).sum() for a, b in zip(first, d, strict=True))
        second = torch.autograd.grad(inner, given)
        for name, values, wanted in (
            ("main_adjoint1", x, first), ("main_adjoint2", [*x, *d], second),
        ):  # fmt: skip
            found = vm[name](*map(tvm.runtime.tensor, values))[1]
            for a, b in zip(found, wanted, strict=True):
                np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-12, atol=1e-12)


def test_refused() -> None:
    """Every second element of a symbolic axis has no gradient."""
    x = relax.Var("x", relax.TensorType([tirx.Var("N", "int64"), 3], "float32"))
    mod = built([x], lambda emit: op.sum(emit(op.strided_slice(x, [0], [0], [END], [2]))))
    with pytest.raises(ValueError, match="no gradient with symbolic sizes and a stride"):
        grad(mod)
