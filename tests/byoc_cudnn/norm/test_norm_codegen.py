"""The code of normalizations: what is taken, what is generated, what the loaded library checks."""

from __future__ import annotations

import itertools
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from byoc_cudnn.building import nvcc
from byoc_cudnn.building.compiled import library_command
from byoc_cudnn.building.toolchain import find
from byoc_cudnn.codegen.direct import missing
from byoc_cudnn.codegen.templates import constants
from byoc_cudnn.norm import (
    ACTIVATIONS,
    NormCall,
    check,
    generate,
    inputs,
    kernels_of,
    workspace_bytes,
)
from byoc_cudnn.norm.call import DTYPES, longest_row
from byoc_cudnn.norm.codegen import NORMS
from relay_wgrad.ops.train_norm import LONGEST_ROW

FORWARD = NormCall("f", "forward", "bfloat16", "relu", running=True)
BACKWARD = NormCall("b", "backward", "bfloat16", "relu", residual=True)
PLAIN = NormCall("b", "backward", "bfloat16", "relu")


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (replace(FORWARD, dtype="int8"), "dtype 'int8'; there are 'float16', 'bfloat16', "),
        (replace(FORWARD, layout="NCHW"), "layout 'NCHW'; there are 'NHWC'"),
        (replace(FORWARD, activation="tanh"), "activation 'tanh'; there are '', 'relu', 'relu6', "),
        (replace(FORWARD, direction="sideways"), "direction 'sideways'; there are 'forward', "),
        (replace(BACKWARD, activation="silu"), "silu's gradient is not told by what is stored"),
        (replace(BACKWARD, running=True), "running statistics are updated forward"),
        (replace(FORWARD, bits=True), "bits are of relu, relu6, leaky_relu after a residual"),
        (replace(FORWARD, slices=((0, 8),)), "gradients that are channels of other tensors are of"),
        (replace(PLAIN, slices=((0, 8), (8, 16))), "channels of 2 tensors for 1"),
        (replace(PLAIN, slices=((8, 8),)), "slices ((8, 8),): a first channel, and how many"),
        (replace(PLAIN, summed=True), "summed gradients are of a backward call that writes"),
        (replace(FORWARD, summed=True), "summed gradients are of a backward call that writes"),
        (replace(FORWARD, others=1), "further normalizations are a residual, and what passes"),
        (
            replace(BACKWARD, pooled=(2, 2, 2, 2, 0, 0, 0, 0)),
            "pooled (2, 2, 2, 2, 0, 0, 0, 0): eig",
        ),
        (replace(FORWARD, pooled=(2, 2)), "pooled (2, 2): eight numbers"),
        (replace(FORWARD, pooled=(2, 2, 2, 2, 2, 0, 0, 0)), "padding (2, 0, 0, 0) of windows"),
        (replace(FORWARD, grouped=True), "running statistics, pooling and further normalizations"),
        (
            replace(BACKWARD, activation="leaky_relu", bits=True, others=1),
            "further normalizations are before relu or relu6, got leaky_relu",
        ),
        (
            replace(FORWARD, residual=True, bits=True, others=4),
            "4 further normalizations; there are",
        ),
        (replace(FORWARD, after=True), "behind the activation a forward call adds a residual"),
        (replace(FORWARD, total=True, place=(0, 8)), "a sum is made by a normalization's own"),
        (replace(PLAIN, total=True), "a sum of gradients is a result where they are summed"),
        (replace(FORWARD, skip=True), "what is added to dx is an operand of a backward call"),
        (replace(PLAIN, skip=True, slices=((0, 8),)), "gradients that are channels of other"),
        (replace(PLAIN, place=(0, 8)), "a place among joined channels is of a forward call's"),
        (replace(FORWARD, place=(8, 8)), "place (8, 8): a first channel, and how many there are"),
        (replace(FORWARD, place=(0,)), "place (0,): a first channel, and how many there are"),
        (replace(FORWARD, onto=True), "what is joined so far, and a result by itself too, are of"),
        (replace(FORWARD, own=True), "what is joined so far, and a result by itself too, are of"),
        (replace(BACKWARD, within=(0, 8)), "x is channels of another tensor for a call of x alone"),
        (replace(FORWARD, within=(0, 8), place=(0, 8)), "x is channels of another tensor for a"),
        (replace(FORWARD, within=(8, 8)), "within (8, 8): a first channel, and how many there"),
        (replace(FORWARD, alpha=-1.0), "alpha -1.0: not finite, or below zero"),
        (replace(FORWARD, symbol="f(); g"), "symbol 'f(); g' is no identifier"),
        (replace(FORWARD, epsilon=float("nan")), "epsilon nan and momentum 0.1: not finite"),
    ],
)
def test_refusals(call: NormCall, reason: str) -> None:
    assert check(call).reason.startswith(reason)
    with pytest.raises(ValueError, match=r"^.*: "):
        generate([call], 90)


