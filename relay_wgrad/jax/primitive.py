"""A convolution of the family as a primitive of JAX: a member of a trilinear form, by its problem.

Both operands are arrays in the problem's own layouts.  The form's other two members are its
transposes, so derivatives of every order are of this primitive again; `vmap` folds its axis into
the images, the channels or the groups; where a mesh shards the images each device runs its share.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

import jax
from jax import numpy as jnp
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from ..problem import ROLES, ConvProblem
from . import foreign, sharding, targets
from .records import Options, is_portable, lowered

convolution_p = core.Primitive("relay_wgrad_convolution")
_MOST = 1024  # problems that a thread has traced and not lowered
OF_RESULT = {roles[2]: kind for kind, roles in ROLES.items()}


class _Traced(threading.local):
    """What a thread has traced since it last lowered: of a network all, when the first is lowered,
    so that they are compared together; compilers begin at once."""

    def __init__(self) -> None:
        self.problems: dict[tuple[ConvProblem, Options], None] = {}

    def add(self, problem: ConvProblem, options: Options) -> None:
        if len(self.problems) < _MOST and (problem, options) not in self.problems:
            self.problems[problem, options] = None
            foreign.traced(problem, options)

    def taken(self) -> list[tuple[ConvProblem, Options]]:
        found, self.problems = list(self.problems), {}
        return found


_traced = _Traced()


def convolution(first: Any, second: Any, problem: ConvProblem, options: Options) -> Any:
    """The problem's result, of its two operands in their layouts.

    Raises TypeError for operands of other shapes or dtypes.
    """
    return convolution_p.bind(*sharding.alike(first, second), problem=problem, options=options)


@convolution_p.def_abstract_eval
def _abstract(first: Any, second: Any, *, problem: ConvProblem, options: Options) -> Any:
    for given, role in zip((first, second), problem.roles, strict=False):
        shape, dtype = problem.shape(role), problem.dtype(role)
        if (given.shape, str(given.dtype)) != (shape, dtype):
            raise TypeError(
                f"{problem.kind.value}: {role} must be {dtype}{list(shape)}, got"
                f" {given.dtype}{list(given.shape)}"
            )
    _traced.add(problem, options)
    role = problem.roles[2]
    made = {"shape": problem.shape(role), "dtype": jnp.dtype(problem.dtype(role))}
    # Within `shard_map` it varies over the axes that the operands do.
    return first.update(**made, weak_type=False)


@lru_cache(maxsize=1024)
def _jitted(problem: ConvProblem, options: Options) -> Any:
    return jax.jit(partial(convolution_p.bind, problem=problem, options=options))


@convolution_p.def_impl
def _run(first: Any, second: Any, *, problem: ConvProblem, options: Options) -> Any:
    with jax.disable_jit(False):  # whose user steps through what there are operations for
        return _jitted(problem, options)(first, second)


# ---- derivatives ---------------------------------------------------------------------------------


def _transposed(
    index: int, cotangent: Any, first: Any, second: Any, *, problem: ConvProblem, options: Options
) -> Any:
    """By the operand at `index`: the form's member whose result has that operand's role."""
    known = {problem.roles[2]: cotangent, problem.roles[1 - index]: (second, first)[index]}
    other = problem.with_kind(OF_RESULT[problem.roles[index]])
    return convolution(known[other.roles[0]], known[other.roles[1]], other, options)


ad.defbilinear(convolution_p, partial(_transposed, 0), partial(_transposed, 1))


# ---- vmap ----------------------------------------------------------------------------------------

# The size that two tensors of the form share, and each one's letter for it; channels are cut at
# their groups, but for a weight's input channels, which are those of one group.
_SHARED = {
    frozenset(("data", "grad")): ("n", {"data": "N", "grad": "N"}),
    frozenset(("weight", "grad")): ("k", {"weight": "O", "grad": "C"}),
    frozenset(("data", "weight")): ("c", {"data": "C", "weight": "I"}),
}
GROUPED = {"data": "C", "weight": "O", "grad": "C"}


def _folded(x: Any, axis: int, letter: str, layout: str, groups: int) -> Any:
    """The batch at `axis` before or, of `groups`, within each group of the axis of this letter."""
    at = layout.index(letter)
    x = jnp.moveaxis(x, axis, at)
    if groups > 1:
        count, size = x.shape[at], x.shape[at + 1]
        apart = x.reshape(*x.shape[: at + 1], groups, size // groups, *x.shape[at + 2 :])
        x = jnp.moveaxis(apart, at, at + 1)
        return x.reshape(*x.shape[:at], count * size, *x.shape[at + 3 :])
    return x.reshape(*x.shape[:at], -1, *x.shape[at + 2 :])


def _unfolded(x: Any, count: int, letter: str, layout: str, groups: int) -> Any:
    """What `_folded` makes, apart again: the batch comes first."""
    at = layout.index(letter)
    size = x.shape[at] // (count * groups)
    apart = x.reshape(*x.shape[:at], groups, count, size, *x.shape[at + 1 :])
    apart = jnp.moveaxis(apart, at + 1, 0)
    return apart.reshape(count, *x.shape[:at], groups * size, *x.shape[at + 1 :])


def _batched(
    operands: Any, axes: Any, *, problem: ConvProblem, options: Options
) -> tuple[Any, int]:
    given = dict(zip(problem.roles, zip(operands, axes, strict=True), strict=False))
    mapped = [role for role, (_, axis) in given.items() if axis is not None]
    count = next(given[role][0].shape[given[role][1]] for role in mapped)
    result, groups = problem.roles[2], problem.groups
    if len(mapped) == 1:
        name, letters = _SHARED[frozenset((mapped[0], result))]
        wider = replace(problem, **{name: getattr(problem, name) * count})
        cut = {role: groups if GROUPED[role] == letter else 1 for role, letter in letters.items()}
    else:  # each of the batch has groups of its own, all of one before those of the next
        wider = replace(problem, groups=groups * count, c=problem.c * count, k=problem.k * count)
        letters, cut = GROUPED, dict.fromkeys(GROUPED, 1)
    folded = [
        x if axis is None else _folded(x, axis, letters[role], problem.layout(role), cut[role])
        for role, (x, axis) in given.items()
    ]
    first, second = folded
    made = convolution(first, second, wider, options)
    return _unfolded(made, count, letters[result], problem.layout(result), cut[result]), 0


batching.primitive_batchers[convolution_p] = _batched


# ---- XLA -----------------------------------------------------------------------------------------


def _lowered(
    platform: str, ctx: Any, *operands: Any, problem: ConvProblem, options: Options
) -> Any:
    built = partial(foreign.call, options=options, platform=platform)
    parameters = ctx.module_context.lowering_parameters
    if is_portable() or getattr(parameters, "for_export", False):  # it runs elsewhere
        lowered(problem.repro(), "in an exported program")
        return _by_lax(ctx, *operands, problem=problem, options=options)
    is_shared = sharding.is_shared(ctx.module_context.axis_context)
    if (traced := _traced.taken()) and not is_shared:  # else each device has a share
        foreign.compare(traced, platform)
    run = (
        sharding.over_images(problem, built, foreign.by_lax(problem, options))
        if is_shared
        else built(problem)
    )
    return mlir.lower_fun(run, multiple_results=False)(ctx, *operands)


for _platform in targets.PLATFORMS:
    mlir.register_lowering(convolution_p, partial(_lowered, _platform), platform=_platform)


def _by_lax(ctx: Any, *operands: Any, problem: ConvProblem, options: Options) -> Any:
    return mlir.lower_fun(foreign.by_lax(problem, options), multiple_results=False)(ctx, *operands)


mlir.register_lowering(convolution_p, _by_lax)  # of other platforms
sharding.ask_for_devices(convolution_p)


def _checkified(error: Any, enabled: Any, *operands: Any, **params: Any) -> Any:
    """`checkify.float_checks` look at its result as at `lax`'s."""
    return _checkify.nan_error_check(convolution_p, error, enabled, *operands, **params)


_checkify: Any = import_module("jax._src.checkify")
if hasattr(_checkify, "nan_error_check"):  # else this JAX looks elsewhere, and not at this
    _checkify.error_checks[convolution_p] = _checkified
