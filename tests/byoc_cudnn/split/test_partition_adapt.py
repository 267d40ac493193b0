"""What is put around a call so that a backend can take it: arithmetic, programs, numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import tirx

import byoc_cudnn
from byoc_cudnn.backends.cudnn.check import LAYOUTS, check
from byoc_cudnn.split.adapt import adapted, describe, in_layouts, nearest
from relay_wgrad.dtypes import numpy_dtype
from relay_wgrad.layouts import permutation
from relay_wgrad.problem import ConvKind, ConvProblem, symmetric
from tests.support.layout_cases import machine_of
from tests.support.partition_cases import (
    merged,
    module,
    nn,
    only,
    op,
    ops,
    partitioned,
    problem_module,
    same_numbers,
)
from tests.support.problems import (
    random_operands,
    random_problem,
    relative_error,
    tolerance,
    torch_reference,
)

NCHW, NHWC = LAYOUTS
KINDS = list(ConvKind)
seeds = st.integers(0, 2**32 - 1)


def drawn(seed: int, kind: ConvKind, **options: Any) -> ConvProblem:
    return random_problem(np.random.default_rng(seed), kind, max_flop=3e5, **options)


def takes(problem: ConvProblem) -> Any:
    return check(problem, "")


# ---- arithmetic ----------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(seed=seeds, kind=st.sampled_from(KINDS))
def test_explicit_padding_is_the_same_convolution(seed: int, kind: ConvKind) -> None:
    """Operands padded, or the result cropped, in numpy: against PyTorch in float64."""
    problem = drawn(seed, kind, dtypes=("float64",), mixed=False)
    new = symmetric(problem)
    assert (new.p, new.q) == (problem.p, problem.q)
    top, left, bottom, right = new.padding
    assert (top, left) == (bottom, right)
    assert all(0 <= a <= b for a, b in zip(new.padding, problem.padding, strict=True))
    margins = [a - b for a, b in zip(problem.padding, new.padding, strict=True)]
    assert 0 in margins[::2]
    assert 0 in margins[1::2], "no more than the difference"
    operands = random_operands(problem, np.random.default_rng(seed))
    width = dict(zip("HW", ((margins[0], margins[2]), (margins[1], margins[3])), strict=True))
    pads = [width.get(letter, (0, 0)) for letter in problem.data_layout]
    padded = [
        np.pad(x, pads) if role == "data" else x
        for role, x in zip(problem.roles[:2], operands, strict=True)
    ]
    made = torch_reference(new, *padded)
    if kind is ConvKind.DGRAD:
        shape = problem.shape("data")
        made = made[tuple(slice(a, a + n) for (a, _), n in zip(pads, shape, strict=True))]
    np.testing.assert_allclose(made, torch_reference(problem, *operands), rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=200)
@given(seed=seeds, kind=st.sampled_from(KINDS))
def test_whatever_is_adapted_is_accepted(seed: int, kind: ConvKind) -> None:
    problem = drawn(seed, kind, dtypes=("float16", "float32"), mixed=False)
    found = adapted(problem, LAYOUTS, takes)
    if takes(problem):
        return
    assert found is not None
    assert takes(found)
    assert found.check() is found
    foreign = (problem.data_layout, problem.kernel_layout, problem.grad_layout) not in LAYOUTS
    lopsided = symmetric(problem).padding != problem.padding
    parts = describe(problem, found).split("+")
    assert ("layout" in parts) == foreign
    assert bool({"pad", "crop"} & set(parts)) == lopsided


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_half_operands_of_a_float32_result_are_cast(kind: ConvKind, half: str) -> None:
    problem = drawn(7, kind, dtypes=(half,), mixed=False)
    problem = replace(problem, **{f"{problem.roles[2]}_dtype": "float32"})
    assert not takes(problem)
    found = adapted(problem, LAYOUTS, takes)
    assert found is not None
    assert {found.data_dtype, found.weight_dtype, found.grad_dtype} == {"float32"}
    assert "cast" in describe(problem, found).split("+")
    wrong = replace(problem, **{f"{problem.roles[0]}_dtype": "float64"})
    assert adapted(wrong, LAYOUTS, takes) is None


def test_nearest_layouts_move_the_fewest_bytes() -> None:
    wide = ConvProblem.parse("fprop n=1 c=512 h=4 w=4 k=512 r=3 s=3 layout=NHWC/OIHW/NHWC")
    assert nearest(wide, LAYOUTS)[0] == NCHW  # the weight is larger than both activations
    deep = ConvProblem.parse("fprop n=8 c=8 h=64 w=64 k=8 r=3 s=3 layout=NHWC/HWIO/NHWC")
    assert nearest(deep, LAYOUTS)[0] == NHWC
    n = tirx.Var("n", "int64")
    assert nearest(replace(deep, n=n), LAYOUTS)[0] == NHWC
    assert adapted(in_layouts(deep, NHWC), LAYOUTS, lambda p: takes(p)) is not None


def test_nothing_helps() -> None:
    double = ConvProblem.parse("fprop n=1 c=2 h=4 w=4 k=2 r=1 s=1 dtype=f64/f64/f64")
    assert adapted(double, LAYOUTS, takes) is None


# ---- programs ------------------------------------------------------------------------------------

LOPSIDED = "{} n=2 c=4 h=9 w=8 k=6 r=3 s=3 stride=2,1 pad=0,1,2,1"


@pytest.fixture(autouse=True)
def _setting(registered: None, any_epilogue: None) -> None:
    """The package's operators, and every row for every problem: the mechanism is tested here."""


