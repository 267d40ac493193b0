"""Which softmax of a module goes to kernels of our own, and how it is written then.

What scores become before it, casts, a factor, what is added, is part of it, so is the rounding of
its result, and all of that backward: roundings in between are left out.  Where products by cuBLAS
alone read a result, its rows are filled up to whole packs of 16 bytes, of which the products read
the columns that there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import tvm
from tvm import relax

from relay_wgrad.dtypes import HALVES, MIXED
from relay_wgrad.graph.def_use import Graph
from relay_wgrad.graph.rebuild import normal, rebuilt, substitute, without_unused
from relay_wgrad.graph.walk import Block, bindings_of, functions_in, variables_of
from relay_wgrad.ir import is_closed, op_name
from relay_wgrad.layout_rules.in_layout import sizes_of
from relay_wgrad.layout_rules.table import PERMUTE, RESHAPES

from ..batched_products.lower import CAST, MATMUL, products_of, tf32_of
from ..batched_products.views import BROADCAST
from ..codegen.lowering import DirectEntry, Symbols, with_source, written
from .backward import Gradient, factor_of, gradients_of
from .call import Added, SoftmaxCall, check, padded
from .codegen import SOFTMAX

OP = "relax.nn.softmax"
ADD, MULTIPLY, DIVIDE = "relax.add", "relax.multiply", "relax.divide"
Expr = Any


@dataclass
class _Scores:
    """What a softmax is of: scale * source + what is added."""

    source: Expr
    scale: float = 1.0
    added: list[tuple[Added, Expr]] = field(default_factory=list)


@dataclass
class Found:
    """A softmax, and what becomes of it.

    made : the variable that has the weights now, itself or its rounding; others : of the same
        rounding.
    reason : why it stays.
    """

    var: relax.Var
    call: Any = None
    args: list[Expr] = field(default_factory=list)
    made: Any = None
    others: list[relax.Var] = field(default_factory=list)
    gradients: list[Gradient] = field(default_factory=list)
    reason: str = ""


def lower_softmax(
    mod: tvm.IRModule, arch: int, fill: bool = False
) -> tuple[tvm.IRModule, tuple[DirectEntry, ...]]:
    """The module with each softmax that `check` takes, and its gradients, as calls of functions.

    Parameters
    ----------
    mod : any module; functions of it that are a code generator's, or fused, stay.
    arch : the oldest GPU that runs it, as nvcc numbers it (90 of sm_90).
    fill : whether rows may be filled up for products, which go to cuBLAS.

    Returns
    -------
    (tvm.IRModule, tuple) : a new module, and an entry for each softmax in program order.
    """
    out, symbols, entries = mod.clone(), Symbols(SOFTMAX), list[DirectEntry]()
    for var, func in functions_in(mod, by_name=True):
        if is_closed(func) or all(op_name(b.value) != OP for b in bindings_of(func)):
            continue
        view = Graph(func)
        found = [found_of(view, b.var, b.value) for b in view.bindings if op_name(b.value) == OP]
        for one in found:
            symbol = "" if one.reason else symbols.of(one.call)
            name = str(one.var.name)
            entries.append(DirectEntry(str(var.name_hint), name, "softmax", symbol, one.reason))
        taken = [one for one in found if not one.reason]
        if taken:
            products = _products(func, tf32_of(mod)) if fill else set()
            made = rebuilt(func, _Writer(view, taken, products, symbols).bindings)
            out.update_func(var, without_unused(made))
    return with_source(out, symbols, arch), tuple(entries)


def _products(func: relax.Function, tf32: bool) -> set[relax.Var]:
    """Those that go to cuBLAS."""
    return {one.product for one in products_of(func, tf32) if not one.reason}


# ---- one softmax ---------------------------------------------------------------------------------


def found_of(view: Graph, var: relax.Var, call: relax.Call) -> Found:
    """What becomes of a softmax, with what is around it."""
    sizes, dtype = sizes_of(var.ty), str(var.ty.dtype)
    axis = int(call.attrs.axis)
    if sizes is None or not sizes or not isinstance(sizes[-1], int):
        return Found(var, reason=f"columns that are known when it runs: {var.ty}")
    if axis not in (-1, len(sizes) - 1):
        return Found(var, reason=f"along axis {axis} of {len(sizes)}")
    if dtype not in MIXED:
        return Found(var, reason=f"dtype {dtype}")
    scores = _scores(view, call.args[0], sizes)
    matched = [one for one in gradients_of(view, var) if view.block[one.var] == view.block[var]]
    members = {v for one in matched for v in one.members}
    users = [b for b in view.users_of(var) if b.var not in members]
    rounded = [b for b in users if op_name(b.value) == CAST and str(b.var.ty.dtype) in HALVES]
    kinds = {str(b.var.ty.dtype) for b in rounded}
    narrow = dtype == "float32" and len(rounded) == len(users) > 0 and len(kinds) == 1
    narrow = narrow and var not in view.results
    narrow = narrow and all(one.of(kinds_of) for one in matched for kinds_of in kinds)
    narrow = narrow and all(view.block[b.var] == view.block[var] for b in rounded)
    result = kinds.pop() if narrow else dtype
    made = SoftmaxCall(
        "", "forward", str(scores.source.ty.dtype), result, sizes[-1], scores.scale,
        tuple(one for one, _ in scores.added),
    )  # fmt: skip
    decision = check(replace(made, symbol=SOFTMAX.codegen))
    first = rounded[0].var if narrow else var
    return Found(
        var, made, [scores.source, *(expr for _, expr in scores.added)], first,
        [b.var for b in rounded[1:]] if narrow else [],
        [g for one in matched if (g := one.of(result)) is not None], decision.reason,
    )  # fmt: skip


def _scores(view: Graph, x: Expr, sizes: Sequence[Any]) -> _Scores:
    """By what a softmax's operand is made of scores: the earliest that a kernel may read."""
    best = now = _Scores(view.resolved(x))
    while (made := _before(view, now, sizes)) is not None:
        now = made
        readable = str(now.source.ty.dtype) in MIXED and isinstance(now.source, relax.Var)
        best = now if readable else best
    return best


