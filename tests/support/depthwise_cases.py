"""Random depthwise problems with epilogues, for our own kernels on a device and on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from byoc_cudnn.backends.cuda_direct.check import EPILOGUES, check
from byoc_cudnn.codegen.regions import Region
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.direct_regions import direct_region

_NHWC, _NCHW = "layout=NHWC/OHWI/NHWC", "layout=NCHW/OIHW/NCHW"
# Lines of `ConvProblem.parse` after `.format(kind)`; the epilogue of fprop and dgrad.
_LINES = (
    (f"{{}} n=1 c=5 h=5 w=4 k=10 r=3 s=2 stride=2,1 pad=1,0,2,1 groups=5 {_NHWC}", "bias relu"),
    (f"{{}} n=1 c=3 h=6 w=5 k=3 r=2 s=3 dil=2,1 pad=0,1,1,2 groups=3 {_NCHW}", "residual relu"),
    (f"{{}} n=2 c=24 h=5 w=6 k=24 r=3 s=3 pad=1,1,1,1 groups=24 {_NHWC} dtype=f16/f16/f16", "bias"),
    (f"{{}} n=1 c=6 h=9 w=7 k=6 r=5 s=3 stride=2,3 pad=1,2,3,0 groups=6 {_NHWC}", "residual"),
    (f"{{}} n=1 c=3 h=4 w=9 k=3 r=3 s=3 pad=1,1,1,1 groups=3 {_NHWC} dtype=bf16/bf16/bf16", ""),
)
_ACTIVATED = f"fprop n=1 c=5 h=5 w=6 k=5 r=3 s=3 stride=1,2 pad=1,0,1,2 groups=5 {_NHWC}"
# Single elements of half precision, which no copy is as small as, and a wide result.
_WIDE = f"dgrad n=1 c=1 h=4 w=9 k=1 r=3 s=3 groups=1 {_NHWC} dtype=f32/bf16/bf16"
# So many sums that slabs of them are added by fewer threads each.
_MANY = f"wgrad n=1 c=103 h=2 w=3 k=103 r=7 s=7 pad=3,3,3,3 groups=103 {_NHWC} dtype=f16/f16/f16"
SMALL: list[tuple[ConvProblem, tuple[str, ...]]] = [
    *(
        (ConvProblem.parse(line.format(kind)), () if kind == "wgrad" else tuple(name.split()))
        for line, name in _LINES
        for kind in ("fprop", "dgrad", "wgrad")
    ),
    *((ConvProblem.parse(_ACTIVATED), tuple(name.split())) for name in ("bias relu6", "silu")),
    (ConvProblem.parse(_WIDE), ()),
    (ConvProblem.parse(_MANY), ()),
]
"""Problems with epilogues, each family's and each way to read rows among their kernels."""

_LAYOUTS = ("NHWC/OHWI/NHWC", "NHWC/OHWI/NHWC", "NCHW/OIHW/NCHW")


def drawn(rng: np.random.Generator, kind: ConvKind, small: bool = False) -> tuple[ConvProblem, str]:
    """A problem of a kind and an epilogue's name.

    Sizes that nothing divides, one pixel, one channel, any padding, strides to 4, dilation, several
    filters for a channel, large kernels.
    """
    while True:
        usual, large = rng.random() < 0.6, rng.random() < 0.1
        most = 12 if small else 31
        if usual:
            taps = [int(rng.choice([1, 3, 3, 5, 7]))] * 2
            strides, dilation = [int(rng.choice([1, 2]))] * 2, [1, 1]
        else:
            taps = [int(x) for x in rng.integers(1, most + 1 if large else 8, 2)]
            strides = [int(x) for x in rng.choice([1, 1, 2, 3, 4], 2)]
            dilation = [int(x) for x in rng.choice([1, 1, 1, 2, 3], 2)]
        c = int(rng.choice([1, 2, 3, 5, 6, 8, 12, 16, 24, 40] + ([] if small else [72, 136, 264])))
        multiplier = int(rng.choice([1, 1, 1, 1, 2, 3]))
        reach = [d * (t - 1) for d, t in zip(dilation, taps, strict=True)]
        pad = [int(rng.integers(0, x + 2)) for x in (*reach, *reach)]
        side = [
            max(1, r + 1 - pad[i] - pad[i + 2]) + int(rng.integers(0, 12 if small else 40))
            for i, r in enumerate(reach)
        ]
        dtype = str(rng.choice(["f16", "bf16", "f32"]))
        dtypes = [dtype] * 3
        if rng.random() < 0.2:
            dtypes[{"fprop": 2, "dgrad": 0, "wgrad": 1}[kind.value]] = "f32"
        n = int(rng.integers(1, 4 if small else 9))
        p = ConvProblem.parse(
            f"{kind.value} n={n} c={c} h={side[0]} w={side[1]}"
            f" k={c * multiplier} r={taps[0]} s={taps[1]} stride={strides[0]},{strides[1]}"
            f" pad={','.join(map(str, pad))} dil={dilation[0]},{dilation[1]} groups={c}"
            f" layout={rng.choice(_LAYOUTS)} dtype={'/'.join(dtypes)}"
        )
        name = str(rng.choice(EPILOGUES[kind]))
        if check(p, name) and p.flop < (4e5 if small else 4e8):
            return p, name


def drawn_regions(
    seed: int, kind: ConvKind, count: int, oldest: int, archs: Sequence[int | tuple[int, ...]]
) -> list[Region]:
    """Random problems, half of them by the kernel expected to be fastest, half by any.

    oldest : the GPU whose kernels they are.  archs : what they are built for, in turns.
    """
    rng = np.random.default_rng((seed, list(ConvKind).index(kind)))
    regions: list[Region] = []
    while len(regions) < count:
        index = len(regions)
        regions.append(direct_region(
            f"f{index}", *drawn(rng, kind), None if index % 2 else rng, oldest=oldest,
            arch=archs[index % len(archs)],
        ))  # fmt: skip
    return regions
