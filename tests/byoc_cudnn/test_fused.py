"""The records of `byoc_cudnn.fused`: each says the same of Relax, Relay, regions and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import byoc_cudnn
from byoc_cudnn import BACKENDS, Decision, fused, register_backend
from byoc_cudnn.codegen.entry import exported
from byoc_cudnn.fused import (
    EPILOGUES,
    MASKS,
    OPERAND,
    STEPS,
    VALUE,
    Form,
    Number,
    operand_shape,
    reference,
)
from byoc_cudnn.patterns import Chain
from byoc_cudnn.split.partition import regions_of
from byoc_cudnn.table import CODEGENS
from legalize.cpu import host_target
from relay_wgrad import relay
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.compiled import virtual_machine
from tests.support.partition_cases import conv_call, module, regions

PROBLEM = ConvProblem.parse("fprop n=2 c=3 h=4 w=5 k=4 r=1 s=1 layout=NHWC/OHWI/NHWC")
LAYOUTS = [("NHWC", "OHWI", "NHWC"), ("NCHW", "OIHW", "NCHW")]
NAMES = [name for name in EPILOGUES if name]


@pytest.fixture(autouse=True)
def _takes_all(registered: None) -> Iterator[None]:
    """A backend that takes everything along."""
    tables = [(table, dict(table)) for table in (BACKENDS, CODEGENS)]
    largest = sorted(EPILOGUES, key=lambda name: -len(EPILOGUES[name]))
    kinds = {ConvKind.FPROP: largest}
    register_backend("takes_all", lambda *_: Decision(True), LAYOUTS, kinds)
    yield
    for table, before in tables:
        table.clear()
        table.update(before)


def applied(
    form: Form,
    value: Any,
    operand: Any,
    number: Callable[[str, float], Any],
    call: Callable[..., Any],
) -> Any:
    """A form as an expression.  `number` makes an operator's constant."""
    places = {VALUE: value, OPERAND: operand}
    args = [
        applied(place, value, operand, number, call)
        if isinstance(place, Form)
        else number(form.op, place.value)
        if isinstance(place, Number)
        else places[place]
        for place in form.args
    ]
    return call(form.op, args, **dict(form.attrs))


def operands(name: str, problem: ConvProblem = PROBLEM) -> dict[str, tuple[int, ...]]:
    """Operand -> its shape, as a graph has it: a bias aligned at the last axis."""
    found = {}
    for step in EPILOGUES[name]:
        if step.operand:
            shape = operand_shape(step, problem)
            last = problem.layout(problem.roles[2])[-1] == "C"
            found[step.operand] = shape if len(shape) > 1 or last else (*shape, 1, 1)
    return found


def relax_module(name: str, problem: ConvProblem = PROBLEM, way: int = 0) -> tvm.IRModule:
    """way : which of the ways to write each step, the last of those that there are."""
    first, second = problem.roles[:2]
    shapes: Any = {role: (problem.shape(role), "float32") for role in (first, second)}
    shapes |= {operand: (shape, "float32") for operand, shape in operands(name, problem).items()}

    def body(emit: Any, x: Any, w: Any, *rest: Any) -> Any:
        given = dict(zip(operands(name, problem), rest, strict=True))

        def number(op: str, value: float) -> Any:
            return (
                tvm.tirx.IntImm("int64", value) if op == "clip" else relax.const(value, "float32")
            )

        def call(op: str, args: list[Any]) -> Any:
            return emit(relax.Call(tvm.ir.Op.get(f"relax.{op}"), args))

        return reduce(
            lambda y, step: applied(
                step.forms[min(way, len(step.forms) - 1)], y, given.get(step.operand), number, call
            ),
            EPILOGUES[name],
            emit(conv_call(problem, x, w)),
        )

    return module(shapes, body)


def values_of(name: str) -> dict[str, np.ndarray[Any, Any]]:
    """Integers with zeros, at which the masks differ."""
    rng = np.random.default_rng(0)
    shapes = {role: PROBLEM.shape(role) for role in PROBLEM.roles[:2]} | operands(name)
    return {key: rng.integers(-2, 3, shape).astype("float32") for key, shape in shapes.items()}


