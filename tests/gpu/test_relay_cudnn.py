"""From Relay text to results on a device: partition on the surface, `relay.build`, export."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

import byoc_cudnn
from byoc_cudnn.relay import register_relay
from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from tests.support.gpu.runner import choose_compiler
from tests.support.problems import relative_error
from tests.support.relay.fixtures import load

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]

# cuDNN with float32 arithmetic; zero but for rounding is zero.
TOLERANCE, ROUNDING = 1e-4, 1e-5
LAYOUTS = {
    "nn.conv2d": ["NHWC", "OHWI"],
    "nn.conv2d_transpose": ["NHWC", "IHWO"],
    "nn.conv2d_backward_weight": ["NHWC", "OHWI"],
}


@pytest.fixture(autouse=True)
def _compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_compiler()
    monkeypatch.setenv("RELAY_WGRAD_CACHE", str(tmp_path / "cache"))


def results(library: Any, inputs: dict[str, Any]) -> list[np.ndarray]:
    executor = relay.graph_executor.GraphModule(library["default"](tvm.cuda(0)))
    executor.run(**inputs)
    return [executor.get_output(i).numpy() for i in range(executor.get_num_outputs())]


def check(got: list[np.ndarray], want: list[np.ndarray] | None) -> None:
    assert want is not None
    assert len(got) == len(want)
    wrong = [
        f"{i}: {relative_error(g, w):.3g}"
        for i, (g, w) in enumerate(zip(got, want, strict=True))
        if np.linalg.norm(g - w) > ROUNDING and relative_error(g, w) > TOLERANCE
    ]
    assert wrong == []


def converted(mod: relay.IRModule) -> relay.IRModule:
    passes = [T.ToGraphNormalForm(), T.EliminateCommonSubexpr(), T.ConvertLayout(LAYOUTS)]
    with T.PassContext(opt_level=3):
        return T.Sequential(passes)(mod)


@pytest.mark.parametrize("name", ["smallnet_grad", "resnet8_cifar_grad"])
@pytest.mark.parametrize("form", ["as printed", "converted", "printed in NHWC"])
def test_gradients(name: str, form: str) -> None:
    """Every convolution on cuDNN, and the results that real Relay computed."""
    inputs, want, text = load(name)
    mod = relay.fromtext(load(f"{name}_nhwc")[2] if form == "printed in NHWC" else text)
    if form == "converted":
        mod = converted(mod)
    out, report = byoc_cudnn.partition(mod, strict=True, cudnn={"allow_tf32": False})
    assert report.total == len(re.findall(r"\bnn\.conv2d", relay.astext(mod)))
    check(results(relay.build(out, tvm.target.Target.from_device(tvm.cuda(0))), inputs), want)


def test_text_export_and_load(tmp_path: Path) -> None:
    """What was partitioned is text, and what was built is a file."""
    inputs, want, text = load("smallnet_grad_nhwc")
    want = load("smallnet_grad")[1]
    out, _ = byoc_cudnn.partition_for_cudnn(relay.fromtext(text), allow_tf32=False)
    again = relay.fromtext(relay.astext(out))
    library = relay.build(again, tvm.target.Target.from_device(tvm.cuda(0)))
    library.export_library(tmp_path / "step.so")
    check(results(relay.load_module(tmp_path / "step.so"), inputs), want)


def test_inference_with_weights() -> None:
    """Bias and ReLU go along; weights are constants of the library."""
    inputs, want, text = load("smallnet_fwd")
    weights = {name: value for name, value in inputs.items() if name != "data"}
    out, _ = byoc_cudnn.partition_for_cudnn(relay.fromtext(text), weights, allow_tf32=False)
    rows = re.findall(r'Composite="cudnn\.(\w+)"', relay.astext(out))
    assert "fprop_bias_relu" in rows
    library = relay.build(out, tvm.target.Target.from_device(tvm.cuda(0)))
    check(results(library, {"data": inputs["data"]}), want)


def test_what_another_table_left() -> None:
    """One convolution for cuDNN, the others for TVM's kernels, as the surface says."""
    inputs, want, text = load("smallnet_grad_gnf")
    register_relay()
    table = [
        row for row in relay.op.contrib.get_pattern_table("cudnn") or [] if row[0] == "cudnn.wgrad"
    ]
    passes = [
        T.MergeComposite(table), T.AnnotateTarget("cudnn", include_non_call_ops=False),
        T.PartitionGraph(),
    ]  # fmt: skip
    out = T.Sequential(passes)(relay.fromtext(text))
    assert sum("Compiler" in f.attrs for f in out.functions.values()) == 2
    library = relay.build(out, tvm.target.Target.from_device(tvm.cuda(0)))
    got = results(library, inputs)
    assert want is not None
    # With tf32, which is on where nothing else is said.
    assert all(relative_error(g, w) < 5e-3 for g, w in zip(got, want, strict=True))
