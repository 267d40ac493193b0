"""Training normalizations in a forward function, as front ends write them: finding them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tvm import relax

from ..dtypes import HALVES
from ..graph.def_use import Graph
from ..graph.match import Constant, OneOf, call, match
from ..graph.walk import variables_of
from ..ir import beside, op_name
from ..layout_rules.in_layout import sizes_of
from ..ops.activations import ACTIVATIONS
from ..ops.train_norm import LONGEST_ROW, dtype_of

Expr = Any

# (x - mean) / sqrt(variance + epsilon), the variance that of x
_CENTRED = call("relax.subtract", "x", call("relax.mean", "x", name="mean"), name="centred")
_SQUARE = call("relax.multiply", "centred", "centred")
_SHIFTED = call(
    "relax.add", call("relax.mean", _SQUARE, name="variance"), Constant("epsilon"), either=True
)
_STANDARDIZED = OneOf((
    call("relax.divide", _CENTRED, call("relax.sqrt", _SHIFTED)),
    call("relax.multiply", _CENTRED, call("relax.rsqrt", _SHIFTED), either=True),
))  # fmt: skip
# running' = kept running + share statistic, with the statistic as a vector
_FLAT = call("relax.reshape", "statistic", "shape", name="flat")
_UPDATE = call(
    "relax.add",
    call("relax.multiply", "running", Constant("kept"), either=True),
    call("relax.multiply", _FLAT, Constant("share"), either=True),
    either=True,
)
_SINGLE = {
    f"relax.nn.{name}": name.replace("leakyrelu", "leaky_relu")
    for name in ("relu", "leakyrelu", "silu", "gelu", "gelu_tanh")
}
"""Activations that are one operator."""


def _where(condition: Any, yes: Any, no: Any) -> Any:
    return call("relax.where", condition, yes, no)


def _elu(slope: Any) -> Any:
    negative = call("relax.less", "z", 0.0, name="negative")
    bent = call("relax.exp", _where("negative", "z", 0.0))
    curve = call("relax.multiply", call("relax.subtract", bent, 1.0), Constant("alpha"))
    return _where(negative, curve, call("relax.multiply", "z", slope))


_LINE = call("relax.add", "inner", 3.0)
_INNER = call(
    "relax.where", call("relax.greater_equal", "z", 3.0, name="above"), 0.0,
    _where("below", 0.0, "z"), name="inner",
)  # fmt: skip
_CURVE = call("relax.multiply", call("relax.multiply", _INNER, _LINE), Constant("sixth"))
_WRITTEN = {
    "relu6": _where(
        call("relax.less_equal", "z", 0.0), 0.0,
        _where(call("relax.greater_equal", "z", 6.0), 6.0, "z"),
    ),
    "leaky_relu": _where(
        call("relax.greater", "z", 0.0), "z",
        call("relax.multiply", "z", Constant("alpha"), either=True),
    ),
    "hardswish": _where(
        call("relax.less_equal", "z", -3.0, name="below"), 0.0,
        call("relax.where", call("relax.greater_equal", "z", 3.0), "z", _CURVE),
    ),
    "elu": OneOf((
        _elu(1.0), _elu(_where(call("relax.less_equal", "z", 0.0), Constant("at_zero"), 1.0)),
    )),
}  # fmt: skip
"""Others as the front ends write them (`frontend.activations`)."""
_NUMBERS = ("alpha", "at_zero", "sixth")


@dataclass
class Norm:
    """A normalization, as the operator's operands and attributes, and what it is written with."""

    y: relax.Var
    x: Expr
    axis: int
    epsilon: float
    affine: list[tuple[str, Expr]]  # "multiply" or "add" and a vector, in this order
    mean: relax.Var | None = None  # with axes of size 1
    variance: relax.Var | None = None
    running: tuple[Expr, Expr] | None = None
    updates: tuple[relax.Var, relax.Var] | None = None
    momentum: float = 0.0
    unbiased: bool = False
    residual: Expr = None
    activation: str = ""
    alpha: float = 0.0
    groups: int = 0  # of an image's channels; 0: statistics are those of the batch
    by_row: bool = False  # over one axis, for all others: layer normalization
    of_filters: bool = False  # by row, of a weight: what follows is no row's
    fields: dict[int, relax.Var] = field(default_factory=dict)  # of upstream's result


