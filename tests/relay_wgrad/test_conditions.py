"""What only the run knows of sizes: compared there, in the words of the rules, whatever runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import relay_wgrad
from legalize.cpu import host_target
from relay_wgrad.conditions import Conditions
from relay_wgrad.ops.size_rules import pooled
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.pipeline.fused_kernels import fused_kernels
from relay_wgrad.relation import Checks
from relay_wgrad.transform import grad
from tests.support.compiled import virtual_machine
from tests.support.sized import module

pytestmark = pytest.mark.usefixtures("registered")
R = relax.op
PIPELINES: dict[str, Callable[[], Any]] = {"ours": cpu_pipeline, "stock": lambda: "default"}
Body = Callable[..., Any]


def machine(mod: tvm.IRModule, pipeline: str, dtype: str = "float32") -> Callable[..., Any]:
    """@main, or its adjoint, as a function of shapes: of tensors of ones."""
    made = virtual_machine(mod, host_target(), PIPELINES[pipeline]())
    name = next(n for n in ("main_adjoint", "main") if n in {v.name_hint for v in mod.functions})
    vm = made
    return lambda *shapes: vm[name](*(tvm.runtime.tensor(np.ones(s, dtype)) for s in shapes))


def squares(body: Body) -> Body:
    def whole(*params: Any) -> Any:
        return R.sum(R.square(body(*params)))

    return whole


# (what, body, shapes, shapes of arguments that don't fit, the error)
CASES: list[tuple[str, Body, list[Any], list[Any], str]] = [
    ("conv2d", R.nn.conv2d, [("n", 3, "h", "w"), (4, 3, 5, 5)], [(2, 3, 2, 8), (4, 3, 5, 5)],
     "conv2d: P must be positive, got P=-2 from H=2, R=5, padding 0 in all, stride 1, dilation 1"),
    ("dilated, by its width", lambda x, w: R.nn.conv2d(x, w, dilation=(1, 3), padding=1),
     [(2, 3, 9, "w"), (4, 3, 3, 3)], [(2, 3, 9, 4), (4, 3, 3, 3)],
     "conv2d: Q must be positive, got Q=0 from W=4, S=3, padding 2 in all, stride 1, dilation 3"),
    ("without pixels", lambda x, w: R.nn.conv2d(x, w, padding=2), [(2, 3, "h", 9), (4, 3, 3, 3)],
     [(2, 3, 0, 9), (4, 3, 3, 3)], "conv2d: H must be positive, got H=0 from data"),
    ("channels", R.nn.conv2d, [(2, "c", 9, 9), (4, 3, 3, 3)], [(2, 2, 9, 9), (4, 3, 3, 3)],
     "conv2d: data's C must be weight's C/groups times groups (groups=1), got data C=2 and"),
    ("transposed", lambda x, w: R.nn.conv2d_transpose(x, w, padding=2),
     [(2, 3, "h", 9), (3, 4, 3, 3)], [(2, 3, 2, 9), (3, 4, 3, 3)],
     "conv2d_transpose: output height must be positive, got output height=0 from input size 2,"),
    ("conv3d", R.nn.conv3d, [(1, 3, "d", 9, 9), (4, 3, 3, 3, 3)],
     [(1, 3, 2, 9, 9), (4, 3, 3, 3, 3)],
     "conv3d: Z must be positive, got Z=0 from D=2, T=3"),
    ("conv1d", R.nn.conv1d, [(1, 3, "w"), (4, 3, 3)], [(1, 3, 1), (4, 3, 3)],
     "conv1d: Q must be positive, got Q=-1 from W=1, S=3, padding 0 in all"),
    ("conv1d_transpose", lambda x, w: R.nn.conv1d_transpose(x, w, padding=2),
     [(1, 3, "w"), (3, 4, 3)], [(1, 3, 1), (3, 4, 3)],
     "conv1d_transpose: output width must be positive, got output width=-1 from input size 1"),
    ("max_pool2d", lambda x: R.nn.max_pool2d(x, 3), [(2, 3, "h", "w")], [(2, 3, 9, 2)],
     "max_pool2d: Q must be positive, got Q=0 from W=2, window 3, padding 0 in all, stride 1,"),
    ("avg_pool2d, channels last", lambda x: R.nn.avg_pool2d(x, 3, 2, layout="NHWC"),
     [(2, "h", "w", 3)], [(2, 2, 9, 3)],
     "avg_pool2d: P must be positive, got P=0 from H=2, window 3, padding 0 in all, stride 2,"),
    ("avg_pool3d", lambda x: R.nn.avg_pool3d(x, 2), [(2, 3, "d", 4, 4)], [(2, 3, 1, 4, 4)],
     "avg_pool3d: Z must be positive, got Z=0 from D=1, window 2"),
    ("adaptive", lambda x: R.nn.adaptive_avg_pool2d(x, (2, 2)), [(2, 3, "h", 4)], [(2, 3, 0, 4)],
     "adaptive_avg_pool2d: H must be positive, got H=0 from data"),
    ("max", lambda x: R.max(x, [0, 2]), [("n", 3, "h")], [(0, 3, 4)],
     "max: no element to choose of (0, 3, 4) along axes 0, 2"),
    ("argmin", lambda x: R.argmin(x, 1), [("n", "m")], [(2, 0)],
     "argmin: no element to choose of (2, 0) along axis 1"),
    ("blocks of channels", lambda x: R.nn.max_pool2d(x, 3, layout="NCHW4c"), [(1, 1, "h", 9, 4)],
     [(1, 1, 2, 9, 4)], "max_pool2d: P must be positive, got P=0 from H=2, window 3,"),
    ("mirrored", lambda x: R.nn.pad(x, [0, 0, 1, 2], "reflect"), [(3, "w")], [(3, 2)],
     "pad: pad_width=[1, 2] needs 3 or more, got 2 of axis 1"),
    ("the outermost", lambda x: R.nn.pad(x, [0, 2], "replicate"), [("w",)], [(0,)],
     "pad: pad_width=[0, 2] needs 1 or more, got 0 of axis 0"),
    ("around", lambda x: R.nn.pad(x, [2, 2], "circular"), [("w",)], [(1,)],
     "pad: pad_width=[2, 2] needs 2 or more, got 1 of axis 0"),
    ("cut", lambda x: R.nn.pad(x, [-2, -2], "constant"), [("w",)], [(3,)],
     "pad: pad_width=[-2, -2] needs 4 or more, got 3 of axis 0"),
    ("take", lambda x: R.take(x, relax.const([0, 0], "int64"), 0), [("n", 3)], [(0, 3)],
     "take: no elements to take of (0, 3) along axis 0"),
    ("gather", lambda x: R.gather_elements(x, relax.const([[0]], "int64"), 1), [(1, "n")],
     [(1, 0)], "gather_elements: no elements to take of (1, 0) along axis 1"),
]  # fmt: skip


@pytest.mark.share(5)
@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_the_run_refuses_in_the_rules_words(case: Any, pipeline: str) -> None:
    _, body, shapes, given, words = case
    run = machine(module(body, *shapes), pipeline)
    usual = [[x if isinstance(x, int) else 3 if x == "c" else 9 for x in shape] for shape in shapes]
    run(*usual)
    with pytest.raises(ValueError, match=re.escape(words)):
        run(*given)
    run(*usual)


INTEGERS: list[tuple[Body, list[Any], list[Any], str]] = [
    *((getattr(R, name), [("n", 3)], [(0, 3)], f"{name}: no int8 is the mean of (0, 3) along axes")
      for name in ("mean", "variance", "std")),
    (lambda x, w: R.nn.conv2d(x, w, out_dtype="int32"), [(1, 3, "h", 9), (4, 3, 3, 3)],
     [(1, 3, 1, 9), (4, 3, 3, 3)], "conv2d: P must be positive, got P=-1 from H=1, R=3"),
]  # fmt: skip


@pytest.mark.share(3)
@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("case", INTEGERS, ids=lambda case: case[3].partition(":")[0])
def test_integers(case: Any, pipeline: str) -> None:
    """A mean of none would end the process, by a division by 0."""
    body, shapes, given, words = case
    run = machine(module(body, *shapes, dtype="int8"), pipeline, "int8")
    with pytest.raises(ValueError, match=re.escape(words)):
        run(*given)


@pytest.mark.share(5)
@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("case", [CASES[i] for i in (0, 4, 8)], ids=lambda case: case[0])
def test_gradients(case: Any, pipeline: str) -> None:
    _, body, shapes, given, words = case
    run = machine(grad(module(squares(body), *shapes)), pipeline)
    with pytest.raises(ValueError, match=re.escape(words)):
        run(*given)


def test_sizes_are_compared_first_and_once() -> None:
    mod = grad(module(squares(R.nn.conv2d), ("n", 3, "h", "w"), (4, 3, 5, 5)))
    with host_target():
        kernels = tvm.transform.Sequential(fused_kernels())(mod)
    calls = [b.value for block in kernels["main_adjoint"].body.blocks for b in block.bindings]
    compared = [isinstance(call.op, relax.GlobalVar) for call in calls]
    assert compared == sorted(compared, reverse=True), "first, and each once"
    assert 0 < sum(compared) == len({str(call.op) for call in calls[: sum(compared)]})


def test_what_numbers_hold_is_not_compared() -> None:
    """An open batch costs nothing where nothing of it can fail."""
    mod = module(squares(R.nn.conv2d), ("n", 3, 9, 9), (4, 3, 3, 3))
    with host_target():
        kernels = tvm.transform.Sequential(fused_kernels())(grad(mod))
    assert "sizes_of" not in kernels.script()


def test_what_numbers_break_is_refused_before() -> None:
    for body, shape, words in (
        (lambda x: R.nn.max_pool2d(x, 5), (2, 3, 4, 9), "max_pool2d: P must be positive, got P=0"),
        (
            lambda x: R.nn.pad(x, [2, 2], "reflect"),
            (2,),
            r"pad: pad_width=\[2, 2\] needs 3 or more",
        ),
        (lambda x: R.max(x, [0]), (0, 3), r"max: no element to choose of \(0, 3\) along axis 0"),
    ):
        with pytest.raises(ValueError, match=words), host_target():
            relax.transform.LegalizeOps()(module(body, shape))


@pytest.mark.longer("a process and a linker; exporting is building's")
def test_an_exported_library_needs_neither_python_nor_this_package(tmp_path: Path) -> None:
    mod = module(R.nn.conv2d, ("n", 3, "h", "w"), (4, 3, 5, 5))
    made = tvm.compile(mod, target=host_target(), relax_pipeline=cpu_pipeline())
    made.export_library(tmp_path / "conv.so")
    text = f"""
