"""Operators whose sizes only the run knows, against NumPy and PyTorch; one compilation for all."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm

from relay_wgrad import relay
from relay_wgrad.relay.ast import Call, Function, IRModule, Op
from relay_wgrad.relay.infer import infer_expr
from relay_wgrad.relay.lower import lower
from relay_wgrad.relay.records import lookup
from relay_wgrad.relay.types import ANY, TensorType, TupleType
from tests.support.chosen import cases_of
from tests.support.compiled import virtual_machine
from tests.support.fast import FAST
from tests.support.relay.run_cases import CASES


def _function(case: Any, sizes: bool) -> Function:
    params = [
        relay.var(f"x{i}", shape=a.shape if sizes else (ANY,) * a.ndim, dtype=str(a.dtype))
        for i, a in enumerate(case.args)
    ]
    return infer_expr(Function(tuple(params), Call(Op(case.op), tuple(params), case.attrs)))


@cache
def _machine(indices: tuple[int, ...]) -> Any:
    """Once in a process, which may come back to this file."""
    mod = IRModule({f"case{i}": _function(CASES[i], True) for i in indices})
    return virtual_machine(lower(mod), FAST)


def _tensors(arrays: Any) -> list[Any]:
    return [tvm.runtime.tensor(np.array(a, order="C")) for a in arrays]


@pytest.mark.share(3)
@pytest.mark.parametrize("index", range(len(CASES)), ids=lambda i: f"{i}-{CASES[i].op}")
def test_result_and_its_type(index: int, request: pytest.FixtureRequest) -> None:
    case = CASES[index]
    types = [TensorType(a.shape, str(a.dtype)) for a in case.args]
    ty = lookup(case.op).infer(types, case.attrs)
    machine = _machine(tuple(cases_of(request.session, test_result_and_its_type, "index")))
    got, wanted = machine[f"case{index}"](*_tensors(case.args)), case.expected(*case.args)
    if not isinstance(ty, TupleType):
        got, wanted, ty = [got], [wanted], TupleType((ty,))
    for ours, theirs, field in zip(got, wanted, ty.fields, strict=True):
        assert tuple(ours.shape) == np.shape(theirs)
        assert str(ours.dtype) == field.dtype
        assert all(n is ANY or n == m for n, m in zip(field.shape, ours.shape, strict=True))
        np.testing.assert_allclose(ours.numpy(), theirs, 2e-5, 2e-5)


def _run(body: Any, params: list[Any], *args: Any) -> Any:
    return relay.create_executor("vm").evaluate(relay.Function(params, body))(*args)


def test_what_does_not_fit_is_refused_at_the_run() -> None:
    x = relay.var("x", shape=(2, 3))
    shape = relay.var("shape", shape=(2,), dtype="int64")
    data = np.ones((2, 3), "float32")
    for wrong in ((5, 3), (2, 2), (-2, 3), (-6, -1)):
        with pytest.raises(Exception, match=r"match_cast|negative"):
            _run(relay.reshape(x, shape), [x, shape], data, np.array(wrong, "int64"))
    with pytest.raises(Exception, match="match_cast"):
        _run(relay.broadcast_to(x, shape), [x, shape], data, np.array((4, 3), "int64"))
    y = relay.var("y", shape=(relay.Any(), relay.Any()))
    with pytest.raises(Exception, match="match_cast"):
        _run(relay.reshape_like(x, y), [x, y], data, np.ones((2, 2), "float32"))


@pytest.mark.parametrize("shape", [(6,), (2, 3), (ANY,), (ANY, 3)])
@pytest.mark.parametrize(("to", "fits"), [(5, False), (7, False), (6, True), (-1, True)])
def test_one_axis_has_the_elements_that_there_are(
    shape: tuple[Any, ...], to: int, fits: bool
) -> None:
    """A compiler knows how many there are, and would put that for the size that is asked for."""
    x, s = relay.var("x", shape=shape), relay.var("s", shape=(1,), dtype="int64")
    given = np.zeros((6,) if len(shape) == 1 else (2, 3), "float32")
    if fits:
        assert _run(relay.reshape(x, s), [x, s], given, np.array([to])).shape == (6,)
    else:
        with pytest.raises(Exception, match="match_cast"):
            _run(relay.reshape(x, s), [x, s], given, np.array([to]))


@pytest.mark.parametrize("axis", [0, 1])
def test_no_axis_is_squeezed_that_is_longer(axis: int) -> None:
    x, s = relay.var("x", shape=(2, 3)), relay.var("s", shape=(1,), dtype="int64")
    with pytest.raises(Exception, match="match_cast"):
        _run(relay.squeeze(x, s), [x, s], np.zeros((2, 3), "float32"), np.array([axis]))


def test_what_follows_has_those_sizes() -> None:
    """A program goes on with sizes that the run made, and with those of its parameters."""
    x = relay.var("x", shape=(relay.Any(), 6))
    y = relay.var("y", shape=(relay.Any(), 2))
    shape = relay.var("shape", shape=(2,), dtype="int64")
    moved = relay.nn.relu(relay.reshape(x, shape) * relay.const(2.0))
    out = relay.sum(relay.reshape_like(moved, y), axis=1)
    data = np.random.default_rng(1).standard_normal((4, 6)).astype("float32")
    got = _run(out, [x, y, shape], data, np.ones((12, 2), "float32"), np.array((8, 3), "int64"))
    np.testing.assert_allclose(got.numpy(), np.maximum(data.reshape(12, 2) * 2, 0).sum(1), 1e-5)


def test_ranges_of_the_run() -> None:
    names = ("start", "stop", "step")
    params = [relay.var(name, shape=(), dtype="float32") for name in names]
    run = relay.create_executor("vm").evaluate(
        relay.Function(params, relay.arange(*params, dtype="float32"))
    )
    for values in ((1, 7.5, 2), (3, -2, -1.5), (2, 1, 1)):
        got = run(*(np.array(v, "float32") for v in values))
        np.testing.assert_allclose(got.numpy(), np.arange(*values, dtype="float32"))


def test_gradients() -> None:
    x = relay.var("x", shape=(2, 3))
    shape = relay.var("shape", shape=(3,), dtype="int64")
    wide = relay.broadcast_to(relay.expand_dims(x, 0), shape)
    made = relay.transform.gradient(infer_expr(relay.Function([x, shape], wide * wide)))
    data = np.random.default_rng(2).standard_normal((2, 3)).astype("float32")
    run = relay.create_executor("vm").evaluate(made)
    _, (grad, none) = run(data, np.array([5, 2, 3], "int64"))
    np.testing.assert_allclose(grad.numpy(), 10 * data, 1e-5)
    assert not none.numpy().any()


def test_gradient_of_a_range() -> None:
    params = [relay.var(name, shape=(), dtype="float64") for name in ("start", "stop", "step")]
    line = relay.arange(*params, dtype="float64")
    made = relay.transform.gradient(infer_expr(relay.Function(params, line * line)))
    values = [np.array(v) for v in (2.5, 9.5, 1.8)]
    x = np.arange(*map(float, values))
    _, grads = relay.create_executor("vm").evaluate(made)(*values)
    wanted = (2 * x.sum(), 0, (2 * x * np.arange(len(x))).sum())
    np.testing.assert_allclose([g.numpy() for g in grads], wanted, 1e-12)


def test_scatters_of_any_size() -> None:
    """What is outside data is written nowhere."""
    d, u = (relay.var(n, shape=(relay.Any(),)) for n in "du")
    i = relay.var("i", shape=(relay.Any(),), dtype="int64")
    index, new = np.array([-1, 9, 1, -5]), np.arange(1, 5, dtype="float32")
    got = _run(relay.scatter_elements(d, i, u, 0), [d, i, u], np.zeros(4, "float32"), index, new)
    np.testing.assert_array_equal(got.numpy(), [0, 3, 0, 1])


REFUSED = (
    ("dyn.reshape", [(2, 3), ((ANY,), "int64")], {}, "newshape must be of known length"),
    ("dyn.reshape", [(2, 3), ((2,), "float32")], {}, "newshape must be of integers"),
    ("dyn.squeeze", [(2,), ((3,), "int64")], {}, "3 axes of"),
    ("dyn.broadcast_to", [(2, 3), ((1,), "int64")], {}, "does not broadcast to 1 axes"),
    ("dyn.strided_slice", [(2,), *[((2,), "int64")] * 3], {}, "no more than the axes"),
    ("dyn.nn.pad", [(2, 3), ((3, 2), "int64"), ()], {}, r"pad_width must be \(2, 2\)"),
    ("dyn.topk", [(2, 3), ((2,), "int64")], {}, "k must be one number"),
    ("stft", [(1, 4), (4,)], {"n_fft": 8, "hop_length": 1, "win_length": 4}, "shorter than n_fft"),
    ("sparse_to_dense", [((2, 2), "int64"), (2,), ()], {"output_shape": [3]}, "places of 2"),
    ("nn.correlation", [(1, 1, 4, 4), (1, 1, 4, 4)], {"kernel_size": 2}, "an odd kernel_size"),
)


@pytest.mark.parametrize("refusal", REFUSED, ids=lambda r: f"{r[0]}-{r[3]}")
def test_refused(refusal: Any) -> None:
    name, shapes, attrs, message = refusal
    types = [
        TensorType(*s) if s and isinstance(s[0], tuple) else TensorType(s, "float32")
        for s in shapes
    ]
    with pytest.raises((TypeError, ValueError), match=message):
        lookup(name).infer(types, attrs)
