"""Relay's passes: what each makes of a program, and that the program stays the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.text import astext, fromtext
from tests.support.relay.modules import VECTOR, equal, of_vectors, outputs, typed
from tests.support.relay.texts import call_chain, fixture_text

# (pass, before, after)
CASES: list[tuple[T.Pass, str, str]] = [
    (T.ToGraphNormalForm(),
     "let %a = exp(%x); let %b = add(%a, %a); let %c = %b; multiply(%c, %b)",
     "%0 = exp(%x); %1 = add(%0, %0); multiply(%1, %1)"),
    (T.ToGraphNormalForm(),
     "let %a = exp(%x); if (True) { let %b = log(%a); %b } else { %a }",
     "%0 = exp(%x); if (True) { log(%0) } else { %0 }"),
    (T.ToANormalForm(),
     "%0 = exp(%x); (multiply(%0, %0), %0).0",
     "let %a = exp(%x); let %b = multiply(%a, %a); let %c = (%b, %a); let %d = %c.0; %d"),
    (T.ToANormalForm(),
     "let %a = (let %b = exp(%x); add(%b, 1f)); %a",
     "let %b = exp(%x); let %o = 1f; let %a = add(%b, %o); %a"),
    (T.ToANormalForm(),
     "%0 = exp(%x); if (True) { add(%0, %0) } else { log(%y) }",
     ("let %t = True; let %r = if (%t) { let %e = exp(%x); let %a = add(%e, %e); %a }"
     " else { let %l = log(%y); %l }; %r")),
    (T.EliminateCommonSubexpr(),
     "(add(exp(%x), 1f), add(exp(%x), 1f), add(exp(%x), 2f), sum(%x), sum(%x, axis=[0]))",
     "%0 = exp(%x); %1 = add(%0, 1f); (%1, %1, add(%0, 2f), sum(%x), sum(%x, axis=[0]))"),
    (T.EliminateCommonSubexpr(),
     "(split(%x, indices_or_sections=3).0, split(%x, indices_or_sections=3).0)",
     "%0 = split(%x, indices_or_sections=3).0; (%0, %0)"),
    (T.EliminateCommonSubexpr(),
     "(concatenate((%x, %y)), concatenate((%x, %y)), concatenate((%y, %x)))",
     "%0 = concatenate((%x, %y)); (%0, %0, concatenate((%y, %x)))"),
    # As in Relay.
    (T.EliminateCommonSubexpr(),
     '(zeros(shape=[3], dtype="float32"), zeros(shape=[3], dtype="float32"))',
     '(zeros(shape=[3], dtype="float32"), zeros(shape=[3], dtype="float32"))'),
    (T.EliminateCommonSubexpr(lambda node: node.op == relay.Op("exp")),
     "(exp(%x), exp(%x), log(%x), log(%x))",
     "%0 = log(%x); (exp(%x), exp(%x), %0, %0)"),
    (T.DeadCodeElimination(),
     "let %a = exp(%x); let %b = log(%a); let %c = add(%a, %x); %c",
     "let %a = exp(%x); let %c = add(%a, %x); %c"),
    (T.DeadCodeElimination(inline_once=True),
     "let %a = exp(%x); let %b = log(%x); let %c = add(%a, %a); negative(%c)",
     "let %a = exp(%x); negative(add(%a, %a))"),
    (T.DeadCodeElimination(inline_once=True),
     f"let %f = fn (%p: {VECTOR}) {{ let %q = exp(%p); %q }}; add(%f(%x), %f(%y))",
     f"let %f = fn (%p: {VECTOR}) {{ exp(%p) }}; add(%f(%x), %f(%y))"),
    (T.SimplifyExpr(),
     "add(zeros_like(%x), multiply(divide(subtract(%y, 0f), ones_like(%y)), 1f))", "%y"),
    (T.SimplifyExpr(),
     "(subtract(0f, %x), reshape_like(%x, %y), broadcast_to_like(1f, %x), add(0f, zeros_like(%x)))",
     ('(subtract(0f, %x), reshape(%x, newshape=[3]), broadcast_to(1f, shape=[3]),'
     ' zeros(shape=[3], dtype="float32"))')),
    # The result's shape is the other's.
    (T.SimplifyExpr(),
     'add(sum(%x), zeros(shape=[3], dtype="float32"))',
     'add(sum(%x), zeros(shape=[3], dtype="float32"))'),
    (T.FoldConstant(),
     "multiply(%x, add(exp(0f), 2f))", "multiply(%x, 3f)"),
    (T.FoldConstant(),
     "let %a = multiply(2f, 3f); let %b = add(%a, 1f); let %c = exp(%x); (multiply(%c, %b), %a)",
     "let %c = exp(%x); (multiply(%c, 7f), 6f)"),
    (T.FoldConstant(),
     "if (less(1f, 2f)) { exp(%x) } else { log(%x) }", "exp(%x)"),
    (T.FoldConstant(), "(%x, exp(%y)).1", "exp(%y)"),
    (T.FoldConstant(),
     'add(%x, zeros(shape=[3], dtype="float32"))', 'add(%x, zeros(shape=[3], dtype="float32"))'),
    (T.CanonicalizeOps(),
     "nn.bias_add(%x, %y, axis=0)", "add(%x, %y)"),
    (T.CanonicalizeOps(),
     "nn.bias_add(reshape(%x, newshape=[1, 3, 1, 1]), %y)",
     "add(reshape(%x, newshape=[1, 3, 1, 1]), expand_dims(%y, axis=1, num_newaxis=2))"),
    (T.SimplifyInference(), "nn.dropout(exp(%x)).0", "exp(%x)"),
    (T.SimplifyInference(),
     "nn.l2_normalize(%x, eps=0.5f, axis=[0])",
     "divide(%x, sqrt(maximum(sum(multiply(%x, %x), axis=[0], keepdims=True), 0.5f)))"),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(CASES)))
@pytest.mark.usefixtures("registered")
def test_what_a_pass_makes(index: int) -> None:
    pass_, before, after = CASES[index]
    got = pass_(typed(of_vectors(before)))
    assert equal(got, of_vectors(after)), astext(got)
    assert equal(pass_(got), of_vectors(after)), "not idempotent"


def test_relays_own_normal_form() -> None:
    """`_gnf` of one is ToGraphNormalForm, of the other SimplifyExpr then."""
    gnf = T.ToGraphNormalForm()(fromtext(fixture_text("resnet8_cifar_grad")))
    assert relay.structural_equal(gnf, fromtext(fixture_text("resnet8_cifar_grad_gnf")))
    passes = [T.ToGraphNormalForm(), T.SimplifyExpr(), T.EliminateCommonSubexpr()]
    with T.PassContext(opt_level=3):
        gnf = T.Sequential(passes)(fromtext(fixture_text("smallnet_grad")))
    assert relay.structural_equal(gnf, fromtext(fixture_text("smallnet_grad_gnf")))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_normal_forms_of_any_graph(data: st.DataObject) -> None:
    """To lets and back is the same graph, sharing included; and nothing changes a clean one."""
    vector = relay.TensorType((3,), "float32")
    params = [relay.Var(name, vector, checked_type=vector) for name in "xy"]
    nodes: list[relay.Expr] = list(params)
    for _ in range(data.draw(st.integers(1, 12))):
        a, b = (data.draw(st.sampled_from(nodes)) for _ in range(2))
        made = data.draw(st.integers(0, 4))
        if made == 0:
            nodes.append(relay.negative(a))
        elif made == 1:
            nodes.append(relay.add(a, b))
        elif made == 2:
            nodes.append(relay.TupleGetItem(relay.Tuple((a, b)), 1))
        elif made == 3:
            nodes.append(relay.multiply(a, relay.const(2.0, "float32")))
        else:
            condition = relay.less(relay.sum(a), relay.const(0.0, "float32"))
            nodes.append(relay.If(condition, a, relay.exp(b)))
    function = relay.Function(tuple(params), relay.Tuple((nodes[-1], nodes[len(nodes) // 2])))
    graph = T.ToGraphNormalForm()(relay.IRModule({"main": function}))
    lets = T.ToANormalForm()(graph)
    assert relay.structural_equal(fromtext(astext(lets)), lets)
    assert relay.structural_equal(T.DeadCodeElimination()(lets), lets)
    branches = any(isinstance(n, relay.If) for n in relay.ast.post_order(function))
    if not branches:  # what two branches share is in both
        assert relay.structural_equal(T.ToGraphNormalForm()(lets), graph)
    shared = T.EliminateCommonSubexpr()(graph)
    assert relay.structural_equal(T.EliminateCommonSubexpr()(shared), shared)


def test_a_let_that_two_branches_share() -> None:
    text = of_vectors(
        "%0 = (let %a = exp(%x); add(%a, %a)); if (True) { %0 } else { negative(%0) }"
    )
    normal = T.ToANormalForm()(typed(text))
    assert relay.structural_equal(fromtext(astext(normal)), normal)
    assert equal(
        normal,
        of_vectors(
            "let %t = True; let %r = if (%t) { let %a = exp(%x); let %b = add(%a, %a); %b } else"
            " { let %c = exp(%x); let %d = add(%c, %c); let %e = negative(%d); %e }; %r"
        ),
    )


NORMS = """def @main(%x: Tensor[(2, 4, 3, 3), float32], %g: Tensor[(4), float32],
  %b: Tensor[(4), float32], %m: Tensor[(4), float32], %v: Tensor[(4), float32]) {
  %0 = nn.batch_norm(%x, %g, %b, %m, %v, scale=False);
  %1 = nn.batch_norm(%x, %g, %b, %m, %v, center=False, epsilon=0.1f);
  %2 = transpose(%x, axes=[0, 2, 3, 1]);
  (%0.0, %0.1, %1.0, nn.batch_norm(%2, %g, %b, %m, %v, axis=-1).0,
   nn.layer_norm(%2, %g, %b), nn.layer_norm(%x, %g, %b, axis=1, scale=False),
   nn.instance_norm(%x, %g, %b), nn.group_norm(%x, %g, %b, num_groups=2),
   nn.l2_normalize(%x, eps=0.01f, axis=[1]))
}"""


@pytest.mark.usefixtures("registered")
def test_simple_operators_give_the_same_numbers() -> None:
    rng = np.random.default_rng(0)
    inputs = {n: (rng.random(4) + 0.5).astype("float32") for n in "gbmv"}
    inputs["x"] = rng.standard_normal((2, 4, 3, 3)).astype("float32")
    mod = typed(NORMS)
    simple = T.SimplifyInference()(mod)
    names = {
        n.op.name
        for n in relay.ast.post_order(simple["main"])
        if isinstance(n, relay.Call) and isinstance(n.op, relay.Op)
    }
    # The moving mean is still asked for.
    assert {n for n in names if "norm" in n} == {"nn.batch_norm"}
    for ours, theirs in zip(outputs(simple, inputs), outputs(mod, inputs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("registered")
def test_folded_tuples_and_dtypes() -> None:
    array = relay.Constant(np.arange(6, dtype="float64"))
    parts = relay.Call(relay.Op("split"), (array,), {"indices_or_sections": 2})
    function = relay.Function((), relay.Tuple((parts, relay.TupleGetItem(parts, 1))))
    folded = T.FoldConstant()(relay.IRModule({"main": function}))["main"].body
    assert isinstance(folded, relay.Tuple)
    whole, second = folded.fields
    assert isinstance(whole, relay.Tuple)
    assert isinstance(second, relay.Constant)
    for got, want in zip((*whole.fields, second), ([0, 1, 2], [3, 4, 5], [3, 4, 5]), strict=True):
        assert isinstance(got, relay.Constant)
        assert (got.data.dtype, got.data.tolist()) == (np.float64, want)


def test_kernels_are_left_alone() -> None:
    """A function marked Primitive is one operator's kernel."""
    text = f"""def @main(%x: {VECTOR}) {{
      %0 = fn (%p: {VECTOR}, Primitive=1) {{ add(%p, exp(0f)) }};
      %0(%x)
    }}"""
    for pass_ in (T.FoldConstant(), T.EliminateCommonSubexpr()):
        assert equal(pass_(typed(text)), text)
    normal = T.ToANormalForm()(typed(text))
    bound = normal["main"].body
    assert isinstance(bound, relay.Let)
    assert relay.structural_equal(bound.value, typed(text)["main"].body.op)


