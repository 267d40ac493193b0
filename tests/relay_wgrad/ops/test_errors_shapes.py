"""Rules between sizes: only what is provably wrong is refused, and that in values.

The rules are written down here a second time, as cases; nothing is computed from the relation.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import tvm
from tvm import relax, tirx

import relay_wgrad
from tests.support.malformed import NEW, OPS, SHAPES, built, constructed, operands, parsed, tensor

pytestmark = pytest.mark.usefixtures("registered")

CONV, TRANSPOSED, WGRAD, DGRAD = OPS
FORWARD = "data", "weight", "grad"
Case = tuple[str, dict[str, Any], dict[str, Any], str]


def made(letter: str, grad: int, conv: int) -> str:
    """The end of the message that grad's size is not what the convolution makes."""
    return f"got grad {letter}={grad} and made {letter}={conv}"


# (op, shapes other than usual, attributes, message)
SIZES: list[Case] = [
    # channels and groups
    (
        CONV,
        {"data": (2, 5, 8, 8)},
        {},
        (
            "data's C must be weight's C/groups times groups (groups=1), got data C=5"
            " and weight C/groups * groups=4"
        ),
    ),
    (CONV, {}, {"groups": 2}, "data's C must be weight's C/groups times groups (groups=2), got"),
    (CONV, {}, {"groups": 3}, "groups must divide C, got C=4, groups=3"),
    (CONV, {"weight": (6, 1, 3, 3)}, {"groups": 4}, "groups must divide K, got K=6, groups=4"),
    (
        CONV,
        {"data": (2, 8, 8, 4)},
        {"data_layout": "NHWC", "groups": 8},
        "groups must divide C, got C=4, groups=8",
    ),
    (
        TRANSPOSED,
        {"grad": (2, 5, 6, 6)},
        {},
        "data's channels must be the weight's input channels I, got data channels=5 and weight I=6",
    ),
    (TRANSPOSED, {}, {"groups": 4}, "groups must divide the weight's input channels I"),
    (WGRAD, {}, {"groups": 3}, "groups must divide C, got C=4, groups=3"),
    (WGRAD, {}, {"groups": 4}, "groups must divide K, got K=6, groups=4"),
    (
        DGRAD,
        {"grad": (2, 7, 6, 6)},
        {},
        "grad and weight must have the same channels K, got grad K=7 and weight K=6",
    ),
    (DGRAD, {}, {"groups": 2}, "data's C must be weight's C/groups times groups (groups=2), got"),
    (DGRAD, {"weight": (6, 1, 3, 3)}, {"groups": 4}, "groups must divide K, got K=6, groups=4"),
    # batch
    *[
        (
            op,
            {"grad": (3, 6, 6, 6)},
            {},
            "grad and data must have the same batch N, got grad N=3 and data N=2",
        )
        for op in NEW
    ],
    # a gradient that the convolution does not make
    *[
        case
        for op in NEW
        for case in (
            (op, {"grad": (2, 6, 5, 6)}, {}, made("P", 5, 6)),
            (op, {"grad": (2, 6, 6, 7)}, {}, made("Q", 7, 6)),
            (op, {}, {"strides": [2, 1]}, made("P", 6, 3)),
            (op, {}, {"dilation": [1, 2]}, made("Q", 6, 4)),
            (op, {}, {"padding": [1, 0, 0, 0]}, made("P", 6, 7)),
            (op, {}, {"padding": [0, 0, 0, 1]}, made("Q", 6, 7)),
        )
    ],
    (WGRAD, {}, {"kernel_size": [2, 3]}, made("P", 6, 7)),
    (
        WGRAD,
        {"grad": (2, 7, 6, 6), "data": (2, 9, 8, 4)},
        {"data_layout": "NHWC"},
        (
            "grad's P must be what the convolution makes of H=9, R=3, padding 0 in all, stride 1,"
            " dilation 1, got grad P=6 and made P=7"
        ),
    ),
    # nothing left
    *[
        case
        for op in (CONV, *NEW)
        for case in (
            (op, {"data": (2, 4, 2, 8)}, {}, "P must be positive, got P=0 from H=2, R=3"),
            (op, {}, {"dilation": [1, 5]}, "Q must be positive, got Q=-2 from W=8, S=3"),
        )
    ],
    (
        TRANSPOSED,
        {},
        {"padding": [4, 4, 4, 4]},
        (
            "output height must be positive, got output height=0 from input size 6, kernel 3,"
            " padding 8 in all, stride 1, dilation 1, output padding 0"
        ),
    ),
    (
        TRANSPOSED,
        {},
        {"padding": [0, 9, 0, 1]},
        "output width must be positive, got output width=-2 from",
    ),
    # no element
    (CONV, {"data": (0, 4, 8, 8)}, {}, "N must be positive, got N=0 from data R.Tensor((0, 4, "),
    (CONV, {"weight": (6, 4, 0, 3)}, {}, "H must be positive, got H=0 from weight R.Tensor((6"),
    (TRANSPOSED, {"grad": (2, 6, 0, 6)}, {}, "H must be positive, got H=0 from data R.Tensor("),
    (WGRAD, {"grad": (0, 6, 6, 6)}, {}, "N must be positive, got N=0 from grad R.Tensor((0, 6"),
    (DGRAD, {"weight": (0, 4, 3, 3)}, {}, "O must be positive, got O=0 from weight R.Tensor((0"),
    (DGRAD, {"data": (2, 4, -8, 8)}, {}, "H must be positive, got H=-8 from shape [2, 4, -8, 8]"),
    (DGRAD, {"data": (2, 4, 8)}, {}, "shape must have the 4 sizes of NCHW, got 3: R.Shape([2"),
]


