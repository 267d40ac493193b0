"""Relay modules to cuDNN: the same table as of Relax modules, without a GPU up to its source."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from rich.console import Console

import byoc_cudnn
from byoc_cudnn.relay import register_relay, table
from byoc_cudnn.relay.partition import offload_functions
from byoc_cudnn.split.composite import composite_in
from byoc_cudnn.table import backend_of
from relay_wgrad import relay
from relay_wgrad.keys import RELAY_OPTIONS
from relay_wgrad.relay import external
from relay_wgrad.relay.op.contrib import get_pattern_table, unregister_pattern_table
from tests.support.compiled import virtual_machine
from tests.support.relay.fixtures import load
from tests.support.relay.modules import FAST, close, of_body, outputs

pytestmark = pytest.mark.usefixtures("registered", "clean")

GRADIENTS = ["smallnet_grad", "smallnet_grad_nhwc", "resnet8_cifar_grad", "resnet8_cifar_grad_nhwc"]
D, K, B = "Tensor[(2, 8, 9, 9), float32]", "Tensor[(16, 8, 3, 3), float32]", "Tensor[(16), float32]"
PARAMS = f"%x: {D}, %w: {K}, %b: {B}"
CONV = "nn.conv2d(%x, %w, padding=[1, 1, 1, 1])"


@pytest.fixture
def clean() -> Any:
    """Nothing stays registered after a test."""
    yield
    for name in byoc_cudnn.BACKENDS:
        unregister_pattern_table(name)
        external.unregister_external(name)


def functions_of(mod: relay.IRModule) -> dict[str, relay.Function]:
    return {n: f for n, f in mod.functions.items() if f.attrs.get("Compiler") == "cudnn"}


def offloaded(mod: relay.IRModule) -> tvm.IRModule:
    """The Relax module that `relay.build` compiles for CUDA, before code is generated."""
    taken = functions_of(mod)
    return offload_functions(relay.lower(mod, taken), taken)


def on_the_cpu(mod: tvm.IRModule, inputs: dict[str, Any]) -> list[np.ndarray]:
    """Results of a partitioned Relax module by TVM's own kernels."""
    vm = virtual_machine(byoc_cudnn.unpartition(mod), FAST)
    result = vm["main"](*(tvm.runtime.tensor(inputs[str(p.name)]) for p in mod["main"].params))
    flat: list[np.ndarray] = []
    stack = [result]
    while stack:
        item = stack.pop()
        if isinstance(item, tvm.runtime.Tensor):
            flat.append(item.numpy())
        else:
            stack += reversed(list(item))
    return flat


@pytest.mark.share(3)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_go_completely(name: str) -> None:
    inputs, want, _ = load(name.removesuffix("_nhwc"))
    text = load(name)[2]
    out, report = byoc_cudnn.partition(relay.fromtext(text), strict=True)
    count = text.count("nn.conv2d(") + text.count("nn.conv2d_")
    assert (report.share, report.total) == (1, count)
    assert len(functions_of(out)) == count
    assert relay.structural_equal(relay.fromtext(relay.astext(out)), out)
    # The same problems as those of the program lowered to Relax.
    lowered = byoc_cudnn.partition(relay.lower(relay.fromtext(text)))[1]
    assert Counter(e.problem for e in report.entries) == Counter(e.problem for e in lowered.entries)
    if name.endswith("_nhwc"):
        assert report.rows() == lowered.rows()
    if name.startswith("smallnet"):
        assert want is not None
        built = offloaded(out)
        assert close(on_the_cpu(built, inputs), want)
        codegens = [f for _, f in built.functions_items() if f.attrs and "Codegen" in f.attrs]
        assert codegens


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ["smallnet_grad", "smallnet_grad_nhwc"])
def test_fallback_on_the_cpu(name: str) -> None:
    inputs, want, _ = load("smallnet_grad")
    out, _ = byoc_cudnn.partition_for_cudnn(relay.fromtext(load(name)[2]))
    match = "compute 6 functions of another compiler: cudnn builds for cuda, and the target is llvm"
    with pytest.warns(UserWarning, match=match):
        got = outputs(out, inputs)
    assert want is not None
    assert close(got, want)


def test_source_for_a_gpu() -> None:
    out, _ = byoc_cudnn.partition_for_cudnn(relay.fromtext(load("smallnet_grad_nhwc")[2]))
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    library: Any = relay.build(out, target)._library
    assert isinstance(library, byoc_cudnn.Library)
    source = "\n".join(library.sources)  # cuDNN's, and the poolings'
    for kind in ("fprop", "dgrad", "wgrad"):
        assert f"relay_wgrad_cudnn_{kind}" in source


