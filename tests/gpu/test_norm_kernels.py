"""Batch normalization's kernels on a GPU, over random shapes, against PyTorch in float64."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from byoc_cudnn.norm import workspace_bytes
from relay_wgrad.dtypes import FLOATS
from tests.support.gpu import norm_runner
from tests.support.gpu.norm_runner import HOW, Operands, load, wrong_results

pytestmark = pytest.mark.gpu

ACTIVATIONS = ("", "relu", "relu6", "silu")


@pytest.fixture(autouse=True, params=["0", "1"], ids=["apart", "together"])
def _launches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors by three launches, and by one."""
    monkeypatch.setenv("RELAY_WGRAD_TOGETHER", request.param)


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(norm_runner.all_calls(), tmp_path_factory.mktemp("norm"))


def shapes(seed: int, count: int) -> list[tuple[int, ...]]:
    """Random ones; of them odd channels, one pixel, one channel, channels of several blocks."""
    rng = random.Random(seed)
    fixed = [(1, 1, 1, 8), (2, 1, 1, 1), (1, 3, 1, 7), (4, 7, 7, 2048), (3, 5, 5, 260), (2, 64)]
    fixed += [(33, 56, 57, 128), (256, 7, 7, 512)]  # one that does not fit into shared memory
    drawn = []
    for _ in range(count):
        c = rng.choice([rng.randint(1, 40), 8 * rng.randint(1, 40), 64, 96, 1024, 4104])
        side = rng.randint(1, 30 if c < 500 else 9)
        drawn.append((rng.randint(1, 9), side, rng.randint(1, side), c))
    return fixed + drawn


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("how", HOW, ids=str)
def test_random_shapes(
    functions: Any, dtype: str, activation: str, how: tuple[bool, bool, bool]
) -> None:
    residual, bits, summed = how
    if (bits or summed) and activation not in ("relu", "relu6"):
        pytest.skip("bits and summed gradients are of relu and relu6")
    wrong = []
    for i, shape in enumerate(shapes(len(activation) + 10 * residual + bits, 6)):
        t = Operands(shape, dtype, activation, residual, seed=i, bits=bits, summed=summed)
        wrong += [f"{shape}: {line}" for line in wrong_results(functions, t)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_large_mean_leaves_the_variance_right(functions: Any, dtype: str) -> None:
    t = Operands((8, 56, 56, 64), dtype, "relu", False, mean=200.0)
    assert not wrong_results(functions, t)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("activation", ["relu", "relu6"])
def test_the_recomputed_mask_is_that_of_what_is_stored(
    functions: Any, dtype: str, activation: str
) -> None:
    """Sums of ones are exact: dbeta counts the elements that pass.  Small ones round to zero."""
    t = Operands((64, 8, 8, 128), dtype, activation, False)
    t.gamma.copy_(torch.logspace(-9, 1, 128).flip(0))
    t.beta.zero_()
    t.dy.fill_(1)
    t.run(functions)
    y = t.y.float().flatten(0, -2)
    off = y <= 0 if activation == "relu" else (y <= 0) | (y >= 6)
    assert torch.equal(t.dbeta, (~off).sum(0).float())
    if dtype == "float16":
        assert (y == 0).float().mean() > 0.55  # some positive values are stored as zero


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("residual", [False, True])
def test_special_values_stay_in_their_channel(functions: Any, value: float, residual: bool) -> None:
    t = Operands((4, 9, 9, 32), "float16", "relu", residual)
    t.x[1, 2, 3, 5] = value
    t.run(functions)
    want = t.wanted()
    for name in ("y", "dx", "mean", "rstd", "dgamma"):
        got = t.results[name].double().flatten(0, -2) if name in ("y", "dx") else t.results[name]
        bad = ~torch.isfinite(got)
        bad = bad.reshape(-1, 32).any(0)
        assert bad.nonzero().flatten().tolist() == [5], name
        assert torch.isnan(want["rstd"][5])
    assert torch.isnan(t.results["y"][..., 5]).all()
    other = Operands((4, 9, 9, 32), "float16", "relu", residual)
    other.dy[0, 0, 0, 7] = value
    other.run(functions)
    assert not torch.isfinite(other.dbeta[7])
    assert torch.isfinite(other.dbeta[:7]).all()


@pytest.mark.parametrize("bits", [False, True])
def test_a_residual_of_nan_passes_through_relu(functions: Any, bits: bool) -> None:
    t = Operands((2, 3, 3, 16), "bfloat16", "relu", True, bits=bits)
    assert t.residual is not None
    t.residual[0, 0, 0, 0] = float("nan")
    t.run(functions)
    assert torch.isnan(t.y[0, 0, 0, 0])
    assert t.results["dresidual"][0, 0, 0, 0] == t.dy[0, 0, 0, 0]  # NaN <= 0 is false, as in torch


@pytest.mark.parametrize("dtype", FLOATS)
def test_twice_the_same_bits(functions: Any, dtype: str) -> None:
    for shape in ((16, 28, 28, 128), (3, 5, 7, 13), (33, 56, 57, 128)):
        for residual, bits in ((False, False), (True, False), (True, True)):
            t = Operands(shape, dtype, "relu", residual, bits=bits)
            t.run(functions)
            first = {name: value.clone() for name, value in t.results.items()}
            t.poison()
            t.run(functions)
            for name, value in t.results.items():
                same = first[name].view(torch.uint8), value.view(torch.uint8)
                assert torch.equal(*same), name


def test_what_does_not_lie_at_16_bytes(functions: Any) -> None:
    t = Operands((4, 6, 6, 64), "bfloat16", "relu", True)
    store = torch.empty(t.x.numel() + 1, device="cuda", dtype=t.x.dtype)
    moved = store[1:].view(t.x.shape)
    moved.copy_(t.x)
    t.x = moved
    assert not wrong_results(functions, t)


def test_a_workspace_that_is_given(functions: Any) -> None:
    t = Operands((32, 14, 14, 256), "bfloat16", "relu", False)
    t.run(functions)
    first = t.y.clone(), t.dx.clone()
    for size in (workspace_bytes(256, "bfloat16"), 12 * 256):
        block = torch.full((size,), 255, device="cuda", dtype=torch.uint8)
        t.poison()
        t.run(functions, block)
        assert not wrong_results(None, t)
        if size > 10_000:
            assert torch.equal(t.y, first[0])
            assert torch.equal(t.dx, first[1])
    with pytest.raises(ValueError, match="the workspace must have 3072 bytes"):
        t.run(functions, torch.empty(16, device="cuda", dtype=torch.uint8))


def test_in_a_captured_graph(functions: Any) -> None:
    t = Operands((8, 14, 14, 64), "float16", "relu", True)
    t.run(functions)
    torch.cuda.synchronize()
    first = {name: value.clone() for name, value in t.results.items()}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        t.run(functions)
    t.poison()
    graph.replay()
    torch.cuda.synchronize()
    for name, value in t.results.items():
        assert torch.equal(value, first[name]), name


def test_calls_are_checked(functions: Any) -> None:
    t = Operands((2, 3, 3, 16), "float16", "relu", False)
    call = t.call("forward")
    args = t.args(call)
    function = functions[call.symbol]
    with pytest.raises(TypeError, match="expected 10 tensors, or one more as workspace, got 3"):
        function(*args[:3])
    with pytest.raises(TypeError, match="gamma must be float32, got float16"):
        function(args[0], args[1].half(), *args[2:])
    with pytest.raises(ValueError, match="beta must have one axis, of the 16 channels"):
        function(*args[:2], args[2][:8], *args[3:])
    with pytest.raises(ValueError, match="y has another shape than x"):
        function(*args[:5], args[5][:1], *args[6:])
    with pytest.raises(ValueError, match="no elements"):
        function(*[a[:0] if a.ndim > 1 else a for a in args])


def test_what_has_run_is_told(functions: Any) -> None:
    Operands((2, 8), "float32", "silu", False).run(functions)
    lines = str(functions["relay_wgrad_norm_plans"]()).splitlines()
    assert "batch_norm backward float32 silu\trelay_wgrad_norm_backward_float32_silu\t0\t0" in lines
