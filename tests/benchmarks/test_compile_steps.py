"""Steps of networks are compiled for CUDA without a GPU: a share of them, and the script's own."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from benchmarks import child, compile_steps

# (model, dtype, batch): what stays a product
SHARE = {
    ("attention", "f16", 3): {"matmul: a product for each image, and no sum of them": 6},
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
    given = (model, dtype, batch, ["cudnn"], False, time.perf_counter())
    row = child.row(compile_steps.measure, *given, seconds=600)
    assert "reason" not in row
    assert row["convolutions"]["total"] == row["convolutions"]["offloaded"]
    stay = {why: n for why, n in row["fallbacks"].items() if why.startswith("matmul")}
    assert stay == SHARE[model, dtype, batch]
    assert row["products"]["offloaded"] == row["products"]["total"] - sum(stay.values())


@pytest.mark.longer("starts processes of TVM")
def test_a_child_that_does_not_end_well() -> None:
    given = (compile_steps.measure, "residual", "f16", 1, ["cudnn"], False, time.perf_counter())
    assert "took more than" in child.row(*given, seconds=0.05)["reason"]
    assert child.row(*given, seconds=60, gib=0.01)["reason"]


def test_a_part_has_what_was_done_since_the_last_one() -> None:
    parts, end = compile_steps.parts_since(time.perf_counter() - 5)
    end("imports")
    subprocess.run([sys.executable, "-c", "sum(range(10**6))"], check=True)
    end("a child")
    end("nothing")
    assert list(parts) == ["imports", "a child", "nothing"]
    assert parts["imports"][0] >= 5
    assert parts["imports"][1] > 0
    assert parts["a child"][0] > 0
    assert parts["a child"][1] > 0
    assert parts["nothing"][1] <= 0.1


def test_parts_are_shown() -> None:
    row = {"model": "unet", "dtype": "f16", "batch": 4, "cache": "full",
           "parts": {"TVM": [2.0, 2.5], "library": [8.0, 30.0]}}  # fmt: skip
    (line,) = compile_steps.summary([row])
    assert line.endswith("TVM 2.0 (2.5), library 8.0 (30.0), all 10.0 (32.5)")
