"""Sides of a row of `benchmarks gpu steps`, in a process of their own.

    python -m benchmarks.gpu_sides SIDES '{"model": …, "batch": …, "image": …, "dtype": …}'

Prints a line of JSON for each side.  A side is `ours`, compiled as a whole, of which it times the
calls and, on a GPU, the replays of one CUDA graph; `step`, `relay_wgrad.torch.TrainingStep`;
`backend`, `torch.compile(backend="relay_wgrad")`; `convolutions`, Inductor with our convolutions
where they are faster; or PyTorch's: `eager`, `compile` (`torch.compile`), `graphs` (mode
"reduce-overhead"), `contiguous` (`compile`, channels first).  Each computes the loss and the
gradients of all parameters from the same weights and batch: NHWC but where it is said otherwise,
tf32 allowed in "tf32", autocast or `step_module`'s mixed precision in halves, a loss scale in
"f16".  Several of PyTorch's in one process share the algorithms that cuDNN chose.

What needs no GPU is done before the process asks for its turn (`benchmarks.gpu_turns`): ours up
to the loaded library, also within PyTorch, `torch.compile`'s code of both passes.  cuDNN's choices
and all that is timed are made in it.

`memory` is what the side takes of the device beside CUDA's context, once it has run: what
allocators hold.  Of PyTorch's it is the most that its allocator held after algorithms were chosen;
`allocated`: the most that lived.  `vm_memory`: ours before the graph.  `host_ms`: the host's part
of a call after it has waited for the device, `row_host_ms` of each of some in a row, as in a loop;
`empty_host_ms`, `empty_row_host_ms`: beside a side of ours within PyTorch, that of an
`autograd.Function` over the same parameters that computes nothing, which is what PyTorch itself
takes.  `build_s`: from the network to the end of the first call, without waiting for turns.
`split`: `benchmarks.gpu_split`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch

from benchmarks import gpu_timing
from benchmarks.child import end_with_parent
from benchmarks.gpu_models import Built, build
from benchmarks.gpu_turns import Turns
from benchmarks.modes import HALF

HALVES = {mode: getattr(torch, name) for mode, name in HALF.items() if name}
DTYPES = ("tf32", "f32", *HALVES)
PYTORCH = ("eager", "compile", "graphs", "contiguous")
ALONE = ("step", "contiguous")  # tensors lie channels first: in processes of their own
WITHIN = ("step", "backend", "convolutions")  # PyTorch
SIDES = ("ours", *PYTORCH, *WITHIN)
LIBRARIES = ("cuda_direct", "cudnn")  # our own kernels where they are known to be faster
SCALE = 1024.0
ROUNDS, WARM = 7, 10  # a graph is captured some calls after the first
ROW = 6  # calls of the host's part in a row, while the device is busy
ROUND_MS, MOST_CALLS = 60.0, 20  # a round is long enough for its calls' times to be even


class Row(NamedTuple):
    """What is measured; `image` None: the model's own size."""

    model: str
    batch: int
    image: int | None
    dtype: str


class NotItsTurnError(Exception):
    """Compiled, but another process has the GPU."""


def milliseconds(call: Callable[[], Any], device: str) -> list[float]:
    """Of one call, in each round; by the device's events where it has them.

    A call goes before each round: what the host does before a first kernel is once in a loop.
    """
    if device != "cuda":
        began = time.perf_counter()
        call()
        return [(time.perf_counter() - began) * 1e3]
    one = gpu_timing.milliseconds([call], 1)
    calls = min(MOST_CALLS, max(1, math.ceil(ROUND_MS / max(one, 1e-3))))
    found = []
    for _ in range(ROUNDS):
        call()
        found.append(gpu_timing.milliseconds([call], calls))
    return found


def batch_of(row: Row, built: Built) -> tuple[Any, Any]:
    """(images, labels), seeded, on the CPU."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((row.batch, *built.shape), np.float32)
    return torch.tensor(x), torch.tensor(rng.integers(0, built.classes, row.batch))


def norm(gradients: Any) -> float:
    """Of all gradients together."""
    return float(sum(g.double().square().sum() for g in gradients) ** 0.5)


class Memory:
    """Bytes that this process takes of a device while it is its turn, CUDA's context left out."""

    def __init__(self, device: str) -> None:
        self._is_gpu = device == "cuda"
        self._taken = self._free = 0

    def begin(self) -> None:
        if self._is_gpu:
            torch.cuda.synchronize()
            self._free = torch.cuda.mem_get_info()[0]

    def pause(self) -> None:
        self._taken = self.now()

    def now(self) -> int:
        if not self._is_gpu:
            return 0
        torch.cuda.synchronize()
        return self._taken + self._free - torch.cuda.mem_get_info()[0]


