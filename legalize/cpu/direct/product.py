"""Kernels that cover a whole image, once: matrix products, though they have pixels and taps."""

from __future__ import annotations

from dataclasses import replace

from relay_wgrad.problem import ConvProblem


def as_product(problem: ConvProblem) -> ConvProblem:
    """The problem with each image as one pixel whose channels are all of its elements, where the
    memory of all tensors is the same; else the problem itself.

    With H x W taps on H x W pixels and no padding there is one result per image and filter:
    y[n, k] = sum over c, h, w of x[n, c, h, w] * w[k, c, h, w].
    """
    data, weight, grad = problem.data_layout, problem.kernel_layout, problem.grad_layout
    covers = (problem.r, problem.s) == (problem.h, problem.w) and not any(problem.padding)
    # An image and a filter must be runs of memory, with their elements in the same order.
    image, filter_ = data.strip("N"), weight.strip("O").replace("I", "C")
    if not covers or problem.groups > 1 or len(image) != 3 or image != filter_:
        return problem
    return replace(
        problem, c=problem.c * problem.h * problem.w, h=1, w=1, r=1, s=1,
        strides=(1, 1), dilation=(1, 1),
        data_layout="NHWC" if data[0] == "N" else "HWCN",
        kernel_layout="OHWI" if weight[0] == "O" else "HWIO",
        grad_layout="NHWC" if grad.index("N") < grad.index("C") else "HWCN",
    )  # fmt: skip
