"""One node of an ONNX model: checked, then computed at once or built; what is raised names it."""

from __future__ import annotations

import math
import re
from typing import Any, cast

import numpy as np
import onnx
from onnx import helper, numpy_helper
from tvm import relax

from ...dtypes import FLOATS
from ..context import Context, Value, shape_of
from ..sizes import is_open, sizes_of
from ..weights import Array
from . import schema as onnx_schema
from .names import op_of
from .node import Node, array_of
from .open_batch import FIXED, evaluated, shape_value
from .ops import OPS
from .random import NEVER_FOLDED
from .shapes import RESHAPING

MOST_ELEMENTS = 2**31 - 1  # of a tensor: 8 GiB in float32, and what follows is larger
_MEASURED = ("Shape", "ConstantOfShape")  # known on import, whatever their operands
_MOST_AXES = 64  # of an array of NumPy's
_SHORT = 64  # elements of an operand that may say a result's size
_OP = re.compile(r'\bir\.Op\(.*?\bname="([\w.]+)".*?support_level=\d+\)')  # as TVM shows one
_LONGEST = 1500  # characters of a reason


def is_weight(array: Array) -> bool:
    return str(array.dtype) in FLOATS and array.ndim > 0


def build(
    ctx: Context, proto: onnx.ModelProto, node: onnx.NodeProto, values: dict[str, Value]
) -> None:
    """Adds the results of one node to `values`.

    Whatever goes wrong is a ValueError of one line, which names the node; its cause is what was
    raised.
    """
    operands = [values.get(o) if o else None for o in node.input]
    view = Node(node, operands, {})
    try:
        missing = [o for o in node.input if o and o not in values]
        if missing:
            raise ValueError(nothing_makes(proto, missing[0]))
        if any(o is not None and not _constant(o) for o in operands):
            _check_supported(ctx, proto, view)  # what is wrong with it otherwise is of no use
        onnx_schema.check(view, ctx.options.opset)
        for attribute in node.attribute:
            value = helper.get_attribute_value(attribute)
            view.attributes[attribute.name] = value.decode() if isinstance(value, bytes) else value
        made = _folded_results(ctx, proto, view)
        values.update(_computed(ctx, proto, view) if made is None else made)
    except _UnsupportedError as error:
        raise ValueError(str(error)) from None
    except Exception as error:  # of any kind: a file may hold what no check expects
        follower = _dense_after(proto, node) if op_of(node) == "Reshape" else ""
        if _wants_number(ctx, view, error):
            why = "it wants a number" if not isinstance(error, ValueError) else _reason(error)
            why = "it wants a number" if "Cannot use and / or" in why else why
            raise ValueError(f"{view.label}: {why}; the batch is open here: {FIXED}") from error
        raise ValueError(f"{view.label}: {_reason(error)}{follower}") from error


def _wants_number(ctx: Context, view: Node, error: Exception) -> bool:
    """Whether a node may have failed for its sizes of an open batch."""
    if ctx.batch is None or not isinstance(error, (ValueError, TypeError)):
        return False
    found = [o for o in view.operands if o is not None]
    tensors = [o.expr for o in found if isinstance(getattr(o.expr, "ty", None), relax.TensorType)]
    return any(o.probes is not None for o in found) or any(is_open(shape_of(x)) for x in tensors)


def nothing_makes(proto: onnx.ModelProto, operand: str) -> str:
    """What is told of a node that takes what is no result, input or weight."""
    for other in proto.graph.node:
        if operand in list(other.output)[1:]:
            at = list(other.output).index(operand)
            return (
                f"its operand {operand!r:.80} is result {at} of {Node(other, [], {}).label}, which"
                " is not supported"
            )
    return f"nothing makes its operand {operand!r}"


class _UnsupportedError(ValueError):
    """An op that the table lacks: its message names the node already."""


def _reason(error: Exception) -> str:
    text = _OP.sub(r"\1", " ".join(str(error).split()))
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    if text and isinstance(error, (ValueError, TypeError, RuntimeError)):
        return text
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, MemoryError):
        return f"its result does not fit into memory ({what})"
    return f"its operands or attributes cannot be used ({what})"


def _constant(value: Value) -> bool:
    return (value.array is not None or value.probes is not None) and not value.weight


def _check_supported(ctx: Context, proto: onnx.ModelProto, view: Node) -> None:
    op = op_of(view.proto)
    if op in ctx.options.extra or op in OPS or op in _MEASURED:
        return
    what = f"ONNX op {op:.80} ({view.label})"
    if any((f.domain, f.name) == (view.proto.domain, view.proto.op_type) for f in proto.functions):
        raise _UnsupportedError(
            f"{what} is a function of the file, which is not looked into: write it out by"
            " onnx.inliner.inline_local_functions"
        )
    raise _UnsupportedError(f"{what} is not supported; supported: {', '.join(sorted(OPS))}")


def _computed(ctx: Context, proto: onnx.ModelProto, view: Node) -> dict[str, Value]:
    """The node's results as expressions of the function."""
    node, op = view.proto, op_of(view.proto)
    _check_supported(ctx, proto, view)
    built = (ctx.options.extra.get(op) or OPS[op])(ctx, view)
    results = built if isinstance(built, list) else [built]
    present = [o for o in view.operands if o is not None]
    param = present[0].param if op in RESHAPING and present else None
    batched = any(o.batched for o in present)
    return {
        out: Value(out, expr=expr, param=param, batched=batched)
        for out, expr in zip(node.output, results, strict=False)
        if out and expr is not None
    }


