"""What a rule says about one call: how it reads when its tensors are stored in another layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax

from ..relation import as_size
from .perms import Perm

KEEP: Any = object()  # the attributes as they are (None is a value: some ops have none)


@dataclass(frozen=True)
class Taken:
    """An operand: its layout, and where axes of size 1 are inserted into what is stored."""

    perm: Perm
    inserted: Perm = ()


@dataclass(frozen=True)
class InLayout:
    """A call in another layout.

    `inputs` has an entry for each argument: a `Taken`, a list of them for a tuple, None for what is
    no tensor.  `outputs` has a layout for each result.  `args` replaces arguments that are no
    tensors; `squeeze` are axes of size 1 to be removed from the (only) result as stored.
    """

    inputs: tuple[Taken | tuple[Taken, ...] | None, ...]
    outputs: tuple[Perm, ...]
    attrs: Any = KEEP
    args: Mapping[int, relax.Expr] = field(default_factory=dict)
    squeeze: Perm = ()


# A rule: the call when its tensors of the highest rank are in the layout; None: it cannot be.
LayoutRule = Callable[[relax.Call, Perm], InLayout | None]


def attr_fields(attrs: Any) -> dict[str, Any]:
    """The fields of an op's attributes, whichever kind of attributes they are."""
    if isinstance(attrs, tvm.ir.DictAttrs):
        return dict(attrs.items())
    info = type(attrs).__tvm_ffi_type_info__
    return {item.name: getattr(attrs, item.name) for item in info.fields}


def attrs_with(attrs: Any, **changed: Any) -> Any:
    """The same attributes, some changed."""
    if isinstance(attrs, tvm.ir.DictAttrs):
        key = "ir.DictAttrs"
    else:
        key = type(attrs).__tvm_ffi_type_info__.type_key
    return tvm.ir.make_node(key, **{**attr_fields(attrs), **changed})


def rank_of(ty: Any) -> int | None:
    """A tensor's rank; None for what is no tensor or of unknown rank."""
    if not isinstance(ty, relax.TensorType) or ty.ndim < 0:
        return None
    return int(ty.ndim)


def sizes_of(ty: Any) -> list[Any] | None:
    """A tensor's sizes, ints where known; None where the shape itself is unknown."""
    shape = getattr(ty, "shape", None)
    return [as_size(v) for v in shape.values] if isinstance(shape, relax.ShapeExpr) else None


def shape_arg(arg: Any) -> list[Any] | None:
    """The sizes of an argument that is a shape written out."""
    return list(arg.values) if isinstance(arg, relax.ShapeExpr) else None


def leaf_types(ty: Any) -> list[Any]:
    """The types of the results: one, or those of a tuple."""
    return list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]


def tensor_args(args: Sequence[relax.Expr]) -> Iterator[relax.Expr]:
    """The tensors among arguments, with those in tuples."""
    for arg in args:
        if isinstance(arg, relax.Tuple):
            yield from tensor_args(arg.fields)
        elif isinstance(arg.ty, relax.TensorType):
            yield arg
