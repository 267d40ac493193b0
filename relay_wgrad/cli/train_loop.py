"""The steps of `train`: samples, epochs, evaluation, logs, and what is saved."""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from .. import output
from ..display import Display
from ..frontend import TrainingGraph, to_onnx
from ..frontend.graph import DRAWN
from ..frontend.onnx.export import mode_of
from ..training import state
from ..training.data import Data
from ..training.evaluation import Evaluator
from ..training.images import ImageFolder, Reading
from ..training.logs import Log, check_tensorboard
from ..training.options import Options
from ..training.trainer import CHECK_EVERY, Trainer
from . import arguments
from .interrupts import held_interrupt
from .training_report import Memory, course

Samples = Data | ImageFolder
STEPS = 5  # where nothing says how many


def samples_of(
    args: argparse.Namespace, path: str, graph: TrainingGraph, least: int | None = None
) -> Samples:
    """Those of a file or of a folder of images.  Raises as `Data` and `ImageFolder` do."""
    how: dict[str, Any] = {"least": least, "shard": args.shard}
    if not Path(path).is_dir():
        return Data.load(path, graph, args.seed, **how)
    reading = Reading() if args.augment is None else Reading(args.augment)
    given = {name: getattr(args, name) for name in ("mean", "std") if getattr(args, name)}
    return ImageFolder(graph, path, args.seed, replace(reading, **given), **how)


def options_of(args: argparse.Namespace) -> Options:
    """How convolutions are computed on a GPU."""
    return Options(
        strict=args.strict, tf32=not args.no_tf32, benchmark=args.benchmark, select=args.select,
        graph=not args.no_graph,
    )  # fmt: skip


def settle(args: argparse.Namespace, data: Samples | None) -> None:
    """Makes steps of what is asked for.  Raises ValueError for what does not go together."""
    if args.epochs is not None and args.steps is not None:
        raise arguments.WrongArgumentsError(
            f"--epochs {args.epochs} and --steps {args.steps}: give one of them"
        )
    if args.epochs is not None and data is None:
        raise arguments.WrongArgumentsError(
            f"--epochs {args.epochs}: an epoch is of --data, which is not given"
        )
    if args.test and data is None:
        raise arguments.WrongArgumentsError(f"--test {args.test}: there is no --data to train on")
    folders = isinstance(data, ImageFolder) or (args.test and Path(args.test).is_dir())
    for name in ("augment", "mean", "std"):
        if getattr(args, name) is not None and not folders:
            raise arguments.WrongArgumentsError(
                f"--{name}: neither --data nor --test is a folder of images"
            )
    if args.tensorboard:
        check_tensorboard()
    if args.epochs is not None and data is not None:
        args.steps = args.epochs * data.batches - args.started
        if args.steps < 1:
            raise arguments.WrongArgumentsError(
                f"--epochs {args.epochs}: {args.resume} has {args.started} steps, which are"
                f" {args.started / data.batches:g} epochs of {data.batches} batches"
            )
    args.steps = STEPS if args.steps is None else args.steps


def started(args: argparse.Namespace, graph: TrainingGraph, data: Samples | None) -> str:
    """Where weights and samples are from."""
    weights = f"of {args.resume}" if args.resume else "the file's own"
    if not args.resume and graph.weights == "seeded":
        weights = f"random, by seed {args.seed}"
    samples = f"one random batch of {graph.batch}, by seed {args.seed}"
    if args.shard[1] > 1:
        samples += f", another one in each of {args.shard[1]} processes"
    if data is not None:
        processes = args.shard[1]
        size = f"{processes} x {graph.batch}" if processes > 1 else str(graph.batch)
        samples = f"{data.samples} of {args.data}, {data.batches} batches of {size} an epoch"
        if left := data.samples % (graph.batch * processes):
            samples += f", {left} left over, other ones each time"
    notes = [*graph.notes, *(data.notes if isinstance(data, ImageFolder) else ())]
    return "\n".join([f"weights: {weights}; samples: {samples}", *notes])


