"""What TVM's own Gradient makes of the four ops: structure and types; nothing is run here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm import relax, tirx
from tvm.ir import Op

import relay_wgrad
from tests.support.built import built
from tests.support.malformed import OPS

pytestmark = pytest.mark.usefixtures("registered")

CONV, TRANSPOSED, WGRAD, DGRAD = OPS
n, h, w = (tirx.Var(x, "int64") for x in "nhw")

# The partial derivatives of each op, by its first and second operand: (op, operands), `v` the
# cotangent.  Written out from the trilinear form <y, conv(x, w)>, not from the code.
PARTIALS = {
    CONV: ((DGRAD, ("v", "weight")), (WGRAD, ("v", "data"))),
    TRANSPOSED: ((CONV, ("v", "weight")), (WGRAD, ("grad", "v"))),
    DGRAD: ((CONV, ("v", "weight")), (WGRAD, ("grad", "v"))),
    WGRAD: ((CONV, ("data", "v")), (DGRAD, ("grad", "v"))),
}
ROLES = {
    CONV: ("data", "weight"),
    TRANSPOSED: ("grad", "weight"),
    DGRAD: ("grad", "weight"),
    WGRAD: ("grad", "data"),
}
# Setting: sizes of the forward convolution's tensors in NCHW and OIHW, and its attributes.
SETTINGS: dict[str, tuple[dict[str, tuple[Any, ...]], dict[str, Any]]] = {
    "static": ({"data": (2, 4, 8, 8), "weight": (6, 4, 3, 3), "grad": (2, 6, 6, 6)}, {}),
    "strides that leave a rest, dilation, groups": (
        # H: (13 + 1 - 2*1 - 1)//3 + 1 = 4; W: (14 + 2 - 2 - 1)//2 + 1 = 7
        {"data": (2, 4, 13, 14), "weight": (6, 2, 2, 3), "grad": (2, 6, 4, 7)},
        {"strides": (3, 2), "padding": (1, 0, 0, 2), "dilation": (2, 1), "groups": 2},
    ),
    "depthwise": (
        {"data": (2, 4, 8, 8), "weight": (8, 1, 3, 3), "grad": (2, 8, 6, 6)},
        {"groups": 4},
    ),
    "symbolic N": ({"data": (n, 4, 8, 8), "weight": (6, 4, 3, 3), "grad": (n, 6, 6, 6)}, {}),
    "symbolic N, H, W": (
        {"data": (n, 4, h, w), "weight": (6, 4, 3, 3), "grad": (n, 6, h, w)},
        {"padding": (1, 1, 1, 1)},
    ),
    "symbolic N, H, W, stride 2": (
        {
            "data": (n, 4, h, w),
            "weight": (6, 4, 3, 3),
            "grad": (n, 6, (h - 1) // 2 + 1, (w - 1) // 2 + 1),
        },
        {"strides": (2, 2), "padding": (1, 1, 1, 1)},
    ),
}
LAYOUTS = {
    "NCHW": ("NCHW", "OIHW", "NCHW"),
    "NHWC": ("NHWC", "OHWI", "NHWC"),
    "three": ("CHWN", "HWIO", "NHWC"),
}


def in_layout(shape: tuple[Any, ...], role: str, layout: str) -> list[Any]:
    return [shape[("OIHW" if role == "weight" else "NCHW").index(x)] for x in layout]


def swapped(kernel_layout: str) -> str:
    return kernel_layout.translate({ord("O"): "I", ord("I"): "O"})


def forward(
    op: str,
    setting: str = "static",
    layouts: str = "NCHW",
    dtypes: tuple[str, str] = ("float32", "float32"),
    out_dtype: str | None = None,
) -> tvm.IRModule:
    """The op followed by a sum, so that its cotangent is a tensor of its own type.

    A third parameter has the data's shape: it binds symbols, and nothing else uses it.
    """
    sizes, attrs = SETTINGS[setting]
    names = dict(zip(("data", "weight", "grad"), LAYOUTS[layouts], strict=True))
    shapes = {role: in_layout(shape, role, names[role]) for role, shape in sizes.items()}
    first, second = ROLES[op]
    a = relax.Var(first, relax.TensorType(shapes[first], dtypes[0]))
    b = relax.Var(second, relax.TensorType(shapes[second], dtypes[1]))
    like = relax.Var("like", relax.TensorType(shapes["data"], "float32"))
    common = {**attrs, "out_dtype": out_dtype}
    layout_attrs = {
        "data_layout": names["data"],
        "kernel_layout": names["weight"],
        "grad_layout": names["grad"],
    }
    if op == CONV:
        layout_attrs["out_layout"] = layout_attrs.pop("grad_layout")
        call = relay_wgrad.conv2d(a, b, **common, **layout_attrs)
    elif op == TRANSPOSED:
        call = relay_wgrad.conv2d_transpose(
            a,
            b,
            **common,
            data_layout=names["grad"],
            out_layout=names["data"],
            kernel_layout=swapped(names["weight"]),
            output_padding=rest(sizes, attrs),
        )
    elif op == WGRAD:
        call = relay_wgrad.conv2d_backward_weight(
            a, b, sizes["weight"][2:], **common, **layout_attrs
        )
    bb = relax.BlockBuilder()
    with bb.function("main", [a, b, like]):
        with bb.dataflow():
            if op == DGRAD:
                # As a variable, since Gradient fails on symbols inside a call's arguments: see
                # `test_limits_of_upstreams_pass`.
                shape = bb.emit(relax.op.shape_of(like))
                call = relay_wgrad.conv2d_backward_data(a, b, shape, **common, **layout_attrs)
            y = bb.emit(call)
            loss = bb.emit_output(relax.op.sum(y))
        bb.emit_func_output(loss)
    return bb.get()


def rest(sizes: dict[str, tuple[Any, ...]], attrs: dict[str, Any]) -> list[int]:
    """The transposed convolution's output_padding that gives the data's size back."""
    out = []
    for axis in (0, 1):
        size, made = sizes["data"][2 + axis], sizes["grad"][2 + axis]
        stride, dilation = attrs.get("strides", (1, 1))[axis], attrs.get("dilation", (1, 1))[axis]
        padding = attrs.get("padding", (0, 0, 0, 0))
        pad, kernel = padding[axis] + padding[2 + axis], sizes["weight"][2 + axis]
        if not isinstance(size, int):
            out.append(0)
            continue
        out.append(size - ((made - 1) * stride - pad + dilation * (kernel - 1) + 1))
    return out


def gradient(mod: tvm.IRModule, wanted: list[int] | None = None) -> relax.Function:
    """TVM's own pass, of the parameters with these indices."""
    params = mod["main"].params
    indices = [0, 1] if wanted is None else wanted
    out = relax.transform.Gradient("main", require_grads=[params[i] for i in indices])(mod)
    relax.analysis.well_formed(out)  # raises
    return out["main_adjoint"]


