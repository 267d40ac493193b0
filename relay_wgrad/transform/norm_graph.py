"""Training batch normalizations in a forward function, as front ends write them: finding them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tvm import relax

from ..dtypes import HALVES
from ..graph.def_use import Graph
from ..graph.match import Constant, OneOf, call, match
from ..ir import op_name
from ..layout_rules.in_layout import sizes_of
from ..ops.batch_norm import ACTIVATIONS, dtype_of

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
# where(z <= 0, 0, where(z >= 6, 6, z)), as the front ends write it
_HIGH = call("relax.greater_equal", "z", 6.0, name="high")
_RELU6 = call(
    "relax.where", call("relax.less_equal", "z", 0.0, name="low"), 0.0,
    call("relax.where", _HIGH, 6.0, "z", name="inner"),
)  # fmt: skip


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
            norm = self._written_out(binding.var) or self._upstreams(binding.var)
            if norm is not None and _fits(norm):
                self._take_affine(norm)
                if norm.variance is not None:
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
        axis = _channel_axis(self.value[mean], x)
        if axis is None or _channel_axis(self.value[variance], x) != axis:
            return None
        return Norm(var, x, axis, found.number("epsilon"), [], mean, variance)

    def _take_affine(self, norm: Norm) -> None:
        """Products with, and sums of, one number for each channel: gamma and beta, and what files
        have after them."""
        while True:
            users = self.only_users(norm.y) or []
            if len(users) != 1:
                return
            for name in ("multiply", "add"):
                vector = self._vector(_other(self.call(users[0], f"relax.{name}"), norm.y), norm)
                if vector is not None:
                    norm.affine.append((name, vector))
                    norm.y = users[0]
                    break
            else:
                return

    def _vector(self, expr: Expr, norm: Norm) -> Expr | None:
        """The vector that broadcasts along the channels' axis, if that is what an operand is."""
        lifted = self.call(expr, "relax.reshape")
        if lifted is None:
            return None
        vector, column = lifted.args[0], _column(norm)
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
        factor = count / (count - 1) if count > 1 else 1.0
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
        other = _other(self.call(total, "relax.add"), norm.y)
        # What is added may be made of anything but the operator's other results.
        alone = self._ends(*(var for index, var in norm.fields.items() if index))
        free = isinstance(other, relax.Var) and total not in taken
        if free and alone and _same_type(other, norm.y):
            norm.residual, norm.y = other, total
            taken.add(total)
        activation, result = self._activation(norm.y)
        # After a residual the slope is told by the result, which is all that is kept.
        if activation and (norm.residual is None or ACTIVATIONS[activation].by_result):
            norm.activation, norm.y = activation, result

    def _ends(self, *results: relax.Var) -> bool:
        """Whether nothing is made of variables: they are results of the function, if anything."""
        users = [user for var in results for user in self._users(var)]
        return not any(user in self.uses for user in users)

    def _activation(self, z: relax.Var) -> tuple[str, relax.Var]:
        """The activation of which `z` is the only operand, and its result; or ("", z)."""
        users = self.only_users(z) or []
        if len(users) == 1:
            name = op_name(self.value.get(users[0])).removeprefix("relax.nn.")
            return (name, users[0]) if name in ("relu", "silu") else ("", z)
        return self._relu6(z, users)

    def _relu6(self, z: relax.Var, users: list[relax.Var]) -> tuple[str, relax.Var]:
        """where(z <= 0, 0, where(z >= 6, 6, z)), as the front ends write it."""
        ends = [end for user in users for end in self._users(user)] if len(users) == 3 else []
        for end in dict.fromkeys(ends):
            found = match(self, _RELU6, end)
            parts = [found[name] for name in ("low", "high", "inner")] if found else []
            alone = all(len(self.only_users(part) or []) == 1 for part in parts)
            if found and found["z"].same_as(z) and alone and set(users) == set(parts):
                return "relu6", end
        return "", z


def _fits(norm: Norm) -> bool:
    """Whether the operands are what the operator takes; halves sum in half, and it does not."""
    dtype, shape = dtype_of(norm.x), sizes_of(norm.x.ty)
    if dtype in HALVES or shape is None or len(shape) < 2:
        return False
    vectors = [*(vector for _, vector in norm.affine), *(norm.running or ())]
    return all(v is None or str(v.ty.dtype) == dtype for v in vectors)


def _channel_axis(call: relax.Call, x: Expr) -> int | None:
    """The only axis over which a mean with axes kept is not taken."""
    axes = call.attrs.axis
    if axes is None or not bool(call.attrs.keepdims) or x.ty.ndim < 2:
        return None
    rest = set(range(x.ty.ndim)) - {int(a) % x.ty.ndim for a in axes}
    return rest.pop() if len(rest) == 1 else None


def _column(norm: Norm) -> list[Any]:
    shape = sizes_of(norm.x.ty) or []
    return [n if i == norm.axis else 1 for i, n in enumerate(shape)]


def _other(call: relax.Call | None, var: relax.Var) -> Expr:
    """The operand beside `var` of a call with two; None where there is none."""
    others = [a for a in call.args if not a.same_as(var)] if call is not None else []
    return others[0] if len(others) == 1 else None


def _same_type(a: Expr, b: Expr) -> bool:
    return dtype_of(a) == dtype_of(b) and sizes_of(a.ty) == sizes_of(b.ty)
