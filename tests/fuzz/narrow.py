"""Random functions of tensors with axes of length 1 and 2, and their gradients, against PyTorch.

    python -m tests.fuzz.narrow --minutes 30

Where an axis has one element a sum has one term, a window is the whole image, a broadcast is a
copy: passes and schedules drop such axes, and what was written for longer ones must still hold.  A
case is an image's shape and a chain of steps, each of the values so far (by number, 0 the image):
element-wise ones of one or two, whose axes broadcast, reductions, windows, products with weights
and biases, joins and parts.  All that no step reads is summed with random weights; result and
gradients are PyTorch's in float64.

    cpu 2x3x1x2 41: sum 0 23 | sigmoid 1 | mul 0 2 | pool 0 1x2 | add 3 4
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

from .harness import Generator, main

Shape = tuple[int, ...]
_BOUND = 1e-9
ONE = ("sigmoid", "tanh", "neg", "softmax", "half")
TWO = ("add", "sub", "mul", "choose")
REDUCED = ("sum", "mean", "squares")
WINDOWS = ("pool", "most")
WEIGHTS = ("matmul", "conv", "pixels")


def _joint(a: Shape, b: Shape) -> Shape | None:
    """What two shapes broadcast to, if they do."""
    sides = [max(m, n) if 1 in (m, n) or m == n else 0 for m, n in zip(a, b, strict=True)]
    return tuple(sides) if all(sides) else None


def case(seed: int, index: int) -> str:
    rng = random.Random(f"{seed}/{index}")
    shape = tuple(rng.choice((1, 1, 2, 3)) for _ in range(4))
    shapes, steps = [shape], []
    while len(steps) < rng.choice((3, 4, 5, 6, 7)):
        made = _step(rng, shapes)
        if made is not None:
            steps.append(made[0])
            shapes.append(made[1])
    sides = "x".join(map(str, shape))
    return f"cpu {sides} {rng.randrange(1000)}: {' | '.join(steps)}"


def _step(rng: random.Random, shapes: list[Shape]) -> tuple[str, Shape] | None:
    """A step's words, and its result's shape; None where what was drawn does not fit."""
    at = rng.randrange(max(0, len(shapes) - 3), len(shapes))
    n, c, h, w = shape = shapes[at]
    kind = rng.choice((ONE, TWO, TWO, REDUCED, WINDOWS, WEIGHTS, ("cat", "part", "turn", "wide")))
    name = rng.choice(kind)
    if kind is ONE:
        return f"{name} {at}", shape
    if kind is TWO:
        other = rng.randrange(len(shapes))
        joint = _joint(shape, shapes[other])
        return None if joint is None else (f"{name} {at} {other}", joint)
    if kind is REDUCED:
        axes = sorted(rng.sample(range(4), rng.choice((1, 1, 2, 3))))
        left = tuple(1 if i in axes else size for i, size in enumerate(shape))
        return f"{name} {at} {''.join(map(str, axes))}", left
    if kind is WINDOWS:
        window = (rng.choice((1, h)), rng.choice((1, w)))
        return f"{name} {at} {window[0]}x{window[1]}", (n, c, h // window[0], w // window[1])
    filters = rng.choice((1, 1, 2))
    if name == "matmul":
        return f"matmul {at} {filters}", (n, c, h, filters)
    if kind is WEIGHTS:
        return f"{name} {at} {filters}", (n, filters, h, w)
    axis = rng.randrange(4)
    if name == "cat":
        same = [
            i
            for i, s in enumerate(shapes)
            if s[:axis] + s[axis + 1 :] == shape[:axis] + shape[axis + 1 :]
        ]
        other = rng.choice(same)
        whole = list(shape)
        whole[axis] += shapes[other][axis]
        return (f"cat {at} {other} {axis}", tuple(whole)) if whole[axis] <= 4 else None
    if name == "part":
        return f"part {at} {axis}", (*shape[:axis], 1, *shape[axis + 1 :])
    if name == "turn":
        return f"turn {at}", (n, h, w, c)
    joint = _joint(shape, shapes[0])
    return None if joint is None else (f"wide {at}", joint)


def labels(line: str) -> dict[str, str]:
    head, _, body = line.partition(": ")
    return {"device": head.split()[0], "op": body.split()[0]}


class _Both:
    """A step's words as Relax and as PyTorch: `new(shape)` is a further parameter of both."""

    def __init__(self, emit: Callable[[Any], Any], new: Callable[[Shape], tuple[Any, Any]]) -> None:
        self.emit, self.new = emit, new
        self.made: list[tuple[Any, Any]] = []
        self.read: set[int] = set()

    def step(self, words: list[str]) -> None:
        import torch
        from torch.nn import functional as F
        from tvm.relax import op

        name, at, *rest = words
        x, t = self.made[int(at)]
        self.read.add(int(at))
        shape: Shape = tuple(t.shape)
        if name in TWO or name == "cat":
            y, u = self.made[int(rest[0])]
            self.read.add(int(rest[0]))
        if name in ("sigmoid", "tanh"):
            made = getattr(op, name)(x), getattr(torch, name)(t)
        elif name == "neg":
            made = op.negative(x), -t
        elif name == "softmax":
            made = op.nn.softmax(x, 1), t.softmax(1)
        elif name == "half":
            made = op.multiply(x, _number(0.5)), t * 0.5
        elif name == "add":
            made = op.add(x, y), t + u
        elif name == "sub":
            made = op.subtract(x, y), t - u
        elif name == "mul":
            made = op.multiply(x, y), t * u
        elif name == "choose":
            made = op.where(op.greater(x, _number(0.25)), x, y), torch.where(t > 0.25, t, u)
        elif name in REDUCED:
            axes = [int(axis) for axis in rest[0]]
            if name == "squares":
                x, t = self.emit(op.multiply(x, x)), t * t
            reduce = op.mean if name == "mean" else op.sum
            made = reduce(x, axes, keepdims=True), getattr(t, reduce.__name__)(axes, keepdim=True)
        elif name in WINDOWS:
            window = tuple(map(int, rest[0].split("x")))
            pools = (
                (op.nn.avg_pool2d, F.avg_pool2d)
                if name == "pool"
                else (op.nn.max_pool2d, F.max_pool2d)
            )
            made = pools[0](x, window, window), pools[1](t, window)
        elif name == "matmul":
            (w, v), (b, d) = self.new((shape[3], int(rest[0]))), self.new((int(rest[0]),))
            made = op.add(self.emit(op.matmul(x, w)), b), t @ v + d
        elif name in WEIGHTS:
            side = 3 if name == "conv" else 1
            filters = int(rest[0])
            (w, v), (b, d) = self.new((filters, shape[1], side, side)), self.new((filters, 1, 1))
            padding = side // 2
            made = (
                op.add(self.emit(op.nn.conv2d(x, w, padding=padding)), b),
                F.conv2d(t, v, padding=padding) + d,
            )
        elif name == "cat":
            axis = int(rest[1])
            made = op.concat([x, y], axis), torch.cat([t, u], axis)
        elif name == "part":
            axis = int(rest[0])
            made = op.strided_slice(x, [axis], [0], [1]), t.narrow(axis, 0, 1)
        elif name == "turn":
            made = op.permute_dims(x, [0, 2, 3, 1]), t.permute(0, 2, 3, 1)
        else:  # wide
            whole = _joint(shape, tuple(self.made[0][1].shape))
            assert whole is not None
            made = op.broadcast_to(x, whole), t.expand(whole)
        self.made.append((self.emit(made[0]), made[1]))


