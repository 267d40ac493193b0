"""The shape arithmetic of a convolution and of its two gradients: one value type.

Letters are those of the field.  The trilinear form

    T(x, w, y) = sum over n,k,p,q,c,r,s of
                 y[n, k, p, q] * x[n, c, p*stride + r*dilation - pad, …] * w[k, c, r, s]

has three partial derivatives: **fprop** (by y: the convolution), **dgrad** (by x: the data
gradient, which is also the transposed convolution) and **wgrad** (by w: the weight gradient).
All three share one problem: N images, C → K channels in `groups`, H×W → P×Q pixels, R×S taps.
In three dimensions, D×H×W → Z×P×Q voxels and T×R×S taps: `rank` is how many, depth comes first.

Nothing here imports TVM.  Sizes are ints, or any objects with `+ - * //` such as TVM's symbolic
expressions; what needs numbers (FLOP, bytes) says so.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from .argument_types import check_type
from .layouts import ACTIVATION, ACTIVATIONS, KERNEL, KERNELS, is_permutation, to_layout
from .rules import Rules, Size, out_size


class ConvKind(enum.Enum):
    """Which partial derivative of the trilinear form is computed."""

    FPROP = "fprop"
    DGRAD = "dgrad"
    WGRAD = "wgrad"


# Each tensor is named by its role in the forward convolution.
# kind -> (first operand, second operand, result)
ROLES: dict[ConvKind, tuple[str, str, str]] = {
    ConvKind.FPROP: ("data", "weight", "grad"),
    ConvKind.DGRAD: ("grad", "weight", "data"),
    ConvKind.WGRAD: ("grad", "data", "weight"),
}

SIZE_BOUND = 2**31  # of a size or an attribute: kernels and libraries hold them in 32 bits
DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}
"""Short names, as problems' texts, the command line and trainers take them, and the long ones."""
SHORT = {long: short for short, long in DTYPES.items()}


def transposed_size(
    size: Size, pad: Size, kernel: Size, stride: int, dilation: int, output_padding: int
) -> Size:
    """Pixels a transposed one makes: (size-1)*stride - pad + dilation*(kernel-1) + 1 + op."""
    return (size - 1) * stride - pad + dilation * (kernel - 1) + 1 + output_padding


