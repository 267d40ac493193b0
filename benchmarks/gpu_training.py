"""One training step on a GPU, convolutions on cuDNN: errors and time beside PyTorch's.

    python -m benchmarks.gpu_training [--model resnet50] [--batch 64] [--dtypes f32,f16]
                                      [--image-size N] [--layout NHWC] [--written-out] [--json FILE]
                                      [--without-blocks] [--form blocks|rows|windows]
    python -m benchmarks.gpu_training --against eager,compile,graphs [--model all|NAMES]
                                      [--batch 256] [--dtypes f16,bf16,tf32] [--json FILE]
                                      [--resume] [--time-budget SECONDS] [--jobs N] [--together]
                                      [--twice] [--select measured]

With `--against` each side is a process of its own, or all of PyTorch's are one (`--together`), and
a model is one of torchvision's or timm's, `unet`, or `onnx:` and a bundled one:
`benchmarks.gpu_against`, `gpu_turns`, `gpu_sides`, `gpu_models`.  `--against cudnn,…` has our step
without our own convolution kernels too, which "ours" has where they are known to be faster.

A dtype followed by "+wide" keeps weights' gradients in float32 to the end; without it they are
rounded to half once, as PyTorch's are.

"error" is the distance of all parameters' gradients together from PyTorch's in float64 on the same
device, relative to their norm; "torch" is the same for PyTorch's own step: eager, channels_last,
tf32 allowed as for ours, and autocast with a loss scale for half precision.  Times are of forward
and backward by device events, in alternating rounds; "graph" is ours captured as a CUDA graph.
"""

from __future__ import annotations

import argparse
import statistics
import time
from datetime import date
from typing import Any

import numpy as np
import torch
import tvm
from rich.console import Console
from rich.table import Table

import byoc_cudnn
import relay_wgrad
from benchmarks import gpu_against
from benchmarks.gpu_timing import milliseconds
from byoc_cudnn.norm import CODEGEN
from relay_wgrad import output
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
ROUNDS, CALLS = 5, 4
CONVOLUTION, NORM = "convolutions", "normalizations"


def distance(got: list[torch.Tensor], want: list[torch.Tensor]) -> float:
    """Over all parameters together: ||got - want|| / ||want||."""
    squares = [
        (((a.double() - b) ** 2).sum(), (b**2).sum()) for a, b in zip(got, want, strict=True)
    ]
    return float((sum(s for s, _ in squares) / sum(s for _, s in squares)) ** 0.5)


def measure(
    model: str,
    batch: int,
    image_size: int | None,
    row: str,
    layout: str,
    raise_norms: bool,
    blocks: bool | str,
) -> dict[str, Any]:
    dtype, _, more = row.partition("+")
    half, wide = DTYPES[dtype], more == "wide"
    graph = from_onnx(model, batch=batch, image_size=image_size)
    values = graph.random_batch(0)
    began = time.perf_counter()
    module = step_module(
        graph, dtype=half, scaled=half is not None, wide_weight_gradients=wide,
        raise_norms=raise_norms,
    )  # fmt: skip
    module, report = byoc_cudnn.partition_for_cudnn(
        converted(module, layout, blocks=blocks), benchmark=True, products=True
    )
    partitioned = time.perf_counter()
    library = byoc_cudnn.build(module, pipeline=cuda_pipeline(keep_memory=True))
    device = tvm.cuda(0)
    vm = library.virtual_machine(device)
    built = time.perf_counter()
    arrays = [values[s.name] for s in graph.inputs] + list(graph.params.values())
    arrays += [np.float32(SCALE)] if half is not None else []
    args = [tvm.runtime.tensor(np.asarray(a), device) for a in arrays]

    def ours() -> Any:
        return vm[ADJOINT](*args)

    eager = prepared(
        model, graph, values, "train", device="cuda", channels_last=True, follow_statistics=False
    )

    def pytorch() -> Any:
        kind = torch.bfloat16 if half == "bfloat16" else torch.float16
        with torch.autocast("cuda", dtype=kind, enabled=half is not None):
            return eager(SCALE if half is not None else 1.0)

    exact = prepared(model, graph, values, "train", device="cuda", dtype=torch.float64)
    want = list(exact()[2])
    theirs = distance(list(pytorch()[2]), want)
    got = [torch.from_numpy(g.numpy()).cuda() for g in ours()[1]]
    mine = distance(got, want)
    rounds = [(milliseconds([ours], CALLS), milliseconds([pytorch], CALLS)) for _ in range(ROUNDS)]
    graph_of_step = Captured(cuda_runtime(), vm, ADJOINT, args, device)
    repeated = [torch.from_numpy(g.numpy()).cuda() for g in graph_of_step.replay()[1]]
    replays = [milliseconds([graph_of_step.replay], CALLS) for _ in range(ROUNDS)]
    spent = _profile(library, vm, args)
    return {
        "model": model, "batch": batch, "image": list(graph.inputs[0].shape[2:]), "dtype": row,
        "layout": layout, "blocks": blocks,
        "offloaded": report.offloaded, "convolutions": report.total,
        "error": mine, "torch_error": theirs,
        "ms": statistics.median(a for a, _ in rounds),
        "torch_ms": statistics.median(b for _, b in rounds),
        "rounds": rounds, "graph_ms": statistics.median(replays),
        "graph_error": distance(repeated, want), "profiled_ms": sum(spent.values()),
        "convolution_ms": spent.get(CONVOLUTION, 0.0), "norm_ms": spent.get(NORM, 0.0),
        "longest_ms": dict(list(spent.items())[:20]),
        "partition_s": partitioned - began, "build_s": built - partitioned,
    }  # fmt: skip


