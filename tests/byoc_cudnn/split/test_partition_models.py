"""The gradients of the nine architectures: what share of their convolutions goes to cuDNN."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax

import byoc_cudnn
from relay_wgrad.frontend import BUNDLED, from_onnx
from relay_wgrad.training.step import step_module
from relay_wgrad.transform import ConvertLayout, grad
from tests.support.layout_cases import chain
from tests.support.partition_cases import regions
from tests.support.timing import seconds

# name -> rows of the gradient in float32, in NHWC
ROWS = {
    "alexnet": {"fprop": 3, "fprop_bias_relu": 2, "dgrad": 4, "wgrad": 5},
    "densenet121": {"fprop": 120, "fprop_bias": 1, "dgrad": 120, "wgrad": 121},
    "inception_v1": {"fprop_bias_relu": 57, "dgrad": 56, "wgrad": 57},
    "inception_v2": {"fprop": 69, "dgrad": 68, "wgrad": 69},
    "resnet50": {"fprop": 53, "dgrad": 52, "wgrad": 53},
    "shufflenet": {"fprop": 48, "fprop_bias": 1, "dgrad": 48, "wgrad": 49},
    "squeezenet": {"fprop_bias_relu": 26, "dgrad": 25, "wgrad": 26},
    "vgg19": {"fprop_bias_relu": 16, "dgrad": 15, "wgrad": 16},
    "zfnet512": {"fprop_bias_relu": 5, "dgrad": 4, "wgrad": 5},
}
# name -> how many of the data gradients take ReLU's mask along in float16
MASKED = {
    "densenet121": 119, "inception_v1": 19, "inception_v2": 28, "resnet50": 29, "squeezenet": 9,
    "vgg19": 15, "zfnet512": 2,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _registered(registered: None) -> None:
    """All of this needs the package's operators."""


def family_calls(mod: tvm.IRModule) -> int:
    """Counted with no code of the partition."""
    found = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call) and ".nn.conv2d" in str(expr.op):
            found.append(expr)

    for func in mod.functions.values():
        relax.analysis.post_order_visit(func, visit)
    return len(found)


@pytest.mark.longer_cases(
    "densenet121", "inception_v2", "vgg19", "inception_v1", "zfnet512", "alexnet", "resnet50"
)
@pytest.mark.share(5)
@pytest.mark.parametrize("dtype", [None, "float16", "float16 wide"])
@pytest.mark.parametrize("name", BUNDLED)
def test_every_convolution_goes(name: str, dtype: str | None) -> None:
    half, _, wide = (dtype or "").partition(" ")
    step = step_module(from_onnx(name), dtype=half or None, wide_weight_gradients=bool(wide))
    module = ConvertLayout("NHWC")(step)
    out, report = byoc_cudnn.partition_for_cudnn(module, strict=True)
    assert report.total == report.offloaded == family_calls(module)
    if dtype is None:
        assert report.rows() == {f"cudnn.{row}": count for row, count in ROWS[name].items()}
    else:
        assert report.rows().get("cudnn.dgrad_strictmask", 0) == MASKED.get(name, 0)
    relax.analysis.well_formed(out)
    assert family_calls(out) == len(regions(out)) <= report.total
    # Half operands of a float32 weight gradient are cast; nothing else is put around any of them.
    around = {("wgrad" if e.row == "wgrad" else "", e.adapted) for e in report.entries}
    assert around == {("wgrad", "cast" if wide else ""), ("", "")}
    named = [e.source for e in report.entries]
    assert named.count("") <= 1
    assert set(named) - {""} <= {p.name for p in module["main_adjoint"].params}
    if name == "squeezenet":
        again, second = byoc_cudnn.partition_for_cudnn(out)
        tvm.ir.assert_structural_equal(again, out)
        assert second.rows() == report.rows()


def test_nchw_needs_nothing_either() -> None:
    module = step_module(from_onnx("squeezenet"))
    _, report = byoc_cudnn.partition_for_cudnn(module, strict=True)
    assert not any(e.adapted for e in report.entries)


@pytest.mark.longer("programs long enough to tell linear time")
def test_time_is_linear_in_depth() -> None:
    def cost(depth: int) -> float:
        module: Any = grad(chain(depth), "main")
        return seconds(lambda: byoc_cudnn.partition(module), 2)

    cost(10)
    short, long = cost(40), cost(160)
    assert long < 4 * short * 2.5  # quadratic would be 16 times