def test_a_result_of_a_joined_tensor() -> None:
    call = replace(FORWARD, running=False, place=(8, 24), onto=True, own=True)
    assert call.operands == ("x", "gamma", "beta", "joined")
    assert call.results == ("y", "mean", "rstd", "own")
    assert call.overwrites == (("y", "joined"), ("own", "x"))
    assert NORMS.kernel_of(call) == "relay_wgrad_norm_forward_bfloat16_relu_placed"
    assert "at 8 24" in generate([call], 90)
    with pytest.raises(ValueError, match="is no kernel of normalization"):
        NORMS.source_of(NORMS.kernel_of(call).replace("placed", "sliced"))


def test_an_operand_of_a_joined_tensor() -> None:
    calls = [replace(one, within=(8, 24)) for one in (FORWARD, PLAIN)]
    assert [call.overwrites for call in calls] == [(), (("dx", "dy"),)]
    names = [NORMS.kernel_of(call).partition("bfloat16_")[2] for call in calls]
    assert names == ["relu_within"] * 2
    assert generate(calls, 90).count("within 8 24") == 2


def test_operands_and_results() -> None:
    assert FORWARD.operands == ("x", "gamma", "beta", "running_mean", "running_var")
    assert FORWARD.results == ("y", "mean", "rstd", "new_running_mean", "new_running_var")
    assert BACKWARD.operands == ("dy", "x", "gamma", "beta", "mean", "rstd", "y")
    assert BACKWARD.results == ("dx", "dgamma", "dbeta", "dresidual")
    assert replace(BACKWARD, bits=True).operands[-1] == "mask"
    assert replace(FORWARD, residual=True, bits=True).results[-1] == "mask"
    assert replace(BACKWARD, summed=True).operands[:3] == ("dy", "dy2", "x")
    two = replace(FORWARD, residual=True, bits=True, others=1)
    assert two.operands[:6] == ("x", "gamma", "beta", "x2", "gamma2", "beta2")
    assert two.operands[6:] == ("running_mean", "running_var", "running_mean2", "running_var2")
    assert two.results[:5] == ("y", "mean", "rstd", "mean2", "rstd2")
    assert two.results[-3:] == ("new_running_mean2", "new_running_var2", "mask")
    three = replace(FORWARD, residual=True, bits=True, others=2)
    assert three.operands[6:11] == ("x3", "gamma3", "beta3", "running_mean", "running_var")
    assert three.results[1:7] == ("mean", "rstd", "mean2", "rstd2", "mean3", "rstd3")
    assert replace(BACKWARD, bits=True, others=2).results[6:] == ("dx3", "dgamma3", "dbeta3")
    back = replace(BACKWARD, bits=True, others=1)
    assert back.operands[-5:] == ("x2", "gamma2", "mean2", "rstd2", "mask")
    assert back.results == ("dx", "dgamma", "dbeta", "dx2", "dgamma2", "dbeta2")
    total = replace(FORWARD, running=False, residual=True, bits=True, total=True)
    assert total.operands == ("x", "more", "gamma", "beta", "residual")
    assert total.results == ("y", "mean", "rstd", "total", "mask")
    total = replace(PLAIN, summed=True, total=True, skip=True)
    assert total.operands == ("dy", "dy2", "x", "gamma", "beta", "mean", "rstd", "skip")
    assert total.results == ("dx", "dgamma", "dbeta", "total")
    pooled = (3, 3, 2, 2, 1, 1, 1, 1)
    stem = replace(FORWARD, pooled=pooled)
    assert stem.results[-1] == "index"
    assert NORMS.kernel_of(stem) == "relay_wgrad_norm_forward_bfloat16_relu_pooled_3x3_2x2"
    back = replace(BACKWARD, residual=False, pooled=pooled)
    assert back.operands == ("dy", "index", "x", "gamma", "beta", "mean", "rstd")
    assert back.results == ("dx", "dgamma", "dbeta")
    plain = replace(BACKWARD, activation="")  # the residual's gradient is dy
    assert (plain.operands[-1], plain.results[-1]) == ("rstd", "dbeta")
    assert NORMS.kernel_of(plain) == NORMS.kernel_of(replace(plain, residual=False))


def test_a_kernel_serves_all_calls_of_its_kind() -> None:
    calls = [FORWARD, replace(FORWARD, symbol="g", epsilon=1e-3), replace(FORWARD, symbol="h")]
    source = generate(calls, 90)
    assert kernels_of(source) == [(90, "relay_wgrad_norm_forward_bfloat16_relu")]
    assert source.count('{"batch_norm forward bfloat16 relu running"') == 2  # rows: two epsilons
    assert "__tvm_ffi_h(" in source
    grouped = replace(FORWARD, running=False, grouped=True)
    assert NORMS.kernel_of(grouped) == "relay_wgrad_norm_forward_bfloat16_relu_grouped"
    assert '{"group_norm forward bfloat16 relu",' in generate([grouped], 90)
    rows = replace(grouped, by_row=True)
    assert NORMS.kernel_of(rows) == "relay_wgrad_norm_forward_bfloat16_relu_rows"
    assert '{"layer_norm forward bfloat16 relu",' in generate([rows], 90)
    assert not check(replace(rows, grouped=False))
    assert not check(replace(rows, residual=True))
    assert kernels_of("int main() {}") == []


