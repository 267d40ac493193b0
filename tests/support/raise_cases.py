"""Programs for the raising pass, and an evaluator in NumPy and PyTorch: a second opinion.

The evaluator shares nothing with the pass: it computes each op on small integers in float64, where
sums are exact, so equal functions give equal numbers and no tolerance hides a wrong index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import tvm
from tvm import relax

from relay_wgrad.layouts import ACTIVATION, KERNEL, permutation
from relay_wgrad.ops.call_problem import family_def, problem_of
from relay_wgrad.transform import RaiseReport, raise_conv_backward
from tests.support.built import built
from tests.support.problems import torch_reference

op, nn = relax.op, relax.op.nn
Emit = Callable[[Any], relax.Var]
Body = Callable[..., Any]
Array = np.ndarray[Any, Any]


def program(shapes: dict[str, Any], body: Body, dtype: str = "float32") -> tvm.IRModule:
    """`main` of one dataflow block; `body(emit, *params)` gives the result."""
    params = [relax.Var(name, relax.TensorType(shape, dtype)) for name, shape in shapes.items()]
    return built(params, lambda emit: body(emit, *params))


def bindings(mod: tvm.IRModule, name: str = "main") -> list[relax.Binding]:
    return [binding for block in mod[name].body.blocks for binding in block.bindings]


def names(mod: tvm.IRModule, name: str = "main") -> list[str]:
    """The ops of a function, in order, without `relax.`."""
    values = [binding.value for binding in bindings(mod, name)]
    return [str(v.op.name).removeprefix("relax.") for v in values if isinstance(v, relax.Call)]


# ---- the evaluator -------------------------------------------------------------------------------


def _ints(arg: Any) -> list[int]:
    fields = getattr(arg, "fields", None)
    return [int(getattr(v, "value", v)) for v in (arg.values if fields is None else fields)]


def _slice(x: Array, call: relax.Call) -> Array:
    axes, begin, end, *strides = (_ints(arg) for arg in call.args[1:])
    index = [slice(None)] * x.ndim
    for axis, b, e, s in zip(axes, begin, end, strides[0] if strides else [1] * 9, strict=False):
        index[axis] = slice(b, e, s)
    return x[tuple(index)]


def _pad(x: Array, call: relax.Call) -> Array:
    width = [int(w) for w in call.attrs.pad_width]
    pairs = list(zip(width[::2], width[1::2], strict=True))
    mode = str(call.attrs.pad_mode)
    if mode == "constant":
        return np.pad(x, pairs, constant_values=float(call.attrs.pad_value))
    return np.pad(x, pairs, mode=mode)  # type: ignore[call-overload]


def _transform(x: Array, call: relax.Call) -> Array:
    out = np.full([int(v) for v in call.ty.shape.values], np.nan)
    for index in np.ndindex(*x.shape):
        out[tuple(int(v) for v in call.attrs.index_map.map_indices(list(index)))] = x[index]
    return out


def _shaped(x: Array, call: relax.Call) -> Array:
    return x.reshape([int(v) for v in call.ty.shape.values])


def _reduced(function: Any) -> Callable[[Array, relax.Call], Array]:
    def rule(x: Array, call: relax.Call) -> Array:
        axes = call.attrs.axis
        axes = None if axes is None else tuple(int(axis) for axis in axes)
        return np.asarray(function(x, axis=axes, keepdims=bool(call.attrs.keepdims)))

    return rule


UNARY: dict[str, Callable[[Array, relax.Call], Array]] = {
    "permute_dims": lambda x, c: x.transpose(None if c.attrs.axes is None else list(c.attrs.axes)),
    "reshape": _shaped, "expand_dims": _shaped, "squeeze": _shaped, "flatten": _shaped,
    "tile": lambda x, c: np.tile(x, [int(r) for r in c.attrs.repeats]),
    "repeat": lambda x, c: np.repeat(x, int(c.attrs.repeats), int(c.attrs.axis)),
    "broadcast_to": lambda x, c: np.broadcast_to(x, [int(v) for v in c.ty.shape.values]),
    "flip": lambda x, c: np.flip(x, int(c.attrs.axis)),
    "layout_transform": _transform, "nn.pad": _pad, "strided_slice": _slice,
    "sum": _reduced(np.sum), "mean": _reduced(np.mean), "max": _reduced(np.max),
    "nn.relu": lambda x, c: np.maximum(x, 0), "negative": lambda x, c: -x,
    "cumsum": lambda x, c: np.cumsum(x, int(c.attrs.axis)),
    "astype": lambda x, c: x.astype(str(c.attrs.dtype)).astype(np.float64),
}  # fmt: skip
BINARY: dict[str, Callable[[Array, Array], Array]] = {"add": np.add, "multiply": np.multiply}


def evaluate(mod: tvm.IRModule, *inputs: Array, name: str = "main") -> list[Array]:
    """The results of a function of one block, flattened."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for such sizes more of them only wait for each other
    try:
        return _evaluate(mod, inputs, name)
    finally:
        torch.set_num_threads(threads)