class Norms(Graph):
    """The normalizations of a function; `keep` : names of variables that have to stay."""

    def __init__(self, func: relax.Function, keep: Iterable[str]) -> None:
        super().__init__(func)
        names = set(keep)
        self.kept = {b.var for b in self.bindings if str(b.var.name) in names}

    def only_users(self, var: relax.Var) -> list[relax.Var] | None:
        """Who uses a variable, if it is an intermediate value."""
        stays = not isinstance(var, relax.DataflowVar) or var in self.kept
        return None if stays else self._users(var)

    def _users(self, var: relax.Var) -> list[relax.Var]:
        return [binding.var for binding in self.users_of(var)]

    def norms(self) -> list[Norm]:
        """All normalizations, with what follows them."""
        found: list[Norm] = []
        for binding in self.bindings:
            norm = (
                self._written_out(binding.var)
                or self._in_groups(binding.var)
                or self._upstreams(binding.var)
                or self._upstreams_groups(binding.var)
            )
            if norm is not None and _fits(norm):
                if not norm.of_filters:
                    self._take_affine(norm)
                if norm.by_row and not (norm.affine or norm.of_filters):
                    continue  # it may be an image's over pixels, of one dimension
                if norm.variance is not None and not norm.groups:
                    self._with_running(norm)
                found.append(norm)
        # Of two that are added the later takes the sum along, since the other is there by then.
        taken: set[relax.Var] = set()
        for norm in reversed(found):
            self._with_what_follows(norm, taken)
        return found

    def _written_out(self, var: relax.Var) -> Norm | None:
        """The normalization of which `var` is the part before gamma and beta."""
        found = match(self, _STANDARDIZED, var)
        if not found:
            return None
        x, mean, variance = found["x"], found["mean"], found["variance"]
        rest = _rest(self.value[mean], x)
        if rest is None or _rest(self.value[variance], x) != rest:
            return None
        epsilon = found.number("epsilon")
        if (axis := _row_axis(rest, x)) is not None:
            return Norm(var, x, axis, epsilon, [], groups=1, by_row=True)
        if len(rest) == 1:
            if self._is_of_filters(x, rest, mean, variance):
                return Norm(var, x, 2, epsilon, [], groups=1, by_row=True, of_filters=True)
            return Norm(var, x, rest[0], epsilon, [], mean, variance)
        # Of each channel of an image; over one axis it may be a layer's of rows.
        channels = (sizes_of(x.ty) or [0] * x.ty.ndim)[rest[1]] if len(rest) == 2 else 0
        if rest[0] != 0 or x.ty.ndim < 4 or not (isinstance(channels, int) and channels):
            return None
        return Norm(var, x, rest[1], epsilon, [], groups=channels)

    def _is_of_filters(self, x: Expr, rest: list[int], *statistics: relax.Var) -> bool:
        """Whether it standardizes a weight's filters, as a batch of one image whose channels they
        are: each is a row then, whose statistics nothing else uses."""
        sizes = sizes_of(x.ty) or []
        known = len(sizes) == 3 and all(isinstance(n, int) for n in sizes)
        if not known or sizes[0] != 1 or rest != [1] or not 1 < sizes[2] <= LONGEST_ROW:
            return False
        return all(len(self.only_users(var) or ()) == 1 for var in statistics)

    def _in_groups(self, var: relax.Var) -> Norm | None:
        """The normalization of rows of an image's channels, of which `var` is the image again."""
        back = self.call(var, "relax.reshape")
        if back is None or self.only_users(back.args[0]) != [var]:
            return None
        found = match(self, _STANDARDIZED, back.args[0])
        rows = self.call(found["x"], "relax.reshape") if found else None
        if rows is None:
            return None
        x, sizes, parts = rows.args[0], sizes_of(rows.args[0].ty), sizes_of(found["x"].ty)
        if sizes is None or parts is None or len(sizes) < 3 or len(parts) != 3:
            return None
        over = [_rest(self.value[found[name]], found["x"]) for name in ("mean", "variance")]
        whole = over == [[0, 1]] * 2 and parts[0] == sizes[0] and _same_type(var, x)
        if not whole or not all(isinstance(n, int) for n in (sizes[1], parts[1])):
            return None
        if sizes[1] % parts[1]:
            return None
        return Norm(var, x, 1, found.number("epsilon"), [], groups=parts[1])

    def _upstreams_groups(self, var: relax.Var) -> Norm | None:
        """`relax.nn.group_norm` and `relax.nn.instance_norm`, over all axes but the images'."""
        call = self.call(var, "relax.nn.group_norm", "relax.nn.instance_norm")
        sizes = sizes_of(call.args[0].ty) if call is not None else None
        if call is None or sizes is None or len(sizes) < 3:
            return None
        a, (x, gamma, beta) = call.attrs, call.args
        axis = int(a.channel_axis) % len(sizes)
        over = {int(i) % len(sizes) for i in a.axes}
        single = op_name(call) == "relax.nn.instance_norm"
        groups = sizes[axis] if single else int(a.num_groups)
        if axis == 0 or over != set(range(1, len(sizes))) - {axis} or not isinstance(groups, int):
            return None
        affine = [("multiply", gamma)] * bool(a.scale) + [("add", beta)] * bool(a.center)
        return Norm(var, x, axis, float(a.epsilon), affine, groups=groups)

    def _take_affine(self, norm: Norm) -> None:
        """Products with, and sums of, one number for each channel: gamma and beta, and what files
        have after them."""
        while True:
            users = self.only_users(norm.y) or []
            if len(users) != 1:
                return
            for name in ("multiply", "add"):
                vector = self._vector(beside(self.call(users[0], f"relax.{name}"), norm.y), norm)
                if vector is not None:
                    norm.affine.append((name, vector))
                    norm.y = users[0]
                    break
            else:
                return

    def _vector(self, expr: Expr, norm: Norm) -> Expr | None:
        """The vector that broadcasts along the channels' axis, if that is what an operand is."""
        if norm.axis == norm.x.ty.ndim - 1 and isinstance(expr, relax.Var):
            same = sizes_of(expr.ty) == _column(norm)[-1:] and dtype_of(expr) == dtype_of(norm.x)
            if same:
                return expr
        lifted = self.call(expr, "relax.reshape")
        if lifted is None:
            return None
        vector, column = lifted.args[0], _column(norm)
        while (before := self.call(vector, "relax.reshape")) is not None:  # an axis at a time
            vector = before.args[0]
        sizes = sizes_of(lifted.ty) or []
        # Axes of size 1 before the channels' may be missing.
        aligned = (
            norm.axis + len(sizes) >= len(column) and sizes == column[len(column) - len(sizes) :]
        )
        fits = getattr(vector.ty, "ndim", -1) == 1 and str(vector.ty.dtype) == dtype_of(norm.x)
        return vector if aligned and fits else None

    def _upstreams(self, var: relax.Var) -> Norm | None:
        """`relax.nn.batch_norm` in training mode."""
        call = self.call(var, "relax.nn.batch_norm")
        if call is None or not bool(getattr(call.attrs, "training", False)):
            return None
        fields: dict[int, relax.Var] = {}
        for user in self._users(var):
            item = self.value.get(user)
            if not isinstance(item, relax.TupleGetItem) or int(item.index) in fields:
                return None  # as a whole, or twice: CanonicalizeBindings first
            fields[int(item.index)] = user
        if 0 not in fields or not isinstance(var, relax.DataflowVar) or var in self.kept:
            return None
        a = call.attrs
        x, gamma, beta, mean, variance = call.args
        affine = [("multiply", gamma)] * bool(a.scale) + [("add", beta)] * bool(a.center)
        return Norm(
            fields[0], x, int(a.axis) % x.ty.ndim, float(a.epsilon), affine,
            running=(mean, variance), momentum=float(a.momentum), fields=fields,
        )  # fmt: skip

    def _with_running(self, norm: Norm) -> None:
        """Finds running' = kept running + share statistic of both statistics."""
        assert norm.mean is not None
        assert norm.variance is not None
        means, variances = self._updates(norm.mean), self._updates(norm.variance)
        if len(means) != 1 or len(variances) != 1:
            return
        (new_mean, mean, kept, share), (new_var, var, kept_var, share_var) = *means, *variances
        shape = sizes_of(norm.x.ty) or []
        count = math.prod(n for i, n in enumerate(shape) if i != norm.axis)
        # By a number of pixels that only the run knows no update can have been multiplied.
        factor = count / (count - 1) if isinstance(count, int) and count > 1 else 1.0
        biased, unbiased = abs(share_var - share), abs(share_var - share * factor)
        close = 1e-6 * max(abs(share), 1e-3)
        if abs(kept + share - 1) > 1e-6 or abs(kept - kept_var) > 1e-6:
            return
        if min(biased, unbiased) > close or not self._ends(new_mean, new_var):
            return
        norm.running, norm.updates = (mean, var), (new_mean, new_var)
        norm.momentum, norm.unbiased = share, unbiased < biased

    def _updates(self, statistic: relax.Var) -> list[tuple[relax.Var, Expr, float, float]]:
        """(variable, running, kept, share) of each update by a statistic."""
        flats = [flat for flat in self._users(statistic) if flat.ty.ndim == 1]
        totals = [t for flat in flats for p in self._users(flat) for t in self._users(p)]
        updates = [(total, match(self, _UPDATE, total)) for total in dict.fromkeys(totals)]
        return [
            (total, m["running"], m.number("kept"), m.number("share"))
            for total, m in updates
            if m and m["statistic"].same_as(statistic) and _same_type(m["running"], m["flat"])
        ]

    # ---- what follows ----------------------------------------------------------------------------

    def _with_what_follows(self, norm: Norm, taken: set[relax.Var]) -> None:
        """Takes a residual and an activation along."""
        users = self.only_users(norm.y) or []
        total = users[0] if len(users) == 1 else norm.y
        other = beside(self.call(total, "relax.add"), norm.y)
        # What is added may be made of anything but the operator's other results.
        alone = self._ends(*(var for index, var in norm.fields.items() if index))
        free = isinstance(other, relax.Var) and total not in taken and not norm.by_row
        if free and alone and _same_type(other, norm.y):
            norm.residual, norm.y = other, total
            taken.add(total)
        activation, alpha, result = self._activation(norm.y)
        # After a residual the slope is told by the result, which is all that is kept.
        if activation and (norm.residual is None or ACTIVATIONS[activation].by_result):
            norm.activation, norm.alpha, norm.y = activation, alpha, result

    def _ends(self, *results: relax.Var) -> bool:
        """Whether nothing is made of variables: they are results of the function, if anything."""
        users = [user for var in results for user in self._users(var)]
        return not any(user in self.uses for user in users)

    def _activation(self, z: relax.Var) -> tuple[str, float, relax.Var]:
        """The activation of which `z` is the only operand, its parameter and its result; or
        ("", 0, z), where the operators do not take the parameter too."""
        users = self.only_users(z) or []
        if len(users) == 1:
            found = self._operator(users[0])
        else:
            later = [end for user in users for end in self._users(user)]
            made = (self._written(z, end) for end in dict.fromkeys([*users, *later]))
            found = next((one for one in made if one is not None), None)
        return found if found is not None and 0 <= found[1] < math.inf else ("", 0.0, z)

    def _operator(self, end: relax.Var) -> tuple[str, float, relax.Var] | None:
        """An activation that is one operator."""
        name = op_name(self.value.get(end))
        if name not in _SINGLE:
            return None
        alpha = float(self.value[end].attrs.alpha) if name == "relax.nn.leakyrelu" else 0.0
        return _SINGLE[name], alpha, end

    def _written(self, z: relax.Var, end: relax.Var) -> tuple[str, float, relax.Var] | None:
        """One that is written out, of which `end` may be the result."""
        if op_name(self.value.get(end)) != "relax.where":
            return None
        for name, pattern in _WRITTEN.items():
            found = match(self, pattern, end)
            if not found or not found["z"].same_as(z) or not self._alone(z, end):
                continue
            numbers = {n: found.number(n) for n in _NUMBERS if n in found.found}
            alpha = numbers.get("alpha", 0.0)
            # Of ELU the slope at 0 is alpha, of which nothing is written where that is 1.
            at_zero = numbers.get("at_zero", 1.0) if name == "elu" else alpha
            wanted = {"sixth": 1 / 6, "alpha": at_zero}
            if all(abs(numbers.get(n, value) - value) < 1e-6 for n, value in wanted.items()):
                return name, alpha, end
        return None

    def _alone(self, z: relax.Var, end: relax.Var) -> bool:
        """Whether what `end` is made of, down to `z`, is used for it alone."""
        between: set[relax.Var] = {end}
        waiting = [end]
        while waiting:
            for var in variables_of(self.value[waiting.pop()]):
                if not var.same_as(z) and var in self.value and var not in between:
                    between.add(var)
                    waiting.append(var)
        users = [self.only_users(var) for var in (z, *(between - {end}))]
        return all(some is not None and between.issuperset(some) for some in users)