@pytest.mark.parametrize(
    ("kind", "what", "left"),
    [
        ("fprop", "pad", ["pad", "call"]),
        ("wgrad", "pad", ["pad", "call"]),
        ("dgrad", "crop", ["call", "strided_slice"]),
    ],
)
def test_padding(kind: str, what: str, left: list[str]) -> None:
    problem = ConvProblem.parse(LOPSIDED.format(kind))
    mod = problem_module(problem)
    out, report = partitioned(mod)
    entry = only(report)
    assert (entry.row, entry.adapted, entry.problem) == (kind, what, problem.repro())
    assert entry.node == mod["main"].body.blocks[0].bindings[0].var.name
    assert ops(out["main"]) == left
    same_numbers(mod, out)


@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
def test_layouts(kind: str) -> None:
    problem = ConvProblem.parse(LOPSIDED.format(kind) + " layout=CHWN/HWIO/NCHW")
    mod = problem_module(problem)
    out, report = partitioned(mod)
    entry = only(report)
    assert entry.adapted == ("crop+layout" if kind == "dgrad" else "pad+layout")
    assert "permute_dims" in ops(out["main"])
    same_numbers(mod, out)


def test_epilogue_after_a_padded_convolution() -> None:
    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        y = emit(nn.conv2d(x, w, padding=(0, 1, 1, 0)))
        return emit(nn.relu(emit(op.add(y, b))))

    mod = module({"x": (1, 3, 6, 6), "w": (4, 3, 3, 3), "b": (4, 1, 1)}, body)
    out, report = partitioned(mod)
    assert (only(report).row, only(report).adapted) == ("fprop_bias_relu", "pad")
    same_numbers(mod, out)


def test_one_permuted_weight_and_one_padded_input_for_all() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        one = emit(nn.conv2d(x, w, padding=(0, 1, 1, 0), kernel_layout="HWIO"))
        two = emit(nn.conv2d(x, w, padding=(1, 2, 2, 1), kernel_layout="HWIO"))
        three = emit(nn.conv2d(x, w, strides=2, kernel_layout="HWIO"))
        return [one, two, three]

    out, report = partitioned(module({"x": (1, 3, 6, 6), "w": (3, 3, 3, 4)}, body))
    assert [e.adapted for e in report.entries] == ["pad+layout", "pad+layout", "layout"]
    assert ops(out["main"]).count("permute_dims") == 1
    assert ops(out["main"]).count("pad") == 1


