"""A traced function of JAX with this package's convolutions in the places of `lax`'s.

Loops, branches, functions within and bodies of `shard_map` are rewritten with it.  What stays: the
derivative rules of `custom_jvp` and `custom_vjp`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np
from jax.extend import core

from .family import of_equation
from .records import Record, recorded, told

_CONVOLUTION = "conv_general_dilated"
_MAPPED = "shard_map"
_MAPPED_BY = {
    "mesh": "mesh", "in_specs": "in_specs", "out_specs": "out_specs", "check_vma": "check_vma",
    "axis_names": "newly_manual_axes",
}  # fmt: skip
"""Arguments of `jax.shard_map` -> parameters of its equation."""
_Kept = dict[Any, tuple[core.ClosedJaxpr, list[Record], Sequence[Any]]]
_kept: WeakKeyDictionary[core.Jaxpr, _Kept] = WeakKeyDictionary()
"""Programs that were rewritten, of which JAX keeps one for each function that it has traced."""


def replaced(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`function(*args, **kwargs)` so.  Leaves that are no arrays are the function's as they are."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, (jax.Array, np.ndarray))]
    others: list[Any] = []
    trees: list[Any] = []

    def of_arrays(*arrays: Any) -> list[Any]:
        given = list(leaves)
        for place, array in zip(places, arrays, strict=True):
            given[place] = array
        args, kwargs = jax.tree.unflatten(tree, given)
        results, out_tree = jax.tree.flatten(function(*args, **kwargs))
        trees.append(out_tree)
        are_arrays = [isinstance(x, jax.Array) for x in results]
        others.extend(
            None if is_array else x for x, is_array in zip(results, are_arrays, strict=True)
        )
        return [x for x, is_array in zip(results, are_arrays, strict=True) if is_array]

    arrays = [leaves[place] for place in places]
    traced = jax.make_jaxpr(of_arrays)(*arrays)
    made = iter(evaluate(traced, arrays, [True] * len(arrays)))
    return jax.tree.unflatten(trees[0], [next(made) if x is None else x for x in others])


def evaluate(closed: core.ClosedJaxpr, args: Sequence[Any], known: Sequence[bool]) -> list[Any]:
    """The program's results.  known : of each argument, whether it is one of the whole's."""
    jaxpr = closed.jaxpr
    values = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    values |= dict(zip(jaxpr.invars, args, strict=True))
    arguments = {v for v, is_one in zip(jaxpr.invars, known, strict=True) if is_one}
    arguments |= {*jaxpr.constvars}

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    spread: dict[Any, tuple[Any, bool, Any]] = {}  # what has zeros between: of what, and how
    for eqn in jaxpr.eqns:
        given = [read(atom) for atom in eqn.invars]
        are_known = [not isinstance(x, core.Literal) and x in arguments for x in eqn.invars]
        made = None
        if eqn.primitive.name == _CONVOLUTION:
            lhs, rhs = given
            params, known_here = eqn.params, are_known
            if not isinstance(eqn.invars[0], core.Literal) and eqn.invars[0] in spread:
                source, is_known, config = spread[eqn.invars[0]]
                if (wider := _dilated(eqn.params, config)) is not None:
                    lhs, params, known_here = source, wider, [is_known, are_known[1]]
            made = of_equation(lhs, rhs, eqn.outvars[0].aval, params, known_here)
        elif eqn.primitive.name == "pad" and _is_zero(given[1]):
            spread[eqn.outvars[0]] = given[0], are_known[0], eqn.params["padding_config"]
        elif eqn.primitive.name == _MAPPED and _has_convolution(eqn.params["jaxpr"]):
            made = _mapped(eqn.params, given, are_known)
        if made is None:
            bound = eqn.primitive.get_bind_params(_params(eqn, are_known))
            functions, params = bound if isinstance(bound, tuple) else ((), bound)  # older JAX
            made = eqn.primitive.bind(*functions, *given, **params)
        results = made if eqn.primitive.multiple_results else [made]
        values |= dict(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _is_zero(x: Any) -> bool:
    return not isinstance(x, jax.core.Tracer) and not np.any(np.asarray(x))


def _dilated(params: dict[str, Any], config: Any) -> dict[str, Any] | None:
    """A convolution's parameters where its lhs is what was padded with zeros, between pixels too:
    how some write a transposed one.  None where that is no padding of its own."""
    batch, features, *places = params["dimension_numbers"].lhs_spec
    pads = [config[place] for place in places]
    if any(config[place] != (0, 0, 0) for place in (batch, features)):
        return None
    is_between = any(between for _, _, between in pads)
    if not is_between or min(min(pad) for pad in pads) < 0 or {*params["lhs_dilation"]} != {1}:
        return None
    ends = zip(params["padding"], pads, strict=True)
    return {
        **params, "lhs_dilation": tuple(between + 1 for _, _, between in pads),
        "padding": tuple((a + low, b + high) for (a, b), (low, high, _) in ends),
    }  # fmt: skip


def _params(eqn: Any, known: Sequence[bool]) -> dict[str, Any]:
    """An equation's parameters, with the programs among them rewritten."""
    if eqn.primitive.name == _MAPPED or not any(map(_has_convolution, _programs(eqn.params))):
        return dict(eqn.params)
    return {name: _rewritten(value, known) for name, value in eqn.params.items()}


