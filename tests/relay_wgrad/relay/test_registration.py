"""Users' operators: registered, parsed, printed, typed, built, run, differentiated, removed."""

import numpy as np
import pytest
import tvm
from tvm import te

from relay_wgrad import relay
from relay_wgrad.relay import IRModule
from relay_wgrad.relay.records import REGISTRY, hooks

NAME = "test.scale"
TEXT = """#[version = "0.0.5"]
def @main(%x: Tensor[(2, 3), float32]) {
  test.scale(%x, factor=3f)
}
"""


def _scaled(args, attrs):
    if not isinstance(args[0], relay.TensorType):
        raise TypeError(f"{NAME}: data must be a tensor, got {args[0]}")
    return relay.TensorType(args[0].shape, args[0].dtype)


def _compute(attrs, inputs, out_type):
    factor = tvm.tirx.const(attrs.factor, out_type.dtype)
    return [te.compute(out_type.shape, lambda *i: inputs[0](*i) * factor, name="scaled")]


def _gradient(orig, grad):
    return [relay.Call(orig.op, [grad], orig.attrs)]


@pytest.fixture(autouse=True)
def _clean():
    before = dict(REGISTRY)
    yield
    for name in set(REGISTRY) - set(before):
        relay.op.unregister(name)
    for name in ("nn.relu", "nn.conv2d"):
        for key in ("FPrimalGradient", "FTVMLegalize", "FTVMConvertOpLayout", "FTVMCompute"):
            relay.op.get(name).reset_attr(key)
    assert before == REGISTRY


@pytest.fixture
def scale():
    relay.op.register(NAME, "data times factor")
    op = relay.op.get(NAME)
    op.set_num_inputs(1)
    op.add_argument("data", "Tensor", "the input")
    op.set_attrs_type_key("DictAttrs")
    op.set_support_level(10)
    op.add_type_rel("Scale", _scaled)
    relay.op.register_compute(NAME, _compute)
    relay.op.register_gradient(NAME, _gradient)
    return op


def _run(mod, **arrays):
    lib = relay.build(mod, target="llvm")
    module = relay.graph_executor.GraphModule(lib["default"](tvm.cpu()))
    for name, array in arrays.items():
        module.set_input(name, array)
    module.run()
    return [module.get_output(i).numpy() for i in range(module.get_num_outputs())]


def _input():
    return np.random.default_rng(0).standard_normal((2, 3)).astype("float32")


def test_made_printed_and_parsed(scale):
    x = relay.var("x", shape=(2, 3))
    for made in (relay.Call(scale, [x], {"factor": 3.0}), relay.Call(scale, (x,), {"factor": 3.0})):
        mod = IRModule.from_expr(made)
        assert mod.astext() == TEXT
        assert relay.structural_equal(relay.fromtext(TEXT), mod)
    assert made.attrs.factor == 3.0
    assert "test.scale" in relay.op.list_op_names()


def test_typed(scale):
    mod = relay.transform.InferType()(relay.fromtext(TEXT))
    assert mod["main"].body.checked_type == relay.TensorType((2, 3))
    x = relay.var("x", shape=(2, 3))
    with pytest.raises(ValueError, match=r"test.scale: takes 1 arguments \(data\), got 2"):
        relay.lower(IRModule.from_expr(relay.Call(scale, [x, x])))
    with pytest.raises(TypeError, match=r"test.scale: data must be a tensor"):
        relay.lower(IRModule.from_expr(relay.Call(scale, [relay.Tuple([x])])))


def test_built_and_run(scale):
    x = _input()
    mod = relay.fromtext(TEXT)
    np.testing.assert_array_equal(_run(mod, x=x)[0], x * np.float32(3))
    x_var = relay.var("x", shape=(2, 3))
    inner = relay.nn.relu(relay.Call(scale, [x_var], {"factor": -2.0}))
    got = _run(IRModule.from_expr(relay.add(inner, x_var)), x=x)[0]
    np.testing.assert_allclose(got, np.maximum(-2 * x, 0) + x, rtol=1e-6)


