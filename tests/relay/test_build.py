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
    (tmp_path / "lib.so.json").write_text("[]")
    with pytest.raises(ValueError, match="which names the inputs"):
        load_module(path)


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