def _evaluate(mod: tvm.IRModule, inputs: Sequence[Array], name: str) -> list[Array]:
    func = mod[name]
    known: dict[Any, Any] = dict(zip(func.params, inputs, strict=True))

    def value(expr: Any) -> Any:
        if isinstance(expr, relax.Var):
            return known[expr]
        if isinstance(expr, tvm.ir.Constant):
            return expr.value.numpy().astype(np.float64)
        if isinstance(expr, relax.Tuple):
            return [value(item) for item in expr.fields]
        assert isinstance(expr, relax.Call), expr
        short = str(expr.op.name).removeprefix("relax.")
        if family_def(expr) is not None:
            return torch_reference(problem_of(expr), value(expr.args[0]), value(expr.args[1]))
        if short in ("ones", "zeros"):
            return np.full([int(v) for v in expr.ty.shape.values], float(short == "ones"))
        if short in BINARY:
            return BINARY[short](value(expr.args[0]), value(expr.args[1]))
        return UNARY[short](value(expr.args[0]), expr)

    for binding in bindings(mod, name):
        known[binding.var] = value(binding.value)
    result = value(func.body.body)
    return result if isinstance(result, list) else [result]


def integers(mod: tvm.IRModule, seed: int = 0) -> list[Array]:
    """Small integers for `main`'s parameters, never zero, so that no term goes unseen."""
    rng = np.random.default_rng(seed)
    shapes = [[int(v) for v in p.ty.shape.values] for p in mod["main"].params]
    return [rng.choice([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0], size=shape) for shape in shapes]


def same(got: list[Array], want: list[Array]) -> bool:
    return len(got) == len(want) and all(
        a.shape == b.shape and np.array_equal(a, b) for a, b in zip(got, want, strict=True)
    )


def raised(mod: tvm.IRModule) -> tuple[tvm.IRModule, RaiseReport]:
    """The pass, with all that must hold of it whatever it did."""
    before = mod.script()
    out, report = raise_conv_backward(mod)
    relax.analysis.well_formed(out)
    assert mod.script() == before
    tvm.ir.assert_structural_equal(out["main"].ret_ty, mod["main"].ret_ty)
    inputs = integers(mod)
    assert same(evaluate(out, *inputs), evaluate(mod, *inputs))
    return out, report


def conv(
    emit: Emit, x: relax.Var, w: relax.Var, layouts: tuple[str, str, str], **attrs: Any
) -> relax.Var:
    """conv2d of NCHW and OIHW operands to NCHW, computed in other layouts as a pass would do it."""
    data, kernel, out = layouts
    x = emit(op.permute_dims(x, list(permutation(ACTIVATION, data)))) if data != ACTIVATION else x
    w = emit(op.permute_dims(w, list(permutation(KERNEL, kernel)))) if kernel != KERNEL else w
    y = emit(nn.conv2d(x, w, data_layout=data, kernel_layout=kernel, out_layout=out, **attrs))
    return emit(op.permute_dims(y, list(permutation(out, ACTIVATION)))) if out != ACTIVATION else y


# ---- the two historical weight gradients, to be spoilt -------------------------------------------


