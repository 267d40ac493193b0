"""Training loops as people write them, and odder ones: a `TrainingStep` beside its module.

    python -m tests.fuzz.loops --minutes 30

A case is a row of actions, with or without passes as graphs (by a lane that is none), made with two
steps of one class and with PyTorch's twins: results that an action gives, every `.grad` and buffer
behind it, and what hooks were told are the twins', in float64, or both raise.  Between actions are
steps of usual loops, so that what was kept for those meets what has changed.

    graphs: two batches,hook,swapped,grad of some
"""

from __future__ import annotations

import copy
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

from .harness import Generator, main

BOUND = 1e-10
Action = Callable[["Side"], Any]
ACTIONS: dict[str, Action] = {}
WAYS = ("graphs", "calls")
REFUSED_BY_US = {"create graph": "create_graph", "swapped tensors": "Cannot swap"}
"""Actions that autograd does, and that a step may refuse with a RuntimeError of these words: a
tensor is not swapped while what a step goes by looks at it."""


class Side:
    """Two models, and what is done with them; `torch` is imported by who makes one."""

    def __init__(self, models: Any, optimizer: Any) -> None:
        self.models, self.optimizer = models, optimizer
        self.log: dict[str, list[Any]] = {}  # by hook, as their order is nobody's promise
        self.hooks: list[Any] = []
        self.keeps: list[Any] = []
        self.batch = 0

    @property
    def first(self) -> Any:
        return self.models[0]

    @property
    def weight(self) -> Any:
        return self.first.inner.weight

    def x(self) -> Any:
        import torch

        self.batch += 1
        return torch.sin(torch.arange(15, dtype=torch.float64) * self.batch).view(3, 5)

    def told(self, hook: str, gradient: Any) -> None:
        self.log.setdefault(hook, []).append(gradient.detach().clone())

    def loss(self, model: Any = None, x: Any = None) -> Any:
        out = (self.first if model is None else model)(self.x() if x is None else x)
        return out.square().mean()


DONE_BY_US = {"changed parameter"}
"""Actions that autograd refuses: a graph with a copy of its operand does not read the change."""


def action(function: Action) -> Action:
    ACTIONS[function.__name__.strip("_").replace("_", " ")] = function
    return function


@action
def usual(side: Side) -> Any:
    side.optimizer.zero_grad()
    loss = side.loss()
    loss.backward()
    side.optimizer.step()
    return loss


@action
def two_batches(side: Side) -> Any:
    for _ in range(2):
        (side.loss() / 2).backward()


@action
def two_batches_summed(side: Side) -> Any:
    (side.loss() + 2 * side.loss()).backward()


@action
def two_batches_in_turns(side: Side) -> Any:
    first, second = side.loss(), side.loss()
    second.backward()
    first.backward()


@action
def twice(side: Side) -> Any:
    loss = side.loss()
    loss.backward(retain_graph=True)
    loss.backward()


@action
def kept_and_summed(side: Side) -> Any:
    """A graph that is kept, in a graph with a later pass."""
    loss = side.loss()
    loss.backward(retain_graph=True)
    (loss + side.loss()).backward()


@action
def too_often(side: Side) -> Any:
    loss = side.loss()
    loss.backward()
    loss.backward()


@action
def given_up(side: Side) -> Any:
    side.keeps.append(side.loss())  # its graph is nobody's turn, and stays


@action
def both_models(side: Side) -> Any:
    loss = side.loss() * side.loss(side.models[1])
    loss.backward()
    return loss


@action
def one_behind_another(side: Side) -> Any:
    out = side.models[1](side.x())
    side.loss(x=out.repeat(1, 2)[:, :5]).backward()


@action
def grad_of_some(side: Side) -> Any:
    import torch

    some = [p for p in side.first.parameters() if p.requires_grad][::2]
    return torch.autograd.grad(side.loss(), some)


@action
def grad_and_backward(side: Side) -> Any:
    import torch

    loss = side.loss()
    found = torch.autograd.grad(loss, [side.first.head.weight], retain_graph=True)
    loss.backward()
    return found


@action
def grad_of_input(side: Side) -> Any:
    import torch

    x = side.x().requires_grad_()
    loss = side.loss(x=x)
    found = torch.autograd.grad(loss, x, retain_graph=True)
    loss.backward()
    return *found, x.grad


@action
def grad_of_none(side: Side) -> Any:
    """Of what is no parameter of this model."""
    import torch

    other = side.models[1].head.weight
    return torch.autograd.grad(side.loss(), [side.first.head.weight, other], allow_unused=True)


@action
def backward_to_some(side: Side) -> Any:
    side.loss().backward(inputs=[side.first.head.bias, side.first.norm.weight])


@action
def create_graph(side: Side) -> Any:
    side.loss().backward(create_graph=True)


