"""A network of volumes goes to kernels of our own where an H200's times say so, and is built."""

from __future__ import annotations

import pytest
from tvm import relax
from tvm.target import Target

import byoc_cudnn
from byoc_cudnn.codegen.external import register
from relay_wgrad.problem import ConvKind, ConvProblem
from relay_wgrad.training.libraries import backend_options
from relay_wgrad.training.options import Options
from tests.support.partition_cases import problem_module

pytestmark = pytest.mark.usefixtures("registered")
HELPED = ("cuda_direct", "cudnn")
LINE = (
    "{} n=2 c={} d=128 h=128 w=128 k=32 t=3 r=3 s=3 pad=1,1,1,1,1,1 layout=NDHWC/ODHWI/NDHWC"
    " dtype=bf16/bf16/bf16"
)


@pytest.mark.parametrize(
    ("kind", "c", "backend"),
    [
        ("fprop", 1, "cuda_direct"), ("wgrad", 1, "cuda_direct"), ("fprop", 32, "cuda_direct"),
        ("dgrad", 32, "cuda_direct"), ("wgrad", 32, "cuda_direct"), ("fprop", 64, "cuda_direct"),
        ("dgrad", 64, "cudnn"), ("wgrad", 64, "cuda_direct"), ("fprop", 96, "cudnn"),
    ],
)  # fmt: skip
def test_where_it_goes(kind: str, c: int, backend: str) -> None:
    """What is taken has a kernel when its code is written, for the device that it is for."""
    mod = problem_module(ConvProblem.parse(LINE.format(ConvKind(kind).value, c)))
    options = backend_options(HELPED, Options(), 90)
    mod, report = byoc_cudnn.partition(mod, HELPED, **options)
    assert [entry.backend for entry in report.entries] == [backend]
    for one in HELPED:
        register(byoc_cudnn.BACKENDS[one])
    with Target({"kind": "cuda", "arch": "sm_90"}):
        relax.transform.RunCodegen()(mod)
