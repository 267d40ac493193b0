"""`relay_wgrad.transform.ConvertLayout`: results, boundaries, parameters, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm_ffi import structural_equal

import relay_wgrad
from relay_wgrad.transform import (
    ConvertLayout,
    converted_params,
    converted_results,
    count_reasons,
    layout_changes,
)
from tests.support.chosen import cases_of
from tests.support.layout_cases import (
    CASES,
    DTYPE,
    assert_close,
    calls,
    case,
    concats,
    conv_bias_relu_conv,
    gradient,
    machine_of,
    module,
    nn,
    op,
    run,
    together,
    values_for,
)

FAMILY = ("conv2d", "conv2d_transpose", "conv2d_backward_data", "conv2d_backward_weight")
BOUNDARY = {"input", "parameter", "result", "vector", "transpose", "reshape"}


@pytest.fixture(autouse=True)
def _registered() -> Any:
    relay_wgrad.register()


def reasons(before: tvm.IRModule, after: tvm.IRModule) -> dict[str, int]:
    return dict(count_reasons(layout_changes(after["main"], before["main"])))


def all_in(mod: tvm.IRModule, layout: str) -> bool:
    found = calls(mod, *FAMILY)
    keys = ("data_layout", "out_layout", "grad_layout")
    values = [
        str(getattr(c.attrs, key) if hasattr(c.attrs, key) else c.attrs[key])
        for c in found
        for key in keys
        if hasattr(c.attrs, key) or (hasattr(c.attrs, "keys") and key in c.attrs)
    ]
    return bool(found) and set(values) == {layout}


@pytest.fixture(scope="module")
def machine(request: pytest.FixtureRequest) -> relax.VirtualMachine:
    """This run's cases before and after, at once: one by one takes several times as long."""
    relay_wgrad.register()
    functions = {}
    for name in cases_of(request.session, test_same_numbers_and_nothing_between, "name"):
        before = case(name)
        for when, mod in (("before", before), ("after", ConvertLayout("NHWC")(before))):
            symbol = f"{name}_{when}"
            func = relax.utils.copy_with_new_vars(mod["main"])
            functions[symbol] = func.with_attr("global_symbol", symbol)
    return machine_of(tvm.IRModule(functions))


@pytest.mark.longer_cases("grouped_d", "conv_bi")
@pytest.mark.share(5)
@pytest.mark.parametrize("name", CASES)
def test_same_numbers_and_nothing_between(name: str, machine: relax.VirtualMachine) -> None:
    before = case(name)
    after = ConvertLayout("NHWC")(before)
    relax.analysis.well_formed(after)
    assert all_in(after, "NHWC")
    left = reasons(before, after)
    assert set(left) <= BOUNDARY, left
    args = values_for(before["main"])
    assert_close(run(machine, args, f"{name}_after"), run(machine, args, f"{name}_before"))


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_every_case_converts_of_each_order(layout: str) -> None:
    """Numbers are those of a share of the cases in make test."""
    for name in CASES:
        for order in (1, 2):
            mod = case(name, order)
            relax.analysis.well_formed(ConvertLayout(layout)(mod))


def test_chain_keeps_its_boundary_only() -> None:
    # Stock: 18 or more.  x, two weights and the gradients of the three; the bias is a vector.
    before = case("conv_bias_relu_conv")
    left = reasons(before, ConvertLayout("NHWC")(before))
    assert left == {"input": 1, "parameter": 2, "result": 3, "vector": 2}


def test_vector_reshaped_inside_needs_no_change() -> None:
    before = case("batch_norm")
    left = reasons(before, ConvertLayout("NHWC")(before))
    assert left == {"input": 1, "parameter": 2, "result": 3}


def test_each_weight_once() -> None:
    """fprop, dgrad and a second use share one converted weight."""

    def body(emit: Any, x: Any, w: Any) -> Any:
        y = emit(nn.conv2d(x, w, padding=1))
        return nn.conv2d(y, w, padding=1)

    before = gradient({"x": (1, 3, 4, 4), "w": (3, 3, 3, 3)}, body)
    left = reasons(before, ConvertLayout("NHWC")(before))
    assert left == {"input": 1, "parameter": 1, "result": 2}


@pytest.mark.parametrize("name", CASES)
def test_back_and_again(name: str) -> None:
    before = case(name)
    there = ConvertLayout("NHWC")(before)
    assert structural_equal(ConvertLayout("NHWC")(there), there)
    back = ConvertLayout("NCHW")(there)
    assert all_in(back, "NCHW")
    plain = calls(before, "permute_dims")
    assert len(calls(back, "permute_dims")) == len(plain)
    # Elsewhere an expand_dims has become a reshape, or a pooling kept an equally good layout.
    if name not in ("odd_broadcasts", "batch_norm", "local_response"):
        assert structural_equal(back, ConvertLayout("NCHW")(before))


