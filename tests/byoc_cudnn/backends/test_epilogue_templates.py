"""What a backend's rows take along, its templates implement: words of text, as nvcc is not here."""

from __future__ import annotations

import re

import pytest

from byoc_cudnn import BACKENDS, Row
from byoc_cudnn.backends.cutlass.check import Options
from byoc_cudnn.backends.cutlass.kernel_source import kernel_source, specialization
from byoc_cudnn.backends.cutlass.kernels import candidates
from byoc_cudnn.codegen.templates import template
from byoc_cudnn.fused import EPILOGUES, STEPS
from relay_wgrad.problem import ConvProblem

SIZES = "n=8 c=64 h=56 w=56 k=64 r=1 s=1 layout=NHWC/OHWI/NHWC dtype=f16/f16/f16"


def steps(backend: str) -> set[str]:
    rows = BACKENDS[backend].rows
    return {step.name for row in rows for step in EPILOGUES[row.epilogue]}


def test_cudnn() -> None:
    text = template("cudnn", "cudnn_graph.h")
    enum = re.search(r"enum Epilogue : unsigned \{(.*?)\}", text, re.DOTALL)
    assert enum
    values = {word: int(value) for word, value in re.findall(r"k(\w+) = (\d+)", enum[1])}
    measured = {STEPS["residual"].word}  # by `benchmarks gpu epilogues`, and taken by no row
    assert set(values) == {STEPS[name].word for name in steps("cudnn")} | measured
    assert all(value.bit_count() == 1 for value in values.values())
    assert len(set(values.values())) == len(values)
    graph = text[text.index("class Graph") :]
    assert not [word for word in values if f"k{word}" not in graph]


@pytest.mark.parametrize("row", BACKENDS["cutlass"].rows, ids=lambda row: row.name)
def test_cutlass(row: Row) -> None:
    """Kernels of both families: as many flags as there are, and an effect that there is."""
    problem = ConvProblem.parse(f"{row.kind.value} {SIZES}")
    names = tuple(step.name for step in EPILOGUES[row.epilogue])
    kernels = candidates(problem, names, Options(arch=90, wgmma=True))
    plain, hopper = (next(k for k in kernels if (k.sm == 90) is new) for new in (False, True))
    source = kernel_source(plain.name)
    flags = re.search(
        r"template <typename Element, int kCount_, ([^<]*?)>\nstruct OutputOp", source
    )
    given = re.search(r"OutputOp<[\w:]+, \d+, (.*?)>,", source)
    assert flags
    assert given
    assert len(flags[1].split(",")) == len(given[1].split(", "))
    effects = re.search(r"enum class Effect \{(.*?)\}", kernel_source(hopper.name), re.DOTALL)
    chosen = re.search(r"Effect::(k\w+)", specialization(hopper))
    assert effects
    assert chosen
    assert chosen[1] in re.findall(r"k\w+", effects[1])
