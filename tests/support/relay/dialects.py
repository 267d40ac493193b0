"""Today's programs as TVM 0.8 to 0.18 would have printed them: the reader's table, backwards.

`rewritten` makes the nodes of that release, and `printed` writes them as its printer did.  After
src/printer/relay_text_printer.cc and include/tvm/relay/attrs at the tags v0.8.0 to v0.18.0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.ast import MetaAttrs
from relay_wgrad.relay.boxed_values import BoxInt, unboxed
from relay_wgrad.relay.records import lookup
from relay_wgrad.relay.rewrite import rewrite
from relay_wgrad.relay.text import metadata_writer, printer
from relay_wgrad.relay.text.metadata_writer import MetaTable

RELEASES = (8, 10, 11, 17, 18)  # one of each that differ, by their last
_EXCHANGED = str.maketrans("IO", "OI")
_PREFIX = "relay.attrs."

# Operators whose attributes' type is not declared: (their type, the last release that has it so).
UNDECLARED = {
    "annotation.compiler_begin": ("CompilerAttrs", 19),
    "annotation.compiler_end": ("CompilerAttrs", 19),
    "broadcast_to": ("InitOpAttrs", 10),
    "cumprod": ("ScanopAttrs", 19),
    "cumsum": ("ScanopAttrs", 19),
    "dyn.broadcast_to": ("InitOpAttrs", 8),
    "dyn.expand_dims": ("DynExpandDimsAttrs", 19),
    "nn.batch_matmul": ("BatchMatmulAttrs", 8),
    "nn.dilate": ("DilateAttrs", 19),
    "scatter": ("ScatterAttrs", 11),
    "scatter_add": ("ScatterAddAttrs", 11),
    "scatter_elements": ("ScatterElementsAttrs", 19),
    "scatter_nd": ("ScatterNDAttrs", 19),
    "stft": ("StftAttrs", 19),
    "trilu": ("TriluAttrs", 19),
    "unique": ("UniqueAttrs", 19),
    "vision.all_class_non_max_suppression": ("AllClassNonMaximumSuppressionAttrs", 19),
    "vision.get_valid_counts": ("GetValidCountsAttrs", 19),
    "vision.non_max_suppression": ("NonMaximumSuppressionAttrs", 19),
    "vision.roi_align": ("ROIAlignAttrs", 19),
    "vision.roi_pool": ("ROIPoolAttrs", 19),
}
# Operators by the release that has them first.
NEW = {
    9: ("nn.conv2d_backward_weight", "nn.conv3d_backward_weight", "trunc_divide", "trunc_mod",
        "random.normal", "sliding_window", "stft"),
    10: ("trilu",),
}  # fmt: skip


def printed(mod: relay.IRModule, minor: int, version: str | None = None) -> str:
    """The text of 0.`minor`, with its metadata; what is not there must be `rewritten` before."""
    used = {id(i) for f in mod.functions.values() for i in printer._used_objects(f)}
    sizes = [dim for f in mod.functions.values() for dim in printer._sizes(f)]
    table = MetaTable(mod.metadata, used, sizes)
    own = _Old(table, minor, [header.name_hint for header in mod.type_definitions])
    parts = [own.define_type(data) for data in mod.type_definitions.values()]
    parts += [own.define(name, function) for name, function in mod.functions.items()]
    text = printer._HEADER + "\n".join(parts)
    if not table:
        return text
    said = f'"tvm_version": "{version or f"0.{minor}.0"}"'
    metadata = _OldNodes(minor).text(table._objects)
    return text + metadata.replace('"tvm_version": "0.19.0"', said)


class _Old(printer._Printer):
    def __init__(self, table: MetaTable, minor: int, defined: list[str]) -> None:
        super().__init__(table, None, defined)
        self._minor = minor

    def _leaf(self, node: Any) -> Any:
        if isinstance(node, relay.Constant) and self._minor <= 8 and node.data.ndim == 0:
            if node.data.dtype in (np.float16, np.int16):
                return self._table.reference(node)
            if node.data.dtype == np.int64:
                return str(int(node.data))
        return (yield from super()._leaf(node))

    def _note(self, node: Any) -> str:
        if self._minor > 8:
            return super()._note(node)
        note = ""
        if isinstance(node, relay.Call) and node.span is not None and node.span.origin is not None:
            note = f" /* {node.span.origin.source} */"
        if isinstance(node, (relay.Call, relay.Constant)) and node.checked_type is not None:
            note += f" /* ty={self._type(node.checked_type)} */"
        return note

    def _value(self, value: Any, name: str) -> str:
        if isinstance(value, BoxInt) and self._minor <= 17:
            value = int(value)
        if self._minor <= 8 and isinstance(unboxed(value), str):
            return f'"{unboxed(value)}"'
        if self._minor <= 8 and isinstance(value, np.int64):
            return str(int(value))
        return super()._value(value, name)


class _OldNodes(metadata_writer._Writer):
    def __init__(self, minor: int) -> None:
        super().__init__()
        self._minor = minor
        if minor <= 8:
            self._device = -1  # so that none is made

    def _constant(self, item: relay.Constant) -> int:
        index = super()._constant(item)
        if self._minor <= 8:
            del self._nodes[index]["attrs"]["virtual_device_"]
        return index

    def _new(self, value: Any) -> int:
        if type(value) is float:
            attrs = {"dtype": "float32", "span": "0", "value": f"{value:.17g}"}
            return self._node("FloatImm", attrs=attrs)
        return super()._new(value)


# ---- nodes -----------------------------------------------------------------------------------


def known(mod: relay.IRModule, minor: int) -> bool:
    """Whether a release has all operators; 0.8 has weight gradients as `composite` writes them."""
    missing = {name for first, names in NEW.items() if first > minor for name in names}
    missing.discard("nn.conv2d_backward_weight")
    nodes = [n for f in mod.functions.values() for n in relay.ast.post_order(f)]
    if any(isinstance(node, relay.Op) and node.name in missing for node in nodes):
        return False
    if minor <= 11 and any(isinstance(n, relay.Call) and _contradicts_itself(n) for n in nodes):
        return False
    return minor > 8 or all(
        _had_gradient(node)
        for node in nodes
        if isinstance(node, relay.Call) and node.op == relay.Op("nn.conv2d_backward_weight")
    )


def _contradicts_itself(call: relay.Call) -> bool:
    """A weight's layout beside the default, which kernels did not know with channels first."""
    name = call.op.name if isinstance(call.op, relay.Op) else ""
    if name not in ("nn.conv1d_transpose", "nn.conv3d_transpose"):
        return False
    default = lookup(name).read({})["kernel_layout"]
    return call.attrs.kernel_layout != default and call.attrs.data_layout.startswith("NC")


