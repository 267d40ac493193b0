"""Training batch normalizations in a forward function, as front ends write them: finding them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax

from ..dtypes import HALVES
from ..graph.view import Graph
from ..ir import op_name
from ..layout_rules.in_layout import sizes_of
from ..ops.batch_norm import dtype_of

Expr = Any


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
        parts = self._standardized(var)
        if parts is None:
            return None
        x, mean, variance, epsilon = parts
        axis = _channel_axis(self.value[mean], x)
        if axis is None or _channel_axis(self.value[variance], x) != axis:
            return None
        return Norm(var, x, axis, epsilon, [], mean, variance)

    def _standardized(self, var: relax.Var) -> tuple[Expr, relax.Var, relax.Var, float] | None:
        """(x, mean, variance, epsilon) of (x - mean) / sqrt(variance + epsilon)."""
        for centred, deviation, root in self._quotients(var):
            inner = self.call(deviation, root)
            total = self.call(inner.args[0], "relax.add") if inner is not None else None
            difference = self.call(centred, "relax.subtract")
            if total is None or difference is None:
                continue
            variance, epsilon = total.args[0], _number(total.args[1])
            if epsilon is None:
                variance, epsilon = total.args[1], _number(total.args[0])
            x, mean = difference.args
            square = self.call(variance, "relax.mean")
            product = self.call(square.args[0], "relax.multiply") if square is not None else None
            mean_call = self.call(mean, "relax.mean")
            if epsilon is None or product is None or mean_call is None:
                continue
            if all(a.same_as(centred) for a in product.args) and mean_call.args[0].same_as(x):
                return x, mean, variance, epsilon
        return None

    def _quotients(self, var: relax.Var) -> list[tuple[Expr, Expr, str]]:
        """(a, b, the root that b must be) for a / b, or for a times b in either order."""
        if (call := self.call(var, "relax.divide")) is not None:
            return [(call.args[0], call.args[1], "relax.sqrt")]
        if (call := self.call(var, "relax.multiply")) is not None:
            a, b = call.args
            return [(a, b, "relax.rsqrt"), (b, a, "relax.rsqrt")]
        return []

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
        means, variances = self._updates(norm.mean, norm), self._updates(norm.variance, norm)
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

    def _updates(
        self, statistic: relax.Var, norm: Norm
    ) -> list[tuple[relax.Var, Expr, float, float]]:
        """(variable, running, kept, share) of each update by a statistic."""
        found: list[Any] = []
        for flat in self._users(statistic):
            if self.call(flat, "relax.reshape") is None or flat.ty.ndim != 1:
                continue
            for product in self._users(flat):
                share = self._scaled(product, flat)
                for total in self._users(product) if share is not None else []:
                    call = self.call(total, "relax.add")
                    scaled = self.call(_other(call, product), "relax.multiply")
                    for running, number in _pairs(scaled):
                        kept = _number(number)
                        if None not in (kept, share) and _same_type(running, flat):
                            found.append((total, running, kept, share))
        return found

    def _scaled(self, var: relax.Var, by: relax.Var) -> float | None:
        """The number that `by` is multiplied by in `var`."""
        call = self.call(var, "relax.multiply")
        return _number(_other(call, by))

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
        if activation and not (norm.residual is not None and activation == "silu"):
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
        for low in users:
            at_least = self.call(low, "relax.less_equal")
            ends = self.only_users(low) or []
            outer = self.call(ends[0], "relax.where") if len(ends) == 1 else None
            if at_least is None or _number(at_least.args[1]) != 0 or outer is None:
                continue
            inner = self.call(outer.args[2], "relax.where")
            high = self.call(inner.args[0], "relax.greater_equal") if inner is not None else None
            if inner is None or high is None:
                continue
            parts = [low, outer.args[2], inner.args[0]]
            numbers = [_number(e) for e in (high.args[1], inner.args[1], outer.args[1])]
            whole = all(e.same_as(z) for e in (at_least.args[0], high.args[0], inner.args[2]))
            alone = all(len(self.only_users(p) or []) == 1 for p in parts)
            if whole and alone and numbers == [6, 6, 0] and set(users) == set(parts):
                return "relu6", ends[0]
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


def _pairs(call: relax.Call | None) -> list[tuple[Expr, Expr]]:
    """Both operands of a call, in both orders."""
    return [] if call is None else [(call.args[0], call.args[1]), (call.args[1], call.args[0])]


def _other(call: relax.Call | None, var: relax.Var) -> Expr:
    """The operand beside `var` of a call with two; None where there is none."""
    others = [a for a in call.args if not a.same_as(var)] if call is not None else []
    return others[0] if len(others) == 1 else None


def _number(expr: Expr) -> float | None:
    """The value of a constant of one element."""
    if not isinstance(expr, tvm.ir.Constant):
        return None
    value = expr.value.numpy()
    return float(value.reshape(())) if value.size == 1 else None


def _same_type(a: Expr, b: Expr) -> bool:
    return dtype_of(a) == dtype_of(b) and sizes_of(a.ty) == sizes_of(b.ty)
