"""One record for each Relay operator: attributes with defaults, type relation, Relax builder.

A family's file makes records with `define`; `REGISTRY` holds them all once the package is imported.
Relations and builders see a `Call` or a `Site`: one call with its attributes read and complete.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
from tvm import relax
from tvm.ir.expr import GenericConst

from ...argument_types import check_type
from ...conditions import Conditions
from ...dtypes import HALVES
from ...relation import Checks
from ..ast import Attrs, Op
from ..ast import Call as CallNode
from ..dims import SymDim, unified
from ..types import ANY, Dim, TensorType, TupleType, Type, type_text
from .attributes import REQUIRED as REQUIRED
from .attributes import Attr as Attr
from .facts import OpPattern, Roles
from .hooks import COMPUTE


def show(ty: Type) -> str:
    """A type as Relay prints it."""
    return type_text(ty)


def show_shape(shape: Sequence[Dim]) -> str:
    """Dimensions in parentheses, as Relay prints them."""
    return f"({', '.join(map(str, shape))})"


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
        for part in ty.fields:
            if not isinstance(part, TensorType):
                raise TypeError(
                    f"{self.op}: {self.inputs[index]} must be a tuple of tensors, got {show(ty)}"
                )
            out.append(part)
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
            unified(a, b) is None for a, b in zip(got.shape, wanted.shape, strict=True)
        ):
            self.fail(f"{self.inputs[index]} must be {show(wanted)} {why}, got {show(got)}")


@dataclass(frozen=True)
class Site(Call):
    """A call with its arguments as Relax expressions and the place to put new ones."""

    bb: Any
    args: tuple[Any, ...]
    out: Type

    @property
    def result_type(self) -> TensorType:
        """The result's type, of an operator that makes one tensor."""
        assert isinstance(self.out, TensorType)
        return self.out

    def emit(self, expr: Any) -> Any:
        """Binds an intermediate result."""
        return self.bb.emit(expr)

    def const(self, value: float, index: int = 0) -> Any:
        """A scalar of an argument's dtype."""
        return relax.const(value, self.tensor(index).dtype)

    def sizes(self, ty: Type) -> list[Any]:
        """A tensor type's sizes as Relax takes them; none may be `?`."""
        assert isinstance(ty, TensorType)
        if any(d is ANY for d in ty.shape):
            self.fail(f"cannot be built with an unknown size, got {show(ty)}")
        return [d.expr if isinstance(d, SymDim) else d for d in ty.shape]

    def compare(self, rule: Callable[[Checks, Any, Sequence[Any]], None]) -> None:
        """Refuses what a rule of sizes does (`ops.size_rules`), where only the run knows, then."""
        run = Conditions()
        args = [self.bb.normalize(arg) for arg in self.args]
        rule(Checks(self.op, run), SimpleNamespace(**self.attrs), args)
        run.emit(self.bb, self.op.rpartition(".")[2])

    def number(self, dims: Iterable[Dim], dtype: str) -> Any:
        """The product of sizes as a scalar; a symbolic one is counted at the run."""
        known, out = 1, None
        for dim in dims:
            if isinstance(dim, int):
                known *= dim
                continue
            size = self.sizes(TensorType((dim,)))
            count = self.emit(relax.op.sum(self.emit(relax.op.ones(size, dtype))))
            out = count if out is None else self.emit(relax.op.multiply(out, count))
        whole = relax.const(known, dtype)
        return whole if out is None else self.emit(relax.op.multiply(out, whole))

    def reshape(self, x: Any, shape: Sequence[Dim]) -> Any:
        """A reshape where at most one size is `?`."""
        if sum(d is ANY for d in shape) > 1:
            self.fail(f"cannot be built with two unknown sizes, got {show_shape(shape)}")
        sizes = [-1 if d is ANY else d.expr if isinstance(d, SymDim) else d for d in shape]
        return relax.op.reshape(x, sizes)

    def shape(self, index: int) -> Any:
        """An argument's shape as a Relax expression, symbolic sizes included."""
        ty = self.bb.normalize(self.args[index]).ty
        if not isinstance(ty.shape, relax.ShapeExpr):
            self.fail(f"cannot be built with an unknown shape, got {ty} for {self.inputs[index]}")
        return ty.shape


