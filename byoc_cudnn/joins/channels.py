"""What tensors are of others' channels: joins, cuts and sums along the last axis, worked out.

A tensor's form is a list of pieces, neighbouring channels each, and a piece is a sum of channels of
tensors that are no such result themselves.  Forms are made in program order, of those of operands:

  concat: the operands' pieces, one after another;  a field of split: some of them, cut;
  add: pieces cut alike, terms after terms;  zeros: a piece without terms;
  widening, an addition in float32, and rounding to half: as the addition in half, which rounds the
  same (float32 has more than twice as many digits).

So a tensor that is cut out of a join is read where the join's operands are, and the gradients that
come back to a tensor from many joins are added where they lie.

What TVM makes of single elements and would compute within the kernel of its join or its cuts stays
there: as a tensor of its own it would be written and read once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tvm import relax

from relay_wgrad.dtypes import HALVES
from relay_wgrad.graph.def_use import Graph
from relay_wgrad.ir import op_name
from relay_wgrad.layout_rules.in_layout import sizes_of
from relay_wgrad.ops.elementwise import PER_ELEMENT

from ..codegen.lowering import same_type
from .call import CHANNELS, DTYPES, PIECES, TERMS

_CONCAT, _SPLIT, _ADD = "relax.concat", "relax.split", "relax.add"
_CAST, _ZEROS = "relax.astype", "relax.zeros"
_FUSED = PER_ELEMENT | {"relax.permute_dims"}
_OPS = (_CONCAT, _SPLIT, _ADD, _CAST, _ZEROS)


class Source(NamedTuple):
    """Channels of a tensor, from the `first` on."""

    tensor: relax.Var
    first: int


class Some(NamedTuple):
    """Neighbouring channels: the sum of sources, zeros where there is none."""

    width: int
    sources: tuple[Source, ...]


Form = tuple[Some, ...]


@dataclass(frozen=True)
class _Made:
    """A form, and how it is there: as it is (0), widened to float32 (1), an unrounded sum (2)."""

    form: Form
    wide: int


class Channels:
    """The forms of a function's tensors; `refused` says why a join or a cut has none."""

    def __init__(self, view: Graph) -> None:
        self.view = view
        self.refused: dict[relax.Var, str] = {}
        self._made: dict[relax.Var, _Made] = {}
        for binding in view.bindings:
            if isinstance(binding, relax.VarBinding) and (made := self._of(binding)) is not None:
                terms = sum(len(some.sources) for some in made.form)
                if len(made.form) > PIECES or terms > TERMS:
                    if op_name(binding.value) == _CONCAT:  # else a sum begins anew
                        self.refused[binding.var] = (
                            f"{len(made.form)} pieces of {terms} terms, at most {PIECES} of {TERMS}"
                        )
                else:
                    self._made[binding.var] = made

    def form(self, var: relax.Var) -> Form | None:
        """What a tensor is made of; None for what is no join, cut or sum."""
        made = self._made.get(var)
        return None if made is None or made.wide else made.form

    def has(self, var: relax.Var) -> bool:
        """Whether a variable has a form, also one of float32 that stands for one of half."""
        return var in self._made

    # ---- one binding -----------------------------------------------------------------------------

    def _of(self, binding: Any) -> _Made | None:
        var, value = binding.var, binding.value
        if isinstance(value, relax.Var):
            return self._seen(var, value)
        if isinstance(value, relax.TupleGetItem):
            return self._cut(var, value)
        name = op_name(value)
        if name not in _OPS:
            return None
        if name == _SPLIT:
            self._axis(var, value, value.args[0])
            return None
        if name == _CONCAT:
            return self._joined(var, value) if self._axis(var, value, var) else None
        if _width(var) is None:
            return None
        if name == _ZEROS:
            return _Made((Some(_width(var) or 0, ()),), 0)
        return self._cast(var, value) if name == _CAST else self._sum(var, value)

    def _seen(self, var: relax.Var, operand: Any) -> _Made | None:
        """An operand's form, if it may be looked through: in the same block, and not `_kept`."""
        made = self._made.get(operand)
        here = made is not None and self.view.block[operand] == self.view.block[var]
        return made if here and not self._kept(operand, made) else None

    def _kept(self, var: relax.Var, made: _Made | None) -> bool:
        """Whether a sum is stored, since it is needed itself or several would add it up again.

        One that is widened is stored before.
        """
        if self._is_base(var):
            return True
        if made is None or made.wide == 1 or all(len(some.sources) < 2 for some in made.form):
            return False
        ops, names = [], [var]
        for name in names:
            if name in self.view.results:
                return True
            for user in self.view.users_of(name):
                if isinstance(user.value, relax.Var) or op_name(user.value) == _CAST:
                    names.append(user.var)  # another name, or the same widened
                else:
                    ops.append(op_name(user.value))
        return not set(ops) <= set(_OPS) or (len(ops) > 1 and set(ops) != {_SPLIT})

    def _is_base(self, var: relax.Var) -> bool:
        """Whether a join that is stored is what a later one of its width adds channels to, which
        may lie over it then."""
        users = self.view.users_of(var)
        cuts = [b for b in users if op_name(b.value) == _SPLIT]
        if op_name(self.view.value.get(var)) != _CONCAT or not cuts:
            return False
        if all(op_name(binding.value) in (*_OPS, _SPLIT) for binding in users):
            return False
        fields = [field for cut in cuts for _, field in _places(self.view, cut)]
        at = {field: begin for cut in cuts for begin, field in _places(self.view, cut)}
        return any(
            begin == at.get(field) and _width(join.var) == _width(var)
            for join in self.view.users_of(*fields)
            if op_name(join.value) == _CONCAT
            for begin, field in begins(self.view.bound_to(join.value.args[0]).fields)
        )

    def _axis(self, var: relax.Var, value: Any, tensor: Any) -> bool:
        """Whether a call is along the last axis; notes where it is not."""
        ndim, axis, dtype = tensor.ty.ndim, value.attrs.axis, str(tensor.ty.dtype)
        if dtype not in DTYPES:
            self.refused[var] = f"dtype {dtype!r}; there are {', '.join(map(repr, DTYPES))}"
        elif axis is None or int(axis) % max(ndim, 1) != ndim - 1:
            self.refused[var] = f"along axis {axis} of {ndim}; kernels are for the last"
        return var not in self.refused

    def _joined(self, var: relax.Var, value: Any) -> _Made | None:
        fields = self.view.bound_to(value.args[0])
        if not isinstance(fields, relax.Tuple):
            return None
        found: list[Some] = []
        fused = 0
        for field in fields.fields:
            one = self._operand(var, field)
            fused += (_width(field) or 0) * self._is_fused(var, field)
            if one is None:
                self.refused[var] = "an operand that is no tensor of known channels"
                return None
            found += one
        user = self.view.sole_use(var)
        if 2 * fused >= (_width(var) or 0) or (user is not None and op_name(user.value) in _FUSED
                                               and op_name(user.value) not in _OPS):  # fmt: skip
            self.refused[var] = "TVM fuses it with what makes its operands or reads it"
            return None
        return _Made(_merged(found), 0)

    def _operand(self, var: relax.Var, operand: Any) -> Form | None:
        """An operand's form, that of a tensor of its own where it has none; None for a constant."""
        width = _width(operand)
        if not isinstance(operand, relax.Var) or width is None:
            return None
        made = self._seen(var, operand)
        if made is None or made.wide:
            return (Some(width, (Source(operand, 0),)),)
        return made.form

    def _is_fused(self, user: relax.Var, operand: Any) -> bool:
        """Whether TVM makes an operand of single elements, for this binding alone."""
        if not isinstance(operand, relax.Var) or self.has(operand):
            return False
        if op_name(self.view.value.get(operand)) not in _FUSED:
            return False
        sole = self.view.sole_user(operand)
        return sole is not None and bool(sole.var.same_as(user))

    def _cut(self, var: relax.Var, value: relax.TupleGetItem) -> _Made | None:
        call_var = self.view.resolved(value.tuple_value)
        call = self.view.call(call_var, _SPLIT)
        if call is None or not self._axis(var, call, call.args[0]):
            self.refused.pop(var, None)  # the split has the reason
            return None
        operand = call.args[0]
        given = call.ty.fields if isinstance(call.ty, relax.TupleType) else []
        widths = [_width_of(ty) for ty in given]
        form = self._operand(var, operand)
        if form is None or not all(widths):
            return None
        if self._is_fused(call_var, operand):
            self.refused[call_var] = "TVM fuses it with what makes its operand"
            return None
        first = sum(width or 0 for width in widths[: int(value.index)])
        return _Made(_part(form, first, widths[int(value.index)] or 0), 0)

    def _cast(self, var: relax.Var, value: Any) -> _Made | None:
        operand = value.args[0]
        to, source = str(var.ty.dtype), str(operand.ty.dtype)
        if to == "float32" and source in HALVES:
            form = self._operand(var, operand)
            return None if form is None else _Made(form, 1)
        made = self._seen(var, operand) if isinstance(operand, relax.Var) else None
        if made is None or not made.wide or to not in HALVES:
            return None
        if any(str(s.tensor.ty.dtype) != to for some in made.form for s in some.sources):
            return None
        return _Made(made.form, 0)

    def _sum(self, var: relax.Var, value: Any) -> _Made | None:
        if not all(isinstance(arg, relax.Var) and same_type(arg, var) for arg in value.args):
            return None
        sides = [self._seen(var, arg) for arg in value.args]
        if str(var.ty.dtype) == "float32" and any(side is not None and side.wide for side in sides):
            if not all(side is not None and side.wide == 1 for side in sides):
                return None
            forms = [side.form for side in sides if side is not None]
            dtypes = {str(s.tensor.ty.dtype) for f in forms for some in f for s in some.sources}
            total = _added(*forms) if len(dtypes) == 1 else None
            return None if total is None else _Made(total, 2)
        found = [self._operand(var, arg) for arg in value.args]
        total = _added(*found)
        return None if total is None else _Made(total, 0)