def _profile(library: Any, vm: Any, args: list[Any]) -> dict[str, float]:
    """Milliseconds of each kind of kernel, each call waited for; a run of its own."""
    spent: dict[str, float] = {}
    began = 0.0

    def instrument(func: Any, name: str, before: bool, ret: Any, *rest: Any) -> int:
        nonlocal began
        torch.cuda.synchronize()
        if before:
            began = time.perf_counter()
        else:
            kind = name.rstrip("0123456789")
            if name.startswith("relay_wgrad_"):
                kind = NORM if name.startswith(CODEGEN) else CONVOLUTION
            spent[kind] = spent.get(kind, 0.0) + (time.perf_counter() - began) * 1e3
        return 0

    other = library.virtual_machine(tvm.cuda(0))
    other[ADJOINT](*args)
    other.set_instrument(instrument)
    other[ADJOINT](*args)
    return dict(sorted(spent.items(), key=lambda item: -item[1]))


def main() -> int:
    """Runs the rows that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_training")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=None)
    parser.add_argument("--dtypes", default="f32,f16")
    parser.add_argument("--layout", default="NHWC", choices=("NHWC", "NCHW"))
    parser.add_argument(
        "--written-out", action="store_true", help="batch normalization as front ends write it"
    )
    parser.add_argument(
        "--without-blocks", action="store_true", help="convolutions of few channels as they are"
    )
    parser.add_argument("--form", default="auto", choices=("auto", *FORMS), help="of those")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--against", help="PyTorch's eager, compile, graphs; or step, cudnn")
    parser.add_argument("--resume", action="store_true", help="keep the rows that FILE has")
    parser.add_argument("--time-budget", type=float, metavar="SECONDS")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="of --against")
    parser.add_argument(
        "--jobs", type=int, help="processes that build at a time: cores, if not set"
    )
    parser.add_argument(
        "--together", action="store_true", help="PyTorch's sides in one process: cuDNN tunes once"
    )
    parser.add_argument(
        "--twice", action="store_true",
        help="build the first row before, with empty caches and again with full ones",
    )  # fmt: skip
    parser.add_argument(
        "--longest-turn", type=float, default=180.0, metavar="SECONDS", help="of one on the GPU"
    )
    parser.add_argument("--select", default="first", choices=("first", "measured"))
    args = parser.parse_args()
    if args.against is not None:
        return gpu_against.run(args)
    if args.model not in BUNDLED:
        parser.error(f"--model must be one of {', '.join(BUNDLED)}, got {args.model!r}")
    if not torch.cuda.is_available():
        parser.error("no CUDA device that PyTorch can use")
    choose_compiler()
    relay_wgrad.register()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = True
    table = Table(title=f"{args.model}, batch {args.batch}: forward and backward")
    for name in ("dtype", "offloaded", "error", "torch's", "ms", "graph ms", "torch's ms", "ratio",
                 "all kernels ms", "convolutions ms", "norms ms", "build s"):  # fmt: skip
        table.add_column(name, justify="right")
    rows = []
    for dtype in args.dtypes.split(","):
        r = measure(
            args.model, args.batch, args.image_size, dtype, args.layout, not args.written_out,
            False if args.without_blocks else args.form,
        )  # fmt: skip
        rows.append(r)
        table.add_row(
            dtype, f"{r['offloaded']}/{r['convolutions']}", f"{r['error']:.2e}",
            f"{r['torch_error']:.2e}", f"{r['ms']:.2f}", f"{r['graph_ms']:.2f}",
            f"{r['torch_ms']:.2f}",
            f"{r['ms'] / r['torch_ms']:.2f}", f"{r['profiled_ms']:.1f}",
            f"{r['convolution_ms']:.1f}", f"{r['norm_ms']:.1f}", f"{r['build_s']:.0f}",
        )  # fmt: skip
        if args.json:
            facts = {
                "date": date.today().isoformat(), "gpu": torch.cuda.get_device_name(),
                "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(), "rows": rows,
            }  # fmt: skip
            output.write_json(args.json, facts)
    Console(width=140).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