@contextlib.contextmanager
def in_turn(begin: Callable[[], None]) -> Iterator[None]:
    """Within it `begin` is called before the first library of ours is loaded on a device."""
    from byoc_cudnn.building.compiled import Library

    made = Library.virtual_machine

    def machine(library: Library, device: Any = None) -> Any:
        library.load()
        begin()
        return made(library, device)

    with mock.patch.object(Library, "virtual_machine", machine):
        yield


def settings(dtype: str) -> None:
    """PyTorch's choices in cuDNN and of products."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = dtype != "f32"
    torch.backends.cuda.matmul.allow_tf32 = dtype != "f32"


def cast(device: str, dtype: str) -> Any:
    """Autocast in halves."""
    return torch.autocast(device, HALVES.get(dtype), enabled=dtype in HALVES)


# ---- PyTorch's sides -----------------------------------------------------------------------------


def _compiled(function: Any, side: str, turns: Turns) -> Any:
    """`torch.compile` of a function, both passes compiled before the first is run.

    Called while it is not this process's turn it is compiled and raises NotItsTurnError.
    """
    import torch._functorch.config as config

    config.force_non_lazy_backward_lowering = True
    inductor = torch._TorchCompileInductorWrapper(
        "reduce-overhead" if side == "graphs" else None, None, False
    )

    def backend(graph: Any, inputs: Any) -> Any:
        made = inductor(graph, inputs)

        def run(*args: Any) -> Any:
            if not turns.held:
                raise NotItsTurnError
            return made(*args)

        return run

    return torch.compile(function, backend=backend, dynamic=False)


def _functions(
    sides: Sequence[str], row: Row, module: Any, x: Any, device: str, turns: Turns
) -> dict[str, Any]:
    """Of each side a function (images, labels) to the loss."""

    def eager(images: Any, wanted: Any) -> Any:
        return torch.nn.functional.cross_entropy(module(images), wanted)

    found: dict[str, Any] = {}
    for side in sides:
        if side in WITHIN:
            import relay_wgrad
            import relay_wgrad.torch as rt
            from relay_wgrad.torch import compiler

            relay_wgrad.register()
        if side in ("backend", "convolutions"):
            backend = compiler.backend if side == "backend" else compiler.convolutions_backend
            found[side] = torch.compile(eager, backend=backend, dynamic=False)
        elif side == "step":
            with cast(device, row.dtype):
                found[side] = rt.TrainingStep(module, x, loss="cross_entropy")
        else:
            found[side] = eager if side == "eager" else _compiled(eager, side, turns)
    return found


def pytorch(
    sides: Sequence[str], row: Row, built: Built, device: str, turns: Turns
) -> Iterator[tuple[str, dict[str, Any]]]:
    """PyTorch's sides, or one of ours within PyTorch."""
    memory, batch = Memory(device), batch_of(row, built)
    with turns.short():
        settings(row.dtype)
        memory.begin()
        x, labels = (t.to(device) for t in batch)
        module = built.module.to(device)
        if not set(sides) & set(ALONE):
            last = torch.channels_last_3d if built.volume else torch.channels_last
            module = module.to(memory_format=last)
            x = x.contiguous(memory_format=last)
        memory.pause()
    scale = SCALE if row.dtype == "f16" else 1.0
    parameters = [p for p in module.parameters() if p.requires_grad]
    seconds = dict.fromkeys(sides, 0.0)
    is_begun = False

    def begin() -> None:
        nonlocal is_begun
        turns.keep()
        if not is_begun:
            memory.begin()
        is_begun = True

    def call(side: str) -> Any:
        for parameter in parameters:
            parameter.grad = None
        if side == "graphs":
            torch.compiler.cudagraph_mark_step_begin()
        with cast(device, row.dtype):
            loss = functions[side](x, labels)
        (loss * scale).backward()
        return loss

    with in_turn(begin):
        began, waited = time.perf_counter(), turns.waited
        functions = _functions(sides, row, module, x, device, turns)
        seconds[sides[0]] += time.perf_counter() - began
        for side in sides:
            if side != "eager" and not turns.held:
                began = time.perf_counter()
                with contextlib.suppress(NotItsTurnError):
                    call(side)
                seconds[side] += time.perf_counter() - began
    seconds[sides[0]] -= turns.waited - waited
    begin()
    for side in sides:
        began = time.perf_counter()
        first = call(side)
        found: dict[str, Any] = {
            "loss": float(first.detach()),
            "norm": norm(p.grad for p in parameters if p.grad is not None) / scale,
        }
        found["build_s"] = seconds[side] + time.perf_counter() - began
        del first
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        for _ in range(WARM):
            call(side)
        with turns.quiet():
            found["rounds"] = milliseconds(lambda side=side: call(side), device)
            if device == "cuda":
                calls = [lambda side=side: call(side)]
                if side in WITHIN:
                    calls.append(lambda: empty_call(parameters))
                found |= zip(("host_ms", "empty_host_ms"), _host_ms(*calls), strict=False)
                in_a_row = ("row_host_ms", "empty_row_host_ms")
                found |= zip(in_a_row, _host_ms(*calls, row=ROW), strict=False)
        found["ms"] = statistics.median(found["rounds"])
        if device == "cuda":
            most = torch.cuda.max_memory_reserved()
            found["memory"] = memory.now() - torch.cuda.memory_reserved() + most
            found["allocated"] = torch.cuda.max_memory_allocated()
        for parameter in parameters:
            parameter.grad = None
        yield side, found


