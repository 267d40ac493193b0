"""Reductions over nothing, which sizes of the run or numbers may make so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax, te, tirx

from legalize.cpu import host_target
from relay_wgrad.pipeline.cpu import cpu_pipeline, parallel_kernels
from relay_wgrad.pipeline.reduction_init import with_first_values
from relay_wgrad.transform import grad
from tests.fuzz.poison import poison_bytes
from tests.support.compiled import virtual_machine
from tests.support.sized import module

pytestmark = pytest.mark.usefixtures("registered")
R = relax.op
NAN = float("nan")
# (what, body, shapes, what it is of tensors of ones without elements)
CASES: list[tuple[str, Callable[..., Any], list[Any], Any]] = [
    ("sum", lambda x: R.sum(x), [("n", "m")], 0),
    ("sum of columns", lambda x: R.sum(x, 0), [("n", 64)], np.zeros(64)),
    ("sum of rows", lambda x: R.sum(x, 1, True), [(3, "m")], np.zeros((3, 1))),
    ("prod", lambda x: R.prod(x, [0]), [("n", 3)], np.ones(3)),
    ("mean", lambda x: R.mean(x, [0]), [("n", 3)], np.full(3, NAN)),
    ("variance", lambda x: R.variance(x), [("n", 3)], NAN),
    ("std", lambda x: R.std(x, [0]), [("n", 3)], np.full(3, NAN)),
    ("matmul", R.matmul, [(3, "k"), ("k", 4)], np.zeros((3, 4))),
    ("matmul, wide", R.matmul, [(16, "k"), ("k", 64)], np.zeros((16, 64))),
    ("batches", R.matmul, [(2, 8, "k"), (2, "k", 8)], np.zeros((2, 8, 8))),
    ("einsum", lambda x, y: R.einsum((x, y), "ij,kj->ik"), [(3, "k"), (4, "k")], np.zeros((3, 4))),
    ("mse", lambda x, y: R.mean(R.square(R.subtract(x, y))), [("n", 5), ("n", 5)], NAN),
    ("sum of softmax", lambda x: R.sum(R.nn.softmax(x), [1]), [(3, "k")], np.zeros(3)),
    ("collapse_sum_to", lambda x: R.collapse_sum_to(x, (4,)), [("n", 4)], np.zeros(4)),
    # Without channels, where TVM fuses loops over sizes that are expressions.
    ("conv1d", lambda x, w: R.nn.conv1d(x, w, strides=2, padding=2),
     [(2, "c", 9), (4, "c", 1)], np.zeros((2, 4, 7))),
    ("conv2d", lambda x, w: R.nn.conv2d(x, w, padding=1),
     [(2, "c", 5, 6), (4, "c", 3, 3)], np.zeros((2, 4, 5, 6))),
]  # fmt: skip


def ran(mod: Any, pipeline: Any, *shapes: Sequence[int], dtype: str = "float32") -> Any:
    """Of ones, in memory that is full of NaN, after a run at other sizes."""
    made = virtual_machine(mod, host_target(), pipeline)
    name = "main_adjoint" if any(v.name_hint == "main_adjoint" for v in mod.functions) else "main"
    main = made[name]
    poison_bytes({4096, 8192, 16384})
    return main(*(tvm.runtime.tensor(np.ones(shape, dtype)) for shape in shapes))


def at_zero(shapes: Sequence[Any]) -> list[list[int]]:
    return [[x if isinstance(x, int) else 0 for x in shape] for shape in shapes]


@pytest.mark.share(5)
@pytest.mark.parametrize("pipeline", ["ours", "stock"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_sizes_of_the_run(case: Any, pipeline: str) -> None:
    _, body, shapes, want = case
    chosen = cpu_pipeline() if pipeline == "ours" else "default"
    got = ran(module(body, *shapes), chosen, *at_zero(shapes))
    np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.share(3)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("case", CASES[:-2], ids=lambda case: case[0])
def test_sizes_that_are_known(case: Any, dtype: str) -> None:
    """Where TVM's kernels divide by the number 0, which its compiler does not take."""
    _, body, shapes, want = case
    got = ran(
        module(body, *shapes, dtype=dtype, letter=0), cpu_pipeline(), *at_zero(shapes), dtype=dtype
    )
    np.testing.assert_array_equal(got.numpy(), want)


def test_what_has_no_elements_stays_so() -> None:
    for body, shape in (
        (lambda x: R.cumsum(x, 0), [3, 0]),
        (
            lambda x: R.nn.layer_norm(x, R.ones((0,), "float32"), R.zeros((0,), "float32"), [1]),
            [3, 0],
        ),
        (lambda x: R.concat([x, x], 1), [3, 0]),
    ):
        assert ran(module(body, shape, letter=0), cpu_pipeline(), shape).shape[1] == 0