def _number(value: float) -> Any:
    from tvm import relax

    return relax.const(value, "float64")


def check(line: str) -> str | None:
    import torch
    import tvm
    from tvm import relax

    from legalize.cpu import host_target
    from relay_wgrad import registry
    from relay_wgrad.pipeline.cpu import cpu_pipeline
    from relay_wgrad.transform import grad
    from tests.support.compiled import virtual_machine

    registry.register()
    head, _, body = line.partition(": ")
    _, sides, seed = head.split()
    generator = torch.Generator().manual_seed(int(seed))
    params: list[relax.Var] = []
    values: list[Any] = []

    def random_values(shape: Shape) -> Any:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    def new(shape: Shape) -> tuple[Any, Any]:
        params.append(relax.Var(f"p{len(params)}", relax.TensorType(shape, "float64")))
        values.append(random_values(shape).requires_grad_())
        return params[-1], values[-1]

    bb = relax.BlockBuilder()
    with bb.function("main"):
        with bb.dataflow():
            both = _Both(bb.emit, new)
            both.made.append(new(tuple(map(int, sides.split("x")))))
            for step in body.split(" | "):
                both.step(step.split())
            total, loss = _number(0.0), torch.zeros((), dtype=torch.float64)
            for i, (x, t) in enumerate(both.made):
                if i not in both.read:
                    w = random_values(tuple(t.shape))
                    term = bb.emit(relax.op.multiply(x, relax.const(w.numpy(), "float64")))
                    total = bb.emit(relax.op.add(total, bb.emit(relax.op.sum(term))))
                    loss = loss + (t * w).sum()
            out = bb.emit_output(total)
        bb.emit_func_output(out, params)
    loss.backward()
    made = virtual_machine(grad(bb.get()), host_target(), cpu_pipeline())
    value, gradients = made["main_adjoint"](
        *(tvm.runtime.tensor(v.detach().numpy()) for v in values)
    )
    expected = [loss.detach(), *(v.grad for v in values)]
    for i, (ours, right) in enumerate(zip([value, *gradients], expected, strict=True)):
        right = torch.zeros_like(values[i - 1]) if right is None else right
        distance = (torch.from_numpy(ours.numpy()) - right).norm() / (1 + right.norm())
        if not distance < _BOUND:
            what = f"the gradient by parameter {i - 1}" if i else "the value"
            return f"{what} is {float(distance):.1e} from PyTorch's"
    return None


GENERATOR = Generator(
    "narrow",
    "functions of tensors with axes of one element, and their gradients, against PyTorch",
    case=case,
    labels=labels,
    check=check,
    timeout=240.0,
)

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
