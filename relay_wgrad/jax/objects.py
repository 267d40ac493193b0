"""Functions of flax's nnx objects, which they may change: as functions of these objects' states.

A function that is traced has copies of its arguments, so that what it writes into them (a running
average, the count of a dropout's keys) would be lost: states are results of what is traced, and are
written back into what the caller has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import MethodType
from typing import Any

import jax


def with_objects(
    run: Callable[..., Any], function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """`run(function, *args, **kwargs)`, of a `run` that gives the function copies of its arguments.

    Raises ValueError where the function adds or takes away parts of such an object, or returns one.
    """
    nnx = sys.modules.get("flax.nnx")  # whoever has such an object has imported it
    if nnx is None:
        return run(function, *args, **kwargs)

    # Not what nnx calls nodes, of which JAX's own references are some.
    kinds = (nnx.Variable, getattr(nnx, "Pytree", nnx.Object))

    def is_object(x: Any) -> bool:
        return isinstance(x, kinds)

    # An object that is called, or whose method is, is an argument as well.
    if is_object(function):
        args, function = (function, *args), type(function).__call__
    elif isinstance(function, MethodType) and is_object(function.__self__):
        args, function = (function.__self__, *args), function.__func__
    leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=is_object)
    objects = [leaf for leaf in leaves if is_object(leaf)]
    if not objects:
        return run(function, *args, **kwargs)
    name = getattr(function, "__name__", "function")
    structure, before = nnx.split(objects)

    def of_states(states: Any, others: list[Any]) -> Any:
        copies = nnx.merge(structure, states)
        given = iter(copies)
        all_leaves = [
            next(given) if is_object(leaf) else other
            for leaf, other in zip(leaves, others, strict=True)
        ]
        args, kwargs = jax.tree.unflatten(tree, all_leaves)
        made = function(*args, **kwargs)
        own = {id(part) for _, part in nnx.iter_graph(copies) if is_object(part)}
        if any(id(leaf) in own for leaf in jax.tree.leaves(made, is_leaf=is_object)):
            raise ValueError(f"optimize: {name} returns an nnx object that is one of its arguments")
        found, after = nnx.split(copies)
        if found != structure:
            raise ValueError(
                f"optimize: {name} adds or takes away parts of an nnx object: it was {structure},"
                f" it is {found}"
            )
        return made, after

    others = [None if is_object(leaf) else leaf for leaf in leaves]
    made, after = run(of_states, before, others)
    nnx.update(objects, after)
    return made
