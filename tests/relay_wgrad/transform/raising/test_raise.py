"""`RaiseConvBackward`: what was written as a composite becomes the op, with the same numbers."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import tvm
from rich.console import Console
from tvm import relax, tirx

import relay_wgrad
from legalize.composite import composite
from relay_wgrad import relay
from relay_wgrad.ops.call_problem import family_def, problem_of
from relay_wgrad.problem import ConvKind, ConvProblem
from relay_wgrad.transform import RaiseConvBackward, raise_conv_backward
from tests.support.gradient_calls import NAMED, problem_module
from tests.support.problems import random_problem, relative_error
from tests.support.raise_cases import (
    bindings,
    evaluate,
    flipped_form,
    names,
    nn,
    op,
    program,
    raised,
    stock_form,
    tile_form,
)
from tests.support.relay.fixtures import fixture_names, load

WGRAD, DGRAD = "nn.conv2d_backward_weight", "nn.conv2d_backward_data"


@pytest.fixture(autouse=True)
def _registered(registered: None) -> None:
    pass


def canonical(mod: tvm.IRModule) -> tvm.IRModule:
    return relax.transform.CanonicalizeBindings()(mod)


def family(mod: tvm.IRModule) -> list[ConvProblem]:
    """The problems of a function's convolutions."""
    values = [binding.value for binding in bindings(mod)]
    return [problem_of(value) for value in values if family_def(value) is not None]


# ---- Relay's programs ----------------------------------------------------------------------------

FIXTURES = [*fixture_names("wgrad_*_legalized"), *fixture_names("wgrad_*_legalized_nhwc")]


def test_all_fixtures_are_there() -> None:
    assert len(FIXTURES) == 10


@pytest.mark.parametrize("name", FIXTURES)
def test_fixture(name: str) -> None:
    base = name.partition("_legalized")[0]
    inputs, outputs, text = load(base)
    assert outputs is not None
    mod = relay.lower(relay.fromtext(load(name)[2]))
    out, report = raised(mod)
    assert str(report) == "raised 1 wgrad; 0 left"
    assert names(out) == [WGRAD]
    tvm.ir.assert_structural_equal(canonical(out), canonical(relay.lower(relay.fromtext(text))))
    operands = [inputs[str(param.name)].astype(np.float64) for param in out["main"].params]
    assert relative_error(outputs[0], evaluate(out, *operands)[0]) < 1e-6


def test_within_a_network() -> None:
    """Relay's gradient of a network, legalized: the gradient before legalization again."""
    mod = relay.lower(relay.fromtext(load("smallnet_grad_legalized")[2]))
    out, report = raise_conv_backward(mod)
    assert (len(report.raised), report.left) == (2, ())
    want = family(relay.lower(relay.fromtext(load("smallnet_grad")[2])))
    got = family(out)
    assert sorted(p.repro() for p in got) == sorted(p.repro() for p in want)


# ---- what the package itself writes --------------------------------------------------------------


def check_round_trip(p: ConvProblem) -> None:
    mod = composite(problem_module(p))
    out, report = raise_conv_backward(mod)
    assert len(report.raised) == 1, report.reasons()
    assert not report.left
    assert names(out).count(WGRAD) == 1
    assert "nn.conv2d" not in names(out)
    relax.analysis.well_formed(out)


ALL_ONE = "one of everything"  # 1×1 pixels, channels and taps: as good a forward convolution


@pytest.mark.parametrize("name", [name for name in NAMED if name != ALL_ONE])
def test_named_composite(name: str) -> None:
    check_round_trip(ConvProblem.parse(f"wgrad {NAMED[name]}"))


@pytest.mark.parametrize("seed", range(40))
def test_random_composite(seed: int) -> None:
    p = random_problem(
        np.random.default_rng(seed), ConvKind.WGRAD, max_flop=1e5, dtypes=["float32"], mixed=False
    )
    check_round_trip(p)
    out, _ = raised(composite(problem_module(p)))
    # Where axes are longer than 1 they are the same axes; others may have changed letters.
    assert family(out)[0].flop == p.flop


# ---- a data gradient as a convolution ------------------------------------------------------------

DATA_GRADIENTS = {
    "plain": {},
    "stride": {"stride": (2, 3)},
    "stride of rows only": {"stride": (2, 1)},
    "rows that strides leave": {"stride": (2, 3), "extra": (1, 2)},
    "dilation": {"dilation": 2, "stride": (2, 2)},
    "groups": {"groups": 2, "stride": (2, 2)},
    "depthwise": {"groups": 4},
    "padding": {"padding": (1, 0, 2, 1)},
    "NHWC": {"layouts": ("NHWC", "OHWI", "NHWC"), "stride": (2, 2)},
    "three layouts": {"layouts": ("CHWN", "HWIO", "NHWC"), "groups": 2},
    "flipped in the other order": {"flips": (3, 2)},
    "1x1": {"weight": (4, 6, 1, 1)},
    "one row": {"grad": (2, 4, 1, 5), "stride": (2, 2)},
}  # fmt: skip


