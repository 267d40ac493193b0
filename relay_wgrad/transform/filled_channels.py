"""Channels that are no whole packs of 16 bytes are filled up with zeros, from one convolution on to
the next.

A GPU reads 16 bytes at once: 8 channels of half precision.  Of 26 channels cuDNN copies operands
and result of each convolution into tensors of 32 and back, which takes longer than the convolution,
and kernels of normalizations and joins read a row's elements one by one.  Here the filters that
make such a tensor are filled up with zeros, and so are the numbers of its normalization and the
channels of the filters that read it: what lies between has more channels, of which the new ones are
never looked at.

For a forward function, before it is differentiated: the parameters stay, what is filled up is made
of them, and their gradients are cut.  Tensors that are cut and joined along channels have the same
packs: with pieces of 26 a tensor of 104 is four of 32.

Every value stays.  The new channels are products with zeros, normalized with gamma and beta 0, and
so are 0, as their gradients are.  Where an image is not finite they may be NaN; then all of a
convolution's results are not finite there, and the normalization by the batch's statistics, without
which no convolution is taken, makes NaN of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import relax

from ..graph.def_use import Graph
from ..graph.rebuild import Writer, substitute, with_bindings
from ..graph.walk import dataflow_block, variables_of
from ..ir import op_name
from ..layout_rules.in_layout import sizes_of
from ..ops.resample import NAME as RESAMPLE
from ..ops.train_norm import FORWARD as NORM
from .space_to_depth import FPROP_NAME

PACK = 8
"""Channels of half precision that are read at once."""
LEAST = 12
"""Channels; fewer are another matter (`space_to_depth`, kernels for few filters)."""
MOST_MORE = 4 / 3
"""What a tensor may grow by: a normalization's tensors are read and written 8 times, where a
convolution's copies are 3 to 5 passes of each of its tensors."""

_SPLIT, _CONCAT, _MEAN = "relax.split", "relax.concat", "relax.mean"
# Element by element and by windows of pixels, finite where their operand is 0.
_ELEMENTS = frozenset({
    "relax.add", "relax.multiply", "relax.maximum", "relax.minimum", "relax.astype", "relax.clip",
    "relax.nn.relu", "relax.nn.leakyrelu", "relax.nn.silu", "relax.nn.gelu", "relax.nn.gelu_tanh",
    "relax.sigmoid", "relax.tanh",
})  # fmt: skip
_WINDOWS = frozenset({
    "relax.nn.avg_pool2d", "relax.nn.max_pool2d", "relax.nn.adaptive_avg_pool2d",
})  # fmt: skip
_AXIS = 1  # of channels


class Fill(NamedTuple):
    """Packs of `width` channels become such of `filled`."""

    width: int
    filled: int

    def of(self, channels: int) -> int:
        """How many channels become of so many."""
        return channels // self.width * self.filled


def filled_channels(mod: tvm.IRModule, fn: str, keep: Collection[str] = ()) -> tvm.IRModule:
    """The module with channels in whole packs in `fn`, of one dataflow block, in NCHW.

    keep : names of variables that stay as they are.
    """
    func = mod[fn]
    if dataflow_block(func) is None:
        return mod
    fills = _Found(Graph(func), keep).fills()
    if not fills:
        return mod
    out = mod.clone()
    out[fn] = _Rewriter(Graph(func), fills).function()
    return out


def _channels(var: Any) -> int | None:
    """The channels of a variable of four axes, if they are known; a constant stays as it is."""
    sizes = sizes_of(getattr(var, "ty", None)) if isinstance(var, relax.Var) else None
    known = sizes is not None and len(sizes) == 4 and isinstance(sizes[_AXIS], int)
    return int(sizes[_AXIS]) if sizes is not None and known else None


