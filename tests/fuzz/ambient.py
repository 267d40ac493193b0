"""A first call within modes of PyTorch's: what it gives beside eager mode's, in the same modes.

    python -m tests.fuzz.ambient --minutes 30

A case is a network, one or two modes (`tests/support/torch/modes.py`), the second one around the
first, and a call that compiles something: a `TrainingStep` that is made, called first, or called
with a new shape; `from_torch`; a function of `torch.compile`, also with a new size; an operator; a
layer that `optimize` measures.  Results and gradients are eager mode's; afterwards no mode is left,
and PyTorch's random numbers go on where they were.

    plain/shape checkpoint,no_grad
"""

from __future__ import annotations

import copy
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

from .harness import REFUSED, Generator, main

CALLS = ("made", "first", "shape", "from_torch", "compiled", "size", "operator", "optimize")
NETWORKS = ("plain", "norm", "makes", "weights", "float32")
BOUND = {"float64": 1e-9, "float32": 2e-2}  # autocast's, of float32


def case(seed: int, index: int) -> str:
    from tests.support.torch.modes import MODES

    rng = random.Random(f"ambient {seed} {index}")
    modes = rng.sample(list(MODES), k=rng.choice((1, 1, 2)))
    return f"{rng.choice(NETWORKS)}/{rng.choice(CALLS)} {','.join(modes)}"


def labels(line: str) -> dict[str, str]:
    head, _, modes = line.partition(" ")
    network, _, call = head.partition("/")
    return {"network": network, "call": call, "mode": modes.partition(",")[0]}


def _network(name: str) -> Any:
    import torch
    from torch import nn

    class Makes(nn.Module):
        """Makes tensors of its own, by the default dtype and where tensors are by default."""

        def forward(self, x: Any) -> Any:
            return x * torch.arange(x.shape[-1]).to(x) + torch.full((1,), 1 / 3).to(x.device)

    torch.manual_seed(0)
    middle: Any = {"norm": nn.BatchNorm2d(4), "makes": Makes()}.get(name, nn.Softplus())
    # Smooth: a rounding of autocast's may not decide whether a gradient passes.
    made = nn.Sequential(nn.Conv2d(2, 4, 3), middle, nn.Tanh(), nn.Conv2d(4, 2, 3))
    if name == "weights":
        nn.utils.parametrizations.weight_norm(made[0])
    return made if name == "float32" else made.double()


def check(line: str) -> str | None:
    import torch

    import relay_wgrad
    from tests.support.torch.modes import left

    relay_wgrad.register()
    torch._dynamo.reset()
    head, _, modes = line.partition(" ")
    name, _, call = head.partition("/")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        wrong = _compared(name, call, modes.split(","))
    if still := left():
        return f"still in {', '.join(still)}: {wrong}"
    own = [str(w.message) for w in said if "PyTorch runs this" in str(w.message)]
    return wrong or (f"{REFUSED}fell back: {own[0].partition(': ')[2]}" if own else None)