@pytest.mark.parametrize(
    ("name", "way"),
    [(n, way) for n in NAMES for way in range(max(len(s.forms) for s in EPILOGUES[n]))],
)
def test_relax_finds_it_and_a_region_tells_it(name: str, way: int) -> None:
    for layouts in LAYOUTS:
        line = f"fprop n=2 c=3 h=4 w=5 k=4 r=1 s=1 layout={'/'.join(layouts)}"
        written = relax_module(name, ConvProblem.parse(line), way)
        out, report = byoc_cudnn.partition(written, ["takes_all"])
        assert report.rows() == {f"takes_all.fprop_{name}": 1}
        (func,) = regions(out).values()
        region = byoc_cudnn.read_region(func)
        assert region.epilogue == tuple(step.name for step in EPILOGUES[name])
        assert region.operands == ("data", "weight", *operands(name))
        assert exported(region, 0).count("Arg") == 3 + len(operands(name))
        (decided,) = regions_of(written, "takes_all", None)
        assert replace(decided, symbol=region.symbol) == region


def test_the_reference_is_what_tvm_computes() -> None:
    """All of them in one module."""
    whole = tvm.IRModule({name: relax_module(name)["main"] for name in NAMES})
    whole = tvm.IRModule(
        {name: func.with_attr("global_symbol", name) for name, func in _named(whole)}
    )
    vm = virtual_machine(whole, host_target())
    for name in NAMES:
        given = values_of(name)
        result = vm[name](*map(tvm.runtime.tensor, given.values())).numpy()
        conv = np.einsum("nhwc,kc->nhwk", given["data"], given["weight"][:, 0, 0])
        want = reference(EPILOGUES[name], conv, given, PROBLEM)
        # Integers, so that masks that differ are 1 apart; what rounds may round differently.
        np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-5, err_msg=name)


def _named(mod: tvm.IRModule) -> list[tuple[str, relax.Function]]:
    return [(str(var.name_hint), func) for var, func in mod.functions_items()]


@pytest.mark.parametrize("name", NAMES)
def test_relay_finds_it(name: str) -> None:
    shapes: Any = {role: PROBLEM.shape(role) for role in PROBLEM.roles[:2]} | operands(name)
    given = {key: relay.var(key, shape=shape) for key, shape in shapes.items()}

    def call(op: str, args: list[Any], **attrs: float) -> Any:
        return reduce(getattr, op.split("."), relay)(*args, **attrs)

    def number(_: str, value: float) -> Any:
        return relay.const(float(value))

    y = relay.nn.conv2d(
        given["data"], given["weight"], kernel_size=(1, 1), channels=4, data_layout="NHWC",
        kernel_layout="OHWI",
    )  # fmt: skip
    for step in EPILOGUES[name]:
        form = (step.form, *step.relay)[-1]
        y = applied(form, y, given.get(step.operand), number, call)
    mod = relay.IRModule.from_expr(relay.Function(list(given.values()), y))
    assert byoc_cudnn.partition(mod, ["takes_all"])[1].rows() == {f"takes_all.fprop_{name}": 1}


def test_names_are_of_steps() -> None:
    assert all("_" not in name and step.name == name for name, step in STEPS.items())
    assert {step.name for steps in EPILOGUES.values() for step in steps} == set(STEPS)
    assert MASKS == ("mask", "strictmask")
    words = [step.word for step in STEPS.values()]
    assert len(set(words)) == len(words)


