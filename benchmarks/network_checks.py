"""Gradients and training of whole networks beside PyTorch's: modes of `benchmarks cpu networks`."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import tvm
from torch.overrides import TorchFunctionMode
from tvm import relax

from benchmarks.errors import far_from, furthest, norm
from benchmarks.network_stages import Send
from benchmarks.network_steps import apart
from benchmarks.network_zoo import BATCH, CLASSES, Loss, build
from legalize.cpu import host_target
from relay_wgrad.frontend import TrainingGraph, from_torch
from relay_wgrad.training import Trainer
from relay_wgrad.training.step import ADJOINT, step_module
from tests.support.torch.op_cases import Given, autograd

BOUND = 1e-9
BATCHES = (1, 3, 8)
STEPS = 50
RATE = 2e-4
# Beside each other two float32 trainings part by rounding: this far, of PyTorch's first loss.
APART = 0.05
# LLVM's level 0 compiles in half the time; what is computed is the same.
QUICK = {"kind": "llvm", "opt-level": 0}


class Exact(TorchFunctionMode):
    """PyTorch with a sixth of float64 in hardsigmoid's gradient, where its own has float32's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.hardsigmoid:
            return torch.nn.functional.relu6(args[0] + 3) / 6
        return func(*args, **(kwargs or {}))


def check(name: str, send: Send) -> None:
    """Sends how far loss and gradients in float64 are from autograd's; raises beyond `BOUND`.

    For each parameter ‖error‖ / max(‖gradient‖, 1e-6 ‖all gradients‖): one whose true gradient is
    0, as a bias's before batch normalization, has nothing but rounding.
    """
    torch.set_num_threads(1)
    network, side = build(name)
    module = Loss(network.double())
    spread(module)
    images = torch.rand(BATCH, 3, side, side, dtype=torch.float64)
    graph = from_torch(module, (images,), loss="own", dropout="mask", name=name)
    batch = graph.random_batch(3)
    drawn = sum(spec.kind in ("mask", "random") for spec in graph.inputs)
    send({"image": side, "parameters": len(graph.trainable), "random": drawn})
    with Exact():
        loss, wanted = autograd(copy.deepcopy(module), graph, batch)

    def shaken() -> dict[str, Any]:
        with Exact():
            return autograd(copy.deepcopy(module), graph, moved(graph, batch))[1]

    compared(graph, batch, loss, wanted, send, BOUND, shaken=shaken)


def moved(graph: TrainingGraph, batch: dict[str, Any]) -> dict[str, Any]:
    """The batch with each number of its images one rounding away."""
    rng = np.random.default_rng(7)
    changed = dict(batch)
    for name in (s.name for s in graph.inputs if s.kind == "data"):
        value = np.asarray(batch[name])
        if value.dtype.kind == "f":
            up = np.where(rng.random(value.shape) < 0.5, np.inf, -np.inf).astype(value.dtype)
            changed[name] = np.nextafter(value, up)
    return changed


def check_open(name: str, send: Send) -> None:
    """As `check`, of one step that is compiled for any number of images, for each of `BATCHES`.

    A number below the least that the graph takes, as 1 for statistics of 1x1 pixels, is that one.
    """
    torch.set_num_threads(1)
    network, side = build(name)
    module = Loss(network.double())
    spread(module)
    images = torch.rand(BATCH, 3, side, side, dtype=torch.float64)
    given = (images, torch.arange(BATCH))
    graph = from_torch(module, given, loss="own", dropout="mask", name=name, batch="N")
    labels = [spec.name for spec in graph.inputs if spec.kind == "data"][1]
    machine, worst = _compiled(graph), 0.0
    for count in sorted({max(n, graph.limits.least) for n in BATCHES}):
        batch = {**graph.random_batch(3, count), labels: np.arange(count) % CLASSES}
        with Exact():
            loss, wanted = autograd(copy.deepcopy(module), graph, batch)
        row: dict[str, Any] = {}
        try:
            compared(graph, batch, loss, wanted, row.update, BOUND, machine)
        except ValueError as error:
            raise ValueError(f"{count} images: {error}") from error
        worst = max(worst, row["worst"])
        drawn = sum(spec.kind in ("mask", "random") for spec in graph.inputs)
        send({**row, "worst": worst, "image": side, "parameters": len(wanted), "random": drawn})


