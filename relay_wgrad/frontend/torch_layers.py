"""PyTorch's layers as ops that have a gradient: what TVM's own importer writes otherwise.

`LAYERS` maps an ATen overload to a builder of (function under construction, what it reads).  Where
ONNX has the layer too, its builder does the work.  All else goes through TVM's importer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onnx import helper
from tvm import relax

from . import onnx_nn, onnx_ops
from .context import Context, Node, Value, shape_of
from .graph import InputSpec
from .torch_activations import ACTIVATIONS

Args = list[Any]
Builder = Callable[[Context, "Call"], Any]


@dataclass
class Call:
    """One node of the exported graph: its operands as expressions, by ATen's own order."""

    name: str
    args: Args
    kwargs: dict[str, Any]

    def arg(self, index: int, default: Any = None) -> Any:
        """An argument, or the default where it was left out."""
        return self.args[index] if index < len(self.args) else default

    def onnx(self, op: str, operands: Args, **attributes: Any) -> Node:
        """The node as ONNX would have it."""
        values = [None if x is None else Value(f"{self.name}.{i}", expr=x)
                  for i, x in enumerate(operands)]  # fmt: skip
        inputs = ["" if v is None else v.name for v in values]
        proto = helper.make_node(op, inputs, [self.name], name=self.name)
        kept = {key: value for key, value in attributes.items() if value is not None}
        return Node(proto, values, kept)


def _list(value: Any, count: int) -> list[int]:
    values = [int(v) for v in value] if isinstance(value, (list, tuple)) else [int(value)]
    return values * count if len(values) == 1 else values


def _convolution(rank: int) -> Builder:
    def build(ctx: Context, call: Call) -> Any:
        x, weight, bias = call.args[0], call.args[1], call.arg(2)
        padding = call.arg(4, 0)
        pads = auto = None
        if isinstance(padding, str):
            auto = {"same": "SAME_UPPER", "valid": "VALID"}[padding]
        else:
            pads = _list(padding, rank) * 2
        node = call.onnx(
            "Conv", [x, weight, bias], strides=_list(call.arg(3, 1), rank), pads=pads,
            auto_pad=auto, dilations=_list(call.arg(5, 1), rank), group=int(call.arg(6, 1)),
        )  # fmt: skip
        return onnx_nn.conv(ctx, node)

    return build


def _transposed(rank: int) -> Builder:
    def build(ctx: Context, call: Call) -> Any:
        node = call.onnx(
            "ConvTranspose", [call.args[0], call.args[1], call.arg(2)],
            strides=_list(call.arg(3, 1), rank), pads=_list(call.arg(4, 0), rank) * 2,
            output_padding=_list(call.arg(5, 0), rank), group=int(call.arg(6, 1)),
            dilations=_list(call.arg(7, 1), rank),
        )  # fmt: skip
        return onnx_nn.conv_transpose(ctx, node)

    return build


def _max_pool(ctx: Context, call: Call) -> Any:
    kernel = _list(call.args[1], 2)
    node = call.onnx(
        "MaxPool", [call.args[0]], kernel_shape=kernel, strides=_list(call.arg(2) or kernel, 2),
        pads=_list(call.arg(3, 0), 2) * 2, dilations=_list(call.arg(4, 1), 2),
        ceil_mode=int(call.arg(5, False)),
    )  # fmt: skip
    return onnx_nn.max_pool(ctx, node)


def _average_pool(ctx: Context, call: Call) -> Any:
    if call.arg(6) is not None:
        raise ValueError("divisor_override is not supported")
    kernel = _list(call.args[1], 2)
    node = call.onnx(
        "AveragePool", [call.args[0]], kernel_shape=kernel,
        strides=_list(call.arg(2) or kernel, 2), pads=_list(call.arg(3, 0), 2) * 2,
        ceil_mode=int(call.arg(4, False)), count_include_pad=int(call.arg(5, True)),
    )  # fmt: skip
    return onnx_nn.average_pool(ctx, node)


