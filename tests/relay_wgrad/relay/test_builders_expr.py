"""Expressions, modules, scopes: what is written by hand as one would in Relay 0.19."""

import subprocess
import sys

import numpy as np
import pytest
import tvm

from relay_wgrad import relay
from relay_wgrad.relay import IRModule
from tests.fixtures.relay import inputs


def _read(name):
    return inputs.load(name)[2]


def _single(made, *params):
    return IRModule({"main": relay.Function(list(params), made)})


def _conv_pair(name):
    mod = relay.fromtext(_read(name))
    return {p.name: relay.var(p.name, p.type_annotation) for p in mod["main"].params}


# wgrad_* and convt_*: the builder's arguments beside the operands.
WGRAD = {
    "wgrad_basic": {"padding": (1, 1), "channels": 16},
    "wgrad_asympad": {"padding": (0, 1, 2, 1), "channels": 16},
    "wgrad_depthwise": {"padding": 1, "channels": 8, "groups": 8},
    "wgrad_pr9954": {"padding": (1, 1), "channels": 8},
    "wgrad_stride2_slice": {"strides": 2, "padding": (1, 1), "channels": 16},
}
CONVT = {
    "convt_k3s2op1": {"padding": (1, 1), "output_padding": (1, 1), "kernel_size": (3, 3)},
    "convt_groups": {
        "padding": (1, 1),
        "output_padding": (1, 1),
        "kernel_size": (3, 3),
        "groups": 2,
    },
    "convt_keras2x2": {"channels": 8, "kernel_size": (2, 2)},
    "convt_nhwc": {
        "channels": 8,
        "kernel_size": (2, 2),
        "data_layout": "NHWC",
        "kernel_layout": "HWOI",
    },
}


def _same_as_fixture(mod, name):
    text = _read(name)
    typed = IRModule.from_expr(relay.testing.run_infer_type(mod["main"]))
    assert relay.structural_equal(typed, relay.fromtext(text))
    assert typed.astext() == text


@pytest.mark.parametrize("name", WGRAD)
def test_weight_gradient_fixture(name):
    params = _conv_pair(name)
    made = relay.nn.conv2d_backward_weight(
        params["grad"], params["data"], kernel_size=(3, 3), **WGRAD[name]
    )
    _same_as_fixture(_single(made, *params.values()), name)


@pytest.mark.parametrize("name", CONVT)
def test_transposed_fixture(name):
    params = _conv_pair(name)
    args = {"channels": 4, **CONVT[name]}
    made = relay.nn.conv2d_transpose(params["data"], params["weight"], strides=(2, 2), **args)
    _same_as_fixture(_single(made, *params.values()), name)


def test_smallnet_fixture():
    data = relay.var("data", shape=(2, 3, 16, 16))
    w1, w2 = relay.var("w1", shape=(8, 3, 3, 3)), relay.var("w2", shape=(16, 8, 3, 3))
    b1 = relay.var("b1", shape=(8,))
    x = relay.nn.conv2d(data, w1, padding=(1, 1), channels=8, kernel_size=(3, 3))
    x = relay.nn.relu(relay.nn.bias_add(x, b1))
    x = relay.nn.conv2d(x, w2, strides=(2, 2), padding=(1, 1), channels=16, kernel_size=(3, 3))
    _same_as_fixture(_single(relay.nn.relu(x), data, w1, b1, w2), "smallnet_fwd")


# ---- expressions


def test_the_four_ways_to_write_a_variable():
    a = relay.Var("x", relay.TensorType([1, 2]))
    for b in (
        relay.var("x", relay.TensorType([1, 2])),
        relay.var("x", shape=[1, 2]),
        relay.var("x", shape=(1, 2), dtype="float32"),
    ):
        assert b.type_annotation == a.type_annotation
        assert b.name_hint == "x"
    scalar = relay.var("y", "int64")
    assert scalar.type_annotation == relay.var("y", shape=(), dtype="int64").type_annotation
    assert scalar.type_annotation == relay.scalar_type("int64")
    assert relay.var("z").type_annotation is None
    assert str(a.type_annotation) == "Tensor[(1, 2), float32]"
    assert relay.var("u", shape=(relay.Any(), 3)).type_annotation.shape == (relay.ANY, 3)


