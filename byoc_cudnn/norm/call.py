"""`NormCall`: what a normalization computes, but for its sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from relay_wgrad.dtypes import FLOATS, HALVES
from relay_wgrad.ops import activations
from relay_wgrad.problem import DTYPE_BYTES

from ..codegen.kernel_names import Words, known
from ..codegen.templates import constants
from ..decision import YES, Decision, no
from ..pool.call import check_channels, check_windows

DTYPES = FLOATS
ACTIVATIONS = tuple(activations.ACTIVATIONS)
BITS = ("relu", "relu6", "leaky_relu")  # the activations whose slope takes two values
_GIVEN = ("x", "gamma", "beta", "mean", "rstd")
# Directions around a gate: operands, a residual and running statistics left out, and results.
GATED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "squeeze": (_GIVEN[:3], ("mean", "rstd", "squeezed")),
    "excite": ((*_GIVEN, "gate"), ("y",)),
    "gate_sums": (("dy", *_GIVEN), ("dgate", "sums")),
    "gate_backward": (("dy", *_GIVEN, "gate", "lift", "sums"), ("dx", "dgamma", "dbeta")),
}
DIRECTIONS = ("forward", "backward", *GATED)
WORDS: Words = {"direction": DIRECTIONS, "dtype": DTYPES, "activation": ACTIVATIONS}
LAYOUTS = ("NHWC",)
OTHERS = constants("norm", "norm_call.h")["kNormOthers"]
_THREADS = constants("", "device_packs.h")["kThreads"]  # of a row
_PACKS = constants("norm", "norm_rows.h")["kRowPacks"]  # of a thread, of 16 bytes each


@dataclass(frozen=True)
class NormCall:
    """One call of a normalization in training.  Sizes are read when it runs.

    forward: x, gamma, beta[, residual][, running_mean, running_var]
        -> y, mean, rstd[, new_running_mean, new_running_var][, mask]
    backward: dy, x, gamma, beta, mean, rstd -> dx, dgamma, dbeta
    backward with a residual and an activation: dy, x, gamma, beta, mean, rstd, (y or mask)
        -> dx, dgamma, dbeta, dresidual; with `summed` dy2, which is added to dy, comes after dy

    x, y, residual and their gradients have `dtype` and rows of channels (the last axis); what has
    one value a channel is float32, or float64 for float64.  With `grouped` statistics are those of
    a group of channels of an image, which the first axis has: mean and rstd are of images and
    groups.  With m rows (values that share statistics) and the sums over them,
      mean = sum(x) / m,  var = sum((x - mean)^2) / m,  rstd = 1 / sqrt(var + epsilon),
      y = activation((x - mean) rstd gamma + beta + residual), rounded once,
      new_running = (1 - momentum) running + momentum (mean | var, or var m / (m - 1) if unbiased).
    A backward call without activation has no use for the residual: its gradient is dy.  With `bits`
    what the activation lets through goes from forward to backward as `mask`, a uint8 for each 16
    bytes of a row, the last of which may be short: a sixteenth of what reading y takes.

    With `after` a residual is added behind the activation, whose gradient x tells then.  With
    `total` what the first pass reads is the sum of two, rounded, and is a result:
    forward: x, more, gamma, beta, … -> y, mean, rstd, …, total, where total = x + more is x
    backward without residual, and `summed`: dy, dy2, … -> dx, dgamma, dbeta, total = dy + dy2
    With `skip`, its last operand, a backward call adds a tensor to dx, rounded once.

    With `others` the residual is the sum of so many normalizations' results, of x2 and so on with
    statistics of their own, which are neither written nor rounded; of one:
    forward: x, gamma, beta, x2, gamma2, beta2[, running_mean, running_var, running_mean2,
        running_var2] -> y, mean, rstd, mean2, rstd2[, new_running_mean, new_running_var,
        new_running_mean2, new_running_var2], mask
    backward: dy[, dy2], x, gamma, beta, mean, rstd, x2, gamma2, mean2, rstd2, mask
        -> dx, dgamma, dbeta, dx2, dgamma2, dbeta2

    With `pooled` (taps, strides and padding of windows, eight numbers as of `pool.PoolCall`) a
    max pooling follows: y and dy are its result and that one's gradient, and `index` goes from
    forward to backward, a uint8 for each of y's elements:
    forward: x, gamma, beta[, running_mean, running_var] -> y, mean, rstd[, new_…], index
    backward: dy, index, x, gamma, beta, mean, rstd -> dx, dgamma, dbeta

    With `slices` dy of a backward call without residual is channels of a wider tensor, which is
    given in its place, and with `summed` dy2, which is added to it: of each the first channel, and
    how many the tensor has.

    With `place` y of a forward call is channels of a joined tensor, whose other channels others
    write: the first channel, and how many that tensor has.  What it has so far is the operand
    `joined`, the last one, if there is any (`onto`), and is copied where y does not lie in its
    place.  With `own` the last result is y by itself, which somebody reads.

    With `within` x of a call without residual is channels of a wider tensor, which is given in its
    place: the first channel, and how many the tensor has.

    With `by_row` a group is all channels of one row, an image of its own: x is (rows, 1, C),
    of at most `longest_row` channels, mean and rstd (rows, 1).  With `rounded`, a half dtype, such
    a float32 call's y, or dy, has that.

    Around a gate (squeeze and excitation), a number for each channel of an image, the result of a
    batch's normalization is never in memory: with v = activation((x - mean) rstd gamma + beta)
    squeeze: x, gamma, beta[, running_mean, running_var]
        -> mean, rstd, squeezed[, new_running_mean, new_running_var]: an image's mean of v
    excite: x, gamma, beta, mean, rstd, gate[, residual] -> y = gate v + residual, and `last` of it
    gate_sums: dy, x, gamma, beta, mean, rstd -> dgate, sums: of an image's dy v, and four others
    gate_backward: dy, x, gamma, beta, mean, rstd, gate, lift, sums -> dx, dgamma, dbeta, where the
        gradient of v is dy gate + lift.
    With `bits` excite, which ends in relu, gives `mask` too, and gate_sums takes y's gradient:
    gate_sums: dy[, dy2], x, gamma, beta, mean, rstd, mask -> dresidual, dgate, sums, where
        dresidual is what relu lets through of dy + dy2, and the sums are of that.
    squeezed, gate, dgate and lift have (images, …, channels) elements in the dtype of the sums, and
    sums have four times as many, (4, images, channels).

    alpha : the activation's parameter.
    last : of excite: "relu", or nothing.
    symbol : of the function that computes it.
    """

    symbol: str
    direction: str
    dtype: str
    activation: str = ""
    residual: bool = False
    running: bool = False
    bits: bool = False
    summed: bool = False
    after: bool = False
    total: bool = False
    skip: bool = False
    others: int = 0
    pooled: tuple[int, ...] = ()
    layout: str = "NHWC"
    alpha: float = 0.0
    grouped: bool = False
    by_row: bool = False
    rounded: str = ""
    last: str = ""
    slices: tuple[tuple[int, int], ...] = ()
    place: tuple[int, ...] = ()
    onto: bool = False
    own: bool = False
    within: tuple[int, ...] = ()
    epsilon: float = 1e-5
    momentum: float = 0.1
    unbiased: bool = True

    @property
    def forward(self) -> bool:
        return self.direction == "forward"

    @property
    def stored(self) -> bool:
        """Whether a backward call reads y or its mask, and writes the residual's gradient."""
        return self.direction == "backward" and self.residual and self.activation != ""

    @property
    def gated(self) -> bool:
        return self.direction in GATED

    @property
    def operands(self) -> tuple[str, ...]:
        if self.gated:
            first, *given = GATED[self.direction][0]
            told = ("mask",) * (self.bits and self.direction == "gate_sums")
            other, added = ("dy2",) * self.summed, ("residual",) * self.residual
            return (first, *other, *given, *added, *self._running(""), *told)
        if self.forward:
            names = ["x", *["more"] * self.total, "gamma", "beta"]
            names += ["residual"] * (self.residual and not self.others)
            others = self._of_others("x", "gamma", "beta")
            return (*names, *others, *self._running(""), *("joined",) * self.onto)
        told = ("mask" if self.bits else "y",) if self.stored else ()
        more = ("dy2",) * self.summed + ("index",) * bool(self.pooled)
        other = self._of_others("x", "gamma", "mean", "rstd")
        last = ("skip",) * self.skip
        return ("dy", *more, "x", "gamma", "beta", "mean", "rstd", *other, *told, *last)

    @property
    def results(self) -> tuple[str, ...]:
        if self.gated:
            made, last = GATED[self.direction][1], ("mask",) * (self.bits and self.last != "")
            through = ("dresidual",) * (self.bits and self.direction == "gate_sums")
            return (*through, *made, *self._running("new_"), *last)
        if self.forward:
            more = ("total",) * self.total + ("mask",) * self.bits + ("index",) * bool(self.pooled)
            made = ("y", *self._of_all("mean", "rstd"), *self._running("new_"), *more)
            return (*made, *("own",) * self.own)
        if self.others:
            return self._of_all("dx", "dgamma", "dbeta")
        written = ("dresidual",) * self.stored + ("total",) * self.total
        return ("dx", "dgamma", "dbeta", *written)

    @property
    def overwrites(self) -> tuple[tuple[str, str], ...]:
        """Results and operands in whose places they may be written, the best choice first.

        Rows of x and of what has its size: a thread reads of them what it writes, and in the last
        pass that reads it; windows of `pooled` are several threads', and `slices` have other rows.
        Where a gradient is `stored` the second pass reads x and the residual's gradient, which the
        first one wrote; of a `total` it reads that.
        """
        rows = ("residual", "x", "more", *self._of_others("x"), "dy", "dy2", "y", "skip")
        given = [name for name in rows if name in self.operands]
        if self.rounded:  # y and dy are shorter than what else there is
            return () if self.forward else (("dx", "x"),)
        if self.pooled or self.direction in ("squeeze", "gate_sums"):
            return ()
        if self.within:  # x has
            return () if self.forward else (("dx", "dy"),)
        if self.place:  # y has other rows
            own = tuple(("own", name) for name in given if self.own)
            return (*((("y", "joined"),) * self.onto), *own)
        if self.forward and self.total:
            parts = ("x", "more")
            return (*(("total", name) for name in parts), *(("y", name) for name in given))
        if self.forward or self.direction == "excite":
            return tuple(("y", name) for name in given)
        if self.others:
            ends = ("", *self._of_others(""))
            return tuple((f"dx{end}", name) for end in ends for name in (f"x{end}", *given))
        written = "dresidual" if self.stored else "total" if self.total else ""
        late = tuple(name for name in given if name in ("x", "skip"))  # the second pass reads them
        early = tuple(
            name for name in given if name not in (*late, *("dy", "dy2") * bool(self.slices))
        )
        first = tuple((written, name) for name in early if written)
        before, behind = (late, early) if written else (early, late)
        return (*first, *(("dx", name) for name in (*before, *behind)))

    def _of_others(self, *names: str) -> tuple[str, ...]:
        return tuple(f"{name}{n + 2}" for n in range(self.others) for name in names)

    def _of_all(self, *names: str) -> tuple[str, ...]:
        return (*names, *self._of_others(*names))

    def _running(self, which: str) -> tuple[str, ...]:
        names = (f"{which}running_mean", f"{which}running_var")
        return self._of_all(*names) if self.running else ()


