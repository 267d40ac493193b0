"""Kernels that make a tensor and sum it: which calls become one, and both results' numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.transform import DeadCodeElimination
from tvm.target import Target

from relay_wgrad.ir import op_name
from relay_wgrad.pipeline import made_sums
from relay_wgrad.pipeline.cuda import cuda_pipeline
from relay_wgrad.pipeline.fused_kernels import fused_kernels
from relay_wgrad.pipeline.made_sums import MadeSum, MadeSums, parts_of
from tests.support.cuda_source import cuda_source, own_elements, read_back
from tests.support.fast import FAST
from tests.support.made_sums import arrays, gradient, made, operands, wide
from tests.support.partition_cases import module
from tests.support.schedules import on_the_host

TARGET = Target(
    {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024, "thread_warp_size": 32,
     "max_shared_memory_per_block": 49152}, host="llvm",
)  # fmt: skip
SHAPE = (4, 14, 14, 64)
pytestmark = pytest.mark.usefixtures("registered")


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made_sums, "SMALL", 0)


def fused(given: dict[str, Any], body: Any) -> tvm.IRModule:
    with TARGET:
        return tvm.transform.Sequential(fused_kernels())(module(given, body))


def calls(mod: tvm.IRModule) -> list[Any]:
    values = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    return [value for value in values if op_name(value) == "relax.call_tir"]


def kernels(mod: tvm.IRModule) -> dict[str, Any]:
    """Those that are called."""
    return {str(call.args[0].name_hint): mod[call.args[0]] for call in calls(mod)}


def run(mod: tvm.IRModule, values: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What a fused module computes on this CPU, its kernels without schedules of a device."""
    names = [str(p.name) for p in mod["main"].params]
    vm = relax.VirtualMachine(tvm.compile(mod, target=FAST), tvm.cpu())
    found = vm["main"](*(tvm.runtime.tensor(values[name]) for name in names))
    return [np.asarray(t.numpy()) for t in found]


def both(
    schedule: Any, given: list[np.ndarray], shape: tuple[int, ...], axes: list[int]
) -> list[np.ndarray]:
    """The tensor and its sums by a scheduled kernel, into memory full of NaN."""
    func = schedule.mod["main"].with_attr("global_symbol", "main")
    library = tvm.compile(tvm.IRModule({"main": func}), target=FAST)
    kept = [1 if i in axes else n for i, n in enumerate(shape)]
    results = (np.full(shape, np.nan, np.float16), np.full(kept, np.nan, np.float32))
    out = [tvm.runtime.tensor(result) for result in results]
    library["main"](*map(tvm.runtime.tensor, given), *out)
    return [result.numpy() for result in out]


def distance(got: np.ndarray, want: np.ndarray) -> float:
    apart = np.linalg.norm(got.astype("float64") - want) / np.linalg.norm(want)
    return float(apart)


@pytest.mark.share(5)
@pytest.mark.parametrize(
    "shape",
    [
        SHAPE,
        (3, 7, 5, 24),
        (1, 9, 9, 16),
        (2, 1, 32, 16),
        (64, 7, 7, 8),
        (2, 30, 31, 136),
        (4, 1, 197, 64),
    ],
)
@pytest.mark.parametrize("axes", [[0, 1, 2], [1, 2]])
@pytest.mark.parametrize("of_product", [False, True])
def test_the_numbers(shape: tuple[int, ...], axes: list[int], of_product: bool) -> None:
    given = operands(shape, "float16")
    mod = fused(given, gradient(axes, of_product))
    ((name, func),) = kernels(mod).items()
    assert name.endswith("_and_sum")
    schedule = on_the_host(MadeSum).apply(func, TARGET, False)
    assert "T.vectorized(T.int64(8))" in schedule.mod.script()
    values = arrays(given)
    (call,) = calls(mod)
    t, u = both(schedule, [values[str(arg.name)] for arg in call.args[1].fields], shape, axes)
    g, x, s = (values[n].astype("float64") for n in "gxs")
    assert distance(t, g / (1 + np.exp(-x)) * s) < 3e-4
    stored = t.astype("float64") * (x if of_product else 1)
    total = stored.sum(tuple(axes), keepdims=True)
    apart = np.linalg.norm(u - total)
    assert apart <= 1e-6 * np.linalg.norm(np.abs(stored).sum(tuple(axes)))


