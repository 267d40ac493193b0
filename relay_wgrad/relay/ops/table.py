"""One record for each Relay operator: attributes with defaults, type relation, Relax builder.

A family's file makes records with `define`; `REGISTRY` holds them all once the package is imported.
Relations and builders see a `Call` or a `Site`: one call with its attributes read and complete.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, NoReturn

from tvm import DataType, relax

from ..types import ANY, Dim, FuncType, TensorType, TupleType, Type


class Required:
    """The default of an attribute that has none; there is one, `REQUIRED`."""

    def __repr__(self) -> str:
        return "required"


REQUIRED = Required()


def show(ty: Type) -> str:
    """A type as Relay prints it."""
    if isinstance(ty, TensorType):
        return f"Tensor[{show_shape(ty.shape)}, {ty.dtype}]" if ty.shape else ty.dtype
    if isinstance(ty, FuncType):
        return f"fn ({', '.join(map(show, ty.arg_types))}) -> {show(ty.ret_type)}"
    return f"({', '.join(map(show, ty.fields))}{',' if len(ty.fields) == 1 else ''})"


def show_shape(shape: Sequence[Dim]) -> str:
    """Dimensions in parentheses, as Relay prints them."""
    return f"({', '.join(map(str, shape))})"


# ---- attributes ------------------------------------------------------------------------------


def _int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError("an integer")
    return int(value)


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError("a number")
    return float(value)


def _bool(value: Any) -> bool:
    # Metadata spells booleans 0 and 1.
    if not isinstance(value, (bool, Integral)) or int(value) not in (0, 1):
        raise TypeError("a bool")
    return bool(value)


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a string")
    return str(value)


def _dtype(value: Any) -> str | None:
    # Metadata spells "that of the operands" as the empty string.
    if value is None or value == "":
        return None
    try:
        return str(DataType(value))
    except (TypeError, ValueError):
        raise TypeError("the name of a dtype") from None


def _ints(value: Any) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError("a list of integers")
    try:
        return tuple(_int(v) for v in value)
    except TypeError:
        raise TypeError("a list of integers") from None


def _sizes(value: Any) -> tuple[int, ...]:
    """A list of integers; Relay's Python API also takes one integer for all of them."""
    try:
        return (_int(value),)
    except TypeError:
        return _ints(value)