def family(function: relax.Function) -> list[tuple[relax.Var, relax.Call]]:
    """The calls of the convolution family with their variables, in order."""
    names = {f"relax.nn.{op}" for op in OPS}
    return [
        (binding.var, binding.value)
        for block in function.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
        and isinstance(binding.value.op, Op)
        and str(binding.value.op.name) in names
    ]


def short(call: relax.Call) -> str:
    return str(call.op.name).removeprefix("relax.nn.")


def operand_names(call: relax.Call, op: str) -> tuple[str, ...]:
    """Names of the two tensors; whatever is no parameter is the cotangent."""
    return tuple(a.name if a.name in ROLES[op] else "v" for a in call.args[:2])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("layouts", LAYOUTS)
def test_dedicated_ops_of_the_operands_types(op: str, setting: str, layouts: str) -> None:
    if op == TRANSPOSED and setting == "symbolic N, H, W, stride 2":
        pytest.skip("a transposed convolution has no rest that is a symbol")
    mod = forward(op, setting, layouts)
    function = gradient(mod)
    (_, own), *partials = family(function)
    assert short(own) == op
    # Exactly the two partials, in the order of the operands or the reverse.
    found = {(short(call), operand_names(call, op)) for _, call in partials}
    assert found == set(PARTIALS[op])
    assert len(partials) == 2
    # Each partial's type is its operand's: it could be added to it.
    loss_and_gradients = function.ret_ty
    for param, ty in zip(mod["main"].params[:2], loss_and_gradients.fields[1].fields, strict=True):
        assert ty.dtype == param.ty.dtype
        assert same_shape(ty.shape, param.ty.shape), (ty, param.ty)
    attributes_kept(own, [call for _, call in partials])


def same_shape(a: relax.Expr, b: relax.Expr) -> bool:
    """Equal sizes for every value of the symbols, each function having its own."""
    return str(a) == str(b)


def attributes_kept(own: relax.Call, partials: list[relax.Call]) -> None:
    """Stride, padding, dilation and groups never change between the derivatives."""
    for call in partials:
        for key in ("strides", "padding", "dilation"):
            mine, theirs = (
                [int(v) for v in (c.attrs[key] if is_new(c) else getattr(c.attrs, key))]
                for c in (own, call)
            )
            assert mine == theirs, key
        assert len({int(groups(c)) for c in (own, call)}) == 1


def is_new(call: relax.Call) -> bool:
    return short(call) in (WGRAD, DGRAD)