@pytest.mark.parametrize("name", ["relay_wgrad_norm_forward_int8_relu", "main(){}"])
def test_no_other_kernel_has_a_source(name: str) -> None:
    with pytest.raises(ValueError, match="is no kernel of normalization in training"):
        NORMS.source_of(name)


def test_the_workspace_is_that_of_the_kernels() -> None:
    """Python plans it, C++ uses it: one formula, told twice; its numbers are the template's."""
    names = {"kNormOthers": 3, "kNormBlocks": 2, "kNormChannels": 256, "kNormSums": 3}
    names |= {"kNormRowBlocks": 4, "kNormRowSums": 2}
    assert constants("norm", "norm_call.h") == names
    assert workspace_bytes(64, "float16") == 3 * 4 * 256 * 2 * 256
    assert workspace_bytes(1 << 20, "float64") == 3 * 8 * (1 << 20)
    assert workspace_bytes(300, "float16", images=1000) == 3 * 4 * 256 * 2 * 1000
    assert workspace_bytes(300, "float16", images=1000, by_row=True) == 4 * 256 * 2 * 4 * 300


def test_rows_of_the_longest_layers_have_kernels() -> None:
    """What is raised has kernels."""
    assert longest_row("float16") == 256 * 4 * 8
    assert all(longest_row(dtype) >= LONGEST_ROW for dtype in DTYPES)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    found = find()
    if text := missing(found):
        pytest.skip(text)
    folder = tmp_path_factory.mktemp("norm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAY_WGRAD_CACHE", str(folder / "cache"))
        source = generate([FORWARD, replace(FORWARD, symbol="wide", dtype="float64")], 90)
        source += "// no kernel is there\n"
        objects = inputs(source)
        patch.setattr(nvcc, "run_tool", None)  # the second time none is built
        assert inputs(source) == objects
        path = folder / "norms.cc"
        path.write_text(source, encoding="utf-8")
        command = library_command(path, folder / "norms.so")
    assert {str(p) for p in objects} <= set(command)
    subprocess.run(command, check=True)
    return tvm_ffi.load_module(str(folder / "norms.so"))


@pytest.mark.longer("compiles C++; of the libraries for convolutions and pooling stays")
def test_a_library_checks_its_calls(library: Any) -> None:
    rows, vector = (tvm_ffi.from_dlpack(np.zeros(s, "float64")) for s in ((2, 8), (8,)))
    with pytest.raises(TypeError, match=r"running: expected 10 tensors, or one more as workspace"):
        library["f"](rows, vector)
    operands = [rows, *[vector] * 4, rows, *[vector] * 4]
    with pytest.raises(TypeError, match="float64 relu running: x must be float64, got float32"):
        library["wide"](tvm_ffi.from_dlpack(np.zeros((2, 8), "float32")), *operands[1:])
    with pytest.raises(ValueError, match="x is not on the CUDA device"):
        library["wide"](*operands)
    with pytest.raises(ValueError, match="x must have at least 2 axes, got 1"):
        library["wide"](vector, *operands[1:])
    assert str(library["relay_wgrad_norm_plans"]()) == ""


def test_every_call_that_is_taken_has_a_kernel() -> None:
    enumerators = re.search(r"enum class Activation \{ (.*?) \}", NORMS.template("norm_device.h"))
    assert enumerators
    used = set()
    for direction, dtype, activation, residual in itertools.product(
        ("forward", "backward"), DTYPES, ACTIVATIONS, (False, True)
    ):
        call = NormCall("f", direction, dtype, activation, residual)
        if check(call):
            source = NORMS.source_of(NORMS.kernel_of(call))
            exported = source[source.index('extern "C" int') :]
            assert f"{direction}<" in exported
            used |= set(re.findall(r"Activation::(\w+)", exported))
    assert sorted(used) == sorted(enumerators[1].split(", "))


# Both passes, whole packs, rows side by side and short ones; what adds the sums of rows as they are
# and side by side, of a batch, or of images and groups.
@pytest.mark.parametrize(
    ("call", "count"), [(BACKWARD, 6 + 2), (replace(BACKWARD, grouped=True), 6 + 6)]
)
def test_nothing_is_read_before_the_kernel_before_has_ended(
    call: NormCall, count: int, tmp_path: Path
) -> None:
    """Kernels begin while others end; what their results are read by must come after the wait."""
    if text := missing(find()):
        pytest.skip(text)
    unit, ptx = tmp_path / "kernel.cu", tmp_path / "kernel.ptx"
    unit.write_text(NORMS.source_of(NORMS.kernel_of(call)), encoding="utf-8")
    flags = ["-std=c++17", "-O3", "-w", "-arch=sm_90", "--expt-relaxed-constexpr", "-ptx"]
    subprocess.run([str(find().nvcc), *flags, str(unit), "-o", str(ptx)], check=True)
    kernels = [k for k in ptx.read_text().split(".entry")[1:] if "griddepcontrol.wait" in k]
    assert len(kernels) == count
    for kernel in kernels:
        before = kernel[: kernel.index("griddepcontrol.wait")]
        assert "ld.global" not in before
        assert "st.global" not in before
    assert "ld.global.nc.v4" in ptx.read_text()
