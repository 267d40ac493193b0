"""What the pages of offloading say is refused: rows of `tests.support.limits`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tvm import relax
from tvm.script import relax as R

from byoc_cudnn import partition, partition_for_cudnn, partition_for_cutlass
from byoc_cudnn.backends.cuda_direct.faster import faster
from byoc_cudnn.backends.cudnn import check, program
from byoc_cudnn.building import toolchain
from relay_wgrad.problem import ConvProblem

BYOC = "docs/howto/byoc.md"
CUDA = "docs/howto/cuda.md"
CUTLASS = "docs/howto/cutlass.md"
DIRECT = "docs/explanation/direct.md"
OPERATORS = "docs/reference/operators.md"


def relax_conv(dtype: str, rank: int = 2, total: bool = False, batch: int = 2) -> Any:
    x = relax.Var("x", R.Tensor((batch, 8) + (6,) * rank, dtype))
    w = relax.Var("w", R.Tensor((8, 8) + (3,) * rank, dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            y = builder.emit((relax.op.nn.conv3d if rank == 3 else relax.op.nn.conv2d)(x, w))
            result = builder.emit_output(relax.op.sum(y) if total else y)
        builder.emit_func_output(result)
    return builder.get()


def _depthwise() -> str:
    x = relax.Var("x", R.Tensor((2, 6, 6, 8), "float16"))
    w = relax.Var("w", R.Tensor((8, 3, 3, 1), "float16"))
    last = {"data_layout": "NHWC", "kernel_layout": "OHWI"}
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.nn.conv2d(x, w, groups=8, **last))
        builder.emit_func_output(result)
    return reasons(partition_for_cutlass, builder.get())


def reasons(partition: Callable[..., Any], module: Any) -> str:
    return str(partition(module)[1])


def _cudnn(line: str) -> str:
    return check.check(ConvProblem.parse(line), "").reason


def _machine(library: str, version: str) -> str:
    """What a machine misses that has cuDNN alone, in that folder and of that version."""
    with tempfile.TemporaryDirectory() as folder:
        home, major = Path(folder, library), version.partition(".")[0]
        numbers = zip(("MAJOR", "MINOR", "PATCHLEVEL"), version.split("."), strict=True)
        for path, text in (
            ("include/cudnn.h", ""),
            ("include/cudnn_version.h", "".join(f"#define CUDNN_{n} {v}\n" for n, v in numbers)),
            (f"lib/libcudnn.so.{major}", ""),
        ):
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text(text)
        environ = {"PATH": "/usr/bin:/bin", "CUDNN_HOME": str(home)}
        return toolchain.find(environ=environ, package_roots=[], system_roots=[]).missing()


def _without_tf32() -> str:
    """The lines of a program without TF32 that are not in one with it."""
    problem = ConvProblem.parse("fprop n=2 c=8 h=9 w=9 k=8 r=3 s=3")
    usual = program.emit(problem).splitlines()
    return "\n".join(
        line for line in program.emit(problem, allow_tf32=False).splitlines() if line not in usual
    )


def _slower(line: str) -> str:
    """Why an H200's own kernel is not taken for a problem in channels last."""
    problem = ConvProblem.parse(f"{line} layout=NHWC/OHWI/NHWC")
    return faster(problem, "", 90).reason


PROBES = [
    (OPERATORS, "CUTLASS refuses them", "the kernels here are of two",
     lambda: reasons(partial(partition, backends=("cutlass",)), relax_conv("float16", 3))),
    (CUTLASS, "Depthwise and others are refused", "a kernel for each group pays for", _depthwise),
    (BYOC, "`strict=True` raises a ValueError that lists the convolutions that stay, with reasons",
     "float64", lambda: partition_for_cudnn(relax_conv("float64"), strict=True)),
    (BYOC, "| padding | the same at both ends of an axis", "asymmetric padding",
     lambda: _cudnn("fprop n=2 c=8 h=9 w=9 k=8 r=3 s=3 pad=0,0,1,1")),
    (BYOC, "Three refusals have a remedy", "all must be one dtype",
     lambda: _cudnn("wgrad n=2 c=8 h=9 w=9 k=8 r=3 s=3 dtype=f16/f32/f16")),
    (CUDA, "any other major version is refused", "cuDNN 8.9.7 is not supported; version 9 is",
     lambda: _machine("home", "8.9.7")),
    (CUDA, "Only a colon is refused", "a path with ':' cannot be an rpath",
     lambda: _machine("a:b", "9.19.1")),
    (CUDA, ("`--no-tf32` refuses engines that round float32 operands to TF32's 10 bits, and "
     "tightens the tolerance"), "kAllowTf32 = false", _without_tf32),
    (DIRECT, "shapes and dtypes that are not in it are refused", "was not measured in float16",
     lambda: _slower("fprop n=64 c=64 h=14 w=14 k=64 r=5 s=5 pad=2,2,2,2 groups=8"
                     " dtype=f16/f16/f16")),
    (DIRECT, ("in which one size took more than 0.97 of cuDNN's time, with the ratio as the reason "
     "(weight gradients of 32 groups"), "2.10 of cuDNN's time at one of the sizes measured",
     lambda: _slower("wgrad n=256 c=1024 h=14 w=14 k=1024 r=3 s=3 pad=1,1,1,1 groups=32"
                     " dtype=f16/f16/f16")),
    (DIRECT, "stride 2 of few channels a group)", "1.50 of cuDNN's time at one of the sizes",
     lambda: _slower("wgrad n=64 c=64 h=14 w=14 k=64 r=3 s=3 pad=1,1,1,1 stride=2,2 groups=8"
                     " dtype=f16/f16/f16")),
    (DIRECT, "depthwise layers that were measured as slower though others of their shape are not",
     "1.00 of cuDNN's time, measured",
     lambda: _slower("wgrad n=256 c=336 h=48 w=48 k=336 r=3 s=3 pad=1,1,1,1 stride=2,2 groups=336"
                     " dtype=f16/f16/f16")),
    (DIRECT, "first layers whose rows are no multiples of 16 bytes", "rows of 225x3 were not",
     lambda: _slower("fprop n=64 c=3 h=225 w=225 k=64 r=7 s=7 pad=3,3,3,3 stride=2,2"
                     " dtype=f16/f16/f16")),
]  # fmt: skip