# (program, rows of the functions)
ROWS: list[tuple[str, list[str]]] = [
    (f"nn.relu(nn.bias_add({CONV}, %b))", ["fprop_bias_relu"]),
    (f"nn.relu(add({CONV}, expand_dims(%b, axis=1, num_newaxis=2)))", ["fprop_bias_relu"]),
    (f"nn.relu(add(expand_dims(%b, axis=1, num_newaxis=2), {CONV}))", ["fprop_bias_relu"]),
    (f"%0 = nn.bias_add({CONV}, %b); (nn.relu(%0), %0)", ["fprop_bias"]),
    (f"%0 = {CONV}; (nn.bias_add(%0, %b), %0)", ["fprop"]),
    # One value per channel is a bias, another addend is none.
    (f"add({CONV}, {CONV})", ["fprop", "fprop"]),
    # Not fused in NCHW.
    (f"nn.relu({CONV})", ["fprop"]),
    # Padding that cuDNN has not, which is put around.
    ("nn.conv2d(%x, %w, padding=[0, 0, 1, 1])", ["fprop"]),
    # Not for cuDNN: the operand of a matrix product.
    ("nn.dense(nn.batch_flatten(%x), nn.batch_flatten(%x))", []),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(ROWS)))
def test_rows(index: int) -> None:
    body, rows = ROWS[index]
    mod = of_body(body, PARAMS)
    out, report = byoc_cudnn.partition(mod)
    assert sorted(e.row for e in report.entries) == sorted(rows)
    found = [
        str(n.attrs["Composite"])
        for f in functions_of(out).values()
        for n in relay.ast.post_order(f)
        if isinstance(n, relay.Function) and "Composite" in n.attrs
    ]
    assert sorted(found) == sorted(f"cudnn.{row}" for row in rows)
    inputs = {
        p.name: np.random.default_rng(3).random(p.type_annotation.shape).astype("float32")
        for p in mod["main"].params
    }
    assert close(on_the_cpu(offloaded(out), inputs), outputs(mod, inputs))


@pytest.mark.parametrize("backend", ["cudnn", "cutlass"])
def test_the_module_and_its_report_are_a_pair(backend: str) -> None:
    """As of a Relax module: iterating over a module fails where its first function is asked for."""
    mod = of_body(CONV, PARAMS)
    out, report = getattr(byoc_cudnn, f"partition_for_{backend}")(mod)
    same, whole = byoc_cudnn.partition(mod, (backend,))
    assert relay.structural_equal(out, same)
    assert report.entries == whole.entries


def test_options_and_fuse() -> None:
    mod = of_body(f"nn.relu(nn.bias_add({CONV}, %b))", PARAMS)
    out, _ = byoc_cudnn.partition_for_cudnn(mod, allow_tf32=False, fuse=False)
    (function,) = functions_of(out).values()
    assert function.attrs[RELAY_OPTIONS] == '{"allow_tf32": false}'
    assert relay.structural_equal(relay.fromtext(relay.astext(out)), out)
    built = offloaded(out)
    (outer,) = [f for _, f in built.functions_items() if f.attrs and "Codegen" in f.attrs]
    options = str(composite_in(outer).attrs["relay_wgrad.options"])
    assert json.loads(options)["allow_tf32"] is False
    assert "nn.relu" in built["main"].script()
    plain, _ = byoc_cudnn.partition_for_cudnn(mod)
    assert RELAY_OPTIONS not in next(iter(functions_of(plain).values())).attrs


def test_params_become_constants() -> None:
    mod = of_body(f"nn.relu(nn.bias_add({CONV}, %b))", PARAMS)
    weights = {"w": np.ones((16, 8, 3, 3), "f"), "b": np.ones(16, "f")}
    out, _ = byoc_cudnn.partition_for_cudnn(mod, weights)
    assert [p.name for p in out["main"].params] == ["x"]
    assert len(functions_of(out)) == 1
    again, _ = byoc_cudnn.partition_for_cudnn(mod, {**weights, "v": weights["w"]})
    assert relay.structural_equal(out, again)  # as in Relay, a name of no parameter is ignored
    with pytest.raises(TypeError, match="params are for Relay modules"):
        byoc_cudnn.partition_for_cudnn(tvm.IRModule(), weights)


def test_what_stays_has_a_reason() -> None:
    double = PARAMS.replace("float32", "float64")
    mod = of_body(f"nn.bias_add({CONV}, %b)", double)
    out, report = byoc_cudnn.partition(mod)
    assert list(out.functions) == ["main"]
    (entry,) = report.left
    assert entry.function == "main"
    assert "float64" in entry.reason
    with pytest.raises(
        ValueError, match=r"1 of 1 convolutions stay: main: conv2d_0 = conv2d: .*float64"
    ):
        byoc_cudnn.partition(mod, strict=True)


def test_a_table_of_the_rows() -> None:
    assert get_pattern_table("cudnn") is None
    register_relay()
    table = get_pattern_table("cudnn")
    assert table is not None
    assert [row[0] for row in table] == [f"cudnn.{r.name}" for r in backend_of("cudnn").rows]


def test_a_function_that_is_not_taken_after_all() -> None:
    """By hand: what the rows refuse is TVM's, with a warning."""
    double = PARAMS.replace("float32", "float64")
    mod = of_body(CONV, double)
    out = relay.transform.MergeComposite(
        [("cudnn.mine", relay.dataflow_pattern.is_op("nn.conv2d")(None))]
    )(mod)
    out = relay.transform.PartitionGraph()(relay.transform.AnnotateTarget("cudnn")(out))
    register_relay()
    match = "compute conv2d of @tvmgen_default_cudnn_main_0: .*float64"
    with pytest.warns(UserWarning, match=match):
        built = offloaded(out)
    assert [str(v.name_hint) for v in built.get_global_vars()] == ["main"]


