"""Type inference: a program with the type of every node in its `checked_type`.

First the types are found, each operator's by its relation; then the nodes are rebuilt with them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from . import dims
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
)
from .ops import lookup, show
from .ops.inputs import argument_types
from .rewrite import rewrite
from .steps import run
from .types import FuncType, TensorType, TupleType, Type, with_dims
from .types import bound as bound_sizes

Steps = Generator[Any, Type, Type]


def infer_module(mod: IRModule) -> IRModule:
    """The module with the types of all nodes, and of all functions' results.

    A node stays one node, and one that has its type already is kept.  What `checked_type` says is
    not trusted; annotations are: a `?` there hides a size that is known.

    Raises
    ------
    TypeError, ValueError : for a violated type relation, an annotation that does not fit, a
        parameter without a type, an unknown name; with the place where it is known.
    """
    found = _Types(mod)
    for name in mod.functions:
        run(found.of_global(name))
    new: dict[Expr, Expr] = {}
    functions = {}
    for name, function in mod.functions.items():
        out = rewrite(function, found.typed, new)
        assert isinstance(out, Function)
        functions[name] = out
    return replace(mod, functions=functions)


def infer_expr(expr: Expr, mod: IRModule | None = None) -> Expr:
    """An expression with the types of all nodes; `mod` has the functions that it calls.

    A variable that nothing binds needs a type of its own; like any node it is made anew, unless it
    has its `checked_type` already.

    Raises
    ------
    TypeError, ValueError : as `infer_module`.
    """
    found = _Types(mod if mod is not None else IRModule({}))
    run(found.of(expr))
    return rewrite(expr, found.typed)


def infer_types(expr: Expr, mod: IRModule | None = None) -> Mapping[Expr, Type]:
    """The type of each node of an expression, which stays as it is.  Errors as `infer_module`."""
    found = _Types(mod if mod is not None else IRModule({}))
    run(found.of(expr))
    return found.types


def agree(a: Type, b: Type) -> bool:
    """Whether two types can be of one value: equal, but for sizes that nobody knows."""
    return unified(a, b) is not None


def unified(a: Type, b: Type) -> Type | None:
    """The type of what has both, by `dims.unified`.  None if they don't agree."""
    if a == b:
        return a
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        if a.dtype != b.dtype or len(a.shape) != len(b.shape):
            return None
        shape = tuple(map(dims.unified, a.shape, b.shape))
        return None if None in shape else TensorType(shape, a.dtype)  # type: ignore[arg-type]
    if isinstance(a, TupleType) and isinstance(b, TupleType):
        fields = _all_unified(a.fields, b.fields)
        return None if fields is None else TupleType(fields)
    if isinstance(a, FuncType) and isinstance(b, FuncType):
        args, result = _all_unified(a.arg_types, b.arg_types), unified(a.ret_type, b.ret_type)
        return None if args is None or result is None else FuncType(args, result)
    return None


def _all_unified(a: tuple[Type, ...], b: tuple[Type, ...]) -> tuple[Type, ...] | None:
    if len(a) != len(b):
        return None
    out = tuple(unified(x, y) for x, y in zip(a, b, strict=True))
    return None if None in out else out  # type: ignore[return-value]


def place(node: Expr) -> str:
    """Where a node stands in its text, for the end of a message."""
    return f" ({node.span})" if node.span is not None else ""


def fail(node: Expr, message: str) -> NoReturn:
    """Refuses a program because of this node."""
    raise ValueError(message + place(node))