def run_steps(
    args: argparse.Namespace,
    report: Display,
    trainer: Trainer,
    data: Samples | None,
    figures: dict[str, Any],
) -> bool:
    """Trains; whether the loss came down, or with data of the user's own stayed finite."""
    evaluate = _evaluator(args, report, trainer) if args.test else None
    with Log(args.log, args.tensorboard, trainer.steps) as log:
        return _Steps(args, report, trainer, data, evaluate, log).run(figures)


class _Steps:
    """The steps of one run, an epoch after another."""

    def __init__(
        self,
        args: argparse.Namespace,
        report: Display,
        trainer: Trainer,
        data: Samples | None,
        evaluate: Any,
        log: Log,
    ) -> None:
        self.args, self.report, self.trainer, self.data = args, report, trainer, data
        self.evaluate, self.log = evaluate, log
        self.interrupts: list[int] = []
        self.losses: list[float] = []
        self.times: list[float] = []
        self.evaluations: list[dict[str, float]] = []
        self.memory = Memory(trainer.place.memory)
        # The first and the last loss have the same masks; each step between draws its own.
        self.fixed = trainer.graph.random_batch(args.seed + args.shard[0])
        drawn = {spec.name for spec in trainer.graph.inputs if spec.kind in DRAWN}
        self.plain = {name: v for name, v in self.fixed.items() if name not in drawn}

    def run(self, figures: dict[str, Any]) -> bool:
        trainer, args, losses = self.trainer, self.args, self.losses
        try:
            with (
                self.report.part("training", args.steps) as advance,
                # Of several processes one would stop where the others have begun another step.
                held_interrupt(bool(args.save) and args.rank is None) as self.interrupts,
            ):
                end = trainer.steps + args.steps
                if self._gap() and self.data and trainer.steps % self.data.batches == 0:
                    self._evaluated()  # it was interrupted between a state and its evaluation
                while trainer.steps < end and not self.interrupts:
                    self._some(self._pause(end), advance)
                    if trainer.steps < end and not self.interrupts:
                        self._after()
                trainer.check_finite()
                if self.data is None and not self.interrupts:
                    losses.append(trainer.loss(self.fixed))
        finally:
            if losses:
                self.report.out.print(course(losses, self.data))
        if self.interrupts:
            state.save(trainer, args.save)
            print(f"saved to {args.save}", file=sys.stderr)
            raise KeyboardInterrupt
        self.memory.look()
        self._after(last=True)
        told = [f"saved to {args.save}"] if args.save else []
        if args.export:
            model = to_onnx(trainer.graph, self._params(), args.model, mode=args.export_mode)
            with output.replacing(args.export) as made:
                onnx.save(model, made)
            told += [f"saved to {args.export}", f"which is for {mode_of(model)}"]
        if told and not args.quiet:
            print("\n".join(told), file=sys.stderr)
        times, images = self.times, trainer.graph.batch * args.shard[1]
        figures.update(
            losses=losses, step_seconds=times, peak_bytes=self.memory.most,
            skipped=trainer.skipped, evaluations=self.evaluations,
            images_per_second=images / statistics.median(times) if times else None,
            plans=trainer.compiled.plans(),
            planned_bytes=trainer.compiled.planned_bytes, learning_rate=trainer.lr,
            layout_changes=trainer.layout_changes[1],
            layout_changes_before=trainer.layout_changes[0],
        )  # fmt: skip
        finite = all(math.isfinite(x) for x in losses)
        if not finite or (self.data is None and losses[-1] >= losses[0]):
            self.report.out.print(
                "[red]the loss did not come down[/]: try a smaller --lr or more --steps"
            )
            return False
        return True

    def _gap(self) -> bool:
        """Whether the log lacks an evaluation; of several processes the first one has it."""
        group = self.trainer.processes
        return self.log.gap if group is None else bool(group.sum([self.log.gap])[0])

    def _pause(self, end: int) -> int:
        """The step at which an epoch is over."""
        if self.data is None:
            return end
        each = self.data.batches
        return min((self.trainer.steps // each + 1) * each, end)

    def _batches(self, end: int) -> Iterator[dict[str, Any]]:
        for step in range(self.trainer.steps, end):
            if self.interrupts:
                return
            yield self.plain if self.data is None else self.data.batch(step)

    def _some(self, end: int, advance: Any) -> None:
        trainer, data, losses = self.trainer, self.data, self.losses
        given = self._batches(end)
        if data is None:
            given = itertools.chain([self.fixed], given)
        first = trainer.steps
        for step, loss in enumerate(
            trainer.train(itertools.islice(given, end - first)), start=first
        ):
            losses.append(loss)
            seconds = trainer.step_seconds if trainer.step_seconds > 0 else None
            if seconds:  # a GPU's first step has none before it
                self.times.append(seconds)
            if len(losses) % CHECK_EVERY == 1 or not trainer.place.is_gpu:
                self.memory.look()
            rate = trainer.update.rate(trainer.lr, step)
            epoch = None if data is None else step // data.batches + 1  # the one that it is in
            self.log.row(step=step, epoch=epoch, loss=loss, rate=rate, seconds=seconds)
            advance(_pace(trainer, self.times, self.memory, self.args.shard[1]))

    def _after(self, last: bool = False) -> None:
        """At an epoch's end, and at the last step: saves and evaluates."""
        # First: an evaluation takes long, and may end by an interrupt or a sample that is broken.
        if self.args.save and (last or self.data is not None):
            self.log.flush()
            state.save(self.trainer, self.args.save)
        self._evaluated()

    def _evaluated(self) -> None:
        """Evaluates, where there are samples for it."""
        trainer, data = self.trainer, self.data
        if self.evaluate is not None and data is not None:
            found = self.evaluate(self._params())
            epoch = trainer.steps / data.batches
            self.evaluations.append({"steps": trainer.steps, "epoch": epoch, **found._asdict()})
            self.log.row(
                step=trainer.steps, epoch=round(epoch, 6), test_loss=found.loss,
                accuracy=None if math.isnan(found.accuracy) else found.accuracy,
            )  # fmt: skip
            right = "" if math.isnan(found.accuracy) else f", accuracy {found.accuracy:.2%}"
            self.report.out.print(
                f"after epoch {epoch:g}: test loss {found.loss:.4f}{right} of {found.samples}"
            )

    def _params(self) -> Mapping[str, Any]:
        """The parameters to use: averages, where there are some."""
        is_plain = self.trainer.update.ema is None
        return self.trainer.params if is_plain else self.trainer.averages


def _evaluator(args: argparse.Namespace, report: Display, trainer: Trainer) -> Any:
    """A function of parameters: their evaluation on --test."""
    plain = copy.copy(args)
    plain.bn, plain.dropout, plain.random, plain.checkpoint = "eval", "off", "off", None
    plain.trainable = plain.freeze = None
    with report.parts() as begin:
        begin("importing for evaluation")
        graph = arguments.graph_of(plain)
        data = samples_of(args, args.test, graph, least=1)
        if isinstance(data, ImageFolder) and Path(args.data).is_dir():
            known = sorted(p.name for p in Path(args.data).iterdir() if p.is_dir())
            if known != data.classes:
                raise arguments.WrongArgumentsError(
                    f"--test {args.test}: its classes are not those of {args.data}"
                )
        evaluator = Evaluator(
            graph, trainer.place.name, dtype=args.dtype, layout=args.layout,
            on_gpu=options_of(args), distributed=args.rank is not None, progress=begin,
        )  # fmt: skip
    return lambda params: evaluator(params, data)


def _pace(trainer: Trainer, times: list[float], memory: Memory, processes: int) -> str:
    """For the progress: images a second of the last steps, and memory."""
    last, images = times[-CHECK_EVERY:], trainer.graph.batch * processes
    rate = f"{images * len(last) / sum(last):.3g} images/s, " if last else ""
    return f": {rate}{memory.now / 2**30:.1f} GiB"