@pytest.mark.parametrize(
    ("value", "dtype", "wanted"),
    [
        (1, None, "int32"),
        (1.5, None, "float32"),
        (True, None, "bool"),
        ([1, 2], None, "int32"),
        ([1.0, 2.0], None, "float32"),
        (1, "float16", "float16"),
        (np.ones(3), None, "float32"),
        (np.ones(3), "float64", "float64"),
        (np.ones(3, "int64"), None, "int32"),
        (np.ones(3, "int64"), "int64", "int64"),
        (np.ones(3, "uint8"), None, "uint8"),
        (np.float64(3), None, "float32"),
        (tvm.runtime.tensor(np.ones(3, "float64")), None, "float64"),
    ],
)
def test_const_has_relays_dtype(value, dtype, wanted):
    made = relay.const(value, dtype)
    assert str(made.data.dtype) == wanted
    data = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
    np.testing.assert_array_equal(made.data, data.astype(wanted))


WRONG = [
    (lambda: relay.const("a"), TypeError, "const: expected a number or an array, got 'a'"),
    (lambda: relay.const(None), TypeError, "got None"),
    (lambda: relay.var("x", "float32", (1,)), ValueError, "either type_annotation or shape"),
    (lambda: relay.var("x", 3), TypeError, "must be a Relay type or a dtype, got 3"),
    (lambda: relay.var("x", shape=(1.5,)), TypeError, "a size must be an integer.*1.5"),
    (lambda: relay.var("x", shape=(2,), dtype="flaot"), TypeError, "'x': dtype must be.*'flaot'"),
    (lambda: relay.var("x", "flaot"), TypeError, "dtype must be the name of a dtype"),
    (lambda: relay.TensorType((2,), 3), TypeError, "a dtype must be its name, got 3"),
    (
        lambda: relay.TensorType((relay.Any(), 3)).concrete_shape,
        ValueError,
        r"Tensor\[\(\?, 3\), float32\] has a size",
    ),
    (lambda: relay.var(3), TypeError, "the name must be a string, got 3"),
    (lambda: relay.Function([relay.const(1)], relay.const(1)), TypeError, "must be a Var"),
    (lambda: relay.Function([], 1), TypeError, "Function: the body.*got 1.*relay.const"),
    (
        lambda: relay.Function([], relay.const(1), None, ["t"]),
        TypeError,
        "a type parameter must be a TypeVar, got 't'",
    ),
    (lambda: relay.Let("x", relay.const(1), relay.const(1)), TypeError, "Let: .*got 'x'"),
    (lambda: relay.Tuple([relay.const(1), 2]), TypeError, "Tuple: a field must be"),
    (lambda: relay.Tuple(relay.const(1)), TypeError, "Tuple: a field must be a list"),
    (lambda: relay.If(True, relay.const(1), relay.const(2)), TypeError, "If: cond"),
    (lambda: relay.TupleWrapper(relay.var("t"), 2)[2], IndexError, "field 2 of a tuple of 2"),
    (lambda: relay.TupleWrapper(relay.var("t"), 2).astype("int8"), TypeError, "on a tuple"),
    (lambda: relay.bind(relay.const(1), {"x": relay.const(1)}), TypeError, "variables as keys"),
    (lambda: IRModule({"main": relay.const(1)}), TypeError, "@main must be a Function"),
    (lambda: IRModule({3: relay.const(1)}), TypeError, "@3 must be a Function"),
    (lambda: IRModule().get_global_var("f"), ValueError, "no @f"),
    (lambda: IRModule()["f"], KeyError, "f"),
    (lambda: relay.op.get("nn.konv2d"), ValueError, "unknown Relay operator.*nn.conv2d"),
]


@pytest.mark.parametrize(("make", "error", "message"), WRONG)
def test_wrong_values_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_tuple_wrapper_unpacks_and_stands_for_its_tuple():
    x = relay.var("x", shape=(4, 6))
    parts = relay.split(x, 2, axis=1)
    assert len(parts) == 2
    a, b = parts
    assert (a.index, b.index) == (0, 1)
    assert a.tuple_value is b.tuple_value is parts.astuple()
    function = relay.Function([x], parts)
    assert function.body is parts.astuple()
    assert relay.Tuple([a, parts]).fields[1] is parts.astuple()
    assert "split(%x" in parts.astext()