def is_plain(form: Form, var: relax.Var) -> bool:
    """Whether a form is whole tensors alone, which an addition is without kernels of joins."""
    width = _width(var)
    whole = len(form) == 1 and len(form[0].sources) > 0
    return whole and all(s.first == 0 and _width(s.tensor) == width for s in form[0].sources)


def _width_of(ty: Any) -> int | None:
    sizes = sizes_of(ty)
    known = sizes and str(ty.dtype) in DTYPES and isinstance(sizes[-1], int)
    return sizes[-1] if sizes and known and 0 < sizes[-1] <= CHANNELS else None


def _width(var: Any) -> int | None:
    """A tensor's channels; None where they are not known."""
    return _width_of(getattr(var, "ty", None))


def begins(fields: Sequence[Any]) -> list[tuple[int, Any]]:
    """Tensors that lie side by side, and the channel that each begins at."""
    found, begin = [], 0
    for field in fields:
        found.append((begin, field))
        begin += _width(field) or 0
    return found


def _places(view: Graph, cut: Any) -> list[tuple[int, relax.Var]]:
    """The variables of a split's fields, and the channel that each begins at."""
    widths = [_width_of(ty) or 0 for ty in cut.value.ty.fields]
    return [(sum(widths[:index]), field) for index, field in view.fields_of(cut.var)]