def test_symbolic_batch_is_cropped_too() -> None:
    n = tirx.Var("n", "int64")

    def body(emit: Any, g: Any, w: Any) -> Any:
        return emit(nn.conv2d_transpose(g, w, (2, 2), (0, 1, 1, 2), (1, 0), data_layout="NHWC"))

    mod = module({"g": (n, 4, 4, 6), "w": (6, 3, 3, 3)}, body)
    out, report = partitioned(mod)
    assert only(report).adapted == "crop+layout"
    same_numbers(mod, out, n=2)


def test_nothing_is_put_around_a_call_that_stays() -> None:
    n, h = tirx.Var("n", "int64"), tirx.Var("h", "int64")
    problem = ConvProblem(ConvKind.DGRAD, n, 3, h, 8, 4, 3, 3, padding=(0, 0, 1, 1))
    mod = problem_module(problem)
    out, report = partitioned(mod)
    assert "asymmetric padding" in only(report).reason
    tvm.ir.assert_structural_equal(out, mod)


# ---- numbers -------------------------------------------------------------------------------------


def transposed_module(rng: np.random.Generator) -> tvm.IRModule:
    """A random transposed convolution with output padding."""
    strides = tuple(int(x) for x in rng.integers(1, 4, 2))
    kernel = [int(x) for x in rng.integers(1, 4, 2)]
    dilation = tuple(int(x) for x in rng.integers(1, 3, 2))
    groups = int(rng.integers(1, 3))
    padding = tuple(int(x) for x in rng.integers(0, 3, 4))
    extra = tuple(int(rng.integers(0, s)) for s in strides)
    data, weight = [("NCHW", "IOHW"), ("NHWC", "IHWO"), ("NHWC", "HWOI")][int(rng.integers(3))]
    x = (2, 2 * groups, *(int(n) for n in rng.integers(4, 8, 2)))
    w = (2 * groups, 3, *kernel)

    def body(emit: Any, x: Any, w: Any) -> Any:
        return emit(
            nn.conv2d_transpose(
                x, w, strides, padding, extra, dilation, groups, data, weight
            )
        )  # fmt: skip

    axes, w_axes = permutation("NCHW", data), permutation("IOHW", weight)
    return module({"x": [x[i] for i in axes], "w": [w[i] for i in w_axes]}, body)


@pytest.mark.longer
def test_transposed_convolutions_against_themselves() -> None:
    """Cropped from a larger one: output padding and strides' remainders among them."""
    rng = np.random.default_rng(3)
    before = {f"f{i}": transposed_module(rng) for i in range(16)}
    mod = merged(before)
    out, report = partitioned(mod)
    assert report.share == 1
    assert sum("crop" in e.adapted for e in report.entries) >= 8
    machine, other = machine_of(mod), machine_of(byoc_cudnn.unpartition(out))
    for name in before:
        args = [
            tvm.runtime.tensor(
                rng.standard_normal([int(n) for n in p.ty.shape.values]).astype("float32")
            )
            for p in mod[name].params
        ]
        want, got = machine[name](*args).numpy(), other[name](*args).numpy()
        assert relative_error(got, want) < 1e-5, mod[name].script()


@pytest.mark.longer_cases("ConvKind.FPROP", "ConvKind.WGRAD")
@pytest.mark.parametrize("kind", KINDS)
def test_random_problems_against_pytorch(kind: ConvKind) -> None:
    """Everything adapted of these, inlined again and run on the CPU: against float64."""
    rng = np.random.default_rng(11)
    problems: list[ConvProblem] = []
    while len(problems) < 12:
        problem = random_problem(rng, kind, dtypes=("float32",), max_flop=3e5)
        if not takes(problem):
            problems.append(problem)
    mod = merged({f"f{i}": problem_module(p) for i, p in enumerate(problems)})
    out, report = partitioned(mod)
    assert report.share == 1
    assert all(e.adapted for e in report.entries)
    machine = machine_of(byoc_cudnn.unpartition(out))
    for i, problem in enumerate(problems):
        operands = random_operands(problem, rng)
        got = machine[f"f{i}"](*map(tvm.runtime.tensor, operands)).numpy()
        assert got.dtype == numpy_dtype(problem.dtype(problem.roles[2]))
        error = relative_error(got, torch_reference(problem, *operands))
        assert error <= tolerance(problem), problem.repro()
