"""Regions: the functions that a partition made, read back for code generation.

A region is a function with the attribute Codegen.  It calls one composite, which holds one call of
the convolution family and its epilogue.  Facts come from attributes and structure, not from names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tvm import relax

from relay_wgrad.argument_types import check_type
from relay_wgrad.graph.def_use import Graph
from relay_wgrad.keys import OPTIONS, SYMBOL
from relay_wgrad.ops.call_problem import problem_of
from relay_wgrad.problem import ConvProblem

from ..fused import STEPS, conv_and_steps
from .kernel_names import IDENTIFIER


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


def options_text(options: Any) -> str:
    """A backend's options as a composite carries them; `read_region` reads them back.

    An attribute holds text: a module is printed, stored and read between partition and build.
    """
    return json.dumps(asdict(options), sort_keys=True)


def symbol_of(func: relax.Function) -> str:
    """The region's symbol, which becomes part of generated source.

    Raises ValueError for anything but a C identifier.
    """
    attrs = func.attrs
    symbol = str(attrs[SYMBOL]) if attrs is not None and SYMBOL in attrs else ""
    if not IDENTIFIER.fullmatch(symbol):
        raise ValueError(f"a region's symbol must be a C identifier of at most 201, got {symbol!r}")
    return symbol


def read_region(func: relax.Function) -> Region:
    """The region that a function with the attribute Codegen is.

    Raises ValueError where it is none: no composite, or one that holds something else than a
    convolution and its epilogue; TypeError for what is no Relax function.
    """
    check_type("read_region: func", func, relax.Function, "a Relax function")
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
    # A module may have been written anew since it was partitioned: what its text says is read.
    try:
        conv, steps = conv_and_steps(inner.body.body, Graph(inner).value)
    except ValueError as error:
        raise ValueError(f"{symbol}: an epilogue that no backend has: {error}") from None
    if any(step.wrong is not None for step in steps):
        raise ValueError(f"{symbol}: an epilogue that no backend has: {inner.body}")
    problem = problem_of(conv)
    named = list(zip(problem.roles[:2], conv.args[:2], strict=True))
    named += [(step.step.operand, step.operand) for step in steps if step.step.operand]
    names = _operands(symbol, inner, named)
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


def _operands(
    symbol: str, func: relax.Function, named: Sequence[tuple[str, Any]]
) -> dict[Any, str]:
    """Parameter -> which of the operands it is."""
    params, found = set(func.params), dict[Any, str]()
    for name, operand in named:
        if operand not in params:
            raise ValueError(f"{symbol}: {name} is not a parameter: {operand}")
        if operand in found:
            raise ValueError(f"{symbol}: one parameter is both {found[operand]} and {name}")
        found[operand] = name
    return found
