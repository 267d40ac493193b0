"""Races in the shared memory of kernels on tensor cores, on a device that is the CPU, are found.

That there are none test_warps_emulated.py says of the kernels that it runs.
`compute-sanitizer --tool racecheck` takes a gate that one lane of a warp passes for all for none;
`tests/support/cuda_races.h` has what CUDA says happens before what.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from relay_wgrad.problem import ConvKind
from tests.support.direct_emulated import share
from tests.support.warps_emulated import Case, cases, together

SEED = 5


def races(folder: Path, found: list[Case], without: str) -> int:
    """How many accesses are."""
    functions = together(folder, [kernel for _, _, kernel in found], without, races=True)
    for problem, epilogue, kernel in found:
        share(functions, kernel, problem, epilogue)
    return int(functions.races_found())


@pytest.mark.longer_cases(
    "grouped", "few", "first", "narrow", "depthwise_shares", "depthwise_bands-ConvKind.W"
)
@pytest.mark.parametrize(
    ("family", "kind", "without"),
    [
        ("depthwise_bands", ConvKind.FPROP, "gate_pass(gate, t);"),
        ("depthwise_bands", ConvKind.WGRAD, "gate_pass(gate, begin + d);"),
        ("depthwise_bands", ConvKind.WGRAD, "wait_copies<Z::D - 2>();"),
        ("depthwise_shares", ConvKind.DGRAD, "gate_pass(gate, turn);"),
        ("grouped", ConvKind.FPROP, "__syncthreads();"),
        ("few", ConvKind.WGRAD, "__syncthreads();"),
        ("first", ConvKind.FPROP, "__syncthreads();"),
        ("narrow", ConvKind.FPROP, "__syncthreads();"),
        ("narrow", ConvKind.WGRAD, "__syncthreads();"),
    ],
)
def test_what_is_left_out_is_found(
    tmp_path: Path, family: str, kind: ConvKind, without: str
) -> None:
    assert races(tmp_path, cases(family, (kind,), 2, SEED), without) > 0
