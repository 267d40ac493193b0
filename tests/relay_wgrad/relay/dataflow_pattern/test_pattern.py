"""Patterns and expressions: what matches, what does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relay_wgrad import relay
from relay_wgrad.relay.dataflow_pattern import (
    DFPattern,
    FunctionPattern,
    dominates,
    has_attr,
    has_dtype,
    has_shape,
    has_type,
    is_constant,
    is_expr,
    is_if,
    is_let,
    is_op,
    is_tuple,
    is_tuple_get_item,
    is_var,
    match,
    wildcard,
)
from relay_wgrad.relay.dataflow_pattern.matcher import Matcher
from relay_wgrad.relay.op import OpPattern

x, y, w = (relay.var(name, shape=(2, 3)) for name in "xyw")
image, kernel = relay.var("image", shape=(1, 4, 8, 8)), relay.var("kernel", shape=(6, 4, 3, 3))
bias = relay.var("bias", shape=(6,))
conv = relay.nn.conv2d(image, kernel, padding=1, channels=6, kernel_size=(3, 3))
biased = relay.nn.bias_add(conv, bias)
relu = relay.nn.relu(biased)
two = relay.const(2.0)
_ = wildcard

CONV = is_op("nn.conv2d")(_(), _())
OPTIONAL = CONV.optional(lambda c: is_op("nn.bias_add")(c, _())).optional(is_op("nn.relu"))
ELEMENTWISE = _().has_attr({"TOpPattern": OpPattern.ELEMWISE})
DIAMOND = dominates(CONV, ELEMENTWISE(_()), is_op("add")(_(), _()))
split = relay.split(x, 3, axis=1)
choice = relay.If(relay.const(True), x, relay.exp(x))
binding = relay.Let(y, relay.exp(x), relay.log(y))
square = relay.Function((w,), w * w)


def reused() -> DFPattern:
    """f(a) with the same a on both sides."""
    a = _()
    return is_op("exp")(a) + a


# (pattern, expression, whether it matches)
CASES: list[tuple[DFPattern, Any, bool]] = [
    (_(), x, True),
    (is_var(), x, True),
    (is_var("x"), x, True),
    (is_var("y"), x, False),
    (is_var(), two, False),
    (is_constant(), two, True),
    (is_constant(), x, False),
    (is_expr(two), relay.const(2.0), True),
    (is_expr(two), relay.const(3.0), False),
    (is_expr(x), x, True),
    (is_expr(x), relay.var("x", shape=(2, 3)), False),
    (is_expr(relay.exp(x)), relay.exp(x), True),
    (is_op("add"), relay.op.get("add"), True),
    (is_op("add"), relay.op.get("subtract"), False),
    (is_op("add") | is_op("subtract"), relay.op.get("subtract"), True),
    # Calls: operators, arguments, any arguments, both orders of what commutes.
    (_() + _(), x + y, True),
    (_() - _(), x + y, False),
    (is_op("add")(None), x + y, True),
    (is_op("exp")(_(), _()), relay.exp(x), False),
    (is_var("y") + is_var("x"), x + y, True),
    (is_var("y") * is_var("x"), x * y, True),
    (is_var("y") - is_var("x"), x - y, False),
    (is_var("y") / is_var("x"), x / y, False),
    ((is_op("add") | is_op("subtract"))(is_var("y"), is_var("x")), x + y, False),
    # (a * b) / c and (a / c) * b are one.
    (is_var("x") * is_var("y") / is_var("w"), x / w * y, True),
    (is_var("x") / is_var("w") * is_var("y"), x * y / w, True),
    (is_var("x") * is_var("y") / is_var("w"), x / y * w, False),
    # One pattern in two places is one expression.
    (reused(), relay.exp(x) + x, True),
    (reused(), x + relay.exp(x), True),
    (reused(), relay.exp(x) + y, False),
    # Alternatives and options, whichever end they are written from.
    (OPTIONAL, conv, True),
    (OPTIONAL, biased, True),
    (OPTIONAL, relu, True),
    (OPTIONAL, relay.nn.relu(conv), True),
    (OPTIONAL, relay.exp(conv), False),
    (OPTIONAL, relay.nn.bias_add(relay.nn.relu(conv), bias), False),
    # Attributes, defaults too; of operators; of functions.
    (CONV.has_attr({"channels": 6, "kernel_size": [3, 3]}), conv, True),
    (CONV.has_attr({"data_layout": "NCHW", "groups": 1}), conv, True),
    (CONV.has_attr({"channels": 7}), conv, False),
    (CONV.has_attr({"no_such": 1}), conv, False),
    (is_op("cast")(_()).has_attr({"dtype": "float16"}), relay.cast(x, "float16"), True),
    (has_attr({"Composite": "mine"}), square.with_attr("Composite", "mine"), True),
    (has_attr({"Composite": "mine"}), square, False),
    (ELEMENTWISE(_()), relay.exp(x), True),
    (ELEMENTWISE(_()), relay.sum(x), False),
    (has_attr({"any": 1}), x, False),
    # Types, inferred where they are not there.
    (has_type(relay.TensorType((2, 3), "float32")), x + y, True),
    (has_type(relay.TensorType((2, 3), "float16")), x + y, False),
    (has_dtype("float32"), x + y, True),
    (has_shape((1, 6, 8, 8), CONV), conv, True),
    (has_shape((1, 6, 8, 9), CONV), conv, False),
    (has_shape((2, 3)), split.astuple(), False),
    (has_dtype("bool"), relay.less(x, y), True),
    # The other nodes.
    (is_tuple([is_var("x"), _()]), relay.Tuple((x, y)), True),
    (is_tuple([_()]), relay.Tuple((x, y)), False),
    (is_tuple(None), relay.Tuple((x, y)), True),
    (is_tuple(None), x, False),
    (is_tuple_get_item(_(), 1), split[1], True),
    (is_tuple_get_item(_(), 0), split[1], False),
    (is_tuple_get_item(is_op("split")(_())), split[2], True),
    (is_if(_(), is_var("x"), is_op("exp")(_())), choice, True),
    (is_if(_(), is_var("y"), _()), choice, False),
    (is_let(is_var("y"), is_op("exp")(_()), is_op("log")(is_var("y"))), binding, True),
    (is_let(_(), _(), is_op("exp")(_())), binding, False),
    (FunctionPattern([_()], _() * _()), square, True),
    (FunctionPattern([_(), _()], _() * _()), square, False),
    (FunctionPattern(None, _() * _())(None), square(x), True),
    # Dominators: all ways lead over one parent.
    (DIAMOND, relay.nn.relu(conv) + relay.tanh(relay.exp(conv)), True),
    (DIAMOND, relay.nn.relu(relay.exp(conv)) + relay.exp(conv), True),
    (DIAMOND, relay.nn.relu(conv) + relay.exp(image), False),
    (DIAMOND, relay.nn.relu(conv) + relay.sum(conv), False),
    (DIAMOND, relay.nn.relu(conv) + relay.exp(relay.nn.conv2d(image, kernel, padding=1)), False),
    (is_op("reshape")(_()).dominates(CONV), relay.reshape(relu, (-1,)), True),
    (is_op("reshape")(_()).dominates(CONV), relay.reshape(relay.exp(x), (-1,)), False),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(CASES)))
def test_match(index: int) -> None:
    pattern, expr, wanted = CASES[index]
    assert pattern.match(expr) is wanted
    assert match(pattern, expr) is wanted


def test_choices_are_taken_back() -> None:
    """What fails later sends the search back: into an option, an order, an alternative."""
    a, b = _(), _()
    # The first order of the inner product binds a to x, which only then turns out to be wrong.
    assert ((a * b) - b).match((x * y) - x)
    assert ((a * b) - b).match((x * y) - y)
    assert not ((a * b) - b).match((x * y) - w)
    either = is_op("exp")(a) | is_op("exp")(b)
    assert is_tuple([either, b]).match(relay.Tuple((relay.exp(x), y)))
    assert is_tuple([either, a]).match(relay.Tuple((relay.exp(x), y)))
    c = _()
    mixed = (is_var("x") | c) + (c * c)
    assert mixed.match(x + (x * x))
    assert mixed.match(y * y + y)
    assert not mixed.match(w + (x * y))


def test_what_the_parts_have_matched() -> None:
    data, weight, added = _(), _(), _()
    convolution = is_op("nn.conv2d")(data, weight)
    pattern = convolution.optional(lambda c: is_op("nn.bias_add")(c, added))
    found = Matcher(biased).match(pattern, biased)
    assert found is not None
    assert (found[data], found[weight], found[added]) == ([image], [kernel], [bias])
    assert found[convolution] == [conv]
    alone = Matcher(conv).match(pattern, conv)
    assert alone is not None
    assert added not in alone


def test_a_pattern_within_itself() -> None:
    again = _()
    casts = is_op("cast")(again)
    again.redirect_to(casts | is_op("exp")(_()))
    chain: Any = relay.exp(x)
    for dtype in ("float16", "float32") * 4:
        chain = relay.cast(chain, dtype)
    found = Matcher(chain).match(casts, chain)
    assert found is not None
    assert len(found[casts]) == 8
    assert not casts.match(relay.cast(x, "float16"))


def test_nothing_recurses() -> None:
    deep: Any = x
    pattern: DFPattern = is_var("x")
    for _i in range(2_000):
        deep, pattern = relay.nn.relu(deep), is_op("nn.relu")(pattern)
    assert pattern.match(deep)
    assert not pattern.match(relay.exp(deep))
    long: Any = conv
    for _i in range(2_000):
        long = relay.nn.relu(long)
    assert DIAMOND.match(long + long)
    ladder: Any = conv
    for _i in range(200):  # twice as many ways with each step
        ladder = relay.nn.relu(ladder) + relay.exp(ladder)
    path = ELEMENTWISE(_()) | is_op("add")(_(), _())
    assert dominates(CONV, path, is_op("add")(_(), _())).match(ladder)


def test_misuse() -> None:
    with pytest.raises(ValueError, match=r"unknown Relay operator 'nn\.conv'"):
        is_op("nn.conv")
    with pytest.raises(TypeError, match="a part of a pattern must be a pattern, got Var"):
        is_op("exp")(x)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a part of a pattern must be a pattern, got 3"):
        _() | 3  # type: ignore[operator]
    with pytest.raises(TypeError, match="match: the expression must be a Relay expression"):
        _().match(np.ones(3))
    with pytest.raises(TypeError, match="match: expected a pattern, got 'add'"):
        match("add", x)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="is_expr: the expression must be"):
        is_expr(2.0)
    with pytest.raises(ValueError, match="exp: the type of data is not stated"):
        has_dtype("float32").match(relay.exp(relay.var("v")))
