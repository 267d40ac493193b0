"""Images in blocks of pixels on CUDA: one kernel from the image as it comes, in large stores."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relax, tirx

import byoc_cudnn
from relay_wgrad.attrs import ConvAttrs
from relay_wgrad.frontend import from_torch
from relay_wgrad.ir import op_name
from relay_wgrad.ops.algebra import fprop_call, wgrad_call
from relay_wgrad.pipeline.cuda_depth import SpaceToDepth
from relay_wgrad.training.forward_backward import BACKWARD, FORWARD, two_parts
from relay_wgrad.transform import space_to_depth
from tests.support.cuda_source import cuda_source, read_back
from tests.support.partition_cases import module
from tests.support.schedules import on_the_host

pytestmark = pytest.mark.usefixtures("registered")

TARGET = {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024,
          "max_shared_memory_per_block": 49152, "thread_warp_size": 32}  # fmt: skip


def fused(mod: tvm.IRModule) -> tvm.IRModule:
    for step in (relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(),
                 relax.transform.FuseOps(), relax.transform.FuseTIR()):  # fmt: skip
        mod = step(mod)
    return mod


def kernel(
    shape: tuple[int, ...], taps: int, stride: int, dtype: str, form: str
) -> tuple[tirx.PrimFunc, list[int]]:
    """What is fused of an NCHW image's way into an NHWC convolution, and its result's shape."""

    def body(emit: Any, image: Any, weight: Any) -> Any:
        x = emit(relax.op.permute_dims(image, [0, 2, 3, 1]))
        x = emit(relax.op.astype(x, dtype)) if dtype != "float32" else x
        attrs = {"data_layout": "NHWC", "kernel_layout": "OHWI"}
        return relax.op.nn.conv2d(x, weight, stride, (2, 1, 0, 3), **attrs)

    weights = (8, taps, taps, shape[1])
    mod = module({"image": (shape, "float32"), "weight": (weights, dtype)}, body)
    mod, (entry,) = space_to_depth(mod, form=form)
    assert entry.became
    mod = fused(byoc_cudnn.partition_for_cudnn(mod)[0])
    (found,) = (
        (mod[b.value.args[0]], list(map(int, b.value.ty.shape.values)))
        for b in mod["main"].body.blocks[0].bindings
        if op_name(b.value) == "relax.call_tir" and "space_to_depth" in str(b.value.args[0])
    )
    return found


def run(func: Any, image: np.ndarray, result: np.ndarray) -> bytes:
    built = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), "llvm")
    args = [tvm.runtime.tensor(a) for a in (image, np.full_like(result, np.nan))]
    built["main"](*args)
    return args[-1].numpy().tobytes()


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("shape", "taps", "stride", "dtype", "form"),
    [
        ((2, 3, 19, 22), 7, 2, "bfloat16", "blocks"), ((1, 1, 9, 8), 3, 1, "float16", "blocks"),
        ((3, 4, 12, 13), 4, 4, "float32", "blocks"), ((2, 3, 19, 22), 7, 2, "bfloat16", "rows"),
        ((2, 3, 9, 7), 3, 2, "float16", "rows"), ((1, 1, 9, 8), 5, 1, "bfloat16", "windows"),
    ],
)  # fmt: skip
def test_the_numbers(shape: Any, taps: int, stride: int, dtype: str, form: str) -> None:
    func, sizes = kernel(shape, taps, stride, dtype, form)
    result = np.zeros(sizes, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    image = np.random.default_rng(0).standard_normal(shape).astype("float32")
    image[0, 0, 0, :3] = np.nan, np.inf, -np.inf
    schedule = on_the_host(SpaceToDepth).apply(func, tvm.target.Target(TARGET), False)
    assert schedule is not None
    assert run(schedule.mod["main"], image, result) == run(func, image, result)


def test_other_kernels_stay() -> None:
    def body(emit: Any, x: Any) -> Any:
        return relax.op.nn.relu(emit(relax.op.permute_dims(x, [0, 2, 3, 1])))

    mod = module({"x": ((2, 8, 4, 4), "float32")}, body)
    funcs = [f for _, f in fused(mod).functions_items() if isinstance(f, tirx.PrimFunc)]
    assert [SpaceToDepth().apply(f, tvm.target.Target(TARGET), False) for f in funcs] == [None]
    func, _ = kernel((2, 3, 8, 8), 3, 2, "float16", "blocks")
    assert SpaceToDepth().apply(func, tvm.target.Target("llvm"), False) is None


@pytest.mark.parametrize(
    ("form", "became", "stores"), [
        ("blocks", "c=16 h=23 w=25 k=16 r=4 s=4", 2), ("rows", "c=48 h=23 w=22 k=16 r=4 s=1", 1),
    ],
)  # fmt: skip
def test_an_image_is_read_once(form: str, became: str, stores: int) -> None:
    """One kernel takes it from NCHW in float32 to what both convolutions read: by pixels of few
    channels, or by eight channels."""

    def body(emit: Any, image: Any, weight: Any, dy: Any) -> Any:
        x = emit(relax.op.astype(emit(relax.op.permute_dims(image, [0, 2, 3, 1])), "bfloat16"))
        a = ConvAttrs((2, 2), (3, 3, 3, 3), data_layout="NHWC", kernel_layout="OHWI",
                      grad_layout="NHWC")  # fmt: skip
        y = emit(fprop_call(x, weight, a))
        return relax.Tuple([y, emit(wgrad_call(dy, x, replace(a, kernel_size=(7, 7))))])

    mod = module(
        {"image": ((4, 3, 40, 44), "float32"), "weight": ((16, 7, 7, 3), "bfloat16"),
         "dy": ((4, 20, 22, 16), "bfloat16")}, body,
    )  # fmt: skip
    mod, report = byoc_cudnn.partition_for_cudnn(space_to_depth(mod, form=form)[0])
    assert {(e.op, e.backend) for e in report.entries} == {
        ("conv2d", "cudnn"), ("conv2d_backward_weight", "cudnn"),
    }  # fmt: skip
    assert all(became in e.problem for e in report.entries)
    library = byoc_cudnn.build(mod, tvm.target.Target(TARGET, host="llvm"))
    code = cuda_source(library.executable.mod)
    bodies = re.findall(r"__global__ [^;{]*\{.*?^\}", code, re.MULTILINE | re.DOTALL)
    assert len(bodies) == 3  # the image's, the filter's and its gradient's
    (reads,) = (text for text in bodies if "image_ptr" in text)
    assert "fused_transpose_cast_space_to_depth" in reads
    found = re.findall(r"^ *\*\(uint4\*\)\(space_to_depth\w* \+", reads, re.MULTILINE)
    assert len(found) == stores
    assert "for (" not in reads
    first, _, last = reads.partition("condval")
    assert first.count("image_ptr[") == 8 * stores  # no load waits for a comparison
    assert "image_ptr[" not in last
    # Where a channel's pixel is, is asked of the thread, not for each of its channels.
    assert len(set(re.findall(r"% \d+|/ \d+", reads))) <= 7
    assert read_back(code) == []


def test_a_step_in_two_parts() -> None:
    """The forward part's image in blocks is what the backward part gets; whole windows it makes."""
    net = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.Flatten(), nn.Linear(16 * 16, 8))
    graph = from_torch(net, (torch.zeros(2, 3, 8, 8),))
    parts = two_parts(graph, wrt=graph.trainable, dtype="float16", layout="NHWC", blocks=True)
    made = {
        name: [
            str(b.value.args[0].name_hint)
            for b in parts.module[name].body.blocks[0].bindings
            if op_name(b.value) == "relax.call_tir"
        ]
        for name in (FORWARD, BACKWARD)
    }
    assert made == {
        FORWARD: ["space_to_depth", "filter_to_depth"],
        BACKWARD: ["space_to_depth", "filter_from_depth"],
    }
    relax.analysis.well_formed(parts.module)


def _all(module: Any) -> list[Any]:
    return [module, *(inner for part in module.imports for inner in _all(part))]
