"""Training on a compiled graph, step by step, on a CPU or a GPU."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import tvm
from tvm.target import Target

from .. import threads
from ..argument_types import checked_bool
from ..frontend import TrainingGraph
from ..uncopied import Uncopied
from . import loss_scale as scales
from .compiled import Compiled, Progress, silent
from .devices import place
from .exchange import Exchange, check_loss, counts_labels, synchronized, weight_of
from .kernel_profile import profiled
from .optim import Rate, default_lr, optimizer_for, state_of
from .options import Options
from .processes import Processes, local_device
from .size_cache import BySize
from .sized_step import Recipe, SizedStep
from .step import ADJOINT, precision
from .stored_layout import StoredLayout, Tensors
from .transfers import Row
from .update import Update, checked, rates
from .whole_step import NOT_FINITE

CHECK_EVERY = 10
"""Steps between two looks at all parameters: each costs a read of them, 0.015 s for ResNet-50."""
_ADVICE = (
    "Look for values in the data that are not finite, lower the learning rate, or with float16 the"
    " loss scale."
)


class Trainer(
    Uncopied, instead="make another of its graph; training.state saves and restores what it is at"
):
    """Trains a `TrainingGraph` on the CPU or a GPU.

    Parameters
    ----------
    graph : the network, its loss and its initial parameters.
    device : "cpu"; "cuda" or "cuda:1", whose convolutions go to cuDNN; "auto", a GPU if one can be
        used; or a CPU's target.  Parameters, optimizer state and running statistics live there.
    optimizer : "sgd", "momentum" (0.9), "adam" or "adamw".
    lr : the learning rate; by default `default_lr`'s for the optimizer and the network.  `lr` of
        the trainer can be set between steps.
    update : what else becomes of gradients and parameters: decay, clipping, a schedule of the rate,
        a moving average (`relay_wgrad.training.Update`).
    dtype : None for the graph's own, or "float16" ("f16") or "bfloat16" ("bf16"): convolutions and
        matrix products take operands in that type and add up in float32; parameters, optimizer
        state and loss stay float32, and on a CPU normalizations and weights' gradients (see
        `on_gpu`).
    loss_scale : what the loss is multiplied by before differentiation, and the gradients divided by
        after; a positive number, or "dynamic": starts at 65536, halves and leaves out the update
        when a gradient is not finite, doubles after 200 good steps.  By default 1024 with float16,
        else none.
    checkpoint : None, "auto" or a list of the file's tensors; "graph" is the graph's own option.
    layout : of activations: "NCHW", the model's own, or another that
        `relay_wgrad.transform.ConvertLayout` takes; by default "NCHW", on a GPU "NHWC".
    seed : of dropout's masks and other random inputs, which each step draws anew where its batch
        has none.
    on_gpu : how convolutions are computed on a GPU: `relay_wgrad.training.options.Options`.
    distributed : whether several processes train together, each on batches of its own of which
        gradients, losses and running statistics are the means; needs PyTorch.  The group is
        PyTorch's default one, or begins by what `torchrun` says; "cuda" is the GPU of the process's
        number there.  All start with the first one's parameters, and each calls `step`, `train`,
        `gradients`, `loss`, `set_state` and what saves as often as the others.
    sync_batch_norm : of several processes: batches are normalized in training by the mean and
        variance of all processes' batches, which must be of one fixed size.
    progress : called with a few words before each part that may take long: "differentiating",
        "generating kernels" or "partitioning", "compiling", and the conversion of the layout where
        there is one; with "for 3 images" where it is for a number that has just come.  On a CPU
        also before "fusing", "scheduling" and "planning memory", and with each few kernels that
        are there: "compiling: kernel 3 of 67, 0 from the cache".

    Raises
    ------
    ValueError : for an unknown option's value, naming it, and for a GPU that cannot be used, naming
        what is missing.

    On a GPU a step is compiled for a number of images.  Of a graph whose batch is open it is when
    that number first comes, and kept for the last few (`Options.sizes`); all have the same
    parameters, optimizer state, loss scale and counts.
    """

    lr = Rate()

    def __init__(
        self,
        graph: TrainingGraph,
        device: str | Target = "cpu",
        *,
        optimizer: str = "momentum",
        lr: float | None = None,
        update: Update | None = None,
        dtype: str | None = None,
        loss_scale: float | str | None = None,
        checkpoint: str | Sequence[str] | None = "graph",
        layout: str | None = None,
        seed: int = 0,
        on_gpu: Options | None = None,
        distributed: bool = False,
        sync_batch_norm: bool = False,
        progress: Progress = silent,
    ) -> None:
        self.update = update = checked(graph, update, seed)
        lr = default_lr(optimizer, graph) if lr is None else lr
        rule = optimizer_for(graph, optimizer, lr)
        self.lr, self.graph, self.seed = lr, graph, seed
        dtype = precision(graph, dtype)
        self.dtype = graph.dtype if dtype is None else dtype
        self._dynamic = loss_scale == "dynamic"
        self._scale = scales.initial_scale(loss_scale, self.dtype)
        self.optimizer, self.steps = optimizer, 0
        self.skipped = 0  # steps left out because of a gradient that was not finite
        self.good_steps = 0  # since the loss scale changed
        self.processes: Processes | None = None
        self._syncs = checked_bool("Trainer: sync_batch_norm", sync_batch_norm)
        self._exchange: Exchange | None = None
        if checked_bool("Trainer: distributed", distributed):
            check_loss(graph)
            device = local_device(device)
        elif self._syncs:
            raise ValueError("sync_batch_norm=True: is for several processes: distributed=True")
        self.place = place(device, on_gpu)
        if distributed:
            self.processes = Processes.join(self.place.name)
            # Not where the others' losses depend on it: its part would be its loss's times 0 / 0.
            may_be_nothing = counts_labels(graph) and not self._syncs
            self._exchange = Exchange(
                self.processes, self._dynamic, update.accumulate, may_be_nothing
            )
            self._agree()
        own = len(rule.state)
        with self.place.memory_errors():
            self._transfers = self.place.transfers()
        self._recipe = Recipe(
            self.place, optimizer, self.lr, update, dtype, checkpoint,
            self.place.layout if layout is None else layout,
            self._scale is not None, self._dynamic, own, self._transfers, self._exchange,
        )  # fmt: skip
        trained = graph
        if self._syncs and self.processes is not None:
            trained = synchronized(graph, self.processes.world)
        self._sized = BySize(trained, self.place, self._recipe.made, progress)
        if self._sized.is_one:
            group = None if self.place.is_gpu else self.processes  # a GPU's are not kept
            with contextlib.nullcontext() if group is None else group.in_turn():
                self._sized.for_batch()
        with self.place.memory_errors():
            whose = state_of(graph.trainable, optimizer, own)
            summed = graph.trainable if update.accumulate > 1 else ()
            averaged = graph.trainable if update.ema is not None else ()
            axes = self._recipe.axes or {}
            self._kept = kept = StoredLayout(axes, [*whose, *summed, *averaged], self.place.device)
            values = [kept.put(name, value) for name, value in graph.params.items()]
            self._params = Tensors(graph.params, values, kept)
            self._state: Any = [kept.put(*pair) for pair in zip(whose, rule.state, strict=True)]
            self._state += [kept.put(name, 0 * graph.params[name]) for name in summed]
            self._state += [kept.put(name, graph.params[name]) for name in averaged]
        if self.processes is not None:
            self.processes.take_firsts([*self._params.all, *self._state])
        self._is_alike = False  # the axes of parameters: a GPU's first batch decides on them
        self._stands = False  # somebody has been told that the schedule is over
        self._control: Any = None  # on the device; None where the numbers here are what counts
        self.step_seconds = math.nan  # of the last step whose loss was read

    @property
    def compiled(self) -> Compiled:
        """The step that ran last, compiled.

        On a GPU a graph of an open batch has one for each number of images.  Raises ValueError
        before the first is there, as `module` and `layout_changes` do.
        """
        return self._sized.last.compiled

    @property
    def module(self) -> tvm.IRModule:
        """What `compiled` was compiled from."""
        return self._sized.last.module

    @property
    def layout_changes(self) -> tuple[int, int]:
        """In the step of `module`, before and after its conversion to another layout."""
        return self._sized.last.layout_changes

    @property
    def params(self) -> Tensors:
        """The parameters and running statistics by name, on the device.

        There steps may write over them, and some are copies, since the device keeps them otherwise.
        """
        return self._params

    @property
    def state(self) -> list[Any]:
        """The optimizer's tensors, on the device, as `params`."""
        return self._kept.read_state(self._state)

    @property
    def averages(self) -> Mapping[str, Any]:
        """`params`, to be read, with moving averages in the place of the trained ones
        (`Update.ema`); running statistics, and what is not trained, are as they are.

        Raises ValueError for a trainer that has none.
        """
        if self.update.ema is None:
            raise ValueError("averages: the trainer's update has no ema")
        names = self.graph.trainable
        held = dict(zip(names, self._state[-len(names) :], strict=True))
        values = [held.get(n, v) for n, v in zip(self._params, self._params.all, strict=True)]
        return MappingProxyType(Tensors(self._params, values, self._kept))

    @property
    def loss_scale(self) -> float | None:
        """The loss scale of the next step, None for none."""
        return self._scale

    @loss_scale.setter
    def loss_scale(self, value: float | None) -> None:
        self._scale, self._control = value, None

    def progress(self) -> dict[str, Any]:
        """`steps`, `skipped`, `good_steps` and `loss_scale` of the parameters as they are: waits
        for all steps, where the trainer's own are on a GPU as of the last loss that was read."""
        return scales.progress(self, self._control, self._dynamic)

    def arguments(self, batch: Mapping[str, np.ndarray[Any, Any]]) -> list[Any]:
        """The adjoint's arguments for a batch, in order; random inputs that it lacks are drawn.

        On a GPU weights have the axes that kernels want.
        Raises ValueError for a batch that is not the graph's: `TrainingGraph.batch_values`.
        """
        given = [self._tensor(value) for value in self._values(batch)]
        self._of(batch)
        given += self._params.all
        scale = [] if self._scale is None else [self._tensor(np.float32(self._scale))]
        return given + scale

    def gradients(self, batch: Mapping[str, np.ndarray[Any, Any]]) -> tuple[Any, Any]:
        """(the outputs of `main`, the gradients by `graph.trainable`) at the present parameters.

        Of several processes loss, new statistics and gradients are the means over them.
        """
        with self.place.memory_errors():
            arguments = self.arguments(batch)
            self._weigh(batch)
            made = threads.run(self.compiled.vm[ADJOINT], *arguments)
            outputs, gradients = self._sized.last.exchanged(made)
        pairs = zip(self.graph.trainable, gradients, strict=True)
        return outputs, [self._kept.read(name, gradient) for name, gradient in pairs]

    def step(self, batch: Mapping[str, np.ndarray[Any, Any]]) -> float:
        """One step: the loss before it.  Parameters and running statistics are updated.

        On a GPU this waits for the step; `train` does not.

        Raises ValueError for a batch that is not the graph's; FloatingPointError for a loss that is
        not finite, and the parameters are then as before the step; every `CHECK_EVERY` steps for a
        parameter that is not finite (`check_finite`).
        """
        (loss,) = self.train([batch])
        return loss

    def train(
        self, batches: Iterable[Mapping[str, np.ndarray[Any, Any]]], check_every: int = CHECK_EVERY
    ) -> Iterator[float]:
        """Steps over batches: their losses, in order.

        On a GPU a batch is drawn and copied while earlier steps run, and losses come `check_every`
        at a time when as many more steps are on their way.  Warns where the schedule has brought
        the learning rate to 0, at which nothing is learned any more.  Errors are those of `step`;
        then the parameters are as before the step that the error names, or where a parameter is not
        finite some steps later.
        """
        if check_every < 1:
            raise ValueError(f"train: check_every must be at least 1, got {check_every}")
        every = check_every if self._transfers.ahead else 1
        waiting: deque[Any] = deque()
        self._transfers.begin()
        try:
            for batch in batches:
                with threads.calls.one():
                    waiting.append(self._send(batch))
                if len(waiting) >= (2 * every if self._transfers.ahead else 1):
                    for _ in range(every):
                        yield self._read(waiting)
            while waiting:
                yield self._read(waiting)
        finally:
            # Who asked has gone, or heard of an error: what was given to the device counts.
            with contextlib.suppress(FloatingPointError):
                while waiting:
                    self._read(waiting)

    def check_finite(self) -> None:
        """Raises FloatingPointError for a parameter with a value that is not finite, by name.

        A step does this every `CHECK_EVERY` steps: a network can hide such a value from its loss.
        """
        for name, value in zip(self._params, self._params.all, strict=True):
            array = value.numpy() if self.place.is_gpu else np.from_dlpack(value)
            with np.errstate(over="ignore", invalid="ignore"):
                total = array.sum()  # one read, no copy; only a sum that overflows needs a second
            if not (np.isfinite(total) or np.isfinite(array).all()):
                count = int((~np.isfinite(array)).sum())
                raise FloatingPointError(
                    f"after step {self.steps}: {count} of {array.size} values of the parameter"
                    f" {name!r} are not finite.  {_ADVICE}"
                )

    def set_state(
        self,
        params: Mapping[str, np.ndarray[Any, Any]],
        state: Sequence[np.ndarray[Any, Any]],
        *,
        steps: int,
        skipped: int,
        good_steps: int,
        loss_scale: float | None,
    ) -> None:
        """Goes back to an earlier moment of the same training; see `relay_wgrad.training.state`.

        The loss scale is the trainer's own where it is not dynamic.  Raises ValueError for a tensor
        of another shape or dtype; then all is as it was.
        """
        values = self._params.taken(params)
        self._state = self._kept.put_state(state, self._state)
        self._params.all = values
        if self.processes is not None:
            self.processes.agree({"steps": steps, "skipped": skipped, "loss_scale": loss_scale})
            self.together()
            self.processes.take_firsts([*self._params.all, *self._state])
        self.steps, self.skipped, self._control = steps, skipped, None
        if self._dynamic and loss_scale is not None:
            self._scale, self.good_steps = loss_scale, good_steps

    def loss(self, batch: Mapping[str, np.ndarray[Any, Any]]) -> float:
        """The loss at the present parameters, which stay as they are."""
        return float(self.gradients(batch)[0][0].numpy())

    def _values(self, batch: Mapping[str, Any]) -> list[Any]:
        images = self.graph.images(batch)
        if images is None and self.graph.is_open:  # who has no data; which says so
            return list(self.graph.batch_values(batch))
        rank = 0 if self.processes is None else self.processes.rank
        whole = {**self.graph.draws(self.seed, self.steps, images, rank), **batch}
        return list(self.graph.batch_values(whole))

    def _of(self, batch: Mapping[str, Any]) -> SizedStep:
        """The step for a batch, which may have to be compiled; parameters are in its axes."""
        sized = self._sized.for_batch(batch)
        if sized.axes != self._kept.axes:  # of the first batch
            with self.place.memory_errors():
                made = self._kept.turned(sized.axes, self._params, self._params.all, self._state)
            self._params.all, self._state = made
        return sized

    def _send(self, batch: Mapping[str, Any]) -> Any:
        """Gives the device a step; what `_read` takes."""
        values = self._values(batch)
        sized = self._of(batch)
        self._weigh(batch)
        if self._control is None:
            now = scales.control(self._scale, self.good_steps, self.skipped, self.steps)
            self._control = self._tensor(now)
        if not self._stands and (over := self.update.stands(self.lr, self.steps)):
            self._stands = True
            warnings.warn(over, UserWarning, stacklevel=4)
        with self.place.memory_errors():
            rate = rates(self.graph, self.update, self.lr, self.steps)
            inputs = self._transfers.inputs(sized.places, [*values, rate])
            made = threads.run(sized.step, inputs, self._params.all, self._state, self._control)
            wrong = None
            if self.place.is_gpu and (self.steps + 1) % CHECK_EVERY == 0:
                wrong = sized.compiled.vm[NOT_FINITE](made[0])
            report = self._transfers.done(made[2], wrong)
        self._made(*made)
        return report, [] if self._exchange is None else self._exchange.own

    def _weigh(self, batch: Mapping[str, Any]) -> None:
        """What this process's batch counts beside the others', whose parameters lie as here."""
        if self._exchange is not None and self.processes is not None:
            if not self._is_alike:
                self.processes.agree({"axes of parameters": dict(self._kept.axes)})
                self._is_alike = True
            self._exchange.weigh(weight_of(self.graph, batch), self.steps)

    def _agree(self) -> None:
        """Raises ValueError where another process trains something else, or otherwise."""
        assert self.processes is not None
        kinds = {name: f"{v.dtype}{list(v.shape)}" for name, v in self.graph.params.items()}
        self.processes.agree({
            "the network": self.graph.name, "batches of": self.graph.batch_text(),
            "parameters": kinds,
            "trainable": self.graph.trainable, "optimizer": self.optimizer, "lr": self.lr,
            "update": self.update.text(), "dtype": self.dtype, "loss_scale": self._scale,
            "sync_batch_norm": self._syncs,
        })  # fmt: skip

    def _made(self, params: Any, state: Any, control: Any) -> None:
        """A step's results, which the next takes.  It moved nothing if it failed."""
        self._params.all, self._state, self._control = params, state, control
        self.steps += 1

    def _read(self, waiting: deque[Any]) -> float:
        """The loss of the oldest step on its way."""
        with self.place.memory_errors():
            report, own = waiting.popleft()
            row: Row = report.read()
        known = dict(zip(scales.FIELDS, row.control.tolist(), strict=True))
        if self._dynamic:
            self._scale = known["scale"]
        self.good_steps, self.skipped = int(known["good_steps"]), int(known["skipped"])
        self.step_seconds = row.seconds
        if known["stopped"] != scales.RUNNING:
            waiting.clear()  # they have moved nothing
            self.steps, self._control = int(known["steps"]), None
            what = f"the loss is {known['loss']}"
            if known["stopped"] == scales.GRADIENT:
                what = "a gradient is not finite even at a loss scale of 1"
            whose = self._whose(known["stopped"], own)
            raise FloatingPointError(
                f"step {self.steps + 1}: {what}{whose}; the parameters are as before the step."
                f"  {_ADVICE}"
            )
        if row.wrong or (not self.place.is_gpu and self.steps % CHECK_EVERY == 0):
            self.check_finite()
        return known["loss"]

    def _whose(self, stopped: float, own: Sequence[Any]) -> str:
        """Which of several processes had the loss, or the gradient, that stopped all of them."""
        if self.processes is None:
            return ""
        loss, *count = (float(value.numpy()) for value in own)
        here = not math.isfinite(loss) if stopped == scales.LOSS else any(count)
        ranks = self.processes.which(here)
        return f" in process {', '.join(map(str, ranks))}" if ranks else ""

    def together(self) -> None:
        """Of several processes: what each has accumulated of its own batches' gradients becomes the
        mean, with which each of them may go on.  Each calls it; so do `set_state` and what saves.
        """
        if self._exchange is None or self.update.accumulate == 1:
            return
        first = self._recipe.own
        sums = slice(first, first + len(self.graph.trainable))
        means = self._exchange(self._state[sums])
        self._exchange.give_away()
        self._state = [*self._state[:first], *means, *self._state[sums.stop :]]

    def profile(
        self, batch: Mapping[str, np.ndarray[Any, Any]], rounds: int = 3, seconds: float = 0.1
    ) -> dict[str, float]:
        """Seconds spent in each kernel during one evaluation of loss and gradients.

        There are `rounds` evaluations or more, until they have taken `seconds`; of each call in it
        the least time counts.  Each convolution of `compiled.convolutions` gets the mean of its
        kernel's calls, and `compiled.scatter` how far the evaluations were apart.  On a GPU each
        call is waited for, which takes longer than a step does.

        Raises ValueError with `sync_batch_norm`: processes need not take as many rounds.
        """
        if self._syncs:
            raise ValueError("profile: a step with sync_batch_norm waits for other processes")
        arguments = self.arguments(batch)
        wait = self.place.device.sync if self.place.is_gpu else (lambda: None)
        return profiled(self.compiled, arguments, wait, rounds, seconds)

    def _tensor(self, value: Any) -> Any:
        return tvm.runtime.tensor(value, self.place.device)
