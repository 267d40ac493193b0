"""Random problems of the families on tensor cores, with epilogues: for a device and the CPU."""

from __future__ import annotations

import numpy as np

from byoc_cudnn.backends.cuda_direct.check import EPILOGUES
from byoc_cudnn.backends.cuda_direct.families import FAMILIES
from relay_wgrad.problem import ConvKind, ConvProblem

FAMILY_NAMES = (
    "grouped", "few", "depthwise_bands", "first", "depthwise_shares", "planes", "narrow"
)  # fmt: skip
KINDS_OF = {name: tuple(ConvKind) for name in FAMILY_NAMES}
KINDS_OF["first"] = (ConvKind.FPROP, ConvKind.WGRAD)  # of an image there is no gradient
FAMILY_KINDS = tuple((family, kind) for family in FAMILY_NAMES for kind in KINDS_OF[family])
# For infinities and NaN: groups that are taken several as one, strides that leave gaps, images
# whose edge no tile has.
SPECIAL = tuple(
    f"{line} layout=NHWC/OHWI/NHWC"
    for line in (
        "n=1 c=8 h=5 w=9 k=8 r=3 s=3 pad=1,1,1,1 groups=2",
        "n=2 c=8 h=3 w=3 k=16 r=2 s=2 pad=1,0,0,1 groups=4",
        "n=1 c=16 h=6 w=7 k=16 r=3 s=3 stride=2,2 pad=1,1,1,1 groups=2",
        "n=1 c=16 h=5 w=7 k=3 r=3 s=3 stride=2,2 pad=1,1,1,1",
        "n=2 c=8 h=4 w=3 k=2 r=3 s=2 pad=1,1,0,0",
        "n=3 c=8 h=6 w=10 k=8 r=5 s=5 pad=2,2,2,2 groups=8",
        "n=1 c=8 h=6 w=9 k=8 r=3 s=3 stride=2,2 pad=1,1,1,1 groups=8",
        "n=2 c=3 h=7 w=10 k=8 r=3 s=3 stride=2,2 pad=1,1,1,1",
        "n=1 c=3 h=5 w=7 k=16 r=3 s=3 pad=1,1,1,1",
        "n=2 c=1 h=5 w=8 k=8 r=2 s=3 stride=3,3 pad=0,2,1,1",
        "n=1 c=4 h=9 w=9 k=8 r=4 s=4 stride=4,4",
        "n=2 c=24 h=5 w=18 k=40 r=3 s=3 pad=1,1,1,1",
    )
)


def drawn(
    rng: np.random.Generator, kind: ConvKind, family: str, small: bool = False
) -> tuple[ConvProblem, str]:
    """A problem of a kind that a family takes, and an epilogue's name.

    Sizes that no tile divides, one pixel, groups of 2 to 64 channels, any padding, strides to 5,
    dilation, kernels to 7 taps along an axis, of first layers to 16 and strides to 16; volumes of
    first layers, and all of planes; float32 results of weights' gradients.
    """
    most_flop = (1e6 if small else 1e9) * (100 if family == "planes" else 1)
    while True:
        r, s = (int(x) for x in rng.choice([1, 2, 3, 3, 3, 5, 7], 2))
        stride, dilation = int(rng.choice([1, 1, 2, 3, 4, 5])), int(rng.choice([1, 1, 1, 2, 3]))
        if family == "grouped":
            groups = int(rng.choice([2, 3, 4, 5, 8] if small else [2, 3, 4, 5, 8, 13, 16, 32]))
            cg = int(rng.choice([2, 4, 8, 16] if small else [2, 4, 6, 8, 12, 16, 24, 40, 56, 64]))
            kg = cg if rng.random() < 0.6 else int(rng.choice([2, 4, 8, 16, 24]))
        elif family in ("depthwise_bands", "depthwise_shares"):
            groups, cg, kg = 8 * int(rng.integers(1, 6 if small else 25)), 1, 1
            stride, dilation = min(stride, 2 if kind is ConvKind.FPROP else 1), 1
        elif family == "first":
            groups, cg, kg = (
                1,
                int(rng.integers(1, 5)),
                8 * int(rng.integers(1, 5 if small else 17)),
            )
            sizes = [1, 2, 3, 3, 4, 7] if small else [1, 2, 3, 3, 3, 4, 5, 6, 7, 11, 16]
            r, s = (int(x) for x in rng.choice(sizes, 2))
            stride, dilation = (
                int(rng.choice([1, 2, 3, 4, stride] if small else [1, 2, 4, 9, 16])),
                1,
            )
        elif family == "planes":
            groups, r, s, stride, dilation = 1, 3, 3, 1, 1
            cg, kg = (32 * int(x) for x in rng.choice([1, 1, 2] if small else [1, 1, 2, 3], 2))
        elif family == "narrow":
            groups, stride, dilation = 1, 1, 1
            cg, kg = (8 * int(x) for x in rng.integers(1, 6 if small else 17, 2))
        else:
            groups, kg = 1, int(rng.integers(1, 9))
            cg = 8 * int(rng.integers(1, 9 if small else 49))
        # Of many images a block has many rows, in depthwise ones.
        most = 4 if small else 65 if family in ("depthwise_bands", "depthwise_shares") else 9
        reach = [dilation * (r - 1), dilation * (s - 1)]
        pad = [int(rng.integers(0, x + 2)) for x in (*reach, *reach)]
        side = [
            max(1, x + 1 - pad[i] - pad[i + 2]) + int(rng.integers(0, 10 if small else 40))
            for i, x in enumerate(reach)
        ]
        size = {"n": int(rng.integers(1, most)), "c": cg * groups, "k": kg * groups}
        size |= {"h": side[0], "w": side[1], "r": r, "s": s}
        axes, layout = 2, "NHWC/OHWI/NHWC"
        if family == "planes" or (family == "first" and rng.random() < 0.4):
            axes, layout, t = 3, "NDHWC/ODHWI/NDHWC", int(rng.choice([2, 3, 3, 4]))
            if family == "planes":
                t, pad = 3, [int(x) for x in rng.integers(0, 3, 4)]
                made = 4 * int(rng.integers(1, 5)), 16 * int(rng.integers(1, 4))
                odd = 0 if kind is ConvKind.WGRAD else int(rng.integers(0, 4))
                size["h"] = made[0] + 2 - pad[0] - pad[2] + odd
                size["w"] = made[1] + 2 - pad[1] - pad[3] + odd
            ends = [int(rng.integers(0, t)) for _ in range(2)]
            size |= {"d": max(1, t - sum(ends)) + int(rng.integers(0, 5)), "t": t}
            pad = [ends[0], *pad[:2], ends[1], *pad[2:]]
        dtypes = [str(rng.choice(["f16", "bf16"]))] * 3
        if kind is ConvKind.WGRAD and rng.random() < 0.3:
            dtypes[1] = "f32"
        p = ConvProblem.parse(
            f"{kind.value} {' '.join(f'{x}={size[x]}' for x in 'ncdhwktrs' if x in size)}"
            f" stride={','.join([str(stride)] * axes)} pad={','.join(map(str, pad))}"
            f" dil={','.join([str(dilation)] * axes)} groups={groups}"
            f" layout={layout} dtype={'/'.join(dtypes)}"
        )
        name = str(rng.choice(EPILOGUES[kind]))
        if FAMILIES[family].accepts(p, name) and p.flop < most_flop:
            return p, name
