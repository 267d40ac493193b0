"""What TVM 0.8 to 0.18 printed otherwise than 0.19, and how it reads today: one row for each.

All of them print version 0.0.5, so a text does not say by its first line whose it is.  Its metadata
does (`tvm_version`); so may the caller.  Where neither does, the text is taken for 0.19's, and what
only another release can have printed is still understood; but then, as it is another's, what has
changed its meaning since is refused and not guessed.  docs/reference/dialects.md has the rows, with
their sources.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from lark import Token

from ...releases import Release
from ..ast import MetaAttrs, Op
from ..boxed_values import unboxed
from ..errors import Complaint
from ..records import REGISTRY
from ..types import TensorType, Type
from .attribute_kinds import FIELDS

_SAID = re.compile(r'"attrs":\s*\{\s*"tvm_version":\s*"([^"\\]{0,200})"\s*\}\s*\}\s*\Z')
_TAIL = 400  # characters of the metadata that hold it


ANY_RELEASE = Release(8, 19)  # what a text of an unknown release is taken for


def release_of(given: str | None, metadata: str) -> Release | None:
    """The release that the caller names, else the one that the metadata names, if any.

    Raises TypeError, ValueError for a name that is no version of TVM.
    """
    if given is not None:
        return Release.given(given)
    said = _SAID.search(metadata[-_TAIL:])
    return Release.named(said[1]) if said is not None else None


# ---- operators -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Renamed:
    """Another name, until 0.`last`: today's, with these attributes besides."""

    last: int
    name: str
    attrs: Mapping[str, Any]


@dataclass(frozen=True)
class Gone:
    """Nothing of today's means it, since 0.`last` + 1."""

    last: int
    why: str


RENAMED = {
    "scatter": Renamed(11, "scatter_elements", {"reduction": "update"}),
    "scatter_add": Renamed(11, "scatter_elements", {"reduction": "add"}),
}

_RESIZE = Gone(7, "resize2d, which rounds to the nearest pixel by other rules")
_NPU = Gone(18, "no operators for Arm's NPUs are left")
GONE = {
    "image.resize": _RESIZE,
    "dyn.image.resize": _RESIZE,
    "vm.shape_func": Gone(8, "calls are lowered to call_lowered"),
    "contrib.ethosu.conv2d": _NPU,
    "contrib.ethosu.depthwise_conv2d": _NPU,
    "contrib.ethosu.pooling": _NPU,
    "contrib.ethosu.binary_elementwise": _NPU,
    "contrib.ethosu.unary_elementwise": _NPU,
    "contrib.ethosu.identity": _NPU,
}

_PLACED = "places are virtual devices, which need a target"
GONE_ATTRS = {
    ("on_device", "device_type"): Gone(8, _PLACED),
    ("on_device", "is_fixed"): Gone(8, _PLACED),
    ("device_copy", "src_dev_type"): Gone(8, _PLACED),
    ("device_copy", "dst_dev_type"): Gone(8, _PLACED),
    ("memory.alloc_storage", "device_type"): Gone(8, _PLACED),
    ("memory.alloc_storage", "device_id"): Gone(8, _PLACED),
    ("reshape", "reverse"): Gone(7, "the operator contrib_reverse_reshape has it"),
    ("nn.pad", "pad_value"): Gone(7, "the value is the second argument"),
    ("vision.non_max_suppression", "max_output_size"): Gone(7, "the size is an argument"),
    ("vision.non_max_suppression", "iou_threshold"): Gone(7, "the threshold is an argument"),
}

# Of functions.
GONE_FUNCTION_ATTRS = {
    "param_device_types": Gone(8, _PLACED),
    "result_device_type": Gone(8, _PLACED),
}


# ---- the weights of transposed convolutions ---------------------------------------------------

_LETTERS = str.maketrans("IOio", "OIoi")
_OWN = "kernel_layout"
_SQUARE, _DEFAULT = "nn.conv2d_transpose", "IOHW"  # since 0.12


