"""A problem as a function of JAX that calls its kernel through XLA's FFI, on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from ..layouts import ACTIVATIONS, KERNELS
from ..problem import ConvProblem, symmetric
from . import ahead, choice, comparison, targets
from .choice import LATE
from .records import Options, lowered

Function = Callable[[Any, Any], Any]
PATIENCE = 20.0  # seconds; the slowest that was seen took 8
_ROLES = ("data", "weight", "grad")
_LAST = {2: ("NHWC", "OHWI"), 3: ("NDHWC", "ODHWI")}


def call(problem: ConvProblem, options: Options, platform: str) -> Function:
    """The problem's result, of its two operands; built here.  What the platform has no kernel for,
    and what XLA does as fast where that is measured, is `lax`'s, as `recorded` says."""
    rule, found = choice.by_rule(problem, platform), None
    if rule is not None and not rule.is_ours:
        lowered(problem.repro(), rule.reason)
        return by_lax(problem, options)
    if rule is None and choice.is_measured(platform):
        compare([(problem, options)], platform)
        found = choice.kept(problem, options, platform)
    if found is not None and not found.is_ours:
        lowered(problem.repro(), found.reason, found)
        return by_lax(problem, options)
    try:
        ours = _call(problem, options, platform)
    except targets.UnsupportedError as why:
        lowered(problem.repro(), f"on {platform}: {why}")
        return by_lax(problem, options)
    lowered(problem.repro(), "", (None, LATE.lax) if found == LATE else found)
    return ours


def traced(problem: ConvProblem, options: Options) -> None:
    """Begins what a problem will need of compilers where JAX's default is CUDA, and waits for
    nothing: what is traced may yet be lowered for another platform, or not at all."""
    if _is_cuda_default():
        _begin(problem, options)


def _begin(problem: ConvProblem, options: Options) -> None:
    """For CUDA, unless it is known to be `lax`'s."""
    rule = choice.by_rule(problem, "cuda")
    if rule is None and choice.is_measured("cuda"):
        found = choice.kept(problem, options, "cuda")
        is_ours = found is None or found.is_ours
    else:
        is_ours = rule is None or rule.is_ours
    if is_ours:
        ahead.begin(usual(problem), options)


def _is_cuda_default() -> bool:
    """Without making JAX's devices, which is for its user to do."""
    bridge = import_module("jax._src.xla_bridge")
    is_there = getattr(bridge, "backends_are_initialized", lambda: False)
    return is_there() and jax.default_backend() == targets.FFI_PLATFORM["cuda"]


def compare(asked: Iterable[tuple[ConvProblem, Options]], platform: str) -> None:
    """Finds times of both sides, where they decide and are not known; `call` asks for them.

    Of problems that are kin one is timed first, which decides for all where it is clear.  What this
    package cannot run is left to `call` to say.
    """
    asked = list(dict.fromkeys(asked))
    if platform == "cuda":
        for one in asked:
            _begin(*one)
    if not choice.is_measured(platform):
        return
    wanted = [
        (problem, options)
        for problem, options in asked
        if choice.by_rule(problem, platform) is None
        and not targets.lacking(usual(problem), platform)
        and choice.kept(problem, options, platform) is None
    ]
    firsts = {(choice.kin(problem), options): (problem, options) for problem, options in wanted}
    _compare(list(firsts.values()), platform)
    _compare([one for one in wanted if choice.kept(*one, platform) is None], platform)


def _compare(wanted: Sequence[tuple[ConvProblem, Options]], platform: str) -> None:
    """Compilers work on all beside each other, and what runs on the device runs alone.

    XLA tries kernels on the device when it compiles, of which one may take minutes: a program that
    is not there after `PATIENCE` seconds in which no other came is waited for no longer.
    """
    if not wanted:
        return
    device = choice.device_of(platform)
    # Apart: one that is late holds its place.
    by_xla, later = ahead.Builds(is_daemon=True), ahead.Builds(is_daemon=True)
    theirs: list[Future[Any]] = []
    for i, (problem, options) in enumerate(wanted):
        program = comparison.lowered(problem, by_lax(problem, options), device)
        theirs.append(by_xla.begin(i, program.compile))
    if platform == "cuda":
        for options in dict.fromkeys(options for _, options in wanted):
            ahead.finish([usual(p) for p, of in wanted if of == options], options)
    left: set[Future[Any]] = set(theirs)
    while left and (came := wait(left, PATIENCE, FIRST_COMPLETED).done):
        left -= came
    ours: list[Any] = [None] * len(wanted)
    for i, (problem, options) in enumerate(wanted):
        with suppress(ValueError, RuntimeError):
            run = _call(problem, options, platform)
            if theirs[i] in left:
                ours[i] = LATE
            else:
                ours[i] = later.begin(i, comparison.lowered(problem, run, device).compile)
    for (problem, options), mine, other in zip(wanted, ours, theirs, strict=True):
        if mine is not None:
            found = LATE if mine is LATE else comparison.times(mine.result(), other.result())
            choice.keep(problem, options, platform, found)


