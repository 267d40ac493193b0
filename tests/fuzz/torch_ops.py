"""Random small PyTorch modules through `from_torch`: autograd's loss and gradients, or a refusal.

A case is a chain of steps, each behind a convolution of its own: an op of `from_torch`'s list or
one from outside of it, plain, as a residual, detached, under `no_grad`, under `enable_grad` within
it, or straight through; with layers of the module in training or evaluation mode, in float64 or
float32; random numbers are the same in both.

    f64 train 12: relu | no_grad(sigmoid) | bn | straight(round) | drop path

A refusal is a ValueError that names an op, or what stops it; anything else is a failure.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .harness import REFUSED, Generator, main

MODES = ("plain", "plain", "residual", "detach", "no_grad", "enable_grad", "straight", "by stop")
# A module's own layers, whose mode counts.
MODULES = (
    "bn",
    "dropout layer",
    "dropout2d layer",
    "alpha layer",
    "frozen conv",
    "stochastic depth",
)
_BOUND = {"f64": 1e-7, "f32": 5e-3}
# Of the largest gradient: a bias before batch normalization has none but rounding.
_FLOOR = {"f64": 1e-5, "f32": 1e-3}


def _names() -> list[str]:
    from tests.support.torch.op_cases import TAKEN
    from tests.support.torch.op_strangers import STRANGERS

    return [*TAKEN, *MODULES, *STRANGERS]


def case(seed: int, index: int) -> str:
    rng = random.Random(f"{seed}/{index}")
    names = _names()
    known = len(names) - _strangers()
    steps = []
    for _ in range(rng.choice((1, 2, 3, 4))):
        stranger = rng.random() < 0.12
        name = rng.choice(names[known:] if stranger else names[:known])
        mode = rng.choice(MODES)
        steps.append(name if mode == "plain" else f"{mode}({name})")
    dtype = "f64" if rng.random() < 0.8 else "f32"
    return f"{dtype} {rng.choice(('train', 'eval'))} {rng.randrange(1000)}: {' | '.join(steps)}"


def _strangers() -> int:
    from tests.support.torch.op_strangers import STRANGERS

    return len(STRANGERS)


def _parsed(line: str) -> tuple[str, str, int, list[tuple[str, str]]]:
    head, _, body = line.partition(": ")
    dtype, mode, seed = head.split()
    steps = []
    for step in body.split(" | "):
        how, _, name = step.partition("(")
        steps.append((how, name.removesuffix(")")) if name and how in MODES else ("plain", step))
    return dtype, mode, int(seed), steps


def labels(line: str) -> dict[str, str]:
    dtype, mode, _, steps = _parsed(line)
    return {"dtype": dtype, "mode": mode, "wrapped": steps[0][0], "op": steps[0][1]}


def _layer(name: str) -> Any:
    from torch import nn

    from tests.support.torch.op_cases import Drop

    if name == "bn":
        norm = nn.BatchNorm2d(4)
        norm.running_mean.uniform_(-1, 1)  # type: ignore[operator, union-attr]
        norm.running_var.uniform_(0.5, 2)  # type: ignore[operator, union-attr]
        return norm
    if name == "frozen conv":
        return nn.Conv2d(4, 4, 3, padding=1).requires_grad_(False)
    return {
        "dropout layer": nn.Dropout(0.3), "dropout2d layer": nn.Dropout2d(0.3),
        "alpha layer": nn.AlphaDropout(0.3), "stochastic depth": Drop(),
    }[name]  # fmt: skip


def _wrapped(how: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    import torch

    def like(y: Any) -> Any:
        """The result in y's shape."""
        out = function(y).to(y.dtype)
        return out if out.shape == y.shape else y * out.mean()

    def no_grad(y: Any) -> Any:
        with torch.no_grad():
            out = like(y)
        return y * out

    def enable_grad(y: Any) -> Any:
        with torch.no_grad():
            first = torch.sigmoid(y)
            with torch.enable_grad():
                second = like(first * y)
            third = second * 2
        return second + third * y

    return {
        "plain": function,
        "residual": lambda y: y + like(y),
        "detach": lambda y: y * like(y).detach(),
        "no_grad": no_grad,
        "enable_grad": enable_grad,
        "straight": lambda y: y + (like(y) - y).detach(),
        "by stop": lambda y: like(y.detach()) + 0.5 * y,
    }[how]