class _Empty(torch.autograd.Function):
    """A function of parameters, whose gradients are memory that nobody has written."""

    @staticmethod
    def forward(ctx: Any, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*parameters)
        return parameters[0].new_empty(())

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return tuple(map(torch.empty_like, ctx.saved_tensors))


def empty_call(parameters: Sequence[torch.Tensor]) -> None:
    """Forward and backward of a function over parameters that computes nothing."""
    for parameter in parameters:
        parameter.grad = None
    _Empty.apply(*parameters).backward()


def _host_ms(*calls: Callable[[], Any], row: int = 1) -> list[float]:
    from benchmarks.gpu_split import host_ms

    return host_ms(*calls, row=row)


# ---- ours ----------------------------------------------------------------------------------------


def ours(row: Row, built: Built, device: str, turns: Turns) -> dict[str, Any]:
    """The loss and all gradients as one compiled function."""
    import tvm

    import relay_wgrad
    from relay_wgrad.frontend import from_torch
    from relay_wgrad.training.devices import place
    from relay_wgrad.training.step import ADJOINT, converted, step_module

    relay_wgrad.register()
    x, labels = batch_of(row, built)
    began = time.perf_counter()
    graph = built.graph or from_torch(built.module, (x,))
    half = HALF[row.dtype]
    where = place("cuda:0" if device == "cuda" else "cpu")
    mod = step_module(
        graph, dtype=half, scaled=half == "float16", wide_weight_gradients=device != "cuda",
        raise_norms=where.norms,
    )  # fmt: skip
    mod = converted(mod, where.layout, blocks=where.blocks)
    library, problems, memory = None, {}, Memory(device)
    if device == "cuda":
        library, problems = _library(mod, where, row.dtype != "f32")
    else:
        vm = where.compile(mod, lambda what: None).vm
    found: dict[str, Any] = {"compile_s": time.perf_counter() - began}
    turns.keep()
    if library is not None:
        settings(row.dtype)
        memory.begin()
        vm = library.virtual_machine(where.device)
    values = {s.name: v for s, v in zip(graph.inputs, (x.numpy(), labels.numpy()), strict=False)}
    arrays = [*graph.arguments({**graph.draws(0, 0), **values})]
    arrays += [np.float32(SCALE)] if half == "float16" else []
    args = [tvm.runtime.tensor(np.asarray(a), where.device) for a in arrays]
    del arrays

    def call() -> Any:
        return vm[ADJOINT](*args)

    outputs, gradients = call()
    found |= {
        "loss": float(outputs[0].numpy()),
        "norm": norm(torch.from_numpy(g.numpy()) for g in gradients),
        "build_s": time.perf_counter() - began - turns.waited,
    }
    del outputs, gradients
    for _ in range(WARM):
        call()
    with turns.quiet():
        found["rounds"] = milliseconds(call, device)
        found["ms"] = statistics.median(found["rounds"])
        if library is not None:
            found["vm_ms"], found["vm_host_ms"] = found["ms"], _host_ms(call)[0]
            found["vm_memory"] = memory.now()
            figures, replay = _replayed(vm, args, where.device)
            found |= figures
            found["ms"] = min(found["ms"], found.get("graph_ms", math.inf))
            found["memory"] = memory.now()
            found["split"] = _split(vm, call, replay, problems, library)
    return found


