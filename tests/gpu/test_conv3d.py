"""Convolutions of three dimensions through cuDNN on a device, against PyTorch in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from tvm import relax

import byoc_cudnn
import relay_wgrad
from byoc_cudnn.backends.cudnn.check import VOLUME_LAYOUTS, check
from relay_wgrad.dtypes import MIXED
from relay_wgrad.frontend import from_torch
from relay_wgrad.problem import ConvKind, ConvProblem, symmetric
from relay_wgrad.training import Trainer
from relay_wgrad.training.options import Options
from relay_wgrad.transform import ConvertLayout, grad
from tests.support.gpu.cudnn_runner import (
    destination,
    kind_problems,
    library_tolerance,
    load,
    operands_on_device,
    regions_of,
    to_numpy,
)
from tests.support.gpu.partitioned import wrong_partitioned
from tests.support.gpu.runner import choose_compiler
from tests.support.problems import random_operands, random_problem, relative_error, torch_reference
from tests.support.torch.volume_cases import Small

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered", "poisoned_workspaces")]

SEED = 33
# What networks have, beside the random ones: many channels, a stem, depthwise, taps along one axis.
CORNERS = (
    "{} n=2 c=32 d=8 h=10 w=12 k=64 t=3 r=3 s=3 pad=1,1,1,1,1,1",
    "{} n=1 c=64 d=9 h=9 w=9 k=64 t=3 r=3 s=3 stride=2,2,2 pad=1,1,1,1,1,1",
    "{} n=1 c=1 d=16 h=16 w=16 k=32 t=3 r=3 s=3 pad=1,1,1,1,1,1",
    "{} n=2 c=16 d=6 h=7 w=8 k=16 t=3 r=3 s=3 pad=1,1,1,1,1,1 groups=16",
    "{} n=2 c=32 d=8 h=6 w=6 k=32 t=3 r=1 s=1 pad=1,0,0,1,0,0",
    "{} n=2 c=24 d=8 h=6 w=6 k=40 t=2 r=2 s=2 stride=2,2,2",
    "{} n=1 c=16 d=9 h=9 w=9 k=16 t=3 r=3 s=3 pad=2,2,2,2,2,2 dil=2,2,2 groups=2",
)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_compiler()
    monkeypatch.setenv("RELAY_WGRAD_CACHE", str(tmp_path / "cache"))


def problems(kind: ConvKind, count: int) -> list[ConvProblem]:
    rng = np.random.default_rng((SEED, list(ConvKind).index(kind)))
    drawn = kind_problems(
        rng, kind, count, random_problem, dtypes=MIXED, layouts=VOLUME_LAYOUTS, mixed=False, rank=3
    )
    for line in CORNERS:
        for layout in VOLUME_LAYOUTS:
            for dtype in ("f16", "bf16", "f32"):
                text = f"{line} layout={'/'.join(layout)} dtype={dtype}/{dtype}/{dtype}"
                drawn.append(ConvProblem.parse(text.format(kind.value)))
    return [symmetric(problem) for problem in drawn]


@pytest.mark.parametrize("kind", list(ConvKind))
def test_random_problems(kind: ConvKind, tmp_path: Path) -> None:
    regions = regions_of(problems(kind, 60))
    functions = load(regions, tmp_path)
    rng = np.random.default_rng(SEED)
    wrong, worst, none = [], 0.0, 0
    for region in regions:
        p = region.problem
        assert check(p, ""), str(p)
        a, b = random_operands(p, rng)
        out = destination(p)
        try:
            functions[region.symbol](*operands_on_device(p, a, b), out)
        except RuntimeError as error:
            none += 1
            wrong.append(f"{p}: {str(error)[:600]}")
            continue
        error = relative_error(to_numpy(out), torch_reference(p, a, b))
        share = error / library_tolerance(p, tf32=True)
        worst = max(worst, share)
        if not share <= 1:
            wrong.append(f"{p}: {share:.3g} times the tolerance")
    print(
        f"\nconv3d {kind.value}: {len(regions)} problems, {none} without a plan,"
        f" {len(wrong) - none} wrong, worst {worst:.2f} of its tolerance"
    )
    print(*wrong, sep="\n")
    assert wrong == []


def test_any_layout_and_padding() -> None:
    """Through `partition`: pads, crops and permutations around the calls."""
    rng = np.random.default_rng(SEED)
    given = [
        problem
        for kind in ConvKind
        for problem in kind_problems(
            rng, kind, 8, random_problem, dtypes=("float16", "float32"), mixed=False, rank=3
        )
    ]
    assert wrong_partitioned(given, rng) == []


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_network_and_its_gradient(layout: str) -> None:
    """Two convolutions and a transposed one; all of their gradients go to cuDNN."""
    shapes = [(2, 8, 8, 10, 12), (16, 8, 3, 3, 3), (16, 16, 3, 3, 3), (16, 8, 2, 2, 2)]
    names = [
        relax.Var(n, relax.TensorType(s, "float32")) for n, s in zip("xuvw", shapes, strict=True)
    ]
    bb = relax.BlockBuilder()
    with bb.function("main", names):
        with bb.dataflow():
            x, u, v, w = names
            y = bb.emit(relax.op.nn.relu(bb.emit(relay_wgrad.conv3d(x, u, padding=1))))
            y = bb.emit(relax.op.nn.relu(bb.emit(relay_wgrad.conv3d(y, v, 2, 1))))
            y = bb.emit(relay_wgrad.conv3d_backward_data(y, w, shapes[0], 2))
            out = bb.emit_output(relax.op.sum(bb.emit(relax.op.multiply(y, y))))
        bb.emit_func_output(out)
    mod = grad(bb.get())
    if layout == "NHWC":
        mod = ConvertLayout("NHWC")(mod)
    out, report = byoc_cudnn.partition_for_cudnn(mod, strict=True, allow_tf32=False)
    assert report.total == 12  # of `main`, and of its gradient
    assert report.share == 1
    device = tvm.cuda(0)
    rng = np.random.default_rng(SEED)
    values = [rng.standard_normal(s).astype("float32") for s in shapes]
    vm = byoc_cudnn.build(out).virtual_machine(device)
    loss, grads = vm["main_adjoint"](*[tvm.runtime.tensor(a, device) for a in values])
    x, u, v, w = params = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in values]
    y = F.relu(F.conv3d(F.relu(F.conv3d(x, u, padding=1)), v, stride=2, padding=1))
    want = (F.conv_transpose3d(y, w, stride=2) ** 2).sum()
    want.backward()
    assert abs(float(loss.numpy()) / want.item() - 1) < 1e-5
    for mine, theirs in zip(grads, params, strict=True):
        assert relative_error(mine.numpy(), theirs.grad.numpy()) < 2e-5


@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16"])
def test_a_trainer(dtype: str | None) -> None:
    """Its losses are the CPU's; in half precision they fall."""
    torch.manual_seed(0)
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((2, 2, 4, 6, 6)).astype("float32")
    graph = from_torch(Small(), (torch.tensor(x),), loss="cross_entropy")
    data, target = (spec.name for spec in graph.inputs)
    batch = {data: x, target: np.array([0, 2], graph.inputs[1].dtype)}
    how = {"optimizer": "momentum", "lr": 0.05, "dtype": dtype}
    trainer = Trainer(graph, "cuda", on_gpu=Options(tf32=False), **how)
    losses = [trainer.step(batch) for _ in range(10)]
    print(f"\nconv3d trainer {dtype or 'float32'}: {losses[0]:.4f} to {losses[-1]:.4f}")
    if dtype is not None:
        assert losses[-1] < 0.8 * losses[0]
        return
    on_cpu = Trainer(graph, "cpu", **how)
    np.testing.assert_allclose(losses, [on_cpu.step(batch) for _ in range(10)], rtol=1e-3)
