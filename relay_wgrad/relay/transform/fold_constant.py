"""Calls of constants alone, computed ahead of the run."""

from __future__ import annotations

from collections.abc import Iterable

import tvm

from ..ast import (
    Call,
    Constant,
    Expr,
    Function,
    If,
    IRModule,
    Let,
    Op,
    Tuple,
    TupleGetItem,
    Var,
    children,
    post_order,
)
from ..build import build
from ..graph_executor import GraphModule
from ..op.registration import is_stateful
from ..rewrite import rewrite
from ..types import TensorType, TupleType, Type
from .normal_forms import without_lets


def fold_constant(function: Function) -> Function:
    """The function with constants for what can be computed now.  Needs types.

    Calls without arguments (`zeros`) stay, and so do functions that are one operator's kernel.
    All that is computed is one program, compiled once for the CPU.
    """
    function = _known_lets(function)
    foldable = _foldable(function)
    wanted: list[Expr] = []
    for node in post_order(function, _outside_kernels):
        if node not in foldable:
            wanted += [child for child in children(node) if child in foldable]
    results = _computed(list(dict.fromkeys(_computations(wanted))))

    def change(old: Expr, node: Expr) -> Expr:
        if old in results:
            return results[old]
        if isinstance(node, TupleGetItem) and isinstance(node.tuple_value, Tuple):
            return node.tuple_value.fields[node.index]
        if isinstance(node, If) and isinstance(node.cond, Constant):
            return node.true_branch if node.cond.data else node.false_branch
        return node

    out = rewrite(function, change)
    assert isinstance(out, Function)
    return out


def _outside_kernels(node: Expr) -> bool:
    return not (isinstance(node, Function) and bool(node.attrs.get("Primitive")))


def _known_lets(function: Function) -> Function:
    """The function without variables that are bound to what can be computed now."""
    known: dict[Expr, bool] = {}
    bound: dict[Expr, Expr] = {}
    for node in post_order(function, _outside_kernels):
        if isinstance(node, Let):
            bound[node.var] = node.value
    chosen: set[Var] = set()
    for var, value in bound.items():
        assert isinstance(var, Var)
        if _is_known(value, bound, known):
            chosen.add(var)
    return without_lets(function, lambda var: var in chosen)


def _is_known(root: Expr, bound: dict[Expr, Expr], known: dict[Expr, bool]) -> bool:
    """Whether an expression needs constants alone, by way of `let`s too."""
    stack = [root]
    while stack:
        node = stack[-1]
        below = (bound[node],) if node in bound else _operands(node)
        waiting = [child for child in below if child not in known]
        if node in known or not waiting:
            stack.pop()
            if node not in known:
                simple = node in bound or _may_fold(node)
                known[node] = simple and all(known[child] for child in below)
        else:
            stack += waiting
    return known[root]


def _operands(node: Expr) -> tuple[Expr, ...]:
    if isinstance(node, Call):
        return node.args
    return children(node) if isinstance(node, (Tuple, TupleGetItem)) else ()


def _may_fold(node: Expr) -> bool:
    """Whether a node is known once its operands are."""
    if isinstance(node, Call):
        return isinstance(node.op, Op) and bool(node.args) and not is_stateful(node.op.name)
    return isinstance(node, (Constant, Tuple, TupleGetItem))


def _foldable(function: Function) -> set[Expr]:
    out: set[Expr] = set()
    for node in post_order(function, _outside_kernels):
        if _may_fold(node) and all(child in out for child in _operands(node)):
            out.add(node)
    return out


def _computations(wanted: Iterable[Expr]) -> list[Expr]:
    """The calls, and fields of calls' results, that are to be computed; tuples stay tuples."""
    stack = list(wanted)
    out: list[Expr] = []
    seen: set[Expr] = set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, Tuple):
            stack += node.fields
        elif not isinstance(node, Constant):
            out.append(node)
    return out


def _computed(nodes: list[Expr]) -> dict[Expr, Expr]:
    """Each node's value as a constant, or a tuple of them."""
    if not nodes:
        return {}
    main = Function((), Tuple(tuple(nodes)))
    # A context of its own: the caller's instruments and settings are for the caller's program.
    with tvm.transform.PassContext(opt_level=3):
        library = build(IRModule({"main": main}), "llvm")
    module = GraphModule(library["default"](tvm.cpu()))
    module.run()
    outputs = iter(range(module.get_num_outputs()))
    return {node: _constants(node.checked_type, module, outputs) for node in nodes}


def _constants(ty: Type | None, module: GraphModule, outputs: Iterable[int]) -> Expr:
    """The next outputs in the form of a type."""
    if isinstance(ty, TupleType):
        return Tuple(tuple(_constants(field, module, outputs) for field in ty.fields), ty)
    assert isinstance(ty, TensorType)
    return Constant(module.get_output(next(iter(outputs))).numpy(), ty)