def _before(view: Graph, now: _Scores, sizes: Sequence[Any]) -> _Scores | None:
    """One operator less; None where the next is no part of a softmax."""
    call = view.call(now.source, CAST, ADD, MULTIPLY, DIVIDE, *RESHAPES)
    if call is None:
        return None
    name, first = op_name(call), view.resolved(call.args[0])
    if name == CAST or name in RESHAPES:
        same = (sizes_of(first.ty) or [None])[-1:] == list(sizes[-1:])
        return replace(now, source=first) if same and str(first.ty.dtype) in MIXED else None
    if name in (MULTIPLY, DIVIDE):
        factor = factor_of(call)
        if factor is None or sizes_of(factor[0].ty) != sizes_of(now.source.ty):
            return None
        source, number = factor
        return replace(now, source=view.resolved(source), scale=now.scale * number)
    if now.scale != 1.0:
        return None
    for scores, mask in (call.args, reversed(list(call.args))):
        if sizes_of(scores.ty) != sizes_of(now.source.ty) or not _of_a_product(view, scores):
            continue
        added = _added(mask, sizes_of(now.source.ty))
        if added is not None:
            return _Scores(view.resolved(scores), 1.0, [(added, mask), *now.added])
    return None


def _of_a_product(view: Graph, expr: Expr) -> bool:
    """Whether one of several terms is what products make: another is what is added to it."""
    while (
        call := view.call(view.resolved(expr), CAST, ADD, MULTIPLY, DIVIDE, *RESHAPES)
    ) is not None:
        if op_name(call) == ADD:
            return any(_of_a_product(view, arg) for arg in call.args)
        expr = next((a for a in call.args if isinstance(a, relax.Var)), None)
    return view.call(view.resolved(expr), MATMUL) is not None


def _added(mask: Expr, sizes: Any) -> Added | None:
    """A tensor that is added to rows of these sizes; None where a kernel has no steps for it."""
    own = sizes_of(mask.ty)
    if own is None or not own or own[-1] != sizes[-1] or str(mask.ty.dtype) not in MIXED:
        return None
    own = [1] * (len(sizes) - len(own)) + list(own)
    steps, stride, divisor, extent = list[tuple[int, int, int]](), own[-1], 1, own[-1]
    for at in range(len(sizes) - 2, -1, -1):
        mine, size = own[at], sizes[at]
        if not isinstance(size, int):
            # However many images: all of a tensor that has as many, or one for all.
            if at or not (isinstance(mine, int) and mine == 1):
                return None
            break
        if not isinstance(mine, int):
            return None
        if mine != 1:
            last = steps[-1] if steps else None
            if last is not None and last[0] * last[1] == divisor and last[1] * last[2] == stride:
                steps[-1] = (last[0], last[1] * size, last[2])
            else:
                steps.append((divisor, size, stride))
            stride, extent = stride * size, extent * size
        divisor *= size
    return Added(str(mask.ty.dtype), tuple(steps), extent)


# ---- writing -------------------------------------------------------------------------------------


