"""The family's operators called directly, passes in any order, gradients of orders 1 to 3.

    python -m tests.fuzz.operators --minutes 30

A case is a convolution's problem in one to three dimensions, any permutation of letters as each
tensor's layout, and what is done with it: the operator by its own name, or a dgrad as a transposed
convolution; passes by hand before the gradient and after it; `grad` or the stock `Gradient`; a
batch that is open; `tvm.compile` with its own pipeline.  The sum of the result's cubes and all
gradients are PyTorch's in float64, which differentiates the trilinear form itself.

    dgrad n=3 c=3 h=1 w=4 k=1 … dtype=f64/f64/f64 | transposed open grad 2 17 | cse | text

A line is its image with one row, whose layouts have no H.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

from relay_wgrad.layouts import permutation
from relay_wgrad.problem import ConvKind, ConvProblem

from .harness import REFUSED, Generator, main

_BOUND = {"float64": 1e-9, "float32": 1e-3}
PASSES = ("nhwc", "stock", "fold", "cse", "dead", "depth", "text")
_HEAD = " | "


def case(seed: int, index: int) -> str:
    rng = random.Random(f"{seed}/{index}")
    while True:
        rank = rng.choice((1, 2, 2, 3))
        problem = _problem(rng, rank)
        try:
            problem.check()
        except ValueError:
            continue
        form = "operator"
        if problem.kind is ConvKind.DGRAD and (rank == 1 or rng.random() < 0.4):
            form = "transposed"
            if any(e >= s for e, s in zip(_extra(problem), problem.strides, strict=True)):
                continue
        break
    if rank == 1:
        form += " line"
    size = rng.choice(("fixed", "fixed", "open"))
    way = "stock 1" if size == "fixed" and rng.random() < 0.25 else f"grad {rng.choice((1, 2, 3))}"
    before, after = (
        " ".join(rng.choice(PASSES) for _ in range(rng.choice((0, 1, 2)))) for _ in range(2)
    )
    return _HEAD.join(
        [problem.repro(), f"{form} {size} {way} {rng.randrange(1000)}", before, after]
    )


def _problem(rng: random.Random, rank: int) -> ConvProblem:
    groups = rng.choice((1, 1, 2, 3))
    axes = max(2, rank)

    def each(choice: Sequence[int], of_height: int) -> tuple[int, ...]:
        values = tuple(rng.choice(choice) for _ in range(axes))
        return (of_height, *values[1:]) if rank == 1 else values

    kinds = (ConvKind.FPROP, ConvKind.DGRAD) if rank == 1 else tuple(ConvKind)
    spatial, taps = each((1, 3, 4, 6, 7), 1), each((1, 2, 3), 1)
    pads = (*each((0, 0, 1, 2), 0), *each((0, 0, 1, 2), 0))
    channels, filters = groups * rng.choice((1, 2, 3)), groups * rng.choice((1, 2))
    letters = ("NC" + "DHW"[-axes:], "OI" + "DHW"[-axes:], "NC" + "DHW"[-axes:])
    data, kernel, grad = ("".join(rng.sample(x, len(x))) for x in letters)
    dtype = rng.choice(("float64", "float64", "float32"))
    return ConvProblem.from_shapes(
        rng.choice(kinds),
        (rng.choice((1, 2, 3)), channels, *spatial),
        (filters, channels // groups, *taps),
        strides=each((1, 1, 2, 3), 1), padding=pads, dilation=each((1, 1, 2), 1), groups=groups,
        data_layout=data, kernel_layout=kernel, grad_layout=grad,
        data_dtype=dtype, weight_dtype=dtype, grad_dtype=dtype,
    )  # fmt: skip


def _extra(p: ConvProblem) -> list[int]:
    """Output padding of the transposed convolution that gives the data's size."""
    rank = p.rank
    return [
        p.spatial[i] + p.padding[i] + p.padding[rank + i] - (p.pixels[i] - 1) * p.strides[i]
        - p.dilation[i] * (p.taps[i] - 1) - 1
        for i in range(rank)
    ]  # fmt: skip


