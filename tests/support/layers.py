"""Shape suites as data: the convolutions of known networks, each with how often it occurs.

A layer is described by its `ConvProblem` in fprop form.  For a transposed convolution the roles are
the other way round: what its user calls forward is the problem's dgrad, its data gradient is the
problem's fprop, and wgrad is wgrad with the same two operands.  The kinds of `Layer.problems` are
what a library runs, not what the user calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from relay_wgrad.dtypes import MIXED
from relay_wgrad.layouts import one_order
from relay_wgrad.problem import SHORT, ConvKind, ConvProblem

LAYOUTS = {"NHWC": ("NHWC", "HWIO", "NHWC"), "NCHW": ("NCHW", "OIHW", "NCHW")}
# One memory order for all three tensors: what vendors' libraries take.
ORDERS = {layout: one_order(layout) for layout in ("NHWC", "NCHW")}
DTYPES = {SHORT[dtype]: dtype for dtype in MIXED}


@dataclass(frozen=True)
class Shape:
    """A layer for one image, as its user sees it: C → K channels on H×H, R×R taps."""

    c: int
    h: int
    k: int
    r: int
    stride: int = 1
    pad: int = 0
    groups: int = 1
    transposed: bool = False

    @property
    def label(self) -> str:
        words = [f"{self.c}→{self.k}", f"{self.h}²", f"{self.r}×{self.r}"]
        words += [f"/{self.stride}"] * (self.stride > 1)
        words += ["dw" if self.groups == self.c else f"g{self.groups}"] * (self.groups > 1)
        return " ".join([*words, *["T"] * self.transposed])


@dataclass(frozen=True)
class Layer:
    """A distinct convolution of a network, and how often the network has it."""

    name: str
    count: int
    problem: ConvProblem  # in fprop form, also for a transposed convolution
    transposed: bool = False
    first: bool = False  # its input is the network's, of which nobody takes the gradient

    @property
    def data_gradient(self) -> ConvKind:
        """What computes the gradient of the layer's input."""
        return ConvKind.FPROP if self.transposed else ConvKind.DGRAD

    def problems(self, kinds: Iterable[str | ConvKind] = tuple(ConvKind)) -> list[ConvProblem]:
        """The layer's problems of these kinds, without a first layer's data gradient."""
        chosen = [ConvKind(kind) for kind in kinds]
        return [
            self.problem.with_kind(kind)
            for kind in chosen
            if not (self.first and kind is self.data_gradient)
        ]


