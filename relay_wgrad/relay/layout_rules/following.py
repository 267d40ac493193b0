"""In which layouts an operator takes its operands, and gives its results: Relay's rules by name.

A rule is asked twice: of the old program, then with the layouts in which the operands come in the
new one.  It gives None where it can't tell; the operator then has its operands in the old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..records import REGISTRY, RelayOp
from ..records.facts import OpPattern
from ..types import TensorType, Type
from .convert import ROLES
from .named import Layout, Layouts, like

SCALAR = Layout(())


@dataclass(frozen=True)
class Inferred:
    """Layouts of operands (of fields, where one is a tuple) and results, and changed attributes."""

    inputs: Sequence[Layout]
    outputs: Sequence[Layout]
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """A call's complete attributes, its operands' old types, and their layouts.

    `new` is None when the old program is asked.
    """

    op: str
    attrs: Mapping[str, Any]
    types: Sequence[Type]
    result: Type
    old: Layouts
    new: Layouts | None

    def shape(self, index: int) -> tuple[Any, ...]:
        """An operand's old shape."""
        ty = self.types[index]
        assert isinstance(ty, TensorType)
        return ty.shape

    def first_layout(self) -> Layout | None:
        """The first operand's layout, the new one if there is one."""
        return self.old[0] if self.new is None else self.new[0]


Rule = Callable[[Asked], "Inferred | None"]


def _convolution(asked: Asked) -> Inferred | None:
    """By its attributes, wherever its operands come from."""
    names, out = ROLES[asked.op].layouts(asked.attrs)
    return Inferred([Layout.parse(name) for name in names], [Layout.parse(out)])


def _pool(asked: Asked) -> Inferred | None:
    layout = Layout.parse(str(asked.attrs["layout"]))
    changes: dict[str, Any] = {}
    new = asked.new[0] if asked.new is not None else None
    if new is not None and new.fits(layout) and not (new.is_split("H") or new.is_split("W")):
        layout, changes = new, {"layout": new.name}
        if asked.attrs.get("out_layout"):
            changes["out_layout"] = new.name
    return Inferred([layout] * len(asked.old), [layout], changes)


def _elementwise(asked: Asked) -> Inferred | None:
    layout = asked.first_layout()
    return None if layout is None else Inferred([layout], [layout])


def _broadcast(asked: Asked) -> Inferred | None:
    shapes = [asked.shape(0), asked.shape(1)]
    large = 0 if len(shapes[0]) >= len(shapes[1]) else 1
    small = 1 - large
    old = list(asked.old)
    known, other = old[large], old[small]
    if known is None:
        return None if other is None or len(shapes[0]) != len(shapes[1]) else _like(asked, small)
    if other is None and len(shapes[small]) < len(known) and set(shapes[small]) <= {1}:
        other = SCALAR  # one number, which broadcasts to any layout
    if other is None:
        other = known.last(len(shapes[small]))
    if other is None:
        return None
    pair = {large: known, small: other}
    if asked.new is None:
        return Inferred([pair[0], pair[1]], [known])
    return _changed(asked, pair, large)


def _like(asked: Asked, known: int) -> Inferred | None:
    """Both have as many axes, and one's layout is not known."""
    layout = asked.old[known]
    assert layout is not None
    if asked.new is None:
        return Inferred([layout, layout], [layout])
    return _changed(asked, {0: layout, 1: layout}, 0)


def _changed(asked: Asked, old: dict[int, Layout], large: int) -> Inferred | None:
    """The smaller operand changed as the larger one was."""
    assert asked.new is not None
    new = [asked.new[i] or old[i] for i in range(2)]
    if len(new[1 - large].primal_axes) > len(new[large].primal_axes):
        return None
    small = 1 - large
    target = like(old[small], old[large], new[large])
    if target is None:
        return None
    shape, axes = asked.shape(small), []
    for axis, block in target.axes:
        place = old[small].index_of(axis)
        one = place < 0 or (shape[place] == 1 and not old[small].is_split(axis))
        axes.append((axis, 1 if block and one else block))
    pair = {large: new[large], small: Layout(tuple(axes))}
    return Inferred([pair[0], pair[1]], [new[large]])


def _transpose(asked: Asked) -> Inferred | None:
    old, new = asked.old[0], asked.first_layout()
    if old is None or any(block for _, block in old.axes):
        return None
    count = len(old)
    axes = [axis % count for axis in asked.attrs["axes"] or reversed(range(count))]
    layout, changes = old, {}
    if new is not None and len(new) == count and new.fits(old):
        layout = new
        if new != old:
            changes = {"axes": tuple(new.index_of(old.axes[axis][0]) for axis in axes)}
            axes = list(changes["axes"])
    return Inferred([layout], [Layout(tuple(layout.axes[a] for a in axes))], changes)


