"""`python -m relay_wgrad inspect`: a training step as a report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tvm

from byoc_cudnn import partition
from byoc_cudnn.joins.lower import Copy, copies
from byoc_cudnn.norm.lower import lower_norms
from byoc_cudnn.pool.lower import lower_pools
from byoc_cudnn.report import PRODUCT
from legalize.cpu.roofline import ceilings

from .. import output, registry
from ..cores import configure_threads
from ..display import Display, warn
from ..facts import Lowered
from ..inspection import Inspection, inspect_step
from ..problem import ConvProblem
from ..training.cuda_tools import cuda_runtime
from ..training.devices import cpu_target, place
from ..training.kernel_times import KernelTime, kernel_times
from ..training.options import HOPPER
from ..training.step import ADJOINT
from ..training.trainer import Trainer
from . import arguments
from .parsers.inspect import FORMATS

ROUNDS = 3  # evaluations, of which each kernel's shortest time counts


def run(args: argparse.Namespace) -> int:
    """Writes the report."""
    form = args.format or "markdown"
    if args.report and args.format is None:
        ending = Path(args.report).suffix.lower()
        if ending not in FORMATS:
            print(f"inspect: --report must end in {' or '.join(FORMATS)}, or --format say what it"
                  f" is, got {args.report!r}", file=sys.stderr)  # fmt: skip
            return 2
        form = FORMATS[ending]
    if args.device != "cpu" and not args.measure:
        print("inspect: --device is for --measure", file=sys.stderr)
        return 2
    output.check_all({"--report": args.report}, {"MODEL": args.model})
    found = _inspected(args)
    text = {"html": found.to_html, "json": found.to_json, "markdown": found.to_markdown}[form]()
    if args.report:
        output.write(args.report, text)
        if not args.quiet:
            print(f"wrote {args.report}", file=sys.stderr)
    else:
        sys.stdout.write(text)
    return 0


@dataclass(frozen=True)
class _Measured:
    """A step that was compiled and timed; `floor` and `compile_seconds` on a CPU, `kernels` on a
    GPU."""

    module: tvm.IRModule
    convolutions: Sequence[Lowered] = ()
    floor: Callable[[ConvProblem], float] | None = None
    planned_bytes: int = 0
    kernels: Sequence[KernelTime] = ()
    compile_seconds: Mapping[str, float] = field(default_factory=dict)


def _inspected(args: argparse.Namespace) -> Inspection:
    registry.register()

    display = Display(args.quiet)
    with display.progress:
        with display.part("importing"):
            graph = arguments.graph_of(args)
        facts: dict[str, Any] = {
            "model": graph.name, "batch": graph.batch, "dtype": args.dtype,
            "layout": arguments.layout_of(args.layout, graph), "batch_normalization": args.bn,
            "tvm": tvm.__version__,
        }  # fmt: skip
        if args.measure:
            where = place(args.device)
            step = (_on_gpu if where.is_gpu else _on_cpu)(args, graph, display, facts)
        else:
            with display.part("differentiating"):
                step = _Measured(arguments.step_of(args, graph))
        with display.part("partitioning"):
            split, report = partition(step.module, args.backends)
        with display.part("inspecting"):
            found = inspect_step(
                step.module, facts=facts, inputs=[spec.name for spec in graph.inputs],
                entries=report.entries, measured=step.convolutions, floor=step.floor,
                copies=_copies(split) if facts["layout"].endswith("C") else (),
            )  # fmt: skip
    if step.planned_bytes:
        found.data["totals"]["planned_bytes"] = step.planned_bytes
    if step.kernels:
        found.data["kernels"] = [asdict(kernel) for kernel in step.kernels]
    if step.compile_seconds:
        found.add_compiled(step.compile_seconds)
    return found


def _copies(module: tvm.IRModule) -> list[Copy]:
    """What a step copies along channels on a GPU, its convolutions in libraries."""
    for lower in (lower_norms, lower_pools):
        module, _ = lower(module, HOPPER)
    return copies(module[ADJOINT])


def _on_cpu(
    args: argparse.Namespace, graph: Any, display: Display, facts: dict[str, Any]
) -> _Measured:
    threads, target = configure_threads(), cpu_target()
    with display.part("measuring the machine"):
        limits = ceilings(target, threads)
    with display.parts() as begin:
        trainer = Trainer(graph, target, dtype=args.dtype, layout=args.layout, progress=begin)
    with display.part("timing every kernel"):
        trainer.profile(graph.random_batch(args.seed), ROUNDS)
    facts.update(
        cpu=str(target.attrs["mcpu"]), threads=threads,
        multiply_adds=f"{limits.flops / 1e9:.0f} GFLOP/s", copy=f"{limits.bytes / 1e9:.1f} GB/s",
    )  # fmt: skip
    compiled = trainer.compiled
    warn(compiled.scatter)
    return _Measured(
        trainer.module, compiled.convolutions, limits.floor, compiled.planned_bytes,
        compile_seconds=compiled.compile_seconds,
    )  # fmt: skip


def _on_gpu(
    args: argparse.Namespace, graph: Any, display: Display, facts: dict[str, Any]
) -> _Measured:
    with display.parts() as begin:
        trainer = Trainer(
            graph, args.device, dtype=args.dtype, layout=args.layout, progress=begin
        )  # fmt: skip
    device, compiled = trainer.place.device, trainer.compiled
    with display.part("timing every kernel"):
        values = trainer.arguments(graph.random_batch(args.seed))
        kernels = kernel_times(cuda_runtime(), compiled.vm, ADJOINT, values, device)
    facts["gpu"] = str(device.device_name)
    each = {kernel.name: kernel.seconds / kernel.calls for kernel in kernels}
    convolutions = [conv for conv in compiled.convolutions if conv.op != PRODUCT]
    for conv in convolutions:
        conv.seconds = each.get(compiled.symbol(conv.kernel))
    return _Measured(
        trainer.module, convolutions, planned_bytes=compiled.planned_bytes, kernels=kernels
    )