def _fits(norm: Norm) -> bool:
    """Whether the operands are what the operator takes; halves sum in half, and it does not."""
    dtype, shape = dtype_of(norm.x), sizes_of(norm.x.ty)
    if dtype in HALVES or shape is None or len(shape) < 2:
        return False
    vectors = [*(vector for _, vector in norm.affine), *(norm.running or ())]
    return all(v is None or str(v.ty.dtype) == dtype for v in vectors)


def _rest(call: relax.Call, x: Expr) -> list[int] | None:
    """The axes over which a mean with axes kept is not taken."""
    axes = call.attrs.axis
    if axes is None or not bool(call.attrs.keepdims) or x.ty.ndim < 2:
        return None
    return sorted(set(range(x.ty.ndim)) - {int(a) % x.ty.ndim for a in axes})


def _row_axis(rest: list[int], x: Expr) -> int | None:
    """The axis of a layer's normalization that is over one axis alone, of sizes all known."""
    (*over,) = set(range(x.ty.ndim)) - set(rest)
    sizes = sizes_of(x.ty) or []
    known = len(sizes) >= 3 and all(isinstance(n, int) for n in sizes)
    short = known and len(over) == 1 and sizes[over[0]] <= LONGEST_ROW
    return over[0] if short else None


def _column(norm: Norm) -> list[Any]:
    shape = sizes_of(norm.x.ty) or []
    return [n if i == norm.axis else 1 for i, n in enumerate(shape)]


def _same_type(a: Expr, b: Expr) -> bool:
    return dtype_of(a) == dtype_of(b) and sizes_of(a.ty) == sizes_of(b.ty)
