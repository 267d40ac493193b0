"""Random ops behind convolutions: what kernels are asked for, beside what the program says.

    python -m tests.fuzz.epilogues --minutes 10

A case is a convolution (fprop or dgrad, NHWC or NCHW) and one to four steps behind it: biases and
residuals in either order, activations in each way to write them, masks, and what looks like them
and is not: other bounds, masks and gates of something else, values that are needed twice or are
results too, sums with themselves, operands that make the result larger.  The module is partitioned
to CUTLASS, our own kernels and cuDNN; each region is read back, and computed as `fused.reference`
says, by the operands that it names.  Data are integers with zeros; masks' have NaN too (others
not: upstream's maximum makes numbers of them).  The whole is compared with the module as it was, by
TVM's own kernels; so is the module that `unpartition` gives.

    7 fprop NHWC: bias | relu6 as minimum | residual
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

from .harness import Generator, main

_BOUND = 1e-5
CHANNELS = 8
MASK = "mask_"  # begins the names of what may be NaN
Emit = Callable[[Any], Any]


def case(seed: int, index: int) -> str:
    rng = random.Random(f"{seed}/{index}")
    steps = [rng.choice(list(STEPS)) for _ in range(rng.choice((1, 1, 2, 2, 3, 4)))]
    words = [str(rng.randrange(1000)), rng.choice(("fprop", "fprop", "dgrad"))]
    return f"{' '.join([*words, rng.choice(('NHWC', 'NHWC', 'NCHW'))])}: {' | '.join(steps)}"


def labels(line: str) -> dict[str, str]:
    head, _, body = line.partition(": ")
    _, kind, layout = head.split()
    return {"kind": kind, "layout": layout, "op": body.split(" | ")[0]}


class Program:
    """What steps are written with.

    made : the convolution's result, then each step's; results : those that the function gives too.
    """

    def __init__(self, emit: Emit, layout: str, new: Callable[..., Any]) -> None:
        from tvm.relax import op

        self.emit, self.new, self.op = emit, new, op
        self.column = (CHANNELS,) if layout == "NHWC" else (CHANNELS, 1, 1)
        self.made: list[Any] = []
        self.results: list[Any] = []

    @property
    def y(self) -> Any:
        return self.made[-1]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self.y.ty.shape.values)

    def beside(self, name: str = "") -> Any:
        return self.new(self.shape, name)

    def const(self, value: float) -> Any:
        from tvm import relax

        return relax.const(value, "float32")

    def selected(self, compare: Any, operand: Any, bound: float = 0.0, other: float = 0.0) -> Any:
        less = self.emit(compare(operand, self.const(bound)))
        return self.op.where(less, self.const(other), self.y)

    def clipped(self, low: float, high: float, swapped: bool = False) -> Any:
        def both(make: Any, a: Any, b: Any) -> Any:
            return make(b, a) if swapped else make(a, b)

        at_least = self.emit(both(self.op.maximum, self.y, self.const(low)))
        return both(self.op.minimum, at_least, self.const(high))

    def gated(self, by: Any, swapped: bool = False) -> Any:
        gate = self.emit(self.op.sigmoid(by))
        return self.op.multiply(gate, self.y) if swapped else self.op.multiply(self.y, gate)

    def kept(self, value: Any) -> Any:
        """A step after which what stood before is a result too."""
        self.results.append(self.y)
        return value


STEPS: dict[str, Callable[[Program], Any]] = {
    "bias": lambda p: p.op.add(p.y, p.new(p.column)),
    "bias before": lambda p: p.op.add(p.new(p.column), p.y),
    "bias of one": lambda p: p.op.add(p.y, p.new((1,))),
    "residual": lambda p: p.op.add(p.y, p.beside()),
    "residual before": lambda p: p.op.add(p.beside(), p.y),
    "a wider residual": lambda p: p.op.add(p.y, p.new((3, *p.shape[1:]))),
    "a lower residual": lambda p: p.op.add(p.y, p.new((1, *p.shape[1:]))),
    "with itself": lambda p: p.op.add(p.y, p.y),
    "with what was before": lambda p: p.op.add(p.y, p.made[max(0, len(p.made) - 2)]),
    "relu": lambda p: p.op.nn.relu(p.y),
    "relu, kept": lambda p: p.kept(p.op.nn.relu(p.y)),
    "relu6": lambda p: p.op.clip(p.y, 0, 6),
    "relu6 of floats": lambda p: p.op.clip(p.y, 0.0, 6.0),
    "relu6 as minimum": lambda p: p.clipped(0, 6),
    "relu6 swapped": lambda p: p.clipped(0, 6, swapped=True),
    "clip to 5": lambda p: p.op.clip(p.y, 0, 5),
    "clip from 1": lambda p: p.clipped(1, 6),
    "minimum alone": lambda p: p.op.minimum(p.y, p.const(6)),
    "maximum of a tensor": lambda p: p.op.minimum(
        p.emit(p.op.maximum(p.y, p.new(p.column))), p.const(6)
    ),
    "silu": lambda p: p.op.nn.silu(p.y),
    "silu by sigmoid": lambda p: p.gated(p.y),
    "silu swapped": lambda p: p.gated(p.y, swapped=True),
    "silu, kept": lambda p: p.kept(p.gated(p.y)),
    "a gate": lambda p: p.gated(p.beside()),
    "the square": lambda p: p.op.multiply(p.y, p.y),
    "mask": lambda p: p.selected(p.op.less, p.beside(MASK)),
    "strictmask": lambda p: p.selected(p.op.less_equal, p.beside(MASK)),
    "another mask": lambda p: p.selected(p.op.greater, p.beside(MASK)),
    "mask at 1": lambda p: p.selected(p.op.less, p.beside(MASK), bound=1),
    "mask by 1": lambda p: p.selected(p.op.less_equal, p.beside(MASK), other=1),
    "mask of itself": lambda p: p.selected(p.op.less, p.y),
    "negative": lambda p: p.op.negative(p.y),
}


def check(line: str) -> str | None:
    import numpy as np
    import tvm_ffi

    import byoc_cudnn
    import relay_wgrad
    from tests.support.layout_cases import machine_of, run
    from tests.support.partition_cases import merged, partitioned, regions

    relay_wgrad.register()
    head, _, body = line.partition(": ")
    seed, kind, layout = head.split()
    mod = _module(kind, layout, body.split(" | "))
    out, _ = partitioned(mod, backends=("cutlass", "cuda_direct", "cudnn"))
    names = {name: f"tests.fuzz.epilogues.{name}" for name in regions(out)}
    for name, func in regions(out).items():
        tvm_ffi.register_global_func(names[name], _computed(func), override=True)
    rng = np.random.default_rng(int(seed))
    shapes = [tuple(int(d) for d in p.ty.shape.values) for p in mod["main"].params]
    args = [rng.integers(-3, 4, shape).astype("float32") for shape in shapes]
    for param, array in zip(mod["main"].params, args, strict=True):
        if str(param.name).startswith(MASK):
            array.reshape(-1)[::7] = np.nan
    machine = machine_of(merged({"before": mod, "back": byoc_cudnn.unpartition(out)}))
    before, back = (run(machine, args, name) for name in ("before", "back"))
    by_regions = run(_called(out, names), args)
    for way, results in (("regions", by_regions), ("unpartition", back)):
        for want, got in zip(before, results, strict=True):
            if not np.array_equal(np.isnan(want), np.isnan(got)):
                return f"{way}: NaN elsewhere"
            far = np.nan_to_num(got - want)
            if not np.linalg.norm(far) <= _BOUND * np.linalg.norm(np.nan_to_num(want)):
                return f"{way}: off by {np.abs(far).max():.3g}"
    return None


def _module(kind: str, layout: str, steps: list[str]) -> Any:
    """The function, whose parameters are what the steps ask for as they are written."""
    from tvm import relax

    from relay_wgrad.problem import ConvProblem
    from tests.support.partition_cases import conv_call

    layouts = f"{layout}/{'OHWI' if layout == 'NHWC' else 'OIHW'}/{layout}"
    problem = ConvProblem.parse(
        f"{kind} n=1 c={CHANNELS} h=4 w=5 k={CHANNELS} r=2 s=1 layout={layouts}"
    )
    params: list[Any] = []

    def new(shape: tuple[int, ...], name: str = "") -> Any:
        params.append(relax.Var(f"{name}p{len(params)}", relax.TensorType(list(shape), "float32")))
        return params[-1]

    first, second = (new(tuple(problem.shape(role))) for role in problem.roles[:2])
    builder = relax.BlockBuilder()
    with builder.function("main"):
        with builder.dataflow():
            program = Program(builder.emit, layout, new)
            program.made.append(builder.emit(conv_call(problem, first, second)))
            for step in steps:
                program.made.append(builder.emit(STEPS[step](program)))
            outs = [builder.emit_output(value) for value in (*program.results, program.y)]
        builder.emit_func_output(outs if len(outs) > 1 else outs[0], params)
    return builder.get()


def _computed(func: Any) -> Callable[..., None]:
    """What a region's kernel is to compute, of operands in the function's order."""
    from byoc_cudnn import read_region
    from byoc_cudnn.fused import STEPS as RECORDS
    from byoc_cudnn.fused import reference
    from tests.support.problems import torch_reference

    region = read_region(func)
    records = [RECORDS[name] for name in region.epilogue]

    def packed(*tensors: Any) -> None:
        *given, out = tensors
        values = dict(zip(region.operands, (t.numpy() for t in given), strict=True))
        operands = (values[role] for role in region.problem.roles[:2])
        made = torch_reference(region.problem, *operands)
        out.copyfrom(reference(records, made, values, region.problem).astype("float32"))

    return packed


def _called(out: Any, names: dict[str, str]) -> Any:
    """The module with a call of a function of ours for each region."""
    import tvm
    from tvm import relax

    changed = tvm.IRModule(dict(out.functions_items()))
    for var, func in out.functions_items():
        name = str(var.name_hint)
        if name not in names:
            continue
        params = [relax.Var(p.name, p.ty) for p in func.params]
        builder = relax.BlockBuilder()
        with builder.function(name, params):
            call = relax.call_dps_packed(names[name], params, out_ty=func.ret_ty)
            builder.emit_func_output(builder.emit(call))
        changed[var] = builder.get()[name]
    return changed


GENERATOR = Generator(
    "epilogues", "what a partition's regions compute, against the program without it",
    case=case, labels=labels, check=check,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
