"""`relay.build` and the graph executor, as a script written for Relay 0.19 uses them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from relay_wgrad import relay
from relay_wgrad.relay.build import _target, build, load_module
from relay_wgrad.relay.elf import check_elf
from relay_wgrad.relay.graph_executor import GraphModule, create
from relay_wgrad.relay.text import fromtext

pytestmark = pytest.mark.usefixtures("registered")

TEXT = """#[version = "0.0.5"]
def @main(%data: Tensor[(2, 3), float32], %w: Tensor[(4, 3), float32], %b: Tensor[(4), float32]) {
  %0 = nn.dense(%data, %w, units=None);
  %1 = nn.bias_add(%0, %b);
  (nn.relu(%1), (%1, sum(%1)))
}"""
RNG = np.random.default_rng(0)
ARRAYS = {
    name: RNG.standard_normal(shape).astype("float32")
    for name, shape in (("data", (2, 3)), ("w", (4, 3)), ("b", (4,)))
}


@pytest.fixture(scope="module")
def library() -> Any:
    weights = {name: ARRAYS[name] for name in ("w", "b")}
    return build(fromtext(TEXT), target="llvm", params=weights)


@pytest.fixture
def module(library: Any) -> GraphModule:
    return GraphModule(library["default"](tvm.cpu()))


def check(module: GraphModule) -> None:
    want = ARRAYS["data"] @ ARRAYS["w"].T + ARRAYS["b"]
    assert module.get_num_outputs() == 3
    np.testing.assert_allclose(module.get_output(0).numpy(), np.maximum(want, 0), rtol=1e-5)
    np.testing.assert_allclose(module.get_output(1).numpy(), want, rtol=1e-5)
    np.testing.assert_allclose(module.get_output(2).numpy(), want.sum(), rtol=1e-5)


def test_inputs_by_name_index_and_run(module: GraphModule) -> None:
    assert module.get_num_inputs() == 1
    assert module.get_input_index("data") == 0
    assert module.get_input_index("w") == -1
    data = ARRAYS["data"].copy()
    for how in (
        lambda: module.set_input("data", data),
        lambda: module.set_input(0, tvm.runtime.tensor(data)),
        lambda: module.set_input(data=data),
        lambda: module.run(data=data),
    ):
        how()
        data[:] = 7  # inputs are copies
        module.run()
        check(module)
        data[:] = ARRAYS["data"]
    np.testing.assert_array_equal(module.get_input("data").numpy(), ARRAYS["data"])
    out = tvm.runtime.tensor(np.zeros((2, 4), "float32"))
    module.get_output(1, out)
    np.testing.assert_array_equal(out.numpy(), module.get_output(1).numpy())


def test_benchmark(module: GraphModule) -> None:
    module.set_input("data", ARRAYS["data"])
    result = module.benchmark(tvm.cpu(), repeat=3, number=2)
    assert len(result.results) == 3
    assert 0 < result.min <= result.median <= result.max
    assert "mean" in str(result)
    other = {"data": ARRAYS["data"] + 1}
    whole = module.benchmark(tvm.cpu(), repeat=2, number=1, end_to_end=True, **other)
    assert len(whole.results) == 2
    np.testing.assert_array_equal(module.get_input("data").numpy(), other["data"])
    slow = module.benchmark(tvm.cpu(), repeat=1, number=1, min_repeat_ms=5)
    assert slow.mean > 0


def test_export_and_load(library: Any, tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    library.export_library(path, fcompile=False)  # Relay's default
    loaded = GraphModule(load_module(path)["default"](tvm.cpu()))
    loaded.run(data=ARRAYS["data"])
    check(loaded)
    with pytest.raises(ValueError, match=r"%data is \[2, 3\] of float32, got \[3, 3\] of float32"):
        loaded.set_input("data", np.zeros((3, 3), "float32"))
    shape = '{"relay_wgrad_inputs": [{"name": "x", "shape": %s, "dtype": "%s"}]}'
    for text in (
        "[]",
        '{"relay_wgrad_inputs": ["data"]}',
        "[" * 100_000,
        '{"relay_wgrad_inputs": ' + "[" * 100_000,
        shape % ('"ab"', "float32"),
        shape % ("[-1]", "float32"),
        shape % ("[2]", "float31"),
    ):
        (tmp_path / "lib.so.json").write_text(text)
        with pytest.raises(ValueError, match="which names the inputs"):
            load_module(path)


@pytest.mark.parametrize("described", [True, False])
def test_a_damaged_library_is_refused_before_it_is_loaded(
    library: Any, tmp_path: Path, described: bool
) -> None:
    """The loader maps what headers say: a page that the file lacks would end the process."""
    path = tmp_path / "lib.so"
    library.export_library(path)
    whole, beside = path.read_bytes(), tmp_path / "lib.so.json"
    if not described:  # as a library of a release before there was a digest
        text = json.loads(beside.read_text())
        beside.write_text(json.dumps({"relay_wgrad_inputs": text["relay_wgrad_inputs"]}))
        check_elf(path)
        # A file that is mapped must not change under the process, which reads it again at its end.
        kept = shutil.copy(path, tmp_path / "kept.so")
        shutil.copy(beside, tmp_path / "kept.so.json")
        load_module(kept)
    for cut in (0, 10, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"lib\.so: "):
            load_module(path)
    path.write_bytes(b"#!/bin/sh" + whole[9:])
    with pytest.raises(ValueError, match=r"lib\.so: "):
        load_module(path)
    if described:
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(ValueError, match="not the library that was exported"):
            load_module(path)
    path.unlink()
    with pytest.raises(ValueError, match="No such file"):
        load_module(path)


def test_build_as_scripts_for_graph_json_and_params_unpack_it(tmp_path: Path) -> None:
    weights = {name: ARRAYS[name] for name in ("w", "b")}
    graph, lib, params = build(fromtext(TEXT), {1: "llvm"}, "llvm", params=weights)
    assert [node["name"] for node in json.loads(graph)["nodes"]] == ["data", "main"]
    module = create(graph, lib, tvm.cpu())
    module.set_input(**params)
    module.load_params(relay.save_param_dict(params))
    module.run(data=ARRAYS["data"])
    check(module)
    assert module.get_input_info() == ({"data": (2, 3)}, {"data": "float32"})
    lib.lib.export_library(tmp_path / "lib.so")
    check_again = create(graph, load_module(tmp_path / "lib.so"), [tvm.cpu()])
    check_again.run(data=ARRAYS["data"])
    check(check_again)
    with pytest.raises(ValueError, match="not the library's own"):
        create("{}", lib, tvm.cpu())
    with pytest.raises(TypeError, match="expected a library, got str"):
        create(graph, "lib.so", tvm.cpu())  # type: ignore[arg-type]


def test_a_parameter_that_is_bound_already_is_ignored() -> None:
    """The usual sequence with other compilers; a mistyped name shows at the run."""
    weights = {name: ARRAYS[name] for name in ("w", "b")}
    mod = fromtext(TEXT)
    mod["main"] = relay.build_module.bind_params_by_name(mod["main"], weights)
    module = GraphModule(build(mod, "llvm", params=weights)["default"](tvm.cpu()))
    module.run(data=ARRAYS["data"])
    check(module)
    main = fromtext(TEXT)["main"]
    module = GraphModule(build(main, "llvm", params={"W": ARRAYS["w"]})["default"](tvm.cpu()))
    with pytest.raises(ValueError, match="inputs that are not set: data, w, b"):
        module.run()


def test_inputs_of_another_type_are_refused_at_once(module: GraphModule) -> None:
    """As in Relay, NumPy's numbers become the input's dtype, shapes and tensors stay."""
    for value, got in (
        (np.zeros((3, 2), "float32"), "[3, 2] of float32"),
        (np.zeros(3, "float32"), "[3] of float32"),
        (1.0, "[] of float32"),
        (tvm.runtime.tensor(ARRAYS["data"].astype("float64")), "[2, 3] of float64"),
        (np.zeros((2, 3), "complex64"), "[2, 3] of complex64"),
    ):
        with pytest.raises(ValueError) as caught:
            module.set_input("data", value)
        assert str(caught.value) == f"set_input: %data is [2, 3] of float32, got {got}"
    for value in (ARRAYS["data"].astype("float64"), ARRAYS["data"].tolist()):
        module.set_input("data", value)
        module.run()
        check(module)
    with pytest.raises(TypeError, match="'data' must be an array"):
        module.set_input("data", None)


def test_inputs_of_unknown_size_and_integers() -> None:
    text = """#[version = "0.0.5"]