def _conv(c: int, h: int, k: int, r: int, stride: int = 1, groups: int = 1) -> Shape:
    """Padded so that a stride of 1 keeps the size."""
    return Shape(c, h, k, r, stride, r // 2, groups)


def _resnet50() -> list[Shape]:
    """ResNet-50 v1.5: He et al. 2015 (arXiv 1512.03385), table 1, the strides on 3×3 convolutions
    as in torchvision and NVIDIA's reference."""
    shapes, c, h = [_conv(3, 224, 64, 7, 2)], 64, 56
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            step = stride if block == 0 else 1
            shapes += [_conv(c, h, width, 1), _conv(width, h, width, 3, step)]
            shapes += [_conv(c, h, 4 * width, 1, step)] * (block == 0)
            c, h = 4 * width, h // step
            shapes += [_conv(width, h, c, 1)]
    return shapes


def _vgg16() -> list[Shape]:
    """VGG-16: Simonyan and Zisserman 2014 (arXiv 1409.1556), configuration D."""
    shapes, c = [], 3
    for k, convs, h in ((64, 2, 224), (128, 2, 112), (256, 3, 56), (512, 3, 28), (512, 3, 14)):
        for _ in range(convs):
            shapes.append(_conv(c, h, k, 3))
            c = k
    return shapes


def _mobilenetv2() -> list[Shape]:
    """MobileNetV2: Sandler et al. 2018 (arXiv 1801.04381), table 2, width 1, 224×224."""
    shapes, c, h = [_conv(3, 224, 32, 3, 2)], 32, 112
    rows = (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    )  # fmt: skip
    for expansion, k, blocks, stride in rows:
        for block in range(blocks):
            step, wide = stride if block == 0 else 1, expansion * c
            shapes += [_conv(c, h, wide, 1)] * (expansion > 1)
            shapes += [_conv(wide, h, wide, 3, step, groups=wide)]
            c, h = k, h // step
            shapes += [_conv(wide, h, k, 1)]
    return [*shapes, _conv(c, h, 1280, 1)]


def _efficientnet(h: int, stem: int, wide: int, rows: Sequence[Sequence[int]]) -> list[Shape]:
    """EfficientNet: Tan and Le 2019 (arXiv 1905.11946), table 1, scaled.  Without the two layers on
    one pixel of squeeze and excitation.  rows : (expansion, taps, channels, blocks, stride)."""
    shapes, c, h = [_conv(3, h, stem, 3, 2)], stem, -(-h // 2)
    for expansion, taps, k, blocks, stride in rows:
        for block in range(blocks):
            step, inner = stride if block == 0 else 1, expansion * c
            shapes += [_conv(c, h, inner, 1)] * (expansion > 1)
            shapes += [_conv(inner, h, inner, taps, step, groups=inner)]
            c, h = k, -(-h // step)
            shapes += [_conv(inner, h, k, 1)]
    return [*shapes, _conv(c, h, wide, 1)]


def _b0() -> list[Shape]:
    rows = (
        (1, 3, 16, 1, 1), (6, 3, 24, 2, 2), (6, 5, 40, 2, 2), (6, 3, 80, 3, 2), (6, 5, 112, 3, 1),
        (6, 5, 192, 4, 2), (6, 3, 320, 1, 1),
    )  # fmt: skip
    return _efficientnet(224, 32, 1280, rows)


def _b4() -> list[Shape]:
    rows = (
        (1, 3, 24, 2, 1), (6, 3, 32, 4, 2), (6, 5, 56, 4, 2), (6, 3, 112, 6, 2), (6, 5, 160, 6, 1),
        (6, 5, 272, 8, 2), (6, 3, 448, 2, 1),
    )  # fmt: skip
    return _efficientnet(380, 48, 1792, rows)


def _convnext() -> list[Shape]:
    """ConvNeXt-T: Liu et al. 2022 (arXiv 2201.03545).  Without what are linear layers."""
    shapes, c = [Shape(3, 224, 96, 4, 4)], 96
    for width, blocks, h in ((96, 3, 56), (192, 3, 28), (384, 9, 14), (768, 3, 7)):
        shapes += [Shape(c, 2 * h, width, 2, 2)] * (width > c)
        shapes += [_conv(width, h, width, 7, groups=width)] * blocks
        c = width
    return shapes


def _bottlenecks(
    stem: Shape, h: int, stages: Sequence[tuple[int, int, int, int, int]]
) -> list[Shape]:
    """Stages of (inner channels, groups, channels, blocks, stride of the first)."""
    shapes, c = [stem], stem.k
    for width, groups, k, blocks, stride in stages:
        for block in range(blocks):
            step = stride if block == 0 else 1
            shapes += [_conv(c, h, width, 1), _conv(width, h, width, 3, step, groups)]
            shapes += [_conv(c, h, k, 1, step)] * (block == 0)
            c, h = k, h // step
            shapes += [_conv(width, h, k, 1)]
    return shapes


def _resnext() -> list[Shape]:
    """ResNeXt-50 32×4d: Xie et al. 2016 (arXiv 1611.05431), table 1."""
    rows = ((128, 3, 1), (256, 4, 2), (512, 6, 2), (1024, 3, 2))
    stages = [(width, 32, 2 * width, blocks, stride) for width, blocks, stride in rows]
    return _bottlenecks(_conv(3, 224, 64, 7, 2), 56, stages)


def _regnet() -> list[Shape]:
    """RegNets of 8, 24 and 48 channels a group (Y-400MF without squeeze and excitation, X-1.6GF,
    X-3.2GF): Radosavovic et al. 2020 (arXiv 2003.13678), tables 2 and 3."""
    shapes: list[Shape] = []
    for each, widths, depths in (
        (8, (48, 104, 208, 440), (1, 3, 6, 6)), (24, (72, 168, 408, 912), (2, 4, 10, 2)),
        (48, (96, 192, 432, 1008), (2, 6, 15, 2)),
    ):  # fmt: skip
        stages = [(w, w // each, w, n, 2) for w, n in zip(widths, depths, strict=True)]
        shapes += _bottlenecks(_conv(3, 224, 32, 3, 2), 112, stages)
    return shapes


def _first() -> list[Shape]:
    """First layers: MobileNet's, ResNet's, ConvNeXt's, ViT's, VGG's, U-Net's."""
    return [
        _conv(3, 224, 32, 3, 2), _conv(3, 224, 64, 7, 2), Shape(3, 224, 96, 4, 4),
        Shape(3, 224, 768, 16, 16), _conv(3, 224, 64, 3), _conv(1, 256, 64, 3),
    ]  # fmt: skip


def _few() -> list[Shape]:
    """Few filters: of a diffusion model's end, an image's generator, a mask, a discriminator."""
    return [
        _conv(320, 64, 4, 3), _conv(64, 128, 3, 7), _conv(256, 56, 4, 3), Shape(512, 31, 1, 4, 1, 1)
    ]  # fmt: skip


def _narrow() -> list[Shape]:
    """Few channels, of DLA's, HRNet's, Res2Net's, GhostNet's and ResNet-D's first stages, sizes and
    numbers of filters between them."""
    return [
        *(_conv(c, h, k, 3) for c, h, k in (
            (16, 224, 16), (8, 112, 8), (16, 112, 32), (32, 112, 32), (24, 112, 24), (24, 56, 24),
            (32, 56, 32), (40, 56, 40), (16, 56, 64), (64, 56, 16), (48, 56, 32), (40, 28, 40),
            (24, 28, 48), (8, 28, 64),
        )),
        _conv(16, 28, 48, 5), _conv(32, 28, 32, 5), _conv(16, 112, 16, 5), _conv(24, 112, 24, 1),
        _conv(8, 112, 16, 1), _conv(16, 224, 32, 3, 2), _conv(24, 56, 48, 3, 2),
    ]  # fmt: skip


def _dcgan() -> list[Shape]:
    """DCGAN's generator for 64×64: Radford et al. 2015 (arXiv 1511.06434) in the sizes of PyTorch's
    example (4×4 taps, 100 random numbers, 64 channels before the image)."""
    shapes, h = [Shape(100, 1, 512, 4, 1, 0, transposed=True)], 4
    for c, k in ((512, 256), (256, 128), (128, 64), (64, 3)):
        shapes.append(Shape(c, h, k, 4, 2, 1, transposed=True))
        h *= 2
    return shapes


def _unet() -> list[Shape]:
    """U-Net: Ronneberger et al. 2015 (arXiv 1505.04597), figure 1: one channel in, two classes out.
    With 256×256 input and padded convolutions, as most use it today; the paper's 572×572 without
    padding is three times the work for the same channels."""
    shapes, c, h, k = [], 1, 256, 64
    for level in range(5):
        k = 64 << level
        shapes += [_conv(c, h, k, 3), _conv(k, h, k, 3)]
        c, h = k, h // 2
    h = 16
    for level in range(3, -1, -1):
        k = 64 << level
        shapes.append(Shape(2 * k, h, k, 2, 2, 0, transposed=True))
        h *= 2
        shapes += [_conv(2 * k, h, k, 3), _conv(k, h, k, 3)]
    return [*shapes, _conv(64, 256, 2, 1)]


def _keras() -> list[Shape]:
    """Keras' Conv2DTranspose(128, 2×2, strides 2) on 8×8×256: a layer alone, within a network."""
    return [Shape(256, 8, 128, 2, 2, 0, transposed=True)]


SUITES: dict[str, Callable[[], list[Shape]]] = {
    "resnet50": _resnet50,
    "vgg16": _vgg16,
    "mobilenetv2": _mobilenetv2,
    "dcgan": _dcgan,
    "unet": _unet,
    "keras": _keras,
    "efficientnet_b0": _b0,
    "efficientnet_b4": _b4,
    "convnext": _convnext,
    "resnext": _resnext,
    "regnet": _regnet,
    "first": _first,
    "few": _few,
    "narrow": _narrow,
}
_PARTS = frozenset(
    {"keras", "few", "narrow"}
)  # not whole networks: their first layer is not the network's
_ALL_FIRST = frozenset({"first"})


def suite(
    name: str,
    batch: int = 256,
    dtype: str = "f16",
    layout: str = "NHWC",
    layouts: Mapping[str, tuple[str, str, str]] = ORDERS,
) -> list[Layer]:
    """The distinct convolutions of a network in the order in which they first occur.

    `layouts`: what `layout` means, `ORDERS` or `LAYOUTS`.  Raises ValueError for a name, dtype or
    layout that is not among `SUITES`, `DTYPES`, `layouts`.
    """
    for what, value, known in (
        ("suite", name, SUITES), ("dtype", dtype, DTYPES), ("layout", layout, layouts),
    ):  # fmt: skip
        if value not in known:
            raise ValueError(f"{what} {value!r}: expected one of {', '.join(known)}")
    shapes = SUITES[name]()
    first = None if name in _PARTS else shapes[0]
    return [
        Layer(
            shape.label,
            shapes.count(shape),
            _problem(shape, batch, DTYPES[dtype], layouts[layout]),
            shape.transposed,
            shape == first or name in _ALL_FIRST,
        )
        for shape in dict.fromkeys(shapes)
    ]


def _problem(
    shape: Shape, batch: int, dtype: str, layouts: tuple[str, str, str], kind: str = "fprop"
) -> ConvProblem:
    c, h, k = shape.c, shape.h, shape.k
    if shape.transposed:
        c, h, k = k, (h - 1) * shape.stride - 2 * shape.pad + shape.r, c
    data, kernel, grad = layouts
    return ConvProblem(
        ConvKind(kind), batch, c, h, h, k, shape.r, shape.r, (shape.stride,) * 2, (shape.pad,) * 4,
        groups=shape.groups, data_layout=data, kernel_layout=kernel, grad_layout=grad,
        data_dtype=dtype, weight_dtype=dtype, grad_dtype=dtype,
    ).check()  # fmt: skip


# ---- ResNet-50 alone, in the layouts of users -------------------------------------------------

# C, H = W, K, R = S, stride.
LAYERS = tuple((s.c, s.h, s.k, s.r, s.stride) for s in dict.fromkeys(_resnet50()))


def problems(
    batch: int, kinds: Sequence[str], layouts: Sequence[str], dtype: str = "float32"
) -> list[ConvProblem]:
    """Every layer with every kind and layout; the first layer has no dgrad in a network."""
    out = [
        _problem(_conv(c, h, k, r, stride), batch, dtype, LAYOUTS[layout], kind)
        for c, h, k, r, stride in LAYERS
        for kind in kinds
        for layout in layouts
    ]
    return [p for p in out if not (p.kind is ConvKind.DGRAD and p.c == 3)]