def _had_gradient(call: relay.Call) -> bool:
    """In one layout; right for one group and for as many as channels, else something else."""
    attrs = call.attrs
    layouts = attrs.data_layout, attrs.kernel_layout, attrs.out_layout
    return layouts == ("NCHW", "NCHW", "OIHW") and (
        attrs.groups == 1 or attrs.groups == call.args[1].checked_type.shape[1]
    )


def rewritten(mod: relay.IRModule, minor: int) -> relay.IRModule:
    """The program in the operators and attributes of 0.`minor`, with types."""

    def change(old: Any, new: Any) -> Any:
        if not isinstance(new, relay.Call) or not isinstance(new.op, relay.Op):
            return new
        if new.op.name == "nn.conv2d_backward_weight" and minor <= 8:
            return composite(old, new.args)
        return _call(new, minor)

    held = {name: rewrite(f, change) for name, f in mod.functions.items()}
    return relay.IRModule(held, mod.type_definitions, metadata=mod.metadata)  # type: ignore[arg-type]


def _call(call: relay.Call, minor: int) -> relay.Call:
    assert isinstance(call.op, relay.Op)
    name, attrs = call.op.name, dict(call.attrs)
    if minor <= 11 and name.endswith("d_transpose") and name.startswith("nn.conv"):
        attrs = _weight(name, attrs)
    if minor <= 11 and name == "scatter_elements":
        mode = attrs.pop("reduction", "update")
        assert mode in ("update", "add"), mode
        name = "scatter" if mode == "update" else "scatter_add"
    key, last = UNDECLARED.get(name, ("", 0))
    if minor > last:
        return call if attrs == dict(call.attrs) else replace(call, op=relay.Op(name), attrs=attrs)
    if name in ("scatter", "scatter_add"):
        fields: dict[str, Any] = {"axis": attrs.get("axis", 0)}
    else:
        record = lookup(name)
        values = record.read(attrs)
        fields = {a.name: _spelled(a.kind, values[a.name]) for a in record.attrs}
    return replace(call, op=relay.Op(name), attrs=MetaAttrs(_PREFIX + key, fields))