@pytest.mark.parametrize("axes", [[0, 1, 2], [1, 2]])
@pytest.mark.parametrize("side", [0, 7])
def test_operands_of_another_shape(side: int, axes: list[int]) -> None:
    """Pixels as one axis, or windows of an image, as attention gives them back: a thread's own
    arrays are some packs.  They were the whole tensor, which no GPU launches."""
    n, h, w, c = shape = (8 if side else 64, 28, 28, 128)
    windows = (n, h // 7, w // 7, 7, 7, c)

    def body(emit: Any, g: Any, x: Any, s: Any) -> list[Any]:
        if side:
            split = emit(relax.op.reshape(x, windows))
            x = emit(relax.op.permute_dims(split, [0, 1, 3, 2, 4, 5]))
        t = emit(relax.op.add(emit(relax.op.reshape(x, shape)), g))
        return [t, emit(relax.op.sum(wide(emit, t), axes, keepdims=True))]

    given = operands(shape, "float16") | {"x": ((n * h * w, 1, c), "float16")}
    mod = fused(given, body)
    ((name, func),) = kernels(mod).items()
    assert name.endswith("_and_sum")
    built = tvm.compile(module(given, body), TARGET, relax_pipeline=cuda_pipeline())
    assert own_elements(cuda_source(built.mod)) <= 1024
    values = arrays(given)
    schedule = on_the_host(MadeSum).apply(func, TARGET, False)
    (call,) = calls(mod)
    t, u = both(schedule, [values[str(arg.name)] for arg in call.args[1].fields], shape, axes)
    x = values["x"]
    x = x.reshape(windows).transpose(0, 1, 3, 2, 4, 5) if side else x
    want = x.reshape(shape) + values["g"]
    assert np.array_equal(t, want)
    total = want.astype("float64").sum(tuple(axes), keepdims=True)
    assert distance(u, total) < 1e-5


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_calls_give_what_they_gave(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several makers and sums; one maker has two sums, of which one stays."""

    def body(emit: Any, g: Any, x: Any, s: Any) -> Any:
        one = made(emit, g, x, s)
        two = made(emit, x, g, s)
        of_one = emit(relax.op.sum(wide(emit, one), [0, 1, 2]))
        each = emit(relax.op.sum(wide(emit, one), [1, 2]))
        both = emit(relax.op.multiply(wide(emit, two), wide(emit, one)))
        of_both = emit(relax.op.sum(both, [1, 2], keepdims=True))
        return [one, two, of_one, each, of_both]

    given = operands(SHAPE, dtype)
    with monkeypatch.context() as without:
        without.setattr(MadeSum, "scheduled", lambda self, sch, infos: None)
        plain = fused(given, body)
    joined = fused(given, body)
    assert len(calls(joined)) < len(calls(plain))
    values = arrays(given)
    for got, want in zip(run(joined, values), run(plain, values), strict=True):
        # Sums of bfloat16 that a CPU does not round on the way.
        assert distance(got, want.astype("float64")) < (4e-3 if dtype == "bfloat16" else 2e-6)


def test_what_is_not_a_number_stays_one() -> None:
    given = operands(SHAPE, "float16")
    values = arrays(given)
    values["g"][2, 3, 4, 5] = np.nan
    t, u = run(fused(given, gradient([0, 1, 2], False)), values)
    assert np.argwhere(np.isnan(t)).tolist() == [[2, 3, 4, 5]]
    assert np.argwhere(np.isnan(u)).tolist() == [[0, 0, 0, 5]]


def _of_later(emit: Any, g: Any, x: Any, s: Any) -> Any:
    """The sum is of a product with what is only there after the maker."""
    t = made(emit, g, x, s)
    joined = emit(relax.op.nn.softmax(t, 3))
    product = emit(relax.op.multiply(wide(emit, t), wide(emit, joined)))
    return [t, joined, emit(relax.op.sum(product, [0, 1, 2]))]


def _of_a_view(emit: Any, g: Any, x: Any, s: Any) -> Any:
    """What is only another shape is no kernel."""
    t = emit(relax.op.reshape(g, (SHAPE[0], SHAPE[1] * SHAPE[2], SHAPE[3])))
    return [t, x, s, emit(relax.op.sum(wide(emit, t), [0, 1]))]


def _of_channels(emit: Any, g: Any, x: Any, s: Any) -> Any:
    t = made(emit, g, x, s)
    return [t, emit(relax.op.sum(wide(emit, t), [3]))]


@pytest.mark.parametrize("body", [_of_later, _of_a_view, _of_channels])
def test_other_sums_stay(body: Any) -> None:
    names = kernels(fused(operands(SHAPE, "float16"), body))
    assert not any(name.endswith("_and_sum") for name in names)


def test_rows_that_are_no_packs_stay() -> None:
    found = kernels(fused(operands((4, 14, 14, 12), "float16"), gradient([0, 1, 2], False)))
    assert len(found) == 2


def test_sizes_that_the_run_knows_stay() -> None:
    n = tvm.tirx.Var("n", "int64")
    shape = (n, *SHAPE[1:])
    given = {"g": (shape, "float16"), "x": (shape, "float16"), "s": ((n, 1, 1, 64), "float32")}
    assert not any("_and_sum" in name for name in kernels(fused(given, gradient([1, 2], True))))


def test_small_tensors_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made_sums, "SMALL", 2 * math.prod(SHAPE) + 1)
    assert len(kernels(fused(operands(SHAPE, "float16"), gradient([1, 2], False)))) == 2


def test_other_targets_stay() -> None:
    mod = module(operands(SHAPE, "float16"), gradient([1, 2], False))
    with Target("llvm"):
        assert MadeSums()(mod).same_as(mod)


@pytest.mark.parametrize("pixels", [(64, 14, 14), (64, 197), (12, 1009), (49,), (7, 1, 3), (1,)])
@pytest.mark.parametrize("channels", [8, 1536])
def test_parts(pixels: tuple[int, ...], channels: int) -> None:
    parts, total = parts_of(pixels, channels, 8), math.prod(pixels)
    assert total % parts.number == 0
    if parts.axis is not None:
        assert pixels[parts.axis] % parts.pieces == 0
        assert parts.number == math.prod(pixels[: parts.axis]) * parts.pieces
    if total >= 64 * 14 * 14:
        assert 1 / 3 <= parts.number / min(total / 8, 2**16 * 8 / channels) <= 3


def test_parts_of_a_prime_number() -> None:
    """Of a transformer's 197 tokens: not all of an image's, which were too few parts."""
    assert parts_of((64, 197), 1536, 8).number == 394
    assert parts_of((64, 14, 14), 384, 8).axis is not None


@pytest.mark.parametrize("seed", range(6))
def test_any_sizes_have_a_schedule(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of parts of one axis and of all axes as one."""
    monkeypatch.setattr(made_sums, "SMALL", 1)
    rng = np.random.default_rng(seed)
    shape = (*(int(n) for n in rng.choice([7, 13, 32, 47], 3)), 8 * int(rng.integers(1, 40)))
    for axes in ([0, 1, 2], [1, 2]):
        (name,) = kernels(fused(operands(shape, "float16"), gradient(axes, bool(seed % 2))))
        assert name.endswith("_and_sum")


def test_the_code_for_a_device() -> None:
    """Loads and stores of 16 bytes, and nothing is read back that this kernel has written."""
    body = gradient([0, 1, 2], False)
    built = tvm.compile(
        module(operands((64, 14, 14, 384), "float16"), body), target=TARGET,
        relax_pipeline=tvm.transform.Sequential([cuda_pipeline(), DeadCodeElimination()]),
    )  # fmt: skip
    code = cuda_source(built.mod)
    assert "_and_sum_kernel_1(" in code
    assert "uint4" in code
    assert not read_back(code)
