"""A problem as a function of JAX that calls its kernel through XLA's FFI, on one device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from ..layouts import ACTIVATIONS, KERNELS
from ..problem import ConvKind, ConvProblem, symmetric
from . import choice, comparison, targets
from .records import Options, lowered

Function = Callable[[Any, Any], Any]
_LAST = {2: ("NHWC", "OHWI"), 3: ("NDHWC", "ODHWI")}


def call(problem: ConvProblem, options: Options, platform: str) -> Function:
    """The problem's result, of its two operands; built here.  What the platform has no kernel for,
    and what XLA does as fast where that is measured, is `lax`'s, as `recorded` says."""
    if reason := choice.by_rule(problem, platform):
        lowered(problem.repro(), reason)
        return by_lax(problem, options)
    compare([(problem, options)], platform)
    found = choice.kept(problem, options, platform) if choice.is_measured(platform) else None
    if found is not None and not found.is_ours:
        lowered(problem.repro(), found.reason, found)
        return by_lax(problem, options)
    try:
        ours = _call(problem, options, platform)
    except targets.UnsupportedError as why:
        lowered(problem.repro(), f"on {platform}: {why}")
        return by_lax(problem, options)
    lowered(problem.repro(), "", found)
    return ours


def compare(asked: Iterable[tuple[ConvProblem, Options]], platform: str) -> None:
    """Finds times of both sides, where they decide and are not known; `call` asks for them.

    Compilers work on all beside each other, and what runs on the device runs alone.  What this
    package cannot run is left to `call` to say.
    """
    if not choice.is_measured(platform):
        return
    wanted = [
        (problem, options)
        for problem, options in dict.fromkeys(asked)
        if not (choice.by_rule(problem, platform) or targets.lacking(usual(problem), platform))
        and choice.kept(problem, options, platform) is None
    ]
    if not wanted:
        return
    device = choice.device_of(platform)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        theirs = [
            pool.submit(comparison.lowered(problem, by_lax(problem, options), device).compile)
            for problem, options in wanted
        ]
        if platform == "cuda":
            for options in dict.fromkeys(options for _, options in wanted):
                targets.build([usual(p) for p, of in wanted if of == options], options)
        wait(theirs)  # XLA tries its kernels on the device
        ours: list[Any] = [None] * len(wanted)
        for i, (problem, options) in enumerate(wanted):
            with suppress(ValueError, RuntimeError):
                run = _call(problem, options, platform)
                ours[i] = pool.submit(comparison.lowered(problem, run, device).compile)
        for (problem, options), mine, other in zip(wanted, ours, theirs, strict=True):
            if mine is not None:
                found = comparison.times(mine.result(), other.result())
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
    """The same by JAX's own convolution, of which dgrad and wgrad are transposes."""
    rank = problem.rank
    ends = zip(problem.padding[:rank], problem.padding[rank:], strict=True)
    numbers = (problem.data_layout, problem.kernel_layout, problem.grad_layout)

    def fprop(data: Any, weight: Any) -> Any:
        return lax.conv_general_dilated(
            data, weight, problem.strides, pads, rhs_dilation=problem.dilation,
            dimension_numbers=numbers, feature_group_count=problem.groups, precision=precision,
        )  # fmt: skip

    pads, precision = tuple(ends), lax.Precision[options.precision]
    if problem.kind is ConvKind.FPROP:
        return fprop
    result = problem.roles[2]
    like = jax.ShapeDtypeStruct(problem.shape(result), jnp.dtype(problem.dtype(result)))

    def transposed(grad: Any, other: Any) -> Any:
        of = (lambda x: fprop(x, other)) if result == "data" else (lambda w: fprop(other, w))
        return jax.linear_transpose(of, like)(grad)[0]

    return transposed