def groups(call: relax.Call) -> int:
    return call.attrs["groups"] if is_new(call) else call.attrs.groups


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("wanted", [0, 1])
def test_only_what_is_asked_for_is_left(op: str, wanted: int) -> None:
    """Gradient drops what nothing uses: a frozen operand costs no convolution."""
    function = gradient(forward(op), [wanted])
    (_, _), *partials = family(function)
    assert [(short(c), operand_names(c, op)) for _, c in partials] == [PARTIALS[op][wanted]]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("dtypes", "out_dtype"),
    [
        (("float16", "float16"), "float32"),
        (("float16", "float16"), None),
        (("float16", "float32"), "float32"),
        (("float32", "float32"), "float16"),
        (("float64", "float64"), None),
    ],
)
def test_mixed_dtypes(op: str, dtypes: tuple[str, str], out_dtype: str | None) -> None:
    """Each partial has its operand's dtype, whatever the op's result has."""
    function = gradient(forward(op, dtypes=dtypes, out_dtype=out_dtype))
    fields = function.ret_ty.fields[1].fields
    assert [str(ty.dtype) for ty in fields] == list(dtypes)
    assert len(family(function)) == 3


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("out_dtype", ["float32", "float16"])
def test_to_mixed_precision_keeps_the_ops(op: str, out_dtype: str) -> None:
    """ToMixedPrecision on a gradient: the same ops, on f16 operands."""
    mod = relax.transform.Gradient("main", require_grads=list(forward_params(op)))(forward_of(op))
    before = family(mod["main_adjoint"])
    after = family(relax.transform.ToMixedPrecision(out_dtype)(mod)["main_adjoint"])
    assert [short(c) for _, c in after] == [short(c) for _, c in before]
    for var, call in after:
        assert [str(a.ty.dtype) for a in call.args[:2]] == ["float16", "float16"]
        assert str(var.ty.dtype) == out_dtype
    # From outside it is still an f32 function.
    types = mod["main_adjoint"].ret_ty
    lowered = relax.transform.ToMixedPrecision(out_dtype)(mod)["main_adjoint"].ret_ty
    tvm.ir.assert_structural_equal(lowered, types)


_CACHE: dict[str, tvm.IRModule] = {}


def forward_of(op: str) -> tvm.IRModule:
    """One module per op, so that its parameters are the ones that Gradient is asked for."""
    if op not in _CACHE:
        _CACHE[op] = forward(op)
    return _CACHE[op]


def forward_params(op: str) -> list[relax.Var]:
    return list(forward_of(op)["main"].params[:2])


@pytest.mark.parametrize(
    ("ty", "why"),
    [
        (
            relax.TensorType((6, 4, tirx.Var("r", "int64"), 3), "float32"),
            "the kernel size must be static to differentiate, got R=r, S=3",
        ),
        (
            relax.TensorType(None, "float32", ndim=4),
            "the weight's shape must be known to differentiate, got R.Tensor",
        ),
    ],
)
def test_no_gradient_where_the_kernel_size_is_unknown(ty: relax.Type, why: str) -> None:
    """Dgrad, whose result has a known shape all the same."""
    mod = summed(
        [parameter("grad", (2, 6, 6, 6)), relax.Var("weight", ty)],
        lambda a, b: relay_wgrad.conv2d_backward_data(a, b, (2, 4, 8, 8)),
    )
    with pytest.raises(ValueError, match=f"{DGRAD}: {why}"):
        relax.transform.Gradient("main")(mod)


def test_limits_of_upstreams_pass() -> None:
    """Gradient itself fails on these; when it no longer does, the workarounds here can go."""
    a = parameter("x", (n, 6, 6, 6))
    b = parameter("weight", (6, 4, 3, 3))
    for body in (
        lambda a, b: relax.op.reshape(a, (n, 36, 6)),
        lambda a, b: relay_wgrad.conv2d_backward_data(a, b, (n, 4, 8, 8)),
    ):
        mod = summed([a, b], body)
        with pytest.raises(KeyError, match="key is not in Map"):
            relax.transform.Gradient("main")(mod)
    x = parameter("x", (2, 3), "bfloat16")
    mod = summed([x], relax.op.nn.relu)
    with pytest.raises(tvm.error.InternalError, match="Only Tensors of floating point"):
        relax.transform.Gradient("main", require_grads=[x])(mod)


def parameter(name: str, shape: tuple[Any, ...], dtype: str = "float32") -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, dtype))


def summed(variables: list[relax.Var], body: Callable[..., relax.Expr]) -> tvm.IRModule:
    """`main` returns the sum of the body's result."""
    return built(variables, lambda emit: relax.op.sum(emit(body(*variables))))


def test_blocked_layouts_have_no_gradient() -> None:
    mod = summed(
        [parameter("data", (2, 1, 8, 8, 4)), parameter("weight", (2, 1, 3, 3, 4, 4))],
        lambda a, b: relax.op.nn.conv2d(a, b, data_layout="NCHW4c", kernel_layout="OIHW4i4o"),
    )
    with pytest.raises(ValueError, match="conv2d: no gradient for layout 'NCHW4c': blocked"):
        relax.transform.Gradient("main")(mod)


def test_dgrads_result_shape_gets_no_gradient() -> None:
    """The third argument written out as sizes: it is passed over."""
    a, b = parameter("grad", (2, 6, 6, 6)), parameter("weight", (6, 4, 3, 3))
    mod = summed([a, b], lambda a, b: relay_wgrad.conv2d_backward_data(a, b, (2, 4, 8, 8)))
    mod = relax.transform.Gradient("main", require_grads=[a, b])(mod)
    assert [short(c) for _, c in family(mod["main_adjoint"])] == [DGRAD, CONV, WGRAD]