def longest_row(dtype: str) -> int:
    """How many channels a row has at most whose statistics are its own."""
    return _THREADS * _PACKS * 16 // DTYPE_BYTES[dtype]


def check(call: NormCall) -> Decision:
    """Whether there is a kernel for a call, or why there is none."""
    if not (decision := known(call, WORDS)):
        return decision
    if call.layout not in LAYOUTS:
        return no(f"layout {call.layout!r}; there are {', '.join(map(repr, LAYOUTS))}")
    if not 0 <= call.others <= OTHERS:
        return no(f"{call.others} further normalizations; there are kernels of 0 to {OTHERS}")
    if call.gated and (call.others or call.pooled or call.grouped):
        return no("around a gate there are no further normalizations, pooling or groups")
    if call.gated and call.bits and not (call.last or call.direction == "gate_sums"):
        return no("around a gate bits are of excite's last relu, for gate_sums")
    if call.gated and call.summed and not (call.bits and call.direction == "gate_sums"):
        return no("around a gate gate_sums alone adds gradients, before a mask of bits")
    if call.last not in ("", "relu") or (call.last and call.direction != "excite"):
        return no(f"last {call.last!r} of {call.direction}: relu, or nothing, ends excite alone")
    if call.residual and call.gated and call.direction != "excite":
        return no(f"a residual is added by excite, not by {call.direction}")
    if call.after and not (call.forward and call.residual and not (call.bits or call.others)):
        return no(
            "behind the activation a forward call adds a residual, of which no bits go backward"
        )
    if call.stored and not activations.ACTIVATIONS[call.activation].by_result:
        return no(
            f"{call.activation}'s gradient is not told by what is stored: y;"
            " without a residual it is by x"
        )
    if call.bits and not call.gated and not (call.residual and call.activation in BITS):
        return no(f"bits are of {', '.join(BITS)} after a residual; else x tells what passes")
    if call.others and not (call.residual and call.bits):
        return no("further normalizations are a residual, and what passes goes backward as bits")
    if call.others and call.activation == "leaky_relu":
        return no("further normalizations are before relu or relu6, got leaky_relu")
    if call.grouped and (call.running or call.pooled or call.others):
        return no("running statistics, pooling and further normalizations are of a batch's")
    if call.by_row and (not call.grouped or call.residual):
        return no("rows' statistics are of one group, without a residual")
    if call.rounded and not (call.by_row and call.dtype == "float32" and call.rounded in HALVES):
        return no(f"rounded to {call.rounded}: float32 rows to one of {', '.join(HALVES)}")
    if call.pooled:
        if len(call.pooled) != 8 or call.residual:
            return no(f"pooled {call.pooled}: eight numbers, of a normalization without a residual")
        pair, strides = (call.pooled[0], call.pooled[1]), (call.pooled[2], call.pooled[3])
        padding = (call.pooled[4], call.pooled[5], call.pooled[6], call.pooled[7])
        if not (decision := check_windows(pair, strides, padding)):
            return decision
    if call.summed and not (call.stored or call.gated or call.slices or call.total):
        return no(
            "summed gradients are of a backward call that writes the residual's gradient or their"
            " sum, or whose gradients are channels of other tensors"
        )
    if call.total and (call.others or call.pooled or call.by_row or call.gated or call.place):
        return no("a sum is made by a normalization's own passes over whole tensors")
    if call.total and not call.forward and (call.stored or call.slices or not call.summed):
        return no("a sum of gradients is a result where they are summed before the activation's")
    if call.skip and (call.direction != "backward" or call.others or call.pooled or call.by_row):
        return no("what is added to dx is an operand of a backward call of one normalization's")
    plain = not (
        call.residual or call.pooled or call.by_row or call.gated or call.total or call.skip
    )
    if call.slices and not (call.direction == "backward" and plain):
        return no("gradients that are channels of other tensors are of a backward call alone")
    if call.slices and len(call.slices) != 1 + call.summed:
        return no(f"channels of {len(call.slices)} tensors for {1 + call.summed}")
    if any(first < 0 or channels <= first for first, channels in call.slices):
        return no(f"slices {call.slices}: a first channel, and how many there are")
    if call.place and not (call.forward and not (call.others or call.pooled or call.by_row)):
        return no("a place among joined channels is of a forward call's result alone")
    if not (decision := check_channels("place", call.place)):
        return decision
    if (call.onto or call.own) and not call.place:
        return no("what is joined so far, and a result by itself too, are of one with a place")
    if call.within and (not plain or call.place or call.slices):
        return no(
            "x is channels of another tensor for a call of x alone, whose others are their own"
        )
    if not (decision := check_channels("within", call.within)):
        return decision
    if call.running and call.direction not in ("forward", "squeeze"):
        return no("running statistics are updated forward, not backward")
    if not math.isfinite(call.alpha) or call.alpha < 0:
        return no(f"alpha {call.alpha}: not finite, or below zero")
    if not (math.isfinite(call.epsilon) and call.epsilon >= 0 and math.isfinite(call.momentum)):
        return no(f"epsilon {call.epsilon} and momentum {call.momentum}: not finite, or below zero")
    return YES