def tile_form(
    emit: Emit,
    data: relax.Var,
    grad: relax.Var,
    *,
    tile: Any = None,
    images: Any = None,
    planes: Any = None,
    groups: int | None = None,
    padding: Any = 1,
    strides: Any = 1,
    dilation: Any = 1,
    parts: Any = None,
    layouts: tuple[str, str, str] = ("NCHW", "OIHW", "NCHW"),
    between: Callable[[Emit, relax.Var], relax.Var] = lambda emit, y: y,
    total: Callable[[relax.Var], relax.Expr] = lambda y: op.sum(y, axis=[0]),
    last: Callable[[relax.Var], relax.Expr] = lambda y: op.permute_dims(y, [1, 0, 2, 3]),
) -> relax.Var:
    """Relay's weight gradient of one group; each keyword replaces one of its steps."""
    n, c, h, w = (int(v) for v in data.ty.shape.values)
    _, k, p, q = (int(v) for v in grad.ty.shape.values)
    g = emit(tile(grad) if tile else op.tile(grad, [1, c, 1, 1]))
    x = emit(images(data) if images else op.reshape(data, [1, n * c, h, w]))
    g = emit(planes(g) if planes else op.reshape(g, [n * c * k, 1, p, q]))
    y = conv(
        emit, x, g, layouts, strides=strides, padding=padding, dilation=dilation,
        groups=groups or n * c,
    )  # fmt: skip
    y = between(emit, y)
    taps = [int(v) for v in y.ty.shape.values][-2:]
    y = emit(op.reshape(y, [*(parts or (n, c, k)), *taps]))
    y = emit(total(y))
    return emit(last(y))


def stock_form(
    emit: Emit,
    data: relax.Var,
    grad: relax.Var,
    *,
    groups: int = 1,
    order: Any = (1, 0, 2, 3, 4),
    layouts: tuple[str, str, str] = ("CNHW", "IOHW", "CNHW"),
    padding: Any = 1,
) -> relax.Var:
    """The weight gradient of stock Relax's rule for conv2d, without a crop."""
    n, c, h, w = (int(v) for v in data.ty.shape.values)
    if groups > 1:
        data = emit(op.reshape(data, (n, groups, c // groups, h, w)))
        data = emit(op.permute_dims(data, list(order))) if order else data
        data = emit(op.reshape(data, (n * groups, c // groups, h, w)))
    return emit(
        nn.conv2d(
            data, grad, padding=padding, groups=groups, data_layout=layouts[0],
            kernel_layout=layouts[1], out_layout=layouts[2],
        )
    )  # fmt: skip


# ---- a data gradient as a convolution ------------------------------------------------------------


def flipped_form(
    emit: Emit,
    grad: relax.Var,
    weight: relax.Var,
    *,
    stride: tuple[int, int] = (1, 1),
    groups: int = 1,
    dilation: int = 1,
    padding: Any = None,
    flips: tuple[int, ...] = (2, 3),
    value: float = 0.0,
    swapped: bool = True,
    conv_strides: Any = 1,
    extra: tuple[int, int] = (0, 0),
    regroup: tuple[int, ...] = (0, 2, 1, 3, 4),
    layouts: tuple[str, str, str] = ("NCHW", "OIHW", "NCHW"),
) -> relax.Var:
    """conv2d of the gradient, with stride-1 zeros between its pixels, and the flipped weight.

    `padding` : the convolution's, by default all that the taps reach; `extra` : more zeros below
    and to the right, put in by `pad`.
    """
    n, k, p, q = (int(v) for v in grad.ty.shape.values)
    _, cg, r, s = (int(v) for v in weight.ty.shape.values)
    x = grad
    if stride != (1, 1):
        x = emit(op.reshape(x, (n, k, p, 1, q, 1)))
        x = emit(nn.pad(x, [0] * 7 + [stride[0] - 1, 0, 0, 0, stride[1] - 1], pad_value=value))
        x = emit(op.reshape(x, (n, k, p * stride[0], q * stride[1])))
        end = [(p - 1) * stride[0] + 1, (q - 1) * stride[1] + 1]
        x = emit(op.strided_slice(x, [2, 3], [0, 0], end))
    if extra != (0, 0):
        x = emit(nn.pad(x, [0, 0, 0, 0, 0, extra[0], 0, extra[1]]))
    w = weight
    for axis in flips:
        w = emit(op.flip(w, axis))
    if groups > 1:
        w = emit(op.reshape(w, (groups, k // groups, cg, r, s)))
        w = emit(op.permute_dims(w, list(regroup)))
        w = emit(op.reshape(w, (groups * cg, k // groups, r, s)))
    elif swapped:
        w = emit(op.permute_dims(w, [1, 0, 2, 3]))
    full = [dilation * (r - 1), dilation * (s - 1)] * 2
    return conv(
        emit, x, w, layouts, strides=conv_strides, padding=full if padding is None else padding,
        dilation=dilation, groups=groups,
    )  # fmt: skip
