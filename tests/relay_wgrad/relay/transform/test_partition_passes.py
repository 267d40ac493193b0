"""From a pattern table to functions of another compiler, and the build after that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.dataflow_pattern import is_op, wildcard
from relay_wgrad.relay.op.contrib import (
    get_pattern_table,
    register_pattern_table,
    unregister_pattern_table,
)
from tests.support.relay.cutlass_table import cutlass_table
from tests.support.relay.fixtures import load
from tests.support.relay.modules import close, of_body, outputs
from tests.support.relay.texts import fixture_text
from tests.support.timing import seconds

_ = wildcard
V = "Tensor[(4), float32]"
PARAMS = f"%x: {V}, %y: {V}"
CONVS = ("nn.conv2d", "nn.conv2d_transpose", "nn.conv2d_backward_weight")
ALONE = [(f"mine.{op}", is_op(op)(_(), _())) for op in CONVS]


def equal(a: relay.IRModule, b: relay.IRModule) -> bool:
    return bool(relay.structural_equal(a, T.InferType()(b)))


def partitioned(mod: relay.IRModule, table: Any, compiler: str, **options: Any) -> relay.IRModule:
    passes = [
        T.MergeComposite(table),
        T.AnnotateTarget(compiler, include_non_call_ops=False),
        T.PartitionGraph(**options),
    ]
    return T.Sequential(passes)(mod)


# ---- against Relay --------------------------------------------------------------------------


def test_what_relay_printed() -> None:
    """The whole of `partition_for_cutlass`, character for character but for origins."""
    mod = relay.fromtext(fixture_text("smallnet_grad_nhwc"))
    out = partitioned(mod, cutlass_table(), "cutlass", bind_constants=False)
    wanted = fixture_text("smallnet_grad_nhwc_cutlass")
    assert relay.structural_equal(out, relay.fromtext(wanted))

    def code(text: str) -> str:
        return re.sub(r" span=[\w:]+", "", text.partition("#[metadata]")[0])

    assert code(relay.astext(out)) == code(wanted)


@pytest.mark.longer_cases("resnet8", why="whole networks; smaller ones stay")
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", ["smallnet_grad", "resnet8_cifar_grad"])
def test_from_text_to_numbers(name: str) -> None:
    """Every convolution in a region of its own, and the same numbers from TVM's kernels."""
    inputs, want, text = load(name)
    layouts = {
        "nn.conv2d": ["NHWC", "OHWI"],
        "nn.conv2d_transpose": ["NHWC", "IHWO"],
        "nn.conv2d_backward_weight": ["NHWC", "OHWI"],
    }
    passes = [T.ToGraphNormalForm(), T.EliminateCommonSubexpr(), T.ConvertLayout(layouts)]
    with T.PassContext(opt_level=3):
        mod = T.Sequential(passes)(relay.fromtext(text))
    calls = [n for n in relay.ast.post_order(mod["main"]) if _operator(n) in CONVS]
    table = [row for row in cutlass_table() if "conv2d" in row[0]]
    out = partitioned(mod, table, "cutlass", bind_constants=False)
    regions = [f for f in out.functions.values() if f.attrs.get("Compiler") == "cutlass"]
    assert len(regions) == len(calls)
    assert not any(_operator(n) in CONVS for n in relay.ast.post_order(out["main"]))
    for f in regions:
        assert {"nn.conv2d", "nn.conv2d_transpose", "nn.conv2d_backward_weight"} & {
            _operator(n) for n in relay.ast.post_order(f)
        }
    # Partitioning again changes nothing, and the text comes back.
    assert equal(partitioned(out, table, "cutlass"), out)
    assert relay.structural_equal(relay.fromtext(relay.astext(out)), out)
    with pytest.warns(UserWarning, match=f"compute {len(regions)} functions of another compiler"):
        got = outputs(out, inputs)
    assert want is not None
    assert close(got, want)


def _operator(node: Any) -> str | None:
    is_call = isinstance(node, relay.Call) and isinstance(node.op, relay.Op)
    return node.op.name if is_call else None


# ---- pass by pass ---------------------------------------------------------------------------


def test_larger_rows_come_first_and_checks_decide() -> None:
    add = is_op("add")(_(), _())
    table = [
        ("mine.sum_exp", is_op("exp")(add)),
        ("mine.sum", add, lambda c: c.args[0] != c.args[1]),
    ]
    out = T.MergeComposite(table)(of_body("(exp(add(%x, %y)), add(%x, %y), add(%x, %x))", PARAMS))
    calls = out["main"].body.fields
    assert [c.op.attrs["Composite"] for c in calls[:2]] == ["mine.sum_exp", "mine.sum"]
    assert calls[2].op.name == "add"
    assert calls[0].op.checked_type.ret_type == relay.TensorType((4,), "float32")


