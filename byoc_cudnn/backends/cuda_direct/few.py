"""Convolutions of few filters on tensor cores: which kernel serves a problem.

The device's code is `templates/few_*.h`.
"""

from __future__ import annotations

from relay_wgrad.problem import ConvKind, ConvProblem

from .grouped import ELEMENTS, exported

PARTS = ("few_call.h", "warp_device.h", "few_parts.h", "few_image.h")
MOST = 8  # filters
_COLUMNS = 160  # taps times filters, at most


def reason(problem: ConvProblem) -> str:
    """Why there is no kernel for a problem; empty if there is."""
    p = problem
    dtypes = {p.data_dtype, p.weight_dtype, p.grad_dtype}
    if len(dtypes) != 1 or p.data_dtype not in ELEMENTS:
        return f"kernels of few filters are of {', '.join(ELEMENTS)}, got {sorted(dtypes)}"
    if (p.data_layout, p.kernel_layout, p.grad_layout) != ("NHWC", "OHWI", "NHWC"):
        return "kernels of few filters are of NHWC and OHWI"
    if p.groups != 1:
        return "several groups"
    if p.k > MOST or p.k * p.r * p.s > _COLUMNS:
        return f"more than {MOST} filters, or more than {_COLUMNS} filters times taps"
    if p.c % 8:
        return f"{p.c} channels do not come by 8"
    if p.strides[0] != p.strides[1] or p.dilation[0] != p.dilation[1]:
        return "strides and dilation must be the same down and across"
    return ""


def body(problem: ConvProblem, name: str) -> tuple[list[str], str]:
    """The templates of a kernel, and what its object exports."""
    p = problem
    constants = (p.k, p.r, p.s, p.strides[0], p.dilation[0], *p.padding[:2])
    z = f"Few<{ELEMENTS[p.data_dtype]}, {', '.join(map(str, constants))}>"
    if p.kind is ConvKind.WGRAD:
        text = exported(name, f"few_filter_gradient<{z}>", f"few_workspace<{z}>(call)")
        return [*PARTS, "few_weight.h"], text
    function = "few_forward" if p.kind is ConvKind.FPROP else "few_backward"
    return [*PARTS], exported(name, f"{function}<{z}>", "0")
