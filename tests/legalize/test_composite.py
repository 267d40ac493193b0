"""The historical composite: op for op what Relay 0.19 wrote, and right where that was wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import relay_wgrad
from legalize.composite import Composite, composite, weight_composite
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.gradient_calls import (
    DGRAD,
    WGRAD,
    calls,
    gradient_call,
    module,
    ops,
    run,
    stock_compiled,
)
from tests.support.problems import random_operands, relative_error, tolerance, torch_reference
from tests.support.relay.fixtures import RelayCall, fixture_names, load, parse_relay

pytestmark = pytest.mark.usefixtures("registered")


# ---- against Relay's text ------------------------------------------------------------------------

RELAX_NAMES = {
    "tile": "relax.tile",
    "reshape": "relax.reshape",
    "nn.conv2d": "relax.nn.conv2d",
    "sum": "relax.sum",
    "transpose": "relax.permute_dims",
    "strided_slice": "relax.strided_slice",
}
CONV2D_DEFAULTS = {
    "strides": [1, 1],
    "padding": [0, 0, 0, 0],
    "dilation": [1, 1],
    "groups": 1,
    "data_layout": "NCHW",
    "kernel_layout": "OIHW",
    "out_layout": "",
    "out_dtype": "",
}


def ints(values: Any) -> list[int]:
    return [int(getattr(v, "value", v)) for v in values]


def resolved(newshape: list[int], shape: tuple[int, ...]) -> list[int]:
    """Relay's reshape: 0 keeps the input's size at that place, -1 takes what is left."""
    out = [shape[i] if v == 0 else v for i, v in enumerate(newshape)]
    left = int(np.prod(shape)) // int(np.prod([v for v in out if v != -1]))
    return [left if v == -1 else v for v in out]


def relay_meaning(call: RelayCall, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """The call's attributes with defaults filled in, as far as Relax has them."""
    a = dict(call.attrs)
    if call.op == "reshape":
        return {"shape": resolved(a["newshape"], shapes[call.operands[0]])}
    if call.op == "nn.conv2d":
        a = {**CONV2D_DEFAULTS, **a}
        a["out_layout"] = a["out_layout"] or a["data_layout"]
        a["out_dtype"] = a["out_dtype"] or None
        return {key: a[key] for key in CONV2D_DEFAULTS}
    if call.op == "sum":
        assert not a.get("exclude", False)
        return {"axis": a["axis"], "keepdims": a.get("keepdims", False)}
    if call.op == "strided_slice":
        rank = len(a["begin"])
        axes = list(range(rank)) if a["axes"] is None else a["axes"]
        strides = a["strides"] * rank if len(a["strides"]) == 1 else a["strides"]
        return {"axes": axes, "begin": a["begin"], "end": a["end"], "strides": strides}
    return a


def relax_meaning(call: relax.Call) -> dict[str, Any]:
    """The same keys, from the Relax call."""
    name, a = str(call.op.name), call.attrs
    if name == "relax.tile":
        return {"reps": ints(a.repeats)}
    if name == "relax.reshape":
        return {"shape": ints(call.args[1].values)}
    if name == "relax.sum":
        return {"axis": ints(a.axis), "keepdims": bool(a.keepdims)}
    if name == "relax.permute_dims":
        return {"axes": ints(a.axes)}
    if name == "relax.strided_slice":
        keys = ("axes", "begin", "end", "strides")
        tuples = zip(keys, call.args[1:], strict=True)
        return {key: ints(v.value for v in arg.fields) for key, arg in tuples}
    assert name == "relax.nn.conv2d"
    out: dict[str, Any] = {key: ints(getattr(a, key)) for key in ("strides", "padding", "dilation")}
    out["groups"] = int(a.groups)
    out |= {key: str(getattr(a, key)) for key in ("data_layout", "kernel_layout", "out_layout")}
    out["out_dtype"] = None if a.out_dtype is None else str(a.out_dtype)
    return out


def wgrad_module(name: str) -> tvm.IRModule:
    """The Relay fixture's one call of nn.conv2d_backward_weight, in Relax."""
    params, (call,) = parse_relay(load(name)[2])
    assert call.op == "nn.conv2d_backward_weight"
    types = {key: relax.TensorType(shape, dtype) for key, (shape, dtype) in params.items()}
    a = call.attrs

    def body(**values: relax.Expr) -> relax.Expr:
        grad, data = (values[operand] for operand in call.operands)
        return relay_wgrad.conv2d_backward_weight(
            grad,
            data,
            a["kernel_size"],
            strides=a.get("strides", (1, 1)),
            padding=a.get("padding", (0, 0)),
            dilation=a.get("dilation", (1, 1)),
            groups=a.get("groups", 1),
        )

    return module(types, lambda *values: body(**dict(zip(types, values, strict=True))))


