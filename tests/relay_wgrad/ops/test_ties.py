"""Gradients at ties and kinks are PyTorch's: compiled, against autograd in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as fn
import tvm
from torch import nn
from tvm import relax
from tvm.ir import Op

import legalize.cpu
import relay_wgrad
from relay_wgrad.frontend import from_torch
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.transform import grad
from tests.fuzz.ties import GENERATOR
from tests.fuzz.ties_ops import LINEAR, ROUNDING, VALUES, operations
from tests.support.compiled import virtual_machine

pytestmark = pytest.mark.usefixtures("registered")

POINTS = np.array([*VALUES, 20.0])


def run(mod: tvm.IRModule, function: str, *inputs: np.ndarray) -> Any:
    target = legalize.cpu.host_target()
    machine = virtual_machine(mod, target, cpu_pipeline())
    return machine[function](*[tvm.runtime.tensor(v) for v in inputs])


def test_generator_knows_its_ops() -> None:
    ops = operations()
    assert sorted(ops) == sorted([*LINEAR, *ROUNDING])
    assert all(ops[name].exact for name in LINEAR)
    assert not any(ops[name].exact for name in ROUNDING)


@pytest.mark.longer_cases("stock")
@pytest.mark.parametrize("stock", [False, True], ids=["grad", "stock"])
def test_every_relax_op_at_its_kinks(stock: bool) -> None:
    """All element-wise ops in one program, each of parameters of its own."""
    chosen = {
        name: op
        for name, op in operations().items()
        if op.relax is not None and name not in ("amax", "amin", "pool", "prelu")
    }
    bb, params, terms = relax.BlockBuilder(), [], []
    ty = relax.TensorType(POINTS.shape, "float64")
    for name, op in chosen.items():
        params += [relax.Var(f"{name}{i}", ty) for i in range(op.count)]
    rest = iter(params)
    with bb.function("main", params):
        with bb.dataflow():
            for op in chosen.values():
                operands = [next(rest) for _ in range(op.count)]
                terms.append(bb.emit(relax.op.sum(bb.emit(op.relax(*operands)))))
            total = terms[0]
            for term in terms[1:]:
                total = bb.emit(relax.op.add(total, term))
            out = bb.emit_output(total)
        bb.emit_func_output(out)
    mod = bb.get()
    mod = relax.transform.Gradient("main")(mod) if stock else grad(mod)
    rng = np.random.default_rng(1)
    shuffled = [POINTS if p.name.endswith("0") else rng.permutation(POINTS) for p in params]
    # Half of each second operand is equal to the first.
    for i, p in enumerate(params):
        if p.name.endswith("1"):
            shuffled[i] = np.where(np.arange(len(POINTS)) % 2, POINTS, shuffled[i])
    _, got = run(mod, "main_adjoint", *shuffled)
    found = iter([g.numpy() for g in got])
    values = iter(shuffled)
    for name, op in chosen.items():
        leaves = [torch.tensor(next(values), requires_grad=True) for _ in range(op.count)]
        y = op.torch(*leaves)
        grads = torch.autograd.grad(y.sum(), leaves, allow_unused=True)
        for leaf, want in zip(leaves, grads, strict=True):
            expected = torch.zeros_like(leaf) if want is None else want
            np.testing.assert_allclose(
                next(found), expected.numpy(), rtol=1e-11, atol=1e-12, err_msg=name
            )


@pytest.mark.longer
def test_a_share_of_the_generator() -> None:
    """Nothing is wrong, and nothing is refused."""
    for index in range(12):
        line = GENERATOR.case(0, index)
        answer = GENERATOR.answer(line)
        assert answer["status"] == "passed", f"{answer['message']}\n{GENERATOR.command(line)}"


# Of order 2, at 0, with NaN or infinities; each was wrong or refused.
LINES = {
    "norm at 0": "pipeline=cpu special=0 order=1 seed=3 expr=norm(sub(x,x))",
    "smooth, twice": "pipeline=cpu special=0 order=2 seed=1 expr=smooth(x,y)",
    "huber, twice": "pipeline=cpu special=0 order=2 seed=1 expr=huber(x,y)",
    "smooth of infinities": "pipeline=cpu special=1 order=1 seed=600355 expr=smooth(x,y)",
    "huber of infinities": "pipeline=upstream special=1 order=1 seed=658080 expr=huber(x,y)",
    "elu, twice": "pipeline=cpu special=0 order=2 seed=974378 expr=elu(y)",
    "celu, twice": "pipeline=cpu special=0 order=2 seed=72727 expr=celu(x)",
    "selu, twice": "pipeline=cpu special=0 order=2 seed=497949 expr=selu(x)",
    "softplus, twice": "pipeline=cpu special=0 order=2 seed=468597 expr=softplus(y)",
    "sqrt of softshrink's zeros": "pipeline=cpu special=0 order=1 seed=9 expr=sqrt(softshrink(x))",
    "amax of NaN": "pipeline=upstream special=1 order=1 seed=5 expr=amax(x)",
    "max of NaN": "pipeline=cpu special=1 order=1 seed=5 expr=maxall(x)",
    "max along an axis with NaN": "pipeline=cpu special=1 order=1 seed=5 expr=maxdim(x)",
}


@pytest.mark.share(5)
@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_norms_losses_and_reductions(line: str) -> None:
    answer = GENERATOR.answer(f"front=torch dtype=float64 {line}")
    assert answer == {"status": "passed", "message": ""}


@pytest.mark.parametrize("op", ["selu", "softplus"])
def test_relax_activations_of_order_2(op: str) -> None:
    """At 0, and where softplus turns into a line, they do not bend."""
    line = f"front=grad dtype=float64 pipeline=cpu special=0 order=2 seed=663029 expr={op}(y)"
    assert GENERATOR.answer(line) == {"status": "passed", "message": ""}


class Extrema(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(()))


def check_result(module: Extrema, x: torch.Tensor, pipeline: Any) -> None:
    """What the module computes of x is what PyTorch computes, to the last bit."""
    want = module(x).detach().numpy()
    graph = from_torch(module, (x,), loss="mse")
    machine = virtual_machine(graph.module, legalize.cpu.host_target(), pipeline)
    given = (x.numpy(), np.zeros(want.shape, "float32"), np.ones((), "float32"))
    outputs = machine["main"](*[tvm.runtime.tensor(v) for v in given])
    np.testing.assert_array_equal(outputs[1].numpy(), want)


class Largest(Extrema):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.one
        found = torch.cat([x.amax(1), x.amin(1), x.max(1).values, x.min(1).values, x.max()[None]])
        return torch.cat([found, x[:1].min()[None]])


@pytest.mark.share(2)
@pytest.mark.parametrize("stock", [False, True])
def test_reductions_pass_nan(stock: bool) -> None:
    """Upstream's kernels drop it, whatever the pipeline."""
    x = torch.tensor([[1.0, math.nan, 3.0], [2.0, -1.0, 0.5], [math.nan, -math.inf, math.inf]])
    check_result(Largest(), x, "default" if stock else cpu_pipeline())


