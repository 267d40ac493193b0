"""Loss and gradients of the nine architectures before and after layout conversion, in float64.

Each network's training step (He's weights, one fixed batch, batch normalization in training mode)
is compiled in NCHW and in NHWC and run on the same values.  The error of a parameter's gradient is
the norm of the difference over the norm of the gradient in NCHW.

One kind of parameter has no norm to divide by: what adds a constant to a channel (a convolution's
bias, a normalization's shift) where a batch normalization takes the channel's mean away again, as
it is or after a convolution without padding.  Its gradient is zero, and what is computed is
rounding.  There the norm of the gradient of the factor beside it (the convolution's weight, the
normalization's scale) is taken: both are sums over the same incoming gradient.

PyTorch's gradients, also in float64, are compared with ours in NHWC in the same way.  Each network
is a process of its own.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from benchmarks import child
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from relay_wgrad.frontend import from_onnx
from relay_wgrad.frontend.onnx.model_source import load

TOLERANCE = 1e-10
BATCH = 2
# Side of the image; the others have their own size (224) built into a Reshape, and get one image.
# At 64 the last maps are 2x2.  At 32 they would be single pixels, and training-mode normalization
# of two values is so ill-conditioned that it would compare rounding, not programs.
SIDES = dict.fromkeys(
    ("squeezenet", "shufflenet", "inception_v1", "inception_v2", "resnet50", "densenet121"), 64
)
ORDER = (*SIDES, "alexnet", "zfnet512", "vgg19")


def zero_gradients(proto: onnx.ModelProto) -> dict[str, str]:
    """Shifts without effect -> the factor beside each, as names in the file."""
    readers = defaultdict(list)
    for node in proto.graph.node:
        for name in node.input:
            readers[name].append(node)

    def taken_away(name: str) -> bool:
        """Whether a constant added to a channel of this tensor changes nothing."""
        if len(readers[name]) != 1:
            return False
        (node,) = readers[name]
        attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "Conv" and not any(attrs.get("pads", [])):
            return taken_away(node.output[0])  # a constant in every channel of the result
        return node.op_type == "BatchNormalization"

    return {
        node.input[2]: node.input[1]  # of both ops: bias and weight, shift and scale
        for node in proto.graph.node
        if node.op_type in ("Conv", "BatchNormalization")
        and len(node.input) > 2
        and taken_away(node.output[0])
    }


def compare(
    got: dict[str, np.ndarray], want: dict[str, np.ndarray], zeros: dict[str, str]
) -> dict[str, Any]:
    """The worst error of any gradient, by `want`'s norm, or for `zeros` by their factor's."""
    errors = {}
    for name, value in want.items():
        scale = np.linalg.norm(want[zeros.get(name, name)])
        errors[name] = float(np.linalg.norm(got[name] - value) / scale)
    worst = max(errors, key=lambda name: errors[name])
    return {"worst": errors[worst], "parameter": worst, "parameters": len(errors)}


def measure(name: str, limit: float) -> Row:
    """One row, in this process."""
    import torch
    import tvm

    import relay_wgrad
    from legalize.cpu import host_target
    from relay_wgrad.cores import configure_threads
    from relay_wgrad.training.compiled import compile_module
    from relay_wgrad.training.step import ADJOINT, step_module
    from relay_wgrad.transform import ConvertLayout, layout_changes
    from tests.support.torch.model import torch_step

    relay_wgrad.register()
    configure_threads()
    side = SIDES.get(name)
    graph = from_onnx(name, batch=BATCH if side else 1, image_size=side, dtype="float64")
    batch = graph.random_batch(0)
    ours = {file: mine for mine, file in graph.onnx_names.items()}
    zeros = {ours[b]: ours[w] for b, w in zero_gradients(load(name)[1]).items()}
    loss, _, found, _ = torch_step(name, graph, batch, "train", dtype=torch.float64)
    torch_loss = float(loss.detach())
    torch_want = dict(zip(graph.trainable, (g.numpy() for g in found), strict=True))
    module = step_module(graph)
    # Small images take no time, so LLVM may leave their code as it is; compiling takes a third.
    target = host_target()
    if side:
        target = tvm.target.Target({**target.export(), "opt-level": 0})
    converted = ConvertLayout("NHWC", functions=[ADJOINT])(module)
    results, seconds = {}, {}
    for layout, program in (("NCHW", module), ("NHWC", converted)):
        start = time.perf_counter()
        compiled = compile_module(program, target)
        seconds[layout] = time.perf_counter() - start
        convolutions = compiled.convolutions
        # What is compared must be two programs: every kernel's own layouts say so.
        if not all(f"layout={layout}/" in conv.problem for conv in convolutions):
            raise RuntimeError(f"{name}: not every convolution is in {layout}")
        arguments = [tvm.runtime.tensor(v) for v in graph.arguments(batch)]
        outputs, gradients = compiled.vm[ADJOINT](*arguments)
        named = zip(graph.trainable, (g.numpy() for g in gradients), strict=True)
        results[layout] = (float(outputs[0].numpy()), dict(named))
        # Twice the parameters, their gradients and the workspace of VGG-19 would be gigabytes.
        del compiled, arguments, outputs, gradients
    (loss_nchw, want), (loss_nhwc, got) = results["NCHW"], results["NHWC"]
    row: Row = {
        "image": list(graph.inputs[0].shape),
        "convolutions": len(convolutions),
        "layout_changes": len(layout_changes(converted[ADJOINT])),
        "loss": loss_nchw,
        "loss_error": abs(loss_nhwc - loss_nchw) / abs(loss_nchw),
        "layouts": compare(got, want, zeros),
        "torch_loss_error": abs(loss_nhwc - torch_loss) / abs(torch_loss),
        "torch": compare(got, torch_want, zeros),
        "zero_gradients": sorted(zeros),
        "compile_seconds": seconds,
    }
    if not max(row["loss_error"], row["layouts"]["worst"]) <= limit:
        row["reason"] = f"the layouts differ: {row['layouts']}, loss {row['loss_error']:.1e}"
    return row


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for name in args.suite:
        yield Case({"model": name})


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    return lambda case: child.row(measure, case.key["model"], args.limit)


BENCHMARK = Benchmark(
    cases, begin, suites=ORDER,
    options={"limit": Option(TOLERANCE, "relative error of loss and gradients")},
    columns=(
        ("model",), ("image", lambda row: "×".join(map(str, row["image"]))),
        ("parameters", "layouts.parameters"), ("NHWC: loss", "loss_error", ".1e"),
        ("worst gradient", "layouts.worst", ".1e"), ("of", "layouts.parameter"),
        ("PyTorch: loss", "torch_loss_error", ".1e"), ("worst gradient", "torch.worst", ".1e"),
        ("of", "torch.parameter"), ("reason",),
    ),
)  # fmt: skip