def test_an_operand_that_makes_the_result_larger_is_not_fused() -> None:
    """It has the sum's shape, as a residual has, but not the convolution's."""
    shapes = {"x": ((1, 3, 3, 4), "float32"), "w": ((4, 3, 3, 4), "float32"),
              "other": ((2, 1, 1, 4), "float32")}  # fmt: skip

    def body(emit: Any, x: Any, w: Any, other: Any) -> Any:
        y = emit(relax.op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="OHWI"))
        return emit(relax.op.add(y, other))

    for backend in ("takes_all", "cutlass"):
        (entry,) = byoc_cudnn.partition(module(shapes, body), [backend])[1].entries
        assert entry.row == "fprop"
        reasons = dict(entry.tried)
        assert "not of the result's shape" in reasons[f"{backend}.fprop_residual"]


@pytest.mark.parametrize("written", ["clip", "minimum"])
def test_other_bounds_are_not_fused(written: str) -> None:
    shapes = {"x": ((1, 3, 3, 4), "float32"), "w": ((4, 3, 3, 4), "float32")}

    def body(emit: Any, x: Any, w: Any) -> Any:
        y = emit(relax.op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="OHWI"))
        if written == "clip":
            return emit(relax.op.clip(y, 0, 5))
        zero, five = (relax.const(n, "float32") for n in (0, 5))
        return emit(relax.op.minimum(emit(relax.op.maximum(y, zero)), five))

    (entry,) = byoc_cudnn.partition(module(shapes, body), ["cutlass"])[1].entries
    assert entry.row == "fprop"
    reasons = dict(entry.tried)
    assert reasons["cutlass.fprop_relu6"].endswith("another value than the scalar 6")


@pytest.mark.parametrize("bounds", ["0, 5", "1, 6", "0, T.float32(6.5)"])
def test_a_region_with_other_bounds_is_refused(bounds: str) -> None:
    out, _ = byoc_cudnn.partition(relax_module("relu6"), ["takes_all"])
    text = out.script()
    assert text.count(", 0, 6)") == 1
    other = tvm.script.from_source(text.replace(", 0, 6)", f", {bounds})"))
    (func,) = regions(other).values()
    with pytest.raises(ValueError, match="an epilogue that no backend has"):
        byoc_cudnn.read_region(func)


def test_another_sigmoid_is_not_fused() -> None:
    """Of another tensor, or one that something else needs too."""
    shapes = {"x": ((1, 3, 3, 4), "float32"), "w": ((4, 3, 3, 4), "float32"),
              "other": ((1, 1, 1, 4), "float32")}  # fmt: skip

    for needed in (False, True):

        def body(emit: Any, x: Any, w: Any, other: Any, needed: bool = needed) -> Any:
            y = emit(relax.op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="OHWI"))
            gate = emit(relax.op.sigmoid(y if needed else other))
            out = emit(relax.op.multiply(y, gate))
            return emit(relax.op.add(out, gate)) if needed else out

        (entry,) = byoc_cudnn.partition(module(shapes, body), ["cutlass"])[1].entries
        assert entry.row == "fprop"


def test_what_no_record_has_is_no_step() -> None:
    """A selection of the convolution where x is below 0, not of 0."""
    ty = relax.TensorType((2, 4), "float32")
    x, conv, less, out = (relax.Var(name, ty) for name in ("x", "conv", "less", "out"))
    zero = relax.const(0, "float32")
    values = (relax.op.nn.relu(x), relax.op.less(x, zero), relax.op.where(less, conv, zero))
    first, inner, last = map(relax.VarBinding, (conv, less, out), values)
    with pytest.raises(ValueError, match="no step of an epilogue"):
        assert Chain((first, last), inner).steps


def test_a_chain_is_matched_once_for_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, the composite and its operands read the steps that were found: of the convolution with
    its bias one, and two with the ReLU."""
    asked: list[Any] = []

    def match(call: Any, *how: Any) -> fused.Match | None:
        asked.append(call)
        return found(call, *how)

    found = fused.match
    monkeypatch.setattr(fused, "match", match)
    out, report = byoc_cudnn.partition(relax_module("bias_relu"), ["takes_all"])
    assert report.rows() == {"takes_all.fprop_bias_relu": 1}
    assert len(asked) == 3
    (func,) = regions(out).values()
    byoc_cudnn.read_region(func)
    assert len(asked) == 5