def labels(line: str) -> dict[str, str]:
    problem, how, *_ = line.split(_HEAD)
    form, *rest = how.split()
    rank = 1 if "line" in rest else 3 if " d=" in problem else 2
    return {"kind": problem.split()[0], "form": form, "rank": str(rank), "way": rest[-3]}


# ---- the reference ---------------------------------------------------------------------------


def _reference(p: ConvProblem) -> Callable[..., Any]:
    """The operator as PyTorch's derivative of T(x, w, y), which has derivatives itself."""
    import torch
    from torch.nn import functional as F

    conv, rank = (F.conv3d if p.rank == 3 else F.conv2d), p.rank
    widths = [p.padding[side + i] for i in reversed(range(rank)) for side in (0, rank)]

    def function(first: Any, second: Any) -> Any:
        tensors = dict(zip(p.roles[:2], (first, second), strict=True))
        made = p.roles[2]
        tensors[made] = torch.zeros(
            p.canonical_shape(made), dtype=torch.float64, requires_grad=True
        )
        y = conv(F.pad(tensors["data"], widths), tensors["weight"], None, p.strides, 0, p.dilation,
                 p.groups)  # fmt: skip
        total = (y * tensors["grad"]).sum()
        return torch.autograd.grad(total, tensors[made], create_graph=True)[0]

    return function


# ---- the program -----------------------------------------------------------------------------


class _Program:
    """The operator in Relax: its parameters, and values in their layouts."""

    def __init__(self, p: ConvProblem, is_line: bool, is_transposed: bool, batch: Any) -> None:
        self.problem, self.is_line, self.is_transposed, self.batch = (
            p,
            is_line,
            is_transposed,
            batch,
        )

    def layout(self, role: str) -> str:
        layout = self.problem.layout(role)
        return layout.replace("H", "") if self.is_line else layout

    def shape(self, role: str) -> list[Any]:
        letters = self.problem.canonical(role)
        sizes = dict(zip(letters, self.problem.canonical_shape(role), strict=True))
        if self.batch is not None and role != "weight":
            sizes["N"] = self.batch
        return [sizes[letter] for letter in self.layout(role)]

    def stored(self, value: Any, role: str) -> Any:
        """A canonical tensor as the program has it."""
        letters = self.problem.canonical(role)
        if self.is_line:
            value, letters = value.squeeze(letters.index("H")), letters.replace("H", "")
        axes = permutation(letters, self.layout(role))
        return value.detach().numpy().transpose(axes)

    def call(self, first: Any, second: Any) -> Any:
        from tvm import relax

        import relay_wgrad
        from relay_wgrad.layouts import swap_io

        p, axes = self.problem, slice(1, None) if self.is_line else slice(None)
        rank = 1 if self.is_line else p.rank
        given: dict[str, Any] = {
            "strides": p.strides[axes], "dilation": p.dilation[axes], "groups": p.groups,
            "padding": (*p.padding[: p.rank][axes], *p.padding[p.rank :][axes]),
        }  # fmt: skip
        data, kernel, grad = map(self.layout, ("data", "weight", "grad"))
        if p.kind is ConvKind.FPROP:
            return getattr(relax.op.nn, f"conv{rank}d")(
                first, second, **given, data_layout=data, kernel_layout=kernel, out_layout=grad
            )
        if self.is_transposed:
            return getattr(relax.op.nn, f"conv{rank}d_transpose")(
                first, second, **given, output_padding=_extra(p)[axes], data_layout=grad,
                kernel_layout=swap_io(kernel), out_layout=data,
            )  # fmt: skip
        layouts = {"data_layout": data, "kernel_layout": kernel, "grad_layout": grad}
        if p.kind is ConvKind.DGRAD:
            make = getattr(relay_wgrad, f"conv{rank}d_backward_data")
            return make(first, second, self.shape("data"), **given, **layouts)
        make = getattr(relay_wgrad, f"conv{rank}d_backward_weight")
        return make(first, second, p.taps, **given, **layouts)