def test_differentiated(scale):
    x_var = relay.var("x", shape=(2, 3))
    twice = relay.Call(scale, [relay.Call(scale, [x_var], {"factor": 3.0})], {"factor": 5.0})
    function = relay.transform.gradient(relay.Function([x_var], relay.tanh(twice)))
    x = _input() / 20
    _, dx = _run(IRModule({"main": _flat(function)}), x=x)
    np.testing.assert_allclose(dx, 15 * (1 - np.tanh(15 * x) ** 2), rtol=1e-4, atol=1e-5)


def _flat(function):
    """The function with (result, its one gradient) as its value."""
    bound = relay.var("both")
    pair = relay.Tuple(
        [relay.TupleGetItem(bound, 0), relay.TupleGetItem(relay.TupleGetItem(bound, 1), 0)]
    )
    return relay.Function(function.params, relay.Let(bound, function.body, pair))


def test_tuples_in_and_out():
    """Tuples are flat lists of tensors for a computation, as in Relay."""
    relay.op.register("test.swap")
    op = relay.op.get("test.swap")
    op.add_type_rel("Swap", lambda args, attrs: relay.TupleType(args[0].fields[::-1]))

    @relay.op.register_compute("test.swap")
    def compute(attrs, inputs, out_type):
        assert [tuple(int(d) for d in t.shape) for t in inputs] == [(2, 3), (4,)]
        return [te.compute(t.shape, _plus_one(t)) for t in inputs[::-1]]

    a, b = relay.var("a", shape=(2, 3)), relay.var("b", shape=(4,))
    made = relay.TupleWrapper(op(relay.Tuple([a, b])), 2)
    mod = IRModule.from_expr(relay.Tuple([made[0], relay.nn.relu(made[1])]))
    x, y = _input(), np.ones(4, "float32")
    first, second = _run(mod, a=x, b=y)
    np.testing.assert_array_equal(first, y + 1)
    np.testing.assert_array_equal(second, np.maximum(x + 1, 0))


def _plus_one(tensor):
    return lambda *i: tensor(*i) + 1.0


def test_the_computation_of_an_unknown_size_is_of_a_variable(scale):
    x = relay.var("x", shape=(relay.Any(), 3))
    mod = IRModule.from_expr(relay.Call(scale, [x], {"factor": 3.0}))
    assert relay.testing.run_infer_type(mod["main"]).body.checked_type.shape == (relay.ANY, 3)
    run = relay.create_executor("graph", mod, tvm.cpu(), "llvm").evaluate()
    data = np.ones((4, 3), "float32")
    assert np.array_equal(run(data).numpy(), 3 * data)


@pytest.mark.parametrize("rel", ["Identity", "Broadcast", "BroadcastComp"])
def test_relations_by_name(rel):
    relay.op.register("test.op")
    op = relay.op.get("test.op")
    op.add_type_rel(rel)
    x, y = relay.var("x", shape=(2, 3)), relay.var("y", shape=(3,))
    made = relay.testing.run_infer_type(op(x, y))
    dtype = "bool" if rel == "BroadcastComp" else "float32"
    assert made.checked_type == relay.TensorType((2, 3), dtype)
    with pytest.raises(ValueError, match=r"type relation 'Mine' needs a function; .*Identity"):
        op.add_type_rel("Mine")


def test_what_is_missing_is_named():
    relay.op.register("test.op")
    op = relay.op.get("test.op")
    x = relay.var("x", shape=(2,))
    mod = IRModule.from_expr(op(x))
    with pytest.raises(ValueError, match=r"test.op: has no type relation: .*add_type_rel"):
        relay.lower(mod)
    op.add_type_rel("Identity")
    with pytest.raises(ValueError, match=r"test.op: has no computation: .*register_compute"):
        relay.lower(mod)
    with pytest.raises(ValueError, match=r"test.op has no gradient"):
        relay.transform.gradient(mod["main"])
    relay.op.register_compute("test.op", lambda attrs, inputs, out: list(inputs) * 2)
    with pytest.raises(ValueError, match="gave 2 tensors, not 1"):
        relay.lower(mod)
    op.add_type_rel("Wrong", lambda args, attrs: (2, 3))
    with pytest.raises(TypeError, match=r"relation Wrong must give a Relay type, got \(2, 3\)"):
        relay.lower(mod)


