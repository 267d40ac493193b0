"""Whether this package's kernel of a problem is faster than what XLA makes of `lax`'s: as measured.

On CUDA a problem is timed once for a machine and its versions, when JAX lowers it; the times are
kept in the user's cache.  What XLA gives cuDNN as it stands is `lax`'s by rule, and nothing is
built for it.  On CPUs, where XLA's kernels are slower in nearly all shapes, nothing is timed unless
it is asked for.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import NamedTuple

import jax
import tvm

from .. import __version__
from ..building.disk_cache import DiskCache, key_of
from ..problem import ConvProblem
from .records import Options
from .targets import FFI_PLATFORM, PLATFORMS

_ALL = "cuda:all"
_WORDS = (*PLATFORMS, _ALL)
_FEW_CHANNELS = 8  # fewer are kernels of their own in this package
_LESS = 0.9  # XLA moves layouts and fuses around its own convolution, and not around a call

_measured: tuple[str, ...] = ("cuda",)
known: dict[str, Times] = {}  # to this process, by all that they depend on


class Times(NamedTuple):
    """Milliseconds of a call, within a program of its own."""

    ours: float
    lax: float

    @property
    def is_ours(self) -> bool:
        return self.ours <= _LESS * self.lax

    @property
    def reason(self) -> str:
        """Why it is `lax`'s, where it is."""
        how = "faster" if self.lax < self.ours else "about as fast"
        return f"XLA's is {how}: {self.lax:.3f} ms, this package's {self.ours:.3f}"


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


def by_rule(problem: ConvProblem, platform: str) -> str:
    """Why a problem is `lax`'s where it is not timed, or ""."""
    if platform != "cuda" or not is_measured(platform) or _ALL in _measured:
        return ""
    is_plain = (
        problem.rank == 2 and problem.groups == 1 and {*problem.dilation} == {1}
        and min(problem.c, problem.k) >= _FEW_CHANNELS
        # Of lines, one row of pixels, XLA's wgrad is tens of times slower than cuDNN's.
        and problem.p > problem.r and problem.q > problem.s
    )  # fmt: skip
    return "XLA gives cuDNN the same convolution" if is_plain else ""


def kept(problem: ConvProblem, options: Options, platform: str) -> Times | None:
    """What was measured by these versions on this machine."""
    key = _key(problem, options, platform)
    if key not in known and (found := DiskCache().get(key)) is not None:
        known[key] = Times(*json.loads(found))
    return known.get(key)


def keep(problem: ConvProblem, options: Options, platform: str, made: Times) -> None:
    key = _key(problem, options, platform)
    known[key] = made
    DiskCache().put(key, json.dumps(made).encode())


def device_of(platform: str) -> jax.Device:
    """The one that times are taken on."""
    return jax.local_devices(backend=FFI_PLATFORM[platform])[0]


def _key(problem: ConvProblem, options: Options, platform: str) -> str:
    return key_of([
        "times of jax 2", __version__, jax.__version__, version("jaxlib"), tvm.__version__,
        platform, device_of(platform).device_kind, problem.repro(), str(options),
    ])  # fmt: skip
