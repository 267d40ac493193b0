"""`PoolCall`: what a pooling computes, but for its sizes."""

from __future__ import annotations

from dataclasses import dataclass

from relay_wgrad.dtypes import FLOATS

from ..codegen.kernel_names import Words, known
from ..decision import YES, Decision, no

DTYPES = FLOATS
DIRECTIONS = ("forward", "backward")
WORDS: Words = {"direction": DIRECTIONS, "dtype": DTYPES, "kernel": None, "strides": None}
_TAPS = 225  # of a window, at most: a byte tells which


@dataclass(frozen=True)
class PoolCall:
    """One call of a 2-D max pooling, channels last.  Sizes are read when it runs.

    forward: x (N, H, W, C) -> y (N, P, Q, C).  backward: dy, x -> dx.  With `index` forward gives
    y, index, a uint8 of y's shape: the tap r · S + s of a window of R × S pixels that y is; and
    backward takes dy, index, which are less to read than x.
    y's first maximum in its window, row by row, gets its gradient; a NaN is a maximum, and the last
    of several gets it, as in PyTorch.  P and Q are those of `padding`, or as much larger as windows
    begin within the image (a size rounded up).

    With `slice` x is channels of a wider tensor, which is given in its place: the first channel,
    and how many the tensor has.

    symbol : of the function that computes it.
    kernel, strides, padding (top, left, bottom, right) : of a window, in pixels.
    """

    symbol: str
    direction: str
    dtype: str
    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    index: bool = False
    slice: tuple[int, ...] = ()

    @property
    def operands(self) -> tuple[str, ...]:
        if self.direction == "forward":
            return ("x",)
        return ("dy", "index" if self.index else "x")

    @property
    def results(self) -> tuple[str, ...]:
        if self.direction == "backward":
            return ("dx",)
        return ("y", "index") if self.index else ("y",)


def check(call: PoolCall) -> Decision:
    """Whether there is a kernel for a call, or why there is none."""
    if not (decision := known(call, WORDS)):
        return decision
    if not (decision := check_channels("slice", call.slice)):
        return decision
    if call.slice and "x" not in call.operands:
        return no("x is channels of another tensor, and backward by an index reads none")
    return check_windows(call.kernel, call.strides, call.padding)


def check_channels(name: str, channels: tuple[int, ...]) -> Decision:
    """Whether they are some of a tensor's: the first, and how many that has; or none are told."""
    if channels and not (len(channels) == 2 and 0 <= channels[0] < channels[1]):
        return no(f"{name} {channels}: a first channel, and how many there are")
    return YES


def check_windows(
    kernel: tuple[int, int], strides: tuple[int, int], padding: tuple[int, int, int, int]
) -> Decision:
    """Whether kernels take such windows."""
    if min(*kernel, *strides) < 1 or min(padding) < 0:
        return no(f"kernel {kernel}, strides {strides}, padding {padding}")
    if kernel[0] * kernel[1] > _TAPS:
        return no(f"a window of {kernel[0]}×{kernel[1]} pixels, at most {_TAPS}")
    if any(p >= k for p, k in zip(padding, kernel * 2, strict=True)):
        return no(f"padding {padding} of windows {kernel}: some would be empty")
    return YES