def marks(node: Any) -> list[str]:
    return [
        f"{n.op.name.removeprefix('annotation.compiler_')} {n.attrs.compiler}"
        for n in relay.ast.post_order(node)
        if (_operator(n) or "").startswith("annotation")
    ]


@pytest.fixture
def takes() -> Iterator[Any]:
    """Sets `target.<compiler>` of operators for one test."""
    done: list[tuple[str, str]] = []

    def add(compiler: str, *ops: str) -> None:
        for op in ops:
            relay.op.register_op_attr(op, f"target.{compiler}", lambda call: True)
            done.append((op, f"target.{compiler}"))

    yield add
    for op, key in done:
        relay.op.get(op).reset_attr(key)


def test_annotate(takes: Any) -> None:
    takes("a", "exp", "tanh")

    @relay.op.register_op_attr("add", "target.b")
    def _add(call: Any) -> bool:
        return bool(call.args[0].checked_type.shape == (4,))

    mod = of_body("add(exp(%x), log(%y))", PARAMS)
    out = T.AnnotateTarget(["a", "b"])(mod)
    assert marks(out["main"]) == [
        "begin a", "end a", "begin b", "begin default", "end default", "begin b", "end b",
    ]  # fmt: skip
    # One after the other is the same as both at once.
    apart = T.AnnotateTarget("b")(T.AnnotateTarget("a")(mod))
    assert relay.structural_equal(apart, out)
    assert equal(T.AnnotateTarget(["a", "b"])(out), out)
    relay.op.get("add").reset_attr("target.b")


@pytest.mark.parametrize("non_calls", [False, True])
def test_tuples(takes: Any, non_calls: bool) -> None:
    """A tuple belongs to its fields' compiler, or to none."""
    takes("a", "exp", "concatenate")
    mod = of_body("sum(concatenate((exp(%x), exp(%y))))", PARAMS)
    annotated = T.AnnotateTarget("a", non_calls)(mod)
    merged = T.PartitionGraph()(T.MergeCompilerRegions()(annotated))
    functions = [f for f in merged.functions.values() if "Compiler" in f.attrs]
    assert len(functions) == (1 if non_calls else 3)
    with pytest.warns(UserWarning, match="no compiler a is registered"):
        (got,) = outputs(merged, {"x": np.ones(4, "f"), "y": np.zeros(4, "f")})
    np.testing.assert_allclose(got, 4 * np.e + 4, rtol=1e-5)


# (program, the operators of each function of compiler a): exp, tanh, add, split are a's.
MERGED: list[tuple[str, list[list[str]]]] = [
    ("exp(tanh(exp(%x)))", [["exp", "tanh", "exp"]]),
    ("exp(log(exp(%x)))", [["exp"], ["exp"]]),
    # What log needs can't run together with what needs log.
    ("%0 = exp(%x); add(tanh(%0), log(%0))", [["exp", "tanh"], ["add"]]),
    ("%0 = exp(%x); %1 = tanh(%0); add(add(%1, log(%y)), %0)", [["exp", "tanh", "add", "add"]]),
    ("%0 = exp(%x); %1 = log(%0); add(exp(%1), tanh(%0))", [["exp", "tanh"], ["exp", "add"]]),
    # Two results; one used by several.
    ("%0 = exp(%x); %1 = tanh(%0); (log(%0), log(%1))", [["exp", "tanh"]]),
    ("%0 = exp(%x); (log(%0), log(%0), %0)", [["exp"]]),
    # Over a tuple, a let, an if.
    ("%0 = exp(%x); %1 = (%0, log(%0)); add(%0, %1.1)", [["exp"], ["add"]]),
    ("%0 = exp(%x); let %a = log(%0); add(%0, %a)", [["exp"], ["add"]]),
    ("%0 = exp(%x); let %a = %0; add(%0, %a)", [["exp"], ["add"]]),
    ("%0 = exp(%x); if (less(sum(%0), 1f)) { tanh(%0) } else { log(%0) }", [["exp", "tanh"]]),
    # Not into a scope from outside of it.
    ("%0 = exp(%x); (%0, (let %a = log(%y); add(%0, %a)))", [["exp"], ["add"]]),
    ("%0 = exp(%x); let %a = log(%y); let %b = log(%x); add(tanh(%0), add(%b, %a))",
     [["exp", "tanh"], ["add", "add"]]),
    ("let %a = exp(%x); let %b = tanh(%a); log(%b)", [["exp"], ["tanh"]]),
    ("exp(zeros(shape=[4], dtype=\"float32\"))", [["exp"]]),
    ("%0 = split(%x, indices_or_sections=2); add(%0.0, %0.1)", [["split", "add"]]),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(MERGED)))
