"""Parts of a program: its operators, its kernels, an inner value, what its functions are given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..keys import COMPILER, INLINE, PRIMITIVE
from .ast import (
    Call,
    Expr,
    Function,
    GlobalVar,
    IRModule,
    Op,
    Tuple,
    TupleGetItem,
    post_order,
)
from .equal import structural_equal
from .executor import create_executor
from .executor_factory import MAIN
from .infer import infer_module
from .transform import FuseOps, Inline
from .types import TupleType


def list_op_freqs(mod: IRModule) -> dict[str, int]:
    """How many calls of each operator a module has, in the order of its text."""
    found: Counter[str] = Counter()
    for function in mod.functions.values():
        for node in post_order(function):
            if isinstance(node, Call) and isinstance(node.op, Op):
                found[node.op.name] += 1
    return dict(found)


def extract_fused_functions(mod: IRModule) -> dict[str, Function]:
    """The different kernels that `FuseOps` at level 3 makes of @main, by a name for each."""
    main = FuseOps(3)(infer_module(IRModule({MAIN: mod[MAIN]})))[MAIN]
    found: list[Function] = []
    for node in post_order(main):
        kernel = isinstance(node, Function) and node.attrs.get(PRIMITIVE)
        if kernel and not any(structural_equal(node, known) for known in found):
            assert isinstance(node, Function)
            found.append(node)
    return {f"fused_{i}_{_name(function)}": function for i, function in enumerate(found)}


def _name(function: Function) -> str:
    names = [
        n.op.name for n in post_order(function) if isinstance(n, Call) and isinstance(n.op, Op)
    ]
    return "_".join(name.replace(".", "_") for name in names)


def extract_intermdeiate_expr(mod: IRModule, expr_id: int) -> IRModule:
    """The module that computes an inner value of @main; the misspelling is Relay's.

    expr_id : its place among @main's calls, tuples and fields: the number that the text has for it
        if each is written as `%0 = …`.

    Raises ValueError for a number that no value has.
    """
    kinds = (Call, Tuple, TupleGetItem)
    found = [node for node in post_order(mod[MAIN]) if isinstance(node, kinds)]
    if not 0 <= expr_id < len(found):
        raise ValueError(f"@main has values 0 to {len(found) - 1}, got {expr_id}")
    return IRModule.from_expr(found[expr_id])


class _ByFunction(dict[str, dict[str, list[Any]]]):
    """By a function's name, or its GlobalVar."""

    def __getitem__(self, key: str | GlobalVar) -> dict[str, list[Any]]:
        return super().__getitem__(key.name if isinstance(key, GlobalVar) else key)


def get_calibration_data(
    mod: IRModule, data: Mapping[str, Any]
) -> Mapping[str, dict[str, list[Any]]]:
    """What the functions for compilers are given, and what they compute, when @main runs.

    data : @main's arguments by name.

    Returns
    -------
    by function : "inputs", an array for each parameter, and "outputs", one for each result.  All of
    a function that is called often are in the order of its calls.

    Raises ValueError where one is given a tuple.  Calls within functions that are values are not
    seen.
    """
    mod = infer_module(mod)
    wanted = {name for name, f in mod.functions.items() if f.attrs.get(COMPILER)}
    body = mod[MAIN].body
    calls = [
        node
        for node in post_order(body, lambda n: not isinstance(n, Function))
        if isinstance(node, Call) and isinstance(node.op, GlobalVar) and node.op.name in wanted
    ]
    results: list[Any] = []
    sizes: list[tuple[str, int, int]] = []
    for call in calls:
        assert isinstance(call.op, GlobalVar)
        for arg in call.args:
            if isinstance(arg.checked_type, TupleType):
                raise ValueError(f"get_calibration_data: @{call.op.name} is given a tuple")
        ty = call.checked_type
        fields = len(ty.fields) if isinstance(ty, TupleType) else 0
        outs: list[Expr] = [TupleGetItem(call, i) for i in range(fields)]
        outs = outs or [call]
        results += [*call.args, *outs]
        sizes.append((call.op.name, len(call.args), len(outs)))
    plain: dict[str, Function] = {}
    for name, function in mod.functions.items():
        attrs = {k: v for k, v in function.attrs.items() if k != COMPILER}
        if name in wanted:
            function = replace(function, attrs={**attrs, INLINE: 1})
        plain[name] = function
    main = replace(mod[MAIN], body=Tuple(tuple(results)), ret_type=None)
    whole = Inline()(infer_module(IRModule({**plain, MAIN: main})))
    values = iter(create_executor("graph", whole).evaluate()(**data) if results else [])
    out = _ByFunction({name: {"inputs": [], "outputs": []} for name in wanted})
    for name, given, made in sizes:
        out[name]["inputs"] += [next(values) for _ in range(given)]
        out[name]["outputs"] += [next(values) for _ in range(made)]
    return out
