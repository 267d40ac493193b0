"""The CPU pipeline's schedules: same results as upstream's pipeline, and parallel loops."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.script import relax as R
from tvm.target import Target

from relay_wgrad.dtypes import numpy_dtype
from relay_wgrad.frontend import from_onnx
from relay_wgrad.pipeline.cpu import cpu_pipeline, parallel_kernels
from relay_wgrad.pipeline.fused_kernels import fused_kernels
from relay_wgrad.training.step import converted, step_module
from tests.support.compiled import virtual_machine

TARGET = Target({"kind": "llvm", "num-cores": 4})
Program = Callable[[relax.Expr], relax.Expr]


def chosen(x: relax.Expr) -> relax.Expr:
    """Some elements doubled, the others nothing: as a ReLU's gradient."""
    quarter, nothing = (R.const(value, "float32") for value in (0.25, 0.0))
    return R.where(R.greater(x, quarter), R.add(x, x), nothing)


# name -> (shape of the operand, program, parallel kernels)
PROGRAMS: dict[str, tuple[tuple[int, ...], Program, int]] = {
    "channels last": ((4, 28, 28, 48), lambda x: R.sum(x, [0, 1, 2]), 1),
    "channels last, odd": ((2, 31, 29, 37), lambda x: R.mean(x, [0, 1, 2]), 1),
    "channels last, few": ((4, 28, 28, 24), lambda x: R.sum(chosen(x), [0, 1, 2]), 1),
    "channels last, many": ((4, 14, 14, 1280), lambda x: R.sum(chosen(x), [0, 1, 2]), 1),
    "channels first": ((4, 48, 28, 28), lambda x: R.sum(x, [0, 2, 3]), 1),
    "channels first, odd": ((5, 37, 31, 29), lambda x: R.sum(x, [0, 2, 3]), 1),
    "channels first, tiny": ((9, 300, 7, 7), lambda x: R.sum(x, [0, 2, 3]), 1),
    "channels last, chosen": ((4, 28, 28, 64), lambda x: R.sum(chosen(x), [0, 1, 2]), 1),
    "channels first, chosen": ((4, 48, 14, 14), lambda x: R.sum(chosen(x), [0, 2, 3]), 1),
    "channels first, prime": ((9, 48, 1, 67), lambda x: R.sum(x, [0, 2, 3]), 1),
    "groups": ((6, 5, 40, 48), lambda x: R.sum(x, [1, 2]), 1),
    "rows": ((300, 1000), lambda x: R.sum(x, [1]), 1),
    "maximum": ((4, 48, 28, 28), lambda x: R.max(x, [0, 2, 3]), 1),
    "everything": ((40, 41, 42), lambda x: R.sum(x), 1),
    "elements": ((4, 28, 28, 48), lambda x: R.nn.relu(R.add(x, R.exp(x))), 1),
    "elements, chosen": ((4, 30, 30, 48), lambda x: R.add(chosen(x), R.exp(x)), 1),
    "elements, chosen, 7x7": ((4, 96, 7, 7), lambda x: R.add(chosen(x), R.exp(x)), 1),
    "elements of one axis": ((50001,), lambda x: R.sqrt(R.abs(x)), 1),
    "small": ((8, 8), lambda x: R.exp(x), 0),
    "pooling": ((2, 32, 28, 28), lambda x: R.nn.avg_pool2d(x, [3, 3], [2, 2]), 1),
    "softmax": ((400, 100), lambda x: R.nn.softmax(x), 1),
    "transposed, long": ((96, 3, 250), lambda x: R.permute_dims(R.exp(x), [2, 1, 0]), 1),
    "transposed": ((40, 50, 60), lambda x: R.permute_dims(x, [2, 0, 1]), 1),
    "batch statistics": (
        (4, 28, 28, 48),
        lambda x: R.divide(R.subtract(x, R.mean(x, [0, 1, 2])), R.variance(x, [0, 1, 2])),
        2,
    ),
}


def module(shape: tuple[Any, ...], program: Program, dtype: str = "float32") -> tvm.IRModule:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype))
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(program(x))
        bb.emit_func_output(out)
    return bb.get()


def results(mod: tvm.IRModule, x: np.ndarray[Any, Any], pipeline: Any) -> np.ndarray[Any, Any]:
    vm = virtual_machine(mod, TARGET, pipeline)
    return vm["main"](tvm.runtime.tensor(x)).numpy()


def parallel_functions(mod: tvm.IRModule) -> int:
    """How many kernels have a parallel loop after the schedule."""
    passes = [
        relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(), relax.transform.FuseTIR(), parallel_kernels(),
    ]  # fmt: skip
    with TARGET:
        mod = tvm.transform.Sequential(passes)(mod)
    kernels = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    return sum("T.parallel(" in f.script() for f in kernels)


@pytest.mark.share(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_against_upstream(name: str) -> None:
    shape, program, parallel = PROGRAMS[name]
    mod = module(shape, program)
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    got, want = results(mod, x, cpu_pipeline()), results(mod, x, "default")
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-3)
    assert parallel_functions(mod) >= parallel


def test_symbolic_sizes() -> None:
    n = tirx.Var("n", "int64")
    mod = module((n, 28, 28, 16), lambda x: R.add(R.sum(x, [0, 1, 2]), R.max(x, [0, 1, 2])))
    for size in (1, 5):
        x = np.random.default_rng(0).standard_normal((size, 28, 28, 16)).astype("float32")
        got, want = results(mod, x, cpu_pipeline()), results(mod, x, "default")
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


