"""The benchmark of first layers, up to what it gives to a GPU."""

from __future__ import annotations

import pytest

from benchmarks import gpu_stem, runner

pytestmark = pytest.mark.usefixtures("registered")


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


def test_forms_of_all_layers() -> None:
    """Those that steps get; and patches have one form."""
    for mode in ("bf16", "tf32"):
        found = {
            name: gpu_stem.predicted(layer, mode)[0] for name, layer in gpu_stem.LAYERS.items()
        }
        assert found == {
            "resnet50": "rows", "mobilenet_v2": "windows", "vgg16": "windows", "unet": "windows",
            "convnext": "blocks", "vit": "blocks",
        }  # fmt: skip
    words = ["--suite", "vit", "--dtypes", "bf16,tf32"]
    args = runner.parsed(gpu_stem.BENCHMARK, words, "", "", False)
    assert [list(case.what[1]) for case in gpu_stem.cases(args)] == [["ours", "blocks"]] * 2


def test_a_form_that_is_further_off_than_pytorch_is_told() -> None:
    errors = {"ours": [1e-3, 2e-3], "rows": [1e-3, 3e-3], "torch": [1e-3, 2e-3]}
    row = {"ms": {"ours": 2.0, "rows": 1.0, "torch": 4.0}, "error": errors}
    assert gpu_stem.judged(row) == {"worst": [1e-3, 3e-3], "ratio": 0.25}
    errors["rows"] = [1e-3, 5e-3]
    assert "PyTorch's" in gpu_stem.judged(row)["reason"]