def test_merged_regions(takes: Any, index: int) -> None:
    body, wanted = MERGED[index]
    takes("a", "exp", "tanh", "add", "split")
    mod = of_body(body, PARAMS)
    annotated = T.AnnotateTarget("a")(mod)
    out = T.PartitionGraph()(T.MergeCompilerRegions()(annotated))
    found = [
        [name for n in relay.ast.post_order(f) if (name := _operator(n))]
        for f in out.functions.values()
        if f.attrs.get("Compiler") == "a"
    ]
    assert sorted(map(sorted, found)) == sorted(map(sorted, wanted))
    assert marks(out["main"]) == []
    if "if (" not in body:
        given = {"x": np.array([0.1, 0.7, 0.3, 0.5], "f"), "y": np.array([1, 2, 3, 4], "f")}
        given = {p.name: given[p.name] for p in mod["main"].params}
        with pytest.warns(UserWarning, match="another compiler"):
            got = outputs(out, given)
        assert close(got, outputs(mod, given))


def test_names_constants_and_several_functions(takes: Any) -> None:
    takes("my-a", "add")
    constant = relay.const(np.arange(4, dtype="float32"))
    x, y = relay.var("x", shape=(4,)), relay.var("y", shape=(4,))
    other = relay.Function((x,), x + x)
    main = relay.Function((y,), relay.log(y + constant) + relay.GlobalVar("other-one")(y))
    mod = relay.IRModule({"main": main, "other-one": other})
    bound = T.PartitionGraph(mod_name="net")(T.AnnotateTarget("my-a")(mod))
    names = ["main", "other-one", "tvmgen_net_my_a_main_0", "tvmgen_net_my_a_main_2",
             "tvmgen_net_my_a_other_one_0"]  # fmt: skip
    assert list(bound.functions) == names
    function = bound["tvmgen_net_my_a_main_0"]
    assert dict(function.attrs) == {
        "Compiler": "my-a", "Primitive": 1, "Inline": 1, "global_symbol": "tvmgen_net_my_a_main_0",
    }  # fmt: skip
    assert [p.name for p in function.params] == ["my-a_0_i0"]
    free = T.PartitionGraph(bind_constants=False)(T.AnnotateTarget("my-a")(mod))
    assert len(free["tvmgen_default_my_a_main_0"].params) == 2
    given = {"y": np.array([1, 2, 3, 4], "f")}
    with pytest.warns(UserWarning, match="compute 3 functions of another compiler"):
        assert close(outputs(bound, given), outputs(mod, given))


def test_marks_by_hand() -> None:
    begin, end = relay.annotation.compiler_begin, relay.annotation.compiler_end
    x, y = relay.var("x", shape=(4,)), relay.var("y", shape=(4,))
    shared = begin(x, "a")
    both = relay.Function((x,), relay.Tuple((end(relay.exp(shared), "a"), end(shared, "a"))))
    out = T.PartitionGraph()(relay.IRModule({"main": both}))
    assert isinstance(out["tvmgen_default_a_main_0"].body, relay.Tuple)
    bad = [
        (end(relay.exp(x), "a"), "compiler_end of a without a compiler_begin"),
        (end(relay.exp(begin(x, "b")), "a"), "compiler_end of a in a region of b"),
        (end(begin(x, "a") + y, "a"), r"an operand without compiler_begin: Var\(%y\)"),
        (end(begin(x, "a") + begin(y, "b"), "a"), "regions of a and b meet in one operator"),
    ]
    for expr, message in bad:
        for pass_ in (T.PartitionGraph(), T.MergeCompilerRegions()):
            with pytest.raises(ValueError, match=message):
                pass_(relay.IRModule({"main": relay.Function((x, y), expr)}))
    # A region that needs what it makes.
    first = relay.exp(begin(x, "a"))
    second = begin(relay.log(end(first, "a")), "a")
    circle = end(first + second, "a")
    with pytest.raises(ValueError, match="its marks make a circle"):
        T.PartitionGraph()(relay.IRModule({"main": relay.Function((x,), circle)}))


# ---- tables ---------------------------------------------------------------------------------


def test_pattern_tables() -> None:
    assert get_pattern_table("nobody") is None

    @register_pattern_table("mine")
    def table() -> list[Any]:
        return ALONE

    try:
        assert table() == ALONE
        assert get_pattern_table("mine") == ALONE
        register_pattern_table("mine", lambda: ALONE[:1])
        assert relay.op.contrib.get_pattern_table("mine") == ALONE[:1]
    finally:
        unregister_pattern_table("mine")
    assert get_pattern_table("mine") is None


