"""Whether this package's kernel of a problem is faster than what XLA makes of `lax`'s: as measured.

On CUDA a problem is timed once for a machine and its versions, when JAX lowers it; the times are
kept in the user's cache, and serve its kin where a side leads clearly.  What XLA gives cuDNN as it
stands is `lax`'s by rule, and nothing is built for it; what XLA takes for another convolution is
this package's.  On CPUs, where XLA's kernels are slower in nearly all shapes, nothing is timed
unless it is asked for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from importlib.metadata import version
from typing import NamedTuple

import jax
import tvm

from .. import __version__
from ..building.disk_cache import DiskCache, key_of
from ..problem import ConvKind, ConvProblem
from .records import Options
from .targets import FFI_PLATFORM, PLATFORMS

_ALL = "cuda:all"
_WORDS = (*PLATFORMS, _ALL)
_FEW_CHANNELS = 8  # fewer are kernels of their own in this package
_LESS = 0.9  # XLA moves layouts and fuses around its own convolution, and not around a call
_CLEAR = 1.5  # a lead that kin have too
_OWN = ("d=", "h=", "w=", "pad=", "dil=")  # of a problem, not of its kin
_LONG = 64  # pixels of a line that XLA was measured to be tens of times slower with

_measured: tuple[str, ...] = ("cuda",)
known: dict[str, Times] = {}  # to this process, by all that they depend on


class Times(NamedTuple):
    """Milliseconds of a call, within a program of its own; of neither where XLA's was `LATE`."""

    ours: float
    lax: float

    @property
    def is_ours(self) -> bool:
        return self == LATE or self.ours <= _LESS * self.lax

    @property
    def is_clear(self) -> bool:
        return self != LATE and max(self) > _CLEAR * min(self)

    @property
    def reason(self) -> str:
        """Why it is `lax`'s, where it is."""
        how = "faster" if self.lax < self.ours else "about as fast"
        return f"XLA's is {how}: {self.lax:.3f} ms, this package's {self.ours:.3f}"


LATE = Times(0.0, math.inf)
"""XLA had not compiled its program when it was waited for no longer."""


def set_measured(*platforms: str) -> tuple[str, ...]:
    """Where kernels are compared with XLA's by their times; returns what it was.

    platforms : of "cpu", "cuda" and "cuda:all", at first "cuda", which leaves to `lax` untimed what
        XLA gives cuDNN as it stands; "cuda:all" times these too.  On a platform that is not named
        every convolution that this package has a kernel for is its own.  It holds for what is
        lowered from then on.

    Raises ValueError for another platform.
    """
    global _measured
    if wrong := [name for name in platforms if name not in _WORDS]:
        raise ValueError(f"set_measured: platforms are {', '.join(_WORDS)}, got {wrong[0]!r}")
    before, _measured = _measured, tuple(dict.fromkeys(platforms))
    return before


def is_measured(platform: str) -> bool:
    return platform in _measured or f"{platform}:all" in _measured


class Rule(NamedTuple):
    """Whose a problem is untimed.  reason : why it is `lax`'s, where it is."""

    reason: str = ""

    @property
    def is_ours(self) -> bool:
        return not self.reason


def _is_long_wgrad(problem: ConvProblem) -> bool:
    """A weight gradient of lines of pixels, of stride 1.  XLA knows one by filters that are larger
    than the result along both axes of an image; a line has one axis, so XLA computes an fprop whose
    filters are as long as the line (`ConvRewriter` of its GPU compiler)."""
    is_long = problem.q >= _LONG and {*problem.strides} == {1}
    return problem.kind is ConvKind.WGRAD and problem.is_line and is_long


def _is_long_filtered(problem: ConvProblem) -> bool:
    """Of lines, with filters longer than what they make.  XLA takes filters larger than the result
    for a wgrad's gradient, and what it makes of that was not there in 9 s, for which a comparison
    would wait."""
    return problem.is_line and problem.s >= _LONG and problem.q <= problem.s


def _is_plain(problem: ConvProblem) -> bool:
    """What XLA gives cuDNN as it stands, and cuDNN has good kernels for."""
    is_dense = problem.groups == 1 and {*problem.dilation} == {1}
    if problem.rank != 2 or not is_dense or min(problem.c, problem.k) < _FEW_CHANNELS:
        return False
    if problem.is_line:
        return problem.kind is not ConvKind.WGRAD and problem.q > problem.s
    return problem.p > problem.r and problem.q > problem.s


_RULES: tuple[tuple[Callable[[ConvProblem], bool], Rule], ...] = (
    (_is_long_wgrad, Rule()),
    (_is_long_filtered, Rule()),
    (_is_plain, Rule("XLA gives cuDNN the same convolution")),
)


def by_rule(problem: ConvProblem, platform: str) -> Rule | None:
    """Whose a problem is where it is not timed; None where times decide."""
    if platform != "cuda" or not is_measured(platform) or _ALL in _measured:
        return None
    return next((rule for holds, rule in _RULES if holds(problem)), None)


def kept(problem: ConvProblem, options: Options, platform: str) -> Times | None:
    """What was measured of it, or of its kin where that was clear, by these versions on this
    machine."""
    for key in _keys(problem, options, platform):
        if key not in known and (found := DiskCache().get(key)) is not None:
            known[key] = Times(*json.loads(found))
        if key in known:
            return known[key]
    return None


def keep(problem: ConvProblem, options: Options, platform: str, made: Times) -> None:
    for key in _keys(problem, options, platform)[: 2 if made.is_clear else 1]:
        known[key] = made
        DiskCache().put(key, json.dumps(made).encode())


def kin(problem: ConvProblem) -> str:
    """What problems have in common that make as many pixels and differ in how far they are dilated,
    and so in padding and data's size, alone."""
    words = problem.repro().split()
    same = [word for word in words if not word.startswith(_OWN)]
    dilated = [step > 1 for step in problem.dilation]
    return f"kin: {' '.join(same)} out={problem.pixels} dilated={dilated}"


def device_of(platform: str) -> jax.Device:
    """The one that times are taken on."""
    return jax.local_devices(backend=FFI_PLATFORM[platform])[0]


def _keys(problem: ConvProblem, options: Options, platform: str) -> list[str]:
    """Of the problem's own times, and of its kin's."""
    facts = [
        "times of jax 3", __version__, jax.__version__, version("jaxlib"), tvm.__version__,
        platform, device_of(platform).device_kind, str(options),
    ]  # fmt: skip
    return [key_of([*facts, text]) for text in (problem.repro(), kin(problem))]
