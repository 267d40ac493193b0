"""The generator of DCGAN (Radford et al., 2015)."""

from __future__ import annotations

from ..ast import Expr, Function
from ..expr import var
from ..op import nn
from ..op.tensor import reshape, tanh
from .init import Workload, create_workload
from .layers import batch_norm_infer, closed, conv2d_transpose

_KERNELS = {"NCHW": "IOHW", "NHWC": "HWOI"}


def get_net(
    batch_size: int,
    random_len: int = 100,
    oshape: tuple[int, ...] = (3, 64, 64),
    ngf: int = 128,
    code: Expr | None = None,
    layout: str = "NCHW",
    dtype: str = "float32",
) -> Function:
    """The function from a random code, by default a parameter `data`, to images of 64×64.

    Raises ValueError for another size or layout.
    """
    if tuple(oshape[-2:]) != (64, 64):
        raise ValueError(f"dcgan: images must be 64x64, got oshape={oshape}")
    if layout not in _KERNELS:
        raise ValueError(f"dcgan: layout must be NCHW or NHWC, got {layout!r}")

    def enlarged(x: Expr, channels: int, name: str) -> Expr:
        return conv2d_transpose(
            x,
            kernel_size=(4, 4),
            strides=(2, 2),
            channels=channels,
            padding=(1, 1),
            output_padding=(0, 0),
            data_layout=layout,
            kernel_layout=_KERNELS[layout],
            name=f"{name}_deconv",
        )

    if code is None:
        code = var("data", shape=(batch_size, random_len), dtype=dtype)
    net: Expr = nn.relu(nn.dense(code, var("dense_weight"), units=4 * 4 * ngf * 8))
    first = (-1, ngf * 8, 4, 4) if layout == "NCHW" else (-1, 4, 4, ngf * 8)
    net = reshape(net, first)
    for i, channels in enumerate((ngf * 4, ngf * 2, ngf), 2):
        net = batch_norm_infer(
            enlarged(net, channels, f"g{i}"),
            epsilon=1e-5 + 1e-12,
            scale=False,
            axis=layout.index("C"),
            name=f"g{i}_batch_norm",
        )
        net = nn.relu(net)
    return closed(tanh(enlarged(net, oshape[-3], "g5")))


def get_workload(
    batch_size: int,
    oshape: tuple[int, ...] = (3, 64, 64),
    ngf: int = 128,
    random_len: int = 100,
    layout: str = "NCHW",
    dtype: str = "float32",
) -> Workload:
    """The module and its parameters."""
    return create_workload(get_net(batch_size, random_len, oshape, ngf, layout=layout, dtype=dtype))
