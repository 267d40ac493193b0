"""First layers on a GPU, with few channels as they are and on blocks of pixels, and PyTorch's.

A row is a layer's convolution and its weight gradient, from an image in NCHW and float32 to a
gradient in OIHW and float32; cuDNN's algorithms are chosen by their times on all sides.  "ours" are
channels last as they are; "blocks", "rows" and "windows" are the forms of
`relay_wgrad.transform.space_to_depth`, with "128" after it filled up to 128 bytes of channels, with
"-wgmma" by CUTLASS's kernels for Hopper, which nvcc builds, and which take half precision alone;
"torch" is PyTorch's channels_last.  A form that is like one before it, as patches' are, is not
measured again.  "auto" is the form that steps get, "predicted" are milliseconds by which it is
chosen (`relay_wgrad.transform.depth_forms`).  Medians of rounds in turns, by events.  Errors are
relative, in norm, to PyTorch's in float64.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
import tvm
from tvm import relax

import byoc_cudnn
import relay_wgrad
from benchmarks.gpu_timing import arithmetic, milliseconds, relative
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from relay_wgrad.attrs import ConvAttrs
from relay_wgrad.ops.algebra import fprop_call, wgrad_call
from relay_wgrad.pipeline.cuda import cuda_pipeline
from relay_wgrad.problem import DTYPE_BYTES, ConvKind, ConvProblem
from relay_wgrad.transform import space_to_depth
from relay_wgrad.transform.depth_blocks import FORMS, Blocks
from relay_wgrad.transform.depth_forms import form_of, seconds
from relay_wgrad.transform.space_to_depth import MOST, READ_AT_ONCE
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
TORCH = "torch"
SIDES = {  # form, to how many bytes channels are filled up, and whose kernels
    "ours": ("", 16, "cudnn"), "blocks": ("blocks", 16, "cudnn"), "rows": ("rows", 16, "cudnn"),
    "rows128": ("rows", 128, "cudnn"), "windows": ("windows", 16, "cudnn"),
    "blocks-wgmma": ("blocks", 16, "cutlass"), "rows-wgmma": ("rows", 16, "cutlass"),
    "rows128-wgmma": ("rows", 128, "cutlass"), "windows-wgmma": ("windows", 16, "cutlass"),
}  # fmt: skip
HOPPERS: dict[str, Any] = {"arch": 90, "wgmma": True}
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


def forms(plain: tvm.IRModule, sides: Sequence[str]) -> tuple[dict[str, tvm.IRModule], Any]:
    """The modules of our sides, without those that are like another, and what became of each."""
    modules, became = dict[str, tvm.IRModule](), dict[str, list[str]]()
    for side in sides:
        if side == TORCH:
            continue
        form, filled_to, library = SIDES[side]
        made, found = plain, [library]
        if form:
            made, entries = space_to_depth(plain, form=form, filled_to=filled_to)
            found += [entry.became for entry in entries]
        if found not in became.values():
            modules[side], became[side] = made, found
    return modules, became


def compiled(mod: tvm.IRModule, side: str, tf32: bool) -> byoc_cudnn.Library:
    """A module whose convolutions are cuDNN's, by their times, or CUTLASS's; it is not loaded."""
    library = SIDES[side][2]
    options = {"benchmark": True} if library == "cudnn" else HOPPERS
    mod, report = byoc_cudnn.partition(
        mod, (library,), strict=True, **{library: {**options, "allow_tf32": tf32}}
    )
    assert report.offloaded == 2
    return byoc_cudnn.build(mod, pipeline=cuda_pipeline(keep_memory=True))


def ours(library: byoc_cudnn.Library, args: list[Any]) -> Call:
    """A call of a module's function."""
    vm = library.virtual_machine(tvm.cuda(0))
    return lambda: vm["main"](*args)


def predicted(layer: tuple[int, ...], mode: str) -> tuple[str, dict[str, float]]:
    """The form that steps get, and milliseconds of an image in each form, by the model."""
    c, k, side, taps, stride, pad = layer
    dtypes = (DTYPES[mode],) * 3
    problem = ConvProblem(
        ConvKind.FPROP, 1, c, side, side, k, taps, taps, (stride,) * 2, (pad,) * 4, (1, 1), 1,
        "NHWC", "OHWI", "NHWC", *dtypes,
    )  # fmt: skip
    unit = READ_AT_ONCE // DTYPE_BYTES[DTYPES[mode]]
    times = {form: seconds(problem, Blocks.of(problem, unit, form)) * 1e3 for form in FORMS}
    return form_of(problem, unit, MOST), times


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


