"""Relax functions as ONNX models, row by row: ONNX's evaluator against compiled code and PyTorch,
in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import relay_wgrad
from relay_wgrad.frontend import function_to_onnx
from relay_wgrad.frontend.onnx.writing.function import ROWS
from relay_wgrad.ops.elementwise import RECORDS, RELAX, Elementwise
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.built import built
from tests.support.gradient_calls import NAMED, module, problem_module
from tests.support.onnx.evaluator import evaluate
from tests.support.onnx.models import call, draw
from tests.support.problems import (
    random_operands,
    random_problem,
    relative_error,
    tolerance,
    torch_reference,
)
from tests.support.records import within

pytestmark = pytest.mark.usefixtures("registered")

F64 = "float64"
R = relax.op

# ---- convolutions --------------------------------------------------------------------------------


def forward_module(p: ConvProblem) -> tvm.IRModule:
    types = {role: relax.TensorType(p.shape(role), F64) for role in p.roles[:2]}
    made = {2: R.nn.conv2d, 3: R.nn.conv3d}[p.rank]
    return module(
        types,
        lambda x, w: made(
            x, w, p.strides, p.padding, p.dilation, p.groups, p.data_layout, p.kernel_layout,
            p.grad_layout,
        ),
    )  # fmt: skip


def compare(p: ConvProblem, seed: int) -> None:
    mod = forward_module(p) if p.kind is ConvKind.FPROP else problem_module(p)
    a, b = random_operands(p, np.random.default_rng(seed))
    model = function_to_onnx(mod)
    kinds = [n.op_type for n in model.graph.node]
    assert ("ConvTranspose" if p.kind is ConvKind.DGRAD else "Conv") in kinds
    got = evaluate(model, dict(zip(p.roles, (a, b), strict=False)))["output_0"]
    assert relative_error(got, torch_reference(p, a, b)) < tolerance(p), p.repro()


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("kind", ConvKind)
def test_random_convolution(kind: ConvKind, rank: int) -> None:
    rng = np.random.default_rng(5 + rank)
    for seed in range(8):
        p = random_problem(rng, kind, dtypes=(F64,), mixed=False, rank=rank, max_flop=1e4)
        compare(p, seed)


@pytest.mark.parametrize("kind", [ConvKind.DGRAD, ConvKind.WGRAD])
def test_named_convolutions(kind: ConvKind) -> None:
    """Padding beyond the kernel, strides beyond it, groups of one filter, pixels left over."""
    for line in NAMED.values():
        if "dtype" not in line:
            compare(ConvProblem.parse(f"{kind.value} {line} dtype=f64/f64/f64"), 0)


# ---- all rows ------------------------------------------------------------------------------------

X = draw(2, 3, 5, 4)
POSITIVE = np.abs(X) + 0.5
BIT = X > 0
LABELS = np.array([2, 7, 0, 1])
LOGITS = draw(4, 8, seed=2)
Case = tuple[Callable[..., Any], tuple[np.ndarray, ...]]


def c(value: Any, kind: str = F64) -> Any:
    return relax.const(np.asarray(value, kind), kind)


def pool(op: Any, **given: Any) -> Case:
    return lambda x: op(x, **given), (draw(2, 3, 9, 8),)


def pool_backward(op: Any, forward: Any, **given: Any) -> Case:
    x = draw(2, 3, 9, 8)
    bb = relax.BlockBuilder()
    like = bb.normalize(forward(relax.Var("x", relax.TensorType(x.shape, F64)), **given))
    dy = draw(*(int(d) for d in like.ty.shape.values), seed=3)
    return lambda dy, x: op(dy, x, **given), (dy, x)


WINDOWS: dict[str, dict[str, Any]] = {
    "plain": {"pool_size": (3, 2), "strides": (2, 2), "padding": (1, 0, 1, 1)},
    "ceil": {"pool_size": (2, 3), "strides": (3, 2), "padding": (0, 1, 0, 1), "ceil_mode": True},
    "dilated": {"pool_size": (2, 2), "strides": (1, 2), "dilation": (2, 3)},
    "all count": {"pool_size": (3, 3), "strides": (2, 1), "padding": (1, 2, 1, 0),
                  "count_include_pad": True},
    "last": {"pool_size": (3, 2), "strides": (2, 2), "layout": "NHWC"},
}  # fmt: skip
BACKWARD = {"max": R.grad.max_pool2d_backward, "avg": R.grad.avg_pool2d_backward}
POOLS = {
    **{f"nn.{kind}_pool2d {n}": pool(getattr(R.nn, f"{kind}_pool2d"), **given)
       for kind in BACKWARD for n, given in WINDOWS.items()},
    **{f"grad.{kind}_pool2d_backward {n}":
       pool_backward(op, getattr(R.nn, f"{kind}_pool2d"), **given)
       for kind, op in BACKWARD.items() for n, given in WINDOWS.items()
       if (kind, n) != ("avg", "dilated")},  # TVM has no kernel for it
    **{f"nn.{kind}_pool1d": (lambda x, k=kind: getattr(R.nn, f"{k}_pool1d")(x, (3,), (2,), (1, 1)),
                             (draw(2, 3, 9),)) for kind in BACKWARD},
    **{f"nn.{kind}_pool3d": (lambda x, k=kind: getattr(R.nn, f"{k}_pool3d")(
        x, (2, 3, 2), (2, 2, 1), (1, 1, 0, 0, 1, 1)), (draw(1, 2, 5, 6, 4),)) for kind in BACKWARD},
}  # fmt: skip
TIED = np.round(draw(2, 3, 9, 8))
POOLS["grad.max_pool2d_backward ties"] = (
    lambda dy, x: R.grad.max_pool2d_backward(dy, x, (3, 3), (2, 2), (1, 1, 1, 1)),
    (draw(2, 3, 5, 4, seed=4), TIED),
)


def find(name: str) -> Any:
    found: Any = R
    for part in name.split("."):
        found = getattr(found, part)
    return found


def of_record(record: Elementwise) -> Case:
    if record.takes == "b":
        operands = (BIT, BIT[::-1])[: record.operands]
    elif record.takes == "bi":
        operands = tuple((9 * x).astype("int64") for x in (X, X[::-1])[: record.operands])
    elif record.operands == 1:
        operands = (within(record, X, np.tanh),)
    elif record.name in ("divide", "floor_divide", "power"):
        operands = (POSITIVE if record.name == "power" else X, POSITIVE)
    else:
        operands = (np.round(X), np.round(draw(3, 1, 4)))
    return find(record.name), operands


CASES: dict[str, Case] = {
    **{name: of_record(RECORDS[name]) for name in RELAX if f"relax.{name}" in ROWS},
    **{name: (find(name), (X,)) for name in ("nn.gelu", "nn.gelu_tanh", "zeros_like",
                                             "ones_like")},
    "where": (lambda b, x: R.where(b, x, c(0.5)), (BIT, X)),
    "clip": (lambda x: R.clip(x, -0.5, 0.7), (X,)),
    "nn.leakyrelu": (lambda x: R.nn.leakyrelu(x, 0.25), (X,)),
    "astype": (lambda x: R.astype(x, "int64"), (3 * X,)),
    "nn.softmax": (lambda x: R.nn.softmax(x, 1), (X,)),
    "nn.log_softmax": (lambda x: R.nn.log_softmax(x, -1), (X,)),
    **{f"{n} axes": (lambda x, n=n: find(n)(x, [1, -1], keepdims=True), (X,))
       for n in ("sum", "mean", "max", "min", "prod", "variance", "std")},
    **{n: (lambda x, n=n: find(n)(x), (X,)) for n in ("sum", "mean", "max", "variance")},
    "argmax": (lambda x: R.argmax(x, 2), (np.round(X),)),
    "argmin": (lambda x: R.argmin(x), (X,)),
    "grad.no_grad": (lambda x: R.grad.no_grad(x), (X,)),
    "reshape": (lambda x: R.reshape(x, (6, -1)), (X,)),
    "flatten": (lambda x: R.flatten(x), (X,)),
    "squeeze": (lambda x: R.squeeze(x, [1]), (X[:, :1],)),
    "expand_dims": (lambda x: R.expand_dims(x, [0, 3]), (X,)),
    "permute_dims": (lambda x: R.permute_dims(x, [2, 0, -1, 1]), (X,)),
    "permute_dims reversed": (lambda x: R.permute_dims(x), (X,)),
    "broadcast_to": (lambda x: R.broadcast_to(x, (2, 3, 5, 4)), (X[:1, :, :, :1],)),
    "collapse_sum_to": (lambda x: R.collapse_sum_to(x, (3, 1, 4)), (X,)),
    "collapse_sum_to scalar": (lambda x: R.collapse_sum_to(x, ()), (X,)),
    "collapse_sum_like": (lambda x, y: R.collapse_sum_like(x, y), (X, draw(5, 1))),
    "concat": (lambda x, y: R.concat((x, y, x), -1), (X, X[..., :2])),
    "stack": (lambda x, y: R.stack((x, y), 1), (X, -X)),
    "split": (lambda x: R.split(x, [1, 3], 2), (X,)),
    "strided_slice": (lambda x: R.strided_slice(x, [1, 2], [2, 4], [-9, 0], [-1, -2]), (X,)),
    "flip": (lambda x: R.flip(x, 2), (X,)),
    "nn.pad": (lambda x: R.nn.pad(x, (0, 0, 1, 2, 0, 3, 2, 0), pad_value=0.5), (X,)),
    "nn.pad reflect": (lambda x: R.nn.pad(x, (0, 0, 0, 0, 2, 1, 0, 3), pad_mode="reflect"), (X,)),
    "take": (lambda x: R.take(x, c([[2, 0], [1, 1]], "int64"), 1), (X,)),
    "gather_elements": (lambda x, i: R.gather_elements(x, i, 1), (LOGITS, LABELS[:, None])),
    "scatter_elements": (
        lambda x, i, u: R.scatter_elements(x, i, u, 1, "add"),
        (LOGITS, np.stack([LABELS, LABELS], 1), draw(4, 2)),
    ),
    "tile": (lambda x: R.tile(x, (2, 1, 3)), (X,)),
    "cumsum": (lambda x: R.cumsum(x, 1, exclusive=True), (X,)),
    "zeros": (lambda x: R.add(x, R.zeros((5, 4), F64)), (X,)),
    "ones": (lambda x: R.add(x, R.ones((5, 4), F64)), (X,)),
    "full": (lambda x: R.full((2, 3), R.sum(x), F64), (X,)),
    "full_like": (lambda x: R.full_like(x, c(3)), (X,)),
    "matmul": (lambda x, y: R.matmul(x, y), (X, draw(3, 4, 6))),
    "nn.resample": (
        lambda x: relay_wgrad.ops.resample.resample(
            x, c([[0, 1], [2, -1], [4, 4]], "int32"), c([[0.3, 0.7], [1, 1], [0.5, 0.25]]), 2
        ),
        (X,),
    ),
    **{f"nn.nll_loss {r}": (lambda p, y, w, r=r: R.nn.nll_loss(p, y, w, r, 7),
                            (LOGITS, LABELS, POSITIVE.ravel()[:8])) for r in ("mean", "none")},
    "nn.nll_loss": (lambda p, y: R.nn.nll_loss(p, y, reduction="sum"), (LOGITS, LABELS)),
    "nn.conv1d": (lambda x, w: R.nn.conv1d(x, w, 2, (1, 2), 2, 3), (draw(2, 6, 9), draw(3, 2, 3))),
    "nn.conv1d_transpose": (
        lambda x, w: R.nn.conv1d_transpose(x, w, 2, (1, 2), 1, 1, groups=3),
        (draw(2, 6, 5), draw(6, 2, 3)),
    ),
    "nn.conv2d_transpose": (
        lambda x, w: R.nn.conv2d_transpose(x, w, (2, 3), (1, 0, 0, 1), (1, 2), groups=2),
        (draw(2, 4, 6, 5), draw(4, 3, 3, 3)),
    ),
    **POOLS,
}  # fmt: skip


def of(cases: dict[str, Case]) -> tuple[tvm.IRModule, dict[str, np.ndarray]]:
    """One function of all: compiling many would take long."""
    values, params, each = {}, [], []
    for i, (_, arrays) in enumerate(cases.values()):
        of_this = []
        for j, array in enumerate(arrays):
            var = relax.Var(f"x{i}_{j}", relax.TensorType(array.shape, str(array.dtype)))
            values[var.name] = array
            of_this.append(var)
        each.append(of_this)
        params += of_this
    pairs = list(zip(cases.values(), each, strict=True))
    made = built(params, lambda emit: [build(*operands) for (build, _), operands in pairs])
    return made, values


def flat(value: Any) -> list[np.ndarray]:
    return [value.numpy()] if hasattr(value, "numpy") else [a for v in value for a in flat(v)]


@pytest.mark.longer_cases("1", "2", "3")
@pytest.mark.parametrize("part", range(4))
def test_rows(part: int) -> None:
    cases = dict(itertools.islice(CASES.items(), part, None, 4))
    mod, values = of(cases)
    wanted = call(mod, "main", list(values.values()))
    got = evaluate(function_to_onnx(mod), values)
    names = [n for n, v in zip(cases, wanted, strict=True) for _ in flat(v)]
    far = {}
    for name, have, want in zip(names, got.values(), flat(wanted), strict=True):
        assert (have.shape, have.dtype) == (want.shape, want.dtype), name
        distance = np.linalg.norm((have.astype(F64) - want).ravel())
        far[name] = distance / max(1, np.linalg.norm(want.astype(F64).ravel()))
    # TVM's erf has float32's precision, the evaluator's Gelu float32's constants.
    bounds = {n: 1e-6 if n in ("erf", "nn.gelu", "nn.gelu_tanh") else 1e-12 for n in far}
    assert not {n: d for n, d in far.items() if not d <= bounds[n]}


def test_every_row_has_a_case() -> None:
    covered = {name.partition(" ")[0] for name in CASES}
    convolutions = {n for n in ROWS if "conv" in n}
    others = {  # what has a test of its own, or a name that only passes see
        "relax.grad.start_checkpoint", "relax.grad.end_checkpoint", "relax.nn.batch_flatten",
        "relax.grad.nll_loss_backward", "relax.grad.take_backward",
    }  # fmt: skip
    assert {f"relax.{n}" for n in covered} - set(ROWS) == set()
    assert set(ROWS) - {f"relax.{n}" for n in covered} - convolutions - others == set()


# ---- gradients of what has no operator to be called by -------------------------------------------


def gradient_of(build: Callable[..., Any], *arrays: np.ndarray) -> None:
    """Of a sum, by all float operands."""
    params = [relax.Var(f"x{i}", relax.TensorType(a.shape, str(a.dtype)))
              for i, a in enumerate(arrays)]  # fmt: skip
    names = [v.name for v, a in zip(params, arrays, strict=True) if a.dtype == F64]
    forward = built(params, lambda emit: build(*params))
    mod = relay_wgrad.transform.grad(forward, "main", wrt=names)
    wanted = flat(call(mod, "main_adjoint", list(arrays)))
    model = function_to_onnx(mod, "main_adjoint")
    got = evaluate(model, {v.name: a for v, a in zip(params, arrays, strict=True)})
    for have, want in zip(got.values(), wanted, strict=True):
        assert relative_error(have, want) < 1e-12


def test_gradients_of_labels_and_of_taken_slices() -> None:
    for how in ("mean", "sum"):
        gradient_of(lambda p, y, r=how: R.nn.nll_loss(p, y, None, r, 7), LOGITS, LABELS)
    weight = POSITIVE.ravel()[:8]
    image, pixels = draw(2, 8, 3, 2), np.arange(12).reshape(2, 3, 2) % 8
    each = relax.const(weight, F64)
    gradient_of(lambda p, y: R.nn.nll_loss(p, y, each, "mean", 7), image, pixels)
    index = c([2, 0, 2], "int64")  # TVM's kernel takes one axis of them
    gradient_of(lambda x, y: R.sum(R.multiply(R.take(x, index, 1), y)), X, draw(2, 3, 5, 4, seed=6))


# ---- what is refused -----------------------------------------------------------------------------


def of_one(build: Callable[..., Any], *types: Any) -> tvm.IRModule:
    return module({f"x{i}": t for i, t in enumerate(types)}, build)


def test_refusals_name_the_operator() -> None:
    ty = relax.TensorType((2, 3, 8, 8), "float32")
    weight = relax.TensorType((4, 3, 3, 3), "float32")
    one = relax.TensorType((8,), "float32")
    unknown = of_one(lambda x, g, b: R.nn.layer_norm(x, g, b, [3]), ty, one, one)
    with pytest.raises(ValueError, match=r"relax\.nn\.layer_norm cannot be written.*no row"):
        function_to_onnx(unknown)
    half = relax.TensorType((2, 3, 8, 8), "float16")
    halves = relax.TensorType((4, 3, 3, 3), "float16")
    wide = of_one(lambda x, w: R.nn.conv2d(x, w, out_dtype="float32"), half, halves)
    with pytest.raises(ValueError, match=r"relax\.nn\.conv2d cannot.*'float16', 'float32'"):
        function_to_onnx(wide)
    batch = tvm.tirx.Var("n", "int64")
    with pytest.raises(ValueError, match=r"parameter 'x0' cannot.*sizes must be numbers"):
        function_to_onnx(of_one(R.nn.relu, relax.TensorType((batch, 3), "float32")))
    mod = of_one(lambda x, w: R.nn.conv2d(x, w), ty, weight)
    with pytest.raises(ValueError, match="no function 'other'"):
        function_to_onnx(mod, "other")
    with pytest.raises(ValueError, match="outputs must be 1 different names"):
        function_to_onnx(mod, outputs=["a", "b"])
    with pytest.raises(ValueError, match=r"'x1' cannot be written.*that name"):
        function_to_onnx(mod, outputs=["x1"])
    with pytest.raises(ValueError, match=r"'x1' is float32\[4, 3, 3, 3\], got float64\[1\]"):
        function_to_onnx(mod, initial={"x1": np.zeros(1)})
    with pytest.raises(ValueError, match="no input 'y'"):
        function_to_onnx(mod, initial={"y": np.zeros(1)})
