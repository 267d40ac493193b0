"""Layout strings and the permutations they stand for.

A layout names each axis of a tensor by one letter.  Inside the package all arithmetic is written
for one canonical order, `NCHW` for activations and `OIHW` for weights (`NCDHW` and `OIDHW` in
three dimensions); a layout string is turned into a permutation once, at the border, and the result
is permuted back.

The letters of a weight are those of the *forward* convolution wherever it appears: O counts its
K output channels, I its C/groups input channels per group.  Only `nn.conv2d_transpose`, which
speaks of its own input and output, swaps them; `swap_io` translates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

ACTIVATION = "NCHW"
KERNEL = "OIHW"
# dimensions -> the canonical order; a line has the letters of an image's rows
ACTIVATIONS = {1: "NCW", 2: ACTIVATION, 3: "NCDHW"}
KERNELS = {1: "OIW", 2: KERNEL, 3: "OIDHW"}

T = TypeVar("T")


def is_permutation(layout: str, canonical: str) -> bool:
    """Whether `layout` has each letter of `canonical` exactly once."""
    return len(layout) == len(canonical) and set(layout) == set(canonical)


def permutation(src: str, dst: str) -> tuple[int, ...]:
    """Axes such that `x.transpose(axes)` takes a tensor from layout `src` to layout `dst`.

    >>> permutation("NCHW", "NHWC")
    (0, 2, 3, 1)
    """
    if not is_permutation(src, dst):
        raise ValueError(f"layouts {src!r} and {dst!r} do not have the same letters")
    return tuple(src.index(letter) for letter in dst)


def to_layout(values: Sequence[T], src: str, dst: str) -> tuple[T, ...]:
    """Reorders per-axis `values` (sizes, indices, …) from layout `src` to layout `dst`.

    >>> to_layout((8, 3, 224, 112), "NCHW", "NHWC")
    (8, 224, 112, 3)
    """
    return tuple(values[axis] for axis in permutation(src, dst))


def one_order(activation: str) -> tuple[str, str, str]:
    """Layouts of data, weight and gradient in one memory order, as vendors' libraries have them.

    >>> one_order("NHWC")
    ('NHWC', 'OHWI', 'NHWC')
    """
    return activation, activation.translate(str.maketrans("NC", "OI")), activation


def with_rank(layout: str, rank: int) -> str:
    """A layout of two dimensions with as many as that: depth stands before height.

    >>> with_rank("OHWI", 3)
    'ODHWI'
    """
    return layout.replace("H", "DH") if rank == 3 else layout


def swap_io(kernel_layout: str) -> str:
    """The same memory with a transposed convolution's names: its input is the forward's output.

    >>> swap_io("OHWI")
    'IHWO'
    """
    return kernel_layout.translate(str.maketrans("OI", "IO"))