import numpy as np, sys, tvm
from tvm import relax
vm = relax.VirtualMachine(tvm.runtime.load_module({str(tmp_path / "conv.so")!r}), tvm.cpu())
x, w = (tvm.runtime.tensor(np.ones(s, "float32")) for s in ((1, 3, 4, 6), (4, 3, 5, 5)))
assert "relay_wgrad" not in sys.modules
try:
    vm["main"](x, w)
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert "got P=0 from H=4, R=5, padding 0 in all" in done.stdout


def test_words_with_signs_of_formats() -> None:
    """A message is text, whatever is in it; numbers are of 64 bits."""
    n = tirx.Var("n", "int64")
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([n], "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            run = Conditions()
            checks = Checks("100%s", run)
            size = run.size(n * 2**40)
            checks.must(checks.at_least(size, 2**41), lambda: f"%d “{size}” {size - 1}")
            run.emit(bb, "percent")
            out = bb.emit_output(R.negative(x))
        bb.emit_func_output(out)
    run_it = machine(bb.get(), "ours")
    run_it([2])
    with pytest.raises(ValueError, match=f"100%s: %d “{2**40}” {2**40 - 1}"):
        run_it([1])


def test_rules_are_upstreams_again_after_unregister() -> None:
    relay_wgrad.unregister()
    try:
        with host_target():
            mod = relax.transform.LegalizeOps()(module(lambda x: R.max(x, [0]), ("n", 3)))
    finally:
        relay_wgrad.register()
    assert "sizes_of" not in mod.script()


@pytest.mark.parametrize("size", range(1, 12))
@pytest.mark.parametrize(("window", "stride"), [(1, 3), (2, 3), (3, 2), (2, 4)])
def test_pixels_of_a_pool_that_rounds_up(size: int, window: int, stride: int) -> None:
    """A last window that would begin behind the data is none, as in TVM's types."""
    for before, after in ((0, 0), (0, 1), (1, 0), (1, 1)):
        x = relax.Var("x", relax.TensorType((1, 1, size, 4), "float32"))
        given = ((window, 1), (stride, 1), (before, 0, after, 0), (1, 1), True)
        made = int(relax.BlockBuilder().normalize(R.nn.max_pool2d(x, *given)).ty.shape[2])
        if made < 1:
            continue
        for pixels in (made, made + 1):
            dy = relax.Var("dy", relax.TensorType((1, 1, pixels, 4), "float32"))
            call = R.grad.max_pool2d_backward(dy, x, *given)
            with pytest.raises(ValueError, match="gradient P") if pixels > made else nullcontext():
                pooled(Checks("", Conditions()), call.attrs, call.args)
