"""Calls of constants alone, computed ahead of the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tvm
from tvm.target import Target

from ...dtypes import numpy_dtype
from ...keys import PRIMITIVE
from ...pipeline.fold_constant import is_worth
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
from ..isolated_calls import compiles
from ..iterative_walks import order
from ..op.registration import is_stateful
from ..records.constant_operands import check_values, checked_argument
from ..records.empty import bytes_of
from ..rewrite import rewrite
from ..types import TensorType, TupleType, Type
from .normal_forms import without_lets

# What a tensor's shape alone tells.
_SIZES: dict[str, Callable[[Any], Any]] = {"shape_of": tuple, "ndarray_size": math.prod}
_FAILED = (TypeError, ValueError, MemoryError, tvm.error.InternalError, RuntimeError)


def fold_constant(function: Function) -> Function:
    """The function with constants for what can be computed now.  Needs types.

    Calls without arguments (`zeros`) stay, and so do functions that are one operator's kernel.
    All that is computed is one program, compiled once for the CPU; but what an operator asks of
    values (`ops.constant_operands`) is known before it is computed.  A call that has no value (an
    integer divided by zero), that TVM cannot compile, or whose result would fill the memory, stays
    as it is: `build` says what is wrong with it, and where, if the program needs it.
    """
    function = _known_sizes(function)
    refused: set[Expr] = set()
    while True:
        out, waiting = _folded(function, refused)
        if not waiting:
            return out
        function = out


def _folded(function: Function, refused: set[Expr]) -> tuple[Function, bool]:
    """One round, and whether another is to follow: values that are to be asked are known then."""
    function = _known_lets(function)
    foldable, waiting = _foldable(function, refused)
    wanted: list[Expr] = []
    for node in post_order(function, _outside_kernels):
        if node not in foldable:
            wanted += [child for child in children(node) if child in foldable]
    nodes = list(dict.fromkeys(_computations(wanted)))
    try:
        results = _computed(nodes)
    except _FAILED:
        target = Target("llvm")
        calls = [node for node in post_order(function) if node in foldable]
        bad = {n for n in calls if isinstance(n, Call) and not compiles(n, target)}
        # If none fails alone, all stay: `build` has the reason.
        refused |= bad or set(calls)
        return function, True

    def change(old: Expr, node: Expr) -> Expr:
        if old in results:
            return results[old]
        if old in refused:
            refused.add(node)
        if isinstance(node, TupleGetItem) and isinstance(node.tuple_value, Tuple):
            return node.tuple_value.fields[node.index]
        if isinstance(node, If) and isinstance(node.cond, Constant):
            return node.true_branch if node.cond.data else node.false_branch
        return node

    out = rewrite(function, change)
    assert isinstance(out, Function)
    return out, waiting


def _outside_kernels(node: Expr) -> bool:
    return not (isinstance(node, Function) and bool(node.attrs.get(PRIMITIVE)))


def _known_sizes(function: Function) -> Function:
    """The function with numbers for the shapes of tensors of known sizes, whatever these hold."""

    def change(old: Expr, node: Expr) -> Expr:
        if not (isinstance(old, Call) and isinstance(old.op, Op) and old.op.name in _SIZES):
            return node
        ty, made = old.args[0].checked_type, old.checked_type
        if not isinstance(ty, TensorType) or not isinstance(made, TensorType):
            return node
        if not all(isinstance(size, int) for size in ty.shape):
            return node
        exact = np.asarray(_SIZES[old.op.name](ty.shape), "int64")
        value = exact.astype(numpy_dtype(made.dtype))
        is_exact = (value.astype("int64") == exact).all()
        return Constant(value, checked_type=made, span=old.span) if is_exact else node

    whole = {n: n for n in post_order(function, _outside_kernels) if not _outside_kernels(n)}
    out = rewrite(function, change, dict(whole))
    assert isinstance(out, Function)
    return out


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

    def below(node: Expr) -> tuple[Expr, ...]:
        return (bound[node],) if node in bound else _operands(node)

    for node in order(root, lambda node: () if node in known else below(node)):
        if node not in known:
            simple = node in bound or _may_fold(node)
            known[node] = simple and all(known[child] for child in below(node))
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


def _foldable(function: Function, refused: set[Expr]) -> tuple[set[Expr], bool]:
    """What can be computed now, and whether something waits for the values of its arguments."""
    out: set[Expr] = set()
    waiting = False
    for node in post_order(function, _outside_kernels):
        if node in refused or not _may_fold(node):
            continue
        if not all(child in out for child in _operands(node)):
            continue
        if isinstance(node, Call):
            asked = _deciding_argument(node)
            if asked is not None and not isinstance(asked, Constant):
                waiting = True
                continue
            if not _has_value(node):
                refused.add(node)
                continue
        out.add(node)
    return out, waiting


def _deciding_argument(call: Call) -> Expr | None:
    """The argument whose values decide whether a call has one."""
    assert isinstance(call.op, Op)
    index = checked_argument(call.op.name)
    return call.args[index] if index is not None and index < len(call.args) else None


def _has_value(call: Call) -> bool:
    assert isinstance(call.op, Op)
    types = [arg.checked_type for arg in call.args]
    values = [arg.data if isinstance(arg, Constant) else None for arg in call.args]
    try:
        check_values(call.op.name, types, call.attrs, values)
    except (TypeError, ValueError):
        return False
    given = max(map(_bytes, types), default=0)
    return is_worth(_bytes(call.checked_type), given)


def _bytes(ty: Type | None) -> int:
    fields = ty.fields if isinstance(ty, TupleType) else (ty,)
    return sum(bytes_of(field) for field in fields if isinstance(field, TensorType))


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
        return Tuple(
            tuple(_constants(field, module, outputs) for field in ty.fields), checked_type=ty
        )
    assert isinstance(ty, TensorType)
    return Constant(module.get_output(next(iter(outputs))).numpy(), checked_type=ty)