def _weight(name: str, attrs: dict[str, Any]) -> dict[str, Any]:
    """The weight's layout: of two dimensions its default was OIHW, of others O and I were named the
    other way round."""
    default = lookup(name).read({})["kernel_layout"]
    layout = attrs.pop("kernel_layout", default)
    if name == "nn.conv2d_transpose":
        return attrs if layout == "OIHW" else {**attrs, "kernel_layout": layout}
    layout, default = layout.translate(_EXCHANGED), default.translate(_EXCHANGED)
    return attrs if layout == default else {**attrs, "kernel_layout": layout}


def _spelled(kind: str, value: Any) -> Any:
    return "" if kind == "dtype" and value is None else value


def composite(call: relay.Call, args: tuple[Any, ...]) -> Any:
    """A weight gradient as `conv2d_grad` of 0.8 wrote it (python/tvm/relay/op/_tensor_grad.py)."""
    grad, data = args
    n, c, h, w = call.args[1].checked_type.shape
    _, k, p, q = call.args[0].checked_type.shape
    attrs = call.attrs
    groups, (r, s) = attrs.groups, attrs.kernel_size
    top, left, bottom, right = attrs.padding
    (sh, sw), (dh, dw) = attrs.strides, attrs.dilation
    grad = relay.reshape(relay.tile(grad, [1, c // groups, 1, 1]), [-1, 1, 0, 0])
    out = relay.nn.conv2d(
        relay.reshape(data, [1, -1, 0, 0]),
        grad,
        strides=attrs.dilation,
        padding=attrs.padding,
        dilation=attrs.strides,
        groups=c * n,
    )
    rows = (h - (p - 1) * sh - 1 + top + bottom) // dh + 1
    columns = (w - (q - 1) * sw - 1 + left + right) // dw + 1
    out = relay.reshape(out, [n, c // groups, k, rows, columns])
    out = relay.transpose(relay.sum(out, axis=0), [1, 0, 2, 3])
    if rows > r or columns > s:
        out = relay.strided_slice(out, begin=[0, 0, 0, 0], end=[k, c // groups, r, s])
    return out


def without_widths(mod: relay.IRModule) -> relay.IRModule:
    """Attributes as 0.8 has them: an integer of 64 bits is printed as one of 32."""

    def narrow(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(narrow, value))
        return int(value) if isinstance(value, np.int64) else value

    def change(_: Any, new: Any) -> Any:
        if not isinstance(new, relay.Call) or isinstance(new.attrs, MetaAttrs):
            return new
        return replace(new, attrs={name: narrow(v) for name, v in new.attrs.items()})

    held = {name: rewrite(f, change) for name, f in mod.functions.items()}
    return relay.IRModule(held, mod.type_definitions, metadata=mod.metadata)  # type: ignore[arg-type]


def typed(mod: relay.IRModule) -> relay.IRModule:
    return T.InferType()(mod)