def test_attributes_by_name_have_defaults_and_as_a_mapping_what_is_written():
    x = relay.var("x", shape=(1, 3, 8, 8))
    made = relay.nn.conv2d(x, relay.var("w"), channels=8, kernel_size=(3, 3))
    assert dict(made.attrs) == {"padding": (0, 0, 0, 0), "channels": 8, "kernel_size": (3, 3)}
    assert made.attrs.data_layout == "NCHW"
    assert made.attrs.get_int("groups") == 1
    assert made.attrs.get_int_tuple("strides") == (1, 1)
    assert made.attrs.get_str("kernel_layout") == "OIHW"
    assert "strides" not in made.attrs
    with pytest.raises(AttributeError, match=r"nn\.conv2d has no attribute nothing"):
        made.attrs.nothing  # noqa: B018
    assert made.op == relay.op.get("nn.conv2d")
    assert made.op != relay.op.get("nn.relu")


def test_function_attributes_make_copies():
    x = relay.var("x", shape=(2,))
    function = relay.Function([x], x)
    other = function.with_attr("Primitive", 1).with_attr({"Compiler": "cudnn"})
    assert dict(other.attrs) == {"Primitive": 1, "Compiler": "cudnn"}
    assert dict(function.attrs) == {}
    assert dict(other.without_attr("Primitive").attrs) == {"Compiler": "cudnn"}
    assert 'Primitive=1, Compiler="cudnn"' in other.astext()


def test_variables_of_an_expression():
    x, y, z = (relay.var(n, shape=(2,)) for n in "xyz")
    let = relay.Let(y, x + z, y * z)
    assert relay.analysis.free_vars(let) == [x, z]
    assert relay.analysis.bound_vars(let) == [y]
    assert relay.analysis.all_vars(let) == [y, x, z]
    assert relay.analysis.free_vars(relay.Function([x], let)) == [z]
    order = []
    relay.analysis.post_order_visit(x + z, order.append)
    assert [type(n).__name__ for n in order] == ["Op", "Var", "Var", "Call"]


def test_bind_replaces_variables_and_drops_parameters():
    x, w = relay.var("x", shape=(2,)), relay.var("w", shape=(2,))
    function = relay.Function([x, w], relay.nn.relu(x * w))
    bound = relay.bind(function, {w: relay.const([1.0, 2.0])})
    assert bound.params == (x,)
    assert not relay.analysis.free_vars(bound)
    by_name = relay.build_module.bind_params_by_name(function, {"w": np.float32([1, 2])})
    assert relay.structural_equal(bound, by_name)
    assert relay.analysis.free_vars(relay.bind(x * w, {x: w})) == [w]
    again = relay.build_module.bind_params_by_name(by_name, {"v": 1, "w": np.float32([3, 4])})
    assert again is by_name or relay.structural_equal(again, by_name)  # as in Relay
    twice = relay.Function([x, relay.var("x", shape=(2,))], x)
    with pytest.raises(ValueError, match="2 parameters 'x'; there are x, x"):
        relay.build_module.bind_params_by_name(twice, {"x": 1})


# ---- modules


def test_module_is_changed_and_functions_are_not():
    x = relay.var("x", shape=(2,))
    mod = IRModule.from_expr(relay.nn.relu(x))
    before = mod["main"]
    mod["main"] = relay.Function([x], relay.tanh(x))
    assert mod["main"] is not before
    assert "tanh" in mod.astext()
    name = relay.GlobalVar("f")
    mod.update_func(name, before)
    assert mod[name] is mod["f"] is before
    assert [v.name_hint for v in mod.get_global_vars()] == ["main", "f"]
    assert "f" in mod
    assert relay.GlobalVar("g") not in mod
    copy = IRModule(mod.functions)
    copy["main"] = before
    assert mod["main"] is not before
    mod.update({"main": before})
    assert mod["main"] is before
    call = mod.get_global_var("f")(x)
    assert relay.astext(IRModule({"main": relay.Function([x], call), "f": before}))


def test_from_expr_takes_free_variables_and_global_symbols():
    x, y = relay.var("x", shape=(2,)), relay.var("y", shape=(2,))
    mod = IRModule.from_expr(y + x)
    assert mod["main"].params == (y, x)
    named = mod["main"].with_attr("global_symbol", "f")
    assert list(IRModule.from_expr(named).functions) == ["f"]


