"""Training batch normalization as an operator: types, text, layouts, mixed precision."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.ir import assert_structural_equal

from relay_wgrad.pipeline.fused_kernels import legalize_ops
from relay_wgrad.transform import ConvertLayout, grad, mixed_precision
from tests.support.layout_cases import calls
from tests.support.norm_cases import Case, module

pytestmark = pytest.mark.usefixtures("registered")

op = relax.op
X, C = (2, 3, 4, 5), (3,)


def tensor(name: str, shape: Any = X, dtype: str = "float32") -> relax.Var:
    ty = relax.TensorType(dtype=dtype, ndim=shape) if isinstance(shape, int) else None
    return relax.Var(name, ty or relax.TensorType(list(shape), dtype))


def made(name: str, others: Any = (), attrs: Any = (), **shapes: Any) -> relax.Call:
    """A call with its type, of operands of the usual shapes but for those given."""
    usual = {"x": X, "gamma": C, "beta": C}
    if name.endswith("_backward"):
        usual = {"dy": X, **usual, "mean": C, "rstd": C}
    usual |= dict.fromkeys(others, X)
    usual |= {n: C for n in others if n.startswith("running")}
    given = {n: shapes.get(n, shape) for n, shape in usual.items()}
    args = [v if isinstance(v, relax.Var) else tensor(n, v) for n, v in given.items()]
    return relax.BlockBuilder().normalize(getattr(op.nn, name)(*args, **dict(attrs)))


def types(call: relax.Call) -> list[tuple[Any, str]]:
    return [(tuple(t.shape.values), str(t.dtype)) for t in call.ty.fields]


def test_types() -> None:
    half = {n: tensor(n, X, "float16") for n in ("x", "dy", "y", "residual")}
    forward = made("batch_norm_train", ("residual", "running_mean", "running_var"), **half)
    assert types(forward) == [(X, "float16"), *[(C, "float32")] * 4]
    assert types(made("batch_norm_train"))[1:] == [(C, "float32")] * 2
    backward = made("batch_norm_train_backward", ("y",), {"activation": "relu"}, **half)
    assert types(backward) == [(X, "float16"), *[(C, "float32")] * 2, (X, "float16")]
    last = made("batch_norm_train", (), {"axis": 3}, gamma=(5,), beta=(5,))
    assert types(last)[1] == ((5,), "float32")
    groups = {"groups": 2, "axis": 2, "activation": "leaky_relu", "alpha": 0.1}
    shapes = {"gamma": (4,), "beta": (4,), "mean": (2, 2), "rstd": (2, 2)}
    grouped = made("group_norm_train_backward", ("y",), groups, **half, **shapes)
    assert types(grouped) == [(X, "float16"), *[((4,), "float32")] * 2, (X, "float16")]
    del shapes["mean"], shapes["rstd"]
    forward = made("group_norm_train", (), groups, x=half["x"], **shapes)
    assert types(forward)[1:] == [((2, 2), "float32")] * 2
    n = tvm.tirx.Var("n", "int64")
    assert made("batch_norm_train", x=(n, 3)).ty.fields[0].shape.values[0].same_as(n)
    unknown = made("batch_norm_train", x=4).ty.fields
    assert [ty.ndim for ty in unknown] == [4, 1, 1]
    assert unknown[1].shape is None


RUNNING = ("running_mean", "running_var")
REFUSED: list[tuple[str, Any, Any, Any, str]] = [
    ("batch_norm_train", (), {}, {"gamma": (4,)},
     "gamma must have x's channels, got gamma=4 and x's C=3"),
    ("batch_norm_train", (), {}, {"x": (3,)}, "x must have at least 2 dimensions, got 1"),
    ("batch_norm_train", (), {"axis": 4}, {}, "axis must be an axis of x, 0 to 3, got axis=4"),
    ("batch_norm_train", (), {"axis": -1}, {}, "axis must be an axis of x, 0 to 3, got axis=-1"),
    ("batch_norm_train", (), {}, {"beta": (1, 3)}, "beta must have 1 dimension, got 2"),
    ("batch_norm_train", (), {}, {"x": (0, 3)}, "a size must be positive, got a size=0"),
    ("batch_norm_train", ("residual",), {}, {"residual": (2, 3, 4, 1)},
     "residual must be of x's shape, got residual R.Tensor((2, 3, 4, 1)"),
    ("batch_norm_train", ("residual",), {"activation": "silu"}, {},
     "activation='silu' takes no residual, got one"),
    ("batch_norm_train", RUNNING, {}, {"x": (1, 3, 1, 1)},
     "an unbiased variance needs more than one value per channel, got 1"),
    ("batch_norm_train", (), {"activation": "tanh"}, {},
     "activation must be one of '', 'relu', 'relu6', 'leaky_relu', 'silu', 'gelu', 'gelu_tanh', "),
    ("batch_norm_train", (), {"alpha": 0.1, "activation": "relu"}, {},
     "alpha must be 0 of 'relu', got 0.1"),
    ("batch_norm_train", (), {"alpha": -0.1, "activation": "leaky_relu"}, {},
     "alpha must be a number of at least 0, got -0.1"),
    ("group_norm_train", (), {"groups": 2}, {},
     "groups must divide x's channels, got groups=2 and C=3"),
    ("group_norm_train", (), {"groups": 0}, {}, "groups must be at least 1, got 0"),
    ("group_norm_train", (), {"groups": 1, "axis": 0}, {}, "axis must not be 0, which is the"),
    ("group_norm_train", (), {"groups": 3}, {"x": (2, 3)}, "x must have at least 3 dimensions"),
    ("group_norm_train", ("residual", "more"), {"groups": 3}, {}, "takes 3 or 4 arguments"),
    ("group_norm_train_backward", (), {"groups": 3}, {"mean": (3,)},
     "mean must have 2 dimensions, got 1"),
    ("group_norm_train_backward", (), {"groups": 3}, {"mean": (2, 3), "rstd": (2, 1)},
     "rstd must have a value for each image and group, got rstd=1 and x's groups=3"),
    ("batch_norm_train", (), {"epsilon": -1.0}, {}, "epsilon must be a number of at least 0, got"),
    ("batch_norm_train", ("residual", *RUNNING, "more"), {}, {}, "takes 3 to 6 arguments"),
    ("batch_norm_train_backward", ("y",), {}, {}, "activation='' takes no y, got one"),
    ("batch_norm_train_backward", (), {}, {"dy": (2, 3, 5, 4)}, "dy must be of x's shape, got dy"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "others", "attrs", "shapes", "message"), REFUSED, ids=[r[4][:40] for r in REFUSED]
)
def test_refused(name: str, others: Any, attrs: Any, shapes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{name}: {message}")):
        made(name, others, attrs, **shapes)


def test_refused_types() -> None:
    with pytest.raises(TypeError, match=r"gamma must be float32 beside x of float16, got float16"):
        made("batch_norm_train", x=tensor("x", X, "float16"), gamma=tensor("g", C, "float16"))
    with pytest.raises(TypeError, match=r"residual must be of x's dtype, got float16 and float32"):
        made("batch_norm_train", ("residual",), residual=tensor("r", X, "float16"))
    with pytest.raises(TypeError, match=r"batch_norm_train: axis must be an integer, got '1'"):
        made("batch_norm_train", (), {"axis": "1"})
    with pytest.raises(TypeError, match=r"x must be one of .*, got int32"):
        made("batch_norm_train", x=tensor("x", X, "int32"))


def test_text_comes_back() -> None:
    case = Case(X, "float32", activation="relu", residual=True, running=True)
    mod = grad(module(case), "main", wrt=case.names)
    assert_structural_equal(tvm.script.from_source(mod.script()), mod)


def test_stock_layout_conversion() -> None:
    """The stock pass takes the axis and the residual along."""
    bb = relax.BlockBuilder()
    x, w = tensor("x"), tensor("w", (3, 3, 1, 1))
    gamma, beta = tensor("gamma", C), tensor("beta", C)
    with bb.function("main", [x, w, gamma, beta]):
        with bb.dataflow():
            y = bb.emit(op.nn.conv2d(x, w))
            n = bb.emit(op.nn.batch_norm_train(y, gamma, beta, y, activation="relu"))
            z = bb.emit(op.nn.conv2d(bb.emit(relax.TupleGetItem(n, 0)), w))
            out = bb.emit_output(z)
        bb.emit_func_output(out)
    for convert in (relax.transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]}),
                    ConvertLayout("NHWC")):  # fmt: skip
        mod = convert(bb.get())
        (norm,) = calls(mod, "batch_norm_train")
        assert norm.attrs["axis"] == 3
        assert tuple(norm.args[0].ty.shape.values) == (2, 4, 5, 3)


# ---- mixed precision -----------------------------------------------------------------------------


def test_mixed_precision_keeps_tensors_half_and_statistics_float32() -> None:
    """With a convolution before it and a residual: no cast but those of parameters."""
    bb = relax.BlockBuilder()
    x, w = tensor("x"), tensor("w", (3, 3, 1, 1))
    gamma, beta = tensor("gamma", C), tensor("beta", C)
    with bb.function("main", [x, w, gamma, beta]):
        with bb.dataflow():
            y = bb.emit(op.nn.conv2d(x, w))
            n = bb.emit(op.nn.batch_norm_train(y, gamma, beta, y, activation="relu"))
            z = bb.emit(op.nn.conv2d(bb.emit(relax.TupleGetItem(n, 0)), w))
            out = bb.emit_output(op.sum(z))
        bb.emit_func_output(out)
    mod = mixed_precision(bb.get(), dtype="bfloat16")
    (norm,) = calls(mod, "batch_norm_train")
    assert [str(a.ty.dtype) for a in norm.args] == ["bfloat16", "float32", "float32", "bfloat16"]
    casts = [str(c.args[0].name) for c in calls(mod, "astype")]
    assert len(casts) == 3  # the third is the loss's
    assert sorted(casts)[-2:] == ["w", "x"]


# ---- what it is made of --------------------------------------------------------------------------


def test_of_known_sizes_no_operator_is_of_numbers_alone() -> None:
    """Each would be a kernel that a compiler makes and runs to fold it, 50 times in a network."""
    mod = grad(module(Case((3, 4, 5, 6), activation="relu", running=True, statistics=True)))
    kernels = [c.args[1].fields for c in calls(legalize_ops()(mod), "call_tir")]
    assert len(kernels) > 9
    assert not [given for given in kernels if all(isinstance(x, tvm.ir.Constant) for x in given)]
