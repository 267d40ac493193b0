"""Malformed attributes and operands: each is refused, in words that name op, rule and values.

Through relay_wgrad's constructors, hand-made calls, and TVMScript text; `test_errors_shapes` has
the rules between sizes.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.ir import Op

import relay_wgrad
from tests.support.malformed import (
    NEW,
    OPS,
    ROLES,
    SHAPES,
    STORED,
    built,
    constructed,
    hand_made,
    operands,
    parsed,
    tensor,
)

pytestmark = pytest.mark.usefixtures("registered")

FLOATS = "float16, bfloat16, float32, float64"
UPSTREAM = "U"  # text: upstream's own constructor, which R.nn.conv2d is, refuses it before we can

# (attributes, exception, message after "op: ", whether upstream's constructor comes first)
ATTRIBUTES: list[tuple[dict[str, Any], type[Exception], str, str]] = [
    ({"strides": [0, 1]}, ValueError, "strides must be at least 1, got strides=[0, 1]", ""),
    ({"strides": [1, -2]}, ValueError, "strides must be at least 1, got strides=[1, -2]", ""),
    ({"dilation": [0, 0]}, ValueError, "dilation must be at least 1, got dilation=[0, 0]", ""),
    ({"dilation": [1, -1]}, ValueError, "dilation must be at least 1, got dilation=[1, -1]", ""),
    (
        {"padding": [0, 0, -1, 0]},
        ValueError,
        "padding must be at least 0, got padding=[0, 0, -1, 0]",
        "",
    ),
    ({"groups": 0}, ValueError, "groups must be at least 1, got groups=0", UPSTREAM),
    ({"groups": -2}, ValueError, "groups must be at least 1, got groups=-2", UPSTREAM),
    ({"strides": [2**40, 1]}, ValueError, "strides must be smaller than 2**30, got 1099", ""),
    ({"padding": [2**30] * 4}, ValueError, "padding must be smaller than 2**30, got 107374", ""),
    ({"groups": 2**30}, ValueError, "groups must be smaller than 2**30, got 1073741824", ""),
    ({"strides": [1, 2, 3]}, ValueError, "strides must have 1 or 2 values, got 3: [1, 2, 3]", "U"),
    ({"strides": []}, ValueError, "strides must have 1 or 2 values, got 0: []", UPSTREAM),
    ({"dilation": [1] * 4}, ValueError, "dilation must have 1 or 2 values, got 4: ", UPSTREAM),
    ({"padding": [1, 2, 3]}, ValueError, "padding must have 1, 2 or 4 values, got 3: ", UPSTREAM),
    ({"data_layout": "NCHH"}, ValueError, "data_layout must be a permutation of NCHW", ""),
    ({"data_layout": "nchw"}, ValueError, "data_layout must be a permutation of NCHW", ""),
    ({"data_layout": "NCHWc"}, ValueError, "data_layout must be a permutation of NCHW", ""),
    ({"data_layout": "NCHW4c4c"}, ValueError, "data_layout must be a permutation of NCHW", ""),
    ({"data_layout": "NCDHW"}, ValueError, "data_layout must be a permutation of NCHW", ""),
    ({"kernel_layout": "OIHO"}, ValueError, "kernel_layout must be a permutation of ", ""),
    ({"kernel_layout": "OI"}, ValueError, "kernel_layout must be a permutation of ", ""),
    ({"out_dtype": "int32"}, TypeError, f"out_dtype must be one of {FLOATS}, got int32", ""),
    ({"out_dtype": "float8_e4m3fn"}, TypeError, f"out_dtype must be one of {FLOATS}, got flo", ""),
    ({"out_dtype": "fp32"}, TypeError, "out_dtype must name a dtype, got 'fp32'", UPSTREAM),
    ({"out_dtype": 3}, TypeError, "out_dtype must name a dtype, got 3", UPSTREAM),
    ({"strides": 1.5}, TypeError, "strides must be an integer, got 1.5", UPSTREAM),
    ({"strides": "2"}, TypeError, "strides must be an integer, got '2'", UPSTREAM),
    ({"strides": None}, TypeError, "strides must be an integer, got None", UPSTREAM),
    ({"padding": [0, "1"]}, TypeError, "padding must be an integer, got '1'", UPSTREAM),
    ({"groups": "2"}, TypeError, "groups must be an integer, got '2'", UPSTREAM),
    ({"groups": [2]}, TypeError, "groups must be an integer, got ", UPSTREAM),
    ({"groups": 1.0}, TypeError, "groups must be an integer, got 1.0", UPSTREAM),
    ({"data_layout": 3}, TypeError, "data_layout must be a string, got 3", UPSTREAM),
    ({"kernel_layout": None}, TypeError, "kernel_layout must be a string, got None", UPSTREAM),
]
ATTRIBUTES_OF_ONE: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("conv2d", {"out_layout": "NCHWN"}, ValueError, "out_layout must be a permutation of NCHW"),
    ("conv2d_transpose", {"out_layout": "NHHC"}, ValueError, "out_layout must be a permutation"),
    (
        "conv2d_transpose",
        {"output_padding": [0, 2], "strides": [2, 2]},
        ValueError,
        "output_padding must be smaller than strides, got output_padding=[0, 2], strides=[2, 2]",
    ),
    (
        "conv2d_transpose",
        {"output_padding": [-1, 0]},
        ValueError,
        "output_padding must be at least 0, got output_padding=[-1, 0]",
    ),
    *[
        (op, {"grad_layout": "NCHC"}, ValueError, "grad_layout must be a permutation of NCHW, got")
        for op in NEW
    ],
    (
        "conv2d_backward_weight",
        {"kernel_size": [0, 3]},
        ValueError,
        "kernel_size must be at least 1, got kernel_size=[0, 3]",
    ),
    (
        "conv2d_backward_weight",
        {"kernel_size": [3, 3, 3]},
        ValueError,
        "kernel_size must have 1 or 2 values, got 3",
    ),
    ("conv2d_backward_weight", {"kernel_size": "3"}, TypeError, "kernel_size must be an integer"),
]
CASES = [(op, *case) for op in OPS for case in ATTRIBUTES]
CASES += [(op, attrs, error, why, "") for op, attrs, error, why in ATTRIBUTES_OF_ONE]
CASE_IDS = [f"{op}-{attrs}" for op, attrs, *_ in CASES]


def refused(error: type[Exception], op: str, why: str) -> Any:
    return pytest.raises(error, match=re.escape(f"{op}: {why}"))


# ---- attributes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "attrs", "error", "why", "first"), CASES, ids=CASE_IDS)
def test_constructor(
    op: str, attrs: dict[str, Any], error: type[Exception], why: str, first: str
) -> None:
    with refused(error, op, why):
        built(operands(op), lambda a, b: constructed(op, [a, b], attrs))


@pytest.mark.share(5)  # each case is tried of the constructor
@pytest.mark.parametrize(("op", "attrs", "error", "why", "first"), CASES, ids=CASE_IDS)
def test_text(op: str, attrs: dict[str, Any], error: type[Exception], why: str, first: str) -> None:
    # Upstream's refusals are in its own words; what counts here is that there is one.
    message = None if first and op not in NEW else re.escape(f"{op}: {why}")
    with pytest.raises(tvm.error.DiagnosticError, match=message):
        parsed(op, attrs)


@pytest.mark.share(5)
@pytest.mark.parametrize(("op", "attrs", "error", "why", "first"), CASES, ids=CASE_IDS)
def test_hand_made_call(
    op: str, attrs: dict[str, Any], error: type[Exception], why: str, first: str
) -> None:
    try:
        call = hand_made(op, operands(op), attrs)
    except (TypeError, ValueError):
        assert op not in NEW  # a struct of upstream's does not hold every type; DictAttrs do
        return
    with refused(error, op, why):
        relax.BlockBuilder().normalize(call)


@pytest.mark.parametrize("op", OPS)
def test_well_formed_is_accepted_by_every_door(op: str) -> None:
    """Guards the tests above: what they change is all that is wrong."""
    a, b = operands(op)
    direct = built([a, b], lambda a, b: constructed(op, [a, b], {}))
    assert relax.BlockBuilder().normalize(hand_made(op, [a, b], {})).ty == direct
    assert parsed(op, {})["main"].ret_ty == direct
    (result,) = {"data", "weight", "grad"} - set(ROLES[op])
    assert [int(v) for v in direct.shape.values] == list(SHAPES[result])


@pytest.mark.parametrize("op", NEW)
@pytest.mark.parametrize("key", list(STORED["conv2d_backward_weight"]))
def test_attribute_missing(op: str, key: str) -> None:
    if key not in STORED[op]:
        pytest.skip("stored by wgrad only")
    kept = {k: v for k, v in STORED[op].items() if k != key}
    call = hand_made(op, operands(op), {})
    call = relax.Call(call.op, call.args, attrs=tvm.ir.make_node("ir.DictAttrs", **kept))
    with refused(ValueError, op, f"attributes missing ['{key}'], unknown []"):
        relax.BlockBuilder().normalize(call)


@pytest.mark.parametrize("op", NEW)
def test_attribute_unknown(op: str) -> None:
    with refused(ValueError, op, "attributes missing [], unknown ['channels']"):
        relax.BlockBuilder().normalize(hand_made(op, operands(op), {"channels": 3}))
    with pytest.raises(TypeError, match="unexpected keyword argument 'channels'"):
        constructed(op, operands(op), {"channels": 3})


@pytest.mark.parametrize("op", OPS)
def test_no_attributes_at_all(op: str) -> None:
    call = hand_made(op, operands(op), {})
    with refused(ValueError, op, "attributes missing ["):
        relax.BlockBuilder().normalize(relax.Call(call.op, call.args))


@pytest.mark.parametrize(("op", "other"), [(OPS[0], NEW[0]), (NEW[0], OPS[0]), (NEW[1], OPS[1])])
def test_another_ops_attributes(op: str, other: str) -> None:
    call = hand_made(op, operands(op), {})
    attrs = hand_made(other, operands(other), {}).attrs
    with refused(ValueError, op, "attributes missing ["):
        relax.BlockBuilder().normalize(relax.Call(call.op, call.args, attrs=attrs))


def test_symbolic_attribute() -> None:
    """Attributes are numbers: a symbol is refused, not compared."""
    op = NEW[0]
    call = hand_made(op, operands(op), {"groups": tirx.Var("g", "int64")})
    with refused(TypeError, op, "groups must be an integer, got g"):
        relax.BlockBuilder().normalize(call)


# ---- operands ------------------------------------------------------------------------------------


def argument_names(op: str) -> tuple[str, str]:
    """What the op itself calls its two tensors."""
    return ("data", "weight") if op == "conv2d_transpose" else ROLES[op]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("count", [0, 1, 4])
def test_argument_count(op: str, count: int) -> None:
    call = hand_made(op, operands(op), {})
    names = [*argument_names(op), *(["shape"] if op == NEW[1] else [])]
    call = relax.Call(call.op, [call.args[0]] * count, attrs=call.attrs)
    why = f"takes {len(names)} arguments ({', '.join(names)}), got {count}"
    with refused(ValueError, op, why):
        relax.BlockBuilder().normalize(call)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    ("what", "shown"),
    [
        (lambda: relax.ShapeExpr([1, 2]), "R.Shape([1, 2])"),
        (lambda: relax.Tuple([tensor("data")]), "T.Tuple(R.Tensor("),
        (lambda: relax.Var("any", relax.AnyType()), "R.Any"),
    ],
    ids=["shape", "tuple", "any"],
)
def test_operand_is_no_tensor(op: str, place: int, what: Any, shown: str) -> None:
    args: list[Any] = list(operands(op))
    args[place] = what()
    with refused(TypeError, op, f"{argument_names(op)[place]} must be a tensor, got {shown}"):
        built([x for x in args if isinstance(x, relax.Var)], lambda *_: constructed(op, args, {}))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("place", [0, 1])
def test_operand_is_no_expression(op: str, place: int) -> None:
    args: list[Any] = list(operands(op))
    args[place] = np.zeros((2, 4, 8, 8), "float32")
    with pytest.raises(TypeError, match="must be a Relax expression of a tensor, got ndarray"):
        constructed(op, args, {})


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("rank", [0, 3, 5])
def test_rank(op: str, place: int, rank: int) -> None:
    role = ROLES[op][place]
    shape = (*SHAPES[role], 1)[:rank]
    why = "must have 4 dimensions, got "
    with pytest.raises(ValueError, match=f"{op}: {argument_names(op)[place]} .*{why}{rank}: R"):
        built(operands(op, {role: shape}), lambda a, b: constructed(op, [a, b], {}))


@pytest.mark.parametrize("op", NEW)
@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8", "bool", "float8_e4m3fn", "float32x4"])
def test_operand_dtype(op: str, dtype: str) -> None:
    for place, dtypes in enumerate([(dtype, "float32"), ("float32", dtype)]):
        with refused(TypeError, op, f"{ROLES[op][place]} must be one of {FLOATS}, got {dtype}"):
            built(operands(op, dtypes=dtypes), lambda a, b: constructed(op, [a, b], {}))


@pytest.mark.parametrize("op", OPS[:2])
def test_integer_convolutions_stay_upstreams(op: str) -> None:
    ty = built(
        operands(op, dtypes=("int8", "int8")),
        lambda a, b: constructed(op, [a, b], {"out_dtype": "int32"}),
    )
    assert ty.dtype == "int32"


@pytest.mark.parametrize("op", OPS)
def test_mixed_dtypes_need_an_out_dtype(op: str) -> None:
    variables = operands(op, dtypes=("float16", "float32"))
    why = "operands of different dtypes need an out_dtype, got float16 and float32"
    with refused(TypeError, op, why):
        built(variables, lambda a, b: constructed(op, [a, b], {}))
    ty = built(variables, lambda a, b: constructed(op, [a, b], {"out_dtype": "float16"}))
    assert ty.dtype == "float16"


# ---- before registration -------------------------------------------------------------------------


@pytest.mark.parametrize("op", NEW)
def test_unregistered_use(op: str) -> None:
    relay_wgrad.unregister()
    why = rf"relax.nn.{op} .*call relay_wgrad.register\(\)"
    with pytest.raises(RuntimeError, match=why):
        built(operands(op), lambda a, b: constructed(op, [a, b], {}))
    with pytest.raises(RuntimeError, match=why):
        relax.BlockBuilder().normalize(hand_made(op, operands(op), {}))
    with pytest.raises(tvm.error.DiagnosticError, match=f"no attribute '{op}'"):
        parsed(op, {})
    assert Op.get(f"relax.nn.{op}") is not None  # an op cannot be taken back, only refuse
