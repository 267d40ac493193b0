"""`relay.build` and the graph executor, as a script written for Relay 0.19 uses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from relay_wgrad.relay.build import build, load_module
from relay_wgrad.relay.graph_executor import GraphModule
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
    slow = module.benchmark(tvm.cpu(), repeat=1, number=1, min_repeat_ms=5)
    assert slow.mean > 0


def test_export_and_load(library: Any, tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    library.export_library(path)
    loaded = GraphModule(load_module(path)["default"](tvm.cpu()))
    loaded.run(data=ARRAYS["data"])
    check(loaded)
    with pytest.raises(ValueError, match=r"%data is \[2, 3\] of float32, got \[3, 3\] of float32"):
        loaded.set_input("data", np.zeros((3, 3), "float32"))
    for text in ("[]", '{"relay_wgrad_inputs": ["data"]}'):
        (tmp_path / "lib.so.json").write_text(text)
        with pytest.raises(ValueError, match="which names the inputs"):
            load_module(path)


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
        (lambda: module.benchmark(tvm.cpu(), repeat=0), "repeat=0"),
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


def test_misuse_of_build() -> None:
    module = fromtext(TEXT)
    with pytest.raises(TypeError, match="expected a Relay IRModule, got str"):
        build("def @main", "llvm")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no parameter 'v'; there are data, w, b"):
        build(module, "llvm", params={"v": ARRAYS["w"]})
    with pytest.raises(ValueError, match=r"%w is \[4, 3\] of float32, got \[4\] of float32"):
        build(module, "llvm", params={"w": ARRAYS["b"]})
    with pytest.raises(ValueError, match="of float64"):
        build(module, "llvm", params={"b": ARRAYS["b"].astype("float64")})
    with pytest.raises(ValueError, match="no @main, but f"):
        build(fromtext('#[version = "0.0.5"]\ndef @f(%x: float32) { %x }'), "llvm")
