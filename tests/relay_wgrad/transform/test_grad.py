"""`transform.grad`: orders, symbolic sizes, and the traps of the stock pass as errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R

import relay_wgrad
from relay_wgrad.transform import Gradient, grad
from tests.support.compiled import virtual_machine
from tests.support.fast import FAST

pytestmark = pytest.mark.usefixtures("registered")


def network(n: Any = 2, h: Any = 9, w: Any = 8, dtype: str = "float64") -> tvm.IRModule:
    """sum(max_pool(relu(conv + b))^3): every order of it is something else than zero."""
    x = relax.Var("x", relax.TensorType([n, 4, h, w], dtype))
    weight = relax.Var("w", relax.TensorType([6, 2, 3, 3], dtype))
    bias = relax.Var("b", relax.TensorType([6, 1, 1], dtype))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, weight, bias]):
        with bb.dataflow():
            y = relax.op.nn.conv2d(x, weight, strides=(2, 1), padding=(1, 0, 2, 1), groups=2)
            y = bb.emit(relax.op.nn.relu(bb.emit(relax.op.add(bb.emit(y), bias))))
            if isinstance(h, int):
                y = bb.emit(relax.op.nn.max_pool2d(y, (3, 2), (2, 1), (1, 0, 1, 1)))
            y = bb.emit(relax.op.multiply(bb.emit(relax.op.multiply(y, y)), y))
            out = bb.emit_output(relax.op.sum(y))
        bb.emit_func_output(out)
    return bb.get()


def torch_value(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, pool: bool) -> torch.Tensor:
    y = F.relu(F.conv2d(F.pad(x, (0, 1, 1, 2)), w, stride=(2, 1), groups=2) + b)
    if pool:
        y = F.max_pool2d(F.pad(y, (0, 1, 1, 1), value=-1e30), (3, 2), (2, 1))
    return (y**3).sum()


def values(shapes: list[tuple[int, ...]], seed: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s) for s in shapes]


def run(mod: tvm.IRModule, name: str, args: list[np.ndarray[Any, Any]]) -> list[Any]:
    vm = virtual_machine(mod, FAST)
    out = vm[name](*[tvm.runtime.tensor(a) for a in args])
    return [out[0].numpy(), *(g.numpy() for g in out[1])]


def close(got: np.ndarray[Any, Any], want: torch.Tensor) -> None:
    expected = want.detach().numpy()
    assert got.shape == expected.shape
    assert np.linalg.norm(got - expected) <= 1e-11 * np.linalg.norm(expected)


@pytest.mark.share(4)
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("symbolic", [False, True])
def test_orders_against_pytorch(order: int, symbolic: bool) -> None:
    sizes = [tirx.Var(v, "int64") for v in "nhw"] if symbolic else [2, 9, 8]
    mod = grad(network(*sizes), order=order)
    name = "main_adjoint" if order == 1 else f"main_adjoint{order}"
    shapes = [(2, 4, 9, 8), (6, 2, 3, 3), (6, 1, 1)]
    args = values(shapes, order)
    directions = values(shapes * (order - 1), 10 + order)
    got = run(mod, name, args + directions)

    params = [torch.tensor(a, requires_grad=True) for a in args]
    scalar = torch_value(*params, pool=not symbolic)
    for k in range(order - 1):
        partials = torch.autograd.grad(scalar, params, create_graph=True)
        chunk = [torch.tensor(d) for d in directions[3 * k : 3 * k + 3]]
        scalar = sum((p * d).sum() for p, d in zip(partials, chunk, strict=True))
    close(got[0], scalar)
    for mine, theirs in zip(got[1:], torch.autograd.grad(scalar, params), strict=True):
        close(mine, theirs)


def count(mod: tvm.IRModule, name: str, op: str) -> int:
    return mod[name].script().count(f"R.nn.{op}(")


def test_forward_convolution_occurs_once_in_a_symbolic_graph() -> None:
    n, h, w = (tirx.Var(v, "int64") for v in "nhw")
    mod = network(n, h, w)
    stock = relax.transform.Gradient("main")(mod)
    assert count(stock, "main_adjoint", "conv2d") == 2  # what grad repairs
    mod = grad(mod)
    assert count(mod, "main_adjoint", "conv2d") == 1
    params = mod["main_adjoint"].params
    partials = mod["main_adjoint"].ret_ty.fields[1].fields
    for param, partial in zip(params, partials, strict=True):
        tvm.ir.assert_structural_equal(param.ty, partial)
    assert relax.analysis.well_formed(mod) is not False


def test_only_what_is_asked_for_is_computed() -> None:
    mod = grad(network(), wrt=["b"])
    assert "backward" not in mod["main_adjoint"].script().replace("max_pool2d_backward", "")
    mod = grad(network(), wrt=["w"])
    assert count(mod, "main_adjoint", "conv2d_backward_weight") == 1
    assert count(mod, "main_adjoint", "conv2d_backward_data") == 0


def test_the_module_given_is_not_changed() -> None:
    mod = network()
    before = mod.script()
    grad(mod, order=2)
    assert mod.script() == before


def test_pass_form() -> None:
    mod = tvm.transform.Sequential([Gradient("main", ["w"])])(network())
    assert count(mod, "main_adjoint", "conv2d_backward_weight") == 1


@I.ir_module
class Calling:
    @R.function
    def square(x: R.Tensor((3,), "float64")) -> R.Tensor((3,), "float64"):
        with R.dataflow():
            y = R.multiply(x, x)
            R.output(y)
        return y

    @R.function
    def main(x: R.Tensor((3,), "float64")) -> R.Tensor((), "float64"):
        cls = Calling
        with R.dataflow():
            y = cls.square(x)
            z = R.sum(y)
            R.output(z)
        return z


def test_calling_another_function_is_an_error_or_inlined() -> None:
    with pytest.raises(ValueError, match=r"'main' calls the Relax function\(s\) square"):
        grad(Calling)
    x = np.array([1.0, -2.0, 3.0])
    _, dx = run(grad(Calling, inline=True), "main_adjoint", [x])
    np.testing.assert_allclose(dx, 2 * x, rtol=1e-15)


def test_second_order_with_parameters_of_different_dtypes() -> None:
    x = relax.Var("x", relax.TensorType([2, 3], "float16"))
    y = relax.Var("y", relax.TensorType([2, 3], "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, y]):
        with bb.dataflow():
            wide = bb.emit(relax.op.astype(x, "float32"))
            product = bb.emit(relax.op.multiply(bb.emit(relax.op.multiply(wide, wide)), y))
            out = bb.emit_output(relax.op.sum(product))
        bb.emit_func_output(out)
    args = [np.full((2, 3), v, t) for v, t in ((2, "float16"), (3, "float32"))]
    directions = [np.full((2, 3), v, t) for v, t in ((5, "float16"), (7, "float32"))]
    got = run(grad(bb.get(), order=2), "main_adjoint2", args + directions)
    # f = x²y: first order 2xy·5 + x²·7; by x: 2y·5 + 2x·7, by y: 2x·5.
    assert got[0] == 6 * (2 * 2 * 3 * 5 + 4 * 7)
    assert (got[1] == 2 * 3 * 5 + 2 * 2 * 7).all()
    assert (got[2] == 2 * 2 * 5).all()


def test_parameters_of_one_name_are_told_apart() -> None:
    variables = [relax.Var("x", relax.TensorType([3], "float64")) for _ in range(2)]
    bb = relax.BlockBuilder()
    with bb.function("main", variables):
        with bb.dataflow():
            square = bb.emit(relax.op.multiply(variables[1], variables[1]))
            out = bb.emit_output(relax.op.sum(bb.emit(relax.op.multiply(variables[0], square))))
        bb.emit_func_output(out)
    mod = bb.get()
    args = [np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 30.0])]
    for variable, want in zip(
        mod["main"].params, [args[1] ** 2, 2 * args[0] * args[1]], strict=True
    ):
        np.testing.assert_array_equal(run(grad(mod, wrt=[variable]), "main_adjoint", args)[1], want)
    assert len(run(grad(mod), "main_adjoint", args)) == 3
    second = grad(mod, wrt=[mod["main"].params[1]], order=2)
    got = run(second, "main_adjoint2", [*args, np.ones(3)])
    np.testing.assert_array_equal(got[1], 2 * args[0])
    with pytest.raises(ValueError, match="'main' has 2 parameters 'x': pass the variable"):
        grad(mod, wrt=["x"])
    with pytest.raises(ValueError, match="no parameter 'x'; it has: x, x"):
        grad(mod, wrt=[relax.Var("x", relax.TensorType([3], "float64"))])


def test_second_order_max_pooling_of_very_negative_values() -> None:
    rng = np.random.default_rng(0)
    x = -1e39 * (1 + rng.random((1, 1, 5, 5)))
    var = relax.Var("x", relax.TensorType(x.shape, "float64"))
    bb = relax.BlockBuilder()
    with bb.function("main", [var]):
        with bb.dataflow():
            scaled = bb.emit(relax.op.multiply(var, relax.const(1e-39, "float64")))
            y = bb.emit(relax.op.nn.max_pool2d(scaled, (3, 3), (2, 2), (1, 1, 1, 1)))
            big = bb.emit(relax.op.nn.max_pool2d(var, (3, 3), (2, 2), (1, 1, 1, 1)))
            out = bb.emit_output(relax.op.sum(bb.emit(relax.op.multiply(y, big))))
        bb.emit_func_output(out)
    direction = rng.standard_normal(x.shape)
    got = run(grad(bb.get(), order=2), "main_adjoint2", [x, direction])
    t = torch.tensor(x, requires_grad=True)
    value = (F.max_pool2d(t * 1e-39, 3, 2, 1) * F.max_pool2d(t, 3, 2, 1)).sum()
    (first,) = torch.autograd.grad(value, t, create_graph=True)
    scalar = (first * torch.tensor(direction)).sum()
    close(got[1], torch.autograd.grad(scalar, t)[0])


def test_gradient_after_the_stock_layout_pass() -> None:
    desired = {"relax.nn.conv2d": ["NHWC", "OHWI"]}
    mod = grad(relax.transform.ConvertLayout(desired)(network()))
    args = values([(2, 4, 9, 8), (6, 2, 3, 3), (6, 1, 1)], 1)
    for mine, want in zip(
        run(mod, "main_adjoint", args), run(grad(network()), "main_adjoint", args), strict=True
    ):
        assert np.linalg.norm(mine - want) <= 1e-12 * np.linalg.norm(want)


def test_wrong_arguments() -> None:
    mod = network()
    for wrt in ("w", 1, mod["main"].params[0]):
        with pytest.raises(TypeError, match="wrt must be a sequence of parameters or names"):
            grad(mod, wrt=wrt)  # type: ignore[arg-type]
    for item in (1, None):
        with pytest.raises(TypeError, match="wrt holds parameters or their names"):
            grad(mod, wrt=[item])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="no float parameter to differentiate by"):
        grad(mod, wrt=[])
    with pytest.raises(TypeError, match="mod must be an IRModule, got NoneType"):
        grad(None)


def test_errors_name_what_is_wrong() -> None:
    mod = network()
    with pytest.raises(ValueError, match="parameter 'x' is bfloat16"):
        grad(network(dtype="bfloat16"))
    with pytest.raises(ValueError, match="'main_adjoint' is a gradient already"):
        grad(grad(mod), "main_adjoint")
    with pytest.raises(ValueError, match="'main_adjoint2' is a gradient already"):
        grad(grad(mod, order=2), "main_adjoint2")
    with pytest.raises(ValueError, match="no Relax function 'f'; it has: main"):
        grad(mod, "f")
    with pytest.raises(ValueError, match="no parameter 'v'; it has: x, w, b"):
        grad(mod, wrt=["v"])
    with pytest.raises(ValueError, match="named twice"):
        grad(mod, wrt=["w", "w"])
    for order in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match="order must be an integer of at least 1"):
            grad(mod, order=order)  # type: ignore[arg-type]
    relay_wgrad.unregister()
    with pytest.raises(RuntimeError, match=r"call relay_wgrad.register\(\) first"):
        grad(mod)


def body(build: Any, dataflow: bool = True) -> tvm.IRModule:
    """A function of x whose result is what `build` makes of it."""
    x = relax.Var("x", relax.TensorType([3], "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        if dataflow:
            with bb.dataflow():
                out = bb.emit_output(build(bb, x))
        else:
            out = bb.emit(build(bb, x))
        bb.emit_func_output(out)
    return bb.get()


@I.ir_module
class Branching:
    @R.function
    def main(x: R.Tensor((), "float32"), c: R.Tensor((), "bool")) -> R.Tensor((), "float32"):
        if c:  # noqa: SIM108 - TVMScript's `if`
            y = R.multiply(x, x)
        else:
            y = R.add(x, x)
        return y


def test_what_stock_gradient_cannot_do_is_named() -> None:
    """Each of these was the stock pass's InternalError."""
    with pytest.raises(ValueError, match=r"result of 'main' must be a float scalar .*R.Tensor.*3,"):
        grad(body(lambda bb, x: relax.op.multiply(x, x)))
    with pytest.raises(ValueError, match=r"result of 'main' must be a float scalar .*int32"):
        grad(body(lambda bb, x: relax.op.sum(bb.emit(relax.op.astype(x, "int32")))))
    with pytest.raises(ValueError, match="'main' must be one dataflow block, but it has an `if`"):
        grad(Branching)
    with pytest.raises(ValueError, match="one dataflow block, but it has bindings outside of one"):
        grad(body(lambda bb, x: relax.op.sum(x), dataflow=False))
    with pytest.raises(ValueError, match=r"is a relax.cumprod, an op that has no gradient"):
        grad(body(lambda bb, x: relax.op.sum(bb.emit(relax.op.cumprod(x, 0)))))

    def packed(bb: Any, x: Any) -> Any:
        scalar = relax.TensorType([], "float32")
        return relax.op.call_pure_packed("my.function", x, ty_args=[scalar])

    with pytest.raises(ValueError, match=r"relax.call_pure_packed of 'my.function'"):
        grad(body(packed))
    mod = network()
    for index in (1, -1):
        with pytest.raises(ValueError, match=f"target_index must be from 0 to 0, .* got {index}"):
            grad(mod, target_index=index)
    with pytest.raises(TypeError, match=r"target_index must be an integer, got 0.5"):
        grad(mod, target_index=0.5)  # type: ignore[arg-type]


def test_impure_packed_calls_are_named() -> None:
    x = relax.Var("x", relax.TensorType([], "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x], attrs={"relax.force_pure": False}, pure=False):
        call = relax.Call(relax.ExternFunc("my.function"), [x], ty_args=[x.ty])
        bb.emit_func_output(bb.emit(call))
    with pytest.raises(ValueError, match=r"a call of the packed function 'my.function'"):
        grad(bb.get())