@pytest.mark.longer
def test_other_layouts() -> None:
    before = case("concats")
    after = ConvertLayout("CHWN", kernel_layout="IHWO")(before)
    assert all_in(after, "CHWN")
    assert str(calls(after, "conv2d")[0].attrs.kernel_layout) == "IHWO"
    assert set(reasons(before, after)) <= BOUNDARY
    args = values_for(before["main"])
    both = together(before, after)
    assert_close(run(both, args, "f1"), run(both, args, "f0"))


@pytest.mark.longer
def test_second_order() -> None:
    before = case("conv_bias_relu_conv", order=2)
    after = ConvertLayout("NHWC")(before)
    assert set(reasons(before, after)) <= {"input", "parameter", "result", "vector"}
    args = values_for(before["main"])
    both = together(before, after)
    assert_close(run(both, args, "f1"), run(both, args, "f0"))


@pytest.mark.longer
def test_symbolic_batch() -> None:
    n = tvm.tirx.Var("n", "int64")
    shapes = {"x": (n, 3, 5, 5), "w": (4, 3, 3, 3), "b": (1, 4, 1, 1), "v": (2, 4, 3, 3)}
    before = gradient(shapes, conv_bias_relu_conv)
    after = ConvertLayout("NHWC")(before)
    relax.analysis.well_formed(after)
    left = reasons(before, after)
    assert left == {"input": 1, "parameter": 2, "result": 3, "vector": 2}
    args = values_for(before["main"], n=3)
    both = together(before, after)
    assert_close(run(both, args, "f1"), run(both, args, "f0"))


def test_converted_parameters() -> None:
    before = case("residual_head")
    after = ConvertLayout("NHWC", params="convert")(before)
    relax.analysis.well_formed(after)
    assert reasons(before, after) == {"input": 1, "result": 1, "transpose": 2}
    axes = (0, 2, 3, 1)
    params, results = converted_params(after["main"]), converted_results(after["main"])
    assert params == {"w": axes, "v": axes}
    assert results == {(1, 1): axes, (1, 2): axes}  # the gradients of w and v
    args = values_for(before["main"])
    names = [p.name for p in after["main"].params]
    given = [a.transpose(params.get(n, range(a.ndim))) for n, a in zip(names, args, strict=True)]
    want, got = run(before, args), run(after, given)
    for index in (2, 3):  # the value comes first, then the gradients of x, w, v, fc
        want[index] = want[index].transpose(axes)
    assert_close(got, want)
    back = ConvertLayout("NCHW", params="convert")(after)
    assert converted_params(back["main"]) == {} == converted_results(back["main"])
    assert [p.ty for p in back["main"].params] == [p.ty for p in before["main"].params]


def test_transposed_weight_is_the_same_memory() -> None:
    before = case("transposed")
    after = ConvertLayout("NHWC", params="convert")(before)
    assert str(calls(after, "conv2d_transpose")[0].attrs.kernel_layout) == "IHWO"
    assert str(calls(after, "conv2d_backward_weight")[0].attrs["kernel_layout"]) == "OHWI"
    assert converted_params(after["main"])["w"] == (0, 2, 3, 1)
    assert reasons(before, after) == {"input": 1, "result": 1}


def test_update_within_the_function() -> None:
    """w - lr * dw: weight and gradient meet in the converted layout, one change in, one out."""
    before = case("pools")
    bb = relax.BlockBuilder()
    main = before["main"]
    with bb.function("main", list(main.params)):
        with bb.dataflow():
            for binding in main.body.blocks[0].bindings:
                bb.emit_normalized(binding)
            step = bb.emit(op.multiply(main.body.body[1][1], relax.const(0.1, DTYPE)))
            out = bb.emit_output(op.subtract(main.params[1], step))
        bb.emit_func_output(out)
    update = relax.transform.ConvertToDataflow()(bb.get())
    update = relax.transform.DeadCodeElimination()(update)
    left = reasons(update, ConvertLayout("NHWC")(update))
    assert left == {"input": 1, "parameter": 1, "result": 1}


def test_constants_are_converted_at_compile_time() -> None:
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3))

    def body(emit: Any, x: Any) -> Any:
        return nn.conv2d(x, relax.const(weight, DTYPE))

    before = module({"x": (1, 3, 4, 4)}, body)
    after = ConvertLayout("NHWC")(before)
    assert reasons(before, after) == {"input": 1, "result": 1}
    assert_close(run(after, values_for(before["main"])), run(before, values_for(before["main"])))