def _adaptive_average_pool(ctx: Context, call: Call) -> Any:
    size, out = shape_of(call.args[0])[-2:], _list(call.args[1], 2)
    if out == [1, 1]:
        return onnx_nn.global_average_pool(ctx, call.onnx("GlobalAveragePool", [call.args[0]]))
    if any(s % o for s, o in zip(size, out, strict=True)):
        raise ValueError(
            f"windows differ in size: {list(size)} pixels to {out} (only multiples are supported)"
        )
    kernel = [s // o for s, o in zip(size, out, strict=True)]
    node = call.onnx("AveragePool", [call.args[0]], kernel_shape=kernel, strides=kernel)
    return onnx_nn.average_pool(ctx, node)


def _linear(ctx: Context, call: Call) -> Any:
    turned = ctx.emit(relax.op.permute_dims(call.args[1]))
    out = ctx.emit(relax.op.matmul(call.args[0], turned))
    return out if call.arg(2) is None else ctx.emit(relax.op.add(out, call.args[2]))


def _addmm(ctx: Context, call: Call) -> Any:
    if call.kwargs.get("alpha", 1) != 1 or call.kwargs.get("beta", 1) != 1:
        raise ValueError("alpha and beta other than 1 are not supported")
    product = ctx.emit(relax.op.matmul(call.args[1], call.args[2]))
    return ctx.emit(relax.op.add(product, call.args[0]))


def _matmul(ctx: Context, call: Call) -> Any:
    return ctx.emit(relax.op.matmul(call.args[0], call.args[1]))


# ---- normalization and dropout ------------------------------------------------------------------


def _batch_norm(ctx: Context, call: Call) -> Any:
    """(x, weight, bias, running mean, running variance, training, momentum, epsilon)."""
    training, momentum, epsilon = call.args[5], call.args[6], call.args[7]
    return _normalized(ctx, call.args[:5], bool(training), momentum, epsilon)


def _batch_norm_evaluated(ctx: Context, call: Call) -> Any:
    return _normalized(ctx, call.args[:5], False, call.args[5], call.args[6])


def _batch_norm_without_statistics(ctx: Context, call: Call) -> Any:
    x, weight, bias, _, _, epsilon = call.args[:6]
    return _normalized(ctx, [x, weight, bias, None, None], True, 0.0, epsilon)


def _normalized(
    ctx: Context, args: Args, training: bool, momentum: float, epsilon: float
) -> tuple[Any, ...]:
    """(result, None, None, running mean, running variance), as the functional ATen op has it.

    PyTorch's running variance takes the sample's variance, n/(n-1) times the population's by which
    the batch is normalized.
    """
    x, weight, bias, mean, var = args
    shape = shape_of(x)
    column = (1, shape[1]) + (1,) * (len(shape) - 2)
    if ctx.options.bn != "module" and mean is not None:
        training = ctx.options.bn == "train"

    def lift(vector: Any) -> Any:
        return ctx.emit(relax.op.reshape(vector, column))

    if training:
        axes = [0, *range(2, len(shape))]
        count = math.prod(shape[a] for a in axes)
        if count == 1:
            raise ValueError(f"batch statistics of {list(shape)} need more than one value")
        center = ctx.emit(relax.op.mean(x, axes, keepdims=True))
        centred = ctx.emit(relax.op.subtract(x, center))
        square = relax.op.multiply(centred, centred)
        spread = ctx.emit(relax.op.mean(square, axes, keepdims=True))
    else:
        center, spread = lift(mean), lift(var)
        centred = ctx.emit(relax.op.subtract(x, center))
    deviation = ctx.emit(relax.op.sqrt(relax.op.add(spread, ctx.const(epsilon))))
    out = ctx.emit(relax.op.divide(centred, deviation))
    if weight is not None:
        out = ctx.emit(relax.op.multiply(out, lift(weight)))
    if bias is not None:
        out = ctx.emit(relax.op.add(out, lift(bias)))
    if training and mean is not None:
        rates = (momentum, momentum * count / (count - 1))
        for running, batch, rate in ((mean, center, rates[0]), (var, spread, rates[1])):
            kept = relax.op.multiply(running, ctx.const(1 - momentum))
            fresh = relax.op.multiply(relax.op.reshape(batch, shape[1:2]), ctx.const(rate))
            ctx.states.append((running.name, ctx.emit(relax.op.add(kept, fresh))))
    return out, None, None, mean, var


def _dropout(ctx: Context, call: Call) -> Any:
    x, rate, training = call.args[0], float(call.args[1]), call.arg(2, True)
    if ctx.options.dropout == "off" or not training or rate == 0.0:
        return x
    if not 0.0 < rate < 1.0:
        raise ValueError(f"p={rate} is not between 0 and 1")
    name, dtype = ctx.unique(f"dropout_mask_{len(ctx.masks)}"), ctx.options.dtype
    mask = relax.Var(name, relax.TensorType(shape_of(x), dtype))
    ctx.masks.append((InputSpec(name, "mask", shape_of(x), dtype, 1.0 - rate), mask))
    return ctx.emit(relax.op.multiply(x, mask))


# ---- elementwise and shapes ---------------------------------------------------------------------


def _square(ctx: Context, call: Call) -> Any:
    return ctx.emit(relax.op.multiply(call.args[0], call.args[0]))


def _squeeze(ctx: Context, call: Call) -> Any:
    """As a reshape: relax.squeeze has no gradient.  Axes that are longer than 1 stay."""
    shape = shape_of(call.args[0])
    axes = call.arg(1, list(range(len(shape))))
    chosen = {a % len(shape) for a in ([axes] if isinstance(axes, int) else axes)}
    kept = [s for i, s in enumerate(shape) if s != 1 or i not in chosen]
    return ctx.emit(relax.op.reshape(call.args[0], kept))


def _pad(ctx: Context, call: Call) -> Any:
    """Constant padding, given from the last axis on."""
    rank, given = len(shape_of(call.args[0])), _list(call.args[1], 1)
    before, after = [0] * rank, [0] * rank
    for i in range(len(given) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = given[2 * i], given[2 * i + 1]
    value = float(call.arg(2, 0.0) or 0.0)
    node = call.onnx("Pad", [call.args[0]], pads=[*before, *after], value=value)
    return onnx_ops.pad(ctx, node)


LAYERS: dict[str, Builder] = {
    **ACTIVATIONS,
    "_adaptive_avg_pool2d.default": _adaptive_average_pool,
    "_native_batch_norm_legit.no_stats": _batch_norm_without_statistics,
    "_native_batch_norm_legit_functional.default": _batch_norm,
    "_native_batch_norm_legit_no_training.default": _batch_norm_evaluated,
    "adaptive_avg_pool2d.default": _adaptive_average_pool,
    "addmm.default": _addmm,
    "avg_pool2d.default": _average_pool,
    "batch_norm.default": lambda ctx, call: _batch_norm(ctx, call)[0],
    "bmm.default": _matmul,
    "constant_pad_nd.default": _pad,
    "conv1d.default": _convolution(1),
    "conv1d.padding": _convolution(1),
    "conv2d.default": _convolution(2),
    "conv2d.padding": _convolution(2),
    "conv_transpose1d.default": _transposed(1),
    "conv_transpose2d.input": _transposed(2),
    "dropout.default": _dropout,
    "linear.default": _linear,
    "matmul.default": _matmul,
    "max_pool2d.default": _max_pool,
    "mm.default": _matmul,
    "native_dropout.default": lambda ctx, call: (_dropout(ctx, call), None),
    "square.default": _square,
    "squeeze.default": _squeeze,
    "squeeze.dim": _squeeze,
    "squeeze.dims": _squeeze,
}