@pytest.mark.parametrize(("op", "shapes", "attrs", "why"), SIZES, ids=map(str, range(len(SIZES))))
@pytest.mark.parametrize("door", ["constructor", "text"])
def test_sizes(op: str, shapes: dict[str, Any], attrs: dict[str, Any], why: str, door: str) -> None:
    message = re.escape(f"{op}: ") + ".*" + re.escape(why)
    if door == "text":
        with pytest.raises(tvm.error.DiagnosticError, match=message):
            parsed(op, attrs, shapes)
        return
    with pytest.raises(ValueError, match=message):
        built(operands(op, shapes), lambda a, b: constructed(op, [a, b], attrs, shapes.get("data")))


# ---- symbolic sizes ------------------------------------------------------------------------------

n, c, h, p = (tirx.Var(name, "int64") for name in "nchp")
ACCEPTED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *[
        case
        for op in OPS
        for case in (
            (op, {"data": (n, 4, 8, 8), "grad": (n, 6, 6, 6)}, {}),
            (op, {"data": (n, 4, 8, 8), "grad": (p, 6, 6, 6)}, {}),  # may be equal
            (op, {"data": (2, 4, h, 8), "grad": (2, 6, h - 2, 6)}, {}),
            (op, {"data": (2, 4, h, 8), "grad": (2, 6, p, 6)}, {}),
            (
                op,
                {"data": (2, 4, h, 8), "grad": (2, 6, (h - 3) // 2 + 1, 6)},
                {"strides": [2, 1]},
            ),
        )
    ],
    (CONV, {"data": (2, c, 8, 8), "weight": (6, c, 3, 3)}, {}),
    (CONV, {"data": (2, c, 8, 8), "weight": (6, c // 2, 3, 3)}, {"groups": 2}),
    (CONV, {"data": (2, 4 * c, 8, 8), "weight": (8, c, 3, 3)}, {"groups": 4}),
    (CONV, {"data": (2, c, 8, 8)}, {}),  # c may be 4
    (WGRAD, {"data": (2, c, 8, 8)}, {"groups": 3}),  # 3 may divide c
    (WGRAD, {"data": (2, 3 * c, 8, 8)}, {"groups": 3}),
    (TRANSPOSED, {"grad": (2, c, 6, 6), "weight": (c, 4, 3, 3)}, {}),
    (TRANSPOSED, {"grad": (n, 6, h, p)}, {"strides": [2, 3], "output_padding": [1, 2]}),
    (DGRAD, {"data": (2, 4, h * 2, 8), "grad": (2, 6, h - 1, 6)}, {"strides": [2, 1]}),
]
REFUSED: list[Case] = [
    *[
        case
        for op in NEW
        for case in (
            (
                op,
                {"data": (n, 4, 8, 8), "grad": (n + 1, 6, 6, 6)},
                {},
                "grad and data must have the same batch N, got grad N=n + ",
            ),
            (
                op,
                {"data": (2, 4, h, 8), "grad": (2, 6, h - 1, 6)},
                {},
                "grad's P must be what the convolution makes of H=h, R=3, padding 0 in all",
            ),
            (
                op,
                {"data": (2, 4, 2 * h, 8), "grad": (2, 6, h, 6)},
                {"strides": [2, 1]},
                "grad's P must be what the convolution makes of H=",
            ),
            # The symbol hides nothing here: another size is wrong.
            (
                op,
                {"data": (n, 4, 8, 8), "grad": (n, 6, 6, 5)},
                {},
                "got grad Q=5 and made Q=6",
            ),
        )
    ],
    (CONV, {"data": (2, c, 8, 8), "weight": (6, c + 1, 3, 3)}, {}, "data's C must be weight's C"),
    (CONV, {"data": (n, 5, h, 8)}, {}, "data's C must be weight's C/groups times groups"),
    (CONV, {"data": (2, 3 * c + 1, 8, 8), "weight": (6, c, 3, 3)}, {"groups": 3}, "groups must"),
    (WGRAD, {"data": (2, 4 * c + 2, 8, 8)}, {"groups": 2 * 2}, "groups must divide C, got C="),
    (TRANSPOSED, {"grad": (n, c, 6, 6), "weight": (c - 1, 4, 3, 3)}, {}, "data's channels must be"),
    (TRANSPOSED, {"grad": (n, 5, h, 6)}, {}, "data's channels must be the weight's"),
    (CONV, {"data": (n, 4, h, 2)}, {}, "Q must be positive, got Q=0 from W=2, S=3"),
]


def symbolic(op: str, shapes: dict[str, Any], attrs: dict[str, Any]) -> relax.Type:
    return built(
        operands(op, shapes), lambda a, b: constructed(op, [a, b], attrs, shapes.get("data"))
    )


@pytest.mark.parametrize(("op", "shapes", "attrs"), ACCEPTED, ids=map(str, range(len(ACCEPTED))))
def test_what_may_be_right_is_accepted(
    op: str, shapes: dict[str, Any], attrs: dict[str, Any]
) -> None:
    ty = symbolic(op, shapes, attrs)
    assert ty.ndim == 4
    if op == DGRAD:
        wanted = relax.TensorType(shapes.get("data", SHAPES["data"]), "float32")
        tvm.ir.assert_structural_equal(ty.shape.values, wanted.shape.values)


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "why"), REFUSED, ids=map(str, range(len(REFUSED)))
)
def test_what_cannot_be_right_is_refused(
    op: str, shapes: dict[str, Any], attrs: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{op}: ") + ".*" + re.escape(why)):
        symbolic(op, shapes, attrs)


def test_symbolic_text() -> None:
    """The same two ways through the parser."""
    text = """
@I.ir_module
class Module:
    @R.function
    def main(grad: R.Tensor(("n", 6, 6, 6)), data: R.Tensor(("{batch}", 4, 8, 8))):
        with R.dataflow():
            dw = R.nn.conv2d_backward_weight(grad, data, kernel_size=[3, 3])
            R.output(dw)
        return dw
"""
    for batch in ("n", "m"):
        tvm.script.from_source(text.format(batch=batch))
    with pytest.raises(tvm.error.DiagnosticError, match="same batch N, got grad N=n and data N=n"):
        tvm.script.from_source(text.format(batch="n + 1"))


@pytest.mark.parametrize("op", NEW)
def test_unknown_shapes_are_accepted(op: str) -> None:
    """No shape, no rank, no dtype: nothing is provably wrong; the result is a 4-D tensor."""
    _a, b = operands(op)
    for ty in (
        relax.TensorType(None, "float32", ndim=4),
        relax.TensorType(None, "float32", ndim=-1),
        relax.TensorType(None, None, ndim=-1),
    ):
        out = built([relax.Var("x", ty), b], lambda a, b: constructed(op, [a, b], {}))
        assert out.ndim == 4
        assert (out.dtype is None) == (ty.dtype is None)


def test_result_shape_known_only_when_run() -> None:
    for ty in (relax.ShapeType(ndim=4), relax.ShapeType()):
        shape = relax.Var("shape", ty)
        out = built(
            [*operands(DGRAD), shape], lambda a, b, shape: constructed(DGRAD, [a, b], {}, shape)
        )
        assert (out.ndim, out.shape) == (4, None)
    shape = relax.Var("shape", relax.ShapeType(ndim=3))
    with pytest.raises(ValueError, match=f"{DGRAD}: shape must have the 4 sizes of NCHW, got 3"):
        built([*operands(DGRAD), shape], lambda a, b, s: constructed(DGRAD, [a, b], {}, s))
    with pytest.raises(TypeError, match=f"{DGRAD}: shape must be a shape, got R.Tensor"):
        built(operands(DGRAD), lambda a, b: constructed(DGRAD, [a, b], {}, a))


@pytest.mark.parametrize(
    "shape",
    [
        None, 5, "abcd", (2, 4, 8.0, 8), (2, 4, 2**63, 8), (2, 4, tirx.Var("h", "float32"), 8),
        (2, 4, tirx.Var("h", "int32"), 8),
    ],
)  # fmt: skip
def test_result_shape_is_no_shape(shape: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"{DGRAD}: shape"):
        relay_wgrad.conv2d_backward_data(*operands(DGRAD), shape)


@pytest.mark.parametrize("operand", [None, 3, "x"])
def test_operand_is_no_expression(operand: Any) -> None:
    good = operands(DGRAD)[0]
    for call in (
        lambda: relay_wgrad.conv2d(operand, good),
        lambda: relay_wgrad.conv2d_transpose(good, operand),
        lambda: relay_wgrad.conv2d_backward_weight(good, operand, 3),
        lambda: relay_wgrad.conv2d_backward_data(operand, good, (1, 1, 4, 4)),
        lambda: relay_wgrad.conv2d_transpose_backward_data(good, operand),
        lambda: relay_wgrad.conv2d_transpose_backward_weight(operand, good, 3),
    ):
        with pytest.raises(
            TypeError, match=r"must be a Relax expression .*, got (NoneType|int|str)"
        ):
            call()


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("suffix", ["", "_transpose"])
@pytest.mark.parametrize("dtype", ["", "void"])
def test_result_of_no_dtype(rank: int, suffix: str, dtype: str) -> None:
    """Upstream's own constructors keep both words, for a tensor of no type; ours mean the
    operands' by them."""
    x, w = (tensor("data", (4, 4, *[n] * rank)) for n in (8, 3))
    op = f"conv{rank}d{suffix}"
    with pytest.raises(TypeError, match=f"{op}: out_dtype must name a dtype, got 'void'"):
        built([x, w], lambda x, w: getattr(relax.op.nn, op)(x, w, out_dtype=dtype))
    if rank == 2:
        made = built([x, w], lambda x, w: getattr(relay_wgrad, op)(x, w, out_dtype=dtype))
        assert made.dtype == "float32"


# In its own words: its grad is the forward convolution's data, and its data that one's grad.
OF_TRANSPOSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("data", {"weight": (6, 4, 3, 3)}, {"grad": (2, 3, 8, 8)}, "grad's C must be weight's"),
    ("data", {}, {"strides": 0}, "strides must be at least 1"),
    ("data", {}, {"strides": "2"}, "strides must be an integer, got '2'"),
    ("data", {}, {"kernel_layout": "OHW"}, "kernel_layout must be a permutation of IOHW"),
    ("data", {}, {"grad_layout": "NCH"}, "grad_layout must be a permutation of NCHW, got 'NCH'"),
    ("data", {}, {"data_layout": "NCH"}, "data_layout must be a permutation of NCHW, got 'NCH'"),
    ("data", {}, {"out_dtype": "int8"}, "out_dtype must be one of"),
    ("data", {"grad": (2, 4, 8)}, {}, "grad with layout NCHW must have 4 dimensions, got 3"),
    ("weight", {"grad": (3, 4, 8, 8)}, {}, "data and grad must have the same batch N, got"),
    ("weight", {"data": (2, 6, 5, 6)}, {}, "data's P must be what the convolution makes of H=8"),
    ("weight", {}, {"kernel_size": 0}, "kernel_size must be at least 1"),
    ("weight", {}, {"groups": 4}, "groups must divide K, got K=6, groups=4"),
    ("weight", {}, {"padding": -1}, "padding must be at least 0"),
]  # fmt: skip


@pytest.mark.parametrize(("role", "shapes", "attrs", "rule"), OF_TRANSPOSED)
def test_a_transposed_ones_gradient_by_its_name(
    role: str, shapes: dict[str, Any], attrs: dict[str, Any], rule: str
) -> None:
    shapes = {"grad": (2, 4, 8, 8), "data": (2, 6, 6, 6), "weight": (6, 4, 3, 3), **shapes}
    shapes |= {key: attrs[key] for key in attrs if key in shapes}
    attrs = {key: attrs[key] for key in attrs if key not in shapes}
    op, other = f"conv2d_transpose_backward_{role}", "weight" if role == "data" else "data"
    args = [tensor(name, shapes[name]) for name in ("grad", other)]
    if role == "weight":
        attrs = {"kernel_size": 3, **attrs}
    with pytest.raises((TypeError, ValueError), match=re.escape(f"{op}: {rule}")):
        getattr(relay_wgrad, op)(*args, **attrs)