@action
def hook(side: Side) -> Any:
    side.hooks.append(side.first.head.weight.register_hook(lambda g: g * 2))


@action
def telling_hook(side: Side) -> Any:
    side.hooks.append(side.first.norm.bias.register_hook(lambda g: side.told("telling", g)))


@action
def post_hook(side: Side) -> Any:
    def told(p: Any) -> None:
        side.told("post", p.grad)
        p.grad = None

    side.hooks.append(side.first.head.bias.register_post_accumulate_grad_hook(told))


@action
def hook_of_several(side: Side) -> Any:
    import torch

    def told(gradients: Any) -> None:
        for g in gradients:
            if g is not None:
                side.told("several", g)

    some = [side.first.head.weight, side.first.head.bias]
    side.hooks.append(torch.autograd.graph.register_multi_grad_hook(some, told))


@action
def accumulators_hook(side: Side) -> Any:
    """As `DistributedDataParallel` has them."""
    node = side.first.head.weight.expand_as(side.first.head.weight).grad_fn.next_functions[0][0]
    side.keeps.append(node)
    side.hooks.append(node.register_prehook(lambda grads: tuple(g * 3 for g in grads)))


@action
def no_hooks(side: Side) -> Any:
    for one in side.hooks:
        one.remove()
    side.hooks.clear()


@action
def grads_of_ones(side: Side) -> Any:
    import torch

    for p in side.first.parameters():
        p.grad = torch.ones_like(p)


@action
def grads_kept(side: Side) -> Any:
    side.keeps.append([p.grad for p in side.first.parameters()])


@action
def grads_zeroed(side: Side) -> Any:
    side.optimizer.zero_grad(set_to_none=False)


@action
def frozen(side: Side) -> Any:
    side.weight.requires_grad_(not side.weight.requires_grad)


@action
def swapped(side: Side) -> Any:
    import torch

    side.first.inner.weight = torch.nn.Parameter(side.weight.detach() * 1.5)


@action
def other_memory(side: Side) -> Any:
    side.weight.data = side.weight.detach().clone() + 0.25


@action
def swapped_tensors(side: Side) -> Any:
    import torch

    other = torch.nn.Parameter(side.weight.detach(), requires_grad=side.weight.requires_grad)
    side.weight.grad = None
    torch.utils.swap_tensors(side.weight, other)


@action
def no_leaf(side: Side) -> Any:
    """A parameter that is computed, in its own memory."""
    import torch

    weight = side.first.head.weight
    scale = torch.full((), 1.25, dtype=torch.float64, requires_grad=True)
    weight.requires_grad_(False)
    weight.mul_(scale)
    side.loss().backward()
    side.first.head.weight = torch.nn.Parameter(weight.detach().clone())
    return scale.grad


@action
def functional_leaves(side: Side) -> Any:
    return _functional(side, lambda p: p.detach().clone().requires_grad_())


@action
def functional_computed(side: Side) -> Any:
    return _functional(side, lambda p: p * 1.5)


def _functional(side: Side, make: Callable[[Any], Any]) -> Any:
    import torch

    given = {name: make(p) for name, p in side.first.named_parameters()}
    for p in given.values():
        p.requires_grad_()
    loss = torch.func.functional_call(side.first, given, (side.x(),)).square().mean()
    return torch.autograd.grad(loss, list(given.values()))


@action
def without_gradients(side: Side) -> Any:
    import torch

    with torch.no_grad():
        return side.loss()


@action
def inference(side: Side) -> Any:
    import torch

    with torch.inference_mode():
        return side.loss().item()


@action
def evaluation(side: Side) -> Any:
    side.first.eval()
    loss = side.loss()
    loss.backward()
    side.first.train()
    return loss


@action
def autocast(side: Side) -> Any:
    import torch

    with torch.autocast("cpu", torch.bfloat16):
        out = side.first(side.x())
    out.double().square().mean().backward()


@action
def scaler(side: Side) -> Any:
    import torch

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    side.optimizer.zero_grad()
    scaler.scale(side.loss()).backward()
    scaler.unscale_(side.optimizer)
    torch.nn.utils.clip_grad_norm_(side.first.parameters(), 0.5)
    scaler.step(side.optimizer)
    scaler.update()


@action
def detached(side: Side) -> Any:
    out = side.first(side.x())
    (out.detach() * side.first(side.x())).mean().backward()


@action
def changed_output(side: Side) -> Any:
    out = side.first(side.x())
    out.mul_(2)
    out.square().mean().backward()


@action
def changed_parameter(side: Side) -> Any:
    """Between the passes, which raises."""
    import torch

    loss = side.loss()
    with torch.no_grad():
        side.first.head.weight.mul_(1.0)
    loss.backward()


