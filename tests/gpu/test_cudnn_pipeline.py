"""From a Relax module to results on a device: partition, pads and permutations, export."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import byoc_cudnn
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.gpu.cudnn_runner import kind_problems, library_tolerance
from tests.support.gpu.partitioned import many, wrong_partitioned
from tests.support.gpu.runner import choose_compiler
from tests.support.partition_cases import conv_call, module
from tests.support.problems import random_operands, random_problem, relative_error, torch_reference

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]

SEED = 22


@pytest.fixture(autouse=True)
def _compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_compiler()
    monkeypatch.setenv("RELAY_WGRAD_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("kind", list(ConvKind))
def test_any_layout_and_padding(kind: ConvKind) -> None:
    rng = np.random.default_rng((SEED, list(ConvKind).index(kind)))
    problems = kind_problems(
        rng, kind, 40, random_problem, dtypes=("float16", "float32"), mixed=False
    )
    assert wrong_partitioned(problems, rng) == []


EXPORTED = r"""
import sys
import numpy as np
import torch
import tvm
from tvm import relax
folder = sys.argv[1]
device = tvm.cuda(0)
vm = relax.VirtualMachine(tvm.runtime.load_module(folder + "/lib.so"), device)
given = np.load(folder + "/in.npz")
result = vm["main"](*(tvm.runtime.tensor(given[k], device) for k in ("a", "b")))
np.save(folder + "/out.npy", result[0].numpy())
assert not [name for name in sys.modules if name.startswith(("relay_wgrad", "byoc_cudnn"))]
"""


def test_an_exported_library_needs_no_package(tmp_path: Path) -> None:
    problem = ConvProblem.parse("wgrad n=4 c=24 h=15 w=14 k=40 r=3 s=3 stride=2,1 pad=0,1,1,1")
    out, _ = byoc_cudnn.partition_for_cudnn(many([problem]), strict=True)
    byoc_cudnn.build(out).export_library(tmp_path / "lib.so")
    values = random_operands(problem, np.random.default_rng(SEED))
    np.savez(tmp_path / "in.npz", a=values[0], b=values[1])
    subprocess.run([sys.executable, "-c", EXPORTED, str(tmp_path)], check=True, cwd=tmp_path)
    error = relative_error(np.load(tmp_path / "out.npy"), torch_reference(problem, *values))
    assert error <= library_tolerance(problem, tf32=True)


def test_symbolic_batch() -> None:
    """One library, plans for each batch that comes."""
    n = tirx.Var("n", "int64")
    line = "fprop n={} c=16 h=14 w=13 k=32 r=3 s=3 pad=1,1,1,1 layout=NHWC/OHWI/NHWC"
    one = ConvProblem.parse(line.format(1))
    shapes = {"x": (n, *one.shape("data")[1:]), "w": one.shape("weight")}

    def body(emit: Any, x: Any, w: Any) -> Any:
        y = emit(conv_call(one, x, w))
        return emit(relax.op.nn.relu(y))

    out, _ = byoc_cudnn.partition_for_cudnn(module(shapes, body), strict=True)
    device = tvm.cuda(0)
    library = byoc_cudnn.build(out)
    vm = library.virtual_machine(device)
    rng = np.random.default_rng(SEED)
    for batch in (3, 8, 3, 1):
        problem = ConvProblem.parse(line.format(batch))
        values = random_operands(problem, rng)
        got = vm["main"](*(tvm.runtime.tensor(v, device) for v in values)).numpy()
        want = np.maximum(torch_reference(problem, *values), 0)
        assert relative_error(got, want) <= library_tolerance(problem, tf32=True)
    assert len(library.plans()) == 3  # one for each batch, however often it came
