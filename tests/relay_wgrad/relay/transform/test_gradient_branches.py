"""Gradients of programs with `if`: against PyTorch, on both branches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from tests.support.relay.texts import HEADER

TEXT = """def @main(
  %c: bool, %d: bool, %x: Tensor[(2, 3), float32], %y: Tensor[(2, 3), float32]
) {
  %0 = multiply(%x, %y);
  let %r = if (%c) {
    let %a = exp(%0);
    if (%d) { (add(%a, %0), %x) } else { (negative(%a), %y) }
  } else {
    (%x, sqrt(%0))
  };
  multiply(add(%r.0, multiply(%r.1, 2f)), %0)
}
"""


def _torch(c: bool, d: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    p = x * y
    a = torch.exp(p)
    if c:
        first, second = (a + p, x) if d else (-a, y)
    else:
        first, second = x, torch.sqrt(p)
    return (first + second * 2) * p


@pytest.fixture(scope="module")
def gradient() -> relay.graph_executor.GraphModule:
    """The program and its gradient, which all cases run."""
    grad = T.FirstOrderGradient()(T.InferType()(relay.fromtext(HEADER + TEXT)))
    return relay.graph_executor.GraphModule(relay.build(grad)["default"](tvm.cpu()))


def _run(module: relay.graph_executor.GraphModule, *inputs: np.ndarray) -> list[np.ndarray]:
    for i, value in enumerate(inputs):
        module.set_input(i, value)
    module.run()
    return [module.get_output(i).numpy() for i in range(module.get_num_outputs())]


@pytest.mark.parametrize("d", [False, True])
@pytest.mark.parametrize("c", [False, True])
def test_the_branch_that_is_taken_counts(
    gradient: relay.graph_executor.GraphModule, c: bool, d: bool
) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.uniform(-1, 1, (2, 2, 3)).astype("float32")
    if not c:
        x, y = abs(x), abs(y)  # the square root; where it is not taken its NaN counts for nothing
    got = _run(gradient, np.bool_(c), np.bool_(d), x, y)
    a, b = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (x, y))
    wanted = _torch(c, d, a, b)
    wanted.sum().backward()  # type: ignore[no-untyped-call]
    for mine, theirs in zip((got[0], *got[3:]), (wanted.detach(), a.grad, b.grad), strict=True):
        assert theirs is not None
        error = np.linalg.norm(mine - theirs.numpy()) / np.linalg.norm(theirs.numpy())
        assert error < 1e-6
    assert not any(got[1:3])  # of the conditions


def test_the_text_of_a_gradient_comes_back() -> None:
    grad = T.FirstOrderGradient()(T.InferType()(relay.fromtext(HEADER + TEXT)))
    again = relay.fromtext(grad.astext())
    assert relay.structural_equal(again, grad)
