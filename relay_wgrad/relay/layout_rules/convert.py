"""Relay's conversions of operators whose attributes name layouts (`RelayOp.roles`).

The conversions are in `ops.hooks.CONVERT_LAYOUT` at the package's level, so a user's own counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...layouts import is_permutation
from ..ast import Expr
from ..make import call
from ..records import REGISTRY, lookup
from ..records.blocked_layouts import is_blocked
from ..records.facts import Roles
from ..records.hooks import CONVERT_LAYOUT, PACKAGE_LEVEL
from ..types import TensorType
from .config import LayoutConfig

DEFAULT = "default"  # a kernel's layout that the data's decides


ROLES: dict[str, Roles] = {op.name: op.roles for op in REGISTRY.values() if op.roles is not None}
_BLOCKED = {"nn.conv2d", *(op for op, roles in ROLES.items() if roles.follows)}
# (operator, data's layout) -> the kernel's by default, and a depthwise convolution's; Relay's.
_KERNELS: dict[tuple[str, str], tuple[str, str]] = {
    ("nn.conv2d", "NCHW"): ("OIHW", "OIHW"),
    ("nn.conv2d", "NHWC"): ("HWIO", "HWOI"),
    ("nn.conv2d", "HWNC"): ("HWOI", "HWOI"),
    ("nn.deformable_conv2d", "NCHW"): ("OIHW", "OIHW"),
    ("nn.deformable_conv2d", "NHWC"): ("HWIO", "HWIO"),
    ("nn.conv2d_transpose", "NCHW"): ("IOHW", "IOHW"),
    ("nn.conv2d_transpose", "NHWC"): ("HWIO", "HWIO"),
}


def checked(op: str, desired: Any) -> list[str]:
    """The layouts that a user desires for an operator.

    Raises
    ------
    TypeError : if they are no list of strings.
    ValueError : for an unknown operator, one that no conversion is registered for, a wrong number
        of layouts, one that is no order of the operator's axes.
    """
    lookup(op)
    where = f"ConvertLayout: {op}"
    if isinstance(desired, str) or not isinstance(desired, Sequence):
        raise TypeError(f"{where}: the desired layouts must be a list of strings, got {desired!r}")
    out = [str(layout) for layout in desired if isinstance(layout, str)]
    if len(out) != len(desired):
        raise TypeError(f"{where}: the desired layouts must be strings, got {list(desired)!r}")
    hook = CONVERT_LAYOUT.find(op)
    if hook is None:
        raise ValueError(
            f"{where} has no layout conversion: relay.op.register_convert_op_layout sets one;"
            f" there are {', '.join(ROLES)}"
        )
    if hook is not _HOOKS.get(op):
        return out  # a user's own, which knows what its layouts mean
    canonical, others = ROLES[op].canonical, ROLES[op].others
    if out[len(canonical) :] == [DEFAULT] * others:
        out = out[: len(canonical)]
    if len(out) != len(canonical):
        raise ValueError(f"{where} takes {len(canonical)} desired layouts, got {out}")
    for index, (layout, letters) in enumerate(zip(out, canonical, strict=True)):
        if index == 0 and layout == DEFAULT:
            raise ValueError(f"{where}: the first desired layout can't be 'default', got {out}")
        blocked = op in _BLOCKED and is_blocked(layout, letters, whole="HW")
        if layout != DEFAULT and not (blocked or is_permutation(layout, letters)):
            blocks = "; it takes no blocks" if any(map(str.isdigit, layout)) else ""
            raise ValueError(f"{where}: layout {layout!r} must have the letters {letters}{blocks}")
    if DEFAULT in out and (_forward(op), out[0]) not in _KERNELS:
        known = ", ".join(data for name, data in _KERNELS if name == _forward(op))
        raise ValueError(
            f"{where}: the kernel's layout can be 'default' for data in {known}, got {out[0]}"
        )
    return out


def _forward(op: str) -> str:
    """Whose default a kernel's layout is: a weight gradient's is its weight's."""
    return "nn.conv2d" if op == "nn.conv2d_backward_weight" else op


def _hook(op: str, change: Callable[..., dict[str, str]]) -> Callable[..., Expr | None]:
    def convert(attrs: Any, inputs: Any, tinfos: Any, desired_layouts: Any) -> Expr | None:
        if op in ("nn.conv2d", "nn.deformable_conv2d") and LayoutConfig.skips():
            return None
        changes = change(op, attrs, tinfos, desired_layouts)
        return call(op, *inputs, **{**attrs, **changes})

    return convert


def _convolution(op: str, attrs: Any, tinfos: Any, desired: Sequence[str]) -> dict[str, str]:
    data, kernel = desired
    if kernel == DEFAULT:
        kernel = _KERNELS[op, data][_is_depthwise(attrs, tinfos)]
    return {"data_layout": data, "kernel_layout": kernel}


def _is_depthwise(attrs: Any, tinfos: Sequence[TensorType]) -> bool:
    """Whether input channels, output channels and groups are one number."""
    channels = tinfos[0].shape[attrs.data_layout.index("C")]
    made = tinfos[-1].shape[attrs.kernel_layout.index("O")]
    return bool(attrs.groups == channels == made)


def _weight_gradient(op: str, attrs: Any, tinfos: Any, desired: Sequence[str]) -> dict[str, str]:
    layout, kernel = desired
    if kernel == DEFAULT:
        made = tinfos[0].shape[attrs.data_layout.index("C")]
        channels = tinfos[1].shape[attrs.kernel_layout.index("C")]
        kernel = _KERNELS[_forward(op), layout][attrs.groups == channels == made]
    return {"data_layout": layout, "kernel_layout": layout, "out_layout": kernel}


def _pool(op: str, attrs: Any, tinfos: Any, desired: Sequence[str]) -> dict[str, str]:
    layout = desired[0]
    return {"layout": layout, **({"out_layout": layout} if "out_layout" in attrs else {})}


_CHANGES: dict[str, Callable[..., dict[str, str]]] = {
    "nn.conv2d": _convolution,
    "nn.conv2d_transpose": _convolution,
    "nn.conv2d_backward_weight": _weight_gradient,
    "nn.deformable_conv2d": _convolution,
}
_HOOKS = {op: _hook(op, _CHANGES.get(op, _pool)) for op in ROLES}
for _op, _function in _HOOKS.items():
    CONVERT_LAYOUT.add(_op, _function, PACKAGE_LEVEL)