def @main(%x: Tensor[(?, 3), int32], %y: Tensor[(3), bfloat16]) { (%x, %y) }"""
    module = GraphModule(build(fromtext(text), target="llvm")["default"](tvm.cpu()))
    module.set_input("y", [1.0, 2.0, 3.0])
    for rows in (1, 4):
        module.run(x=np.ones((rows, 3), "int64"))
        assert module.get_output(0).numpy().shape == (rows, 3)
    with pytest.raises(ValueError, match=r"%x is \[\?, 3\] of int32, got \[2, 4\] of int32"):
        module.set_input("x", np.ones((2, 4), "int32"))
    with pytest.raises(ValueError, match=r"%x is .* of int32, got \[2, 3\] of float64"):
        module.set_input("x", np.full((2, 3), 0.5))  # Relay drops the fractions


def test_misuse_of_the_executor(module: GraphModule, library: Any) -> None:
    for call, match in (
        (lambda: module.get_output(0), "before run"),
        (module.run, "not set: data"),
        (lambda: module.set_input("w", ARRAYS["w"]), "no input 'w'; there are data"),
        (lambda: module.set_input(1, ARRAYS["w"]), "no input 1"),
        (lambda: module.get_input("data"), "'data' is not set"),
        (lambda: module.benchmark(tvm.cpu(), repeat=0), "repeat must be .* got 0"),
        (lambda: module.benchmark(tvm.cpu(), func_name="main"), "only func_name='run'"),
        (lambda: library["default"](), "takes one device"),
    ):
        with pytest.raises(ValueError, match=match):
            call()
    module.run(data=ARRAYS["data"])
    with pytest.raises(ValueError, match="index 3 of 3 outputs"):
        module.get_output(3)
    with pytest.raises(KeyError, match="one executor"):
        library["main"]
    with pytest.raises(TypeError, match="GraphModule takes"):
        GraphModule(library)  # type: ignore[arg-type]


def test_a_parameter_without_axes() -> None:
    text = """#[version = "0.0.5"]