def test_parts_are_told_before_they_begin() -> None:
    said: list[str] = []
    with Target("llvm"):
        cpu_pipeline(said.append)(module((8, 8), R.exp))
    assert said == ["fusing", "scheduling", "planning memory"]


def test_one_core_wakes_no_others() -> None:
    mod = module((64, 64, 64), R.exp)
    with Target({"kind": "llvm", "num-cores": 1}):
        kernels = parallel_kernels()(relax.transform.LegalizeOps()(mod))
    assert "T.vectorized(" in kernels.script()
    assert "T.parallel(" not in kernels.script()


@pytest.mark.share(5)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("axes", [(0, 1, 2), (0, 2, 3)], ids=["last", "first"])
def test_dtypes(dtype: str, axes: tuple[int, ...]) -> None:
    shape = (2, 48, 14, 64)
    x = np.random.default_rng(0).standard_normal(shape).astype(numpy_dtype(dtype))
    mod = module(shape, lambda v: R.add(R.exp(R.negative(v)), R.sum(v, axes, keepdims=True)), dtype)
    got = results(mod, x, cpu_pipeline()).astype("float64")
    want = np.exp(-x.astype("float64")) + x.astype("float64").sum(axes, keepdims=True)
    # The sums are in the operand's dtype, some hundred terms one after the other.
    limit = {"float16": 1e-2, "bfloat16": 1e-1, "float64": 1e-13}[dtype]
    assert np.linalg.norm(got - want) <= limit * np.linalg.norm(want)


@pytest.mark.parametrize("axes", [(0, 1, 2), (0, 2, 3), None], ids=["last", "first", "all"])
def test_sums_are_vectors_in_registers(axes: tuple[int, ...] | None) -> None:
    mod = module((4, 64, 28, 64), lambda x: R.sum(chosen(x), axes))
    with TARGET:
        kernels = tvm.transform.Sequential([*fused_kernels(), parallel_kernels()])(mod).script()
    assert kernels.count('scope="local"') == 1
    assert "T.vectorized(" in kernels
    assert "T.parallel(" in kernels


@pytest.mark.parametrize("channels", [24, 96, 1280])
def test_sums_of_many_channels_walk_along_whole_rows(channels: int) -> None:
    """A row, or pieces of 2 KiB of a longer one: short pieces that are far apart take twice as
    long.  The sums are added to where they are."""
    mod = module((4, 28, 28, channels), lambda x: R.sum(chosen(x), (0, 1, 2)))
    with TARGET:
        kernels = tvm.transform.Sequential([*fused_kernels(), parallel_kernels()])(mod).script()
    assert 'scope="local"' not in kernels
    lanes, row = math.gcd(channels, 16), min(channels, 320)
    rows_and_vectors = rf"T\.grid\(T\.int64\(\d+\), T\.int64\({row // lanes}\)\):"
    lane = rf"\n +for \w+ in T\.vectorized\(T\.int64\({lanes}\)\):"
    assert re.search(rows_and_vectors + lane, kernels)


@pytest.mark.parametrize("rows", [(4, 28, 28), (tirx.Var("n", "int64"), 28, 28), (3136,)], ids=str)
def test_a_sum_of_few_channels_has_tasks_for_many_cores(rows: tuple[Any, ...]) -> None:
    """Not by a part of each cache line; and the order of terms is that of one core."""
    mod = module((*rows, 64), lambda x: R.sum(chosen(x), list(range(len(rows)))))
    x = np.random.default_rng(0).standard_normal((4, 28, 28, 64)).astype("float32")
    found = []
    for cores in (1, 4, 64):
        target = Target({"kind": "llvm", "num-cores": cores})
        with target:
            kernels = tvm.transform.Sequential([*fused_kernels(), parallel_kernels()])(mod).script()
        tasks = [int(x) for x in re.findall(r"T\.parallel\(T\.int64\((\d+)\)\)", kernels)]
        assert (max(tasks, default=1) >= 16) == (cores > 1)
        vm = virtual_machine(mod, target, cpu_pipeline())
        found.append(
            vm["main"](tvm.runtime.tensor(x.reshape(-1, 64) if len(rows) == 1 else x)).numpy()
        )
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()


@pytest.mark.longer("whole networks; smaller ones stay")
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_a_training_step_has_no_kernel_without_schedule(layout: str, registered: None) -> None:
    step = converted(step_module(from_onnx("resnet50", batch=2)), layout)
    with TARGET:
        step = tvm.transform.Sequential([*fused_kernels(), parallel_kernels()])(step)
    kernels = {v.name_hint: f for v, f in step.functions_items() if isinstance(f, tirx.PrimFunc)}
    assert len(kernels) > 250
    left = [name for name, f in kernels.items() if not f.attrs.get("tirx.is_scheduled")]
    assert not left


def running_maximum(x: relax.Expr) -> relax.Expr:
    """The largest of a row's first elements, each compared and then chosen."""
    held = R.strided_slice(x, [1], [0], [1])
    for i in range(1, 11):
        following = R.strided_slice(x, [1], [i], [i + 1])
        held = R.where(R.greater(following, held), following, held)
    return held


def test_what_reads_twice_is_not_inlined_without_end() -> None:
    mod = module((300, 16), running_maximum)
    with TARGET:
        kernels = tvm.transform.Sequential([*fused_kernels(), parallel_kernels()])(mod)
    # Inlined throughout, its last block would choose a thousand times.
    assert kernels.script().count("T.Select(") < 100
    x = np.random.default_rng(0).standard_normal((300, 16)).astype("float32")
    assert np.array_equal(results(mod, x, cpu_pipeline()), x[:, :11].max(1, keepdims=True))