def _library(mod: Any, where: Any, tf32: bool) -> tuple[Any, dict[str, str]]:
    """The step's library, loaded, and the problems of its convolutions by their functions."""
    from tvm.target import Target

    import byoc_cudnn
    from byoc_cudnn.tuning.versions import arch_of
    from relay_wgrad.pipeline.cuda import cuda_pipeline
    from relay_wgrad.training.cuda_tools import cuda_compiler
    from relay_wgrad.training.libraries import backend_options, library_symbols
    from relay_wgrad.training.options import Options

    options = Options(LIBRARIES, tf32=tf32, benchmark=True)
    given: dict[str, Any] = backend_options(LIBRARIES, options, arch_of(where.device))
    for each in given.values():
        each["deterministic"] = False  # as PyTorch's
    mod, report = byoc_cudnn.partition(mod, LIBRARIES, products=True, **given)
    taken = [entry.problem for entry in report.entries if entry.backend]
    problems = dict(zip(library_symbols(mod), taken, strict=True))
    with cuda_compiler():
        library = byoc_cudnn.build(
            mod, Target.from_device(where.device), pipeline=cuda_pipeline(keep_memory=True)
        )
        library.load()
    return library, problems


def _replayed(
    vm: Any, args: Sequence[Any], device: Any
) -> tuple[dict[str, Any], Callable[[], Any] | None]:
    """Times of the step as one CUDA graph, or why there are none, and its replay."""
    from relay_wgrad.training.capture import Captured
    from relay_wgrad.training.cuda_tools import cuda_runtime
    from relay_wgrad.training.step import ADJOINT

    try:
        captured = Captured(cuda_runtime(), vm, ADJOINT, args, device)
        rounds = milliseconds(captured.replay, "cuda")
        (host,) = _host_ms(captured.replay)
    except Exception as error:  # of libraries of many kinds; the calls were measured
        return {"graph_error": str(error).strip().partition("\n")[0]}, None
    figures = {"graph_rounds": rounds, "graph_ms": statistics.median(rounds), "host_ms": host}
    return figures, captured.replay


def _split(
    vm: Any, call: Callable[[], Any], replay: Callable[[], Any] | None, problems: dict[str, str],
    library: Any,
) -> Any:  # fmt: skip
    from benchmarks import gpu_split

    if replay is None:
        return {"error": "the step is no graph"}
    try:
        return gpu_split.split(*gpu_split.spent(vm, call, replay), problems, library.plans())
    except Exception as error:  # the times are there already
        return {"error": str(error).strip().partition("\n")[0]}


# ---- the process ---------------------------------------------------------------------------------


def measure(
    sides: Sequence[str], row: Row, device: str, turns: Turns | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The figures of each side, as they are known."""
    turns = Turns() if turns is None else turns
    if device == "cuda":
        from tests.support.gpu.runner import choose_compiler

        choose_compiler()
    built = build(row.model, row.batch, row.image)
    if "ours" in sides:
        yield "ours", ours(row, built, device, turns)
    if theirs := [name for name in sides if name != "ours"]:
        yield from pytorch(theirs, row, built, device, turns)


def main() -> int:
    """Prints, or says to the run that started it, the sides' figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_sides")
    parser.add_argument("sides", help=", ".join(SIDES))
    parser.add_argument("row")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--line", help="of the run that gives turns: two file descriptors")
    args = parser.parse_args()
    if args.line:
        end_with_parent()
    row, turns = Row(**json.loads(args.row)), Turns(args.line)
    for name, figures in measure(args.sides.split(","), row, args.device, turns):
        if args.line:
            turns.say({"side": name, "figures": figures})
        else:
            print(json.dumps({name: figures}), flush=True)
    sys.stderr.flush()
    os._exit(0)  # at once: others wait for its memory


if __name__ == "__main__":
    raise SystemExit(main())