def module_of(line: str) -> Any:
    """The module that a line names."""
    import torch

    from tests.support.torch.op_cases import TAKEN, Chain
    from tests.support.torch.op_strangers import STRANGERS

    dtype, mode, seed, steps = _parsed(line)
    torch.manual_seed(seed)
    functions: list[Any] = []
    layers = []
    for how, name in steps:
        function: Any = {**TAKEN, **STRANGERS}.get(name)
        if function is None:
            function = _layer(name)
            layers.append(function)
        functions.append(_wrapped(how, function))
    kind = torch.float64 if dtype == "f64" else torch.float32
    module = Chain(functions, kind, seed)
    module.layers = torch.nn.ModuleList(layers)
    return module.to(kind).train(mode == "train")


def check(line: str) -> str | None:
    import torch

    import relay_wgrad
    from relay_wgrad.frontend import from_torch
    from tests.support.onnx.models import call
    from tests.support.torch.op_cases import autograd

    relay_wgrad.register()
    module = module_of(line)
    kind = line[:3]
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64 if kind == "f64" else torch.float32)
    try:
        module(x.clone())
    except Exception as error:  # PyTorch refuses it: nothing to compare
        return f"{REFUSED}PyTorch: {type(error).__name__}"
    module = module_of(line)
    try:
        graph = from_torch(module, (x,), loss="own", dropout="mask")
        adjoint = graph.gradient()
    except ValueError as error:
        said = str(error)
        named = "PyTorch op" in said or "torch.export refuses" in said or "Chain: " in said
        return f"{REFUSED if named else 'a refusal that names nothing: '}{said[:160]}"
    batch = graph.random_batch(int(line.split(":")[0].split()[2]))
    try:
        # Made anew: a copy's functions would still have the layers of the first.
        loss, expected = autograd(module_of(line), graph, batch)
    except LookupError as error:
        return str(error)
    outputs, gradients = call(adjoint, "main_adjoint", graph.arguments(batch))
    bound = _BOUND[kind]
    if not bool(torch.isfinite(loss)) and np.isfinite(outputs[0].numpy()):
        return f"PyTorch's loss is {loss}, the graph's {outputs[0].numpy()}"
    if not _near(outputs[0].numpy(), loss.numpy(), bound):
        return f"loss {outputs[0].numpy()} for {loss.numpy()}"
    if not bool(torch.isfinite(loss)):
        return None  # which gradients are infinite, and which their differences, is rounding
    scale = max([float(np.abs(g).max()) for g in expected.values()], default=0.0)
    for (name, want), got in zip(expected.items(), gradients, strict=True):
        if not _near(got.numpy(), want, bound, scale * _FLOOR[kind]):
            error = float(np.linalg.norm(got.numpy() - want) / max(np.linalg.norm(want), 1e-30))
            return f"gradient of {name} off by {error:.2g}"
    return None


def _near(got: Any, want: Any, bound: float, floor: float = 0.0) -> bool:
    """Whether two arrays agree in the relative norm; where one is not finite, the other is not."""
    finite = np.isfinite(got) & np.isfinite(want)
    if not np.array_equal(np.isfinite(got), np.isfinite(want)):
        return False
    far = np.linalg.norm(np.where(finite, got - want, 0))
    return bool(far <= bound * max(np.linalg.norm(np.where(finite, want, 0)), floor, 1e-12))


GENERATOR = Generator(
    "torch_ops", "from_torch's loss and gradients against autograd's, or a refusal by name",
    case=case, labels=labels, check=check,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
