"""Shape suites as data: the convolutions that are measured."""

from __future__ import annotations

from collections.abc import Sequence

from relay_wgrad.problem import ConvKind, ConvProblem

# ResNet-50's distinct convolutions: C, H = W, K, R = S, stride.
LAYERS = (
    (3, 224, 64, 7, 2),
    (64, 56, 64, 1, 1),
    (64, 56, 64, 3, 1),
    (64, 56, 256, 1, 1),
    (256, 56, 64, 1, 1),
    (256, 56, 128, 1, 1),
    (128, 56, 128, 3, 2),
    (256, 56, 512, 1, 2),
    (128, 28, 512, 1, 1),
    (512, 28, 128, 1, 1),
    (128, 28, 128, 3, 1),
    (512, 28, 256, 1, 1),
    (256, 28, 256, 3, 2),
    (512, 28, 1024, 1, 2),
    (256, 14, 1024, 1, 1),
    (1024, 14, 256, 1, 1),
    (256, 14, 256, 3, 1),
    (1024, 14, 512, 1, 1),
    (512, 14, 512, 3, 2),
    (1024, 14, 2048, 1, 2),
    (512, 7, 2048, 1, 1),
    (2048, 7, 512, 1, 1),
    (512, 7, 512, 3, 1),
)
LAYOUTS = {"NHWC": ("NHWC", "HWIO", "NHWC"), "NCHW": ("NCHW", "OIHW", "NCHW")}


def problems(
    batch: int, kinds: Sequence[str], layouts: Sequence[str], dtype: str = "float32"
) -> list[ConvProblem]:
    """Every layer with every kind and layout; the first layer has no dgrad in a network."""
    out = []
    for c, h, k, r, stride in LAYERS:
        for kind in kinds:
            for layout in layouts:
                data, kernel, grad = LAYOUTS[layout]
                out.append(
                    ConvProblem(
                        ConvKind(kind), batch, c, h, h, k, r, r, (stride,) * 2, (r // 2,) * 4,
                        data_layout=data, kernel_layout=kernel, grad_layout=grad,
                        data_dtype=dtype, weight_dtype=dtype, grad_dtype=dtype,
                    )
                )  # fmt: skip
    return [p for p in out if not (p.kind is ConvKind.DGRAD and p.c == 3)]
