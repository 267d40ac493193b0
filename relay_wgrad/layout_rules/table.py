"""One rule for each op that follows a layout: the call when its tensors are stored in it.

A rule gets a layout for the tensors of the highest rank among the call's operands and results and
says in which layout the others are then taken and made, and how attributes change.  Our pass and
the rules registered for the stock pass both read this table.  Ops that are absent from it (matmul,
losses, kernels called by name, …) take and make everything as it was.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..attrs import as_ints
from ..ops.elementwise import RELAX
from .in_layout import (
    InLayout,
    LayoutRule,
    Taken,
    attr_fields,
    attrs_with,
    leaf_types,
    rank_of,
    shape_arg,
    sizes_of,
)
from .perms import Perm, aligned, identity, reorder, without


def _operand(arg: relax.Expr, perm: Perm) -> Taken | tuple[Taken, ...] | None:
    """An operand beside tensors in `perm`: of the same rank, or broadcast along leading axes."""
    if isinstance(arg, relax.Tuple):
        taken = [_operand(item, perm) for item in arg.fields]
        return tuple(t for t in taken if isinstance(t, Taken))
    rank = rank_of(arg.ty)
    return None if rank is None else Taken(*aligned(perm, rank))


def follow(call: relax.Call, perm: Perm) -> InLayout | None:
    """Elementwise with broadcasting; results of the highest rank, others of lower rank kept."""
    outputs = []
    for ty in leaf_types(call.ty):
        rank = rank_of(ty)
        if rank is None:
            return None
        outputs.append(perm if rank == len(perm) else identity(rank))
    return InLayout(tuple(_operand(arg, perm) for arg in call.args), tuple(outputs))


def _with_attrs(call: relax.Call, perm: Perm, **changed: Any) -> InLayout | None:
    moved = follow(call, perm)
    if moved is None:
        return None
    return InLayout(moved.inputs, moved.outputs, attrs_with(call.attrs, **changed))


def _axis(value: Any, perm: Perm) -> int:
    """Where an axis of the logical tensor is stored."""
    return perm.index(int(value) % len(perm))


def one_axis(call: relax.Call, perm: Perm) -> InLayout | None:
    """Softmax, concat, split, …: an attribute `axis`."""
    axis = attr_fields(call.attrs)["axis"]
    if axis is None:
        return None  # concat of flattened tensors
    return _with_attrs(call, perm, axis=_axis(axis, perm))


def resample(call: relax.Call, perm: Perm) -> InLayout | None:
    """An attribute `axis`; index and weight stay."""
    axis = _axis(attr_fields(call.attrs)["axis"], perm)
    inputs = (Taken(perm), *(Taken(identity(2)) for _ in call.args[1:]))
    return InLayout(inputs, (perm,), attrs_with(call.attrs, axis=axis))


def normalization(call: relax.Call, perm: Perm) -> InLayout | None:
    """batch_norm (`axis`), layer_norm (`axes`), group_norm and instance_norm (both)."""
    fields = attr_fields(call.attrs)
    changed: dict[str, Any] = {}
    for name in ("axis", "channel_axis"):
        if name in fields:
            changed[name] = _axis(fields[name], perm)
    if "axes" in fields:
        axes = [int(a) % len(perm) for a in fields["axes"]]
        if "channel_axis" not in fields and len(axes) > 1:
            return None  # layer_norm's scale has these axes itself
        changed["axes"] = sorted(perm.index(a) for a in axes)
    outputs = tuple(
        perm if rank_of(ty) == len(perm) else identity(rank_of(ty) or 0)
        for ty in leaf_types(call.ty)
    )
    inputs = [Taken(perm)]
    for arg in call.args[1:]:
        rank = rank_of(arg.ty)
        if rank is None:
            return None
        inputs.append(Taken(identity(rank)))
    return InLayout(tuple(inputs), outputs, attrs_with(call.attrs, **changed))


def training_norm(call: relax.Call, perm: Perm) -> InLayout | None:
    """batch_norm_train, group_norm_train, their gradients: tensors beside x follow, parameters and
    statistics stay, and of groups the images' axis."""
    fields, rank = attr_fields(call.attrs), len(perm)
    grouped = "groups" in fields
    inputs = [rank_of(arg.ty) for arg in call.args]
    outputs = [rank_of(ty) for ty in leaf_types(call.ty)]
    small = (1, 2) if grouped else (1,)
    if any(n != rank and n not in small for n in (*inputs, *outputs)) or (grouped and perm[0] != 0):
        return None

    def layout(n: int | None) -> Perm:
        return perm if n == rank else identity(n or 0)

    return InLayout(
        tuple(Taken(layout(n)) for n in inputs),
        tuple(map(layout, outputs)),
        attrs_with(call.attrs, axis=_axis(fields["axis"], perm)),
    )


def reduction(call: relax.Call, perm: Perm) -> InLayout | None:
    """sum, mean, …: `axis` is a list of axes or None, which is all."""
    axes, keepdims = call.attrs.axis, bool(call.attrs.keepdims)
    rank = len(perm)
    reduced = list(range(rank)) if axes is None else [int(a) % rank for a in axes]
    output = perm if keepdims else without(perm, reduced)
    changed = {} if axes is None else {"axis": sorted(perm.index(a) for a in reduced)}
    return InLayout((Taken(perm),), (output,), attrs_with(call.attrs, **changed))


def pooling(call: relax.Call, perm: Perm) -> InLayout | None:
    """Pooling, its backward, resizing: the layout is an attribute, any permutation will do."""
    fields = attr_fields(call.attrs)
    changed = {}
    for name in ("layout", "out_layout"):
        if name in fields:
            layout = str(fields[name])
            if len(layout) != len(perm) or not layout.isupper():
                return None  # blocked
            changed[name] = "".join(reorder(layout, perm))
    return _with_attrs(call, perm, **changed)


