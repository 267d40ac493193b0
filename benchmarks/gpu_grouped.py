"""Grouped convolutions, few filters, first layers by our own kernels, PyTorch's beside them.

    python -m benchmarks.gpu_grouped [--suites resnext,regnet,few,first] [--dtype f16,bf16]
                                     [--batch 64] [--kinds fprop,dgrad,wgrad] [--tries 2]
                                     [--time-budget SECONDS] [--json FILE]

`benchmarks.gpu_depthwise` says how it is measured and what is printed.  Here `tries` takes our
kernels as the model ranks them, of first layers those whose warps or blocks are of other sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.gpu_depthwise import FULL, Row, run
from byoc_cudnn.backends.cuda_direct.check import check
from byoc_cudnn.backends.cuda_direct.first_layer import First
from byoc_cudnn.backends.cuda_direct.model import Choice, ranked
from relay_wgrad.problem import ConvKind, ConvProblem

# suite -> (channels, filters, groups, side, taps, stride, padding)
SUITES: dict[str, tuple[tuple[int, int, int, int, int, int, int], ...]] = {
    "resnext": (
        (128, 128, 32, 56, 3, 1, 1), (256, 256, 32, 56, 3, 2, 1), (256, 256, 32, 28, 3, 1, 1),
        (512, 512, 32, 28, 3, 2, 1), (512, 512, 32, 14, 3, 1, 1), (1024, 1024, 32, 14, 3, 2, 1),
        (1024, 1024, 32, 7, 3, 1, 1),
    ),
    "few": (
        (320, 4, 1, 64, 3, 1, 1), (64, 3, 1, 128, 7, 1, 3), (256, 4, 1, 56, 3, 1, 1),
        (512, 1, 1, 31, 4, 1, 1),
    ),
    "regnet": (
        (104, 104, 13, 28, 3, 1, 1), (208, 208, 26, 28, 3, 2, 1), (128, 128, 8, 28, 3, 1, 1),
        (120, 120, 5, 28, 3, 1, 1), (336, 336, 14, 14, 3, 1, 1), (192, 192, 4, 28, 3, 1, 1),
        (448, 448, 8, 28, 3, 1, 1), (896, 896, 16, 28, 3, 2, 1), (896, 896, 16, 14, 3, 1, 1),
    ),
    "first": (
        (3, 16, 1, 224, 3, 2, 1), (3, 24, 1, 224, 3, 2, 1), (3, 32, 1, 224, 3, 2, 1),
        (3, 40, 1, 224, 3, 2, 1), (3, 48, 1, 224, 3, 2, 1), (3, 64, 1, 224, 3, 1, 1),
        (3, 96, 1, 224, 4, 4, 0), (3, 64, 1, 224, 7, 2, 3),
    ),
}  # fmt: skip


class Layer(Row):
    """A row with its filters and groups in its name."""

    @property
    def name(self) -> str:
        p = self.problem
        dtype = "" if p.data_dtype == "float16" else " bf16"
        return f"{p.kind.value} {p.r}x{p.s}/{p.strides[0]} {p.c}>{p.k}/{p.groups} {p.h}²{dtype}"

    def short(self, name: str) -> str:
        """A kernel's tile: groups, images, rows, times 8 columns; a warp's rows, warps, stages.

        Of first layers rows, times 8 columns, what a warp has of both operands, warps, stages.
        """
        return (
            "x".join(name.split("_n")[-1].split("x")[7 if "_first_" in name else 9 :]) or "the only"
        )


def tried(p: ConvProblem, most: int) -> list[Choice]:
    """The kernels to time."""
    choices = ranked(p, (), 90)
    found: dict[object, Choice] = {}
    for choice in choices:
        kernel = choice.kernel
        key: object = kernel.name
        if kernel.family == "first":
            shape = First(*kernel.numbers)
            key = (shape.resident(p.kind), shape.mt, shape.nt)
        found.setdefault(key, choice)
    return list(found.values())[:most]


def rows_of(
    suites: Iterable[str], kinds: Iterable[str], dtype: str, batch: int, tries: int
) -> list[Row]:
    """A row for each problem, and the kernels to time."""
    rows: list[Row] = []
    for suite in suites:
        for c, k, groups, side, taps, stride, pad in SUITES[suite]:
            for kind in kinds:
                p = ConvProblem(
                    ConvKind(kind), batch, c, side, side, k, taps, taps, (stride,) * 2, (pad,) * 4,
                    groups=groups, data_layout="NHWC", kernel_layout="OHWI", grad_layout="NHWC",
                    data_dtype=FULL[dtype], weight_dtype=FULL[dtype], grad_dtype=FULL[dtype],
                ).check()  # fmt: skip
                if check(p, ""):  # there is no gradient of an image
                    of = suite if dtype == "f16" else f"{suite} {dtype}"
                    rows.append(Layer(p, tried(p, tries), [of]))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """The number of problems with wrong results."""
    return run(argv, __doc__, SUITES, ("f16", "bf16"), rows_of, lambda row: 0)


if __name__ == "__main__":
    raise SystemExit(main())