def constant_value(expr: Any) -> np.ndarray[Any, Any] | None:
    """A Relax expression's array where it is a constant."""
    return np.asarray(expr.value.numpy()) if isinstance(expr, GenericConst) else None


def with_name(name: str, error: TypeError | ValueError) -> TypeError | ValueError:
    """The error, with the operator's name if its words lack it: a type's are of a size alone."""
    if name.rpartition(".")[2] in str(error):
        return error
    return (TypeError if isinstance(error, TypeError) else ValueError)(f"{name}: {error}")


Relation = Callable[[Call], Type]
Builder = Callable[[Site], Any]


@dataclass(frozen=True)
class RelayOp:
    """A Relay operator.

    `checked` says against what its results are compared: "relay" (a program that real Relay ran),
    "numpy" or "torch"; `meta`: the attributes' type key where Relay's text puts them into its
    metadata section; `kind`, `level`, `precision` and `stateful`: Relay's TOpPattern, level of
    support, rule of `ToMixedPrecision` and TOpIsStateful (`facts`), None where it says nothing;
    `open_attrs`: a user's operator, whose attributes nobody declares; `variadic`: it takes any
    number of arguments; `operands`: an element of the result is made of one of each of so many
    tensors, which broadcast; `fills`: what each element of the result is; `reshapes`: Relay's
    TReshapeOp; `roles`: whose layouts its attributes are.  Whether it has a gradient, TVM's
    registry says of what `build` makes.

    `doc`: what its builder's help says, for one that `relay.op.generated` has: the builder's
    arguments are then `signature`'s, by default the inputs and then the attributes, where `a: data`
    is `data` by another name, and `a=1` has another default than the attribute asks for; `gathers`:
    the first is a tuple of tensors, and may be a list; of a `window` of so many axes one number is
    written out for each, and padding for both sides; `absent`: what attributes are where the
    builder has no such argument, or it is None; `numbers`: the dtype of arguments that may also be
    numbers, or the attribute that has it; `results`: of how many results it gives a tuple, or which
    argument says so, and how: by a table, or always one.
    """

    name: str
    inputs: tuple[str, ...]
    attrs: tuple[Attr, ...]
    relation: Relation
    builder: Builder
    checked: str
    meta: str | None = None
    kind: int | None = None
    level: int | None = None
    precision: int | None = None
    stateful: bool = False
    open_attrs: bool = False
    variadic: bool = False
    operands: int = 0
    fills: int | None = None
    reshapes: bool = False
    roles: Roles | None = None
    doc: str = ""
    signature: str = ""
    gathers: bool = False
    window: int = 0
    absent: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[str, str] = field(default_factory=dict)
    results: int | tuple[str, Mapping[Any, int] | Callable[[Any], int]] = 0

    @property
    def is_reduction(self) -> bool:
        """Whether it has one result along axes of one tensor."""
        return self.kind == OpPattern.COMM_REDUCE and len(self.inputs) == 1

    def read(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """All attributes, defaults filled in.

        Raises
        ------
        TypeError : for a value of the wrong kind.
        ValueError : for an unknown attribute, or one missing that has no default.
        """
        if self.open_attrs:
            return dict(attrs)
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

    def written(self, attrs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Attributes without those that have their default."""
        if not attrs:
            return attrs
        defaults = {attr.name: attr for attr in self.attrs if attr.default is not REQUIRED}
        return {
            name: value
            for name, value in attrs.items()
            if name not in defaults or not defaults[name].is_default(value)
        }

    def infer(self, arg_types: Sequence[Type], attrs: Mapping[str, Any]) -> Type:
        """The result's type.

        Raises
        ------
        TypeError, ValueError : when the type relation is violated; they name the operator.
        """
        call = Call(self.name, self.inputs, self._arity(arg_types), self.read(attrs))
        try:
            return self.relation(call)
        except (TypeError, ValueError) as error:
            if (made := with_name(self.name, error)) is error:
                raise
            raise made from error

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
        own = COMPUTE.find(self.name)
        return self.builder(site) if own is None else _computed(site, own)

    def check_count(self, count: int) -> None:
        """Raises ValueError for a wrong number of arguments."""
        if count != len(self.inputs) and not self.variadic:
            names = f" ({', '.join(self.inputs)})" if self.inputs else ""
            raise ValueError(f"{self.name}: takes {len(self.inputs)} arguments{names}, got {count}")

    def _arity(self, types: Sequence[Type]) -> tuple[Type, ...]:
        self.check_count(len(types))
        return tuple(types)


def in_float32(builder: Builder) -> Builder:
    """Of several operations: half-precision tensors are widened before the first and rounded after
    the last, not in between."""

    def wide(ty: Type) -> Type:
        if isinstance(ty, TensorType) and ty.dtype in HALVES:
            return replace(ty, dtype="float32")
        return ty

    def rounded(made: Any, ty: Type) -> Any:
        if isinstance(ty, TensorType) and ty.dtype in HALVES:
            return relax.op.astype(made, ty.dtype)
        return made

    def build(s: Site) -> Any:
        types = tuple(map(wide, s.types))
        if types == s.types:
            return builder(s)
        args = tuple(
            x if a == b else s.emit(relax.op.astype(x, "float32"))
            for x, a, b in zip(s.args, s.types, types, strict=True)
        )
        made = builder(replace(s, types=types, args=args))
        if not isinstance(s.out, TupleType):
            return rounded(s.emit(made), s.out)
        parts = zip(made.fields, s.out.fields, strict=True)
        return relax.Tuple([s.emit(rounded(part, ty)) for part, ty in parts])

    return build


def _computed(site: Site, compute: Callable[..., Any]) -> Any:
    """What a registered computation gives: `compute(attrs, tensors, type)` on TE tensors."""
    for ty in site.out.fields if isinstance(site.out, TupleType) else [site.out]:
        site.sizes(ty)  # refuses unknown ones
    tensors = []
    for arg, ty in zip(site.args, site.types, strict=True):
        if isinstance(ty, TupleType):
            tensors += [site.emit(relax.TupleGetItem(arg, i)) for i in range(len(ty.fields))]
        else:
            tensors.append(arg)

    def on_tensors(*given: Any) -> Any:
        out = compute(Attrs(site.attrs), list(given), site.out)
        made = list(out) if isinstance(out, (list, tuple)) else [out]
        wanted = len(site.out.fields) if isinstance(site.out, TupleType) else 1
        if len(made) != wanted:
            site.fail(f"the registered computation gave {len(made)} tensors, not {wanted}")
        return made if isinstance(site.out, TupleType) else made[0]

    on_tensors.__name__ = site.op.replace(".", "_")
    return site.bb.call_te(on_tensors, *tensors)


REGISTRY: dict[str, RelayOp] = {}


def attributes_of_run(op: RelayOp) -> dict[int, Attr]:
    """Which arguments of the operator of `dyn`, if there is one, are which attributes of this."""
    at_run, attrs = REGISTRY.get(f"dyn.{op.name}"), {attr.name: attr for attr in op.attrs}
    names = at_run.inputs if at_run is not None else ()
    return {i: attrs[name] for i, name in enumerate(names) if name in attrs}


def define(
    name: str,
    inputs: str,
    relation: Relation,
    builder: Builder,
    checked: str,
    *attrs: Attr,
    **facts: Any,
) -> None:
    """Puts an operator into the table; `inputs` are names with spaces between them, `facts` the
    record's other fields."""
    assert name not in REGISTRY, name
    names = tuple(inputs.split())
    REGISTRY[name] = RelayOp(name, names, attrs, relation, builder, checked, **facts)


def attributes_of(node: CallNode) -> dict[str, Any]:
    """All attributes of an operator's call, defaults filled in."""
    assert isinstance(node.op, Op)
    return lookup(node.op.name).read(node.attrs)


def lookup(name: str) -> RelayOp:
    """The operator of that name.

    Raises
    ------
    ValueError : for an unknown name; the message has near ones.
    TypeError : for what is no name.
    """
    check_type("a Relay operator", name, str, "a name")
    if name in REGISTRY:
        return REGISTRY[name]
    last = name.rpartition(".")[2]
    near = [known for known in REGISTRY if known.rpartition(".")[2] == last]
    near += [n for n in difflib.get_close_matches(name, REGISTRY, 4, 0.7) if n not in near]
    hint = f"; near: {', '.join(near)}" if near else ""
    raise ValueError(f"unknown Relay operator {name!r}{hint}")
