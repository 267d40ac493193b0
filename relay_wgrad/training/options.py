"""How convolutions are computed, and what else is chosen by name; needs no TVM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..argument_types import checked_bool

SELECT = ("first", "measured")  # `Options.select`
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")  # their rules are in `optim`
DECAYS = ("weights", "all")  # `Update.decay`
AUGMENT = ("crop", "flip", "none")  # what is done to an image that is trained on
HOPPER = 90
_SWITCHES = (
    "strict", "tf32", "benchmark", "deterministic", "norms", "graph", "helpers", "wide", "winograd",
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """How convolutions are computed on a GPU; a CPU has `winograd` alone.

    backends : libraries by name, the preferred first; None: the first of all that is here.
    strict : whether it is an error that a library is missing or leaves a convolution.
    tf32 : whether float32 operands may be rounded to TF32's 10 bits.
    benchmark : whether a library may time its algorithms and keep the fastest in the user's record;
        else its heuristic decides, which is the same every time.
    deterministic : whether libraries keep to algorithms that give the same bits every time; else
        cuDNN may add up in any order, as PyTorch lets it.
    select : "first": the first of the libraries that takes a convolution.  "measured": the one of
        all that is the fastest here; what the user's tuning record lacks is measured when a step is
        compiled, some kernels of each library for each problem, whose building needs nvcc.
    norms : whether batch normalization, with what follows it, goes to kernels of our own where
        there is an nvcc for them; with a half dtype residual sums are half then, as PyTorch's.
    graph : whether steps become one CUDA graph, after some that are not; intermediate results then
        keep their memory between steps.
    blocks : whether convolutions of few channels go to a library as such of blocks of pixels
        (`relay_wgrad.transform.space_to_depth`), in NHWC; "blocks", "rows" or "windows": in that
        form, and not in the one that is predicted to be the fastest.
    helpers : whether libraries are asked first for what they are known to do faster than the others
        on this GPU, where nothing is measured here: convolutions in float16 by kernels of our own
        on sm_90, beside cuDNN or CUTLASS; they need nvcc or NVRTC.  Nothing is known of other GPUs.
    wide : whether weights' gradients and matrix products of half operands are float32 sums that are
        never rounded to half, as on a CPU; without, rounded once, as PyTorch's autocast does.
    sizes : for how many numbers of images a step is kept, of a graph whose batch is open: it is
        compiled for a number when that first comes, and the least recently used one goes.  Each has
        memory of its own for intermediate results; parameters and their state are there once.
    winograd : whether "cpu" may take float32 sums of 3x3 kernels by Winograd's algorithm; a
        target says it itself, and none that is written by hand does (`host_target`).

    Raises TypeError for a switch that is neither True nor False.
    """

    backends: Sequence[str] | None = None
    strict: bool = False
    tf32: bool = True
    benchmark: bool = False
    deterministic: bool = True
    select: str = "first"
    norms: bool = True
    graph: bool = True
    blocks: bool | str = True
    helpers: bool = True
    wide: bool = False
    sizes: int = 4
    winograd: bool = True

    def __post_init__(self) -> None:
        for name in _SWITCHES:
            checked_bool(f"Options: {name}", getattr(self, name))