def _passed(module: Any, names: str) -> Any:
    import tvm
    from tvm.relax import transform as stock

    from relay_wgrad.transform import ConvertLayout, SpaceToDepth

    passes: dict[str, Callable[[Any], Any]] = {
        "nhwc": ConvertLayout("NHWC"),
        "stock": stock.ConvertLayout({
            "relax.nn.conv2d": ["NHWC", "OHWI"],
            "relax.nn.conv2d_backward_weight": ["NHWC", "OHWI"],
        }),
        "fold": stock.FoldConstant(), "cse": stock.EliminateCommonSubexpr(),
        "dead": stock.DeadCodeElimination(), "depth": SpaceToDepth(),
        "text": lambda module: tvm.script.from_source(module.script(show_meta=True)),
    }  # fmt: skip
    for name in names.split():
        module = passes[name](module)
    return module


def check(line: str) -> str | None:
    import torch
    import tvm
    from tvm import relax, tirx

    from relay_wgrad import registry
    from relay_wgrad.transform import grad
    from tests.support.built import built

    registry.register()
    text, how, before, after = line.split(_HEAD)
    problem = ConvProblem.parse(text)
    form, *words = how.split()
    order, seed, way = int(words[-2]), int(words[-1]), words[-3]
    roles, dtype = problem.roles[:2], problem.data_dtype
    batch = tirx.Var("n", "int64") if "open" in words else None
    program = _Program(problem, "line" in words, form == "transposed", batch)
    params = [relax.Var(role, relax.TensorType(program.shape(role), dtype)) for role in roles]

    def body(emit: Callable[[Any], Any]) -> Any:
        y = emit(program.call(*params))
        return emit(relax.op.sum(emit(relax.op.multiply(y, emit(relax.op.multiply(y, y))))))

    module, name = _passed(built(params, body), before), "main_adjoint"
    if way == "grad":
        module = grad(module, order=order)
        name += str(order) if order > 1 else ""
    else:
        try:
            module = relax.transform.Gradient("main")(module)
        except IndexError as error:  # of a transposed scalar, which the stock layout pass writes
            return f"{REFUSED}stock Gradient: {error}"
    module = _passed(module, after)

    generator = torch.Generator().manual_seed(seed)

    def drawn() -> dict[str, Any]:
        return {
            role: torch.randn(
                problem.canonical_shape(role), dtype=torch.float64, generator=generator
            ).requires_grad_()
            for role in roles
        }

    values = drawn()
    total = (_reference(problem)(*values.values()) ** 3).sum()
    given = {role: program.stored(value, role) for role, value in values.items()}
    gradients = torch.autograd.grad(total, [*values.values()], create_graph=True)
    for k in range(1, order):
        directions = drawn()
        given |= {f"{role}_d{k}": program.stored(d, role) for role, d in directions.items()}
        pairs = zip(gradients, directions.values(), strict=True)
        total = sum((g * d).sum() for g, d in pairs)  # type: ignore[assignment]
        gradients = torch.autograd.grad(total, [*values.values()], create_graph=True)

    machine = relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())
    operands = [tvm.runtime.tensor(given[v.name].astype(dtype)) for v in module[name].params]
    value, made = machine[name](*operands)
    expected = [total.detach().numpy()]
    expected += [program.stored(g, role) for g, role in zip(gradients, roles, strict=True)]
    for what, ours, right in zip(("value", *roles), [value, *made], expected, strict=True):
        got = ours.numpy()
        if got.shape != right.shape:
            return f"{what} has shape {got.shape}, PyTorch's {right.shape}"
        distance = abs(got - right).max() / (1e-3 + abs(right).max())
        if not distance < _BOUND[dtype]:
            return f"{what} is {distance:.1e} from PyTorch's"
    return None


GENERATOR = Generator(
    "operators",
    "the family's operators called directly, passes in any order, orders 1 to 3, against PyTorch",
    case=case,
    labels=labels,
    check=check,
    timeout=240.0,
)

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
