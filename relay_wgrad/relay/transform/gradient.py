"""First-order gradients in reverse, as Relay's FirstOrderGradient makes them.

The function becomes a graph without `let` or calls of functions.  Then every value x of it gets a
`let`, and another for its gradient dx, zeros at first.  The results' gradients are ones; from the
last call to the first, each rule's gradients are added to its arguments':

    let x = …;  let dx = zeros_like(x);  …
    (result, (let dx1 = add(dx, rule's); …  (d of each parameter)))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from tvm import relax

from ...dtypes import HALVES
from .. import gradients as _rules  # noqa: F401  (fills the table of rules)
from ..ast import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    IRModule,
    Let,
    Op,
    Tuple,
    TupleGetItem,
    Var,
    children,
    operator_of,
    post_order,
)
from ..infer import agree, fail, infer_expr, infer_module, infer_types, span_text
from ..iterative_walks import order
from ..make import call
from ..records import show
from ..records.hooks import GRADIENTS
from ..rewrite import rewrite
from ..surface import check_relay_module
from ..types import FuncType, TensorType, TupleType, Type
from .normal_forms import inlined
from .simplify_inference import NAMES, expanded

_FLOATS = ("float", "bfloat")


def first_order_gradient(mod: IRModule) -> IRModule:
    """The module with (results, (gradient of each parameter)) for each function.  Needs types.

    Raises
    ------
    TypeError, ValueError : for an operator without a rule, recursion, functions as values;
        a rule that gives another number of gradients, or one of a wrong type.
    """
    functions = {name: _differentiated(f, mod) for name, f in mod.functions.items()}
    return infer_module(replace(mod, functions=functions))


def gradient(expr: Expr, mod: IRModule | None = None, mode: str = "higher_order") -> Function:
    """The function that gives (results, (gradient of each parameter)) for the function `expr`.

    `mode` is Relay's.  Both give the first-order form here.  Of several results "first_order" takes
    the sum, "higher_order" the first tensor alone.  `expr` may also be the GlobalVar of a function
    of `mod`.

    Raises
    ------
    TypeError, ValueError : as the pass FirstOrderGradient; for what is no function; for a mode that
        is neither "first_order" nor "higher_order".
    """
    if mode not in ("first_order", "higher_order"):
        raise ValueError(f"gradient: mode must be first_order or higher_order, got {mode!r}")
    mod = mod if mod is not None else IRModule({})
    check_relay_module("gradient", mod)
    if isinstance(expr, relax.Function):
        raise TypeError("gradient: this is a Relax function: use relay_wgrad.transform.grad")
    if not isinstance(expr, Expr):
        raise TypeError(f"gradient: expected a function, got {expr!r}")
    if isinstance(expr, GlobalVar):
        if expr not in mod:
            raise ValueError(f"gradient: the module has no @{expr.name}")
        expr = mod[expr]
    function = infer_expr(expr, mod)
    if not isinstance(function, Function):
        raise TypeError(f"gradient: expected a function, got {type(expr).__name__}")
    first_only = mode == "higher_order"
    out = infer_expr(_differentiated(function, infer_module(mod), first_only), mod)
    assert isinstance(out, Function)
    return out


def _differentiated(function: Function, mod: IRModule, first_only: bool = False) -> Function:
    graph = infer_expr(_simple(inlined(function, mod)))
    assert isinstance(graph, Function)
    assert isinstance(graph.checked_type, FuncType)
    body = _Reverse().run(graph, first_only)
    result = graph.checked_type.ret_type
    ret_type = TupleType((result, TupleType(graph.checked_type.arg_types)))
    return Function(graph.params, body, ret_type, attrs=function.attrs, span=function.span)


def _simple(function: Function) -> Function:
    """With the operators that have no rule, but a form in simple ones, in that form."""

    def change(old: Expr, node: Expr) -> Expr:
        if isinstance(node, TupleGetItem) and isinstance(node.tuple_value, Tuple):
            return node.tuple_value.fields[node.index]
        name = operator_of(node)
        if name in NAMES and name not in GRADIENTS:
            assert isinstance(old, Call)
            assert isinstance(node, Call)
            ty = old.args[0].checked_type
            assert ty is not None
            return _expanded(node, ty)
        return node

    out = rewrite(function, change)
    assert isinstance(out, Function)
    return out


def _expanded(node: Call, ty: Type) -> Expr:
    """`expanded`; of half-precision tensors in float32, rounded where the operator's results are,
    so that its own steps are not, nor their gradients."""
    assert isinstance(node.op, Op)
    if not isinstance(ty, TensorType) or ty.dtype not in HALVES or node.op.name == "nn.dropout":
        return expanded(node, ty)
    wide = replace(node, args=tuple(call("cast", x, dtype="float32") for x in node.args))
    out = expanded(wide, replace(ty, dtype="float32"))
    if isinstance(out, Tuple):
        return Tuple(tuple(call("cast", field, dtype=ty.dtype) for field in out.fields))
    return call("cast", out, dtype=ty.dtype)


class _Lets:
    """Bindings in order, closed over a result."""

    def __init__(self) -> None:
        self.bound: list[tuple[Var, Expr]] = []

    def push(self, value: Expr, ty: Type) -> Var:
        var = Var("x", ty, checked_type=ty)
        self.bound.append((var, value))
        return var

    def close(self, result: Expr) -> Expr:
        for var, value in reversed(self.bound):
            result = Let(var, value, result)
        return result


class _Value:
    """A value of the forward program, and its gradient as far as it is known."""

    def __init__(self, lets: _Lets, value: Expr, ty: Type) -> None:
        self.type = ty
        self.forward = lets.push(value, ty)
        self.reverse: Expr = lets.push(_filled("zeros", self.forward, ty), ty)


class _Reverse:
    """The gradient of one graph."""

    def __init__(self) -> None:
        self.lets = _Lets()
        self.values: dict[Expr, _Value] = {}
        self.back: list[Callable[[_Lets], None]] = []

    def run(self, graph: Function, first_only: bool) -> Expr:
        for param in graph.params:
            self._value(param, param)
        self._graph(graph.body)
        result = self.values[graph.body]
        params = [self.values[param] for param in graph.params]
        result.reverse = (_first if first_only else _ones)(result.forward, result.type)
        lets = _Lets()
        for step in reversed(self.back):
            step(lets)
        grads = lets.close(Tuple(tuple(p.reverse for p in params)))
        return self.lets.close(Tuple((result.forward, grads)))

    def _graph(self, root: Expr) -> None:
        """The values of a graph; what only a branch of `if` needs is its own."""

        def below(node: Expr) -> tuple[Expr, ...]:
            return (node.cond,) if isinstance(node, If) else children(node)

        for node in order(root, below):
            if node not in self.values and not isinstance(node, Op):
                self._forward(node)

    def _value(self, node: Expr, value: Expr) -> _Value:
        assert node.checked_type is not None, node
        out = self.values[node] = _Value(self.lets, value, node.checked_type)
        return out

    def _forward(self, node: Expr) -> None:
        if isinstance(node, Call):
            self._call(node)
        elif isinstance(node, Tuple):
            self._tuple(node)
        elif isinstance(node, TupleGetItem):
            self._item(node)
        elif isinstance(node, If):
            self._if(node)
        elif isinstance(node, Constant):
            self._value(node, node)
        elif isinstance(node, Var):
            fail(node, f"%{node.name} is not bound here")
        else:
            fail(node, f"{node!r} has no gradient")

    def _call(self, node: Call) -> None:
        args = [self.values[arg] for arg in node.args]
        orig = replace(node, args=tuple(arg.forward for arg in args))
        out = self._value(node, orig)
        if _floating(node.checked_type):
            assert isinstance(node.op, Op)
            rule = GRADIENTS.find(node.op.name)
            if rule is None:
                fail(node, f"the operator {node.op.name} has no gradient")
            self.back.append(lambda lets: _apply(lets, rule, orig, out, args))

    def _tuple(self, node: Tuple) -> None:
        fields = [self.values[field] for field in node.fields]
        out = self._value(node, replace(node, fields=tuple(f.forward for f in fields)))

        def back(lets: _Lets) -> None:
            for i, field in enumerate(fields):
                part = TupleGetItem(out.reverse, i)
                field.reverse = _added(lets, field.type, field.reverse, part)

        self.back.append(back)

    def _item(self, node: TupleGetItem) -> None:
        whole = self.values[node.tuple_value]
        out = self._value(node, replace(node, tuple_value=whole.forward))
        assert isinstance(whole.type, TupleType)
        types = whole.type.fields

        def back(lets: _Lets) -> None:
            parts: list[Expr] = [TupleGetItem(whole.reverse, i) for i in range(len(types))]
            parts[node.index] = _added(lets, out.type, parts[node.index], out.reverse)
            whole.reverse = lets.push(Tuple(tuple(parts)), whole.type)

        self.back.append(back)

    def _if(self, node: If) -> None:
        """The branch that was taken is computed again, and its gradient in reverse."""
        cond = self.values[node.cond].forward
        branches = node.true_branch, node.false_branch
        used = {n: None for branch in branches for n in self._around(branch)}
        forward: dict[Expr, Expr] = {n: self.values[n].forward for n in used}
        new = [rewrite(branch, lambda old, made: made, dict(forward)) for branch in branches]
        out = self._value(node, If(cond, new[0], new[1]))
        wanted = [n for n in used if _floating(self.values[n].type)]
        if not _floating(out.type) or not wanted:
            return
        ty = TupleType(tuple(self.values[n].type for n in wanted))

        def back(lets: _Lets) -> None:
            grads = [self._branch(branch, used, wanted, out.reverse) for branch in branches]
            whole = lets.push(If(cond, grads[0], grads[1]), ty)
            for i, n in enumerate(wanted):
                value = self.values[n]
                part = TupleGetItem(whole, i)
                value.reverse = _added(lets, value.type, value.reverse, part)

        self.back.append(back)

    def _around(self, branch: Expr) -> list[Expr]:
        """The values around a branch that it needs."""
        nodes = post_order(branch, lambda n: n not in self.values)
        return [n for n in nodes if n in self.values]

    def _branch(self, branch: Expr, used: Iterable[Expr], wanted: list[Expr], grad: Expr) -> Expr:
        """The gradients of what is wanted around a branch, of its result's."""
        inner = _Reverse()
        for n in used:
            inner._value(n, self.values[n].forward)
        inner._graph(branch)
        inner.values[branch].reverse = grad
        lets = _Lets()
        for step in reversed(inner.back):
            step(lets)
        return inner.lets.close(lets.close(Tuple(tuple(inner.values[n].reverse for n in wanted))))


