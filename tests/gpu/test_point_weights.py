"""Weight gradients of one pixel on a GPU, against float64, and in a step beside cuDNN's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm

import byoc_cudnn
from byoc_cudnn.point_weights import POINT_WEIGHTS, PointWeightsCall, Product
from relay_wgrad.frontend import from_torch
from relay_wgrad.training.step import ADJOINT, converted, step_module
from tests.support.gpu.norm_runner import load_source
from tests.support.gpu.runner import choose_compiler
from tests.support.point_weights import Gated, values

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]

PRODUCTS = (
    Product(64, 384, 1536, True), Product(128, 2048, 128, True), Product(7, 13, 9),
    Product(1, 1, 1, True), Product(33, 130, 65, True), Product(64, 10, 960), Product(5, 64, 64),
) * 9  # fmt: skip
LIMITS = {"float16": 6e-4, "bfloat16": 5e-3, "float32": 2e-6}  # one rounding of one element


@pytest.fixture(autouse=True, scope="module")
def _compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    choose_compiler()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAY_WGRAD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize("dtype", list(LIMITS))
def test_one_call(tmp_path: Path, dtype: str) -> None:
    """More weights than a launch's table holds; results full of NaN before; the same bits twice."""
    call = PointWeightsCall("f", dtype, PRODUCTS)
    function = load_source(POINT_WEIGHTS.generate, POINT_WEIGHTS.inputs, [call], tmp_path)["f"]
    generator = torch.Generator("cuda").manual_seed(0)
    kind = getattr(torch, dtype)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", generator=generator).to(kind)

    given = [*(random(p.n, p.k) for p in PRODUCTS), *(random(p.n, p.c) for p in PRODUCTS)]
    twice = []
    for _ in range(2):
        out = [torch.full((p.k, p.c), torch.nan, device="cuda", dtype=kind) for p in PRODUCTS]
        out += [torch.full((p.k,), torch.nan, device="cuda") for p in PRODUCTS if p.biased]
        function(*given, *out)
        twice.append(out)
    assert all(torch.equal(a, b) for a, b in zip(*twice, strict=True))
    want = values(call, [t.double().cpu().numpy() for t in given])
    for i, (a, b) in enumerate(zip(twice[0], want, strict=True)):
        apart = np.linalg.norm(a.double().cpu().numpy() - b)
        assert apart <= LIMITS[dtype] * np.linalg.norm(b), i


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_in_a_step(dtype: str) -> None:
    """Beside the same step with all of it by cuDNN and TVM."""
    graph = from_torch(Gated().train(), (torch.zeros(16, 3, 20, 20),))
    made = step_module(graph, dtype=dtype, raise_norms=True, wide_weight_gradients=False)
    mod, _ = byoc_cudnn.partition(converted(made, "NHWC"), ("cudnn",), products=True)
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(0, 3, 16) if str(p.ty.dtype).startswith("int") else
        0.2 * rng.standard_normal([int(n) for n in p.ty.shape.values]).astype("float32")
        for p in mod[ADJOINT].params
    ]  # fmt: skip
    device, found = tvm.cuda(0), []
    for direct in (True, False):
        library = byoc_cudnn.build(mod, direct=direct)
        ops = [entry.op for entry in library.direct]
        assert ("point_weights" in ops) == direct
        args = [tvm.runtime.tensor(np.asarray(a), device) for a in arrays]
        outputs, gradients = library.virtual_machine(device)[ADJOINT](*args)
        found.append([t.numpy().astype("float64") for t in (*outputs, *gradients)])
    for i, (a, b) in enumerate(zip(*found, strict=True)):
        limit = 2e-2 if dtype == "bfloat16" else 4e-3
        assert np.linalg.norm(a - b) <= limit * max(np.linalg.norm(b), 1e-4), i
