"""Type inference: a program with the type of every node in its `checked_type`.

First the types are found, each operator's by its relation; then the nodes are rebuilt with them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from . import dims
from .adt import (
    Clause,
    Constructor,
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternVar,
)
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
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    Var,
)
from .iterative_walks import run
from .records import lookup, show
from .records.input_types import argument_types
from .rewrite import rewrite
from .types import FuncType, IncompleteType, RelayRefType, TensorType, TupleType, Type, with_dims
from .types import bound as bound_sizes
from .unify import Unifier, is_complete
from .unify import agree as agree
from .unify import unified as unified

Steps = Generator[Any, Type, Type]


def infer_module(mod: IRModule) -> IRModule:
    """The module with the types of all nodes, and of all functions' results.

    A node stays one node, and one that has its type already is kept.  What `checked_type` says is
    not trusted, but in the functions of a module that this has made; annotations are: a `?` there
    hides a size that is known.

    Raises
    ------
    TypeError, ValueError : for a violated type relation, an annotation that does not fit, a
        parameter without a type, an unknown name; with the place where it is known.
    """
    if vars(mod).get(_INFERRED) == _type_environment(mod):
        return _marked(replace(mod))  # as it is: nodes can't be changed
    found = _Types(mod)
    for name in mod.functions:
        run(found.of_global(name))
    new: dict[Expr, Expr] = {}
    functions = {}
    for name, function in mod.functions.items():
        out = rewrite(function, found.typed, new)
        assert isinstance(out, Function)
        functions[name] = out
    return _marked(replace(mod, functions=functions))


_INFERRED = "_inferred"  # of a module: what it held when its types were found


def _type_environment(mod: IRModule) -> tuple[Any, ...]:
    """What a module's types depend on.  Functions are equal only where they are one object."""
    return (*mod.functions.items(), *mod.type_definitions.items())


def _marked(mod: IRModule) -> IRModule:
    object.__setattr__(mod, _INFERRED, _type_environment(mod))
    return mod


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
    return {node: found.known(node) for node in found.types}


def span_text(node: Expr) -> str:
    """Where a node stands in its text, for the end of a message."""
    return f" ({node.span})" if node.span is not None else ""


def fail(node: Expr, message: str) -> NoReturn:
    """Refuses a program because of this node."""
    raise ValueError(message + span_text(node))