def test_expressions_have_text():
    x = relay.var("x", shape=(2,))
    total = relay.nn.relu(x) + x
    assert str(total) == ("free_var %x: Tensor[(2), float32];\n%0 = nn.relu(%x);\nadd(%0, %x)")
    function = relay.Function([x], total)
    assert function.astext() == (
        '#[version = "0.0.5"]\n'
        "fn (%x: Tensor[(2), float32]) {\n  %0 = nn.relu(%x);\n  add(%0, %x)\n}"
    )
    y = relay.var("y")
    assert str(total * y) == (
        "free_var %x: Tensor[(2), float32];\n%0 = nn.relu(%x);\n%1 = add(%0, %x);\n"
        "free_var %y;\nmultiply(%1, %y)"
    )
    let = relay.Let(relay.var("a"), x, total)
    assert "let %a = %x;\n" in str(let)
    weights = relay.multiply(x, relay.const([1.0, 2.0]))
    assert "#[metadata]" in weights.astext()
    assert "#[metadata]" not in weights.astext(show_meta_data=False)
    assert "#[metadata]" not in str(weights)


def test_scope_builder():
    cond, x = relay.var("cond", "bool"), relay.var("x", shape=(2,))
    sb = relay.ScopeBuilder()
    t = sb.let("t", relay.nn.relu(x))
    with sb.if_scope(cond):
        u = sb.let(("u", relay.TensorType((2,))), relay.tanh(t))
        sb.ret(u)
    with sb.else_scope():
        sb.ret(t)
    mod = IRModule.from_expr(sb.get())
    want = relay.fromtext(
        '#[version = "0.0.5"]\n'
        "def @main(%x: Tensor[(2), float32], %cond: bool) {\n"
        "  let %t = nn.relu(%x);\n"
        "  if (%cond) {\n    let %u: Tensor[(2), float32] = tanh(%t);\n    %u\n  }"
        " else {\n    %t\n  }\n}\n"
    )
    assert relay.structural_equal(mod, want)


def test_scope_builder_says_what_is_missing():
    sb = relay.ScopeBuilder()
    with pytest.raises(RuntimeError, match="ret is not called"):
        sb.get()
    with pytest.raises(RuntimeError, match="else_scope must follow"), sb.else_scope():
        pass
    with sb.if_scope(relay.var("c", "bool")):
        sb.ret(relay.const(1))
    with pytest.raises(RuntimeError, match="no else_scope"):
        sb.get()
    with sb.else_scope():
        sb.ret(relay.const(2))
    with pytest.raises(RuntimeError, match="twice"):
        sb.ret(relay.const(3))


def test_a_script_of_relays_runs_with_other_imports():
    """Build, run, compare with NumPy."""
    batch, units = 4, 3
    data = relay.var("data", shape=(batch, 6))
    weight = relay.var("weight", shape=(units, 6))
    net = relay.nn.dense(data, weight, units=units)
    net = relay.nn.softmax(relay.maximum(net, relay.const(0.0)) * relay.const(2.0))
    mod = IRModule.from_expr(relay.Function(relay.analysis.free_vars(net), net))
    rng = np.random.default_rng(0)
    w, x = (rng.standard_normal(s).astype("float32") for s in ((units, 6), (batch, 6)))
    lib = relay.build(mod, target="llvm", params={"weight": w})
    module = relay.graph_executor.GraphModule(lib["default"](tvm.cpu()))
    module.set_input("data", x)
    module.run()
    y = np.exp(2 * np.maximum(x @ w.T, 0))
    np.testing.assert_allclose(module.get_output(0).numpy(), y / y.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.longer("programs long enough to tell linear time")
def test_long_chains_are_built_and_printed():
    x = relay.var("x", shape=(2,))
    node = x
    for _ in range(100_000):
        node = node + x
    mod = IRModule.from_expr(node)
    assert mod.astext().count("add(") == 100_000
    assert str(node).count("add(") == 100_000
    assert relay.bind(mod["main"], {x: relay.const([1.0, 2.0])}).params == ()


@pytest.mark.longer("a process; of the whole package stays")
def test_importing_registers_nothing_with_tvm():
    code = (
        "import tvm; before = set(tvm.ir.Op.list_op_names());"
        "import relay_wgrad.relay;"
        "assert set(tvm.ir.Op.list_op_names()) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