def _pairs(value: Any) -> tuple[tuple[int, ...], ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError("a list of lists of integers")
    try:
        return tuple(_ints(v) for v in value)
    except TypeError:
        raise TypeError("a list of lists of integers") from None


def _sections(value: Any) -> int | tuple[int, ...]:
    try:
        return _int(value)
    except TypeError:
        pass
    try:
        return _ints(value)
    except TypeError:
        raise TypeError("an integer or a list of integers") from None


# What an attribute may be; a question mark also admits None.
KINDS: dict[str, Callable[[Any], Any]] = {
    "int": _int,
    "float": _float,
    "bool": _bool,
    "str": _str,
    "dtype": _dtype,
    "ints": _ints,
    "sizes": _sizes,
    "pairs": _pairs,
    "sections": _sections,
}


@dataclass(frozen=True)
class Attr:
    """One attribute: its default, or `REQUIRED`; its kind, one of `KINDS`, with `?` if None is one.

    Relay's text leaves out an attribute that has its default, but for `always`.
    """

    name: str
    default: Any
    kind: str
    always: bool = False

    @property
    def printed_always(self) -> bool:
        """Whether Relay's text has it even at its default."""
        return self.always or self.default is REQUIRED

    def read(self, op: str, value: Any) -> Any:
        """The value as relations take it; TypeError naming op, attribute and value."""
        if value is None and (self.kind.endswith("?") or self.kind == "dtype"):
            return None
        try:
            return KINDS[self.kind.rstrip("?")](value)
        except TypeError as wanted:
            also = " or None" if self.kind.endswith("?") else ""
            raise TypeError(f"{op}: {self.name} must be {wanted}{also}, got {value!r}") from None


# ---- one call --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A call's operator, argument types and complete attributes, as a type relation sees them."""

    op: str
    inputs: tuple[str, ...]
    types: tuple[Type, ...]
    attrs: Mapping[str, Any]

    def fail(self, message: str) -> NoReturn:
        """Refuses the call."""
        raise ValueError(f"{self.op}: {message}")

    def tensor(self, index: int = 0) -> TensorType:
        """An argument's type, which must be a tensor."""
        ty = self.types[index]
        if not isinstance(ty, TensorType):
            raise TypeError(f"{self.op}: {self.inputs[index]} must be a tensor, got {show(ty)}")
        return ty

    def fields(self, index: int = 0) -> list[TensorType]:
        """The fields of an argument that must be a tuple of tensors, at least one."""
        ty = self.types[index]
        if not isinstance(ty, TupleType):
            raise TypeError(
                f"{self.op} requires a tuple of tensors as the first argument, found {show(ty)}"
            )
        if not ty.fields:
            self.fail(f"{self.inputs[index]} must have at least one tensor, got ()")
        out = []
        for field in ty.fields:
            if not isinstance(field, TensorType):
                raise TypeError(
                    f"{self.op}: {self.inputs[index]} must be a tuple of tensors, got {show(ty)}"
                )
            out.append(field)
        return out

    def axis(self, value: int, ndim: int, name: str = "axis") -> int:
        """A non-negative axis below ndim."""
        if not -ndim <= value < ndim:
            self.fail(f"{name} must be in [-ndim, ndim), got {name}={value} and ndim={ndim}")
        return value % ndim

    def same_dtype(self, *indices: int) -> str:
        """The one dtype of these arguments."""
        first = self.tensor(indices[0])
        for index in indices[1:]:
            if self.tensor(index).dtype != first.dtype:
                self.fail(
                    f"{self.inputs[indices[0]]} and {self.inputs[index]} must have the same dtype,"
                    f" got {show(first)} and {show(self.tensor(index))}"
                )
        return first.dtype

    def must_be(self, index: int, wanted: TensorType, why: str) -> None:
        """An argument's type is determined by another's; `?` fits everything."""
        got = self.tensor(index)
        fits = got.dtype == wanted.dtype and len(got.shape) == len(wanted.shape)
        if not fits or any(
            a is not ANY and b is not ANY and a != b
            for a, b in zip(got.shape, wanted.shape, strict=True)
        ):
            self.fail(f"{self.inputs[index]} must be {show(wanted)} {why}, got {show(got)}")


@dataclass(frozen=True)
class Site(Call):
    """A call with its arguments as Relax expressions and the place to put new ones."""

    bb: Any
    args: tuple[Any, ...]
    out: Type

    def emit(self, expr: Any) -> Any:
        """Binds an intermediate result."""
        return self.bb.emit(expr)

    def const(self, value: float, index: int = 0) -> Any:
        """A scalar of an argument's dtype."""
        return relax.const(value, self.tensor(index).dtype)

    def sizes(self, ty: Type) -> list[int]:
        """A tensor type's sizes, which must all be known."""
        assert isinstance(ty, TensorType)
        if any(d is ANY for d in ty.shape):
            self.fail(f"cannot be built with an unknown size, got {show(ty)}")
        return [d for d in ty.shape if isinstance(d, int)]

    def reshape(self, x: Any, shape: Sequence[Dim]) -> Any:
        """A reshape where at most one size is `?`."""
        if sum(d is ANY for d in shape) > 1:
            self.fail(f"cannot be built with two unknown sizes, got {show_shape(shape)}")
        return relax.op.reshape(x, [-1 if d is ANY else d for d in shape])

    def shape(self, index: int) -> Any:
        """An argument's shape as a Relax expression, symbolic sizes included."""
        ty = self.bb.normalize(self.args[index]).ty
        if not isinstance(ty.shape, relax.ShapeExpr):
            self.fail(f"cannot be built with an unknown shape, got {ty} for {self.inputs[index]}")
        return ty.shape


Relation = Callable[[Call], Type]
Builder = Callable[[Site], Any]


@dataclass(frozen=True)
class RelayOp:
    """A Relay operator.

    `checked` says against what its results are compared: "relay" (a program that real Relay ran),
    "numpy" or "torch"; `differentiable`: whether Relax differentiates what `build` makes; `meta`:
    the attributes' type key where Relay's text puts them into its metadata section.
    """

    name: str
    inputs: tuple[str, ...]
    attrs: tuple[Attr, ...]
    relation: Relation
    builder: Builder
    checked: str
    differentiable: bool
    meta: str | None = None

    def read(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """All attributes, defaults filled in.

        Raises
        ------
        TypeError : for a value of the wrong kind.
        ValueError : for an unknown attribute, or one missing that has no default.
        """
        known = [attr.name for attr in self.attrs]
        unknown = sorted(set(attrs) - set(known))
        if unknown:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise ValueError(f"{self.name}: unknown attributes {', '.join(unknown)}: {has}")
        complete = {}
        for attr in self.attrs:
            value = attrs.get(attr.name, attr.default)
            if value is REQUIRED:
                raise ValueError(f"{self.name}: attribute {attr.name} is missing")
            complete[attr.name] = attr.read(self.name, value)
        return complete

    def infer(self, arg_types: Sequence[Type], attrs: Mapping[str, Any]) -> Type:
        """The result's type.

        Raises
        ------
        TypeError, ValueError : when the type relation is violated; they name the operator.
        """
        return self.relation(Call(self.name, self.inputs, self._arity(arg_types), self.read(attrs)))

    def build(
        self,
        bb: Any,
        args: Sequence[Any],
        attrs: Mapping[str, Any],
        arg_types: Sequence[Type],
        out_type: Type,
    ) -> Any:
        """The result as a Relax expression, not yet bound; intermediates go into the BlockBuilder.

        Raises
        ------
        TypeError, ValueError : as `infer`, and for what has no Relax form.
        """
        types = self._arity(arg_types)
        if len(args) != len(types):
            raise ValueError(f"{self.name}: {len(types)} argument types for {len(args)} arguments")
        site = Site(self.name, self.inputs, types, self.read(attrs), bb, tuple(args), out_type)
        return self.builder(site)

    def _arity(self, types: Sequence[Type]) -> tuple[Type, ...]:
        if len(types) != len(self.inputs):
            names = f" ({', '.join(self.inputs)})" if self.inputs else ""
            raise ValueError(
                f"{self.name}: takes {len(self.inputs)} arguments{names}, got {len(types)}"
            )
        return tuple(types)


REGISTRY: dict[str, RelayOp] = {}


def define(
    name: str,
    inputs: str,
    relation: Relation,
    builder: Builder,
    checked: str,
    *attrs: Attr,
    grad: bool = True,
    meta: str | None = None,
) -> None:
    """Puts an operator into the table; `inputs` are names with spaces between them."""
    assert name not in REGISTRY, name
    record = RelayOp(name, tuple(inputs.split()), attrs, relation, builder, checked, grad, meta)
    REGISTRY[name] = record


def lookup(name: str) -> RelayOp:
    """The operator of that name.

    Raises
    ------
    ValueError : for an unknown name; the message has near ones.
    """
    if name in REGISTRY:
        return REGISTRY[name]
    last = name.rpartition(".")[2]
    near = [known for known in REGISTRY if known.rpartition(".")[2] == last]
    near += [n for n in difflib.get_close_matches(name, REGISTRY, 4, 0.7) if n not in near]
    hint = f"; near: {', '.join(near)}" if near else ""
    raise ValueError(f"unknown Relay operator {name!r}{hint}")
