"""Loss and gradients of the nine architectures before and after layout conversion, in float64.

    python -m benchmarks.layout_equality [--models NAME,…] [--limit 1e-10] [--json FILE]

Each network's training step (He's weights, one fixed batch, batch normalization in training mode)
is compiled in NCHW and in NHWC and run on the same values.  The error of a parameter's gradient is
the norm of the difference over the norm of the gradient in NCHW.

One kind of parameter has no norm to divide by: what adds a constant to a channel (a convolution's
bias, a normalization's shift) where a batch normalization takes the channel's mean away again, as
it is or after a convolution without padding.  Its gradient is zero, and what is computed is
rounding.  There the norm of the gradient of the factor beside it (the convolution's weight, the
normalization's scale) is taken: both are sums over the same incoming gradient.

PyTorch's gradients, also in float64, are compared with ours in NHWC in the same way.

Each network is a process of its own.  Exit status 1 if one is past the limit or fails.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import platform
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from rich.console import Console
from rich.table import Table

from relay_wgrad import output
from relay_wgrad.frontend import BUNDLED, TrainingGraph
from relay_wgrad.frontend.onnx.model_source import load

Attrs = dict[str, Any]
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


def torch_run(
    proto: onnx.ModelProto, graph: TrainingGraph, batch: dict[str, np.ndarray]
) -> tuple[float, dict[str, np.ndarray]]:
    """(loss, gradients) of the file's nodes, run by PyTorch in training mode."""
    import torch
    import torch.nn.functional as fn

    def around(a: Attrs) -> tuple[int, ...]:
        top, left, bottom, right = a.get("pads", [0] * 4)
        return left, right, top, bottom

    def conv(a: Attrs, x: Any, *weights: Any) -> Any:
        x = fn.pad(x, around(a))
        return fn.conv2d(x, *weights, stride=a.get("strides", [1, 1]), groups=a.get("group", 1))

    def max_pool(a: Attrs, x: Any) -> Any:
        padded = fn.pad(x, around(a), value=-torch.inf)
        return fn.max_pool2d(padded, a["kernel_shape"], a.get("strides", [1, 1]))

    def average_pool(a: Attrs, x: Any) -> Any:
        if a["kernel_shape"] == [7, 7]:  # the whole map, whatever the image's size
            return x.mean((2, 3), keepdim=True)
        ones = fn.pad(torch.ones_like(x), around(a))  # no padded pixel counts
        window = a["kernel_shape"], a.get("strides", [1, 1])
        return fn.avg_pool2d(fn.pad(x, around(a)), *window) / fn.avg_pool2d(ones, *window)

    def reshape(a: Attrs, x: Any, target: Any) -> Any:
        if math.prod(target.tolist()) == x.numel():
            return x.reshape(target.tolist())
        # Written for one image of 224x224: batch and maps are x's.
        maps = [*target.tolist()[1:-2], *x.shape[-2:]] if len(target) > 3 else [-1]
        return x.reshape(x.shape[0], *maps)

    def unsqueeze(a: Attrs, x: Any) -> Any:
        return x.reshape(*x.shape, *[1] * len(a["axes"]))  # of vectors, behind

    ops: dict[str, Callable[..., Any]] = {
        "Conv": conv,
        "BatchNormalization": lambda a, x, scale, shift, mean, var: fn.batch_norm(
            x, None, None, scale, shift, training=True, eps=a.get("epsilon", 1e-5)
        ),
        "Relu": lambda a, x: fn.relu(x),
        "LRN": lambda a, x: fn.local_response_norm(x, a["size"], a["alpha"], a["beta"], a["bias"]),
        "MaxPool": max_pool,
        "AveragePool": average_pool,
        "GlobalAveragePool": lambda a, x: x.mean((2, 3), keepdim=True),
        "Concat": lambda a, *xs: torch.cat(xs, a["axis"]),
        "Sum": lambda a, x, *more: sum(more, x),
        "Add": lambda a, x, y: x + y,
        "Mul": lambda a, x, y: x * y,
        "Unsqueeze": unsqueeze,
        "Transpose": lambda a, x: x.permute(a["perm"]),
        "Reshape": reshape,
        "Dropout": lambda a, x: x,
        "Gemm": lambda a, x, w, b: x @ (w.T if a.get("transB") else w) + b,
    }
    values = {
        n: torch.tensor(v, requires_grad=n in graph.trainable) for n, v in graph.params.items()
    }
    env = {t.name: torch.tensor(numpy_helper.to_array(t)) for t in proto.graph.initializer}
    env |= {file: values[name] for name, file in graph.onnx_names.items()}
    image = next(i.name for i in proto.graph.input if i.name not in env)
    env[image] = torch.tensor(batch[graph.inputs[0].name])
    last = None
    for node in proto.graph.node:
        if node.op_type == "Softmax":
            break
        if node.op_type != "ConstantOfShape":  # the file's weights, replaced
            attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            last = ops[node.op_type](attrs, *[env[name] for name in node.input])
            env[node.output[0]] = last
    loss = fn.cross_entropy(last.flatten(1), torch.tensor(batch["labels"]))
    gradients = torch.autograd.grad(loss, [values[n] for n in graph.trainable])
    return loss.item(), dict(zip(graph.trainable, (g.numpy() for g in gradients), strict=True))


