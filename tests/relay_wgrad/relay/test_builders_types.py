"""Weights without types: what their operators tell of them."""

import pytest

from relay_wgrad import relay
from relay_wgrad.relay import IRModule

X = (2, 8, 9, 7)


def _var(name="x", shape=X, dtype="float32"):
    return relay.var(name, shape=shape, dtype=dtype)


W, B, M, V = (relay.var(name) for name in "wbmv")
NHWC = {"data_layout": "NHWC", "kernel_layout": "HWIO"}

# A program, and the types of its weights in order.
PROGRAMS = [
    (lambda: relay.nn.conv2d(_var(), W, channels=6, kernel_size=(3, 2)), [(6, 8, 3, 2)]),
    (lambda: relay.nn.conv2d(_var(), W, channels=6, kernel_size=3, groups=2), [(6, 4, 3, 3)]),
    (lambda: relay.nn.conv2d(_var(), W, channels=8, kernel_size=1, groups=8), [(8, 1, 1, 1)]),
    (
        lambda: relay.nn.conv2d(
            _var(shape=(2, 9, 7, 8)), W, channels=6, kernel_size=(3, 2), groups=2, **NHWC
        ),
        [(3, 2, 4, 6)],
    ),
    (
        lambda: relay.nn.conv2d_transpose(_var(), W, channels=6, kernel_size=(3, 2), groups=2),
        [(8, 3, 3, 2)],
    ),
    (lambda: relay.nn.dense(_var(shape=(2, 5)), W, units=3), [(3, 5)]),
    (lambda: relay.nn.bias_add(_var(), B), [(8,)]),
    (lambda: relay.nn.bias_add(_var(), B, axis=-1), [(7,)]),
    (lambda: relay.nn.prelu(_var(), W, axis=2), [(9,)]),
    (lambda: relay.nn.batch_norm(_var(), W, B, M, V)[0], [(8,)] * 4),
    (lambda: relay.nn.batch_norm(_var(), W, B, M, V, axis=3)[0], [(7,)] * 4),
    (lambda: relay.nn.layer_norm(_var(), W, B), [(7,)] * 2),
    (lambda: relay.nn.instance_norm(_var(), W, B), [(8,)] * 2),
    (lambda: relay.nn.group_norm(_var(), W, B, 4), [(8,)] * 2),
]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("make", "shapes"), PROGRAMS)
def test_types_of_weights(make, shapes, dtype):
    made = make()
    data = relay.analysis.free_vars(made)[0]
    typed = relay.bind(made, {data: _var(shape=data.type_annotation.shape, dtype=dtype)})
    mod = relay.transform.InferType()(IRModule.from_expr(typed))
    weights = mod["main"].params[1:]
    assert [w.checked_type for w in weights] == [relay.TensorType(s, dtype) for s in shapes]
    assert [w.type_annotation for w in weights] == [w.checked_type for w in weights]


def test_lowering_finds_them_too():
    made = relay.nn.relu(relay.nn.conv2d(_var(), W, channels=6, kernel_size=3))
    params = relay.lower(IRModule.from_expr(made))["main"].params
    assert [int(d) for d in params[1].ty.shape] == [6, 8, 3, 3]


def test_a_weight_of_two_operators_must_fit_both():
    x = _var(shape=(2, 5))
    y = relay.nn.dense(relay.nn.dense(x, W, units=5), W, units=5)
    mod = relay.transform.InferType()(IRModule.from_expr(y))
    assert mod["main"].params[1].checked_type == relay.TensorType((5, 5))
    y = relay.nn.dense(relay.nn.dense(x, W, units=4), W, units=5)
    with pytest.raises(ValueError, match=r"nn\.dense"):
        relay.transform.InferType()(IRModule.from_expr(y))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: relay.nn.conv2d(_var(), W), r"nn\.conv2d: the type of weight is not stated"),
        (lambda: relay.nn.dense(_var(), W), r"nn\.dense: the type of weight is not stated"),
        (lambda: relay.nn.conv2d(W, _var()), r"nn\.conv2d: the type of data is not stated"),
        (lambda: relay.add(_var(), W), r"add: the type of rhs is not stated, and \(Tensor.*, \?\)"),
        (lambda: relay.nn.bias_add(_var(), B, axis=4), r"nn\.bias_add: the type of bias"),
        (lambda: relay.Tuple([W]), r"%w is not bound here, or a parameter without a type"),
    ],
)
def test_what_nothing_tells_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        relay.transform.InferType()(IRModule.from_expr(make()))
