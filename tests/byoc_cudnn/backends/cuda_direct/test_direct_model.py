"""What the model expects of our own convolution kernels, against what an H200 took."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path

import pytest

import byoc_cudnn
from byoc_cudnn.backends.cuda_direct.faster import CUDNN, faster
from byoc_cudnn.backends.cuda_direct.machine import Work
from relay_wgrad.problem import ConvProblem
from tests.support.partition_cases import problem_module

RESULTS = Path(__file__).parents[4] / "benchmarks/results/gpu_depthwise_h200.json"


def test_the_first_choice_is_nearly_the_best() -> None:
    """Among the kernels that were measured, with nvcc's registers and instructions for each."""
    found = json.loads(RESULTS.read_text())
    lost, errors = [], []
    for row in found["rows"]:
        kernels = [dict(zip(found["columns"], values, strict=True)) for values in row["kernels"]]
        said = []
        for kernel in kernels:
            facts = {f.name: kernel[f.name] for f in fields(Work) if f.name in kernel}
            said.append(Work(**facts, second=row["problem"].startswith("wgrad")).us())
        errors += [math.log(us / k["us"]) for us, k in zip(said, kernels, strict=True)]
        first = kernels[said.index(min(said))]["us"]
        lost.append(first / min(kernel["us"] for kernel in kernels))
    assert sum(ratio <= 1.05 for ratio in lost) >= 31  # of 39
    assert max(lost) < 1.31
    assert math.exp(sum(map(math.log, lost)) / len(lost)) < 1.03
    assert math.sqrt(sum(error**2 for error in errors) / len(errors)) < 0.11


def test_cudnns_times_are_those_measured() -> None:
    """The least of the sizes, so that none of them is thought to be slower than it is."""
    found = json.loads(RESULTS.read_text())
    moved: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    for row in found["rows"]:
        p = ConvProblem.parse(row["problem"])
        copies = (row["torch_us"] - 4) / (p.bytes / found["bytes_per_second"] * 1e6)
        ratio = row["us"] / row["torch_us"]
        moved.setdefault((p.kind, p.r, p.strides[0]), []).append((copies, ratio))
    assert moved.keys() == CUDNN.keys()
    for key, (times, share) in CUDNN.items():
        least, largest = min(x for x, _ in moved[key]), max(x for _, x in moved[key])
        assert 0.96 * least < times <= least + 0.02
        assert share == pytest.approx(largest, abs=0.01)


LINE = (
    "{} n=64 c=144 h=56 w=56 k=144 r=3 s=3 pad=1,1,1,1 groups=144 layout=NHWC/OHWI/NHWC"
    " dtype=f16/f16/f16"
)


@pytest.mark.parametrize(
    ("kind", "changed", "reason"),
    [
        ("fprop", (), ""),
        ("dgrad", ("n=64", "n=256"), ""),
        ("wgrad", (), "1.02 of cuDNN's time"),
        ("fprop", ("f16/f16/f16", "f32/f32/f32"), "measured are depthwise ones in float16"),
        ("fprop", ("NHWC/OHWI/NHWC", "NCHW/OIHW/NCHW"), "µs are expected, and"),
        ("fprop", ("r=3 s=3", "r=9 s=9"), "fprop of 9x9, stride 1 was not measured"),
        ("fprop", ("groups=144", "groups=18"), "not known to be faster"),
        ("dgrad", ("groups=144", "groups=144 dil=2,2"), "µs are expected, and"),
    ],
)
def test_what_is_known_to_be_faster(kind: str, changed: tuple[str, str], reason: str) -> None:
    line = LINE.replace(*changed) if changed else LINE
    decision = faster(ConvProblem.parse(line.format(kind)), "")
    assert bool(decision) is not bool(reason)
    assert reason in decision.reason


@pytest.mark.usefixtures("registered")
def test_cudnn_gets_what_is_not() -> None:
    both, options = ("cuda_direct", "cudnn"), {"faster": True}
    for kind, backend in (("fprop", "cuda_direct"), ("wgrad", "cudnn")):
        module = problem_module(ConvProblem.parse(LINE.format(kind)))
        report = byoc_cudnn.partition(module, both, strict=True, cuda_direct=options)[1]
        assert report.rows() == {f"{backend}.{kind}": 1}