class AlongAnAxis(Extrema):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.one
        return torch.cat([x.max(1).values, x.min(1).values])


def test_extrema_that_are_infinities() -> None:
    """TVM's searches begin with the largest finite numbers, so that no index was found."""
    x = torch.tensor([[-math.inf, -math.inf], [math.inf, math.inf], [1.0, -math.inf]])
    check_result(AlongAnAxis(), x, cpu_pipeline())


def test_a_corner_is_told_before_rounding() -> None:
    """x / 6 + 0.5 at -3 is not 0 where it is rounded once: hardsigmoid's gradient passed."""
    line = "front=torch dtype=float64 pipeline=cpu special=0 seed=1 expr=hardsigmoid(x)"
    assert GENERATOR.answer(line) == {"status": "passed", "message": ""}


class Block(nn.Module):
    """A residual block whose last normalization starts at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.last = nn.BatchNorm2d(width)
        nn.init.zeros_(self.last.weight)
        self.gate = nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = fn.relu(self.norm(self.first(x)))
        y = self.last(self.second(y))
        y = y * torch.sigmoid(self.gate(y.mean((2, 3), keepdim=True)))
        return fn.relu(x + y)


@pytest.mark.longer("whole blocks; each operator at its kinks stays")
def test_residual_blocks_that_start_at_zero() -> None:
    """Half of all pixels are exact zeros before the second block's ReLU."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), Block(8), Block(8), nn.Flatten(),
                        nn.Linear(8 * 36, 5)).double()  # fmt: skip
    x, labels = torch.randn(2, 3, 8, 8, dtype=torch.float64), torch.tensor([1, 4])
    graph = from_torch(net, (x,))
    params = [graph.params[p.name] for p in graph.main.params[2:]]
    result, got = run(graph.gradient(), "main_adjoint", x.numpy(), labels.numpy(), *params)
    loss = fn.cross_entropy(net(x), labels)
    loss.backward()
    assert abs(result[0].numpy() - loss.item()) < 1e-12
    named = dict(net.named_parameters())
    for name, value in zip(graph.trainable, got, strict=True):
        want = named[graph.onnx_names[name]].grad.numpy()
        error = np.linalg.norm(value.numpy() - want)
        assert error <= 1e-12 * max(np.linalg.norm(want), 1.0), name


def test_maximum_and_minimum_keep_nan() -> None:
    nan = np.nan
    x, y = np.array([1, nan, 2, nan, 0.0]), np.array([2, 1, nan, nan, 0.0])
    ty = relax.TensorType((5,), "float64")
    a, b = relax.Var("a", ty), relax.Var("b", ty)
    bb = relax.BlockBuilder()
    with bb.function("main", [a, b]):
        with bb.dataflow():
            one = relax.const(np.float64(1.0), "float64")
            outs = [
                bb.emit(op(*pair))
                for op in (relax.op.maximum, relax.op.minimum)
                for pair in ((a, b), (a, one), (one, a))
            ]
            out = bb.emit_output(relax.Tuple(outs))
        bb.emit_func_output(out)
    got = [v.numpy() for v in run(bb.get(), "main", x, y)]
    want = [f(*p) for f in (np.maximum, np.minimum) for p in ((x, y), (x, 1), (1, x))]
    np.testing.assert_array_equal(got, want)


def test_unregister_puts_upstreams_rules_back() -> None:
    """ReLU's gradient passes at 0 by upstream's, and by ours it does not."""
    ty = relax.TensorType((3,), "float64")
    x = relax.Var("x", ty)
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(relax.op.sum(bb.emit(relax.op.nn.relu(x))))
        bb.emit_func_output(out)

    def compared() -> list[str]:
        mod = relax.transform.Gradient("main")(bb.get())
        bindings = mod["main_adjoint"].body.blocks[0].bindings
        names = [str(b.value.op.name) for b in bindings if isinstance(b.value, relax.Call)]
        return [name for name in names if "less" in name]

    assert compared() == ["relax.less_equal"]
    assert Op.get("relax.clip").get_attr("FPrimalGradient") is not None
    relay_wgrad.unregister()
    assert compared() == ["relax.less"]
    assert Op.get("relax.clip").get_attr("FPrimalGradient") is None
