"""Steps of networks are compiled for CUDA without a GPU: a share of them, and the script's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compile_steps
from tests.support.children import run_module

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
    done = run_module("benchmarks.compile_steps", "--row", f"{model},{dtype},{batch}", timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    row = json.loads(done.stdout.splitlines()[-1])
    assert row["silent"] == {}
    assert row["convolutions"]["total"] == row["convolutions"]["offloaded"]
    stay = {why: n for why, n in row["fallbacks"].items() if why.startswith("matmul")}
    assert stay == SHARE[model, dtype, batch]
    assert row["products"]["offloaded"] == row["products"]["total"] - sum(stay.values())


@pytest.mark.longer("starts processes of TVM")
def test_a_child_that_does_not_end_well() -> None:
    row = compile_steps.measured(("residual", "f16", 1), [], seconds=0.05, gib=1)
    assert row["status"] == "timeout"
    row = compile_steps.measured(("residual", "f16", 1), [], seconds=60, gib=0.01)
    assert row["status"] in ("crash", "error")
    assert row["message"]


def test_rows_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, asked = tmp_path / "rows.json", []

    def measured(key: tuple[str, str, int], *rest: Any) -> dict[str, Any]:
        asked.append(key)
        status = "crash" if key[2] == 3 else "ok"
        return {"model": key[0], "dtype": key[1], "batch": key[2], "status": status, "seconds": 1.0}

    monkeypatch.setattr(compile_steps, "measured", measured)
    given = ["--models", "residual", "--dtypes", "f16", "--json", str(path)]
    assert compile_steps.main([*given, "--batches", "1"]) == 0
    assert compile_steps.main([*given, "--batches", "1,3", "--resume"]) == 1
    assert asked == [("residual", "f16", 1), ("residual", "f16", 3)]
    assert [row["status"] for row in json.loads(path.read_text())["rows"]] == ["ok", "crash"]
    assert "2 of 2 steps" in capsys.readouterr().out
    for wrong in (["--models", "lenet"], ["--dtypes", "f8"], ["--batches", "-1"], ["--resume"]):
        with pytest.raises(SystemExit):
            compile_steps.main(wrong)