def _apply(lets: _Lets, rule: Any, orig: Call, out: _Value, args: list[_Value]) -> None:
    """Adds what a rule gives to the gradients of a call's arguments."""
    assert isinstance(orig.op, Op)
    name = orig.op.name
    try:
        parts = [_unwrapped(part) for part in rule(orig, out.reverse)]
    except (TypeError, ValueError) as error:
        raise type(error)(f"{error}{span_text(orig)}") from error
    if len(parts) != len(args):
        fail(
            orig,
            f"the gradient of {name} must give {len(args)} gradients, one for each argument,"
            f" got {len(parts)}",
        )
    for i, (arg, part) in enumerate(zip(args, parts, strict=True)):
        if not isinstance(part, Expr):
            fail(
                orig, f"the gradient of {name} by argument {i} must be an expression, got {part!r}"
            )
        if not _floating(arg.type):
            continue
        got = infer_types(part)[part]
        if not agree(got, arg.type):
            fail(
                orig,
                f"the gradient of {name} by argument {i} must be {show(arg.type)}, got {show(got)}",
            )
        arg.reverse = _added(lets, arg.type, arg.reverse, part)


def _unwrapped(part: Any) -> Any:
    """The tuple that a builder of several results wraps."""
    return part.astuple() if hasattr(part, "astuple") else part


