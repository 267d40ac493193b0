"""Ways to use a compiled model in training: each takes a module, what runs it and what makes its
images of a seed, and gives what there is to compare."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

Images = Callable[[int], torch.Tensor]


def gradients(module: nn.Module) -> list[torch.Tensor]:
    """Of the parameters that have one, which they give up."""
    found = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    module.zero_grad()
    return found


def at_once(module: nn.Module, run: Any, images: Images) -> list[torch.Tensor]:
    y = run(images(0))
    y.square().sum().backward()
    return [y.detach(), *gradients(module), *module.buffers()]


def again(module: nn.Module, run: Any, images: Images) -> list[torch.Tensor]:
    """A backward pass that comes again, and one after it."""
    loss = run(images(0)).square().sum()
    loss.backward(retain_graph=True)
    first = gradients(module)
    loss.backward(retain_graph=True)
    second = gradients(module)
    loss.backward()
    return [*first, *second, *gradients(module)]


def after_others(module: nn.Module, run: Any, images: Images) -> list[torch.Tensor]:
    """Backward passes in another order than the forward passes."""
    losses = [run(images(seed)).square().sum() for seed in range(3)]
    found = []
    for i in (1, 2, 0):
        losses[i].backward()
        found += gradients(module)
    return found


def accumulated(module: nn.Module, run: Any, images: Images) -> list[torch.Tensor]:
    for seed in range(3):
        run(images(seed)).square().sum().backward()
    return gradients(module)


def by_inputs(module: nn.Module, run: Any, images: Images) -> list[torch.Tensor]:
    x = images(0).requires_grad_()
    return list(torch.autograd.grad(run(x).sin().sum(), [x, next(module.parameters())]))


def without_gradients(module: nn.Module, run: Any, images: Images) -> list[torch.Tensor]:
    """Calls without a backward pass between calls with one."""
    found = at_once(module, run, images)
    run(images(1))
    with torch.no_grad():
        found.append(run(images(2)))
    return found + at_once(module, run, images)


def kept_on_the_host(module: nn.Module, run: Any, images: Images) -> list[torch.Tensor]:
    with torch.autograd.graph.save_on_cpu():
        loss = run(images(0)).square().sum()
    run(images(1))
    loss.backward()
    return gradients(module)


def kept_by_hooks(module: nn.Module, run: Any, images: Images) -> list[torch.Tensor]:
    """Of which others read what they have made of it, a graph's worth later."""
    with saved_tensors_hooks(lambda x: (x.device, x.cpu().numpy().copy()), _back):
        losses = [run(images(seed)).square().sum() for seed in range(2)]
    loss = run(images(3)).square().sum()
    (losses[1] + losses[0] + loss).backward()
    return gradients(module)


def _back(kept: Any) -> torch.Tensor:
    return torch.from_numpy(kept[1]).to(kept[0])


def checkpointed(module: nn.Module, run: Any, images: Images) -> list[torch.Tensor]:
    x = images(0).requires_grad_()
    y = checkpoint(run, x, use_reentrant=False)
    z = checkpoint(run, x * 2, use_reentrant=True)
    (y * z).sum().backward()
    return [x.grad, *gradients(module)]


def in_another_thread(module: nn.Module, run: Any, images: Images) -> list[torch.Tensor]:
    losses = [run(images(seed)).square().sum() for seed in range(2)]
    threads = [threading.Thread(target=loss.backward) for loss in losses]
    for thread in threads:
        thread.start()
        thread.join()
    return gradients(module)


USES = (
    at_once, again, after_others, accumulated, by_inputs, without_gradients, kept_on_the_host,
    kept_by_hooks, checkpointed, in_another_thread,
)  # fmt: skip