def tensors(result: Any) -> list[torch.Tensor]:
    return [t if isinstance(t, torch.Tensor) else torch.from_dlpack(t) for t in result]


def measure(
    name: str, mode: str, batch: int, sides: Sequence[str], libraries: Mapping[str, Any]
) -> dict[str, Any]:
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
    rounded = [t.to(dtype).double() for t in given]
    with arithmetic(tf32=False, benchmark=False):
        exact = by_torch(layer, rounded, torch.float64)()
    del rounded
    with arithmetic(mode != "f32"):
        calls = {side: ours(library, args) for side, library in libraries.items()}
        if TORCH in sides:
            calls[TORCH] = by_torch(layer, given, dtype)
        errors = {
            side: [relative(a, b) for a, b in zip(tensors(call()), exact, strict=True)]
            for side, call in calls.items()
        }
        del exact
        torch.cuda.empty_cache()
        rounds = [
            {side: milliseconds([call], CALLS) for side, call in calls.items()}
            for _ in range(ROUNDS)
        ]
    chosen, times = predicted(layer, mode)
    return {
        "layer": name, "mode": mode, "batch": batch, "auto": chosen,
        "predicted_ms": {form: batch * ms for form, ms in times.items()},
        "ms": {side: statistics.median(r[side] for r in rounds) for side in calls},
        "error": errors,
    }  # fmt: skip


def cases(args: argparse.Namespace) -> Iterator[Case]:
    """What is measured of a layer: the modules of its sides, and what became of each."""
    relay_wgrad.register()
    for mode, name in itertools.product(args.dtypes, args.suite):
        plain = module(LAYERS[name], args.batch, DTYPES[mode])
        yield Case({"layer": name, "mode": mode, "batch": args.batch}, forms(plain, args.sides))


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    choose_compiler()
    libraries = {
        case.text: {side: compiled(m, side, case.key["mode"] != "f32")
                    for side, m in case.what[0].items()}
        for case in cases
    }  # fmt: skip
    # TVM's part in turns, the C++ compiler's beside it and beside what is measured.
    pool = ThreadPoolExecutor(max_workers=os.cpu_count())
    loading = {text: [pool.submit(library.load) for library in made.values()]
               for text, made in libraries.items()}  # fmt: skip

    def one(case: Case) -> Row:
        for load in loading[case.text]:
            load.result()
        row = measure(*case.key.values(), args.sides, libraries.pop(case.text))
        return {**row, "became": case.what[1], **judged(row)}

    return one


def judged(row: Row) -> Row:
    """Its best form over PyTorch's time; a reason where a form is further off than PyTorch's is."""
    mine = {side: ms for side, ms in row["ms"].items() if side != TORCH}
    errors = [e for side, e in row["error"].items() if side != TORCH]
    worst = [max(pair) for pair in zip(*errors, strict=True)]
    found: Row = {"worst": worst}
    if TORCH in row["ms"]:
        found["ratio"] = min(mine.values()) / row["ms"][TORCH]
        if any(a > 2 * b + 1e-5 for a, b in zip(worst, row["error"][TORCH], strict=True)):
            found["reason"] = f"errors {worst}, PyTorch's {row['error'][TORCH]}"
    return found


def _listed(times: Mapping[str, float]) -> str:
    return " ".join(f"{form} {ms:.2f}" for form, ms in times.items())


BENCHMARK = Benchmark(
    cases, begin, suites=LAYERS, by=("mode",),
    options={
        "dtypes": Option(("bf16", "f16", "tf32"), "", DTYPES),
        "sides": Option(("ours", "blocks", "rows", TORCH), "", (*SIDES, TORCH)),
        "batch": Option(256, "images"),
    },
    columns=(
        ("layer",), ("mode",), ("auto",),
        ("predicted", lambda row: _listed(row["predicted_ms"])),
        *((side, f"ms.{side}", ".3f") for side in (*SIDES, TORCH)),
        ("errors, at most", lambda row: " ".join(f"{e:.1e}" for e in row["worst"])), ("reason",),
    ),
)  # fmt: skip