def _mapped(
    params: dict[str, Any], given: Sequence[Any], known: Sequence[bool]
) -> Sequence[Any] | None:
    """`shard_map` of the body rewritten, which only it can trace."""
    if missing := {*_MAPPED_BY.values()} - {*params}:
        told("", f"within shard_map, of which this JAX does not say {', '.join(sorted(missing))}")
        return None
    body = params["jaxpr"]
    closed = body if isinstance(body, core.ClosedJaxpr) else core.ClosedJaxpr(body, ())
    arguments = {name: params[parameter] for name, parameter in _MAPPED_BY.items()}

    def run(*args: Any) -> tuple[Any, ...]:
        return tuple(evaluate(closed, args, known))

    made: Sequence[Any] = jax.shard_map(run, **arguments)(*given)
    return made


def _rewritten(value: Any, known: Sequence[bool]) -> Any:
    if isinstance(value, tuple):
        return tuple(_rewritten(item, known) for item in value)
    if not isinstance(value, (core.ClosedJaxpr, core.Jaxpr)):
        return value
    # Since JAX 0.11 the two are one class, and each program may hold constants or none.
    is_open = not isinstance(value, core.ClosedJaxpr)
    made = _closed(core.ClosedJaxpr(value, ()) if is_open else value, known)
    if made.consts and (is_open or not value.consts):
        told("", "within a program that may hold no constants")
        return value
    return made.jaxpr if is_open else made


def _closed(value: core.ClosedJaxpr, known: Sequence[bool]) -> core.ClosedJaxpr:
    """The program rewritten: the same one for the same, as XLA compiles each but once."""
    if not _has_convolution(value.jaxpr):
        return value
    kept = _kept.setdefault(value.jaxpr, {})
    key = (tuple(known), tuple(map(id, value.consts)))
    if key not in kept:
        with recorded() as records:
            kept[key] = _made(value, known), records, value.consts
    made, records, _ = kept[key]
    for record in records:
        told(record.problem, record.reason)
    return made


def _made(value: core.ClosedJaxpr, known: Sequence[bool]) -> core.ClosedJaxpr:
    inner = value.jaxpr.invars
    if any(hasattr(v.aval, "inner_aval") for v in inner):  # which nothing outside can stand for
        told("", "within a program of mutable references")
        return value
    of_each = known if len(known) == len(inner) else [False] * len(inner)
    given = [
        jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type) for v in inner
    ]
    return jax.make_jaxpr(lambda *args: evaluate(value, args, of_each))(*given)


def _programs(value: Any) -> list[core.Jaxpr]:
    if isinstance(value, core.ClosedJaxpr):
        return [value.jaxpr]
    if isinstance(value, core.Jaxpr):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
    return [program for item in items for program in _programs(item)]


def _has_convolution(jaxpr: core.Jaxpr) -> bool:
    return any(
        eqn.primitive.name == _CONVOLUTION or any(map(_has_convolution, _programs(eqn.params)))
        for eqn in jaxpr.eqns
    )