def measure(name: str) -> dict[str, Any]:
    """One row, in this process."""
    import tvm

    import relay_wgrad
    from legalize.cpu import host_target
    from relay_wgrad.cores import configure_threads
    from relay_wgrad.frontend import from_onnx
    from relay_wgrad.training.compiled import compile_module
    from relay_wgrad.training.step import ADJOINT, step_module
    from relay_wgrad.transform import ConvertLayout, layout_changes

    relay_wgrad.register()
    configure_threads()
    side = SIDES.get(name)
    graph = from_onnx(name, batch=BATCH if side else 1, image_size=side, dtype="float64")
    batch = graph.random_batch(0)
    proto = load(name)[1]
    ours = {file: mine for mine, file in graph.onnx_names.items()}
    zeros = {ours[b]: ours[w] for b, w in zero_gradients(proto).items()}
    torch_loss, torch_want = torch_run(proto, graph, batch)
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
    (loss, want), (loss_nhwc, got) = results["NCHW"], results["NHWC"]
    return {
        "model": name,
        "image": list(graph.inputs[0].shape),
        "convolutions": len(convolutions),
        "layout_changes": len(layout_changes(converted[ADJOINT])),
        "loss": loss,
        "loss_error": abs(loss_nhwc - loss) / abs(loss),
        "layouts": compare(got, want, zeros),
        "torch_loss_error": abs(loss_nhwc - torch_loss) / abs(torch_loss),
        "torch": compare(got, torch_want, zeros),
        "zero_gradients": sorted(zeros),
        "compile_seconds": seconds,
    }


def row(name: str) -> dict[str, Any]:
    """One row, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.layout_equality", "--row", name],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return {"model": name, "error": lines[-1]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def good(r: dict[str, Any], limit: float) -> bool:
    """Whether loss and every gradient agree in both layouts."""
    return "error" not in r and max(r["loss_error"], r["layouts"]["worst"]) <= limit


def table(rows: list[dict[str, Any]], limit: float) -> Table:
    """The rows for people."""
    out = Table(title="Relative error of loss and gradients, float64")
    for column in ("", "image", "parameters", "NHWC: loss", "worst gradient", "of",
                   "PyTorch: loss", "worst gradient", "of"):  # fmt: skip
        out.add_column(column)
    for r in rows:
        if "error" in r:
            out.add_row(r["model"], "", "", r["error"])
            continue
        out.add_row(
            r["model"] + ("" if good(r, limit) else " !"), "×".join(map(str, r["image"])),
            str(r["layouts"]["parameters"]),
            f"{r['loss_error']:.1e}", f"{r['layouts']['worst']:.1e}", r["layouts"]["parameter"],
            f"{r['torch_loss_error']:.1e}", f"{r['torch']['worst']:.1e}", r["torch"]["parameter"],
        )  # fmt: skip
    return out


def machine() -> dict[str, str]:
    """Where and with what this was measured."""
    from importlib.metadata import version

    cpu = "unknown"
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [v for v in info.read_text(encoding="ascii").splitlines() if "model name" in v]
        cpu = names[0].partition(":")[2].strip() if names else cpu
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu,
        "python": platform.python_version(),
        **{p: version(p) for p in ("apache-tvm", "numpy", "onnx", "torch")},
    }


def main() -> int:
    """Runs the rows that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layout_equality")
    parser.add_argument("--models", default=",".join(ORDER))
    parser.add_argument("--limit", type=float, default=TOLERANCE)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        print(json.dumps(measure(args.row)))
        return 0
    names = args.models.split(",")
    if unknown := [name for name in names if name not in BUNDLED]:
        parser.error(f"unknown model {unknown[0]!r}: there are {', '.join(BUNDLED)}")
    rows: list[dict[str, Any]] = []
    for name in names:
        rows.append(row(name))
        print(f"{name}: {rows[-1].get('error', 'done')}", file=sys.stderr)
        if args.json:
            result = {**machine(), "limit": args.limit, "rows": rows}
            output.write_json(args.json, result)
    Console(width=170).print(table(rows, args.limit))
    return 0 if all(good(r, args.limit) for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
