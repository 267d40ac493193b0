"""`python -m relay_wgrad train`: from a model to a training step and its report."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from legalize import compare

from .. import output, registry
from ..cores import configure_threads, usable_cores
from ..display import Display, print_whole, warn
from ..frontend import TrainingGraph, to_onnx
from ..inspection.partial_training import left_out
from ..problem import ConvProblem
from ..threads import run as run_kernel
from ..training import processes, state
from ..training.data import WHOLE
from ..training.devices import cpu_target, place
from ..training.trainer import Trainer
from ..training.update import Update
from . import arguments, train_options
from .train_loop import options_of, run_steps, samples_of, settle, started
from .training_report import print_report, row

# A kernel agrees with its second opinion when the relative error is below this.  Both sum N·P·Q or
# C·R·S products in the result's own precision, in different orders: the error grows like the root
# of the number of terms times the unit roundoff (6e-8), which for a million terms is 6e-5.
# Half-precision operands are the same for both; a half-precision result is rounded once, by half a
# unit in the last place, and the stock composite may round in between.  Rows in float64 have no
# error of their own to speak of.
AGREES = {"float32": 1e-4, "float64": 1e-12, "float16": 4e-3, "bfloat16": 3e-2}
_ON_GPU = ("benchmark", "select", "no_tf32", "no_graph", "strict")
_LOSS_AGREES = 0.02  # a step's loss on a GPU and on the CPU
# Half a unit in the last place of what a GPU multiplies.
_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "tf32": 2.0**-11, "float16": 2.0**-11,
             "bfloat16": 2.0**-8}  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Trains; 1 where the loss did not come down or a kernel is wrong."""
    args.device, args.rank = processes.local_device(args.device), processes.launched_rank()
    with contextlib.ExitStack() as silence:
        if args.rank:  # the first of several processes prints and writes
            args.quiet, args.log, args.tensorboard = True, None, None
            args.json = args.export = None
            nowhere = silence.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
            silence.enter_context(contextlib.redirect_stdout(nowhere))
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    output.check_all(
        {"--save": args.save, "--export": args.export, "--json": args.json, "--log": args.log},
        {"MODEL": args.model, "--data": args.data, "--test": args.test, "--resume": args.resume},
        same={("--save", "--resume")},
    )
    if Path(args.model).suffix == arguments.PT2:
        if args.export:
            raise arguments.WrongArgumentsError(
                f"--export writes ONNX files; the parameters of {args.model} go to --save"
            )
        if args.weights == "seeded":
            raise arguments.WrongArgumentsError(
                f"--weights seeded is for ONNX files; {args.model} has its own"
            )
    chosen = [name for name in _ON_GPU if getattr(args, name) not in (False, "first")]
    if args.device == "cpu" and chosen:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in chosen)
        raise arguments.WrongArgumentsError(f"{options}: for a GPU, but --device is cpu")
    if args.sync_batch_norm and args.rank is None:
        raise arguments.WrongArgumentsError("--sync-batch-norm: for several processes, by torchrun")
    if args.save:
        state.check_safetensors()
    args.started, args.saved_update = 0, Update()
    if args.resume:
        saved = state.header(args.resume)
        args.optimizer = args.optimizer or saved["optimizer"]
        args.lr = args.lr or float(saved["lr"])
        args.started = int(saved["steps"])
        args.saved_update = state.update_in(args.resume, saved)
    args.optimizer = args.optimizer or "sgd"
    args.weights = args.weights or "auto"
    figures, ok = train(args)
    if args.json:
        output.write_json(args.json, figures)
    return 0 if ok else 1


def _graph_of(args: argparse.Namespace) -> TrainingGraph:
    """The training graph, of what a state to go on from trained, unless options say otherwise."""
    if not args.resume or args.trainable is not None or args.freeze is not None:
        return arguments.graph_of(args)
    args.trainable = list(state.trained_in(args.resume, state.header(args.resume))) or None
    try:
        return arguments.graph_of(args)
    except ValueError as error:  # nobody has given --train
        said = str(error).replace("--train ", f"{args.resume!r} trained ")
        raise ValueError(said) from error