def test_misuse() -> None:
    row = ("mine.exp", is_op("exp")(_()))
    for table, match in (
        (None, "a pattern table is a list of rows, got None"),
        ([row, "mine.exp"], r"a row is \(name, pattern\) or \(name, pattern, check\), got 'mine"),
        ([(1, row[1])], "a row is"),
        ([("mine.exp", "exp")], "a row is"),
        ([(*row, 3)], "a row is"),
    ):
        with pytest.raises(TypeError, match=match):
            T.MergeComposite(table)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=match):
            register_pattern_table("mine", lambda table=table: table)
    with pytest.raises(TypeError, match="mine: the table must be a function"):
        register_pattern_table("mine", [row])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a compiler's name, got 3"):
        register_pattern_table(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a target is a compiler's name, got 3"):
        T.AnnotateTarget([3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="unknown Relay operator 'exq'"):
        relay.op.register_op_attr("exq", "target.a", lambda call: True)
    relay.op.register_op_attr("exp", "target.a", True)
    with pytest.raises(TypeError, match=r"target\.a of exp must be a function of a call, got True"):
        T.AnnotateTarget("a")(of_body("exp(%x)", PARAMS))
    relay.op.get("exp").reset_attr("target.a")


# ---- size -----------------------------------------------------------------------------------


def repeated(times: int) -> relay.IRModule:
    """The gradient of resnet8_cifar, several times side by side, in one function."""
    one = relay.fromtext(fixture_text("resnet8_cifar_grad_nhwc"))["main"]
    params: list[Any] = []
    bodies = []
    for i in range(times):
        new = {p: relay.var(f"{p.name}_{i}", p.type_annotation) for p in one.params}
        params += new.values()
        bodies.append(relay.bind(relay.Function((), one.body), new).body)
    return T.InferType()(relay.IRModule({"main": relay.Function(params, relay.Tuple(bodies))}))


def costs(mod: relay.IRModule) -> list[float]:
    """What each pass takes."""
    found = []
    for pass_ in (
        T.MergeComposite(cutlass_table()), T.AnnotateTarget("cutlass"), T.MergeCompilerRegions(),
        T.PartitionGraph(),
    ):  # fmt: skip
        found.append(seconds(lambda pass_=pass_, mod=mod: pass_(mod), 2))
        mod = pass_(mod)
    assert sum("Compiler" in f.attrs for f in mod.functions.values()) % 33 == 0
    return found


@pytest.mark.longer("programs long enough to tell linear time")
def test_linear_time() -> None:
    small, large = costs(repeated(1)), costs(repeated(3))
    # Three times would be linear; the rest is for a busy machine.
    assert all(b < 12 * a for a, b in zip(small, large, strict=True)), (small, large)


def test_long_chains(takes: Any) -> None:
    """Neither deep recursion, nor much memory where regions alternate."""
    takes("a", "exp")
    x: Any = relay.var("x", shape=(4,))
    node = x
    for i in range(2000):
        node = relay.Call(relay.Op("exp" if i % 2 else "tanh"), (node,))
    mod = relay.IRModule({"main": relay.Function((x,), node)})
    merged = T.MergeCompilerRegions()(T.AnnotateTarget("a")(mod))
    out = T.PartitionGraph()(T.MergeComposite([("a.tanh", is_op("tanh")(_()))])(merged))
    assert len(out.functions) == 1001


def test_a_compilers_own_pass_changes_its_functions() -> None:
    """It gets them without attributes, which would keep other passes from them."""

    def optimize(mod: Any) -> Any:
        return relay.transform.FoldConstant()(mod)

    x, one = relay.var("x", shape=(2, 2)), relay.const(np.ones((2, 2), "float32"))
    begun = [relay.annotation.compiler_begin(one, "own") for _ in range(2)]
    end = relay.annotation.compiler_end(relay.add(*begun), "own")
    mod = relay.transform.InferType()(relay.IRModule.from_expr(relay.multiply(end, x)))
    tvm.register_global_func("relay.ext.own.optimize", optimize, override=True)
    try:
        made = relay.transform.PartitionGraph()(mod)["tvmgen_default_own_main_0"]
        tvm.register_global_func("relay.ext.own.optimize", lambda mod: None, override=True)
        with pytest.raises(ValueError, match=r"relay.ext.own.optimize must give a Relay module"):
            relay.transform.PartitionGraph()(mod)
    finally:
        tvm_ffi.registry.remove_global_func("relay.ext.own.optimize")
    np.testing.assert_array_equal(made.body.data, np.full((2, 2), 2))
    assert made.attrs["Compiler"] == "own"
