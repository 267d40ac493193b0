"""First layers on a GPU, with few channels as they are and on blocks of pixels, and PyTorch's.

    python -m benchmarks.gpu_stem [--layers resnet50,vgg16] [--dtypes bf16,f16,tf32] [--batch 256]
                                  [--json FILE]

A row is a layer's convolution and its weight gradient, from an image in NCHW and float32 to a
gradient in OIHW and float32; cuDNN's algorithms are chosen by their times on all sides.  "ours" are
channels last as they are, "blocks" after `relay_wgrad.transform.space_to_depth`, "torch" is
PyTorch's channels_last.  Medians of rounds in turns, by events; each kernel's time is a profile's
of one more call, where CUPTI is there.  Errors are relative, in norm, to PyTorch's in float64.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from datetime import date
from typing import Any

import torch
import torch.nn.functional as F
import tvm
from rich.console import Console
from rich.table import Table
from tvm import relax

import byoc_cudnn
import relay_wgrad
from benchmarks.gpu_timing import arithmetic, relative
from relay_wgrad import output
from relay_wgrad.attrs import ConvAttrs
from relay_wgrad.ops.algebra import fprop_call, wgrad_call
from relay_wgrad.pipeline.cuda import cuda_pipeline
from relay_wgrad.transform import space_to_depth
from tests.support.gpu.runner import choose_compiler

# channels, filters, side, taps, stride, padding
LAYERS = {
    "resnet50": (3, 64, 224, 7, 2, 3),
    "mobilenet_v2": (3, 32, 224, 3, 2, 1),
    "vgg16": (3, 64, 224, 3, 1, 1),
    "unet": (1, 64, 256, 3, 1, 1),
    "convnext": (3, 96, 224, 4, 4, 0),
    "vit": (3, 768, 224, 16, 16, 0),
}
DTYPES = {"bf16": "bfloat16", "f16": "float16", "tf32": "float32", "f32": "float32"}
ROUNDS, CALLS = 7, 10
Call = Callable[[], Any]


def module(layer: tuple[int, ...], batch: int, dtype: str) -> tvm.IRModule:
    """`main`: (image, filter, gradient of the result) to (result, gradient of the filter)."""
    c, k, side, taps, stride, pad = layer
    size = (side + 2 * pad - taps) // stride + 1
    image = relax.Var("image", relax.TensorType((batch, c, side, side), "float32"))
    weight = relax.Var("weight", relax.TensorType((k, c, taps, taps), "float32"))
    dy = relax.Var("dy", relax.TensorType((batch, size, size, k), dtype))
    plain = ConvAttrs((stride,) * 2, (pad,) * 4, data_layout="NHWC", kernel_layout="OHWI",
                      grad_layout="NHWC")  # fmt: skip
    bb = relax.BlockBuilder()

    def last(tensor: Any) -> Any:
        moved = bb.emit(relax.op.permute_dims(tensor, [0, 2, 3, 1]))
        return moved if dtype == "float32" else bb.emit(relax.op.astype(moved, dtype))

    with bb.function("main", [image, weight, dy]):
        with bb.dataflow():
            x, w = last(image), last(weight)
            y = bb.emit(fprop_call(x, w, plain))
            sized = ConvAttrs(**{**vars(plain), "kernel_size": (taps, taps)})
            dw = bb.emit(wgrad_call(dy, x, sized))
            wide = dw if dtype == "float32" else bb.emit(relax.op.astype(dw, "float32"))
            moved = bb.emit(relax.op.permute_dims(wide, [0, 3, 1, 2]))
            both = bb.emit_output(relax.Tuple([y, moved]))
        bb.emit_func_output(both)
    return bb.get()


def ours(mod: tvm.IRModule, args: list[Any], tf32: bool) -> Call:
    """A call of a module's function."""
    mod, report = byoc_cudnn.partition_for_cudnn(mod, benchmark=True, allow_tf32=tf32, strict=True)
    assert report.offloaded == 2
    library = byoc_cudnn.build(mod, pipeline=cuda_pipeline(keep_memory=True))
    vm = library.virtual_machine(tvm.cuda(0))
    return lambda: vm["main"](*args)


def by_torch(layer: tuple[int, ...], given: list[torch.Tensor], dtype: torch.dtype) -> Call:
    stride, pad = layer[-2:]
    image, weight, dy = given
    channels_last: Any = torch.channels_last
    kind = torch.ops.aten.convolution_backward

    def call() -> Any:
        x = image.to(dtype=dtype, memory_format=channels_last)
        w = weight.to(dtype=dtype, memory_format=channels_last)
        y = F.conv2d(x, w, None, stride, pad)
        dw = kind(
            dy.permute(0, 3, 1, 2), x, w, None, (stride,) * 2, (pad,) * 2, (1, 1), False, (0, 0), 1,
            (False, True, False),
        )[1]  # fmt: skip
        return y.permute(0, 2, 3, 1), dw.float().contiguous()

    return call


