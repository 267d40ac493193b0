"""The benchmark of first layers, up to what it gives to a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu_stem

pytestmark = pytest.mark.usefixtures("registered")


class Loaded:
    """Stands in for a library."""

    def load(self) -> None:
        """Nothing."""


def channels(layer: str) -> dict[str, str]:
    """Of each side that is measured, those of its convolution."""
    mod = gpu_stem.module(gpu_stem.LAYERS[layer], 2, "float16")
    modules, became = gpu_stem.forms(mod, (*gpu_stem.SIDES, gpu_stem.TORCH))
    assert list(modules) == list(became)
    return {side: " ".join(problems[:2]).split(" h=")[0] for side, problems in became.items()}


def test_a_form_is_measured_once() -> None:
    assert channels("convnext") == {
        "ours": "cudnn", "blocks": "cudnn fprop n=2 c=48", "rows128": "cudnn fprop n=2 c=64",
        "blocks-wgmma": "cutlass fprop n=2 c=48", "rows128-wgmma": "cutlass fprop n=2 c=64",
    }  # fmt: skip
    each = {"blocks": 16, "rows": 48, "rows128": 64, "windows": 152}
    assert channels("resnet50") == {"ours": "cudnn"} | {
        f"{form}{side}": f"{library} fprop n=2 c={c}"
        for side, library in (("", "cudnn"), ("-wgmma", "cutlass"))
        for form, c in each.items()
    }


def test_sides_are_of_their_library() -> None:
    for side, (_, _, library) in gpu_stem.SIDES.items():
        modules, _ = gpu_stem.forms(gpu_stem.module((3, 16, 8, 3, 2, 1), 2, "float16"), [side])
        if side != "ours":
            assert f"_{library}_" in gpu_stem.compiled(modules[side], side, True).sources[0]


def test_a_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    """Of all layers, with times that stand in for a GPU's; patches have one form."""

    def measure(name: str, mode: str, batch: int, sides: Any, libraries: Any) -> dict[str, Any]:
        chosen, times = gpu_stem.predicted(gpu_stem.LAYERS[name], mode)
        mine = [*libraries, *({gpu_stem.TORCH} & set(sides))]
        return {
            "layer": name, "mode": mode, "auto": chosen, "predicted_ms": times,
            "ms": dict.fromkeys(mine, 1.0), "error": {side: [1e-3, 2e-3] for side in mine},
            "kernels_us": {side: {"kernel": 3.0} for side in mine},
        }  # fmt: skip

    monkeypatch.setattr(gpu_stem, "measure", measure)
    monkeypatch.setattr(gpu_stem, "compiled", lambda *_: Loaded())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "none")
    file = tmp_path / "stem.json"
    monkeypatch.setattr("sys.argv", ["gpu_stem", "--dtypes", "bf16,tf32", "--json", str(file)])
    assert gpu_stem.main() == 0
    rows = json.loads(file.read_text())["rows"]
    for mode in ("bf16", "tf32"):
        assert {r["layer"]: r["auto"] for r in rows if r["mode"] == mode} == {
            "resnet50": "rows", "mobilenet_v2": "windows", "vgg16": "windows", "unet": "windows",
            "convnext": "blocks", "vit": "blocks",
        }  # fmt: skip
    assert [list(r["became"]) for r in rows if r["layer"] == "vit"] == [["ours", "blocks"]] * 2
    assert "first layers, batch 256" in capsys.readouterr().out