class _Types:
    """The types found so far."""

    def __init__(self, mod: IRModule) -> None:
        self.mod = mod
        self.types: dict[Expr, Type] = {}
        self.globals: dict[str, FuncType] = {}
        self.open: set[str] = set()  # global functions on the way
        self.functions: dict[Var, Function] = {}  # bound functions that wait for a call
        self.unifier = Unifier()
        self.pending: dict[str, FuncType] = {}  # what calls say of functions on the way
        self.type_args: dict[Call, tuple[Type, ...]] = {}

    def known(self, node: Expr) -> Type:
        """A node's type; what has none in the text may state it."""
        ty = self.types.get(node)
        ty = None if ty is None else self.unifier.resolved(ty)
        if ty is None or not is_complete(ty):
            if isinstance(node, GlobalVar):
                fail(node, f"@{node.name} calls itself and does not state its type")
            if isinstance(node, Var) and ty is not None:
                fail(node, f"%{node.name} is not bound here, or a parameter without a type")
            so_far = "" if ty is None else f" but {show(ty)}"
            fail(node, f"{_name(node)} has no type{so_far}, and nothing tells it")
        return ty

    def typed(self, old: Expr, rebuilt: Expr) -> Expr:
        """A node with its type."""
        if isinstance(old, Op):
            return old
        ty = self.known(old)
        changes: dict[str, Any] = {}
        if rebuilt.checked_type != ty:
            changes["checked_type"] = ty
        if isinstance(old, Call):
            given = tuple(map(self.unifier.resolved, self.type_args.get(old, ())))
            if isinstance(old.op, Op):
                given = tuple(map(self.known, old.args))
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
                # Recursion: what the function states of itself, and what its calls need.
                if name not in self.pending:
                    params = tuple(_stated(p) or IncompleteType() for p in function.params)
                    result = function.ret_type or IncompleteType()
                    self.pending[name] = FuncType(params, result, function.type_params)
                return self.pending[name]
            self.open.add(name)
            ty = yield self.of(function)
            self.open.remove(name)
            if name in self.pending:
                ty = self._fits(function, ty, self.pending[name], f"@{name}")
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
            ty = _field(node, self.unifier.shallow((yield self.of(node.tuple_value))))
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
            waiting = self.functions.pop(node, None)
            ty = _stated(node) or IncompleteType()
            if waiting is not None:
                ty = self._fits(node, (yield self.of(waiting)), ty, f"%{node.name}")
        elif isinstance(node, Constructor):
            ty = self._constructor(node)
        elif isinstance(node, Match):
            ty = yield self._match(node)
        elif isinstance(node, RefCreate):
            ty = RelayRefType((yield self.of(node.value)))
        elif isinstance(node, (RefRead, RefWrite)):
            ty = yield self._reference(node)
        else:
            assert isinstance(node, Op), node
            fail(node, f"operator {node.name} stands where it is not called")
        self.types[node] = ty
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
                ty = self._fits(node, ty, var.type_annotation, f"%{var.name}")
                # A function that calls itself has asked for its type before.
                self.types[var] = self._fits(node, ty, self.types.get(var), f"%{var.name}")
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
        params = tuple(self.types.setdefault(p, IncompleteType()) for p in node.params)
        result = self._fits(node, got, node.ret_type, "a function's result")
        return FuncType(params, result, node.type_params)

    def _call(self, node: Call) -> Steps:
        args: list[Any] = []
        for arg in node.args:
            # A variable without a type gets what the operator says of it.
            open_ = isinstance(arg, Var) and arg not in self.types and _stated(arg) is None
            waits = open_ and isinstance(node.op, Op) and arg not in self.functions
            got = None if waits else (yield self.of(arg))
            args.append(None if got is None else self.unifier.resolved(got))
        if isinstance(node.op, Op):
            return self._operator(node, node.op.name, args)
        bound = self.functions.pop(node.op, None) if isinstance(node.op, Var) else None
        function = bound if bound is not None else node.op
        if isinstance(function, Function) and len(function.params) == len(args):
            for param, ty in zip(function.params, args, strict=True):
                if _stated(param) is None:
                    self.types.setdefault(param, ty)
        callee = yield self.of(function)
        if bound is not None:
            self.types[node.op] = self._fits(node, callee, self.types.get(node.op), repr(node.op))
        callee = self.unifier.shallow(callee)
        if isinstance(callee, IncompleteType):
            callee = self._fits(node, FuncType(tuple(args), IncompleteType()), callee, "a callee")
        if not isinstance(callee, FuncType):
            fail(node, f"{show(callee)} is called, and is no function")
        callee, given = self.unifier.instance(callee)
        if node.type_args and len(given) == len(node.type_args):
            for unknown, stated in zip(given, node.type_args, strict=True):
                self.unifier.unified(unknown, stated)
        self.type_args[node] = given
        if len(callee.arg_types) != len(args):
            fail(node, f"a function of {len(callee.arg_types)} takes {len(args)} arguments")
        own = partial(dims.substituted, values=bound_sizes(callee.arg_types, args))
        for i, (ty, stated) in enumerate(zip(args, callee.arg_types, strict=True)):
            self._fits(node, ty, with_dims(self.unifier.resolved(stated), own), f"argument {i}")
        return with_dims(self.unifier.resolved(callee.ret_type), own)

    def _operator(self, node: Call, name: str, args: list[Any]) -> Type:
        args = [None if isinstance(ty, IncompleteType) else ty for ty in args]
        try:
            if None in args:
                args = list(argument_types(name, args, node.attrs))
                for arg, ty in zip(node.args, args, strict=True):
                    # One variable may be two arguments.
                    self._fits(node, self.types.setdefault(arg, ty), ty, _name(arg))
            return lookup(name).infer(args, node.attrs)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{error}{span_text(node)}") from error

    def _if(self, node: If) -> Steps:
        condition = yield self.of(node.cond)
        if self.unifier.unified(condition, TensorType((), "bool")) != TensorType((), "bool"):
            fail(node, f"the condition of `if` must be bool, got {show(condition)}")
        true = yield self.of(node.true_branch)
        false = yield self.of(node.false_branch)
        return self._one(node, "branches of `if`", true, false)

    def _one(self, node: Expr, what: str, a: Type, b: Type) -> Type:
        ty = self.unifier.unified(a, b)
        if ty is None:
            a, b = self.unifier.resolved(a), self.unifier.resolved(b)
            fail(node, f"the {what} differ: {show(a)} and {show(b)}")
        return ty

    def _fits(self, node: Expr, got: Type, stated: Type | None, what: str) -> Type:
        if stated is None:
            return got
        out = self.unifier.unified(got, stated)
        if out is None:
            got, stated = self.unifier.resolved(got), self.unifier.resolved(stated)
            fail(node, f"{what} is {show(got)}, and the program says {show(stated)}")
        return out

    # ---- data and references ---------------------------------------------------------------------

    def _constructor(self, node: Constructor) -> FuncType:
        data = self.mod.type_definitions.get(node.belong_to)
        if data is None or node not in data.constructors:
            fail(node, f"{node.name_hint}: the module has no type {node.belong_to} with it")
        return data.type_of(node)

    def _match(self, node: Match) -> Steps:
        data = yield self.of(node.data)
        out: Type = IncompleteType()
        for clause in node.clauses:
            self._pattern(node, clause, data)
            got = yield self.of(clause.rhs)
            out = self._one(node, "clauses of `match`", out, got)
        return out

    def _pattern(self, node: Match, clause: Clause, data: Type) -> None:
        """The types of a pattern's variables, where it is of that type."""
        stack: list[tuple[Pattern, Type]] = [(clause.lhs, data)]
        while stack:
            pattern, ty = stack.pop()
            if isinstance(pattern, PatternVar):
                ty = self._fits(node, ty, _stated(pattern.var), _name(pattern.var))
                self.types[pattern.var] = ty
            elif isinstance(pattern, PatternConstructor):
                made, _ = self.unifier.instance(self._constructor(pattern.constructor))
                self._fits(node, made.ret_type, ty, f"a value of {pattern.constructor.name_hint}")
                if len(made.arg_types) != len(pattern.patterns):
                    fail(
                        node,
                        f"{pattern.constructor.name_hint} has {len(made.arg_types)} inputs, and the"
                        f" pattern {len(pattern.patterns)}",
                    )
                stack += zip(pattern.patterns, made.arg_types, strict=True)
            elif isinstance(pattern, PatternTuple):
                fields = TupleType(tuple(IncompleteType() for _ in pattern.patterns))
                self._fits(node, ty, fields, "what a pattern is of")
                stack += zip(pattern.patterns, fields.fields, strict=True)

    def _reference(self, node: RefRead | RefWrite) -> Steps:
        held = IncompleteType()
        ref = yield self.of(node.ref)
        self._fits(node, ref, RelayRefType(held), "what is read or written")
        if isinstance(node, RefRead):
            return held
        value = yield self.of(node.value)
        self._fits(node, value, held, "what is written")
        return TupleType(())


def _field(node: TupleGetItem, ty: Type) -> Type:
    if not isinstance(ty, TupleType):
        fail(node, f".{node.index} of {show(ty)}, which is no tuple")
    if not 0 <= node.index < len(ty.fields):
        fail(node, f".{node.index} of a tuple of {len(ty.fields)}")
    return ty.fields[node.index]


def _stated(var: Var) -> Type | None:
    return var.type_annotation or var.checked_type


def _name(node: Expr) -> str:
    return f"%{node.name}" if isinstance(node, Var) else repr(node)