def milliseconds(call: Call) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(CALLS):
        call()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / CALLS


def kernels(call: Call) -> dict[str, float]:
    """Microseconds of each kernel of a call, by CUPTI; empty without it."""
    try:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as found:
            call()
            torch.cuda.synchronize()
        times = {e.key[:80]: float(e.self_device_time_total) for e in found.key_averages()}
    except (AttributeError, ImportError, RuntimeError):
        return {}
    return {k: t for k, t in sorted(times.items(), key=lambda item: -item[1]) if t > 0}


def tensors(result: Any) -> list[torch.Tensor]:
    return [t if isinstance(t, torch.Tensor) else torch.from_dlpack(t) for t in result]


def measure(name: str, mode: str, batch: int) -> dict[str, Any]:
    layer, dtype = LAYERS[name], getattr(torch, DTYPES[mode])
    c, k, side, taps, stride, pad = layer
    size, generator = (side + 2 * pad - taps) // stride + 1, torch.Generator("cuda").manual_seed(0)
    given = [
        torch.randn(shape, device="cuda", dtype=kind, generator=generator)
        for shape, kind in (
            ((batch, c, side, side), torch.float32), ((k, c, taps, taps), torch.float32),
            ((batch, size, size, k), dtype),
        )
    ]  # fmt: skip
    args = [tvm.runtime.from_dlpack(t) for t in given]
    plain = module(layer, batch, DTYPES[mode])
    blocks, entries = space_to_depth(plain)
    tf32 = mode != "f32"
    with arithmetic(tf32):
        calls = {
            "ours": ours(plain, args, tf32), "blocks": ours(blocks, args, tf32),
            "torch": by_torch(layer, given, dtype),
        }  # fmt: skip
        rounded = [t.to(dtype).double() for t in given]
        exact = by_torch(layer, rounded, torch.float64)()
        del rounded
        errors = {
            side: [relative(a, b) for a, b in zip(tensors(call()), exact, strict=True)]
            for side, call in calls.items()
        }
        del exact
        torch.cuda.empty_cache()
        rounds = [{side: milliseconds(call) for side, call in calls.items()} for _ in range(ROUNDS)]
        spent = {side: kernels(call) for side, call in calls.items()}
    return {
        "layer": name, "mode": mode, "batch": batch, "became": [e.became for e in entries],
        "ms": {side: statistics.median(r[side] for r in rounds) for side in calls},
        "error": errors, "kernels_us": spent,
    }  # fmt: skip


def main() -> int:
    """Measures what the command line asks for; 1 where blocks are further off than PyTorch."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_stem")
    parser.add_argument("--layers", default=",".join(LAYERS))
    parser.add_argument("--dtypes", default="bf16,f16,tf32")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    for what, names, known in (
        ("--layers", args.layers.split(","), LAYERS), ("--dtypes", args.dtypes.split(","), DTYPES),
    ):  # fmt: skip
        if unknown := [n for n in names if n not in known]:
            parser.error(f"{what}: {', '.join(unknown)} is none of {', '.join(known)}")
    if not torch.cuda.is_available():
        parser.error("no CUDA device that PyTorch can use")
    choose_compiler()
    relay_wgrad.register()
    table = Table(title=f"first layers, batch {args.batch}: fprop and wgrad, ms")
    for column in ("layer", "dtype", "ours", "blocks", "torch", "errors", "torch's", "kernels, us"):
        table.add_column(column, justify="left" if column[0] in "lk" else "right")
    rows, good = [], True
    for mode in args.dtypes.split(","):
        for name in args.layers.split(","):
            r = measure(name, mode, args.batch)
            rows.append(r)
            mine, theirs = r["error"]["blocks"], r["error"]["torch"]
            good &= all(a <= 2 * b + 1e-5 for a, b in zip(mine, theirs, strict=True))
            parts = [f"{us:.0f} {key[:44]}" for key, us in r["kernels_us"]["blocks"].items()]
            table.add_row(
                name, mode, *(f"{ms:.3f}" for ms in r["ms"].values()),
                *(" ".join(f"{e:.1e}" for e in pair) for pair in (mine, theirs)), "\n".join(parts),
            )  # fmt: skip
            if args.json:
                facts = {
                    "date": date.today().isoformat(), "gpu": torch.cuda.get_device_name(),
                    "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(),
                }  # fmt: skip
                output.write_json(args.json, {**facts, "rows": rows})
    Console(width=150).print(table)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