class _Writer:
    """Writes calls for what was found, a block at a time."""

    def __init__(
        self, view: Graph, taken: list[Found], products: set[relax.Var], symbols: Symbols
    ) -> None:
        self.view, self.products, self.symbols = view, products, symbols
        self.at: dict[relax.Var, Callable[[], list[Any]]] = {}
        self.weights: dict[relax.Var, Expr] = {}
        self.gone: set[relax.Var] = set()
        self.unbound: set[relax.Var] = set()  # and what is made of them
        self.members = {v for one in taken for g in one.gradients for v in g.members}
        self.views: dict[relax.Var, relax.Var] = {}  # a tensor -> that with its rows filled up
        self.named = 0
        for one in taken:
            self.at[one.var] = partial(self._forward, one)
            self.gone |= {one.made, *one.others} - {one.var}
            self.unbound |= {one.var} - {one.made}
            for gradient in one.gradients:
                self.at[gradient.var] = partial(self._backward, one, gradient)
                self.gone |= {gradient.result} - {gradient.var}
                self.unbound |= set() if gradient.wide else {gradient.var} - {gradient.result}

    def bindings(self, block: Block) -> list[Any]:
        out: list[Any] = []
        for binding in block.bindings:
            var = binding.var
            if var in self.at:
                out += self.at[var]()
            elif var in self.gone:
                continue
            elif self.unbound.intersection(variables_of(binding.value)):
                self.unbound.add(var)  # nothing that stays is made of it
            else:
                out += self._seen(binding)
        return out

    def _seen(self, binding: Any) -> list[Any]:
        """A binding, before it what it reads of tensors whose rows are filled up.  Each has its own
        view of them, so that of a step in two parts the later one has what it reads."""
        call = binding.value
        read = [v for v in self.views if any(arg.same_as(v) for arg in _operands(call))]
        if not read:
            return [binding]
        before, new = list[Any](), dict[relax.Var, relax.Var]()
        for var in read:
            whole, columns = self.views[var], (sizes_of(var.ty) or [])[-1]
            parts = normal(relax.op.split(whole, [columns], axis=-1))
            both = relax.DataflowVar(f"{var.name}_parts", parts.ty)
            item = normal(relax.TupleGetItem(both, 0))
            new[var] = relax.DataflowVar(f"{var.name}_columns", item.ty)
            before += [relax.VarBinding(both, parts), relax.VarBinding(new[var], item)]
        changed = normal(substitute(call, new))
        return [*before, relax.VarBinding(binding.var, changed, binding.span)]

    def _forward(self, one: Found) -> list[Any]:
        made = self._filled(one.made, [one.made, *one.others])
        self.weights[one.var] = made
        out = written(self.symbols.of(one.call), one.args, [made], self._name())
        if made is not one.made:
            self.views |= dict.fromkeys((one.made, *one.others), made)
            return out
        return out + [relax.VarBinding(var, made) for var in one.others]

    def _backward(self, one: Found, gradient: Gradient) -> list[Any]:
        call = SoftmaxCall(
            "", "backward", one.call.dtype, one.call.dtype, one.call.columns, gradient.scale,
            wide=gradient.wide,
        )  # fmt: skip
        made = self._filled(gradient.result, [gradient.result])
        results = [made, gradient.var] if gradient.wide else [made]
        out = written(
            self.symbols.of(call), [gradient.given, self.weights[one.var]], results, self._name()
        )
        if made is not gradient.result:
            self.views[gradient.result] = made
        return out

    def _name(self) -> str:
        self.named += 1
        return f"softmax_{self.named}"

    def _filled(self, var: relax.Var, same: list[relax.Var]) -> relax.Var:
        """The variable, or another of longer rows that stands for these."""
        sizes = sizes_of(var.ty) or []
        wide = padded(sizes[-1], str(var.ty.dtype))
        whole = all(isinstance(size, int) for size in sizes)
        if not whole or wide == sizes[-1] or not all(self._of_products(v) for v in same):
            return var
        ty = relax.TensorType([*sizes[:-1], wide], str(var.ty.dtype))
        return relax.DataflowVar(f"{var.name}_filled", ty)

    def _of_products(self, var: relax.Var, users: Any = None) -> bool:
        """Whether only products by cuBLAS read a variable, which see through what moves it."""
        if not isinstance(var, relax.DataflowVar) or var in self.view.results:
            return False
        read = [b for b in self.view.users_of(var) if b.var not in self.members]
        return all(
            b.var in self.products
            or (op_name(b.value) in (PERMUTE, BROADCAST, *RESHAPES) and self._of_products(b.var))
            for b in read
        ) and bool(read)


def _operands(value: Any) -> Sequence[Any]:
    return list(value.args) if isinstance(value, relax.Call) else []