def _added(lets: _Lets, ty: Type, x: Expr, y: Expr) -> Expr:
    """x + y, field by field; only floats have gradients, others stay zeros."""
    if isinstance(ty, TupleType):
        fields = []
        for i, part in enumerate(ty.fields):
            one, other = (lets.push(TupleGetItem(v, i), part) for v in (x, y))
            fields.append(_added(lets, part, one, other))
        return lets.push(Tuple(tuple(fields)), ty)
    return lets.push(call("add", x, y), ty) if _floating(ty) else x


def _filled(what: str, value: Expr, ty: Type) -> Expr:
    """Zeros or ones of a type: like the value if it is a tensor, or of unknown size."""
    if isinstance(ty, TupleType):
        fields = tuple(
            _part(what, TupleGetItem(value, i, checked_type=part), part)
            for i, part in enumerate(ty.fields)
        )
        return Tuple(fields, checked_type=ty)
    return replace(call(f"{what}_like", value), checked_type=ty)


def _ones(value: Expr, ty: Type) -> Expr:
    return _filled("ones", value, ty)


def _first(value: Expr, ty: Type) -> Expr:
    """Ones for the first tensor of a result, zeros for the others."""
    path = []
    while isinstance(ty, TupleType) and ty.fields:
        path.append((value, ty))
        value, ty = TupleGetItem(value, 0, checked_type=ty.fields[0]), ty.fields[0]
    out = _ones(value, ty)
    for whole, of in reversed(path):
        rest = (
            _filled("zeros", TupleGetItem(whole, i, checked_type=part), part)
            for i, part in enumerate(of.fields[1:], 1)
        )
        out = Tuple((out, *rest), checked_type=of)
    return out


def _part(what: str, value: Expr, ty: Type) -> Expr:
    if isinstance(ty, TensorType) and all(isinstance(size, int) for size in ty.shape):
        return replace(call(what, shape=ty.shape, dtype=ty.dtype), checked_type=ty)
    return _filled(what, value, ty)


def _floating(ty: Type | None) -> bool:
    """Whether a value has parts that can change by a little."""
    if isinstance(ty, TupleType):
        return any(map(_floating, ty.fields))
    return isinstance(ty, TensorType) and ty.dtype.startswith(_FLOATS)
