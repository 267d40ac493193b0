"""Networks of standardized weights, and the two calls in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from byoc_cudnn.standardized import StandardizedCall
from relay_wgrad.dtypes import numpy_dtype


class ScaledConv(nn.Conv2d):
    """A convolution whose filters are standardized, times a gain, as networks without norms have.

    gain : None, or what the gain is multiplied by.
    """

    def __init__(
        self, inner: int, outer: int, taps: int, gain: float | None, groups: int = 1
    ) -> None:
        super().__init__(inner, outer, taps, padding=taps // 2, groups=groups)
        self.factor = gain
        self.gain = None if gain is None else nn.Parameter(torch.rand(outer, 1, 1, 1) + 0.5)

    def forward(self, x: Any) -> Any:
        rows = self.weight.reshape(1, self.out_channels, -1)
        gain = None if self.gain is None else (self.gain * self.factor).view(-1)
        w = functional.batch_norm(
            rows, None, None, weight=gain, training=True, momentum=0.0, eps=1e-6
        )
        w = w.reshape_as(self.weight)
        return functional.conv2d(x, w, self.bias, self.stride, self.padding, 1, self.groups)


def values(call: StandardizedCall, tensors: Sequence[np.ndarray]) -> list[np.ndarray]:
    """All results of a call, flat, in float64 rounded once to their dtypes."""
    half, count = numpy_dtype(call.dtype), len(call.weights)
    gained = [w for w in call.weights if w.gained]
    rest = [np.asarray(t, "float64") for t in tensors]

    def take(number: int) -> list[np.ndarray]:
        found, rest[:] = rest[:number], rest[number:]
        return found

    made = take(count) if call.direction == "backward" else []
    weights, gains = take(count), take(len(gained))
    statistics = take(count) if call.direction == "backward" else []
    assert not rest
    each, first, second = iter(gains), list[np.ndarray](), list[np.ndarray]()
    for i, (one, w) in enumerate(zip(call.weights, weights, strict=True)):
        w = w.reshape(one.filters, one.row)
        g = next(each).reshape(-1, 1) * one.factor if one.gained else np.ones((one.filters, 1))
        if call.direction == "forward":
            mean, var = w.mean(1, keepdims=True), w.var(1, keepdims=True)
            rstd = (var + call.epsilon) ** -0.5
            out = ((w - mean) * rstd * g).reshape(one.filters, one.channels, one.taps)
            first.append(out.swapaxes(1, 2).astype(half).ravel())
            second.append(np.stack([mean, rstd]).astype("float32").ravel())
            continue
        mean, rstd = statistics[i].reshape(2, one.filters, 1)
        d = made[i].reshape(one.filters, one.taps, one.channels).swapaxes(1, 2)
        d = d.reshape(one.filters, one.row)
        xhat = (w - mean) * rstd
        sums = (d * xhat).sum(1, keepdims=True)
        dw = g * rstd * (d - d.mean(1, keepdims=True) - xhat * sums / one.row)
        first.append(dw.astype("float32").ravel())
        if one.gained:
            second.append((one.factor * sums).astype("float32").ravel())
    return [*first, *second]