def _dense_after(proto: onnx.ModelProto, node: onnx.NodeProto) -> str:
    """Names the fully connected layer that takes a Reshape's result, for the error."""
    for other in proto.graph.node:
        if op_of(other) in ("Gemm", "MatMul") and node.output[0] in other.input:
            return f" (for the fully connected {Node(other, [], {}).label})"
    return ""


# ---- what is known on import -----------------------------------------------------------------


def _folded_results(ctx: Context, proto: onnx.ModelProto, node: Node) -> dict[str, Value] | None:
    """The node's results where they are known on import; None where the function computes them."""
    op, out = op_of(node.proto), node.proto.output[0]
    present = [o for o in node.operands if o is not None]
    if op == "Constant" and "value" in node.attributes:
        return {out: Value(out, array=array_of("value", node.attributes["value"]))}
    if op == "ConstantOfShape":
        return {out: _filled(ctx, node, out)}
    if op == "Shape":
        whole = node.operand(0)
        size = whole.array.shape if whole.array is not None else shape_of(ctx.tensor(whole))
        part = size[node.attr("start", 0) : node.attr("end")]
        return {out: shape_value(out, part, ctx.batch)}
    if op == "CastLike" and _constant(node.operand(0)):
        return {out: _cast_like(node, out)}
    if not all(map(_constant, present)) or (not present and op != "Constant"):
        return None
    if op in NEVER_FOLDED:
        return None
    if any(o.param is not None for o in present):
        return None  # it is a parameter already
    arrays = {o.name: cast(Array, o.array) for o in present}
    measured = any(o.measured for o in present)
    made = [n for n in node.proto.output if n]
    if any(o.probes is not None for o in present):

        def run(given: dict[str, Array]) -> list[Any]:
            return _evaluated(ctx, proto, node, given)

        return evaluated(run, present, arrays, made, ctx.batch)
    return {
        n: Value(n, array=np.asarray(r), measured=measured)
        for n, r in zip(made, _evaluated(ctx, proto, node, arrays), strict=True)
    }


def _cast_like(node: Node, out: str) -> Value:
    """A constant in the dtype of a tensor that may be anything."""
    number, like = node.operand(0), node.operand(1)
    kind = like.array.dtype if like.expr is None and like.array is not None else like.expr.ty.dtype
    array = np.asarray(number.array).astype(str(kind))
    return Value(out, array=array, measured=number.measured)


def _filled(ctx: Context, node: Node, out: str) -> Value:
    """ConstantOfShape: one number, seen as a tensor."""
    wanted = node.static(0, "the shape")
    if node.operand(0).probes is not None:
        fill = node.attr("value")
        number = np.zeros(1, "float32") if fill is None else array_of("value", fill)
        dtype = str(number.dtype)
        dtype = ctx.options.dtype if dtype in FLOATS else dtype
        whole = ctx.full(tuple(sizes_of(wanted)), number.reshape(()), dtype)
        return Value(out, expr=whole, batched=True)
    if wanted.ndim > 1 or wanted.size > _MOST_AXES:
        raise ValueError(
            f"the shape is a list of at most {_MOST_AXES} sizes, got {list(wanted.shape)} numbers"
        )
    shape = [int(size) for size in wanted.ravel()]
    if min(shape, default=0) < 0 or math.prod(shape) > MOST_ELEMENTS:
        raise ValueError(f"no tensor has the shape {shape!s:.80}")
    fill = node.attr("value")
    scalar = np.zeros(1, "float32") if fill is None else array_of("value", fill)
    if scalar.size != 1:
        raise ValueError(f"value has {scalar.size} elements, not one")
    array = np.broadcast_to(scalar.reshape(()), tuple(shape))  # takes no memory
    measured = node.operand(0).measured
    return Value(out, array=array, weight=is_weight(array) and not measured, measured=measured)


def _evaluated(
    ctx: Context, proto: onnx.ModelProto, node: Node, arrays: dict[str, Array]
) -> list[Any]:
    """Arithmetic on shapes and other constants: ONNX's own definition of the op, run now."""
    from onnx.reference import ReferenceEvaluator

    _refuse_large(ctx.options.opset, proto, node, arrays)
    graph = helper.make_graph(
        [node.proto],
        "constant",
        [_typed(n, helper.np_dtype_to_tensor_dtype(a.dtype)) for n, a in arrays.items()],
        [_typed(n, onnx.TensorProto.UNDEFINED) for n in node.proto.output if n],
    )
    model = helper.make_model(graph, opset_imports=list(proto.opset_import))
    try:
        return list(ReferenceEvaluator(model).run(None, arrays))
    except Exception as error:  # of any kind, for what a node cannot be applied to
        what = str(error).partition("\n")[0]
        raise ValueError(f"cannot be computed: {type(error).__name__}: {what:.200}") from error


def _refuse_large(opset: int, proto: onnx.ModelProto, node: Node, arrays: dict[str, Array]) -> None:
    """Raises ValueError for a result that is too large, before it is made."""
    try:
        types = {
            n: helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in arrays.items()
        }
        data = {n: numpy_helper.from_array(a, n) for n, a in arrays.items() if a.size <= _SHORT}
        results = onnx.shape_inference.infer_node_outputs(
            onnx_schema.of_op(op_of(node.proto), opset), node.proto, types, data,
            opset_imports=list(proto.opset_import),
        )  # fmt: skip
    except Exception:  # of any kind: what is wrong, the evaluation says
        return
    for name, result in results.items():
        shape = [int(d.dim_value) for d in result.tensor_type.shape.dim]
        if math.prod(shape) > MOST_ELEMENTS:
            raise ValueError(
                f"its result {name!r:.80} of {shape!s:.80} has more than {MOST_ELEMENTS} elements"
            )


def _typed(name: str, elem_type: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, None)
