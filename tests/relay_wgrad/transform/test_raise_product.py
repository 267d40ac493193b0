"""Matrix products as convolutions of one pixel: which become which, what stays, values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from relay_wgrad.dtypes import HALVES
from relay_wgrad.ir import op_name
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.problem import ConvKind, ConvProblem
from relay_wgrad.transform import grad
from relay_wgrad.transform.mixed_precision import accumulate_wide, mixed_precision
from relay_wgrad.transform.raise_product import raise_products
from tests.support.compiled import virtual_machine
from tests.support.fast import FAST

pytestmark = pytest.mark.usefixtures("registered")
R = relax.op
M, K, N = 3, 5, 4


def program(
    shapes: dict[str, tuple[Any, ...]], make: Callable[..., Any], dtype: str = "float32"
) -> tvm.IRModule:
    """A function of these tensors; `make(bb, **tensors)` gives one result or several."""
    bb = relax.BlockBuilder()
    params = {n: relax.Var(n, relax.TensorType(s, dtype)) for n, s in shapes.items()}
    with bb.function("main", list(params.values())):
        with bb.dataflow():
            made = make(bb, **params)
            several = isinstance(made, tuple)
            out = [bb.emit_output(x) for x in (made if several else (made,))]
        bb.emit_func_output(relax.Tuple(out) if several else out[0])
    return bb.get()


def ops(mod: tvm.IRModule) -> list[str]:
    found = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    names = [op_name(value).rpartition(".")[2] for value in found]
    return [name for name in names if name and name != "reshape"]


def run(mod: tvm.IRModule, values: list[np.ndarray]) -> list[np.ndarray]:
    made = virtual_machine(mod, FAST, cpu_pipeline())
    out = made["main"](*map(tvm.runtime.tensor, values))
    return flat(out)


def flat(out: Any) -> list[np.ndarray]:
    if isinstance(out, tvm.runtime.Tensor):
        return [out.numpy()]
    return [x for item in out for x in flat(item)]


def same_values(mod: tvm.IRModule, raised: tvm.IRModule) -> None:
    """Small integers: sums are exact, so any two programs that are equal give equal bits."""
    rng = np.random.default_rng(0)
    params = [p.ty for p in mod["main"].params]
    values = [
        rng.integers(-3, 4, [int(n) for n in ty.shape.values]).astype(str(ty.dtype))
        for ty in params
    ]
    for got, want in zip(run(raised, values), run(mod, values), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def differentiated(mod: tvm.IRModule) -> tvm.IRModule:
    made = grad(mod, "main")["main_adjoint"]
    return tvm.IRModule({"main": made.with_attr("global_symbol", "main")})


def turned(bb: Any, x: Any) -> Any:
    return bb.emit(R.permute_dims(x))


FORMS = {  # operands' shapes; whether each and the result are transposed; the ops then
    "x w": ((M, K), (K, N), "", ["conv2d_backward_data"]),
    "x w'": ((M, K), (N, K), "b", ["conv2d"]),
    "x' w": ((K, M), (K, N), "a", ["conv2d_backward_weight"]),
    "x' w'": ((K, M), (N, K), "ab", ["conv2d_backward_data", "permute_dims"]),
    "(x w)'": ((M, K), (K, N), "r", ["conv2d_backward_data", "permute_dims"]),
    "(x w')'": ((M, K), (N, K), "br", ["conv2d"]),
    "(x' w)'": ((K, M), (K, N), "ar", ["conv2d_backward_weight"]),
    "(x' w')'": ((K, M), (N, K), "abr", ["conv2d_backward_data"]),
}


@pytest.mark.share(3)
@pytest.mark.parametrize("form", FORMS)
def test_form(form: str) -> None:
    first, second, transposed, wanted = FORMS[form]

    def make(bb: Any, x: Any, w: Any) -> Any:
        a, b = (turned(bb, v) if n in transposed else v for n, v in zip("ab", (x, w), strict=True))
        y = bb.emit(R.matmul(a, b))
        return turned(bb, y) if "r" in transposed else y

    mod = program({"x": first, "w": second}, make)
    raised, (entry,) = raise_products(mod)
    assert ops(raised) == wanted
    relax.analysis.well_formed(raised)
    assert entry.function == "main"
    assert not entry.reason
    assert ConvProblem.parse(entry.problem).h == 1
    same_values(mod, raised)


def test_a_layers_gradients() -> None:
    """Of a fully connected layer: one convolution of each kind, its bias and mask beside them."""

    def make(bb: Any, x: Any, w: Any, b: Any) -> Any:
        hidden = bb.emit(R.nn.relu(x))
        y = bb.emit(R.add(bb.emit(R.matmul(hidden, turned(bb, w))), b))
        return bb.emit(R.sum(bb.emit(R.nn.relu(y))))

    mod = differentiated(program({"x": (M, K), "w": (N, K), "b": (N,)}, make))
    raised, entries = raise_products(mod)
    assert [ConvProblem.parse(e.problem).kind for e in entries] == [
        ConvKind.FPROP,
        ConvKind.DGRAD,
        ConvKind.WGRAD,
    ]
    assert "permute_dims" not in ops(raised)
    values = [b.value for b in raised["main"].body.blocks[0].bindings]
    # What a library may take along has the convolution's axes.
    assert [v.ty.ndim for v in values if op_name(v) in ("relax.add", "relax.where")] == [4, 2, 4]
    same_values(mod, raised)


def test_half_precision() -> None:
    """A cast of a weight is looked through; one of a sum to half is the convolution's rounding."""

    def make(bb: Any, x: Any, w: Any) -> Any:
        half = bb.emit(R.astype(turned(bb, w), "float16"))
        a = bb.emit(R.astype(x, "float16"))
        y = bb.emit(R.astype(bb.emit(R.matmul(a, half, out_dtype="float32")), "float16"))
        back = bb.emit(R.matmul(y, turned(bb, half), out_dtype="float32"))
        return y, back

    mod = program({"x": (M, K), "w": (N, K)}, make)
    raised, entries = raise_products(mod)
    assert "permute_dims" not in ops(raised)
    kinds = [ConvProblem.parse(e.problem) for e in entries]
    assert [(p.kind.value, *(p.dtype(r) for r in p.roles)) for p in kinds] == [
        ("fprop", "float16", "float16", "float16"),
        ("dgrad", "float16", "float16", "float32"),
    ]
    assert ops(raised).count("astype") == 2  # the weight is cast once, x once
    same_values(mod, raised)