def _exchanged(attrs: dict[str, Any]) -> None:
    """What was called O were the images' channels: today's I.

    Raises ValueError where types went by the layout and kernels did not: they knew it with images
    whose channels are last.
    """
    if str(attrs.get("data_layout", "NC")).startswith("NC"):
        raise ValueError("its type and its kernel read the weight in two ways")
    attrs[_OWN] = str(attrs[_OWN]).translate(_LETTERS)


def _was_oihw(attrs: dict[str, Any]) -> None:
    """The default was OIHW, which meant it, and Python's functions wrote IOHW."""
    attrs.setdefault(_OWN, "OIHW")


@dataclass(frozen=True)
class Meaning:
    """What attributes meant from 0.`first` to 0.`last`; `written` says which calls it concerns,
    those that have the layout or those that leave it out."""

    op: str
    first: int
    last: int
    written: bool
    today: Callable[[dict[str, Any]], None]
    why: str


_LABELS = "its weight's I was called O, and O was called I"
MEANINGS = (
    Meaning("nn.conv1d_transpose", 0, 11, True, _exchanged, _LABELS),
    Meaning("nn.conv3d_transpose", 0, 11, True, _exchanged, _LABELS),
    Meaning(_SQUARE, 0, 7, True, _exchanged, _LABELS),
    Meaning(_SQUARE, 8, 11, False, _was_oihw, "its weight was OIHW by default"),
)


# ---- one text --------------------------------------------------------------------------------


