"""Sums of few elements along an axis: types, transposes, layouts, kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from relay_wgrad.frontend.context import Context, Options
from relay_wgrad.frontend.resampling import at_places
from relay_wgrad.ops.resample import table_of, transposed
from relay_wgrad.transform import ConvertLayout, grad, mixed_precision
from tests.support.built import built
from tests.support.compiled import virtual_machine
from tests.support.fast import FAST
from tests.support.layout_cases import calls
from tests.support.resample_cases import FULL, MATRIX, RNG, X, module

pytestmark = pytest.mark.usefixtures("registered")

op = relax.op


def run(mod: tvm.IRModule, name: str, *arrays: Any) -> Any:
    vm = virtual_machine(mod, FAST)
    return vm[name](*[tvm.runtime.tensor(a) for a in arrays])


def test_table_and_its_transpose() -> None:
    for matrix in (MATRIX, FULL, np.zeros((2, 3)), np.eye(3)[[2, 2, 0]]):
        index, weight = table_of(matrix)
        back = transposed(index, weight, matrix.shape[1])
        for got, want in (((index, weight), matrix), (back, matrix.T)):
            made = np.zeros(want.shape)
            for p, t in zip(*np.nonzero(got[0] >= 0), strict=True):
                made[p, got[0][p, t]] += got[1][p, t]
            assert np.array_equal(made, want)


def test_large_tables_take_no_more_than_their_elements() -> None:
    index = np.arange(200_000, dtype="int32")[::-1, None]
    back, weight = transposed(index, np.ones(index.shape, "float32"), len(index))
    assert back.shape == weight.shape == index.shape
    assert np.array_equal(back, index)


@pytest.mark.parametrize(("often", "op"), [(2, "resample"), (30_000, "take")])
def test_places_that_are_taken_very_often(often: int, op: str) -> None:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((600, 2), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            ctx = Context(Options("float32", "module", "off", 0), bb, {})
            y = bb.emit_output(at_places(ctx, x, 0, [0, *[7] * often, 3]))
        bb.emit_func_output(y)
    assert len(calls(bb.get(), op)) == 1


@pytest.mark.parametrize("matrix", [MATRIX, FULL], ids=["written", "summed"])
def test_value_and_gradient(matrix: Any) -> None:
    x = RNG.standard_normal(X)
    mod = grad(module(matrix, 2), "main", wrt=["x"], target_index=0)
    (loss, y), (dx,) = run(mod, "main_adjoint", x)
    want = np.einsum("ph,nchw->ncpw", matrix, x)
    assert np.allclose(y.numpy(), want, 1e-12, 1e-12)
    assert np.isclose(loss.numpy(), (want**2).sum())
    assert np.allclose(dx.numpy(), np.einsum("ph,ncpw->nchw", 2 * matrix, want), 1e-12, 1e-12)


def test_half_sums_are_wide() -> None:
    x = np.ones((1, 4096, 2), "float16")
    (_, y) = run(module(np.ones((2, 4096)), 1, x.shape, "float16"), "main", x)
    assert np.array_equal(y.numpy(), np.full((1, 2, 2), 4096, "float16"))


def test_infinities_reach_what_reads_them() -> None:
    x = np.ones(X)
    x[0, 0, 1, 0] = np.inf
    (_, y) = run(module(np.eye(5)[[0, 1, 1, 3]], 2), "main", x)
    assert np.array_equal(np.isinf(y.numpy()[0, 0, :, 0]), [False, True, True, False])
    assert np.isfinite(y.numpy()[1:]).all()


def between_convolutions() -> tvm.IRModule:
    bb = relax.BlockBuilder()
    x, w = (relax.Var(n, relax.TensorType(s, "float32")) for n, s in
            (("x", (2, 3, 5, 5)), ("w", (4, 3, 1, 1))))  # fmt: skip
    index, weight = table_of(MATRIX.astype("float32"))
    with bb.function("main", [x, w]):
        with bb.dataflow():
            y = bb.emit(op.nn.conv2d(x, w))
            y = bb.emit(op.nn.resample(y, relax.const(index), relax.const(weight), 2))
            y = bb.emit_output(op.nn.conv2d(y, bb.emit(op.permute_dims(w, [1, 0, 2, 3]))))
        bb.emit_func_output(y)
    return bb.get()


def test_a_layout_moves_the_axis() -> None:
    converted = ConvertLayout("NHWC")(between_convolutions())
    (call,) = calls(converted, "resample")
    assert int(call.attrs["axis"]) == 1
    assert [int(s) for s in call.ty.shape.values] == [2, 7, 5, 4]


def test_half_follows_what_is_resampled() -> None:
    (call,) = calls(mixed_precision(between_convolutions(), dtype="float16"), "resample")
    assert [str(arg.ty.dtype) for arg in call.args] == ["float16", "int32", "float32"]
    wide = mixed_precision(module(MATRIX, 2, dtype="float32"), dtype="float16")
    (call,) = calls(wide, "resample")
    assert str(call.ty.dtype) == "float32"


WRONG = {
    "axis": ({"axis": 4}, "axis must be one of x's, 0 … 3, got 4"),
    "no number": ({"axis": "H"}, "axis must be an integer, got 'H'"),
    "place": ({"index": np.full((2, 1), 5, "int32")}, "index must be -1 … 4, got 5 … 5"),
    "types": ({"index": np.zeros((2, 1), "int64")}, "index must be int32 for x of float32"),
    "shapes": ({"index": np.zeros((2, 2), "int32")}, "must be of one shape"),
    "rank": ({"index": np.zeros(2, "int32")}, "index must have two known sizes"),
}  # fmt: skip


def _typed(x: Any, index: Any, axis: Any) -> Any:
    weight = relax.const(np.ones((2, 1), "float32"))
    return relax.BlockBuilder().normalize(op.nn.resample(x, index, weight, axis))


@pytest.mark.parametrize(("changed", "message"), WRONG.values(), ids=WRONG)
def test_refused(changed: dict[str, Any], message: str) -> None:
    given = {"index": np.zeros((2, 1), "int32"), "axis": 2, **changed}
    x = relax.Var("x", relax.TensorType(X, "float32"))
    index = relax.const(given["index"], str(given["index"].dtype))
    with pytest.raises((TypeError, ValueError), match=message):
        _typed(x, index, given["axis"])


def test_no_gradient_without_constants() -> None:
    x, index = (relax.Var(n, relax.TensorType(s, d)) for n, s, d in
                (("x", X, "float32"), ("index", (2, 1), "int32")))  # fmt: skip
    weight = relax.const(np.ones((2, 1), "float32"))
    mod = built([x, index], lambda emit: op.sum(op.nn.resample(x, index, weight, 2)))
    with pytest.raises(ValueError, match="no gradient but for constant index and weight"):
        grad(mod, "main", wrt=["x"])