def test_what_stays() -> None:
    def make(bb: Any, x: Any, w: Any, v: Any, i: Any) -> Any:
        integers = bb.emit(R.astype(w, "int32"))
        return (
            bb.emit(R.matmul(i, i)), bb.emit(R.matmul(v, w)),
            bb.emit(R.matmul(integers, integers)), bb.emit(R.matmul(x, w)),
        )  # fmt: skip

    mod = program({"x": (M, K), "w": (K, K), "v": (K,), "i": (2, K, K)}, make)
    raised, entries = raise_products(mod, lambda problem: "none takes it")
    assert raised.same_as(mod)
    assert [e.reason for e in entries] == [
        "a product for each image, and no sum of them",
        "an operand of 1 axes",
        "dtypes int32 and int32 to int32",
        "none takes it",
    ]
    assert raise_products(raised)[1][-1].problem


def test_rows_of_several_axes() -> None:
    """A layer on tokens: their axes are one of images; a batch that is known at the run alone."""

    def make(bb: Any, x: Any, w: Any, b: Any) -> Any:
        y = bb.emit(R.add(bb.emit(R.matmul(x, turned(bb, w))), b))
        return y, bb.emit(R.matmul(y, w))

    mod = program({"x": (2, M, K), "w": (N, K), "b": (N,)}, make)
    raised, entries = raise_products(mod)
    assert [ConvProblem.parse(e.problem).n for e in entries] == [2 * M, 2 * M]
    assert ops(raised) == ["conv2d", "add", "conv2d_backward_data"]
    same_values(mod, raised)
    n = tvm.tirx.Var("n", "int64")
    mod = program({"x": (n, K), "w": (N, K), "b": (N,)}, make)
    raised, _ = raise_products(mod)
    assert ops(raised) == ["conv2d", "add", "conv2d_backward_data"]
    relax.analysis.well_formed(raised)


@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gradients_of_rows_of_several_axes(dtype: str) -> None:
    """A weight's is written as a sum of a product for each image."""

    def make(bb: Any, x: Any, w: Any, b: Any) -> Any:
        y = bb.emit(R.add(bb.emit(R.matmul(x, turned(bb, w))), b))
        return bb.emit(R.sum(bb.emit(R.multiply(y, y))))

    mod = program({"x": (2, M, K), "w": (N, K), "b": (N,)}, make)
    if dtype in HALVES:
        mod = accumulate_wide(differentiated(mixed_precision(mod, dtype=dtype)), "main")
    else:
        mod = differentiated(mod)
    raised, entries = raise_products(mod)
    kinds = [ConvProblem.parse(e.problem).kind for e in entries]
    assert kinds == [ConvKind.FPROP, ConvKind.DGRAD, ConvKind.WGRAD]
    assert "permute_dims" not in ops(raised)
    same_values(mod, raised)


def test_products_of_products() -> None:
    """What one has become part of, another does not look through or take."""

    def make(bb: Any, x: Any, w: Any, v: Any) -> Any:
        first, second = bb.emit(R.matmul(x, w)), bb.emit(R.matmul(x, v))
        total = bb.emit(R.add(first, second))
        square = turned(bb, bb.emit(R.matmul(turned(bb, x), x)))
        return total, bb.emit(R.matmul(square, turned(bb, bb.emit(R.matmul(x, square)))))

    mod = program({"x": (M, K), "w": (K, N), "v": (K, N)}, make)
    raised, entries = raise_products(mod)
    assert [bool(e.problem) for e in entries] == [True] * 5
    relax.analysis.well_formed(raised)
    same_values(mod, raised)


def test_outside_of_dataflow_and_in_branches() -> None:
    @tvm.script.ir_module
    class Module:
        @tvm.script.relax.function
        def main(
            c: tvm.script.relax.Tensor((), "bool"), x: tvm.script.relax.Tensor((3, 5), "float32"),
            w: tvm.script.relax.Tensor((5, 5), "float32"),
        ) -> tvm.script.relax.Tensor((3, 5), "float32"):  # fmt: skip
            if c:
                y = tvm.script.relax.matmul(x, w)
                z = y
            else:
                y = tvm.script.relax.matmul(x, tvm.script.relax.permute_dims(w))
                z = y
            return z

    raised, entries = raise_products(Module)
    assert [bool(e.problem) for e in entries] == [True, True]
    relax.analysis.well_formed(raised)
