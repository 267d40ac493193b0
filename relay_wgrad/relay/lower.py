"""From Relay to Relax: the one lowering.

A Relay function becomes a Relax function of one dataflow block.  Functions that are values, and
calls of other global functions, are inlined where they are called, so that passes see one graph.
Types are inferred on the way by each operator's relation, and compared with those that the program
states.  Nothing recurses along the program's depth: evaluation is a stack of generators.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import tvm
from tvm import relax

from ..keys import INLINE
from .ast import (
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
    post_order,
)
from .branches import Branch, Captured, are_known, is_static, write_choice
from .infer import agree, fail, infer_module, span_text
from .iterative_walks import run
from .memory import LARGEST, Widest
from .records import lookup, show
from .records.constant_operands import check_values
from .records.empty import check_size, of_nothing
from .records.table import constant_value, with_name
from .sizes import Sizes, identifier, settled, with_inferred_sizes
from .sizes import relax_type as relax_type
from .surface import reason
from .types import FuncType, TensorType, TupleType, Type, has_variables
from .uncomputed_constructs import unsupported_construct

_DEPTH = 200  # of calls of functions within functions
_BRANCHES = 50  # of `if` within `if`
_NESTED = 500  # tuples within a tuple that is a result: TVM's own stack is full before 1,500
# Operators that inlining may write: so many, and so many times the calls that a module has.
MOST_WRITTEN, _GROWTH = 100_000, 10


@dataclass(frozen=True)
class Value:
    """What an expression is: a Relax expression, or the parts of a tuple, or a function."""

    type: Type
    expr: Any = None
    fields: tuple[Value, ...] | None = None
    function: tuple[Function, _Frame] | None = None


@dataclass
class _Frame:
    """The values of one activation of a function; `outer` is where a function value was made."""

    outer: _Frame | None = None
    depth: int = 0
    values: dict[Expr, Value] = field(default_factory=dict)
    sizes: Sizes = field(default_factory=Sizes)

    captured: Captured | None = None  # what is around this frame is another Relax function's

    def find(self, node: Expr) -> Value | None:
        frame: _Frame | None = self
        borders: list[Captured] = []
        while frame is not None:
            if node in frame.values:
                value = frame.values[node]
                for captured in reversed(borders):
                    value = _brought(value, captured)
                return value
            if frame.captured is not None:
                borders.append(frame.captured)
            frame = frame.outer
        return None


def _brought(value: Value, captured: Captured) -> Value:
    """A value from around a branch, within it."""
    if value.function is not None:
        function, frame = value.function
        return replace(value, function=(function, _Frame(frame, captured=captured)))
    if value.fields is not None:
        return replace(value, fields=tuple(_brought(part, captured) for part in value.fields))
    return replace(value, expr=captured.parameter(value.expr))


Steps = Generator["Steps", Value, Value]


def lower(mod: IRModule, calls: Collection[str] = ()) -> tvm.IRModule:
    """The Relax module with a function for each global function of a Relay module.

    A function with the attribute `Inline`, or with type parameters, is only written where it is
    called.  Those that `calls`
    names become functions that are called instead.

    Raises
    ------
    TypeError, ValueError : for a violated type relation, a type that is not the stated one, an
        unknown operator, and what has no lowering; with line and column where they are known.
    """
    return lowered(mod, calls)[0]


def lowered(mod: IRModule, calls: Collection[str] = ()) -> tuple[tvm.IRModule, Widest]:
    """As `lower`, with the module's largest tensor."""
    untyped = any(p.type_annotation is None for f in mod.functions.values() for p in f.params)
    if untyped or _has_type_parameters(mod):
        # Weights whose types their operators tell; what stands for type parameters is compared.
        mod = infer_module(mod)
    bb = relax.BlockBuilder()
    widest = Widest()
    limit = MOST_WRITTEN + _GROWTH * _calls(mod)
    called: dict[str, Any] = {}
    for name in calls:
        _Lowering(mod, bb, {}, limit, widest).function(name, mod[name])
        called[name] = bb.get().get_global_var(name)
    for name, function in mod.functions.items():
        if name not in called and not function.attrs.get(INLINE) and not function.type_params:
            _Lowering(mod, bb, called, limit, widest).function(name, function)
    return bb.get(), widest