def @main(%x: Tensor[(4), float32], %s: float32) { multiply(%x, %s) }"""
    library = build(fromtext(text), "llvm", params={"s": np.float32(3)})
    module = GraphModule(library["default"](tvm.cpu()))
    module.run(x=np.arange(4, dtype="float32"))
    assert module.get_output(0).numpy().tolist() == [0, 3, 6, 9]


def test_misuse_of_build() -> None:
    module = fromtext(TEXT)
    with pytest.raises(TypeError, match="expected a Relay IRModule, got str"):
        build("def @main", "llvm")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one must be the CPU's, got none"):
        build(module, [])
    with pytest.raises(ValueError, match=r"%w is \[4, 3\] of float32, got \[4\] of float32"):
        build(module, "llvm", params={"w": ARRAYS["b"]})
    with pytest.raises(ValueError, match="of float64"):
        build(module, "llvm", params={"b": ARRAYS["b"].astype("float64")})
    with pytest.raises(ValueError, match="no @main, but f"):
        build(fromtext('#[version = "0.0.5"]\ndef @f(%x: float32) { %x }'), "llvm")


def test_executor_runtime_and_name_as_scripts_of_relay_give_them(tmp_path: Path) -> None:
    graph, cpp = (
        relay.backend.Executor("graph", {"link-params": True}),
        relay.backend.Runtime("cpp"),
    )
    assert (str(graph), graph["link-params"], "link-params" in cpp) == ("graph", True, False)
    assert graph != relay.backend.Executor("graph")
    assert relay.backend.Executor("graph")["link-params"] is False
    assert relay.backend.Runtime.list_registered_options(cpp) == {"system-lib": "runtime.BoxBool"}
    assert cpp == relay.backend.Runtime("cpp")
    mod = relay.IRModule.from_expr(relay.nn.relu(relay.var("x", shape=(2,))))
    lib = build(mod, "llvm", executor=graph, runtime=cpp, params={}, mod_name="net")
    assert lib.libmod_name == "net"
    lib.export_library(tmp_path / "lib.so")
    for given in (lib, load_module(tmp_path / "lib.so")):
        module = GraphModule(given["net"](tvm.cpu()))
        module.run(x=np.array([-1, 2], "float32"))
        np.testing.assert_array_equal(module.get_output(0).numpy(), [0, 2])
        with pytest.raises(KeyError, match="one executor, 'net', got 'default'"):
            given["default"]
    create(lib.graph_json, lib, tvm.cpu()).run(x=np.zeros(2, "float32"))


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"executor": relay.backend.Executor("aot")}, ValueError, 'not there.*Executor."graph"'),
        ({"runtime": relay.backend.Runtime("crt")}, ValueError, 'not there.*Runtime."cpp"'),
        (
            {"runtime": relay.backend.Runtime("cpp", {"system-lib": True})},
            ValueError,
            "system-lib is not there",
        ),
        ({"executor": "graph"}, TypeError, "executor must be relay.backend.Executor"),
        ({"mod_name": 1}, TypeError, "mod_name must be a string, got int"),
        ({"workspace_memory_pools": object()}, ValueError, "memory pools are not there"),
    ],
)
def test_what_build_does_not_have_is_refused_by_name(given: Any, kind: Any, said: str) -> None:
    with pytest.raises(kind, match=said):
        build(fromtext(TEXT), "llvm", **given)


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (lambda: relay.backend.Executor.list_registered_options("x"), ValueError, "not defined"),
        (
            lambda: relay.backend.Executor("vm"),
            ValueError,
            '"vm" is not defined; there are graph, aot',
        ),
        (
            lambda: relay.backend.Executor("graph", {"x": 1}),
            ValueError,
            'Attribute "x" is not available on this Executor; graph has link-params',
        ),
        (
            lambda: relay.backend.Runtime("cpp", {"system-lib": "y"}),
            TypeError,
            'should have type "runtime.BoxBool" but instead found "runtime.String"',
        ),
    ],
)
def test_misuse_of_executors(make: Any, kind: Any, said: str) -> None:
    with pytest.raises(kind, match=said):
        make()


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("llvm -mcpu=core-avx2 -num-cores=2", {"mcpu": "core-avx2", "num-cores": 2}),
        ("llvm --mcpu=core-avx2 -mattr=+avx2,+fma", {"mattr": ["+avx2", "+fma"]}),
        ("llvm -keys=arm_cpu,cpu -device=arm_cpu", {"device": "arm_cpu"}),
    ],
)
def test_a_target_is_said_as_relay_read_it(text: str, kept: dict[str, Any]) -> None:
    for given in (text, {"cpu": text}, [text]):
        chosen = _target(given, None)
        assert {name: _plain(chosen.attrs[name]) for name in kept} == kept
    assert str(_target("llvm", text).host) == str(_target(text, None))


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, str)) else list(value)


def test_a_program_runs_for_a_target_with_options(module: GraphModule) -> None:
    weights = {name: ARRAYS[name] for name in ("w", "b")}
    library = build(fromtext(TEXT), target="llvm -mcpu=x86-64-v2", params=weights)
    made = GraphModule(library["default"](tvm.cpu()))
    for one in (made, module):
        one.run(data=ARRAYS["data"])
    np.testing.assert_allclose(
        made.get_output(0).numpy(), module.get_output(0).numpy(), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("llvm -mcpu", "must be a kind and -NAME=VALUE, got '-mcpu'"),
        ("llvm mcpu=x", "must be a kind and -NAME=VALUE, got 'mcpu=x'"),
        ("llvm -mcpu=a -mcpu=b", "has -mcpu twice"),
        ("llvm -bogus=1", "Unknown config option 'bogus'"),
        ("llvm -num-cores=many", "expected type 'int'"),
        ("rubbish -mcpu=x", '"rubbish" is not defined'),
    ],
)
def test_a_target_that_is_none_is_refused(text: str, rule: str) -> None:
    with pytest.raises(ValueError, match=re.escape(rule)):
        build(fromtext(TEXT), target=text)