def test_two_compilers_for_one_library() -> None:
    register_relay()
    external.register_external("other", ("cuda",), lambda *_: pytest.fail("not built"))
    mod = of_body(CONV, PARAMS)
    functions = {
        name: relay.Function((), relay.const(1.0)).with_attr("Compiler", name)
        for name in ("cudnn", "other")
    }
    main = mod["main"]
    calls = [relay.Call(relay.GlobalVar(name), ()) for name in functions]
    main = relay.Function(main.params, relay.Tuple((main.body, *calls)))
    both = relay.IRModule({**functions, "main": main})
    try:
        with pytest.raises(ValueError, match="one library can't be built by cudnn and other"):
            relay.build(both, tvm.target.Target({"kind": "cuda", "arch": "sm_80"}))
    finally:
        external.unregister_external("other")


# ---- gradients in composite form -----------------------------------------------------------------

LEGALIZED = load("smallnet_grad_legalized")[2]


@pytest.mark.parametrize("cudnn_alone", [False, True])
def test_composite_gradients_are_pointed_out(cudnn_alone: bool) -> None:
    mod = relay.fromtext(LEGALIZED)
    words = "6 convolutions; 2 of these are weight gradients in composite form: run Raise"
    if cudnn_alone:
        with pytest.warns(UserWarning, match=words) as caught:
            out, _ = byoc_cudnn.partition_for_cudnn(mod)
    else:
        with pytest.warns(UserWarning, match=words) as caught:
            out, report = byoc_cudnn.partition(mod)
        assert [(e.function, e.kind) for e in report.composites] == [("main", "wgrad")] * 2
        assert report.rows() == {"cudnn.fprop": 3, "cudnn.fprop_bias": 1, "cudnn.dgrad": 2}
    assert [warning.filename for warning in caught] == [__file__]
    assert len(functions_of(out)) == 6
    # What the hint asks for: the same convolutions, two of them as what they are.
    raised = relay.transform.RaiseConvBackward()(mod)
    _, report = byoc_cudnn.partition(raised)  # warnings are errors
    assert report.rows() == {"cudnn.fprop": 1, "cudnn.fprop_bias": 1, "cudnn.dgrad": 2,
                             "cudnn.wgrad": 2}  # fmt: skip
    assert (report.composites, report.hint) == ((), "")


def test_the_table_is_of_the_users_program() -> None:
    """At 80 columns; the functions and lines of the text, in its order, however often."""
    mod = relay.fromtext(load("smallnet_grad")[2])
    out, report = byoc_cudnn.partition(mod)
    lines = [int(entry.source.split(":")[1]) for entry in report.entries]
    assert lines == sorted(lines)
    assert {entry.function for entry in report.entries} == {"main"}
    assert [e.node.rpartition("_")[2] for e in report.entries] == list("012345")
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(report.table())
    text = console.export_text()
    assert "6 of 6 convolutions offloaded, @main, NCHW/OIHW f32, cudnn" in text
    assert "wgrad   2×8×16×16 → 16 3×3 s2 p1   wgrad" in text
    assert f"from_string:{lines[0]}:" in text
    assert len(text.splitlines()) == 5 + 6, "nothing is folded"
    again = byoc_cudnn.partition(out)[1]
    assert [replace(e, node="", source="") for e in again.entries] == [
        replace(e, node="", source="") for e in report.entries
    ]


def test_functions_that_nothing_calls_are_reported() -> None:
    out, _ = byoc_cudnn.partition_for_cudnn(of_body(CONV, PARAMS))
    (name,) = functions_of(out)
    alone = relay.IRModule({name: out.functions[name]})
    (entry,) = byoc_cudnn.partition(alone)[1].entries
    assert (entry.function, entry.row) == (name, "fprop")


def test_a_candidate_is_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equal layers the first, for the row's check; the others and the report know it then."""
    lowered: list[relay.IRModule] = []

    def lower(mod: relay.IRModule) -> tvm.IRModule:
        lowered.append(mod)
        return relay.lower(mod)

    monkeypatch.setattr(table, "lower", lower)
    layer = f"nn.relu(nn.bias_add({CONV}, %b))"
    _, report = byoc_cudnn.partition_for_cudnn(of_body(f"add({layer}, {layer})", PARAMS))
    assert report.rows() == {"cudnn.fprop_bias_relu": 2}
    assert len(lowered) == 1
    other = CONV.replace("%x", "nn.relu(%x)").replace("1, 1, 1, 1", "1, 1, 0, 0")
    _, report = byoc_cudnn.partition_for_cudnn(of_body(f"({layer}, {layer}, {other})", PARAMS))
    assert [entry.row for entry in report.entries] == ["fprop_bias_relu"] * 2 + ["fprop"]
    assert len({entry.problem for entry in report.entries}) == 2
    assert len(lowered) == 3
