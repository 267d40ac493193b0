"""Rows that are normalized in float32 and written, or whose gradient is read, as halves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from torch import nn
from tvm import relax

from byoc_cudnn.norm import NormCall, check
from byoc_cudnn.norm.codegen import NORMS
from byoc_cudnn.norm.lower import lower_norms
from relay_wgrad.dtypes import numpy_dtype
from relay_wgrad.frontend import from_torch
from relay_wgrad.graph.walk import bindings_of
from relay_wgrad.ir import op_name
from relay_wgrad.training.step import ADJOINT, converted, step_module
from tests.support import cuda_emulated
from tests.support.batched_products import apart
from tests.support.compiled import step_results
from tests.support.cuda_emulated import DTYPES, aligned
from tests.support.norm_groups import expected
from tests.support.norm_tensors import ROWS, SUMS, Tensors

HOW: dict[str, Any] = {"grouped": True, "by_row": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.mark.parametrize("rounded", ["float16", "bfloat16"])
@pytest.mark.parametrize(("rows", "channels"), [(9, 12), (35, 13), (3, 772)])
def test_kernels(folder: Path, rounded: str, rows: int, channels: int) -> None:
    """Whole packs, rows that have none, and several warps of a row; against float64."""
    t = Tensors((rows, 1, channels), "float32", groups=1)
    for direction in ("forward", "backward"):
        call = NormCall("f", direction, "float32", rounded=rounded, **HOW)
        assert check(call)
        t.ready(call)
        name = "y" if call.forward else "dy"
        t[name] = aligned(t[name].astype(DTYPES[rounded]))
        cuda_emulated.norm(folder, call, t, True)
    given = {n: torch.tensor(t[n].astype("float64")) for n in ("x", "gamma", "beta")}
    others = (torch.tensor(t[n].astype("float64")) for n in ("dy", "y"))
    want = {n: v.numpy() for n, v in expected(given, *others, 1, "").items()}
    for name in ("y", "dx", "mean", "rstd", "dgamma", "dbeta"):
        limit = ROWS[rounded] if name == "y" else 4 * SUMS["float32"]
        assert apart(t[name], want[name].reshape(t[name].shape)) < 2 * limit, name
    assert t["y"].dtype == DTYPES[rounded]


def test_names_and_refusals() -> None:
    call = NormCall("f", "forward", "float32", rounded="bfloat16", **HOW)
    assert NORMS.kernel_of(call) == "relay_wgrad_norm_forward_float32_none_rows_bfloat16"
    assert '{"layer_norm forward float32 rounded bfloat16",' in NORMS.generate([call], 90)
    assert call.overwrites == ()
    assert replace(call, direction="backward").overwrites == (("dx", "x"),)
    for bad in (replace(call, dtype="float16"), replace(call, by_row=False),
                replace(call, rounded="float64")):  # fmt: skip
        assert "rounded to" in check(bad).reason
    with pytest.raises(ValueError, match="is no kernel of normalization"):
        NORMS.source_of("relay_wgrad_norm_forward_float16_none_rows_bfloat16")


class Rows(nn.Module):
    """Layers of normalized rows; `kept`: of which one is read in float32 as well."""

    def __init__(self, kept: bool) -> None:
        super().__init__()
        self.kept = kept
        self.first, self.second, self.third = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 5)
        self.places = nn.Parameter(torch.randn(7, 12))
        self.norms = nn.ModuleList(nn.LayerNorm(12) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x) + self.places  # which is float32
        y = self.norms[0](x)
        x = x + self.second(y) * (torch.sigmoid(y * self.places) if self.kept else 1)
        return self.third(self.norms[1](x)).mean(1)


def packed(call: NormCall) -> Any:
    """The call as a function of TVM's tensors on the CPU; each result has the dtype that it has."""

    def run(*tensors: Any) -> None:
        given = dict(zip(call.operands, (t.numpy().astype("float64") for t in tensors),
                         strict=False))  # fmt: skip
        x = given["x"]
        mean = x.mean(-1) if call.forward else given["mean"]
        rstd = (x.var(-1) + call.epsilon) ** -0.5 if call.forward else given["rstd"]
        n = (x - mean[..., None]) * rstd[..., None]
        made = {"mean": mean, "rstd": rstd, "y": n * given["gamma"] + given.get("beta", 0)}
        if not call.forward:
            dy = given["dy"]
            g = dy * given["gamma"]
            inner = g - g.mean(-1, keepdims=True) - n * (g * n).mean(-1, keepdims=True)
            made = {"dx": inner * rstd[..., None], "dgamma": (dy * n).sum((0, 1)),
                    "dbeta": dy.sum((0, 1))}  # fmt: skip
        outs = tensors[len(call.operands) :]
        rounded = call.rounded or "float32"
        assert str((outs if call.forward else tensors)[0].dtype) == rounded
        for name, out in zip(call.results, outs, strict=True):
            out.copyfrom(made[name].astype(numpy_dtype(str(out.dtype))).reshape(out.shape))

    return run


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", None])
def test_a_step(dtype: str | None, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads it in float32 too keeps it so; gradients beside those of what it was."""
    torch.manual_seed(0)
    graph = from_torch(Rows(kept).train(), (torch.zeros(4, 7, 6),))
    how: dict[str, Any] = {"raise_norms": True, "wide_weight_gradients": False}
    before = converted(step_module(graph, dtype=dtype, **how), "NHWC")
    calls: list[NormCall] = []
    made = type(NORMS).generate

    def generate(self: Any, given: Any, arch: int) -> str:
        calls.extend(given)
        return made(self, given, arch)

    monkeypatch.setattr(type(NORMS), "generate", generate)
    after, _ = lower_norms(before, 90)
    relax.analysis.well_formed(after)
    for call in calls:
        tvm_ffi.register_global_func(call.symbol, packed(call), override=True)
    names = [op_name(b.value) for b in bindings_of(after[ADJOINT])]
    assert names.count("relax.call_dps_packed") == 4
    found = sorted(
        (call.direction, call.rounded)
        for b in bindings_of(after[ADJOINT])
        if op_name(b.value) == "relax.call_dps_packed"
        for call in calls
        if call.symbol == str(b.value.args[0].global_symbol)
    )
    half = dtype or ""
    wide = "" if kept else half
    assert found == sorted([("backward", wide), ("backward", half), ("forward", wide),
                            ("forward", half)])  # fmt: skip
    arguments = [np.asarray(v) for v in graph.arguments(graph.random_batch(0))]
    limit = {None: 1e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    for got, want in zip(step_results(after, arguments), step_results(before, arguments),
                         strict=True):  # fmt: skip
        assert apart(got, want.astype("float64")) < limit
    assert isinstance(after, tvm.IRModule)