def test_named_functions_only() -> None:
    one = module({"x": (1, 3, 4, 4), "w": (4, 3, 3, 3)}, lambda emit, x, w: nn.conv2d(x, w), "f")
    two = module({"x": (1, 3, 4, 4), "w": (4, 3, 3, 3)}, lambda emit, x, w: nn.conv2d(x, w), "g")
    mod = tvm.IRModule({"f": one["f"], "g": two["g"]})
    after = ConvertLayout("NHWC", functions=["g"])(mod)
    assert structural_equal(after["f"], mod["f"])
    assert layout_changes(after["g"])
    assert not layout_changes(after["f"])


def test_op_without_a_rule_gets_tensors_as_they_were() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        y = emit(nn.conv2d(x, w))
        y = emit(op.matmul(y, y))
        return nn.relu(y)

    before = module({"x": (1, 3, 5, 5), "w": (4, 3, 2, 2)}, body)
    after = ConvertLayout("NHWC")(before)
    assert reasons(before, after) == {"input": 1, "parameter": 1, "fixed": 1}


def test_batch_norm_dropout_and_tuples() -> None:
    def body(emit: Any, x: Any, w: Any, g: Any) -> Any:
        y = emit(nn.conv2d(x, w))
        y = emit(nn.batch_norm(y, g, g, g, g, axis=1))
        y = emit(nn.dropout(emit(relax.TupleGetItem(y, 0)), 0.5))
        parts = emit(op.split(emit(relax.TupleGetItem(y, 0)), 2, axis=1))
        both = emit(relax.Tuple([emit(relax.TupleGetItem(parts, i)) for i in (1, 0)]))
        return nn.conv2d(emit(op.concat(both, axis=1)), w)

    before = module({"x": (1, 4, 5, 5), "w": (4, 4, 2, 2), "g": (4,)}, body)
    after = ConvertLayout("NHWC")(before)
    relax.analysis.well_formed(after)
    assert reasons(before, after) == {"input": 1, "parameter": 1, "result": 1}
    assert [int(c.attrs.axis) for c in calls(after, "batch_norm", "split", "concat")] == [3] * 3


def test_tuples_of_sizes_and_of_tensors() -> None:
    def body(emit: Any, x: Any, w: Any, rows: Any) -> Any:
        y = emit(nn.conv2d(x, w))
        part = emit(op.strided_slice(rows, [1], [0], [2]))  # stays as it was: no convolution near
        kept = emit(relax.Tuple([part, relax.ShapeExpr([1, 2]), y]))
        return relax.Tuple([emit(relax.TupleGetItem(kept, 2)), part])

    before = module({"x": (1, 4, 5, 5), "w": (4, 4, 2, 2), "rows": (3, 4)}, body)
    after = ConvertLayout("NHWC")(before)
    relax.analysis.well_formed(after)
    assert reasons(before, after) == {"input": 1, "parameter": 1, "result": 1}


def test_whole_module_is_linear_in_shared_branches() -> None:
    before = gradient({"x": (1, 3, 5, 5), "w": (4, 3, 3, 3), "v": (2, 7, 3, 3)}, concats)
    names = [b.var.name for b in before["main"].body.blocks[0].bindings]
    after = ConvertLayout("NHWC")(before)
    made = [b.var.name for b in after["main"].body.blocks[0].bindings]
    assert len(made) <= len(names) + len(layout_changes(after["main"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "NHWK"}, "layout must be a permutation of NCHW, got 'NHWK'"),
        ({"layout": "NCHW4c"}, "layout must be a permutation of NCHW, got 'NCHW4c'"),
        ({"kernel_layout": "HWC"}, "kernel_layout must be a permutation of OIHW, got 'HWC'"),
        ({"params": "move"}, r"params must be one of \('keep', 'convert'\), got 'move'"),
    ],
)
def test_bad_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ConvertLayout(**options)


def test_bad_types() -> None:
    with pytest.raises(TypeError, match="layout must be a string, got 3"):
        ConvertLayout(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="functions must be a list of names, got 'main'"):
        ConvertLayout(functions="main")
    with pytest.raises(TypeError, match="needs a Relax function"):
        layout_changes(case("pools"))  # type: ignore[arg-type]


def test_unknown_function() -> None:
    with pytest.raises(ValueError, match="no Relax function nothing; it has: main"):
        ConvertLayout(functions=["nothing"])(case("pools"))


def test_called_function_keeps_its_type() -> None:
    inner = module({"x": (1, 3, 4, 4), "w": (4, 3, 3, 3)}, lambda emit, x, w: nn.conv2d(x, w), "f")
    mod = inner.clone()
    target = mod.get_global_var("f")

    def outer(emit: Any, x: Any, w: Any) -> Any:
        return relax.Call(target, [x, w])

    mod["g"] = module({"x": (1, 3, 4, 4), "w": (4, 3, 3, 3)}, outer, "g")["g"]
    with pytest.raises(ValueError, match="changes the type of 'f', which 'g' calls"):
        ConvertLayout(params="convert")(mod)