class _Types:
    """The types found so far."""

    def __init__(self, mod: IRModule) -> None:
        self.mod = mod
        self.types: dict[Expr, Type] = {}
        self.globals: dict[str, FuncType] = {}
        self.open: set[str] = set()  # global functions on the way
        self.functions: dict[Var, Function] = {}  # bound functions that wait for a call

    def typed(self, old: Expr, rebuilt: Expr) -> Expr:
        """A node with its type; what has none in the text may state it."""
        if isinstance(old, Op):
            return old
        ty = self.types.get(old)
        if ty is None:
            fail(old, f"{_name(old)} has no type, and nothing tells it")
        changes: dict[str, Any] = {}
        if rebuilt.checked_type != ty:
            changes["checked_type"] = ty
        if isinstance(old, Call) and isinstance(old.op, Op):
            given = tuple(self.types[arg] for arg in old.args)
            if old.type_args != given:
                changes["type_args"] = given
        if isinstance(old, Var) and old.type_annotation is None:
            changes["type_annotation"] = ty
        if isinstance(old, Function):
            assert isinstance(ty, FuncType)
            if old.ret_type is None:
                changes["ret_type"] = ty.ret_type
        if rebuilt is old and isinstance(old, Var) and old.type_annotation == ty:
            # As in Relay it stays the one that it is: a program with free variables can so be
            # compared with another of the same.
            object.__setattr__(old, "checked_type", ty)
            return old
        return replace(rebuilt, **changes) if changes else rebuilt

    def of_global(self, name: str) -> Steps:
        """A global function's type."""
        if name not in self.globals:
            function = self.mod.functions[name]
            if name in self.open:
                # Recursion: what the function states of itself is all that is known.
                if function.ret_type is None or not all(map(_stated, function.params)):
                    fail(function, f"@{name} calls itself and does not state its type")
                params = tuple(_stated(p) for p in function.params)
                return FuncType(params, function.ret_type)  # type: ignore[arg-type]
            self.open.add(name)
            ty = yield self.of(function)
            self.open.remove(name)
            assert isinstance(ty, FuncType)
            self.globals[name] = ty
        return self.globals[name]

    def of(self, node: Expr) -> Steps:
        if node in self.types:
            return self.types[node]
        if isinstance(node, Let):
            return (yield self._lets(node))
        ty: Type
        if isinstance(node, Call):
            ty = yield self._call(node)
        elif isinstance(node, Tuple):
            fields = []
            for field in node.fields:
                got = yield self.of(field)
                fields.append(got)
            ty = TupleType(tuple(fields))
        elif isinstance(node, TupleGetItem):
            ty = _field(node, (yield self.of(node.tuple_value)))
        elif isinstance(node, Constant):
            ty = TensorType(node.data.shape, str(node.data.dtype))
        elif isinstance(node, Function):
            ty = yield self._function(node)
        elif isinstance(node, If):
            ty = yield self._if(node)
        elif isinstance(node, GlobalVar):
            if node.name not in self.mod.functions:
                fail(node, f"there is no function @{node.name}")
            ty = yield self.of_global(node.name)
        elif isinstance(node, Var):
            ty = self._free(node)
        else:
            assert isinstance(node, Op), node
            fail(node, f"operator {node.name} stands where it is not called")
        self.types[node] = ty
        return ty

    def _free(self, var: Var) -> Type:
        """A parameter, or what nothing binds: it says its type itself."""
        ty = _stated(var)
        if ty is None:
            fail(var, f"%{var.name} is not bound here, or a parameter without a type")
        return ty

    def _lets(self, first: Let) -> Steps:
        chain: list[Let] = []
        node: Expr = first
        while isinstance(node, Let) and node not in self.types:
            chain.append(node)
            var, value = node.var, node.value
            if isinstance(value, Function) and not all(map(_stated, value.params)):
                self.functions[var] = value
            else:
                ty = yield self.of(value)
                self.types[var] = _fits(node, ty, var.type_annotation, f"%{var.name}")
            node = node.body
        ty = yield self.of(node)
        for let in chain:
            self.types[let] = ty
        return ty

    def _function(self, node: Function) -> Steps:
        for param in node.params:
            stated = _stated(param)
            if stated is not None:
                self.types.setdefault(param, stated)
        got = yield self.of(node.body)
        for param in node.params:
            if param not in self.types:
                self._free(param)  # fails: nothing in the body told it
        result = _fits(node, got, node.ret_type, "a function's result")
        return FuncType(tuple(self.types[p] for p in node.params), result)

    def _call(self, node: Call) -> Steps:
        args: list[Any] = []
        for arg in node.args:
            # A variable without a type gets what the operator or the function says of it.
            open_ = isinstance(arg, Var) and arg not in self.types and _stated(arg) is None
            got = None if open_ else (yield self.of(arg))
            args.append(got)
        if isinstance(node.op, Op):
            try:
                if None in args:
                    args = list(argument_types(node.op.name, args, node.attrs))
                    self.types.update(zip(node.args, args, strict=True))
                return lookup(node.op.name).infer(args, node.attrs)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{error}{place(node)}") from error
        bound = self.functions.pop(node.op, None) if isinstance(node.op, Var) else None
        function = bound if bound is not None else node.op
        if isinstance(function, Function) and len(function.params) == len(args):
            for param, ty in zip(function.params, args, strict=True):
                if _stated(param) is None and ty is not None:
                    self.types.setdefault(param, ty)
        callee = yield self.of(function)
        if bound is not None:
            self.types[node.op] = callee
        if not isinstance(callee, FuncType):
            fail(node, f"{show(callee)} is called, and is no function")
        if len(callee.arg_types) != len(args):
            fail(node, f"a function of {len(callee.arg_types)} takes {len(args)} arguments")
        own = partial(dims.substituted, values=bound_sizes(callee.arg_types, args))
        for i, (ty, stated) in enumerate(zip(args, callee.arg_types, strict=True)):
            wanted = with_dims(stated, own)
            if ty is None:
                # One variable may be two arguments.
                ty = self.types.setdefault(node.args[i], wanted)
            _fits(node, ty, wanted, f"argument {i}")
        return with_dims(callee.ret_type, own)

    def _if(self, node: If) -> Steps:
        condition = yield self.of(node.cond)
        if condition != TensorType((), "bool"):
            fail(node, f"the condition of `if` must be bool, got {show(condition)}")
        true = yield self.of(node.true_branch)
        false = yield self.of(node.false_branch)
        ty = unified(true, false)
        if ty is None:
            fail(node, f"the branches of `if` differ: {show(true)} and {show(false)}")
        return ty


def _field(node: TupleGetItem, ty: Type) -> Type:
    if not isinstance(ty, TupleType):
        fail(node, f".{node.index} of {show(ty)}, which is no tuple")
    if not 0 <= node.index < len(ty.fields):
        fail(node, f".{node.index} of a tuple of {len(ty.fields)}")
    return ty.fields[node.index]


def _fits(node: Expr, got: Type, stated: Type | None, what: str) -> Type:
    if stated is None:
        return got
    out = unified(got, stated)
    if out is None:
        fail(node, f"{what} is {show(got)}, and the program says {show(stated)}")
    return out


def _stated(var: Var) -> Type | None:
    return var.type_annotation or var.checked_type


def _name(node: Expr) -> str:
    return f"%{node.name}" if isinstance(node, Var) else repr(node)
