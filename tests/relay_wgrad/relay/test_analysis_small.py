"""Small questions about programs and operators."""

import pytest

from relay_wgrad import relay
from relay_wgrad.relay.analysis import count_layers, well_formed

X, Y = relay.var("x", shape=(2, 2)), relay.var("y", shape=(2, 2))
ONE = relay.const(1.0)
LET = relay.Let(X, ONE, X)


@pytest.mark.parametrize(
    ("expr", "is_well"),
    [
        (X, True),
        (LET, True),
        (relay.Tuple([LET, LET]), True),
        (relay.Let(X, ONE, LET), False),
        (relay.Tuple([LET, relay.Let(X, ONE, X)]), False),
        (relay.Tuple([LET, X]), False),
        (relay.Tuple([X, LET]), False),
        (relay.Let(X, relay.exp(X), X), False),
        (relay.Function([X], relay.Let(Y, X, relay.add(X, Y))), True),
        (relay.Let(Y, relay.Function([X], X), X), False),
        (relay.Let(Y, relay.Function([X], X), Y), True),
    ],
)
def test_well_formed(expr, is_well):
    assert well_formed(expr) == is_well
    assert well_formed(relay.IRModule({"main": relay.Function((), expr)})) == is_well


def test_a_long_program_is_well_formed():
    body = X
    for _ in range(20_000):
        body = relay.Let(relay.var("v"), body, ONE)
    assert well_formed(body)


def test_layers_are_counted_along_the_longest_way():
    def dense(x):
        return relay.nn.dense(x, Y)

    two, three = dense(dense(X)), dense(dense(dense(X)))
    v = relay.var("v")
    both = relay.Let(v, relay.add(two, three), dense(relay.nn.relu(v)))
    mod = relay.IRModule.from_expr(relay.Function([X, Y], both))
    assert count_layers(both, ["nn.dense"]) == count_layers(mod, ["nn.dense"]) == 4
    assert count_layers(both, ["nn.relu", "add"]) == 2
    assert count_layers(X, ["nn.dense"]) == 0
    resnet, _ = relay.testing.resnet.get_workload(num_layers=18)
    assert count_layers(resnet, ["nn.conv2d", "nn.dense"]) == 18


def test_features_of_data_types_and_references():
    from relay_wgrad.relay.analysis import Feature, detect_feature

    found = detect_feature(relay.prelude.Prelude().mod)
    assert {Feature.fMatch, Feature.fConstructor} <= found
    assert Feature.fRefRead not in found
    assert detect_feature(relay.RefRead(relay.RefCreate(ONE))) == {
        Feature.fConstant, Feature.fRefCreate, Feature.fRefRead,
    }  # fmt: skip


def test_what_operators_say_of_themselves():
    assert relay.Op.get("log") == relay.op.get("log")
    assert relay.Op.list_op_names() == relay.op.list_op_names()
    assert relay.op.get("log").num_inputs == 1
    assert relay.op.get("nn.conv2d").num_inputs == 2
    assert relay.op.get("exp").support_level == 1
    assert relay.op.get("abs").support_level == 3


def test_products_are_counted():
    """Of a weight gradient as many as of its convolution; blocks of channels are channels."""
    x, w = relay.var("x", shape=(2, 8, 9, 7)), relay.var("w", shape=(6, 4, 3, 2))
    conv = relay.nn.conv2d(x, w, groups=2)
    kept = relay.transform.InferTypeLocal

    def count(node):
        kept(node)
        return relay.analysis.get_total_mac_number(node)

    products = 2 * 6 * 7 * 6 * (4 * 3 * 2)
    assert count(conv) == products
    grad = relay.var("g", shape=(2, 6, 7, 6))
    weight = relay.nn.conv2d_backward_weight(
        grad, x, groups=2, channels=6, kernel_size=(3, 2),
        grad_layout="NCHW", data_layout="NCHW", kernel_layout="OIHW",
    )  # fmt: skip
    assert count(relay.Tuple([weight, conv])) == 2 * products
    blocked = relay.layout_transform(x, "NCHW", "NCHW4c")
    one = relay.var("w", shape=(6, 8, 3, 2))
    assert count(relay.nn.conv2d(blocked, one, data_layout="NCHW4c", out_layout="NCHW")) == (
        2 * products
    )
    a, b = relay.var("a", shape=(5, 2, 3)), relay.var("b", shape=(5, 2, 4))
    assert count(relay.nn.batch_matmul(a, b, transpose_a=True, transpose_b=False)) == 5 * 2 * 3 * 4
    with pytest.raises(ValueError, match=r"nn.conv2d has no type; InferType finds it"):
        relay.analysis.get_total_mac_number(relay.nn.conv2d(x, w, groups=2))


def test_relays_standard_library():
    relay.IRModule().import_from_std("core.rly")
    mod = relay.IRModule()
    mod.import_from_std("prelude.rly")
    assert "map" in mod.functions