def _compared(name: str, call: str, modes: list[str]) -> str | None:
    import torch
    from torch._dynamo.exc import InternalTorchDynamoError
    from torch.utils.checkpoint import CheckpointError

    from tests.support.torch.modes import MODES

    net, twin = _network(name), _network(name)
    dtype = torch.float32 if name == "float32" else torch.float64
    x = torch.randn(2, 2, 7, 6, dtype=dtype)

    def within(function: Callable[[Any], Any]) -> Any:
        for mode in modes:
            function = _in(MODES[mode], function)
        return function(x)

    if call == "from_torch":
        return _imported(net, twin, x, within)
    try:
        want = _results(within, twin, twin)
    except Exception as error:
        return f"{REFUSED}PyTorch's own: {type(error).__name__}"
    if want[0].device.type == "meta":
        return f"{REFUSED}PyTorch's own: on meta"
    function = _first(call, net, x)
    state = torch.get_rng_state()
    try:
        got = _results(within, function, net)
    except (ValueError, TypeError, NotImplementedError) as error:
        return f"{REFUSED}{' '.join(str(error).split())}"
    except CheckpointError:
        # Recomputed behind a level of forward derivatives that the first pass was in: PyTorch's
        # own rule, of every compiled function.
        if "dual" not in modes:
            raise
        return f"{REFUSED}a recomputation behind its level, by PyTorch"
    except InternalTorchDynamoError as error:
        if said := _also_of_eager(twin, within):
            return f"{REFUSED}torch.compile(backend='eager') too: {said}"
        raise error
    if not torch.equal(torch.get_rng_state(), state):
        return "random numbers were drawn"
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if (a is None) != (b is None):
            return f"result {i} is {a}, PyTorch's {b}"
        if b is None:
            continue
        if a.shape != b.shape or a.requires_grad != b.requires_grad:
            return (
                f"result {i} is {a.shape} {a.requires_grad}, PyTorch's {b.shape} {b.requires_grad}"
            )
        far = float((a.double() - b.double()).norm())
        if not far <= BOUND[str(dtype).removeprefix("torch.")] * (1 + float(b.double().norm())):
            return f"result {i} is off by {far:.2g} of {float(b.double().norm()):.2g}"
    return None


def _also_of_eager(net: Any, within: Any) -> str:
    """What a backend that compiles nothing raises there, or ""."""
    import torch

    torch._dynamo.reset()
    try:
        within(torch.compile(net, backend="eager"))
    except Exception as error:
        return type(error).__name__
    return ""


def _in(mode: Any, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: mode(function, x)


def _results(within: Any, function: Callable[[Any], Any], net: Any) -> list[Any]:
    """(the output, gradients of parameters)."""
    out = within(function)
    if out.requires_grad:
        out.square().sum().backward()
    return [out, *(p.grad for p in net.parameters())]


def _first(call: str, net: Any, x: Any) -> Callable[[Any], Any]:
    """What compiles for x when it is called."""
    import torch

    import relay_wgrad.torch as rt

    if call == "made":
        return lambda y: rt.TrainingStep(net, x)(y)
    if call == "first":
        step = copy.deepcopy(rt.TrainingStep(net, x))
        step._wrapped.load_state_dict(net.state_dict())
        for name, parameter in net.named_parameters():
            owner, _, last = name.rpartition(".")
            step.get_submodule(owner)._parameters[last] = parameter
        return step
    if call == "shape":
        return rt.TrainingStep(net, torch.cat([x, x[:1]]))
    if call == "optimize":
        rt.clear_cache()
        rt.optimize(net, margin=0.0)
        return net
    if call == "operator":
        rt.clear_cache()
        for layer in net:
            if type(layer) is torch.nn.Conv2d:
                layer.__class__ = rt.Conv2d
        return net
    made = torch.compile(net, backend="relay_wgrad", dynamic=call == "size")
    if call == "size":
        state = copy.deepcopy(net.state_dict())
        made(torch.cat([x, x[:1]])).sum().backward()
        net.load_state_dict(state)
        net.zero_grad()
    return made


def _imported(net: Any, twin: Any, x: Any, within: Any) -> str | None:
    """Of `from_torch`: the graph that it gives outside."""
    import torch

    from relay_wgrad.frontend import from_torch

    texts: list[str] = []

    def imported(y: Any) -> Any:
        texts.append(from_torch(net, (x,), loss="none").module.script())
        return y.sum()

    try:
        within(lambda y: y.square().sum())
    except Exception as error:
        return f"{REFUSED}PyTorch's own: {type(error).__name__}"
    try:
        within(imported)
    except ValueError as error:
        return f"{REFUSED}{' '.join(str(error).split())}"
    here = from_torch(twin, (x,), loss="none").module.script()
    assert torch.is_grad_enabled()
    return None if all(text == here for text in texts) else "another graph"


GENERATOR = Generator(
    "ambient", "first calls within modes of PyTorch's, against eager mode in the same modes",
    case=case, labels=labels, check=check, timeout=200, recycle=50,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
