"""Convolutions of few channels on blocks of pixels, by cuDNN on a GPU, against float64."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn

import byoc_cudnn
from relay_wgrad.frontend import from_torch
from relay_wgrad.training import Trainer
from relay_wgrad.training.cuda_tools import cuda_compiler
from relay_wgrad.training.options import Options
from relay_wgrad.transform import space_to_depth
from tests.support.gpu import first_layers
from tests.support.gpu.runner import choose_compiler

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]

LIMITS = {"f32": 1e-5, "tf32": 3e-3, "f16": 2e-3, "bf16": 1.5e-2}
LAYERS = {  # channels, filters, side, taps, stride, padding
    "stem": (3, 64, 61, 7, 2, 3),
    "even": (3, 32, 32, 3, 2, 1),
    "patches": (3, 96, 32, 4, 4, 0),
    "one channel": (1, 64, 19, 3, 1, 1),
    "subsampled": (4, 24, 17, 1, 2, 0),
    "odd": (2, 9, 23, 5, 3, 2),
}


@pytest.fixture(autouse=True, scope="module")
def _compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    choose_compiler()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAY_WGRAD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


FORMS = {
    "blocks": (LAYERS, LIMITS), "rows": (("stem", "even", "one channel"), ("tf32", "f16", "bf16")),
    "windows": (("even", "one channel", "odd"), ("tf32", "bf16")),
}  # fmt: skip


@pytest.mark.parametrize(
    ("form", "name", "mode"),
    [(form, *case) for form, cases in FORMS.items() for case in product(*cases)],
)
def test_both_gradients(form: str, name: str, mode: str) -> None:
    layer, dtype = LAYERS[name], first_layers.DTYPES[mode]
    c, k, side, taps, stride, pad = layer
    size, batch = (side + 2 * pad - taps) // stride + 1, 3
    torch.manual_seed(0)
    given = [
        torch.randn(batch, c, side, side), torch.randn(k, c, taps, taps),
        torch.randn(batch, size, size, k).to(getattr(torch, dtype)),
    ]  # fmt: skip
    mod, entries = space_to_depth(first_layers.module(layer, batch, dtype), form=form)
    assert all(entry.became for entry in entries)
    mod, report = byoc_cudnn.partition_for_cudnn(
        mod, deterministic=True, allow_tf32=mode == "tf32", strict=True
    )
    assert report.offloaded == 2
    with cuda_compiler():
        vm = byoc_cudnn.build(mod).virtual_machine()
    args = [tvm.runtime.from_dlpack(t.cuda()) for t in given]
    runs = [[torch.from_dlpack(t) for t in vm["main"](*args)] for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    rounded = [t.to(getattr(torch, dtype)).double() for t in given]
    want = first_layers.by_torch(layer, rounded)
    for got, right in zip(runs[0], want, strict=True):
        error = (got.double().cpu() - right.double()).norm() / right.double().norm()
        assert error < LIMITS[mode]


def test_a_trainer() -> None:
    """The same losses with blocks, whole rows and without, and a first layer of other sizes."""

    def losses(blocks: bool | str, channels: int) -> Any:
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 16, 7, 2, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(16, 8),
        )  # fmt: skip
        graph = from_torch(net, (torch.zeros(8, 3, 32, 32),))
        options = Options(["cudnn"], strict=True, tf32=False, blocks=blocks)
        trainer = Trainer(graph, "cuda", lr=0.1, on_gpu=options)
        problems = [str(c.problem) for c in trainer.compiled.convolutions]
        assert any(f"c={channels} " in problem for problem in problems)
        return list(trainer.train(graph.random_batch(0) for _ in range(8)))

    without = losses(False, 3)
    assert without[-1] < 0.9 * without[0]
    for blocks, channels in (("blocks", 12), (True, 44), ("windows", 148)):
        assert np.allclose(losses(blocks, channels), without, rtol=1e-4)