@action
def another_thread(side: Side) -> Any:
    loss = side.loss()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()


@action
def saved_elsewhere(side: Side) -> Any:
    import torch

    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x):
        first = side.loss()
    second = side.loss()
    (first + second).backward()


@action
def checkpointed(side: Side) -> Any:
    from torch.utils.checkpoint import checkpoint

    side.first.eval()  # statistics are renewed twice else
    checkpoint(side.first, side.x(), use_reentrant=False).square().mean().backward()
    side.first.train()


@action
def copied(side: Side) -> Any:
    model = copy.deepcopy(side.first)
    loss = side.loss(model)
    loss.backward()
    return [p.grad for p in model.parameters()]


# ---- cases ---------------------------------------------------------------------------------------


def case(seed: int, index: int) -> str:
    rng = random.Random(f"loops {seed} {index}")
    actions = [rng.choice([*ACTIONS]) for _ in range(rng.choice((2, 4, 8)))]
    return f"{rng.choice(WAYS)}: {','.join(actions)}"


def labels(line: str) -> dict[str, str]:
    way, _, actions = line.partition(": ")
    return {"way": way, "last": actions.rpartition(",")[2]}


def check(line: str) -> str | None:
    import pytest

    from tests.support.torch.lane import on_lanes

    way, _, actions = line.partition(": ")
    with pytest.MonkeyPatch.context() as patch:
        if way == "graphs":
            on_lanes(patch)
        return _checked(actions.split(","))


def _checked(actions: list[str]) -> str | None:
    import torch

    import relay_wgrad
    import relay_wgrad.torch as rt

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.norm = torch.nn.Linear(5, 4, bias=False), torch.nn.BatchNorm1d(4)
            self.head = torch.nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            return self.head(torch.tanh(self.norm(self.inner(x))))

    relay_wgrad.register()
    torch.manual_seed(0)
    twins = [Net().double() for _ in range(2)]
    x = torch.ones(3, 5, dtype=torch.float64)
    steps = [rt.TrainingStep(copy.deepcopy(twin), x) for twin in twins]
    sides = [
        Side(models, torch.optim.SGD(models[0].parameters(), 0.05, momentum=0.9))
        for models in (twins, steps)
    ]
    usual_ones = ["usual"] * 8  # until they are graphs
    for name in [*usual_ones, *(n for one in actions for n in (one, "usual"))]:
        wanted, got = (_done(side, name) for side in sides)
        differs = name in REFUSED_BY_US and isinstance(got, RuntimeError)
        if differs and REFUSED_BY_US[name] not in str(got):
            return f"{name}: {got!r:.200}"
        raised = isinstance(wanted, RuntimeError) and not isinstance(got, Exception)
        if differs or (name in DONE_BY_US and raised):
            for side in sides:  # to go on from the same
                for p in side.first.parameters():
                    p.grad = None
                side.log.clear()
            continue
        if isinstance(wanted, Exception) or isinstance(got, Exception):
            if type(wanted) is not type(got):
                return f"{name}: {wanted!r:.200}, got {got!r:.200}"
            continue
        found = [[result, *_state(side)] for side, result in zip(sides, (wanted, got), strict=True)]
        if wrong := _difference(*found):
            return f"{name}: {wrong}"
    return None


def _done(side: Side, name: str) -> Any:
    try:
        return ACTIONS[name](side)
    except Exception as error:
        return error


def _state(side: Side) -> list[Any]:
    models = side.models
    return [
        *(p.grad for model in models for p in model.parameters()),
        *(x.clone() for model in models for x in (*model.parameters(), *model.buffers())),
        [side.log[name] for name in sorted(side.log)],
        *(x for x in side.keeps if isinstance(x, list)),
    ]  # fmt: skip


def _difference(wanted: Any, got: Any) -> str | None:
    import torch

    if isinstance(wanted, (list, tuple)):
        if len(wanted) != len(got):
            return f"{len(wanted)} values, got {len(got)}"
        pairs = enumerate(zip(wanted, got, strict=True))
        return next((f"{i}: {d}" for i, (a, b) in pairs if (d := _difference(a, b))), None)
    if isinstance(wanted, torch.Tensor) and isinstance(got, torch.Tensor):
        distance = (wanted - got).detach().double().norm()
        bound = BOUND * (1e-3 + wanted.detach().double().norm())
        return None if distance <= bound else f"{wanted}, got {got}"
    if isinstance(wanted, float):
        return None if abs(wanted - got) <= BOUND * (1 + abs(wanted)) else f"{wanted}, got {got}"
    return None if wanted == got else f"{wanted}, got {got}"


GENERATOR = Generator(
    "loops", "a step in training loops beside its module", case=case, labels=labels, check=check
)

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
