"""Matches put into functions, and programs rewritten where a pattern matches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from relay_wgrad import relay
from relay_wgrad.relay.dataflow_pattern import (
    DFPatternCallback,
    dominates,
    is_constant,
    is_op,
    is_tuple,
    is_var,
    partition,
    rewrite,
    wildcard,
)
from relay_wgrad.relay.op import OpPattern
from relay_wgrad.relay.transform import InferType
from tests.support.timing import seconds

_ = wildcard
HEADER = '#[version = "0.0.5"]\n'
V = "Tensor[(4), float32]"
PARAMS = f"%x: {V}, %y: {V}, %z: {V}"


def body_of(text: str) -> Any:
    """The function of a text."""
    return InferType()(relay.fromtext(f"{HEADER}def @main({PARAMS}) {{ {text} }}"))["main"]


def fn(params: int, name: str, body: str, number: int = 0) -> str:
    """A function of a partition as text; `$i` stands for its parameter i."""
    names = [f"%FunctionVar_{number}_{i}" for i in range(params)]
    for i, param in enumerate(names):
        body = body.replace(f"${i}", param)
    typed = ", ".join(f"{param}: {V}" for param in names)
    return f'fn ({typed}, PartitionedFromPattern="{name}") -> {V} {{ {body} }}'


SUM_EXP = is_op("exp")(_() + _())
EXP_LOG = is_op("log")(is_op("exp")(_()))
ELEMENTWISE = _().has_attr({"TOpPattern": OpPattern.ELEMWISE})

# (pattern, before, after)
CASES: list[tuple[Any, str, str]] = [
    (SUM_EXP, "log(exp(add(%x, %y)))",
     f"%0 = {fn(2, 'add_exp_', 'exp(add($0, $1))')}; log(%0(%x, %y))"),
    # One operand in two places is one parameter.
    (SUM_EXP, "exp(add(%x, %x))", f"%0 = {fn(1, 'add_exp_', 'exp(add($0, $0))')}; %0(%x)"),
    # The match that ends last is the first.
    (SUM_EXP, "%0 = exp(add(%x, %y)); exp(add(%0, %z))",
     (f"%0 = {fn(2, 'add_exp_', 'exp(add($0, $1))', 1)}; %1 = %0(%x, %y);"
      f" %2 = {fn(2, 'add_exp_', 'exp(add($0, $1))')}; %2(%1, %z)")),
    # An inner node that something else needs stays outside, and so does the match.
    (SUM_EXP, "%0 = add(%x, %y); (exp(%0), %0)", "%0 = add(%x, %y); (exp(%0), %0)"),
    # What something else needs may come back as an operand.
    (is_op("multiply")(_() + _(), _()), "%0 = add(%x, %y); multiply(%0, tanh(%0))",
     (f"%0 = {fn(3, 'add_multiply_', 'multiply(add($0, $1), $2)')}; %1 = add(%x, %y);"
      " %0(%x, %y, tanh(%1))")),
    # Of two matches that share a node only one is taken.
    (EXP_LOG, "%0 = exp(%x); (log(%0), log(%0))", "%0 = exp(%x); (log(%0), log(%0))"),
    (is_op("exp")(is_op("exp")(_())), "exp(exp(exp(%x)))",
     f"%0 = {fn(1, 'exp_exp_', 'exp(exp($0))')}; %0(exp(%x))"),
    # Constants that are asked for go along, others are operands.
    (_() + is_constant(), "add(%x, 2f)", f"%0 = {fn(1, 'add_', 'add($0, 2f)')}; %0(%x)"),
    (is_op("exp")(_() + (is_var() | is_constant())), "exp(add(%x, %y))",
     f"%0 = {fn(2, 'add_exp_', 'exp(add($0, $1))')}; %0(%x, %y)"),
    (is_op("concatenate")(is_tuple(None)), "sum(concatenate((%x, %y, %x)))",
     ("%0 = fn (%FunctionVar_0_0: Tensor[(4), float32], %FunctionVar_0_1: Tensor[(4), float32],"
      ' PartitionedFromPattern="Tuple_concatenate_") -> Tensor[(12), float32]'
      " { concatenate((%FunctionVar_0_0, %FunctionVar_0_1, %FunctionVar_0_0)) };"
      " sum(%0(%x, %y))")),
    (SUM_EXP.optional(is_op("log")), "log(exp(add(%x, %y)))",
     f"%0 = {fn(2, 'add_exp_log_', 'log(exp(add($0, $1)))')}; %0(%x, %y)"),
    (dominates(is_op("sqrt")(_()), ELEMENTWISE(_()), _() + _()),
     "%0 = sqrt(%x); add(exp(log(%0)), tanh(%0))",
     (f"%0 = {fn(1, 'sqrt_log_exp_tanh_add_', '%1 = sqrt($0); add(exp(log(%1)), tanh(%1))')};"
      " %0(%x)")),
    # Within a let, an if, a function.
    (SUM_EXP, "let %a = exp(add(%x, %y)); if (True) { exp(add(%a, %z)) } else { %a }",
     (f"let %a = {fn(2, 'add_exp_', 'exp(add($0, $1))', 1)}(%x, %y);"
      f" if (True) {{ {fn(2, 'add_exp_', 'exp(add($0, $1))')}(%a, %z) }} else {{ %a }}")),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(CASES)))
def test_partition(index: int) -> None:
    pattern, before, after = CASES[index]
    function = body_of(before)
    out = pattern.partition(function)
    assert relay.structural_equal(out, body_of(after)), out
    if before == after:
        assert out is function
    # What a partition has made, another leaves alone.
    again = pattern.partition(out)
    assert relay.structural_equal(again, out)
    # And it has its types already.
    mod = relay.IRModule({"main": out})
    assert relay.astext(InferType()(mod)) == relay.astext(InferType()(relay.fromtext(mod.astext())))


def test_overlap_with_what_comes_back() -> None:
    """The second match shares a node with the first, which takes it as an operand."""
    pattern = is_op("multiply")(is_op("exp")(_()), _())
    out = pattern.partition(body_of("%0 = exp(%x); multiply(%0, multiply(%0, %y))"))
    function = fn(2, "exp_multiply_", "multiply(exp($0), $1)")
    wanted = body_of(f"%0 = {function}; %0(%x, multiply(exp(%x), %y))")
    assert relay.structural_equal(out, wanted), out


def test_attributes_and_check() -> None:
    function = body_of("(exp(add(%x, %y)), exp(add(%y, %z)))")
    asked: list[Any] = []

    def check(call: Any) -> bool:
        asked.append(call)
        return bool(call.args[0].args[0].name == "x")

    out: Any = partition(SUM_EXP, function, {"Composite": "mine.sum"}, check)
    first, second = out.body.fields
    assert {call.op.name for call in asked} == {"exp"}
    assert len(asked) == 2
    assert dict(first.op.attrs) == {
        "PartitionedFromPattern": "add_exp_", "Composite": "mine.sum",
    }  # fmt: skip
    assert second.op.name == "exp"


def rule(pattern: Any, change: Callable[..., Any], **options: bool) -> DFPatternCallback:
    class Rule(DFPatternCallback):
        def callback(self, pre: Any, post: Any, node_map: Any) -> Any:
            return change(pre, post, node_map)

    out = Rule(**options)
    out.pattern = pattern
    return out


def test_rewrite() -> None:
    a, b = _(), _()
    undo = rule(is_op("log")(is_op("exp")(a)), lambda pre, post, found: found[a][0])
    fold = rule(a * b, lambda pre, post, found: found[a][0] + found[b][0])
    # A match that a rewriting makes is found in the next pass.
    out = rewrite(undo, body_of("log(log(exp(exp(%x))))"))
    assert relay.structural_equal(out, body_of("%x"))
    both = rewrite([undo, fold], body_of("multiply(log(exp(multiply(%x, %y))), %z)"))
    assert relay.structural_equal(both, body_of("add(add(%x, %y), %z)"))
    assert relay.structural_equal(undo.rewrite(body_of("exp(%x)")), body_of("exp(%x)"))


def test_rewrite_gets_both_sides_and_types() -> None:
    seen: list[Any] = []

    def wrap(pre: Any, post: Any, found: Any) -> Any:
        seen.append((pre, post, found))
        return relay.tanh(post)

    pattern = is_op("exp")(_())
    once = rule(pattern, wrap, rewrite_once=True, require_type=True)
    x = relay.var("x", shape=(4,))
    out = rewrite(once, relay.exp(relay.exp(x)))
    assert relay.structural_equal(out, relay.tanh(relay.exp(relay.tanh(relay.exp(x)))))
    (_inner, _post, _found), (pre, post, found) = seen
    assert pre.checked_type == relay.TensorType((4,), "float32")
    assert pre.args[0].op.name == "exp"
    assert post.args[0].op.name == "tanh"
    assert found[pattern] == [post]


def test_types_and_free_variables() -> None:
    """A rewriting with types ends, and gives back the variables that it was given."""
    a = _()
    undo = rule(is_op("log")(is_op("exp")(a)), lambda pre, post, found: found[a][0],
                require_type=True)  # fmt: skip
    x = relay.var("x", shape=(4,))
    assert rewrite(undo, relay.log(relay.exp(relay.log(relay.exp(x))))) is x


def test_a_rewriting_that_changes_a_type() -> None:
    """Types of what stands above are inferred anew."""
    wide = rule(
        is_op("cast")(_()).has_attr({"dtype": "float16"}),
        lambda pre, post, found: relay.cast(post.args[0], "float64"),
    )
    out = rewrite(wide, body_of('exp(cast(%x, dtype="float16"))').body)
    assert out.checked_type is None
    seen: list[Any] = []
    watch = rule(is_op("exp")(_()), lambda pre, post, found: seen.append(pre) or post,
                 require_type=True)  # fmt: skip
    rewrite([wide, watch], body_of('exp(cast(%x, dtype="float16"))').body)
    assert seen[-1].checked_type.dtype == "float64"


def test_rewritings_that_go_round() -> None:
    add, sub = _() + _(), _() - _()
    there = rule(add, lambda pre, post, found: post.args[0] - post.args[1])
    back = rule(sub, lambda pre, post, found: post.args[1] + post.args[0])
    x, y = relay.var("x", shape=(4,)), relay.var("y", shape=(4,))
    with pytest.raises(ValueError, match="100 passes have each changed something"):
        rewrite([there, back], x + y)


def test_misuse() -> None:
    x = relay.var("x", shape=(4,))
    with pytest.raises(ValueError, match="DFPatternCallback has no pattern"):
        rewrite(DFPatternCallback(), x)
    with pytest.raises(TypeError, match="rewrite: expected a DFPatternCallback, got 3"):
        rewrite([3], x)  # type: ignore[list-item]
    with pytest.raises(TypeError, match="Rule: what the callback gives must be a Relay expr"):
        rewrite(rule(is_op("exp")(_()), lambda *_: None), relay.exp(x))
    with pytest.raises(TypeError, match="partition: expected a pattern, got 'exp'"):
        partition("exp", x)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="needs a callback"):
        DFPatternCallback().callback(x, x, {})


def chain(count: int) -> Any:
    ops = {name: relay.Op(name) for name in ("exp", "add", "tanh")}
    x: Any = relay.var("x", shape=(4,))
    for i in range(count):
        x = relay.Call(ops["exp"], (relay.Call(ops["add"], (x, x)),) if i % 2 else (x,))
    return x


def cost(count: int) -> float:
    program = chain(count)
    out = SUM_EXP.partition(program)
    functions = [n for n in relay.ast.post_order(out) if isinstance(n, relay.Function)]
    assert len(functions) == count // 2
    return seconds(lambda: SUM_EXP.partition(program))


@pytest.mark.longer("programs long enough to tell linear time")
def test_linear_time() -> None:
    cost(100)
    # Ten times would be linear; the rest is for a busy machine.
    assert cost(4000) < 30 * cost(400)


@pytest.mark.longer("programs long enough to tell linear time")
def test_long_programs() -> None:
    out: Any = EXP_LOG.partition(relay.log(relay.exp(chain(100_000))))
    assert out.op.attrs["PartitionedFromPattern"] == "exp_log_"
