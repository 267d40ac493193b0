"""The generated C++: what a row says, what it compiles to, and its numbers by a stand-in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from byoc_cudnn.batched_products import BATCHED_PRODUCTS, BatchedProductsCall, Matrices
from byoc_cudnn.building.toolchain import find
from tests.support.children import finding
from tests.support.cublas_stand_in import library
from tests.support.cuda_fake import environment

ROOT = Path(__file__).parents[3]
CALL = BatchedProductsCall(
    "f", "float16", "float32", 6, 197, 64, 197,
    (Matrices(197, 38809, True), Matrices(64, 12608, first=5), Matrices(64, 12608)),
)  # fmt: skip


def test_a_row() -> None:
    source = BATCHED_PRODUCTS.generate([CALL], 90)
    assert (
        '{"matmul b=6 m=197 n=64 k=197 turned=a shared=- dtype=f16/f16/f32",\n'
        "     Element::kHalf, Element::kFloat, 0, 6, 197, 64, 197,"
        " {{197, 38809, 0, 1}, {64, 12608, 5, 0}, {64, 12608, 0, 0}}, 0},"
    ) in source
    assert "__tvm_ffi_f(" in source
    assert BATCHED_PRODUCTS.kernels_of(source) == []
    assert BATCHED_PRODUCTS.inputs(source) == []
    assert BATCHED_PRODUCTS.generate([CALL, CALL], 75).count("matmul b=") == 1


def test_what_is_refused_is_not_generated() -> None:
    bad = BatchedProductsCall("f", "float16", "float64", 6, 9, 9, 9, CALL.places)
    with pytest.raises(ValueError, match="f: float64 of float16; there are its own"):
        BATCHED_PRODUCTS.generate([bad], 90)


@pytest.mark.longer("builds three libraries, and starts a process of TVM")
def test_numbers(tmp_path: Path) -> None:
    """Random products of all dtypes through the virtual machine; all are written, none twice."""
    cuda = find().cuda
    if not find().compiler or not cuda.complete or cuda.version[0] != 13 or not shutil.which("g++"):
        pytest.skip("needs g++ and the headers of CUDA 13")
    env = {**os.environ, **environment(tmp_path), **finding(ROOT)}
    env["LD_PRELOAD"] += f" {library(tmp_path)}"
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.cublas_stand_in", "0", "120"],
        env=env, capture_output=True, text=True, timeout=300, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) > 32
    assert not [one for one in found if one[1] > one[2]]
