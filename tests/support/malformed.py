"""Malformed programs of the four ops, through every door a program comes in by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Op

import relay_wgrad

OPS = ("conv2d", "conv2d_transpose", "conv2d_backward_weight", "conv2d_backward_data")
NEW = OPS[2:]
VOLUMES = tuple(op.replace("2d", "3d") for op in OPS)
ROLES = {
    "conv2d": ("data", "weight"),
    "conv2d_transpose": ("grad", "weight"),
    "conv2d_backward_weight": ("grad", "data"),
    "conv2d_backward_data": ("grad", "weight"),
}
SHAPES: dict[str, tuple[Any, ...]] = {
    "data": (2, 4, 8, 8),
    "weight": (6, 4, 3, 3),
    "grad": (2, 6, 6, 6),
}
_SHARED: dict[str, Any] = {
    "strides": [1, 1],
    "padding": [0, 0, 0, 0],
    "dilation": [1, 1],
    "groups": 1,
    "data_layout": "NCHW",
    "kernel_layout": "OIHW",
    "out_dtype": None,
}
# What a well-formed call stores.
STORED: dict[str, dict[str, Any]] = {
    "conv2d": {**_SHARED, "out_layout": "NCHW"},
    "conv2d_transpose": {
        **_SHARED,
        "kernel_layout": "IOHW",
        "out_layout": "NCHW",
        "output_padding": [0, 0],
    },
    "conv2d_backward_weight": {**_SHARED, "grad_layout": "NCHW", "kernel_size": [3, 3]},
    "conv2d_backward_data": {**_SHARED, "grad_layout": "NCHW"},
}
_NODES = {
    "conv2d": "relax.attrs.Conv2DAttrs",
    "conv2d_transpose": "relax.attrs.Conv2DTransposeAttrs",
}


def tensor(name: str, shape: Any = None, dtype: str = "float32") -> relax.Var:
    """A parameter; its usual shape where none is given."""
    return relax.Var(name, relax.TensorType(SHAPES[name] if shape is None else shape, dtype))


def operands(op: str, shapes: dict[str, Any] | None = None, dtypes: Any = None) -> list[relax.Var]:
    """The op's two tensors, with other shapes or dtypes than usual where given."""
    shapes, dtypes = shapes or {}, dtypes or ("float32", "float32")
    return [
        tensor(role, shapes.get(role), dtype) for role, dtype in zip(ROLES[op], dtypes, strict=True)
    ]


def built(variables: list[relax.Var], body: Callable[..., relax.Expr]) -> relax.Type:
    """The type that a BlockBuilder infers for the body; what it raises passes through."""
    bb = relax.BlockBuilder()
    with bb.function("main", variables):
        out = bb.emit(body(*variables))
        bb.emit_func_output(out)
    return out.ty


def constructed(op: str, args: list[Any], attrs: dict[str, Any], shape: Any = None) -> relax.Expr:
    """A call by relay_wgrad's own constructor."""
    if op == "conv2d_backward_weight":
        attrs = {"kernel_size": 3, **attrs}
    if op == "conv2d_backward_data":
        args = [*args, SHAPES["data"] if shape is None else shape]
    return getattr(relay_wgrad, op)(*args, **attrs)


def hand_made(op: str, args: list[Any], attrs: dict[str, Any]) -> relax.Call:
    """A call that no constructor has seen."""
    node = tvm.ir.make_node(_NODES.get(op, "ir.DictAttrs"), **{**STORED[op], **attrs})
    if op == "conv2d_backward_data":
        args = [*args, relax.ShapeExpr(SHAPES["data"])]
    return relax.Call(Op.get(f"relax.nn.{op}"), args, attrs=node)


def parsed(op: str, attrs: dict[str, Any], shapes: dict[str, Any] | None = None) -> tvm.IRModule:
    """The same program as TVMScript text."""
    shapes = {**SHAPES, **(shapes or {})}
    params = ", ".join(f'{role}: R.Tensor({shapes[role]}, "float32")' for role in ROLES[op])
    args = list(ROLES[op])
    if op == "conv2d_backward_data":
        args.append(f"R.shape({list(shapes['data'])})")
    if op == "conv2d_backward_weight":
        attrs = {"kernel_size": [3, 3], **attrs}
    args += [f"{key}={value!r}" for key, value in attrs.items()]
    return tvm.script.from_source(
        f"""
@I.ir_module
class Module:
    @R.function
    def main({params}):
        with R.dataflow():
            out = R.nn.{op}({", ".join(args)})
            R.output(out)
        return out
"""
    )