def train(args: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Runs the command; returns all figures, and whether the run went well."""
    registry.register()

    report = Display(args.quiet)
    several = args.rank is not None
    cores = processes.shared_cores(len(usable_cores())) if several else None
    on_gpu = options_of(args)
    threads, target = configure_threads(cores), cpu_target(on_gpu.winograd)
    device = place(args.device, on_gpu).name  # what it refuses, now
    group = processes.Processes.join(device) if several else None
    args.shard = WHOLE if group is None else (group.rank, group.world)
    figures: dict[str, Any] = {"arguments": arguments.vars_of(args), "tvm": tvm.__version__,
                               "threads": threads}  # fmt: skip
    with report.progress:
        with report.part("importing"):
            graph = _graph_of(args)
            data = samples_of(args, args.data, graph) if args.data else None
            settle(args, data)
            figures["arguments"]["steps"] = args.steps
            update = train_options.update_from(args, args.saved_update, args.started + args.steps)
            if args.resume:
                state.check(args.resume, graph, args.optimizer, update)
            if args.export:
                # What it refuses, now and not at the end.
                to_onnx(graph, graph.params, args.model, mode=args.export_mode)
        report.out.print(started(args, graph, data), markup=False, soft_wrap=True)
        if graph.frozen:
            found = left_out(graph)
            figures["left_out"] = asdict(found)
            print_whole(found.table(), report.out)
        start = time.perf_counter()
        with report.parts() as begin:
            trainer = Trainer(
                graph, args.device, optimizer=args.optimizer, lr=args.lr, update=update,
                dtype=args.dtype, loss_scale=args.loss_scale, layout=args.layout, seed=args.seed,
                on_gpu=on_gpu, distributed=several,
                sync_batch_norm=args.sync_batch_norm, progress=begin,
            )  # fmt: skip
        where = trainer.place
        figures.update(
            batch=graph.batch, processes=args.shard[1], weights=graph.weights,
            compile_seconds=time.perf_counter() - start,
            device=where.name, notes=where.notes,
            target=str(where.device.device_name if where.is_gpu else target),
        )  # fmt: skip
        report.notes(where.notes)
        if args.resume:
            state.restore(trainer, args.resume)
        told = len(where.notes)
        ok = run_steps(args, report, trainer, data, figures)
        report.notes(where.notes[told:])  # such as why steps are no graph
        opinions: dict[str, Any] = {}
        if group is None:
            agrees, opinions = _kernels(args, report, trainer, target, figures)
            ok = ok and agrees
    if group is not None:  # of the kernels a single process tells
        group.leave()
        if rate := figures["images_per_second"]:
            report.out.print(f"{group.world} processes: {rate:.3g} images/s")
        return figures, ok
    print_report(report, graph, trainer, figures, opinions)
    warn(trainer.compiled.scatter)
    figures["convolutions"] = [row(conv, opinions) for conv in trainer.compiled.convolutions]
    wrong = [o for o in opinions.values() if not o.error <= AGREES[args.dtype]]
    if wrong:
        worst = max(wrong, key=lambda o: o.error)
        report.out.print(f"[red]{len(wrong)} kernels disagree, the worst: {worst.problem}[/]")
    return figures, ok and not wrong


def _kernels(
    args: argparse.Namespace, report: Display, trainer: Trainer, target: Any,
    figures: dict[str, Any],
) -> tuple[bool, dict[str, Any]]:  # fmt: skip
    """Times every kernel, and checks them: (whether a GPU's step agrees, second opinions)."""
    with report.part("timing every kernel"):
        figures["kernel_seconds"] = trainer.profile(trainer.graph.random_batch(args.seed))
    if args.no_check:
        return True, {}
    if trainer.place.is_gpu:
        return _check_step(args, report, trainer, figures), {}
    return True, _check(report, trainer, target, args.against)


def _check_step(
    args: argparse.Namespace, report: Display, trainer: Trainer, figures: dict[str, Any]
) -> bool:
    """Loss and gradients at the trained parameters beside this CPU's; whether the losses agree.

    Gradients of deep networks differ by more than roundings, since a ReLU near 0 falls to either
    side: their distance is told, not judged, beside how far the CPU's own move where each number of
    the images is moved by one rounding, up or down.
    """
    batch = trainer.graph.random_batch(args.seed)
    arithmetic = "tf32" if args.dtype == "float32" and not args.no_tf32 else args.dtype
    moved, random = dict(batch), np.random.default_rng(args.seed)
    for spec in trainer.graph.inputs:
        value = batch[spec.name]
        if spec.kind == "data" and value.dtype.kind == "f":
            ways = random.choice((-1.0, 1.0), value.shape)
            moved[spec.name] = (value * (1 + _ROUNDOFF[arithmetic] * ways)).astype(value.dtype)
    with report.parts() as begin:
        other = Trainer(
            trainer.graph, "cpu", optimizer=trainer.optimizer, lr=trainer.lr, dtype=args.dtype,
            update=trainer.update, loss_scale=args.loss_scale, layout=args.layout, seed=args.seed,
            progress=begin,
        )  # fmt: skip
        other.set_state(
            {name: value.numpy() for name, value in trainer.params.items()},
            [value.numpy() for value in trainer.state],
            steps=trainer.steps, skipped=trainer.skipped, good_steps=trainer.good_steps,
            loss_scale=trainer.loss_scale,
        )  # fmt: skip
        begin("the same step on the CPU")
        (got, ours), (want, theirs) = (one.gradients(batch) for one in (trainer, other))
        theirs = [gradient.numpy().copy() for gradient in theirs]
        beside = other.gradients(moved)[1]
    loss, reference = (float(outputs[0].numpy()) for outputs in (got, want))
    figures.update(
        loss_error=abs(loss - reference) / abs(reference), gradient_error=_apart(ours, theirs),
        gradient_rounding=_apart(beside, theirs), arithmetic=arithmetic,
    )  # fmt: skip
    return bool(figures["loss_error"] <= _LOSS_AGREES)


def _apart(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    """Of all gradients together, relative to the norm of theirs."""
    pairs = [(a.numpy().astype("float64"), b) for a, b in zip(ours, theirs, strict=True)]
    apart = sum(float(((a - b) ** 2).sum()) for a, b in pairs)
    whole = sum(float((b.astype("float64") ** 2).sum()) for _, b in pairs)
    return math.sqrt(apart / whole)


def _check(report: Display, trainer: Trainer, target: Any, against: str) -> dict[str, Any]:
    """Every distinct kernel on random operands, beside what `--against` says."""
    distinct = list(dict.fromkeys(c.problem for c in trainer.compiled.convolutions))
    problems = [ConvProblem.parse(text) for text in distinct]
    opinions: dict[str, Any] = {}
    if not problems:
        return opinions
    kernels = {conv.problem: conv.kernel for conv in trainer.compiled.convolutions}
    second: Callable[..., compare.Opinion] = compare.by_rows
    if against == "composite":
        with report.part("compiling the stock composites"):
            stock = compare.build_stock(problems, target)
        second = partial(compare.by_composite, stock=stock)

    def opinion(index: int) -> compare.Opinion:
        kernel = trainer.compiled.kernel(kernels[distinct[index]])
        return second(problems[index], partial(run_kernel, kernel), index=index)

    with (
        report.part("second opinion on every kernel", len(problems)) as advance,
        ThreadPoolExecutor(len(usable_cores())) as pool,
    ):
        # NumPy draws, reads and multiplies on one core; composites are timed, one after another.
        each: Any = map if against == "composite" else pool.map
        for text, found in zip(distinct, each(opinion, range(len(problems))), strict=True):
            opinions[text] = found
            advance()
    return opinions