def compared(
    graph: TrainingGraph, batch: dict[str, Any], loss: Any, wanted: dict[str, Any], send: Send,
    bound: float, machine: Any = None, shaken: Callable[[], dict[str, Any]] | None = None,
) -> None:  # fmt: skip
    """Sends how far the graph's step is from this loss and these gradients; raises beyond.

    machine : of `_compiled`, where that is done.  shaken : makes the wanted gradients for images
    one rounding away, to tell beside an error how far these go.
    """
    began = time.perf_counter()
    machine = _compiled(graph) if machine is None else machine
    arguments = [tvm.runtime.tensor(np.asarray(a, order="C")) for a in graph.arguments(batch)]
    outputs, gradients = machine[ADJOINT](*arguments)
    send({"step_s": round(time.perf_counter() - began, 1)})
    loss_error = abs(float(outputs[0].numpy()) - float(loss)) / max(abs(float(loss)), 1e-300)
    total = norm(wanted.values())
    worst, place = furthest((g.numpy() for g in gradients), wanted.values())
    of = list(wanted)[place]
    send({"loss_error": loss_error, "worst": worst, "worst_of": of, "norm": total})
    if not (loss_error <= bound and worst <= bound):
        said = f"the loss is {loss_error:.1e} and the gradient of {of} {worst:.1e} away"
        if shaken is not None:
            own = far_from(shaken()[of], wanted[of], total)
            send({"rounding": own})
            said += f"; PyTorch's own goes {own:.1e} by a rounding of images"
        raise ValueError(said)


def spread(module: torch.nn.Module) -> None:
    """Parameters that begin as one constant (gates, scales of residuals) get random numbers."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
                noise = torch.rand(parameter.shape, dtype=parameter.dtype, generator=generator)
                parameter.add_(0.2 * (noise - 0.5))


def _compiled(graph: TrainingGraph) -> Any:
    module = step_module(graph)
    return relax.VirtualMachine(tvm.compile(module, tvm.target.Target(QUICK)), tvm.cpu())


def train(name: str, send: Send) -> None:
    """Sends losses of 50 steps on one batch in float32, ours and PyTorch's; raises if they part.

    Plain SGD; dropout and stochastic depth as they are drawn, the same for both.  Where they part
    by more than `APART`, `rounding` says how far PyTorch's go from themselves with images one
    rounding away.
    """
    torch.set_num_threads(1)
    network, side = build(name)
    module = Loss(network)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(BATCH, 3, side, side, generator=generator)
    labels = torch.arange(BATCH) % CLASSES
    graph = from_torch(module, (images, labels), loss="own", dropout="mask", name=name)
    send({"image": side, "parameters": len(graph.trainable)})
    data = [spec.name for spec in graph.inputs if spec.kind == "data"]
    given = dict(zip(data, (images.numpy(), labels.numpy()), strict=True))
    trainer = Trainer(graph, host_target(), optimizer="sgd", lr=RATE, layout="NHWC")
    batches = [{**graph.random_batch(step), **given} for step in range(STEPS)]
    ours = [float(trainer.step(batch)) for batch in batches]
    before = copy.deepcopy(module)
    theirs = _pytorch_losses(module, graph, batches)
    furthest = apart(ours, theirs)
    send({"first": ours[0], "last": ours[-1], "last_pytorch": theirs[-1], "furthest": furthest,
          "losses": ours, "pytorch": theirs})  # fmt: skip
    if furthest <= APART:
        return
    # The images are the same in all batches, and so is what each is moved by.
    own = apart(_pytorch_losses(before, graph, [moved(graph, b) for b in batches]), theirs)
    send({"rounding": own})
    raise ValueError(
        f"losses part by {furthest:.1%} of the first, PyTorch's own by {own:.1%} by a rounding"
    )


def _pytorch_losses(
    module: Any, graph: TrainingGraph, batches: list[dict[str, Any]]
) -> list[float]:
    """PyTorch's losses of steps of SGD."""
    named = dict(module.named_parameters())
    trained = [named[graph.onnx_names[n]] for n in graph.trainable]
    optimizer = torch.optim.SGD(trained, lr=RATE)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        losses.append(_pytorch_loss(module, graph, batch))
        optimizer.step()
    return losses


def _pytorch_loss(module: Any, graph: TrainingGraph, batch: dict[str, Any]) -> float:
    """PyTorch's loss of a batch, with its random numbers; gradients are left in the parameters."""
    drawn = [(s, batch[s.name]) for s in graph.inputs if s.kind in ("mask", "random")]
    data = [torch.tensor(batch[s.name]) for s in graph.inputs if s.kind == "data"]
    with Given(drawn):
        loss = module(*data)
    loss.backward()
    return float(loss.detach())
