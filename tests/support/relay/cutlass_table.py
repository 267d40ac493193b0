"""A pattern table with the rows of Relay 0.19's table for CUTLASS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relay_wgrad.relay.dataflow_pattern import DFPattern, is_constant, is_op, wildcard

Pattern = DFPattern


def _biased(op: str) -> Pattern:
    return (is_op("add") | is_op("nn.bias_add"))(is_op(op)(wildcard(), wildcard()), wildcard())


def _relu(x: Pattern) -> Pattern:
    return is_op("nn.relu")(x)


def _sigmoid(x: Pattern) -> Pattern:
    return is_op("sigmoid")(x)


def _silu(x: Pattern) -> Pattern:
    return is_op("multiply")(x, is_op("sigmoid")(x))


def _hardswish(x: Pattern) -> Pattern:
    clipped = is_op("clip")(is_op("add")(x, is_constant()))
    return is_op("multiply")(x, is_op("divide")(clipped, is_constant()))


def _gelu(x: Pattern, cast: bool) -> Pattern:
    scaled = is_op("multiply")(x, is_constant() | wildcard())
    erf = is_op("erf")(is_op("cast")(scaled) if cast else scaled)
    half = is_op("multiply")(is_op("cast")(erf) if cast else erf, is_constant() | wildcard())
    return is_op("multiply")(is_op("add")(half, is_constant() | wildcard()), x)


def _first(call: Any, op: str) -> Any:
    """The call of `op` along first operands."""
    while getattr(call, "op", None) is not None and call.op.name != op:
        call = call.args[0]
    return call if hasattr(call, "op") else None


def _conv(op: str, kernel_layout: str) -> Callable[[Any], bool]:
    """NHWC, this layout of the second operand, no depthwise convolution."""

    def check(call: Any) -> bool:
        conv = _first(call, op)
        attrs = conv.attrs
        data, weight = (arg.checked_type for arg in conv.args)
        depthwise = data.shape[3] == weight.shape[0] == attrs.groups
        return (attrs.data_layout, attrs.kernel_layout) == ("NHWC", kernel_layout) and not depthwise

    return check


def _residual(binary: str) -> Callable[[Any], bool]:
    is_conv = _conv("nn.conv2d", "OHWI")

    def check(call: Any) -> bool:
        lhs, rhs = _first(call, binary).args
        conv = _first(call, "nn.conv2d")
        if conv is None or not is_conv(call) or lhs.checked_type.shape != rhs.checked_type.shape:
            return False
        return not (_first(lhs, "nn.conv2d") is conv and _first(rhs, "nn.conv2d") is conv)

    return check


def _always(_: Any) -> bool:
    return True


def cutlass_table() -> list[tuple[str, Pattern, Callable[[Any], bool]]]:
    """(name, pattern, check), big to small."""
    is_conv = _conv("nn.conv2d", "OHWI")
    biased = {
        "_hardswish": _hardswish, "_silu": _silu, "_relu": _relu, "_sigmoid": _sigmoid,
        "": lambda x: x,
    }  # fmt: skip
    convs = [
        (f"cutlass.conv2d_bias{end}", act(_biased("nn.conv2d")), is_conv)
        for end, act in biased.items()
    ]
    rows: list[Any] = []
    for end in ("_relu", ""):
        for name, pattern, _ in convs:
            for binary in ("add", "multiply"):
                op, other = is_op(binary), wildcard()
                out = op(pattern, other) | op(other, pattern)
                out = is_op("nn.relu")(out) if end else out
                rows.append((f"{name}_residual_{binary}{end}", out, _residual(binary)))
    dense = _biased("nn.dense")
    rows += [
        ("cutlass.dense_bias_gelu_fp16", _gelu(dense, True), _always),
        ("cutlass.dense_bias_gelu_fp32", _gelu(dense, False), _always),
        ("cutlass.dense_bias_relu", _relu(dense), _always),
        ("cutlass.dense_bias", dense, _always),
        ("cutlass.dense", is_op("nn.dense")(wildcard(), wildcard()), _always),
        ("cutlass.batch_matmul", is_op("nn.batch_matmul")(wildcard(), wildcard()),
         lambda c: not c.attrs.transpose_a and c.attrs.transpose_b),
    ]  # fmt: skip
    alone = {
        "nn.conv2d": "OHWI", "nn.conv2d_transpose": "IHWO", "nn.conv2d_backward_weight": "NHWC",
    }  # fmt: skip
    for op, layout in alone.items():
        pattern = is_op(op)(wildcard(), wildcard())
        convs.append((f"cutlass.{op.removeprefix('nn.')}", pattern, _conv(op, layout)))
    return rows + convs
