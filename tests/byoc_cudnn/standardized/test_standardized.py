"""Standardized weights become one call forward and one backward; what the kernels compute."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from torch import nn
from tvm import relax

from byoc_cudnn.standardized import STANDARDIZED, StandardizedCall, Weight, check
from byoc_cudnn.standardized.lower import lower_standardized
from relay_wgrad.frontend import from_torch
from relay_wgrad.ir import op_name
from relay_wgrad.ops.train_norm import GROUP_BACKWARD, GROUP_FORWARD
from relay_wgrad.training.step import ADJOINT, converted, step_module
from tests.support import cuda_emulated
from tests.support.compiled import step_results
from tests.support.cuda_emulated import DTYPES, aligned
from tests.support.standardized import ScaledConv, values

pytestmark = pytest.mark.usefixtures("registered")

GAINS = (0.3, 0.4, None, 1.0)
_POINTERS = ("weight", "gain", "statistics", "made", "dweight", "dgain")


def net() -> nn.Module:
    """Filters of 3x3 and of one pixel, gains with and without a factor, and one without a gain."""
    torch.manual_seed(0)
    return nn.Sequential(
        ScaledConv(3, 8, 3, GAINS[0]), nn.ReLU(), ScaledConv(8, 12, 1, GAINS[1]), nn.ReLU(),
        ScaledConv(12, 6, 3, GAINS[2]), nn.ReLU(), ScaledConv(6, 8, 3, GAINS[3], groups=2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip


def step(module: nn.Module, dtype: str | None) -> tvm.IRModule:
    graph = from_torch(module.train(), (torch.zeros(2, 3, 6, 6),))
    made = step_module(graph, dtype=dtype, raise_norms=True, wide_weight_gradients=False)
    return converted(made, "NHWC")


def calls_of(mod: tvm.IRModule) -> list[str]:
    return [op_name(b.value) for b in mod[ADJOINT].body.blocks[0].bindings]


@pytest.mark.parametrize("dtype", ["float16", None])
def test_all_weights_are_one_call_and_their_gradients_another(dtype: str | None) -> None:
    mod, entries = lower_standardized(step(net(), dtype), 90)
    relax.analysis.well_formed(mod)
    assert [e.op for e in entries] == ["standardized"] * 2
    assert not {GROUP_FORWARD, GROUP_BACKWARD}.intersection(calls_of(mod))
    (module,) = mod.attrs["external_mods"]
    kernels = [name for _, name in STANDARDIZED.kernels_of(module.inspect_source())]
    assert kernels == [
        f"relay_wgrad_standardized_{way}_{dtype or 'float32'}" for way in ("backward", "forward")
    ]


@pytest.mark.longer("a whole step; its calls and kernels stay")
def test_the_calls_compute_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[StandardizedCall] = []
    made = STANDARDIZED.__class__.generate

    def generate(self: Any, given: Sequence[Any], arch: int) -> str:
        calls.extend(given)
        return made(self, given, arch)

    monkeypatch.setattr(type(STANDARDIZED), "generate", generate)
    before = step(net(), None)
    after, _ = lower_standardized(before, 90)
    assert [w.factor for w in calls[0].weights] == [pytest.approx(g or 1.0) for g in GAINS]
    for call in calls:
        tvm_ffi.register_global_func(call.symbol, _packed(call), override=True)
    rng = np.random.default_rng(0)
    given = [
        rng.integers(0, 3, 2) if str(p.ty.dtype).startswith("int") else
        rng.standard_normal([int(n) for n in p.ty.shape.values]).astype("float32")
        for p in after[ADJOINT].params
    ]  # fmt: skip
    got, want = (step_results(mod, given) for mod in (after, before))
    assert len(got) == len(want) > 12
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert np.linalg.norm(a - b) < 2e-5 * max(np.linalg.norm(b), 1e-2), i


def _packed(call: StandardizedCall) -> Any:
    def run(*tensors: Any) -> None:
        count, gained = len(call.weights), sum(w.gained for w in call.weights)
        given = count + gained if call.direction == "forward" else 3 * count + gained
        results = values(call, [t.numpy() for t in tensors[:given]])
        for out, value in zip(tensors[given:], results, strict=True):
            tvm.runtime.tensor(value.reshape(out.shape)).copyto(out)

    return run


class Other(nn.Module):
    """A weight whose standardized filters something else needs too, or that is no parameter."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.conv = what, ScaledConv(3, 4, 3, 0.5)

    def forward(self, x: Any) -> Any:
        rows = self.conv.weight.reshape(1, 4, -1)
        rows = rows.abs() if self.what == "made of the weight" else rows
        w = nn.functional.batch_norm(rows, None, None, training=True, momentum=0.0)
        y = nn.functional.conv2d(x, w.reshape(4, 3, 3, 3)).mean((2, 3))
        return y * w.sum() if self.what == "another use" else y


@pytest.mark.parametrize("what", ["another use", "made of the weight"])
def test_what_is_something_else_stays(what: str) -> None:
    mod, entries = lower_standardized(step(Other(what), "float16"), 90)
    assert entries == ()
    assert GROUP_FORWARD in calls_of(mod)