def _pad(asked: Asked) -> Inferred | None:
    old, new = asked.old[0], asked.first_layout()
    if old is None or any(block for _, block in old.axes) or new is None:
        return None
    widths = {a: tuple(w) for (a, _), w in zip(old.axes, asked.attrs["pad_width"], strict=True)}
    if new == old or not new.fits(old) or any(new.is_split(a) and any(widths[a]) for a in widths):
        return Inferred([old, SCALAR], [old])
    return Inferred([new, SCALAR], [new], {"pad_width": tuple(widths[a] for a, _ in new.axes)})


def _reduce(asked: Asked) -> Inferred | None:
    old, new = asked.old[0], asked.first_layout()
    if old is None or new is None or any(block for _, block in old.axes) or not new.fits(old):
        return None
    given, count = asked.attrs["axis"], len(old)
    named = {old.axes[axis % count][0] for axis in given or range(count)}
    exclude = bool(given) and bool(asked.attrs["exclude"])
    gone = {axis for axis, _ in old.axes if (axis in named) != exclude}
    if asked.op.startswith("arg") and (len(gone) > 1 or any(new.is_split(a) for a in gone)):
        return None
    out = []
    for axis, block in new.axes:
        if axis not in gone:
            out.append((axis, block))
        elif asked.attrs["keepdims"]:
            out.append((axis, 1 if block else 0))
    changes: dict[str, Any] = {}
    if new != old and given:
        changes["axis"] = tuple(i for i, (axis, _) in enumerate(new.axes) if axis in named)
    return Inferred([new], [Layout(tuple(out))], changes)


def _axis(asked: Asked) -> int | None:
    """Where the old `axis` is, which must be whole; None if it is not."""
    old, new = asked.old[0], asked.first_layout()
    if old is None or new is None or any(block for _, block in old.axes) or not new.fits(old):
        return None
    name = old.axes[asked.attrs["axis"] % len(old)][0]
    return None if new.is_split(name) else new.index_of(name)


def _concatenate(asked: Asked) -> Inferred | None:
    known = [layout for layout in asked.old if layout is not None]
    if not known or any(layout != known[0] for layout in known):
        return None
    old = known[0]
    if any(block for _, block in old.axes):
        return None
    layout, changes = old, {}
    if asked.new is not None and len(set(asked.new)) == 1:
        new = asked.new[0]
        if new is not None and new.fits(old) and new != old:
            # Each operand fills its blocks, so the outer parts follow each other.
            place = new.index_of(old.axes[asked.attrs["axis"] % len(old)][0])
            layout, changes = new, {"axis": place}
    return Inferred([layout] * len(asked.old), [layout], changes)


def _batch_norm(asked: Asked) -> Inferred | None:
    place, layout = _axis(asked), asked.first_layout()
    if place is None or layout is None:
        return None
    vector = Layout.parse("C")
    changes = {} if asked.new is None or layout == asked.old[0] else {"axis": place}
    return Inferred([layout, *[vector] * 4], [layout, vector, vector], changes)


def _strided_slice(asked: Asked) -> Inferred | None:
    old, new, a = asked.old[0], asked.first_layout(), asked.attrs
    if old is None or new is None or any(block for _, block in old.axes) or not new.fits(old):
        return None
    if asked.new is None or new == old:
        return Inferred([old], [old])
    begin, end, strides = (list(a[name] or ()) for name in ("begin", "end", "strides"))
    if a["slice_mode"] != "end" or len(begin) != len(end) or min(begin + end) < 0:
        return None
    if any(stride != 1 for stride in strides):
        return None
    axes = range(len(begin)) if a["axes"] is None else [axis % len(old) for axis in a["axes"]]
    names = [old.axes[axis][0] for axis in axes]
    if a["axes"] is None and new.axes[: len(old)] != old.axes:
        return None
    changes: dict[str, Any] = {"begin": [], "end": []}
    for i, name in enumerate(names):
        factor, size = new.factor(name), asked.shape(0)[axes[i]]
        last = min(end[i], size) if factor > 1 and isinstance(size, int) else end[i]
        if begin[i] % factor or last % factor:
            return None
        changes["begin"].append(begin[i] // factor)
        changes["end"].append(last // factor)
    if a["axes"] is not None:
        changes["axes"] = tuple(new.index_of(name) for name in names)
    return Inferred([new], [new], changes)


def _rule(op: RelayOp) -> Rule | None:
    if op.roles is not None:
        return _pool if op.roles.follows else _convolution
    if op.is_reduction:
        return _reduce
    if op.operands == 2:
        return _broadcast
    # Relay's kind of what is filled is this, too.
    return _elementwise if op.kind == OpPattern.ELEMWISE and op.inputs == ("data",) else None


RULES: dict[str, Rule] = {
    **{name: rule for name, op in REGISTRY.items() if (rule := _rule(op)) is not None},
    "transpose": _transpose, "nn.pad": _pad, "concatenate": _concatenate,
    "nn.batch_norm": _batch_norm, "strided_slice": _strided_slice,
}  # fmt: skip