def test_unused_functions() -> None:
    text = f"""def @c(%x: {VECTOR}) {{ %x }}
    def @b(%x: {VECTOR}) {{ @c(%x) }}
    def @main(%x: {VECTOR}) {{ @b(%x) }}
    def @other(%x: {VECTOR}) {{ @c(%x) }}"""
    mod = typed(text)
    assert list(T.RemoveUnusedFunctions()(mod).functions) == ["c", "b", "main"]
    assert list(T.RemoveUnusedFunctions(["other"])(mod).functions) == ["c", "other"]
    with pytest.raises(ValueError, match=r"no function @none; there are c, b, main, other"):
        T.RemoveUnusedFunctions(["none"])(mod)


# ---- sequences and passes of one's own ---------------------------------------------------------


def test_levels_and_names() -> None:
    seen: list[str] = []

    def passing(name: str, level: int) -> T.Pass:
        @T.module_pass(opt_level=level, name=name)
        def note(mod: relay.IRModule, context: T.PassContext) -> relay.IRModule:
            seen.append(name)
            return mod

        assert isinstance(note, T.Pass)
        return note

    one, two, three = (passing(name, i + 1) for i, name in enumerate(("one", "two", "three")))
    seq = T.Sequential([one, T.Sequential([two]), three])
    mod = typed(of_vectors("%x"))
    for context, expected in (
        (T.PassContext(opt_level=2), ["one", "two"]),
        (T.PassContext(opt_level=3), ["one", "two", "three"]),
        (T.PassContext(opt_level=0, required_pass=["three"]), ["three"]),
        (T.PassContext(opt_level=3, disabled_pass=["two"]), ["one", "three"]),
        (tvm.transform.PassContext(opt_level=1), ["one"]),
    ):
        seen.clear()
        with context:
            seq(mod)
        assert seen == expected
    seen.clear()
    with T.PassContext(opt_level=0):
        three(mod)  # called by itself a pass runs
    assert seen == ["three"]
    assert repr(three) == "Pass(three, opt_level=3)"
    assert T.FoldConstant().info == T.PassInfo("FoldConstant", 2, ("InferType",))