@dataclass(frozen=True)
class ConvProblem:
    """One fprop, dgrad or wgrad: sizes, attributes, layouts, dtypes.

    `data` is the convolution's input (N, C, H, W), `weight` its filter (K, C/groups, R, S) and
    `grad` its output, or that output's gradient (N, K, P, Q); which of them are operands and which
    is the result follows from `kind`.  `padding` is (top, left, bottom, right).

    With `d` and `t`, the depths of data and weight, all of it has three dimensions: depth is first
    in strides and dilation, and padding is (front, top, left, back, bottom, right).
    """

    kind: ConvKind
    n: Size
    c: Size
    h: Size
    w: Size
    k: Size
    r: Size
    s: Size
    strides: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1
    data_layout: str = ACTIVATION
    kernel_layout: str = KERNEL
    grad_layout: str = ACTIVATION
    data_dtype: str = "float32"
    weight_dtype: str = "float32"
    grad_dtype: str = "float32"
    d: Size = None
    t: Size = None

    @staticmethod
    def from_shapes(
        kind: ConvKind, data: Sequence[Size], weight: Sequence[Size], **attributes: Any
    ) -> ConvProblem:
        """The problem of these canonical shapes: (N, C, H, W) and (K, C/groups, R, S), or with
        depth third in both."""
        n, c, *depth, h, w = data
        k, _, *taps, r, s = weight
        volume = {"d": depth[0], "t": taps[0]} if depth else {}
        return ConvProblem(kind, n, c, h, w, k, r, s, **volume, **attributes)

    @property
    def rank(self) -> int:
        """Dimensions of an image: 2, or 3 where it has a depth."""
        return 2 if self.d is None else 3

    @property
    def spatial(self) -> tuple[Size, ...]:
        """(H, W) or (D, H, W)."""
        return (self.h, self.w) if self.d is None else (self.d, self.h, self.w)

    @property
    def taps(self) -> tuple[Size, ...]:
        """(R, S) or (T, R, S)."""
        return (self.r, self.s) if self.d is None else (self.t, self.r, self.s)

    @property
    def pixels(self) -> tuple[Size, ...]:
        """(P, Q) or (Z, P, Q): what the convolution makes of `spatial`."""
        ends = zip(self.padding[: self.rank], self.padding[self.rank :], strict=True)
        return tuple(
            out_size(size, before + after, kernel, stride, dilation)
            for size, (before, after), kernel, stride, dilation in zip(
                self.spatial, ends, self.taps, self.strides, self.dilation, strict=True
            )
        )

    @property
    def p(self) -> Size:
        """Output rows."""
        return self.pixels[-2]

    @property
    def q(self) -> Size:
        """Output columns."""
        return self.pixels[-1]

    @property
    def z(self) -> Size:
        """Output depth; 1 in two dimensions."""
        return self.pixels[0] if self.rank == 3 else 1

    @property
    def is_static(self) -> bool:
        """Whether every size is a plain int."""
        return all(isinstance(getattr(self, v), int) for v in _SIZES[self.rank])

    @property
    def is_depthwise(self) -> bool:
        """One input channel per group; K/groups is the channel multiplier."""
        return isinstance(self.c, int) and self.groups == self.c and self.groups > 1

    def check(self) -> ConvProblem:
        """The problem itself, if its sizes (those that are ints) and attributes fit.

        Raises ValueError naming the rule and the values that break it.
        """
        rules = Rules()
        for name in (*_SIZES[self.rank], "groups", "strides", "dilation", "padding"):
            value = getattr(self, name)
            rules.least(name, value, 0 if name == "padding" else 1)
            values = value if isinstance(value, tuple) else (value,)
            if any(isinstance(v, int) and v >= SIZE_BOUND for v in values):
                raise ValueError(f"{name} must be less than 2**31, got {name}={value}")
        rules.fit(self, self.canonical_shape("data"), (self.k, None, *self.taps), None)
        return self

    @property
    def is_line(self) -> bool:
        """One row of pixels before and after, of filters of one row: a convolution of one axis."""
        return self.is_static and self.rank == 2 and self.h == self.r == self.p == 1

    # ---- tensors, by role --------------------------------------------------------------------

    def canonical_shape(self, role: str) -> tuple[Size, ...]:
        """Shape of `data`/`grad` in NCHW order, of `weight` in OIHW order, or with depth third."""
        if role == "data":
            return (self.n, self.c, *self.spatial)
        if role == "weight":
            return (self.k, self.c // self.groups, *self.taps)
        if role == "grad":
            return (self.n, self.k, *self.pixels)
        raise ValueError(f"a convolution has no tensor {role!r}: expected data, weight or grad")

    def layout(self, role: str) -> str:
        return {"data": self.data_layout, "weight": self.kernel_layout, "grad": self.grad_layout}[
            role
        ]

    def dtype(self, role: str) -> str:
        return {"data": self.data_dtype, "weight": self.weight_dtype, "grad": self.grad_dtype}[role]

    def shape(self, role: str) -> tuple[Size, ...]:
        """Shape of a tensor in its own layout."""
        return to_layout(self.canonical_shape(role), self.canonical(role), self.layout(role))

    def canonical(self, role: str) -> str:
        """The letters of a tensor's layout in canonical order, such as NCHW."""
        return (KERNELS if role == "weight" else ACTIVATIONS)[self.rank]

    @property
    def roles(self) -> tuple[str, str, str]:
        """(first operand, second operand, result)."""
        return ROLES[self.kind]

    @property
    def accum_dtype(self) -> str:
        """float64 if any tensor is float64, else float32: sums of f16 and bf16 products are f32."""
        wide = "float64" in (self.data_dtype, self.weight_dtype, self.grad_dtype)
        return "float64" if wide else "float32"

    # ---- cost --------------------------------------------------------------------------------

    @property
    def gemm(self) -> tuple[Size, Size, Size]:
        """(M, N, K) of the implicit GEMM, per group."""
        npq, nhw = self.n * math.prod(self.pixels), self.n * math.prod(self.spatial)
        cg, kg, rs = self.c // self.groups, self.k // self.groups, math.prod(self.taps)
        return {
            ConvKind.FPROP: (npq, kg, cg * rs),
            ConvKind.DGRAD: (nhw, cg, kg * rs),
            ConvKind.WGRAD: (kg, cg * rs, npq),
        }[self.kind]

    @property
    def flop(self) -> int:
        """2·N·P·Q·K·(C/groups)·R·S: a multiply and an add for each term of the trilinear form.

        Taps that fall on padding are counted, as everyone counts them.
        """
        sizes = math.prod(self.pixels) * math.prod(self.taps)
        return int(2 * self.n * self.k * (self.c // self.groups) * sizes)

    @property
    def bytes(self) -> int:
        """Fewest bytes moved: each operand read once, the result written once."""
        total = 0
        for role in ("data", "weight", "grad"):
            count = DTYPE_BYTES[self.dtype(role)]
            for size in self.canonical_shape(role):
                count *= size
            total += count
        return total

    # ---- text --------------------------------------------------------------------------------

    def repro(self) -> str:
        """The whole problem on one line; `ConvProblem.parse` reads it back."""
        sizes = " ".join(f"{x}={getattr(self, x)}" for x in _SIZES[self.rank])
        dtypes = "/".join(SHORT[self.dtype(role)] for role in ("data", "weight", "grad"))
        return (
            f"{self.kind.value} {sizes} stride={_join(self.strides)} pad={_join(self.padding)}"
            f" dil={_join(self.dilation)} groups={self.groups}"
            f" layout={self.data_layout}/{self.kernel_layout}/{self.grad_layout} dtype={dtypes}"
        )

    __str__ = repro

    @staticmethod
    def parse(line: str) -> ConvProblem:
        """Reads what `repro` wrote.  Omitted attributes have their defaults.

        Raises ValueError naming the field that is missing, unknown or malformed, or what does not
        fit; TypeError for what is no text.
        """
        check_type("ConvProblem.parse: line", line, str, "a problem as text")
        return _parsed(line)

    def with_kind(self, kind: ConvKind) -> ConvProblem:
        """The same trilinear form, differentiated by another operand."""
        return replace(self, kind=kind)


def symmetric(problem: ConvProblem) -> ConvProblem:
    """The problem on explicitly padded data; itself where its padding is symmetric."""
    before, after = problem.padding[: problem.rank], problem.padding[problem.rank :]
    least = tuple(min(pads) for pads in zip(before, after, strict=True))
    sizes = [
        size + (b - low) + (a - low)
        for size, b, a, low in zip(problem.spatial, before, after, least, strict=True)
    ]
    named = dict(zip(("d", "h", "w")[-problem.rank :], sizes, strict=True))
    return replace(problem, padding=(*least, *least), **named)


_SIZES = {
    2: ("n", "c", "h", "w", "k", "r", "s"),
    3: ("n", "c", "d", "h", "w", "k", "t", "r", "s"),
}
# key in text -> (field, default, values for each dimension)
_VECTORS = {"stride": ("strides", 1, 1), "pad": ("padding", 0, 2), "dil": ("dilation", 1, 1)}
_FIELDS = {*_SIZES[3], "groups", "layout", "dtype", *_VECTORS}


def _join(values: tuple[int, ...]) -> str:
    return ",".join(str(v) for v in values)


def _ints(key: str, text: str, count: int) -> Any:
    if not re.fullmatch(r"-?[0-9]{1,18}(,-?[0-9]{1,18})*", text) or text.count(",") != count - 1:
        raise ValueError(f"{key}={text!r}: expected {count} integer(s) separated by commas")
    return tuple(int(x) for x in text.split(","))


# Attributes of kernels, composites and reports hold a problem as text, and a network says the same
# one many times: each distinct text is read once.
@lru_cache(maxsize=4096)
def _parsed(line: str) -> ConvProblem:
    """`ConvProblem.parse` of a text."""
    words = line.split()
    kinds = {kind.value: kind for kind in ConvKind}
    if not words or words[0] not in kinds:
        raise ValueError(f"a problem starts with {', '.join(kinds)}; got {line!r}")
    fields: dict[str, str] = {}
    for word in words[1:]:
        key, eq, value = word.partition("=")
        if not eq or key not in _FIELDS or key in fields:
            raise ValueError(f"unknown, repeated or malformed field {word!r} in problem {line!r}")
        fields[key] = value
    args: dict[str, Any] = {}
    rank = 3 if "d" in fields or "t" in fields else 2
    for key in _SIZES[rank]:
        if key not in fields:
            raise ValueError(f"size {key!r} is missing in problem {line!r}")
        args[key] = _ints(key, fields[key], 1)[0]
    for key, (name, default, ends) in _VECTORS.items():
        given = fields.get(key, _join((default,) * (ends * rank)))
        args[name] = _ints(key, given, ends * rank)
    args |= {"kernel_layout": KERNELS[rank]}
    args |= {f"{name}_layout": ACTIVATIONS[rank] for name in ("data", "grad")}
    args["groups"] = _ints("groups", fields.get("groups", "1"), 1)[0]
    for key, suffix, table in (("layout", "layout", None), ("dtype", "dtype", DTYPES)):
        if key in fields:
            parts = fields[key].split("/")
            if len(parts) != 3 or (table is not None and any(x not in table for x in parts)):
                raise ValueError(f"{key}={fields[key]!r}: expected data/weight/grad")
            names = ("data", "kernel" if suffix == "layout" else "weight", "grad")
            for name, part in zip(names, parts, strict=True):
                canonical = (KERNELS if name == "kernel" else ACTIVATIONS)[rank]
                if table is None and not is_permutation(part, canonical):
                    raise ValueError(
                        f"{key}={fields[key]!r}: the {name}'s must have the letters"
                        f" {canonical}, got {part!r}"
                    )
                args[f"{name}_{suffix}"] = table[part] if table else part
    return ConvProblem(kinds[words[0]], **args).check()
