"""Forms of depthwise kernels beside those that are always considered, and what nvcc makes of each.

A form is what a thread and a block have: (channels, columns of results, threads of a block, steps
in shared memory).  The model counts instructions as nvcc mostly makes them; for some forms it does
not (loads one after another, registers that are short), alike for all sizes of images.  So each
has a factor, the geometric mean of times measured over times expected: 1,100 times on an H100 and
650 on H200s, in float16, which scatter by 3 to 8 % of a form (2026-11-23 to 27).
"""

from relay_wgrad.problem import ConvKind

Form = tuple[int, int, int, int]

THREADS = 128  # of a block, unless a form says another number

_FPROP, _DGRAD, _WGRAD = ConvKind.FPROP, ConvKind.DGRAD, ConvKind.WGRAD
FACTORS: dict[tuple[ConvKind, int, int], dict[Form, float]] = {
    (_FPROP, 3, 1): {(8, 2, 192, 3): 1.0},
    (_DGRAD, 3, 1): {(8, 2, 192, 3): 1.0},
    (_FPROP, 3, 2): {
        (8, 1, 128, 0): 0.97, (8, 1, 256, 0): 0.95, (8, 2, 96, 0): 0.97, (8, 2, 128, 0): 0.97,
        (8, 2, 192, 0): 0.98,
    },
    (_FPROP, 5, 2): {
        (2, 3, 128, 0): 0.93, (2, 4, 128, 0): 0.87, (2, 7, 128, 0): 1.29, (4, 2, 128, 0): 1.17,
        (4, 3, 128, 0): 0.95, (4, 4, 128, 0): 0.86, (4, 4, 256, 0): 0.87,
    },
    (_DGRAD, 5, 2): {
        (2, 2, 128, 4): 0.94, (2, 3, 128, 4): 0.96, (2, 4, 128, 0): 1.07, (2, 4, 128, 4): 0.93,
        (4, 1, 96, 4): 0.91, (4, 1, 128, 4): 0.96, (4, 1, 192, 4): 0.91, (4, 2, 96, 4): 0.95,
        (4, 2, 128, 4): 0.92, (4, 2, 256, 3): 0.93,
    },
    (_WGRAD, 3, 1): {
        (2, 3, 128, 4): 1.12, (2, 4, 128, 4): 1.05, (2, 7, 128, 4): 1.04, (4, 2, 256, 3): 0.85,
        (4, 7, 128, 0): 1.11,
        (8, 2, 96, 3): 0.93, (8, 2, 128, 3): 0.93,
    },
    (_WGRAD, 3, 2): {
        (2, 4, 128, 0): 0.89, (2, 7, 128, 0): 1.79, (4, 1, 128, 3): 1.06, (4, 1, 128, 4): 1.15,
        (4, 2, 128, 0): 0.96, (4, 2, 128, 3): 1.16, (4, 2, 256, 0): 0.89,
        (4, 3, 128, 0): 1.86, (4, 3, 128, 2): 1.4, (4, 4, 192, 0): 0.9, (4, 7, 128, 0): 1.04,
        (4, 7, 192, 0): 0.99, (8, 1, 128, 0): 0.88, (8, 2, 128, 0): 1.06, (8, 2, 256, 0): 0.9,
        (8, 3, 256, 0): 0.99,
    },
    (_WGRAD, 5, 2): {
        (2, 3, 128, 0): 0.83, (2, 3, 256, 0): 0.74, (2, 4, 128, 0): 0.95, (2, 4, 192, 0): 0.74,
        (2, 7, 128, 0): 0.89, (2, 7, 192, 0): 0.85, (4, 3, 128, 0): 0.9, (4, 4, 128, 0): 0.88,
    },
}  # fmt: skip
"""(kind, taps and stride along both axes) -> its forms that were measured, and their factors."""
