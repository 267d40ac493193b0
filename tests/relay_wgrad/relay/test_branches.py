"""`if` compiled: both branches, nested, with functions and tuples from around them; refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm

from relay_wgrad import relay
from tests.support.relay.texts import HEADER

TEXT = """def @twice[A](%f: fn (A) -> A, %x: A) -> A { %f(%f(%x)) }
def @main(
  %c: bool, %d: bool, %x: Tensor[(2, 3), float32], %y: Tensor[(2, 3), float32]
) {
  %0 = multiply(%x, %y);
  %1 = fn (%z: Tensor[(2, 3), float32]) { add(%z, %0) };
  let %r = if (%c) {
    let %a = exp(%0);
    if (%d) { (@twice(%1, %a), %x) } else { (negative(%a), %y) }
  } else {
    (%x, %0)
  };
  add(%r.0, multiply(%r.1, 2f))
}
"""


def test_each_branch_gives_its_value() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 2, 3)).astype("float32")
    lib = relay.build(relay.fromtext(HEADER + TEXT))
    module = relay.graph_executor.GraphModule(lib["default"](tvm.cpu()))
    p = x.astype("float64") * y
    a = np.exp(p)
    wanted = {(True, True): (a + 2 * p, x), (True, False): (-a, y)}
    for c in (False, True):
        for d in (False, True):
            module.set_input(c=np.bool_(c), d=np.bool_(d), x=x, y=y)
            module.run()
            first, second = wanted.get((c, d), (x, p))
            both = first + 2 * second
            error = np.linalg.norm(module.get_output(0).numpy() - both) / np.linalg.norm(both)
            assert error < 1e-6


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "def @main(%n: int32) -> int32 { if (less(%n, 1)) { %n } else { @main(%n) } }",
            "recursion has no lowering",
        ),
        ("def @main(%c: float32) { if (%c) { 1f } else { 2f } }", "must be bool, got float32"),
        ("def @main(%c: bool) { if (%c) { 1f } else { 2 } }", "branches of `if` differ"),
        (
            "def @main(%c: bool, %x: Tensor[(?, 3), float32]) { if (%c) { %x } else { exp(%x) } }",
            "sizes which only the run knows",
        ),
    ],
)
def test_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        relay.build(relay.fromtext(HEADER + text))


def test_an_input_that_nothing_uses_need_not_be_set() -> None:
    x, y = (relay.var(name, shape=(2,)) for name in "xy")
    lib = relay.build(relay.Function([x, y], relay.exp(x)))
    module = relay.graph_executor.GraphModule(lib["default"](tvm.cpu()))
    with pytest.raises(ValueError, match=r"not set: x$"):
        module.run()
    module.run(x=np.zeros(2, "float32"))
    assert list(module.get_output(0).numpy()) == [1, 1]


def test_an_input_without_a_copy() -> None:
    x = relay.var("x", shape=(2,))
    lib = relay.build(relay.Function([x], relay.exp(x)))
    module = relay.graph_executor.GraphModule(lib["default"](tvm.cpu()))
    given = tvm.runtime.tensor(np.zeros(2, "float32"))
    module.module["set_input_zero_copy"]("x", given)
    given.copyfrom(np.ones(2, "float32"))  # the run reads what its owner has written since
    module.run()
    np.testing.assert_allclose(module.get_output(0).numpy(), np.e, rtol=1e-6)
    with pytest.raises(TypeError, match="must be a TVM tensor"):
        module.set_input_zero_copy("x", np.zeros(2, "float32"))
    with pytest.raises(ValueError, match="%x is \\[2\\] of float32"):
        module.set_input_zero_copy("x", tvm.runtime.tensor(np.zeros(3, "float32")))


def test_branches_in_a_library_with_parameters(tmp_path: Path) -> None:
    mod = relay.fromtext(
        HEADER
        + "def @main(%c: bool, %x: Tensor[(2), float32], %w: Tensor[(2), float32]) {"
        + " if (%c) { multiply(%x, %w) } else { subtract(%x, %w) } }"
    )
    relay.prelude.Prelude(mod)  # whose functions @main does not use
    x, w = np.array([1, 2], "float32"), np.array([3, 5], "float32")
    relay.build(mod, params={"w": w}).export_library(tmp_path / "lib.so")
    lib = relay.load_module(tmp_path / "lib.so")
    module = relay.graph_executor.GraphModule(lib["default"](tvm.cpu()))
    for c, wanted in ((True, x * w), (False, x - w)):
        module.run(c=np.bool_(c), x=x)
        assert (module.get_output(0).numpy() == wanted).all()