def _has_type_parameters(mod: IRModule) -> bool:
    every = (node for f in mod.functions.values() for node in post_order(f))
    return any(isinstance(node, Function) and node.type_params for node in every)


def _calls(mod: IRModule) -> int:
    every = {node for f in mod.functions.values() for node in post_order(f)}
    return sum(isinstance(node, Call) for node in every)


class _Lowering:
    """The lowering of one global function."""

    def __init__(
        self,
        mod: IRModule,
        bb: relax.BlockBuilder,
        called: Mapping[str, Any],
        limit: int,
        widest: Widest,
        home: relax.BlockBuilder | None = None,
        branches: int = 0,
    ) -> None:
        self.mod = mod
        self.bb = bb
        self.called = called
        self.written = 0  # operators
        self.limit = limit
        self.widest = widest
        self.home = bb if home is None else home  # whose module has all functions
        self.branches = branches  # of `if`, around what is written

    def function(self, name: str, function: Function) -> None:
        """Writes the function into the block builder."""
        frame = _Frame()
        params = []
        given = {}
        for param in function.params:
            ty = param.type_annotation or param.checked_type
            if not isinstance(ty, TensorType):
                fail(param, f"parameter %{param.name} of @{name} must be a tensor with a type")
            given[param] = ty
        types = frame.sizes.of_parameters([(p.name, ty) for p, ty in given.items()])
        for param, ty in zip(given, types, strict=True):
            var = relax.Var(param.name, relax_type(param.name, ty))
            params.append(var)
            self.widest.see(f"parameter %{param.name}", ty)
            frame.values[param] = Value(ty, var)
        with self.bb.function(name, params):
            with self.bb.dataflow():
                value: Value = run(self._eval(function.body, frame))
                what = f"the result of @{name}"
                self._agrees(function, value.type, function.ret_type, what, frame)
                out = self.bb.emit_output(_expr(value))
            self.bb.emit_func_output(out)

    # ---- expressions ---------------------------------------------------------------------------

    def _eval(self, node: Expr, frame: _Frame, hint: str = "") -> Steps:
        found = frame.find(node)
        if found is not None:
            return found
        value: Value
        if isinstance(node, Let):
            value = yield self._lets(node, frame)
        elif isinstance(node, Call):
            value = yield self._call(node, frame, hint)
        elif isinstance(node, Tuple):
            parts = []
            for field_ in node.fields:
                part = yield self._eval(field_, frame)
                parts.append(part)
            value = Value(TupleType(tuple(p.type for p in parts)), fields=tuple(parts))
        elif isinstance(node, TupleGetItem):
            value = self._item(node, (yield self._eval(node.tuple_value, frame)))
        elif isinstance(node, Constant):
            # As a tensor: relax.const makes float32 of a float64 array.
            data = relax.const(tvm.runtime.tensor(node.data))
            value = Value(TensorType(node.data.shape, str(node.data.dtype)), data)
            self.widest.see("a constant", value.type, lambda: span_text(node))
        elif isinstance(node, Function):
            value = Value(_function_type(node), function=(node, frame))
        elif isinstance(node, GlobalVar):
            function = self._global(node)
            value = Value(_function_type(function), function=(function, _Frame()))
        elif isinstance(node, Var):
            fail(node, f"%{node.name} is not bound here")
        elif isinstance(node, Op):
            fail(node, f"operator {node.name} stands where it is not called")
        else:
            error = unsupported_construct("lower", node)
            if error is not None:
                raise error
            assert isinstance(node, If)
            value = yield self._if(node, frame)
        if not isinstance(node, Function):
            self._agrees(node, value.type, node.checked_type, "the type", frame)
        frame.values[node] = value
        return value

    def _lets(self, node: Let, frame: _Frame) -> Steps:
        body: Expr = node
        while isinstance(body, Let):
            value = yield self._eval(body.value, frame, body.var.name)
            self._agrees(body, value.type, body.var.type_annotation, f"%{body.var.name}", frame)
            frame.values[body.var] = value
            body = body.body
        return (yield self._eval(body, frame))

    def _call(self, node: Call, frame: _Frame, hint: str) -> Steps:
        args = []
        for given in node.args:
            arg = yield self._eval(given, frame)
            args.append(arg)
        if isinstance(node.op, Op):
            return self._operator(node, node.op.name, args, hint)
        if isinstance(node.op, GlobalVar) and node.op.name in self.called:
            return self._called(node, self.called[node.op.name], args, frame)
        callee = yield self._eval(node.op, frame)
        if callee.function is None:
            fail(node, f"{show(callee.type)} is called, and is no function")
        function, outer = callee.function
        if frame.depth >= _DEPTH:
            fail(node, f"calls nest deeper than {_DEPTH}: recursion has no lowering")
        if len(args) != len(function.params):
            fail(node, f"a function of {len(function.params)} takes {len(args)} arguments")
        stated = [param.type_annotation for param in function.params]
        sizes = outer.sizes.of_call(stated, [value.type for value in args])
        inner = _Frame(outer, frame.depth + 1, sizes=sizes)
        for param, value in zip(function.params, args, strict=True):
            what = f"argument %{param.name}"
            self._agrees(node, value.type, param.type_annotation, what, inner)
            inner.values[param] = value
        result = yield self._eval(function.body, inner)
        self._agrees(node, result.type, function.ret_type, "a function's result", inner)
        return result

    def _if(self, node: If, frame: _Frame) -> Steps:
        condition = yield self._eval(node.cond, frame)
        if condition.type != TensorType((), "bool"):
            fail(node, f"the condition of `if` must be bool, got {show(condition.type)}")
        if self.branches >= _BRANCHES:
            fail(node, f"`if` nests deeper than {_BRANCHES}: recursion has no lowering")
        true, made = self._branch(node.true_branch, frame)
        false, other = self._branch(node.false_branch, frame)
        if true != false:
            fail(node, f"the branches of `if` differ: {show(true)} and {show(false)}")
        call = write_choice(self.home, "choice", condition.expr, made, other)
        return Value(true, self.bb.emit(call))

    def _branch(self, node: Expr, frame: _Frame) -> tuple[Type, Branch]:
        """A branch as a function, and its result's type."""
        captured, inner = Captured(), relax.BlockBuilder()
        lowering = _Lowering(
            self.mod, inner, self.called, self.limit, self.widest, self.home, self.branches + 1
        )
        lowering.written = self.written
        within = _Frame(frame, frame.depth, sizes=frame.sizes, captured=captured)
        with inner.function("branch", private=True):
            with inner.dataflow():
                value: Value = run(lowering._eval(node, within))
                out = inner.emit_output(_expr(value))
            inner.emit_func_output(out, list(captured.params.values()))
        self.written = lowering.written
        if not are_known([value.type]) or not all(map(is_static, captured.params)):
            fail(node, "a branch of `if` that has sizes which only the run knows has no lowering")
        var = self.home.add_func(inner.get()["branch"], "branch")
        return value.type, (var, list(captured.params))

    def _called(self, node: Call, var: Any, args: list[Value], frame: _Frame) -> Value:
        """A call that stays one."""
        assert isinstance(node.op, GlobalVar)
        function = self.mod[node.op]
        ty = function.ret_type or node.checked_type
        if ty is None:
            fail(node, f"@{node.op.name} is called, and its result has no type")
        stated = [param.type_annotation for param in function.params]
        ty = frame.sizes.of_call(stated, [value.type for value in args]).local(ty)
        return Value(ty, self.bb.emit(relax.Call(var, [_expr(arg) for arg in args])))

    def _operator(self, node: Call, name: str, args: list[Value], hint: str) -> Value:
        self.written += 1
        if self.written > self.limit:
            fail(
                node,
                f"inlining writes more than {self.limit} operators: functions that call others"
                " several times, level upon level, have no lowering",
            )
        try:
            op = lookup(name)
            exprs = [_expr(arg) for arg in args]
            exprs, types, out = settled(self.bb, op, exprs, [arg.type for arg in args], node.attrs)
            check_size(name, out, LARGEST)
            self.widest.see(f"{name}'s", out, lambda: span_text(node))
            check_values(name, types, node.attrs, list(map(constant_value, exprs)))
            made = of_nothing(name, out)
            if made is None:
                made = op.build(self.bb, exprs, node.attrs, types, out)
            bound = self.bb.emit(made, name_hint=identifier(hint))
        except (TypeError, ValueError) as error:
            # What TVM's own constructors say names no operator.
            raise type(error)(f"{with_name(name, error)}{span_text(node)}") from error
        except (tvm.error.InternalError, OverflowError, RuntimeError) as error:
            raise ValueError(f"{name}: TVM refuses it: {reason(error)}{span_text(node)}") from error
        return Value(*with_inferred_sizes(self.bb, self._of_type(bound, out), out))

    def _of_type(self, bound: Any, out: Type) -> Any:
        """The result in the dtype that Relay gives it; Relax' mean of integers has another."""
        if not isinstance(out, TensorType) or not isinstance(bound.ty, relax.TensorType):
            return bound
        same = str(bound.ty.dtype) in ("", out.dtype)
        return bound if same else self.bb.emit(relax.op.astype(bound, out.dtype))

    def _item(self, node: TupleGetItem, value: Value) -> Value:
        if not isinstance(value.type, TupleType):
            fail(node, f".{node.index} of {show(value.type)}, which is no tuple")
        count = len(value.type.fields)
        if not 0 <= node.index < count:
            fail(node, f".{node.index} of a tuple of {count}")
        if value.fields is not None:
            return value.fields[node.index]
        item = self.bb.emit(relax.TupleGetItem(value.expr, node.index))
        return Value(value.type.fields[node.index], item)

    # ---- checks --------------------------------------------------------------------------------

    def _global(self, node: GlobalVar) -> Function:
        if node.name not in self.mod.functions:
            fail(node, f"there is no function @{node.name}")
        return self.mod.functions[node.name]

    def _agrees(self, node: Expr, got: Type, stated: Type | None, what: str, frame: _Frame) -> None:
        if isinstance(got, FuncType) and isinstance(stated, FuncType):
            return  # a function is checked where it is called
        if stated is not None and has_variables(stated):
            return  # inference has compared it
        if stated is not None and not agree(got, frame.sizes.local(stated)):
            fail(node, f"{what} is {show(got)}, and the program says {show(stated)}")


def _expr(value: Value) -> Any:
    """A value as one Relax expression."""
    return run(_exprs(value, 0))


def _exprs(value: Value, depth: int) -> Generator[Any, Any, Any]:
    if depth > _NESTED:
        raise ValueError(f"tuples nest deeper than {_NESTED} in a result, which TVM cannot compile")
    if value.function is not None:
        raise ValueError("a function is a result: only calls of functions have a lowering")
    if value.fields is None:
        return value.expr
    parts = []
    for part in value.fields:
        expr = yield _exprs(part, depth + 1)
        parts.append(expr)
    return relax.Tuple(parts)


def _function_type(function: Function) -> FuncType:
    unknown = TupleType(())
    params = tuple(p.type_annotation or p.checked_type or unknown for p in function.params)
    return FuncType(params, function.ret_type or unknown)