LEGALIZED = fixture_names("wgrad_*_legalized")


@pytest.mark.parametrize("name", LEGALIZED)
def test_is_op_for_op_what_relay_wrote(name: str) -> None:
    params, relay = parse_relay(load(name)[2])
    function = composite(wgrad_module(name.removesuffix("_legalized")))["main"]
    bindings = [b for block in function.body.blocks for b in block.bindings]
    assert [str(b.value.op.name) for b in bindings] == [RELAX_NAMES[call.op] for call in relay]

    shapes = {key: shape for key, (shape, _) in params.items()}
    names = {param: str(param.name) for param in function.params}
    for binding, call in zip(bindings, relay, strict=True):
        value = binding.value
        operands = [names[arg] for arg in value.args if isinstance(arg, relax.Var)]
        assert tuple(operands) == call.operands, call
        assert relax_meaning(value) == relay_meaning(call, shapes), call
        assert ints(value.ty.shape.values) == list(call.shape), call
        assert str(value.ty.dtype) == call.dtype
        names[binding.var] = call.name
        shapes[call.name] = call.shape


def test_a_fixture_exists_with_and_without_each_optional_step() -> None:
    """Guards the comparison above: it must have seen a crop, depthwise and asymmetric padding."""
    assert len(LEGALIZED) == 5
    texts = {name: load(name)[2] for name in LEGALIZED}
    assert sum("strided_slice" in text for text in texts.values()) == 1
    assert sum("reps=[1, 1, 1, 1]" in text for text in texts.values()) == 1
    assert sum("padding=[0, 1, 2, 1]" in text for text in texts.values()) == 1


@pytest.mark.parametrize("name", [name.removesuffix("_legalized") for name in LEGALIZED])
def test_numbers_are_relays(name: str) -> None:
    inputs, outputs, _ = load(name)
    assert outputs is not None
    mod = wgrad_module(name)
    operands = [inputs[str(param.name)] for param in mod["main"].params]
    got = run(stock_compiled(mod), *operands)
    # Both sum up to 2048 f32 products, in different orders.
    assert relative_error(got, outputs[0].astype(np.float64)) < 1e-6


def transposed(name: str) -> tuple[tvm.IRModule, RelayCall]:
    """A transposed convolution's Relay fixture as the dgrad that it is, and Relay's call."""
    params, (call,) = parse_relay(load(name)[2])
    types = {key: relax.TensorType(shape, dtype) for key, (shape, dtype) in params.items()}
    a = call.attrs
    layout = a.get("data_layout", "NCHW")

    def body(data: relax.Expr, weight: relax.Expr) -> relax.Expr:
        return relay_wgrad.conv2d_backward_data(
            data,
            weight,
            call.shape,
            strides=a["strides"],
            padding=a["padding"],
            groups=a.get("groups", 1),
            grad_layout=layout,
            data_layout=layout,
            # Relay's letters are the transposed convolution's own.
            kernel_layout=a.get("kernel_layout", "IOHW").translate({ord("I"): "O", ord("O"): "I"}),
        )

    return module(types, body), call


@pytest.mark.parametrize("name", fixture_names("convt_*"))
def test_data_gradient_is_relays_transposed_convolution(name: str) -> None:
    inputs, outputs, _ = load(name)
    assert outputs is not None
    mod, relay = transposed(name)
    lowered = calls(composite(mod, data=True))
    (conv,) = [call for call in lowered if str(call.op.name) == "relax.nn.conv2d_transpose"]
    assert len(lowered) == (4 if "data_layout" in relay.attrs else 1)
    wanted = {"output_padding": [0, 0], "groups": 1, "dilation": [1, 1], **relay.attrs}
    for key in ("strides", "padding", "output_padding", "dilation"):
        assert ints(getattr(conv.attrs, key)) == wanted[key]
    assert int(conv.attrs.groups) == wanted["groups"]
    got = run(stock_compiled(mod), inputs["data"], inputs["weight"])
    assert relative_error(got, outputs[0].astype(np.float64)) < 1e-6


# ---- the pass ------------------------------------------------------------------------------------


def two_gradients() -> tvm.IRModule:
    p = ConvProblem.parse("wgrad n=2 c=4 h=6 w=6 k=6 r=3 s=3 pad=1,1,1,1")
    params = {role: relax.TensorType(p.shape(role)) for role in ("grad", "data", "weight")}

    def body(grad: relax.Var, data: relax.Var, weight: relax.Var) -> relax.Expr:
        dw = gradient_call(p, grad, data)
        dx = gradient_call(p.with_kind(ConvKind.DGRAD), grad, weight)
        return relax.Tuple([dw, dx])

    return module(params, body)