def test_what_no_kernel_is_for_has_a_reason() -> None:
    good = Weight(4, 3, 9)
    assert check(StandardizedCall("f", "forward", "float16", (good,)))
    for call, reason in (
        (StandardizedCall("f", "sideways", "float16", (good,)), "direction 'sideways'"),
        (StandardizedCall("f", "forward", "float64", (good,)), "dtype 'float64'"),
        (StandardizedCall("f-", "forward", "float16", (good,)), "no identifier"),
        (StandardizedCall("f", "forward", "float16", ()), "no weight"),
        (StandardizedCall("f", "forward", "float16", (Weight(1 << 20, 1 << 11, 1),)), "elements"),
        (StandardizedCall("f", "forward", "float16", (Weight(4, 3, 9, np.inf),)), "not finite"),
        (StandardizedCall("f", "forward", "float16", (good,), -1.0), "below zero"),
    ):
        assert reason in check(call).reason


# ---- kernels, on a device that is the CPU --------------------------------------------------------

WEIGHTS = (
    Weight(5, 7, 9, 0.3), Weight(1, 2, 1), Weight(3, 300, 1, 2.0), Weight(4, 3, 49, 1.0, False),
    Weight(130, 2, 2, -0.5),
)  # fmt: skip


class _Weight(ctypes.Structure):
    """`RelayWgradStandardizedWeight` of standardized_call.h."""

    _fields_ = (
        *((n, ctypes.c_void_p) for n in _POINTERS),
        *((n, ctypes.c_int64) for n in ("filters", "channels", "taps")), ("factor", ctypes.c_float),
    )  # fmt: skip


class _Call(ctypes.Structure):
    _fields_ = (
        ("weights", ctypes.POINTER(_Weight)), ("count", ctypes.c_int64), ("epsilon", ctypes.c_float)
    )  # fmt: skip


def emulated(folder: Path, call: StandardizedCall, t: dict[str, list[Any]]) -> None:
    table = (_Weight * len(call.weights))()
    for i, one in enumerate(call.weights):
        for name, arrays in t.items():
            setattr(table[i], name, None if arrays[i] is None else arrays[i].ctypes.data)
        table[i].filters, table[i].channels, table[i].taps = one.filters, one.channels, one.taps
        table[i].factor = one.factor
    packed = _Call(table, len(call.weights), call.epsilon)
    own = cuda_emulated.loaded(folder, STANDARDIZED.kernel_of(call))
    assert getattr(own, STANDARDIZED.kernel_of(call))(ctypes.byref(packed), None) == 0


@pytest.mark.longer_cases("bfloat16", "float32", why="128 threads emulated for each filter")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_kernels(tmp_path: Path, dtype: str) -> None:
    weights = WEIGHTS + (Weight(2, 3, 2, 0.7),) * 40  # more than a launch's table holds
    rng = np.random.default_rng(0)

    def random(count: int, kind: Any = np.float32) -> np.ndarray:
        return aligned((1.5 * rng.standard_normal(count) + 0.3).astype(kind))

    def empty(count: int, kind: Any = np.float32) -> np.ndarray:
        return aligned(np.full(count, np.nan, kind))

    half, sizes = DTYPES[dtype], [w.filters * w.row for w in weights]
    t: dict[str, list[Any]] = {
        "weight": [random(n) for n in sizes],
        "gain": [random(w.filters) if w.gained else None for w in weights],
        "statistics": [empty(2 * w.filters) for w in weights],
        "made": [empty(n, half) for n in sizes],
    }
    call = StandardizedCall("f", "forward", dtype, weights, 1e-6)
    emulated(tmp_path, call, t)
    gains = [g for g in t["gain"] if g is not None]
    compared(values(call, [*t["weight"], *gains]), [*t["made"], *t["statistics"]], dtype)
    t["made"] = [random(n, half) for n in sizes]
    t["dweight"] = [empty(n) for n in sizes]
    t["dgain"] = [empty(w.filters) if w.gained else None for w in weights]
    call = StandardizedCall("f", "backward", dtype, weights, 1e-6)
    emulated(tmp_path, call, t)
    given = [*t["made"], *t["weight"], *gains, *t["statistics"]]
    got = [*t["dweight"], *(d for d in t["dgain"] if d is not None)]
    compared(values(call, given), got, "float32")


def compared(want: Sequence[np.ndarray], got: Sequence[np.ndarray], dtype: str) -> None:
    limit = {"float16": 5e-4, "bfloat16": 4e-3, "float32": 2e-6}[dtype]
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        error = np.linalg.norm(a.astype("float64") - b.astype("float64"))
        # A filter of two elements has no gradient but rounding.
        assert error <= 2 * limit * max(np.linalg.norm(b.astype("float64")), 1.0), i


def test_nan_stays_in_its_filter(tmp_path: Path) -> None:
    one = Weight(5, 7, 9, 0.3)
    w = aligned(np.random.default_rng(0).standard_normal((5, 63)).astype("float32"))
    w[2, 17] = np.nan
    made, told = aligned(np.zeros((5, 63), "float16")), aligned(np.zeros((2, 5), "float32"))
    t = {"weight": [w], "gain": [aligned(np.ones(5, "float32"))], "statistics": [told],
         "made": [made]}  # fmt: skip
    emulated(tmp_path, StandardizedCall("f", "forward", "float16", (one,)), t)
    assert np.isnan(made[2]).all()
    assert np.isfinite(np.delete(made, 2, 0)).all()
