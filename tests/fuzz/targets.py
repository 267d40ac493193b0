"""Random problems on every CPU target that people type, wherever their tensors begin.

A case is a surface, a target, and what is run:

- kernel: `legalize.cpu.prim_func`, compiled by `tvm.compile`; operands and result, full of NaN,
  begin at any multiple of an element's size;
- gradient: one of the four operators, alone or with its gradients of first or second order, also
  with symbolic sizes, through `register()` and `tvm.compile`'s own pipeline (`tests.fuzz.check`);
- relay: `nn.conv2d` through `relay.build` and the graph executor;
- network: convolution, scale, shift, ReLU, pooling, and all gradients, through TVM's pipeline or
  `cpu_pipeline`;
- batchnorm, maxpool: batch normalization in training mode, and max pooling, with their gradients
  (`tests.fuzz.target_layers`).

All is compared with PyTorch in float64.  A target whose instructions this CPU lacks is compiled
only.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.problems import (
    UNIT,
    poisoned,
    random_operands,
    random_problem,
    relative_error,
    tolerance,
    torch_reference,
)

from . import case as cases
from .harness import REFUSED, Generator, main
from .target_layers import LAYERS, facts_of

TARGETS: dict[str, Any] = {
    "llvm": "llvm",
    "one-core": {"kind": "llvm", "num-cores": 1},
    "x86-64": {"kind": "llvm", "mcpu": "x86-64"},
    "v2": {"kind": "llvm", "mcpu": "x86-64-v2"},
    "v3": {"kind": "llvm", "mcpu": "x86-64-v3"},
    "v4": {"kind": "llvm", "mcpu": "x86-64-v4"},
    "v3-one-core": {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1},
    "v3-many-cores": {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 16},
    "mattr-avx": {"kind": "llvm", "mattr": ["+avx"]},
    "mattr-avx2": {"kind": "llvm", "mattr": ["+avx2", "+fma"]},
    "mattr-avx512": {"kind": "llvm", "mattr": ["+avx512f"]},
    "opt0": {"kind": "llvm", "opt-level": 0},
    "opt1": {"kind": "llvm", "opt-level": 1},
    "v3-opt3": {"kind": "llvm", "mcpu": "x86-64-v3", "opt-level": 3},
    "host": None,
    "host-one-core": None,
    "host-many-cores": None,
    "hosted": "llvm",
}
SURFACES = ("kernel", "kernel", "kernel", "gradient", "relay", "network", *LAYERS)
DTYPES = ("float64", "float32", "float64", "float32", "float16", "bfloat16")
# Asymmetric padding of few channels: kernels that copy rows of odd lengths to the stack.
FEW = 0.4
VOLUMES = 0.15  # share of kernels of three dimensions


def case(seed: int, index: int) -> str:
    rng = np.random.default_rng([seed, index])
    surface = SURFACES[int(rng.integers(len(SURFACES)))]
    target = list(TARGETS)[int(rng.integers(len(TARGETS)))]
    if surface in LAYERS:
        return f"{surface} {target} {LAYERS[surface][0](rng)}"
    if surface == "gradient":
        op = list(cases.OPS)[int(rng.integers(len(cases.OPS)))]
        found = cases.random_case(op, seed, index, dtypes=DTYPES[:4])
        return f"{surface} {target} {found.line(int(rng.integers(3)))}"
    kind = list(ConvKind)[int(rng.integers(3))] if surface == "kernel" else ConvKind.FPROP
    rank = 3 if surface == "kernel" and rng.random() < VOLUMES else 2
    problem = random_problem(
        rng, kind, dtypes=DTYPES if surface == "kernel" else DTYPES[:4], max_flop=2e6,
        layouts=None if surface == "kernel" else [("NCHW", "OIHW", "NCHW")],
        mixed=surface == "kernel", rank=rank,
    )  # fmt: skip
    if rank == 2 and rng.random() < FEW:
        problem = _few_channels(problem, rng)
    width = int(rng.integers(4)) if surface == "kernel" else 0
    return f"{surface} {target} {width} {int(rng.integers(2**31))} {problem.repro()}"


def _few_channels(problem: ConvProblem, rng: np.random.Generator) -> ConvProblem:
    """The same of one channel, padded above and below, mostly so small that copies are on the
    stack, which is where TVM says most of alignments."""
    h = int(rng.integers(3, 40))
    w = int(rng.integers(3, max(4, 120 // h) if rng.random() < 0.7 else 40))
    if rng.random() < 0.7:  # copies that scalars make, whose vectors LLVM has to find
        usual = {"data_layout": "NCHW", "kernel_layout": "OIHW", "grad_layout": "NCHW"}
        wide = {f"{role}_dtype": "float64" for role in ("data", "weight", "grad")}
        problem = replace(problem, kind=ConvKind.FPROP, **usual, **wide)
    few = replace(
        problem, n=1, c=1, groups=1, k=int(rng.integers(1, 17)), h=h, w=w,
        r=int(rng.integers(1, 6)), s=int(rng.integers(1, 6)),
        padding=(1, 0, 1, 0), dilation=(int(rng.integers(1, 3)),) * 2, strides=(1, 1),
    )  # fmt: skip
    return few if few.p >= 1 and few.q >= 1 else problem


def labels(line: str) -> dict[str, str]:
    surface, target, *rest = line.split(" ")
    if surface == "gradient":
        return {"surface": surface, "target": target, "op": rest[0], "order": rest[1]}
    if surface in LAYERS:
        dtype = str(facts_of(" ".join(rest))["dtype"])
        return {"surface": surface, "target": target, "op": surface, "dtype": dtype}
    words = rest[2:]
    dtype = next((x.split("/")[-1] for x in words if x.startswith("dtype=")), "f32")
    found = {"surface": surface, "target": target, "op": words[0]}
    found["dtype"] = dtype.removeprefix("dtype=")
    if surface == "kernel":
        found["begins"] = "at 64 bytes" if rest[0] == "0" else "at an element"
    return found


def check(line: str) -> str | None:
    import relay_wgrad

    relay_wgrad.register()
    torch.set_num_threads(1)
    surface, name, rest = line.split(" ", 2)
    target = _target(name)
    lacks = _instructions(target) - _instructions(_target("host"))
    if lacks and surface != "kernel":
        return f"{REFUSED}this CPU lacks {', '.join(sorted(lacks))}"
    if surface in LAYERS:
        return LAYERS[surface][1](rest, target)
    if surface == "gradient":
        return _gradient(rest, target)
    offset, seed, repro = rest.split(" ", 2)
    problem = ConvProblem.parse(repro)
    rng = np.random.default_rng(int(seed))
    if surface == "kernel":
        return _kernel(problem, target, int(offset), rng, lacks)
    if surface == "relay":
        return _relay(problem, target, rng)
    return _network(problem, target, rng)


def _instructions(target: Any) -> set[str]:
    """What a CPU of this target must have, without LLVM's notes on what is fast there."""
    from tvm.target import codegen

    notes = ("slow-", "fast-", "false-deps-", "prefer-")
    return {str(x) for x in codegen.llvm_get_cpu_features(target) if not x.startswith(notes)}


