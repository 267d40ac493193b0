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


def test_what_operators_say_of_themselves():
    assert relay.Op.get("log") == relay.op.get("log")
    assert relay.Op.list_op_names() == relay.op.list_op_names()
    assert relay.op.get("log").num_inputs == 1
    assert relay.op.get("nn.conv2d").num_inputs == 2
    assert relay.op.get("exp").support_level == 1
    assert relay.op.get("abs").support_level == 3