def test_function_passes() -> None:
    @T.function_pass(opt_level=1)
    def twice(function: relay.Function, mod: relay.IRModule, context: object) -> relay.Function:
        return relay.Function(function.params, function.body + function.body)

    got = twice(typed(of_vectors("exp(%x)")))
    assert equal(got, of_vectors("%0 = exp(%x); add(%0, %0)"))
    assert got["main"].body.checked_type == relay.TensorType((3,), "float32")

    @T.function_pass(opt_level=1, name="Replace")
    class Replace:
        def __init__(self, name: str) -> None:
            self.name = name

        def transform_function(self, function: relay.Function, mod: Any, ctx: Any) -> Any:
            return relay.Function(
                function.params, relay.Call(relay.Op(self.name), (function.params[0],))
            )

    replace = Replace("log")
    assert replace.info.name == "Replace"
    assert equal(replace(typed(of_vectors("%x"))), of_vectors("log(%x)"))


def test_misuse_of_passes() -> None:
    with pytest.raises(TypeError, match="InferType: expected a Relay IRModule, got Function"):
        T.InferType()(typed(of_vectors("%x"))["main"])
    with pytest.raises(TypeError, match="expected Relay passes, got <function"):
        T.Sequential([T.InferType])
    with pytest.raises(ValueError, match="a pass needs an opt_level"):
        T.module_pass(lambda mod, ctx: mod)
    wrong = T.module_pass(lambda mod, ctx: None, opt_level=0, name="Wrong")
    with pytest.raises(TypeError, match="Wrong: a pass must give a Relay IRModule, got NoneType"):
        wrong(typed(of_vectors("%x")))
    wrong = T.function_pass(lambda f, mod, ctx: f.body, opt_level=0, name="Wrong")
    with pytest.raises(TypeError, match="must give a function for @main, got Var"):
        wrong(typed(of_vectors("%x")))


def test_depth_costs_no_stack() -> None:
    mod = fromtext(call_chain(1500).replace("%x)", f"%x: {VECTOR})", 1))
    graph = T.InferType()(mod)
    normal = T.ToANormalForm()(mod)
    for pass_ in (
        T.SimplifyInference(), T.SimplifyExpr(), T.EliminateCommonSubexpr(), T.FoldConstant(),
        T.CanonicalizeOps(), T.DeadCodeElimination(inline_once=True), T.ToGraphNormalForm(),
    ):  # fmt: skip
        assert relay.structural_equal(pass_(graph), graph)
    for pass_ in (T.ToGraphNormalForm(), T.DeadCodeElimination(inline_once=True)):
        assert relay.structural_equal(pass_(normal), graph)