def pad(call: relax.Call, perm: Perm) -> InLayout | None:
    """Two widths for each axis."""
    widths = as_ints("pad", "pad_width", call.attrs.pad_width)
    pairs = reorder([widths[2 * i : 2 * i + 2] for i in range(len(perm))], perm)
    return _with_attrs(call, perm, pad_width=[w for pair in pairs for w in pair])


def strided_slice(call: relax.Call, perm: Perm) -> InLayout | None:
    """The sliced axes are an argument."""
    axes = getattr(call.args[1], "fields", None)
    values = [getattr(a, "value", None) for a in axes or ()]
    if axes is None or not all(isinstance(v, int) for v in values):
        return None
    moved = [_axis(v, perm) for v in values]
    made = relax.op.strided_slice(call.args[0], moved, [0] * len(moved), [1] * len(moved))
    inputs = (Taken(perm), *(None for _ in call.args[1:]))
    return InLayout(inputs, (perm,), args={1: made.args[1]})


def collapse_sum_to(call: relax.Call, perm: Perm) -> InLayout | None:
    """Sums what was broadcast; the shape is an argument, aligned at its trailing axes."""
    shape = shape_arg(call.args[1])
    if shape is None:
        return None
    order, inserted = aligned(perm, len(shape))
    target = reorder(shape, order)
    for position in inserted:
        target.insert(position, 1)
    arg = relax.ShapeExpr(target)
    return InLayout((Taken(perm), None), (order,), args={1: arg}, squeeze=inserted)


def collapse_sum_like(call: relax.Call, perm: Perm) -> InLayout | None:
    """As `collapse_sum_to`, with the shape of a tensor."""
    rank = rank_of(call.args[1].ty)
    if rank is None:
        return None
    order, inserted = aligned(perm, rank)
    return InLayout((Taken(perm), Taken(order, inserted)), (order,), squeeze=inserted)


def broadcast_to(call: relax.Call, perm: Perm) -> InLayout | None:
    """The shape is an argument; the operand is aligned at its trailing axes."""
    shape, rank = shape_arg(call.args[1]), rank_of(call.args[0].ty)
    if shape is None or rank is None:
        return None
    taken = Taken(*aligned(perm, rank))
    return InLayout((taken, None), (perm,), args={1: relax.ShapeExpr(reorder(shape, perm))})


def filled(call: relax.Call, perm: Perm) -> InLayout | None:
    """zeros, ones, full: the shape is the first argument."""
    shape = shape_arg(call.args[0])
    if shape is None:
        return None
    rest = tuple(_operand(arg, perm) for arg in call.args[1:])
    return InLayout((None, *rest), (perm,), args={0: relax.ShapeExpr(reorder(shape, perm))})


# Of one element at a time beside the records: with settings, or of several tensors.
_OTHERS = """
    clip astype zeros_like ones_like full_like wrap_param nn.gelu nn.gelu_tanh nn.selu nn.softplus
    nn.leakyrelu nn.dropout grad.no_grad grad.start_checkpoint grad.end_checkpoint
    builtin.stop_lift_params log_add_exp where ewise_fma"""
_BY_RULE: tuple[tuple[LayoutRule, str], ...] = (
    (follow, " ".join(RELAX) + _OTHERS),
    (one_axis, "nn.softmax nn.log_softmax concat split flip cumsum cumprod"),
    (resample, "nn.resample"),
    (normalization, "nn.batch_norm nn.layer_norm nn.group_norm nn.instance_norm"),
    (training_norm, "nn.batch_norm_train nn.batch_norm_train_backward"),
    (training_norm, "nn.group_norm_train nn.group_norm_train_backward"),
    (reduction, "sum mean max min prod variance std"),
    (pooling, "nn.max_pool2d nn.avg_pool2d nn.adaptive_avg_pool2d image.resize2d"),
    (pooling, "grad.max_pool2d_backward grad.avg_pool2d_backward"),
    (pad, "nn.pad"),
    (strided_slice, "strided_slice"),
    (collapse_sum_to, "collapse_sum_to"),
    (collapse_sum_like, "collapse_sum_like"),
    (broadcast_to, "broadcast_to"),
    (filled, "zeros ones full"),
)  # fmt: skip

FOLLOW: dict[str, LayoutRule] = {
    f"relax.{name}": rule for rule, names in _BY_RULE for name in names.split()
}
# Ops whose result costs nothing to make again in another layout.
REMADE = frozenset(f"relax.{name}" for name in ("zeros", "ones", "full", "broadcast_to"))
# Ops that keep what is stored and give it another shape: a layout passes them by runs of axes.
RESHAPES = frozenset(f"relax.{name}" for name in ("reshape", "expand_dims", "squeeze", "flatten",
                                                  "nn.batch_flatten"))  # fmt: skip
PERMUTE = "relax.permute_dims"


def call_in_layout(name: str, call: relax.Call, perm: Perm) -> InLayout | None:
    """The call of an op that follows; in its own layout every op has one that changes nothing."""
    rule = FOLLOW.get(name)
    return None if rule is None else rule(call, perm)


def permute_axes(call: relax.Call) -> Perm:
    """The axes of a permute_dims, by default reversed."""
    rank = rank_of(call.args[0].ty) or 0
    axes = call.attrs.axes
    return tuple(reversed(range(rank))) if axes is None else tuple(int(a) % rank for a in axes)


def reshape_sizes(call: relax.Call) -> tuple[list[Any], list[Any]] | None:
    """(operand's, result's) sizes of one of RESHAPES, None where one is unknown."""
    src, dst = sizes_of(call.args[0].ty), sizes_of(call.ty)
    return None if src is None or dst is None else (src, dst)