@dataclass
class Dialect:
    """How the text that is being read is understood: by its release, if that is known."""

    release: Release | None = None
    # Of an unknown release: what another than 0.19 must have printed, and what it may have meant.
    marks: list[str] = field(default_factory=list)
    doubts: list[Complaint] = field(default_factory=list)
    # Whether variables, and calls, have had types in comments; None where there was none of them.
    typed_variables: bool | None = None
    typed_calls: bool = False

    def _applies(self, last: int, first: int = 0) -> bool | None:
        """Whether the text is of 0.`last` or older; None if it may be."""
        return (self.release or ANY_RELEASE).within(first, last)

    def settle(self) -> None:
        """At the text's end.  Raises Complaint for what is another's, and not known whose."""
        if self.typed_calls and self.typed_variables is False:
            self.marks.append("types of calls and none of variables, as 0.8 has")
        if self.release is None and self.marks and self.doubts:
            doubt = min(self.doubts, key=lambda complaint: complaint.offset)
            raise Complaint(
                doubt.offset,
                f"{doubt.problem}; the text has {self.marks[0]}, so it is not 0.19's:"
                " name its release, fromtext(text, release=…)",
            )

    def _doubt(self, offset: int, problem: str) -> None:
        complaint = Complaint(offset, problem)
        if self.release is not None:
            release = self.release
            told = f"the text is of TVM 0.{release.low} or 0.{release.high}"
            raise Complaint(offset, f"{problem}; {told}: name the one, fromtext(text, release=…)")
        self.doubts.append(complaint)

    # -- calls

    def call(self, offset: int, op: Any, attrs: Any) -> tuple[Any, Any]:
        """The operator and the attributes that a call has today.

        Raises Complaint for what nothing of today's means, with the last release that had it.
        """
        if not isinstance(op, Op):
            return op, attrs
        attrs = self._in_the_call(op.name, attrs)
        self.operator(op.name, offset)
        for name in attrs:
            if (gone := GONE_ATTRS.get((op.name, name))) is not None:
                raise _refused(offset, f"{op.name}'s {name}", gone)
        row = RENAMED.get(op.name)
        if row is not None and self._applies(row.last) is False:
            what = f"the operator {op.name} in a text of a later release"
            raise _refused(offset, what, Gone(row.last, f"it is {row.name}"))
        if row is not None:
            self.marks.append(f"the operator {op.name}")
            return Op(row.name), {**_values(attrs), **row.attrs}
        written = op.name == _SQUARE and attrs.get(_OWN) == _DEFAULT
        for meaning in MEANINGS:
            if meaning.op == op.name:
                attrs = self._meant(meaning, offset, attrs)
        if written and self._applies(11) is not False:
            # No printer since writes it, nor does this package's, which must read its own texts.
            self.marks.append(f"{op.name} with {_OWN}={_DEFAULT}, its default")
            attrs = {name: value for name, value in _values(attrs).items() if name != _OWN}
        return op, attrs

    def operator(self, name: str, offset: int) -> None:
        """Raises Complaint for an operator that is gone."""
        if (gone := GONE.get(name)) is not None:
            raise _refused(offset, f"the operator {name}", gone)

    def _in_the_call(self, name: str, attrs: Any) -> Any:
        """Attributes of the metadata as those of a call, where they are the operator's: but for
        operators whose attributes are in the metadata today too, and a pool's."""
        row = RENAMED.get(name)
        op = REGISTRY.get(name if row is None else row.name)
        if not isinstance(attrs, MetaAttrs) or op is None or op.meta is not None:
            return attrs
        kinds, fields = {attr.name: attr for attr in op.attrs}, FIELDS.get(attrs.type_key)
        if fields is None or "pool_size" in fields or not fields.keys() <= kinds.keys():
            return attrs
        return {
            name: value
            for name, value in _values(attrs).items()
            if kinds[name].printed_always
            or not (kinds[name].is_default(value) or (kinds[name].kind == "dtype" and not value))
        }

    def _meant(self, meaning: Meaning, offset: int, attrs: Any) -> Any:
        if (_OWN in attrs) is not meaning.written:
            return attrs
        applies = self._applies(meaning.last, meaning.first)
        if applies is None:
            which = f"from 0.{meaning.first} to" if meaning.first else "until"
            self._doubt(offset, f"{meaning.op}: {which} 0.{meaning.last} {meaning.why}")
        if not applies:
            return attrs
        made = _values(attrs)
        try:
            meaning.today(made)
        except ValueError as error:
            what = f"{meaning.op} with {_OWN}={made[_OWN]!r}"
            text = f"not supported: {what}, of TVM 0.{meaning.last} and older: {error}"
            raise Complaint(offset, text, what) from None
        return made

    # -- functions

    def variable(self, checked: Type | None) -> None:
        """Notes a variable that is bound, and whether it has a type comment."""
        self.typed_variables = bool(self.typed_variables) or checked is not None

    def function(self, offset: int, attrs: Mapping[str, Any]) -> None:
        """Raises Complaint for attributes of a function that nothing of today's means."""
        for name in attrs:
            if (gone := GONE_FUNCTION_ATTRS.get(name)) is not None:
                raise _refused(offset, f"the function's {name}", gone)

    # -- literals

    def scalar(self, token: Token, value: Any, checked: Type | None) -> Any:
        """A number; until 0.8 its type comment alone said that it has 64 bits."""
        bare = isinstance(value, np.int32) and not set("if") & set(token)
        if not bare or checked != TensorType((), "int64") or self._applies(8) is False:
            return value
        self.marks.append("an int64 written without i64")
        return np.int64(value)

    def strings(self, text: str) -> str:
        """The text with strings as they are written today: until 0.8 a backslash was itself."""
        if "\\" not in text:
            return text
        old = self._applies(8)
        if old is True:
            return _STRINGS.sub(_escaped, text)
        for found in _STRINGS.finditer(text) if old is None else ():
            if found[0][0] == '"' and "\\" in found[0]:
                self._doubt(found.start(), "until 0.8 a backslash in a string was itself")
        return text


_STRINGS = re.compile(r'"[^"]*"|//[^\n]*|/\*[\s\S]*?\*/|\#\[metadata\][\s\S]*')


def _escaped(found: re.Match[str]) -> str:
    text = found[0]
    if text[0] != '"':
        return text
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _values(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: unboxed(value) for name, value in attrs.items()}


def _refused(offset: int, what: str, gone: Gone) -> Complaint:
    text = f"not supported: {what}, of TVM 0.{gone.last} and older; since then {gone.why}"
    return Complaint(offset, text, what)
