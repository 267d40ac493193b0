"""`dyn` operators, whose sizes are arguments, as those with sizes in attributes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ..ast import Call, Constant, Expr, Function, IRModule, Op, Tuple, post_order
from ..infer import infer_module
from ..make import call
from ..records import REGISTRY, Attr, lookup
from ..records.table import attributes_of_run
from ..rewrite import rewrite
from .fold_constant import fold_constant
from .user_hooks import attributes, kernels

_DYN = "dyn."


def dynamic_to_static(mod: IRModule) -> IRModule:
    """The module with sizes that constants tell in attributes, until no more are told.

    Needs types, and gives them.
    """
    while True:
        functions = {name: _function(function) for name, function in mod.functions.items()}
        if all(functions[name] is function for name, function in mod.functions.items()):
            return mod
        mod = infer_module(replace(mod, functions=functions))


def _function(function: Function) -> Function:
    whole = kernels(function)
    found = {
        node: places
        for node in post_order(function, lambda n: n not in whole)
        if isinstance(node, Call) and isinstance(node.op, Op)
        if (name := node.op.name).startswith(_DYN) and name.removeprefix(_DYN) in REGISTRY
        if (places := attributes_of_run(lookup(name.removeprefix(_DYN))))
    }
    asked = list({node.args[i]: None for node, places in found.items() for i in places})
    if not asked:
        return function
    # Only what sizes are computed from is computed now.
    probe = replace(function, body=Tuple(tuple(asked)), ret_type=None)
    told = fold_constant(probe).body
    assert isinstance(told, Tuple)
    values = dict(zip(asked, told.fields, strict=True))

    def change(old: Expr, node: Expr) -> Expr:
        if old not in found:
            return node
        assert isinstance(old, Call)
        assert isinstance(node, Call)
        sizes = {attr: values[old.args[i]] for i, attr in found[old].items()}
        if not all(isinstance(value, Constant) for value in sizes.values()):
            return node
        return _static(node, sizes, found[old])

    out = rewrite(function, change, dict(whole))
    assert isinstance(out, Function)
    return function if out is function else replace(out, ret_type=None)


def _static(node: Call, sizes: Mapping[Attr, Any], places: Collection[int]) -> Call:
    assert isinstance(node.op, Op)
    name = node.op.name.removeprefix(_DYN)
    kept = {attr.name for attr in lookup(name).attrs}
    attrs = {k: v for k, v in attributes(node, node.op.name).items() if k in kept}
    for attr, value in sizes.items():
        data = value.data
        if not attr.kind.startswith("float") and data.dtype.kind == "f":
            whole = data.astype("int64")
            if (whole != data).any():
                return node  # which its own relation refuses
            data = whole
        scalar = attr.kind in ("int", "float")
        attrs[attr.name] = data.reshape(()).item() if scalar else data.tolist()
    args = [arg for i, arg in enumerate(node.args) if i not in places]
    return replace(call(name, *args, **attrs), span=node.span)