@pytest.mark.share(5)  # a layout each, in groups and not
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_gradients_of_no_images(groups: int, layout: str) -> None:
    """Kernels for any number of images clear the sums also where there are none."""

    def loss(x: Any, w: Any) -> Any:
        made = R.nn.conv2d(x, w, padding=1, groups=groups, data_layout=layout, kernel_layout="OIHW")
        return R.sum(R.square(made))

    shape = ("n", 4, 9, 10) if layout == "NCHW" else ("n", 9, 10, 4)
    shapes = [shape, (4, 4 // groups, 3, 3)]
    value, (dx, dw) = ran(grad(module(loss, *shapes)), cpu_pipeline(), *at_zero(shapes))
    assert value.numpy() == 0
    assert 0 in dx.shape
    np.testing.assert_array_equal(dw.numpy(), np.zeros(shapes[1]))


@pytest.mark.share(5)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("rows", [0, 1, 4])
def test_gradients_of_losses_of_an_open_batch(rows: int, dtype: str) -> None:
    """Whose counts only the run knows; upstream's rules want numbers."""
    x = np.arange(3 * rows).reshape(rows, 3).astype(dtype) / 8
    for name, body, by_torch in (
        ("cross entropy", R.nn.cross_entropy_with_logits, lambda x, y: -(x * y).sum() / rows),
        ("variance", lambda x, y: R.variance(R.multiply(x, y)),
         lambda x, y: (x * y).var(correction=0)),
        ("variances", lambda x, y: R.sum(R.variance(R.multiply(x, y), [1], True)),
         lambda x, y: (x * y).var(1, correction=0).sum()),
    ):  # fmt: skip
        mod = grad(module(body, ("n", 3), ("n", 3), dtype=dtype))
        made = virtual_machine(mod, host_target(), cpu_pipeline())
        main = made["main_adjoint"]
        value, grads = main(tvm.runtime.tensor(x), tvm.runtime.tensor(x + 1))
        one, two = (torch.from_numpy(v).double().requires_grad_() for v in (x, x + 1))
        if rows:
            want = by_torch(one, two)
            wanted = [want.detach(), *torch.autograd.grad(want, (one, two))]
        else:
            nothing = torch.zeros(0, 3)
            wanted = [torch.tensor(0.0 if name == "variances" else NAN), nothing, nothing]
        for got, right in zip((value, *grads), wanted, strict=True):
            np.testing.assert_allclose(got.numpy(), right, 1e-2 if dtype == "float16" else 1e-5,
                                       1e-3)  # fmt: skip


def test_a_mean_over_a_batch_of_nothing_has_gradients_of_nothing() -> None:
    def loss(x: Any, w: Any) -> Any:
        return R.mean(R.square(R.matmul(x, w)))

    _, (_, dw) = ran(grad(module(loss, ("n", 5), (5, 3))), cpu_pipeline(), (0, 5), (5, 3))
    x, w = torch.ones(0, 5), torch.ones(5, 3, requires_grad=True)
    (x @ w).square().mean().backward()
    assert w.grad is not None
    np.testing.assert_array_equal(dw.numpy(), w.grad.numpy())


def kernel(rows: Any, columns: Any) -> Any:
    x = te.placeholder((rows, columns), "float32", "x")
    k = te.reduce_axis((0, columns), "k")
    out = te.compute((rows,), lambda i: te.sum(x[i, k], axis=k), "total")
    return te.create_prim_func([x, out])


def test_kernels_whose_terms_are_some_stay_as_they_are() -> None:
    n = tirx.Var("n", "int64")
    some = kernel(n, 5)
    assert with_first_values(some) is some
    assert "total_init" in with_first_values(kernel(5, n)).script()
    assert "total_init" in with_first_values(kernel(5, 0)).script()


def test_of_a_split_loop_and_a_predicate() -> None:
    """The first value is written where the result is, whatever its terms' predicate says."""
    n = tirx.Var("n", "int64")
    sch = tvm.s_tir.Schedule(kernel(37, n))
    block = sch.get_sblock("total")
    i, k = sch.get_loops(block)
    outer, inner = sch.split(k, [None, 8])
    rows, lanes = sch.split(i, [None, 8])
    sch.reorder(rows, outer, inner, lanes)
    func = with_first_values(sch.mod["main"])
    text = func.script()
    before, after = (part.split("\n")[0] for part in text.split("T.where(")[1:])
    assert "k_0" not in before
    assert "k_0" in after
    made = tvm.compile(func, target="llvm")
    for length in (0, 5, 16):
        x, out = np.ones((37, length), "float32"), np.full(37, np.nan, "float32")
        result = tvm.runtime.tensor(out)
        made["main"](tvm.runtime.tensor(x), result)
        np.testing.assert_array_equal(result.numpy(), np.full(37, length))


def test_scheduled_kernels_keep_their_form_for_known_terms() -> None:
    """Nothing is written twice where no size is symbolic."""
    mod = tvm.IRModule({"main": kernel(512, 512)})
    with host_target():
        scheduled = parallel_kernels()(mod)
    assert with_first_values(scheduled["main"]).same_as(scheduled["main"])