def test_options_choose_the_ops() -> None:
    mod = two_gradients()
    assert ops(mod) == [WGRAD, DGRAD]
    default = ops(Composite()(mod))
    assert WGRAD not in default
    assert DGRAD in default
    assert "relax.tile" in default
    assert ops(Composite(weight=False, data=True)(mod)) == [WGRAD, "relax.nn.conv2d_transpose"]
    assert Composite(weight=False)(mod).same_as(mod)


def test_result_types_and_signature_stay() -> None:
    mod = two_gradients()
    out = Composite(data=True)(mod)
    tvm.ir.assert_structural_equal(out["main"].ret_ty, mod["main"].ret_ty)
    assert [p.name for p in out["main"].params] == ["grad", "data", "weight"]
    relax.analysis.well_formed(out)  # raises


def test_nothing_to_do_leaves_the_module_itself() -> None:
    types = {
        "x": relax.TensorType((1, 4, 6, 6), "float32"),
        "w": relax.TensorType((8, 4, 3, 3), "float32"),
    }
    mod = module(types, lambda x, w: relax.op.nn.relu(relay_wgrad.conv2d(x, w)))
    assert Composite(data=True)(mod).same_as(mod)


def test_only_functions_with_gradients_change() -> None:
    mod = two_gradients().with_attr("mark", 7)
    other = module({"x": relax.TensorType((3,), "float32")}, lambda x: relax.op.nn.relu(x))
    mod.update_func(tvm.ir.GlobalVar("other"), other["main"].with_attr("global_symbol", "other"))
    before = mod.script()
    out = Composite()(mod)
    assert out["other"].same_as(mod["other"])
    assert int(out.attrs["mark"]) == 7
    assert mod.script() == before  # the input module is not written to


def test_inside_control_flow_and_outside_dataflow() -> None:
    p = ConvProblem.parse("wgrad n=1 c=2 h=4 w=4 k=2 r=3 s=3 pad=1,1,1,1")
    text = """
@I.ir_module
class Module:
    @R.function
    def main(grad: R.Tensor((1, 2, 4, 4), "float32"), data: R.Tensor((1, 2, 4, 4), "float32"),
             c: R.Tensor((), "bool")) -> R.Tensor((2, 2, 3, 3), "float32"):
        if c:
            a = R.nn.conv2d_backward_weight(grad, data, kernel_size=[3, 3], padding=[1, 1, 1, 1])
            r = a
        else:
            b = R.nn.conv2d_backward_weight(data, grad, kernel_size=[3, 3], padding=[1, 1, 1, 1])
            r = b
        return r
"""
    mod = tvm.script.from_source(text)
    lowered = composite(mod)["main"]
    branch = next(call for call in bound_values(lowered) if isinstance(call, relax.If))
    for body in (branch.true_branch, branch.false_branch):
        names = [str(v.op.name) for v in bound_values(body) if isinstance(v, relax.Call)]
        assert "relax.tile" in names
        assert WGRAD not in names
    # Only the first branch is run: upstream's memory plan lets the second one reuse what only the
    # first allocates, and any two temporaries of one size there crash the virtual machine.
    grad, data = random_operands(p, np.random.default_rng(0))
    got = run(stock_compiled(mod), grad, data, np.array(True))
    assert relative_error(got, torch_reference(p, grad, data)) <= tolerance(p)


def bound_values(expr: Any) -> list[relax.Expr]:
    """What the bindings of a function's or a branch's own blocks bind."""
    body = expr.body if isinstance(expr, relax.Function) else expr
    return [binding.value for block in body.blocks for binding in block.bindings]


@pytest.mark.parametrize("key", ["Composite", "Codegen"])
def test_what_a_backend_took_stays(key: str) -> None:
    mod = two_gradients()
    mod.update_func(mod.get_global_var("main"), mod["main"].with_attr(key, "someone.wgrad"))
    tvm.ir.assert_structural_equal(Composite()(mod), mod)
    assert ops(Composite()(mod)) == [WGRAD, DGRAD]


def test_is_a_legalization_rule_too() -> None:
    mod = relax.transform.LegalizeOps({WGRAD: weight_composite})(wgrad_module("wgrad_pr9954"))
    assert "relax.nn.conv2d" not in ops(mod)
    names = {str(var.name_hint) for var in mod.get_global_vars()}
    assert "tile" in names, names