def _target(name: str) -> Any:
    from tvm.target import Target

    from legalize.cpu import host_target

    if name.startswith("host-") or name == "host":
        return host_target({"host-one-core": 1, "host-many-cores": 16}.get(name))
    if name == "hosted":
        return Target("llvm", host="llvm")
    return Target(TARGETS[name])


def _moved(array: Any, by: int) -> Any:
    """A copy that begins `by` elements behind a multiple of 64 bytes."""
    raw = np.empty(array.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64 + by * array.itemsize
    view = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def _tensor(array: Any) -> Any:
    import tvm_ffi

    if array.dtype.name == "bfloat16":  # NumPy's DLPack has none
        words = torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
        return tvm_ffi.from_dlpack(words)
    return tvm_ffi.from_dlpack(array)


def _kernel(
    problem: ConvProblem, target: Any, offset: int, rng: np.random.Generator, lacks: set[str]
) -> str | None:
    import tvm

    from legalize.cpu import prim_func

    func = prim_func(problem, target).with_attr("global_symbol", "main")
    module = tvm.compile(tvm.IRModule({"main": func}), target=target)
    if lacks:
        return f"{REFUSED}compiled only: this CPU lacks {', '.join(sorted(lacks))}"
    operands = random_operands(problem, rng)
    out = _moved(poisoned(problem), offset)
    tensors = [_tensor(_moved(x, offset)) for x in operands]
    nothing = [_tensor(_moved(np.full_like(x, np.nan), offset)) for x in operands]
    module["main"](*nothing, _tensor(out))  # leaves NaN in the kernel's own memory
    module["main"](*tensors, _tensor(out))
    return _compared("result", out, torch_reference(problem, *operands), tolerance(problem))


def _gradient(line: str, target: Any) -> str | None:
    from . import check as checker

    found, order = cases.parse(line)
    checker.host_target = lambda: target  # type: ignore[assignment]
    outcomes, _ = checker.run_batch([(found, order)], "host")
    return outcomes[0].failure


def _relay(problem: ConvProblem, target: Any, rng: np.random.Generator) -> str | None:
    import tvm

    from relay_wgrad import relay
    from relay_wgrad.relay import graph_executor

    dtype = problem.data_dtype
    x, w = (relay.var(role, shape=problem.shape(role), dtype=dtype) for role in ("data", "weight"))
    y = relay.nn.conv2d(
        x, w, strides=problem.strides, padding=problem.padding, dilation=problem.dilation,
        groups=problem.groups, channels=problem.k, kernel_size=(problem.r, problem.s),
    )  # fmt: skip
    library = relay.build(relay.IRModule({"main": relay.Function([x, w], y)}), target=target)
    module = graph_executor.GraphModule(library["default"](tvm.cpu()))
    operands = random_operands(problem, rng)
    module.run(data=operands[0], weight=operands[1])
    got = module.get_output(0).numpy()
    return _compared("result", got, torch_reference(problem, *operands), tolerance(problem))


def _network(problem: ConvProblem, target: Any, rng: np.random.Generator) -> str | None:
    import tvm
    from tvm import relax

    from relay_wgrad.pipeline.cpu import cpu_pipeline
    from relay_wgrad.transform import grad

    dtype = problem.data_dtype
    shapes = [problem.shape("data"), problem.shape("weight"), *[(1, problem.k, 1, 1)] * 2]
    args = [
        relax.Var(name, relax.TensorType(shape, dtype))
        for name, shape in zip("xwab", shapes, strict=True)
    ]
    window = (min(2, problem.p), min(2, problem.q))
    bb = relax.BlockBuilder()
    with bb.function("main", args):
        with bb.dataflow():
            y = bb.emit(
                relax.op.nn.conv2d(
                    args[0], args[1], strides=problem.strides, padding=problem.padding,
                    dilation=problem.dilation, groups=problem.groups,
                )
            )  # fmt: skip
            y = bb.emit(relax.op.add(relax.op.multiply(y, args[2]), args[3]))
            y = bb.emit(relax.op.nn.relu(y))
            y = bb.emit(relax.op.nn.avg_pool2d(y, pool_size=window, strides=window))
            loss = bb.emit_output(relax.op.sum(relax.op.multiply(y, y)))
        bb.emit_func_output(loss)
    module = grad(bb.get())
    values = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    leaves = [torch.from_numpy(v.astype("float64")).requires_grad_() for v in values]
    top, left, bottom, right = problem.padding
    out = torch.nn.functional.conv2d(
        torch.nn.functional.pad(leaves[0], (left, right, top, bottom)), leaves[1],
        stride=problem.strides, dilation=problem.dilation, groups=problem.groups,
    )  # fmt: skip
    out = torch.nn.functional.avg_pool2d(torch.relu(out * leaves[2] + leaves[3]), window)
    wanted = torch.autograd.grad((out * out).sum(), leaves)
    pipeline = {"relax_pipeline": cpu_pipeline()} if rng.random() < 0.5 else {}
    machine = relax.VirtualMachine(tvm.compile(module, target=target, **pipeline), tvm.cpu())
    _, partials = machine["main_adjoint"](*(tvm.runtime.tensor(v) for v in values))
    # Each value on the way is rounded; sums of thousands of squares are what errs most.
    limit = 3e4 * UNIT[dtype]
    for name, got, want in zip("xwab", partials, wanted, strict=True):
        said = _compared(f"gradient by {name}", got.numpy(), want.numpy(), limit)
        if said:
            return said
    return None


def _compared(name: str, got: Any, want: Any, limit: float) -> str | None:
    error = relative_error(got, want)
    return None if error <= limit else f"{name}: relative error {error:.3g}, tolerance {limit:.3g}"


GENERATOR = Generator(
    "targets", "kernels and graphs for every CPU target against float64 PyTorch",
    case=case, labels=labels, check=check, timeout=240.0, recycle=60,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
