"""Stock gradients of real architectures raised completely, and in linear time."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest
import tvm
from tvm import relax

import relay_wgrad
from relay_wgrad.frontend import from_onnx
from relay_wgrad.graph.rebuild import substitute
from relay_wgrad.ops.call_problem import family_def, problem_of
from relay_wgrad.problem import ConvKind
from relay_wgrad.transform import ConvertLayout, grad, raise_conv_backward
from tests.support.raise_cases import bindings, names, op, program, stock_form
from tests.support.timing import seconds

CONVOLUTIONS = {("resnet50", 1): 53, ("resnet50", 2): 53, ("shufflenet", 2): 49}
STOCK = relax.transform.ConvertLayout(
    {"relax.nn.conv2d": ["NHWC", "OHWI"], "relax.nn.conv2d_transpose": ["NHWC", "IHWO"]}
)


@pytest.fixture(autouse=True)
def _registered(registered: None) -> None:
    pass


@pytest.fixture(scope="module")
def gradients() -> dict[tuple[str, int], tvm.IRModule]:
    """Gradients of networks by upstream's own rules, for one and two images."""
    made = {}
    was = relay_wgrad.is_registered()
    for name, batch in CONVOLUTIONS:
        graph = from_onnx(name, batch=batch)
        relay_wgrad.unregister()
        params = {str(p.name): p for p in graph.module["main"].params}
        wanted = [params[weight] for weight in graph.trainable]
        mod = relax.transform.Gradient("main", require_grads=wanted)(graph.module)
        made[name, batch] = tvm.IRModule(
            {"main": mod["main_adjoint"].with_attr("global_symbol", "main")}
        )
        relay_wgrad.register()
    if not was:
        relay_wgrad.unregister()
    return made


@pytest.mark.longer_cases("resnet50-2-stock NHWC", "resnet50-1")
@pytest.mark.share(10)
@pytest.mark.parametrize("layout", ["NCHW", "stock NHWC", "our NHWC"])
@pytest.mark.parametrize(("name", "batch"), CONVOLUTIONS)
def test_all_of_a_network(gradients: Any, name: str, layout: str, batch: int) -> None:
    convert = {"NCHW": lambda mod: mod, "stock NHWC": STOCK, "our NHWC": ConvertLayout("NHWC")}
    mod = convert[layout](gradients[name, batch])
    count = CONVOLUTIONS[name, batch]
    assert names(mod).count("nn.conv2d") == 2 * count
    out, report = raise_conv_backward(mod)
    assert (len(report.raised), report.left) == (count, ()), report.reasons()
    assert names(out).count("nn.conv2d") == count
    assert names(out).count("nn.conv2d_backward_weight") == count
    relax.analysis.well_formed(out)
    if batch > 1:  # axes of size 1 may change letters
        assert Counter(without_layout(e.problem) for e in report.raised) == ours(name, batch)


def without_layout(problem: str) -> str:
    return problem.partition(" layout")[0]


@functools.cache
def ours(name: str, batch: int) -> Counter[str]:
    """The weight gradients that this package's own rules make, in NCHW."""
    graph = from_onnx(name, batch=batch)
    mod = grad(graph.module, "main", wrt=graph.trainable)
    calls = [binding.value for binding in bindings(mod, "main_adjoint")]
    wgrads = [call for call in calls if getattr(family_def(call), "kind", None) is ConvKind.WGRAD]
    return Counter(without_layout(problem_of(call).repro()) for call in wgrads)


def repeated(mod: tvm.IRModule, times: int) -> tvm.IRModule:
    """The function's bindings so many times over, with variables of their own."""
    func = mod["main"]
    made: list[relax.Binding] = []
    results = []
    for _ in range(times):
        value: dict[Any, Any] = {}
        for binding in bindings(mod):
            var = relax.DataflowVar(binding.var.name, binding.var.ty)
            new = substitute(binding.value, value)
            if isinstance(new, relax.Call) and new.ty.is_missing():  # `substitute` keeps types
                relax.expr._update_type(new, binding.value.ty)
            made.append(relax.VarBinding(var, new))
            value[binding.var] = var
        results.append(substitute(func.body.body, value))
    out = relax.Var("out", relax.TupleType([r.ty for r in results]))
    made.append(relax.VarBinding(out, relax.Tuple(results)))
    body = relax.SeqExpr([relax.DataflowBlock(made)], out)
    relax.expr._update_type(body, out.ty)
    return tvm.IRModule({"main": relax.Function(func.params, body, out.ty)})


def cost(mod: tvm.IRModule) -> tuple[float, int]:
    """CPU seconds of the pass, the best of two runs, and how many were raised."""
    _, report = raise_conv_backward(mod)
    assert not report.left
    return seconds(lambda: raise_conv_backward(mod), 2), len(report.raised)


@pytest.mark.longer("programs long enough to tell linear time")
def test_time_is_linear(gradients: Any) -> None:
    once, few = cost(gradients["resnet50", 2])
    tenfold, many = cost(repeated(gradients["resnet50", 2], 10))
    assert (few, many) == (53, 530)
    print(f"{once:.2f} s, ten times as long: {tenfold:.2f} s")
    assert tenfold < 20 * once


@pytest.mark.longer("programs long enough to tell linear time")
def test_long_chains() -> None:
    """10,000 transposes on each side of one convolution."""

    def body(emit: Any, x: Any, g: Any) -> Any:
        for _ in range(5_000):
            x = emit(op.permute_dims(emit(op.permute_dims(x, [1, 0, 2, 3])), [1, 0, 2, 3]))
        y = stock_form(emit, x, g)
        for _ in range(5_000):
            y = emit(op.permute_dims(emit(op.permute_dims(y, [3, 0, 2, 1])), [1, 3, 2, 0]))
        return y

    mod = program({"data": (2, 4, 5, 5), "grad": (2, 6, 5, 5)}, body)
    out, report = raise_conv_backward(mod)
    assert len(report.raised) == 1
    assert names(out) == ["nn.conv2d_backward_weight"]


@pytest.mark.longer_cases("resnet50")
@pytest.mark.parametrize("name", ["resnet50", "shufflenet"])
def test_nothing_in_forward_networks_and_our_gradients(name: str) -> None:
    graph = from_onnx(name)
    mod = grad(graph.module, "main", wrt=graph.trainable)
    for given in (mod, ConvertLayout("NHWC")(mod)):
        out, report = raise_conv_backward(given)
        assert out.same_as(given)
        assert report.entries == ()
