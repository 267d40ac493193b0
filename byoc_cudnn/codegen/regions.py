"""Regions: the functions that a partition made, read back for code generation.

A region is a function with the attribute Codegen.  It calls one composite, which holds one call of
the convolution family and its epilogue.  Facts come from attributes and structure, not from names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import relax

from relay_wgrad.given import of_type
from relay_wgrad.graph.view import Graph
from relay_wgrad.ir import op_name
from relay_wgrad.keys import OPTIONS, SYMBOL
from relay_wgrad.ops.view import family_def, problem_of
from relay_wgrad.problem import ConvProblem

from ..fused import STEPS, Match, match
from ..patterns import is_whole

# Epilogue ops that only rearrange what they are given: a bias arrives through them.
_RESHAPES = frozenset({"relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.permute_dims"})
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}")


@dataclass(frozen=True)
class Region:
    """One offloaded convolution.

    `operands` names the region's parameters by what they are: the problem's roles (data, weight,
    grad: the two that are operands), and operands of the epilogue's steps as `fused.STEPS` has
    them: `bias`, `residual` and `mask` (of either mask).  The result comes after them.
    `epilogue` has the names of steps, in the order in which they are applied.
    """

    symbol: str
    problem: ConvProblem
    epilogue: tuple[str, ...]
    operands: tuple[str, ...]
    options: Mapping[str, Any]

    @staticmethod
    def of(
        symbol: str, problem: ConvProblem, epilogue: tuple[str, ...] = (), **options: Any
    ) -> Region:
        """The region of a problem and names of steps, its operands in their order."""
        extra = (STEPS[name].operand for name in epilogue)
        operands = (*problem.roles[:2], *(operand for operand in extra if operand))
        return Region(symbol, problem, epilogue, operands, options)


def symbol_of(func: relax.Function) -> str:
    """The region's symbol, which becomes part of generated source.

    Raises ValueError for anything but a C identifier.
    """
    attrs = func.attrs
    symbol = str(attrs[SYMBOL]) if attrs is not None and SYMBOL in attrs else ""
    if not _IDENTIFIER.fullmatch(symbol):
        raise ValueError(f"a region's symbol must be a C identifier of at most 201, got {symbol!r}")
    return symbol


def read_region(func: relax.Function) -> Region:
    """The region that a function with the attribute Codegen is.

    Raises ValueError where it is none: no composite, or one that holds something else than a
    convolution and its epilogue; TypeError for what is no Relax function.
    """
    of_type("read_region: func", func, relax.Function, "a Relax function")
    symbol = symbol_of(func)
    graph = Graph(func)
    composites: list[Any] = [v for v in graph.value.values() if isinstance(v, relax.Function)]
    if len(composites) != 1:
        raise ValueError(f"{symbol}: expected one composite function, found {len(composites)}")
    inner = composites[0]
    call = graph.bound_to(func.body.body)
    is_call = isinstance(call, relax.Call) and graph.value.get(call.op) is inner
    if not is_call:
        raise ValueError(f"{symbol}: its result is not the composite's")
    outer_index = {param: i for i, param in enumerate(func.params)}
    if any(arg not in outer_index for arg in call.args) or len(call.args) != len(func.params):
        raise ValueError(f"{symbol}: the composite's operands are not the function's parameters")
    within = Graph(inner)
    conv, steps = _chain(symbol, within)
    problem = problem_of(conv)
    named = list(zip(problem.roles[:2], conv.args[:2], strict=True))
    named += [(step.step.operand, step.operand) for step in steps if step.step.operand]
    names = _operands(symbol, within, named)
    ordered = [""] * len(func.params)
    for param, arg in zip(inner.params, call.args, strict=True):
        ordered[outer_index[arg]] = names.pop(param, "")
    if "" in ordered:
        raise ValueError(f"{symbol}: a parameter that is no operand: {func.params}")
    epilogue = tuple(step.step.name for step in steps)
    if len(set(epilogue)) != len(epilogue):
        raise ValueError(f"{symbol}: an epilogue that no backend has: {epilogue}")
    options = json.loads(str(inner.attrs[OPTIONS])) if OPTIONS in inner.attrs else {}
    return Region(symbol, problem, epilogue, tuple(ordered), options)


def _reaches_family(expr: Any, graph: Graph) -> bool:
    if family_def(expr) is not None:
        return True
    args = getattr(expr, "args", []) if isinstance(expr, relax.Call) else []
    return any(_reaches_family(graph.bound_to(arg), graph) for arg in args)


def _chain(symbol: str, graph: Graph) -> tuple[relax.Call, list[Match]]:
    """The convolution, and the steps from it to the result, in order."""
    found: list[Match] = []
    expr = graph.bound_to(graph.func.body.body)
    while family_def(expr) is None:
        if not _reaches_family(expr, graph):
            raise ValueError(f"{symbol}: no convolution, or not its epilogue: {expr}")
        if _reshape(expr):
            expr = graph.bound_to(expr.args[0])
            continue
        step = match(
            expr,
            op_name,
            graph.bound_to,
            lambda arg: _reaches_family(graph.bound_to(arg), graph),
            partial(is_whole, result=expr),
        )
        if step is None or step.wrong is not None:
            raise ValueError(f"{symbol}: an epilogue that no backend has: {expr}")
        found.insert(0, step)
        expr = graph.bound_to(step.value)
    return expr, found


def _reshape(call: Any) -> bool:
    return op_name(call) in _RESHAPES


def _operands(symbol: str, graph: Graph, named: Sequence[tuple[str, Any]]) -> dict[Any, str]:
    """Parameter -> what it is; `named` are operands, which may come through reshapes."""
    found: dict[Any, str] = {}
    for name, given in named:
        expr = graph.bound_to(given)
        while isinstance(expr, relax.Call) and _reshape(expr):
            expr = graph.bound_to(expr.args[0])
        if expr not in graph.params:
            raise ValueError(f"{symbol}: {name} is not a parameter: {expr}")
        if expr in found:
            raise ValueError(f"{symbol}: one parameter is both {found[expr]} and {name}")
        found[expr] = name
    return found
