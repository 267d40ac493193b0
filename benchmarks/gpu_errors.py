"""A training step's gradients on a GPU: how far they are from float64's, beside PyTorch's.

"error" is the distance of all parameters' gradients together from PyTorch's in float64 on the same
device, relative to their norm; "torch" is the same for PyTorch's own step: eager, channels_last,
tf32 allowed as for ours, and autocast with a loss scale for half precision.  A dtype followed by
"+wide" keeps weights' gradients in float32 to the end; without it they are rounded to half once, as
PyTorch's are.  Our step is that of a trainer, with convolutions on cuDNN, called and captured as a
CUDA graph; what it takes is `benchmarks gpu steps`'.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import tvm

import byoc_cudnn
import relay_wgrad
from benchmarks.errors import distance
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from relay_wgrad.frontend import BUNDLED, from_onnx
from relay_wgrad.pipeline.cuda import cuda_pipeline
from relay_wgrad.training.capture import Captured
from relay_wgrad.training.cuda_tools import cuda_runtime
from relay_wgrad.training.step import ADJOINT, converted, step_module
from relay_wgrad.transform.depth_blocks import FORMS
from tests.support.gpu.runner import choose_compiler
from tests.support.torch.model import prepared

DTYPES = {"f32": None, "f16": "float16", "bf16": "bfloat16"}
SCALE = 1024.0


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for model, dtype in itertools.product(args.suite, args.dtypes):
        yield Case({"model": model, "dtype": dtype, "batch": args.batch})


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    choose_compiler()
    relay_wgrad.register()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = True
    return lambda case: measure(**case.key, args=args)


def measure(model: str, dtype: str, batch: int, args: argparse.Namespace) -> Row:
    name, _, more = dtype.partition("+")
    half = DTYPES[name]
    graph = from_onnx(model, batch=batch, image_size=args.image or None)
    values = graph.random_batch(0)
    module = step_module(
        graph, dtype=half, scaled=half is not None, wide_weight_gradients=more == "wide",
        raise_norms=not args.written_out,
    )  # fmt: skip
    blocks: bool | str = False if args.form == "none" else args.form
    module, report = byoc_cudnn.partition_for_cudnn(
        converted(module, args.layout, blocks=blocks), benchmark=True, products=True
    )
    library = byoc_cudnn.build(module, pipeline=cuda_pipeline(keep_memory=True))
    device = tvm.cuda(0)
    vm = library.virtual_machine(device)
    arrays = [values[s.name] for s in graph.inputs] + list(graph.params.values())
    arrays += [np.float32(SCALE)] if half is not None else []
    given = [tvm.runtime.tensor(np.asarray(a), device) for a in arrays]
    eager = prepared(
        model, graph, values, "train", device="cuda", channels_last=True, follow_statistics=False
    )
    exact = prepared(model, graph, values, "train", device="cuda", dtype=torch.float64)
    want = list(exact()[2])
    kind = torch.bfloat16 if half == "bfloat16" else torch.float16
    with torch.autocast("cuda", dtype=kind, enabled=half is not None):
        theirs = distance(list(eager(SCALE if half is not None else 1.0)[2]), want)

    def far(result: Any) -> float:
        return distance([torch.from_numpy(g.numpy()).cuda() for g in result[1]], want)

    called = far(vm[ADJOINT](*given))
    captured = far(Captured(cuda_runtime(), vm, ADJOINT, given, device).replay())
    return {"offloaded": report.offloaded, "convolutions": report.total, "error": called,
            "graph_error": captured, "torch_error": theirs, "ratio": called / theirs}  # fmt: skip


BENCHMARK = Benchmark(
    cases, begin, suites=BUNDLED, by=("dtype",),
    options={
        "dtypes": Option(("f32", "f16"), "f32, f16, bf16, and +wide"),
        "batch": Option(64, "images"),
        "image": Option(0, "the image's side; the network's own, if 0"),
        "layout": Option("NHWC", "of our step", ("NHWC", "NCHW")),
        "form": Option("auto", "of convolutions of few channels", ("auto", "none", *FORMS)),
        "written_out": Option(False, "batch normalization as front ends write it"),
    },
    columns=(("model",), ("dtype",), ("batch",), ("offloaded",), ("convolutions",),
             ("error", None, ".2e"), ("captured", "graph_error", ".2e"),
             ("PyTorch's", "torch_error", ".2e"), ("ratio", None, ".2f"), ("reason",)),
)  # fmt: skip
