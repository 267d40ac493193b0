"""Mixed precision: which operators are converted, and that numbers are the program's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.transform.mixed_precision import DEFAULT_NEVER_LIST, MIXED_PRECISION_NEVER
from tests.support.relay.evaluate import evaluate
from tests.support.relay.layout_programs import arrays, program
from tests.support.relay.unchanged import flat

X = relay.var("x", shape=(1, 4, 6, 6))
W = relay.var("w", shape=(4, 4, 3, 3))
CONV = relay.nn.conv2d(X, W, padding=1)


def converted(expr: Any, dtype: str = "float16", mode: int = 2) -> relay.IRModule:
    mod = T.InferType()(relay.IRModule.from_expr(expr))
    return T.ToMixedPrecision(dtype, mode)(mod)


def dtypes(mod: relay.IRModule) -> dict[str, set[str]]:
    """Operator -> the dtypes of its results."""
    found: dict[str, set[str]] = {}

    def note(node: Any) -> None:
        ty = getattr(node, "checked_type", None)
        if isinstance(node, relay.Call) and isinstance(ty, relay.TensorType):
            found.setdefault(node.op.name, set()).add(ty.dtype)

    relay.analysis.post_order_visit(mod["main"], note)
    return found


@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_numbers_are_those_of_the_lower_precision(seed: int, steps: int) -> None:
    """`layout_programs.program(seed, steps)` is what failed; float64's lower one is float32."""
    mod = program(seed, steps)
    with T.PassContext(config={"relay.ToMixedPrecision.keep_orig_output_dtype": True}):
        lower = T.ToMixedPrecision("float32", 2)(mod)
    assert lower["main"].checked_type == mod["main"].checked_type
    kept = dtypes(lower)
    assert not any("float32" in kept.get(name, ()) for name in DEFAULT_NEVER_LIST)
    if {"argmax", "argmin"} & kept.keys():
        return  # another one of what rounding made equal, and all that a sum of it is added to
    inputs = arrays(mod)
    with np.errstate(all="ignore"):
        want, got = (flat(evaluate(m["main"], inputs)) for m in (mod, lower))
    for ours, theirs in zip(got, want, strict=True):
        far = np.abs(ours - theirs) > 1e-3 * (np.abs(theirs).max() + 1)
        assert np.mean(far) < 0.3  # a comparison of what rounding made equal


def test_what_follows_a_convolution_is_half() -> None:
    mod = converted(relay.exp(relay.nn.relu(relay.add(CONV, CONV))))
    assert dtypes(mod)["nn.conv2d"] == dtypes(mod)["nn.relu"] == {"float16"}
    assert dtypes(mod)["exp"] == {"float32"}


def test_a_cast_back_is_the_value_itself() -> None:
    """`exp` gets what was float32 before the convolution asked for half of it."""
    y = relay.tanh(relay.exp(X))
    mod = converted(relay.Tuple([relay.nn.conv2d(y, W), relay.exp(y)]))
    assert relay.testing.count_ops(mod["main"])["cast"] == 2


def test_numbers_out_of_range_stay() -> None:
    """Relay makes infinity of it."""
    mod = converted(relay.add(CONV, relay.const(1e6)))
    assert dtypes(mod)["add"] == {"float32"}
    assert dtypes(converted(relay.add(CONV, relay.const(1e6)), "bfloat16"))["add"] == {"bfloat16"}
    assert dtypes(converted(relay.clip(CONV, -1e6, 1e6)))["clip"] == {"float32"}


def test_float64_is_kept() -> None:
    """Relay casts what is not converted to float32."""
    x = relay.var("x", shape=(2, 3), dtype="float64")
    assert dtypes(converted(relay.exp(x)))["exp"] == {"float64"}


def test_functions_keep_their_types() -> None:
    p = relay.var("p", shape=(1, 4, 6, 6))
    inner = relay.Function([p], relay.nn.conv2d(p, W, padding=1))
    f = relay.var("f")
    mod = converted(relay.Let(f, inner, relay.nn.relu(relay.Call(f, [CONV]))))
    assert mod["main"].body.value.ret_type.dtype == "float32"
    mod = relay.IRModule({"inner": relay.Function([p, W], relay.nn.conv2d(p, W, padding=1))})
    x, w = relay.var("x", shape=(1, 4, 6, 6)), relay.var("w", shape=(4, 4, 3, 3))
    inner_call = relay.Call(relay.GlobalVar("inner"), [relay.nn.conv2d(x, w, padding=1), w])
    mod["main"] = relay.Function([x, w], inner_call)
    mod = T.ToMixedPrecision("float16", 2)(mod)
    assert mod["inner"].ret_type.dtype == "float32"


def test_branches_keep_their_types() -> None:
    condition = relay.var("c", shape=(), dtype="bool")
    mod = converted(relay.If(condition, CONV, X))
    assert mod["main"].body.checked_type.dtype == "float32"


def test_a_registered_conversion_counts() -> None:
    def never(call: Any, dtype: str) -> list[Any]:
        return [MIXED_PRECISION_NEVER, dtype, dtype]

    relay.op.register_mixed_precision_conversion("nn.conv2d", never)
    try:
        assert dtypes(converted(CONV))["nn.conv2d"] == {"float32"}
        relay.op.register_mixed_precision_conversion("nn.conv2d", lambda call, dtype: [7, dtype])
        with pytest.raises(
            ValueError, match=r"nn.conv2d: the mixed precision conversion must give"
        ):
            converted(CONV)
    finally:
        relay.op.get("nn.conv2d").reset_attr("FTVMMixedPrecisionConversionType")


def test_wide_sums() -> None:
    relay.op.register_mixed_precision_conversion(
        "nn.conv2d", lambda call, dtype: [0, "float32", dtype]
    )
    try:
        body = converted(CONV)["main"].body
    finally:
        relay.op.get("nn.conv2d").reset_attr("FTVMMixedPrecisionConversionType")
    assert (body.op.name, body.args[0].checked_type.dtype) == ("cast", "float32")


def test_operators_that_nothing_says_how_to_convert() -> None:
    with pytest.warns(UserWarning, match="nothing says how negative is converted"):
        converted(relay.negative(CONV), mode=1)
    with pytest.raises(ValueError, match="nothing says how negative is converted"):
        converted(relay.negative(CONV), mode=0)


def test_refused() -> None:
    with pytest.raises(ValueError, match=r"dtype must be one of float16, .* got int8"):
        T.ToMixedPrecision("int8")
    with pytest.raises(ValueError, match="missing_op_mode must be 0, 1 or 2, got 3"):
        T.ToMixedPrecision("float16", 3)


def test_recast_layers() -> None:
    """The second of three; its branch of one counts from its end."""
    y = relay.nn.conv2d(relay.nn.conv2d(CONV, W, padding=1), W, padding=1)
    mod = T.InferType()(relay.IRModule.from_expr(y))
    mod = T.InferType()(T.recast(mod, "float16", "float32", skip_layers=[0, -1]))
    convs: list[Any] = []

    def note(node: Any) -> None:
        if isinstance(node, relay.Call) and node.op.name == "nn.conv2d":
            convs.append(node.args[0].checked_type.dtype)

    relay.analysis.post_order_visit(mod["main"], note)
    assert convs == ["float32", "float16", "float32"]