@pytest.mark.parametrize("name", DATA_GRADIENTS)
def test_data_gradient(name: str) -> None:
    options: dict[str, Any] = dict(DATA_GRADIENTS[name])
    shapes = {
        "grad": options.pop("grad", (2, 4, 4, 5)),
        "weight": options.pop("weight", (4, 6 // options.get("groups", 1) or 1, 3, 2)),
    }
    mod = program(shapes, lambda emit, g, w: flipped_form(emit, g, w, **options))
    out, report = raised(mod)
    assert str(report) == "raised 1 dgrad; 0 left", report.reasons()
    assert names(out) == [DGRAD]
    (p,) = family(out)
    assert p.groups == options.get("groups", 1)
    assert p.dilation == (options.get("dilation", 1),) * 2
    if "stride" in options and p.p > 1:
        assert p.strides == options["stride"]


def test_ones_between_pixels_are_part_of_the_gradient() -> None:
    shapes = {"grad": (2, 4, 4, 5), "weight": (4, 6, 3, 2)}
    mod = program(shapes, lambda emit, g, w: flipped_form(emit, g, w, stride=(2, 2), value=1.0))
    out, _ = raised(mod)
    assert names(out) == ["reshape", "nn.pad", "reshape", "strided_slice", DGRAD]
    assert family(out)[0].strides == (1, 1)


def test_one_row_flipped_among_zeros() -> None:
    """It is its own mirror image, and its zeros are on the other side."""

    def body(emit: Any, g: Any, w: Any) -> Any:
        x = emit(op.flip(emit(nn.pad(g, [0, 0, 0, 0, 0, 2, 0, 0])), 2))
        return flipped_form(emit, x, w, padding=(0, 1, 2, 1))

    out, report = raised(program({"grad": (2, 4, 1, 5), "weight": (4, 6, 3, 2)}, body))
    assert names(out) == [DGRAD], report.reasons()
    assert family(out)[0].padding[0] == 0


# ---- what is raised though it looks odd ----------------------------------------------------------

ODD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "images and channels of the data swapped": (
        {"images": lambda x: op.reshape(op.permute_dims(x, [1, 0, 2, 3]), (1, 16, 5, 5))}, [WGRAD]
    ),
    "left as (C, K)": ({"last": lambda y: op.permute_dims(y, [0, 1, 2, 3])}, [WGRAD]),
    "taps transposed": ({"last": lambda y: op.permute_dims(y, [1, 0, 3, 2])}, [WGRAD]),
    "wider padding: a larger kernel": ({"padding": 2}, [WGRAD]),
    "dilated": ({"strides": 2}, [WGRAD]),
    "summed with its axis kept": (
        {"total": lambda y: op.sum(y, [0], keepdims=True),
         "last": lambda y: op.permute_dims(op.squeeze(y, [0]), [1, 0, 2, 3])},
        [WGRAD],
    ),
    "axes by layout_transform": (
        {"last": lambda y: op.layout_transform(y, lambda c, k, r, s: (k, r, s, c))}, [WGRAD]
    ),
    "blocked and back": (
        {"between": lambda emit, y: emit(op.layout_transform(
            emit(op.layout_transform(y, lambda n, c, h, w: (n, c // 4, h, w, c % 4))),
            lambda n, co, h, w, ci: (n, co * 4 + ci, h, w)))},
        [WGRAD],
    ),
    "scaled afterwards": (
        {"last": lambda y: op.multiply(y, relax.const(np.float32(2)))}, [WGRAD, "multiply"]
    ),
    "some channels of it": (
        {"last": lambda y: op.strided_slice(y, [0], [1], [3])}, [WGRAD, "strided_slice"]
    ),
    "taps that are not the first": (
        {"last": lambda y: op.strided_slice(y, [2], [1], [3])}, [WGRAD, "strided_slice"]
    ),
    "fewer taps than make the gradient": (
        {"last": lambda y: op.strided_slice(y, [2], [0], [2])}, [WGRAD, "strided_slice"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_odd_but_a_gradient(name: str) -> None:
    options, want = ODD[name]
    shapes = {"data": (4, 4, 5, 5), "grad": (4, 4, 5, 5)}
    out, report = raised(program(shapes, lambda emit, x, g: tile_form(emit, x, g, **options)))
    assert not report.left, report.reasons()
    assert names(out) == want


@pytest.mark.parametrize(("begin", "want"), [(0, [WGRAD]), (1, [WGRAD, "strided_slice"])])
def test_only_the_first_taps_are_a_smaller_kernel(begin: int, want: list[str]) -> None:
    """Stride 2 leaves a fourth row of taps: without it the kernel is 3×4, without the first not."""
    shapes = {"data": (2, 4, 8, 8), "grad": (2, 6, 4, 4)}

    def last(y: Any) -> Any:
        return op.strided_slice(y, [2], [begin], [begin + 3])

    mod = program(shapes, lambda emit, x, g: tile_form(emit, x, g, dilation=2, last=last))
    out, _ = raised(mod)
    assert names(out) == want


@pytest.mark.parametrize("form", [tile_form, stock_form])
def test_one_tensor_as_both_operands(form: Any) -> None:
    mod = program({"x": (4, 4, 5, 5)}, lambda emit, x: form(emit, x, x))
    out, report = raised(mod)
    assert names(out) == [WGRAD], report.reasons()


# ---- around it -----------------------------------------------------------------------------------


def two(emit: Any, x: Any, g: Any) -> Any:
    """Two gradients of a slice of the input channels; an operand's reshape is used elsewhere."""
    part = emit(op.strided_slice(x, [1], [0], [2]))
    flat = emit(op.reshape(part, (1, 8, 5, 5)))
    first = tile_form(emit, part, g, images=lambda _: op.reshape(part, (1, 8, 5, 5)))
    second = stock_form(emit, part, g)
    return relax.Tuple([first, emit(op.add(second, second)), emit(nn.relu(flat))])


def test_operands_used_elsewhere_and_results_used_twice() -> None:
    mod = program({"data": (4, 4, 5, 5), "grad": (4, 4, 5, 5)}, two)
    out, report = raised(mod)
    assert len(report.raised) == 2
    assert names(out) == ["strided_slice", "reshape", WGRAD, WGRAD, "add", "nn.relu"]


def test_constants() -> None:
    data = relax.const(np.ones((2, 4, 5, 5), "float32"))
    mod = program({"grad": (2, 6, 5, 5)}, lambda emit, g: stock_form(emit, data, g))
    out, _ = raised(mod)
    assert names(out) == [WGRAD]


@pytest.mark.parametrize("groups", [1, 2])
def test_symbolic_images(groups: int) -> None:
    n = tirx.Var("n", "int64")
    p = ConvProblem(ConvKind.WGRAD, n, 4, 6, 6, 4, 3, 3, strides=(2, 2), groups=groups)
    mod = composite(problem_module(p))
    assert "nn.conv2d" in names(mod)
    out, report = raise_conv_backward(mod)
    assert not report.left, report.reasons()
    assert names(out) == [WGRAD]
    assert str(family(out)[0].n) == "n"


def test_branches_and_blocks_without_dataflow() -> None:
    text = """
@I.ir_module
class Module:
    @R.function
    def main(grad: R.Tensor((2, 3, 4, 4), "float32"), data: R.Tensor((2, 5, 4, 4), "float32"),
             c: R.Tensor((), "bool")) -> R.Tensor((3, 5, 3, 3), "float32"):
        if c:
            a = R.nn.conv2d(data, grad, padding=[1, 1, 1, 1], data_layout="CNHW",
                            kernel_layout="IOHW", out_layout="CNHW")
            r = a
        else:
            b = R.nn.conv2d(data, grad, padding=[1, 1, 1, 1], data_layout="CNHW",
                            kernel_layout="IOHW", out_layout="NCHW")
            t = R.permute_dims(b, axes=[1, 0, 2, 3])
            r = t
        return r
"""
    mod = tvm.script.from_source(text)
    out, report = raise_conv_backward(mod)
    relax.analysis.well_formed(out)
    assert len(report.raised) == 2
    assert out.script().count("conv2d_backward_weight") == 2
    assert "nn.conv2d(" not in out.script()


@pytest.mark.parametrize("key", ["Composite", "Codegen"])
def test_what_a_backend_took_stays(key: str) -> None:
    mod = program({"data": (2, 4, 5, 5), "grad": (2, 6, 5, 5)}, stock_form)
    mod.update_func(mod.get_global_var("main"), mod["main"].with_attr(key, "someone.conv"))
    out, report = raise_conv_backward(mod)
    assert out.same_as(mod)
    assert report.entries == ()


def test_pass_and_report() -> None:
    seen = []
    mod = program({"data": (2, 4, 5, 5), "grad": (2, 6, 5, 5)}, stock_form)
    out = RaiseConvBackward(on_report=seen.append)(mod)
    assert names(out) == [WGRAD]
    (report,) = seen
    (entry,) = report.entries
    assert (entry.function, entry.node, entry.kind) == ("main", "gv", "wgrad")
    assert ConvProblem.parse(entry.problem) == family(out)[0]
    assert report.kinds() == {"wgrad": 1}
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report)
    assert entry.problem in console.export_text()
    again, second = raise_conv_backward(out)
    assert again.same_as(out)
    assert second.entries == ()


def test_bad_calls() -> None:
    with pytest.raises(TypeError, match="mod must be an IRModule, got int"):
        raise_conv_backward(3)  # type: ignore[arg-type]
    mod = program({"data": (2, 4, 5, 5), "grad": (2, 6, 5, 5)}, stock_form)
    relay_wgrad.unregister()
    with pytest.raises(RuntimeError, match=r"unregistered|not registered"):
        raise_conv_backward(mod)


def test_integers_are_not_raised() -> None:
    """The op is one of floats; whose type relation says so."""
    out, report = raise_conv_backward(
        program({"data": (2, 4, 5, 5), "grad": (2, 6, 5, 5)}, stock_form, dtype="int32")
    )
    assert "int32" in report.left[0].reason
    assert names(out) == ["nn.conv2d"]