def _call(problem: ConvProblem, options: Options, platform: str) -> Function:
    if platform == "cpu":
        return _target(problem, options, platform)
    inner = usual(problem)
    return around(problem, inner, _target(inner, options, platform))


def usual(problem: ConvProblem) -> ConvProblem:
    """The problem as libraries take it: symmetric padding, and one of two layouts."""
    rank, is_last = problem.rank, problem.data_layout.endswith("C")
    data, kernel = _LAST[rank] if is_last else (ACTIVATIONS[rank], KERNELS[rank])
    return replace(symmetric(problem), data_layout=data, grad_layout=data, kernel_layout=kernel)


def around(problem: ConvProblem, inner: ConvProblem, run: Function) -> Function:
    """A problem's function, of that of the problem as `usual` has it."""

    def called(first: Any, second: Any) -> Any:
        given = zip(problem.roles, (first, second), strict=False)
        made = run(*(_ready(problem, inner, role, x) for role, x in given))
        return _back(problem, inner, made)

    return called


def _target(problem: ConvProblem, options: Options, platform: str) -> Function:
    name, role = targets.named(problem, options, platform), problem.roles[2]
    result = jax.ShapeDtypeStruct(problem.shape(role), jnp.dtype(problem.dtype(role)))
    called: Function = jax.ffi.ffi_call(name, result)
    return called


def _pads(problem: ConvProblem, inner: ConvProblem) -> list[tuple[int, int]]:
    """What `symmetric` adds to data, before and after, by its axes of pixels."""
    least, rank = inner.padding[: inner.rank], problem.rank
    ends = zip(problem.padding[:rank], problem.padding[rank:], strict=True)
    return [(a - low, b - low) for (a, b), low in zip(ends, least, strict=True)]


def _ready(problem: ConvProblem, inner: ConvProblem, role: str, x: Any) -> Any:
    own, wanted = problem.layout(role), inner.layout(role)
    x = lax.transpose(x, [own.index(letter) for letter in wanted])
    if role == "data" and inner.spatial != problem.spatial:
        ends = dict(zip("DHW"[-problem.rank :], _pads(problem, inner), strict=True))
        x = jnp.pad(x, [ends.get(letter, (0, 0)) for letter in wanted])
    return x


def _back(problem: ConvProblem, inner: ConvProblem, made: Any) -> Any:
    role = problem.roles[2]
    own, wanted = inner.layout(role), problem.layout(role)
    if role == "data" and inner.spatial != problem.spatial:
        ends = dict(zip("DHW"[-problem.rank :], _pads(problem, inner), strict=True))
        low = [ends.get(letter, (0, 0))[0] for letter in own]
        high = [
            size - ends.get(letter, (0, 0))[1] for letter, size in zip(own, made.shape, strict=True)
        ]
        made = lax.slice(made, low, high)
    return lax.transpose(made, [own.index(letter) for letter in wanted])


def by_lax(problem: ConvProblem, options: Options) -> Function:
    """The same by JAX's own convolution, of which dgrad and wgrad are transposes.

    One row of pixels is a convolution of one axis, as its user has it: XLA tells these apart.  And
    it knows a strided dgrad by the reversal of its filters, which must not meet another one.
    """
    rank, first = problem.rank, int(problem.is_line)
    ends = tuple(zip(problem.padding[:rank], problem.padding[rank:], strict=True))[first:]
    layouts = {role: problem.layout(role).replace("H" * first, "") for role in _ROLES}
    shapes = {
        role: tuple(
            size
            for letter, size in zip(problem.layout(role), problem.shape(role), strict=True)
            if letter in layouts[role]
        )
        for role in _ROLES
    }

    def fprop(data: Any, weight: Any) -> Any:
        return lax.conv_general_dilated(
            data, weight, problem.strides[first:], ends, rhs_dilation=problem.dilation[first:],
            dimension_numbers=tuple(layouts.values()), feature_group_count=problem.groups,
            precision=lax.Precision[options.precision],
        )  # fmt: skip

    result = problem.roles[2]

    def computed(one: Any, two: Any) -> Any:
        one, two = (x.reshape(shapes[r]) for r, x in zip(problem.roles, (one, two), strict=False))
        if result == "grad":
            made = fprop(one, two)
        else:
            if result == "data" and max(problem.strides) > 1:
                two = lax.optimization_barrier(two)
            of = (lambda x: fprop(x, two)) if result == "data" else (lambda w: fprop(two, w))
            like = jax.ShapeDtypeStruct(shapes[result], jnp.dtype(problem.dtype(result)))
            made = jax.linear_transpose(of, like)(one)[0]
        return made.reshape(problem.shape(result))

    return computed