def _part(form: Form, first: int, width: int) -> Form:
    """Some channels of a form."""
    found, at = [], 0
    for some in form:
        begin, end = max(first, at), min(first + width, at + some.width)
        if begin < end:
            moved = tuple(Source(s.tensor, s.first + begin - at) for s in some.sources)
            found.append(Some(end - begin, moved))
        at += some.width
    return tuple(found)


def _added(a: Form | None, b: Form | None) -> Form | None:
    """The sum of two forms, None where it is not one sum after another."""
    if a is None or b is None:
        return None
    ends = sorted({*_ends(a), *_ends(b)})
    found = []
    for begin, end in zip([0, *ends], ends, strict=False):
        (one,), (two,) = _part(a, begin, end - begin), _part(b, begin, end - begin)
        if len(one.sources) > 1 and len(two.sources) > 1:
            return None
        order = (two, one) if len(two.sources) > 1 else (one, two)
        found.append(Some(end - begin, order[0].sources + order[1].sources))
    return _merged(found)


def _ends(form: Form) -> list[int]:
    ends, at = [], 0
    for some in form:
        at += some.width
        ends.append(at)
    return ends


def _merged(form: Sequence[Some]) -> Form:
    """Neighbours that lie side by side in all their tensors as one."""
    found: list[Some] = []
    for some in form:
        before = found[-1] if found else None
        if before is not None and [(s.tensor, s.first + before.width) for s in before.sources] == [
            tuple(s) for s in some.sources
        ]:
            found[-1] = Some(before.width + some.width, before.sources)
        else:
            found.append(some)
    return tuple(found)