class _Found:
    """Which images have the same packs: those of one set do.

    A convolution of one group is where a set ends and another begins.  A set is left alone if
    something else makes or reads one of its images.
    """

    def __init__(self, view: Graph, keep: Collection[str]) -> None:
        self.view, self.keep = view, keep
        self.parent: dict[relax.Var, relax.Var] = {}
        self.good: set[relax.Var] = set()  # made by what is known here
        self.bad: set[relax.Var] = set()  # made or read by something else
        self.convs: set[relax.Var] = set()  # read or made by a convolution
        for binding in view.bindings:
            self._add(binding)

    def fills(self) -> dict[relax.Var, Fill]:
        """Of each image whose channels are filled up its packs."""
        sets: dict[relax.Var, list[relax.Var]] = {}
        for var in list(self.parent):
            sets.setdefault(self._root(var), []).append(var)
        found: dict[relax.Var, Fill] = {}
        for images in sets.values():
            fill = self._fill(images)
            if fill is not None:
                found |= dict.fromkeys(images, fill)
        return found

    def _fill(self, images: list[relax.Var]) -> Fill | None:
        names = {str(var.name) for var in images}
        left = names.intersection(self.keep) or self.view.results.intersection(images)
        if left or self.bad.intersection(images) or not self.good.issuperset(images):
            return None
        if not self.convs.intersection(images) or not all(map(self._is_finite, images)):
            return None
        width = math.gcd(*(_channels(var) or 0 for var in images))
        filled = -(-width // PACK) * PACK
        if width == filled or width < LEAST or filled > MOST_MORE * width:
            return None
        return Fill(width, filled)

    def _is_finite(self, image: relax.Var) -> bool:
        """Whether an image is no convolution's, or all that reads it is a normalization."""
        if self.view.call(image, FPROP_NAME) is None:
            return True
        users = self.view.users_of(image)
        return all(op_name(b.value) == NORM and b.value.args[0].same_as(image) for b in users)

    # ---- sets ------------------------------------------------------------------------------------

    def _root(self, var: relax.Var) -> relax.Var:
        while not (up := self.parent.setdefault(var, var)).same_as(var):
            var = up
        return var

    def _one(self, *images: relax.Var) -> None:
        first, *rest = map(self._root, images)
        for root in rest:
            self.parent[root] = first

    def _add(self, binding: Any) -> None:
        var, value, name = binding.var, binding.value, op_name(binding.value)
        if isinstance(value, relax.TupleGetItem):
            return  # with the call that it is of
        read = [arg for arg in variables_of(value) if _channels(arg) is not None]
        if isinstance(binding, relax.VarBinding) and self._is_known(var, value, name):
            return
        self.bad.update(read)
        if _channels(var) is not None:
            self.bad.add(self._seen(var))

    def _seen(self, var: relax.Var) -> relax.Var:
        self._root(var)
        return var

    def _is_known(self, var: relax.Var, value: Any, name: str) -> bool:
        if name == FPROP_NAME:
            return self._conv(var, value)
        if name == NORM:
            return self._norm(var, value)
        if name in (_SPLIT, _CONCAT):
            return self._pieces(var, value, name)
        if name == _MEAN:
            axes = value.attrs.axis
            over = axes is not None and sorted(int(a) % 4 for a in axes) == [2, 3]
            return over and bool(value.attrs.keepdims) and self._alike(var, [value.args[0]])
        if name == RESAMPLE:
            return int(value.attrs["axis"]) in (2, 3) and self._alike(var, [value.args[0]])
        if name in _WINDOWS:
            layout = str(getattr(value.attrs, "layout", ""))
            return layout == "NCHW" and self._alike(var, [value.args[0]])
        if name not in _ELEMENTS:
            return False
        return self._alike(var, [arg for arg in value.args if not _is_number(arg)])

    def _alike(self, var: relax.Var, images: list[Any]) -> bool:
        same = _channels(var)
        if same is None or not images or any(_channels(image) != same for image in images):
            return False
        self._one(var, *images)
        self.good.add(var)
        return True

    def _conv(self, var: relax.Var, value: Any) -> bool:
        data, weight = value.args
        attrs = value.attrs
        plain = (str(attrs.data_layout), str(attrs.kernel_layout)) == ("NCHW", "OIHW")
        sizes = sizes_of(weight.ty)
        numbers = sizes is not None and all(isinstance(n, int) for n in sizes)
        known = _channels(data) is not None and _channels(var) is not None
        if not plain or not numbers or not known or int(attrs.groups) != 1:
            return False
        self.convs |= {self._seen(data), self._seen(var)}
        self.good.add(var)
        return True

    def _norm(self, var: relax.Var, value: Any) -> bool:
        attrs = value.attrs
        if int(attrs["axis"]) != _AXIS or self.view.is_whole(var):
            return False
        fields = dict(self.view.fields_of(var))
        given = [arg for arg in value.args if getattr(arg.ty, "ndim", 0) == 4]
        made = [field for index, field in self.view.fields_of(var) if index == 0]
        if 0 not in fields or any(_channels(v) is None for v in (*given, *made)):
            return False
        self._one(*given, *made)
        self.good.update(made)
        return True

    def _pieces(self, var: relax.Var, value: Any, name: str) -> bool:
        if value.attrs.axis is None:
            return False
        if name == _CONCAT:
            operands = self.view.bound_to(value.args[0])
            pieces, whole = list(getattr(operands, "fields", ())), var
        else:
            pieces, whole = [field for _, field in self.view.fields_of(var)], value.args[0]
        if not pieces or (name == _SPLIT and self.view.is_whole(var)):
            return False
        if any(_channels(piece) is None for piece in (*pieces, whole)):
            return False
        if int(value.attrs.axis) % 4 != _AXIS:
            return False
        if name == _SPLIT:  # a part that nobody reads is cut too
            widths = [int(ty.shape.values[_AXIS]) for ty in value.ty.fields]
            if len(widths) != len({index for index, _ in self.view.fields_of(var)}):
                return False
        self._one(whole, *pieces)
        self.good.update([whole] if name == _CONCAT else pieces)
        return True


def _is_number(arg: Any) -> bool:
    """Whether an operand is one number for all elements."""
    return not getattr(getattr(arg, "ty", None), "ndim", 0)


class _Rewriter:
    """Writes the function; `values` has the new variables of what is filled up."""

    def __init__(self, view: Graph, fills: dict[relax.Var, Fill]) -> None:
        self.view, self.fills = view, fills
        self.writer = Writer(dataflow_block(view.func))
        self.values: dict[relax.Var, Any] = {}

    def function(self) -> relax.Function:
        for binding in self.view.bindings:
            self._write(binding)
        return with_bindings(self.view.func, self.writer.bindings)

    def _write(self, binding: Any) -> None:
        var, value, name = binding.var, binding.value, op_name(binding.value)
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self.values:
            self._field(binding)
        elif name == FPROP_NAME:
            self._conv(binding)
        elif name in (NORM, _SPLIT):
            fields = [field for _, field in self.view.fields_of(var)]
            fill = next((self.fills[field] for field in fields if field in self.fills), None)
            if fill is None:
                self.writer.keep(binding, self.values)
            else:
                new = self._normalized(value, fill) if name == NORM else self._split(value, fill)
                self.values[var] = self.writer.emit(str(var.name), new, binding.span)
        elif var in self.fills:
            new = substitute(value, self.values)
            self.values[var] = self.writer.emit(str(var.name), new, binding.span)
        else:
            self.writer.keep(binding, self.values)

    def _field(self, binding: Any) -> None:
        """A piece of a cut, a normalization's result, or its statistics, which are cut."""
        var, value = binding.var, binding.value
        item = relax.TupleGetItem(self.values[value.tuple_value], value.index)
        if var in self.fills:
            self.values[var] = self.writer.emit(str(var.name), item, binding.span)
            return
        whole = self.writer.emit(str(var.name), item, binding.span)
        y = next(field for index, field in self.view.fields_of(value.tuple_value) if index == 0)
        self.writer.bind(var, self._cut(whole, self.fills[y]), binding.span)

    def _conv(self, binding: Any) -> None:
        var, value = binding.var, binding.value
        data, weight = value.args
        over = {0: self.fills.get(var), 1: self.fills.get(data)}
        if not any(over.values()):
            self.writer.keep(binding, self.values)
            return
        filled = self._filled(weight, {axis: fill for axis, fill in over.items() if fill})
        args = [self.values.get(data, data), filled]
        new = relax.Call(value.op, args, value.attrs, value.ty_args)
        if over[0] is None:
            self.writer.bind(var, new, binding.span)
        else:
            self.values[var] = self.writer.emit(str(var.name), new, binding.span)

    def _normalized(self, value: Any, fill: Fill) -> relax.Call:
        args = [
            self._filled(arg, {0: fill}) if _channels(arg) is None else self.values[arg]
            for arg in value.args
        ]
        return relax.Call(value.op, args, value.attrs, value.ty_args)

    def _split(self, value: Any, fill: Fill) -> relax.Call:
        widths = [fill.of(int(ty.shape.values[_AXIS])) for ty in value.ty.fields]
        places = list(np.cumsum(widths)[:-1].tolist())
        whole = self.values[value.args[0]]
        new: relax.Call = relax.op.split(whole, places, int(value.attrs.axis))
        return new

    # ---- packs of parameters ---------------------------------------------------------------------

    def _filled(self, value: Any, fills: dict[int, Fill]) -> Any:
        """A filter or vector with zeros behind each of an axis' packs."""
        for axis, fill in fills.items():
            value = self._filled_axis(value, axis, fill)
        return value

    def _filled_axis(self, value: Any, axis: int, fill: Fill) -> Any:
        def made() -> Any:
            return self._with_zeros(value, axis, fill)

        return self.writer.emit_once((value, axis, fill), lambda: "filled", made)

    def _with_zeros(self, value: Any, axis: int, fill: Fill) -> Any:
        sizes = [int(n) for n in value.ty.shape.values]
        packs, at = sizes[axis] // fill.width, axis + 1
        apart = self.writer.emit("packs", _in_packs(value, axis, fill.width))
        shape = [int(n) for n in apart.ty.shape.values]
        shape[at] = fill.filled - fill.width
        zeros = self.writer.emit("zeros", relax.op.zeros(shape, str(value.ty.dtype)))
        whole = self.writer.emit("packs", relax.op.concat([apart, zeros], at))
        sizes[axis] = packs * fill.filled
        return relax.op.reshape(whole, sizes)

    def _cut(self, value: Any, fill: Fill) -> Any:
        """A vector without what was filled up, as the gradient of what fills it is."""
        packs = self.writer.emit("packs", _in_packs(value, 0, fill.filled))
        parts = self.writer.emit("parts", relax.op.split(packs, [fill.width], 1))
        kept = self.writer.emit("packs", relax.TupleGetItem(parts, 0))
        channels = int(value.ty.shape.values[0]) // fill.filled * fill.width
        return relax.op.reshape(kept, (channels,))


def _in_packs(value: Any, axis: int, width: int) -> Any:
    """A tensor with packs as an axis of their own; that of their elements is not the last one, by
    which images' channels are joined and cut."""
    sizes = [int(n) for n in value.ty.shape.values]
    rest = sizes[axis + 1 :] or [1]
    return relax.op.reshape(value, [*sizes[:axis], sizes[axis] // width, width, *rest])