def test_an_operator_of_the_package_is_not_registered_again():
    with pytest.raises(ValueError, match=r"exists already: the package has it.*register_gradient"):
        relay.op.register("nn.conv2d_backward_weight")
    op = relay.op.get("nn.conv2d_backward_weight")
    for change in (
        lambda: op.add_type_rel("Identity"),
        lambda: op.set_num_inputs(3),
        lambda: op.add_argument("x", "Tensor", ""),
        lambda: relay.op.unregister("nn.conv2d_backward_weight"),
    ):
        with pytest.raises(ValueError, match="the package's own operator"):
            change()


def test_registered_again_after_it_was_taken_back(scale):
    with pytest.raises(ValueError, match=r"exists already: relay\.op\.unregister"):
        relay.op.register(NAME)
    relay.op.unregister(NAME)
    relay.op.unregister(NAME)
    assert NAME not in hooks.GRADIENTS
    assert NAME not in hooks.COMPUTE
    for use in (
        lambda: relay.op.get(NAME),
        lambda: relay.op.register_gradient(NAME, _gradient),
        lambda: relay.lower(relay.fromtext(TEXT)),
    ):
        with pytest.raises(ValueError, match=r"unknown Relay operator 'test\.scale'"):
            use()
    relay.op.register(NAME)
    assert relay.op.get(NAME).get_attr("FTVMCompute") is None


def test_highest_level_counts_and_comes_back():
    first, second = (lambda orig, grad: [grad]), (lambda orig, grad: [grad])
    op = relay.op.get("nn.relu")
    own = op.get_attr("FPrimalGradient")
    assert relay.op.register_gradient("nn.relu", second, level=15) is second
    relay.op.register_gradient("nn.relu", first)
    assert hooks.GRADIENTS.find("nn.relu") is second is op.get_attr("FPrimalGradient")
    op.reset_attr("FPrimalGradient")
    assert op.get_attr("FPrimalGradient") is own
    assert own is not None
    with pytest.raises(ValueError, match=r"level of FPrimalGradient must be .*above 0.*got 0"):
        relay.op.register_gradient("nn.relu", first, level=0)
    with pytest.raises(TypeError, match=r"the gradient of nn.relu must be callable, got 3"):
        relay.op.register_gradient("nn.relu", 3)


@pytest.mark.parametrize(
    ("register", "table"),
    [
        (relay.op.register_gradient, hooks.GRADIENTS),
        (relay.op.register_legalize, hooks.LEGALIZE),
        (relay.op.register_convert_op_layout, hooks.CONVERT_LAYOUT),
        (relay.op.register_compute, hooks.COMPUTE),
    ],
)
def test_decorators(register, table):
    @register("nn.conv2d", level=11)
    def rule(*args):
        return None

    assert table.find("nn.conv2d") is rule


def test_own_computation_of_an_operator_of_the_package():
    x_var = relay.var("x", shape=(2, 3))
    mod = IRModule.from_expr(relay.nn.relu(x_var))
    x = _input()

    @relay.op.register_compute("nn.relu", level=11)
    def compute(attrs, inputs, out_type):
        return [te.compute(out_type.shape, lambda *i: inputs[0](*i) * 2.0)]

    np.testing.assert_array_equal(_run(mod, x=x)[0], 2 * x)
    relay.op.get("nn.relu").reset_attr("FTVMCompute")
    np.testing.assert_array_equal(_run(mod, x=x)[0], np.maximum(x, 0))


def test_other_attributes(scale):
    relay.op.register_pattern(NAME, relay.op.OpPattern.ELEMWISE)
    relay.op.register_stateful(NAME, False)
    assert scale.get_attr("TOpPattern") == 0
    assert scale.has_attr("TOpIsStateful")
    assert not scale.has_attr("nothing")
    assert scale.get_attr("arguments") == (("data", "Tensor", "the input"),)
    scale.set_attr("mine", 1)
    scale.set_attr("mine", 2, 11)
    assert scale.get_attr("mine") == 2
    scale.reset_attr("mine")
    assert scale.get_attr("mine") is None
    with pytest.raises(TypeError, match=r"the number of inputs must be .*got -1"):
        scale.set_num_inputs(-1)
    with pytest.raises(TypeError, match="type_rel_func must be callable"):
        scale.add_type_rel("Mine", 3)
    with pytest.raises(TypeError, match="expected an operator's name, got 3"):
        relay.op.register(3)
