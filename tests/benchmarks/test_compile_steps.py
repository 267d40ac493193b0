"""Steps of networks are compiled for CUDA without a GPU: a share of them, and the script's own."""

from __future__ import annotations

import pytest

from benchmarks import child, compile_steps
from byoc_cudnn.report import BY_CUBLAS

# (model, dtype, batch): what stays a product
SHARE = {
    ("attention", "f16", 3): {f"matmul: {BY_CUBLAS}": 6},
    ("inverted", "f16", 3): {},
    ("resnet50", "f16", 256): {},
    ("alexnet", "bf16", 256): {},
    ("vgg19", "tf32", 32): {},
    ("densenet121", "f16", 3): {},
    ("shufflenet", "f32", 1): {},
}


@pytest.mark.longer("whole networks for CUDA")
@pytest.mark.parametrize(("model", "dtype", "batch"), SHARE)
def test_a_step(model: str, dtype: str, batch: int) -> None:
    row = child.row(compile_steps.measure, model, dtype, batch, ["cudnn"], seconds=600)
    assert "reason" not in row
    assert row["convolutions"]["total"] == row["convolutions"]["offloaded"]
    stay = {why: n for why, n in row["fallbacks"].items() if why.startswith("matmul")}
    assert stay == SHARE[model, dtype, batch]
    assert row["products"]["offloaded"] == row["products"]["total"] - sum(stay.values())


@pytest.mark.longer("starts processes of TVM")
def test_a_child_that_does_not_end_well() -> None:
    given = (compile_steps.measure, "residual", "f16", 1, ["cudnn"])
    assert "took more than" in child.row(*given, seconds=0.05)["reason"]
    assert child.row(*given, seconds=60, gib=0.01)["reason"]
