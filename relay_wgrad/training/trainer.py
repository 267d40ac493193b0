"""Training on a compiled graph: gradient and optimizer in one module, run step by step."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.target import Target

from .. import threads
from ..facts import Lowered, lowered_convolutions
from ..frontend import TrainingGraph
from ..pipeline.cpu import cpu_pipeline
from ..pipeline.fused_kernels import legalize_ops
from ..timing import scatter
from .optim import make_optimizer
from .step import ADJOINT, PlannedMemory, changes, converted, step_module

Progress = Callable[[str], None]


@dataclass
class Compiled:
    """A compiled module and what became of its convolutions, in program order."""

    vm: relax.VirtualMachine
    executable: Any
    convolutions: list[Lowered]
    seconds: dict[str, float] = field(default_factory=dict)
    planned_bytes: int = 0  # for intermediate results, by the static memory plan
    scatter: float = 1.0  # of the times of `Trainer.profile`: `relay_wgrad.timing.scatter`

    def kernel(self, name: str) -> Any:
        """A kernel of the compiled module: a function of its operands and its result."""
        for module in self.executable.mod.imports:
            with contextlib.suppress(AttributeError):
                return module[name]
        raise KeyError(f"no kernel {name!r} in the compiled module")


def compile_module(
    mod: tvm.IRModule,
    target: Target,
    *,
    function: str = ADJOINT,
    progress: Progress = lambda what: None,
) -> Compiled:
    """Compiles with the stock pipeline and records what every convolution was lowered to."""
    start = time.perf_counter()
    progress("generating kernels")
    with target:
        mod = legalize_ops()(mod)
    convolutions = lowered_convolutions(mod, function)
    legalized = time.perf_counter()
    progress("compiling")
    now, plan = tvm.transform.PassContext.current(), PlannedMemory()
    with tvm.transform.PassContext(
        opt_level=now.opt_level, config=dict(now.config), instruments=[*now.instruments, plan]
    ):
        # Upstream's pipeline leaves on one core what is no convolution.
        pipeline = cpu_pipeline() if target.kind.name == "llvm" else "default"
        executable = tvm.compile(mod, target=target, relax_pipeline=pipeline)
    vm = relax.VirtualMachine(executable, tvm.cpu())
    seconds = {"legalize": legalized - start, "build": time.perf_counter() - legalized}
    return Compiled(vm, executable, convolutions, seconds, plan.bytes.get(function, 0))


# Name on the command line -> arguments of `make_optimizer`.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"name": "sgd"},
    "momentum": {"name": "sgd", "momentum": 0.9},
    "adam": {"name": "adam"},
}
DEFAULT_LR = {"sgd": 1e-3, "momentum": 1e-3, "adam": 1e-4}
"""Small learning rates: all nine bundled networks learn a fixed batch in 10 steps of momentum."""

UNNORMALIZED = 0.1
"""The part of `DEFAULT_LR` for networks without batch statistics.

The change of the logits in one step grows with the squared norms of all layers' inputs.  Batch
statistics bound those, whatever the weights; He's weights alone only keep them from layer to layer,
and a rate at which ResNet-50 learns smoothly throws AlexNet's loss above its start."""


def default_lr(optimizer: str, graph: TrainingGraph) -> float:
    """The learning rate of an optimizer for a network where none is given."""
    return DEFAULT_LR[optimizer] * (1.0 if graph.updates else UNNORMALIZED)


STATIC_SCALE = 1024.0  # float16's loss scale unless one is given
_DYNAMIC_START, _DYNAMIC_GROWTH = 65536.0, 200  # the largest power of two; steps before it doubles

CHECK_EVERY = 10
"""Steps between two looks at all parameters: each costs a read of them, 0.015 s for ResNet-50."""
_ADVICE = (
    "Look for values in the data that are not finite, lower the learning rate, or with float16 the"
    " loss scale."
)


class Trainer:
    """Trains a `TrainingGraph` on the CPU.

    Parameters
    ----------
    graph : the network, its loss and its initial parameters.
    target : the target to compile for.
    optimizer : "sgd", "momentum" (0.9) or "adam".
    lr : the learning rate; by default `default_lr`'s for the optimizer and the network.
    dtype : None for the graph's own, or "float16" or "bfloat16": convolutions and matrix products
        take operands in that type and add up in float32; parameters, optimizer state, normalization
        and loss stay float32.
    loss_scale : what the loss is multiplied by before differentiation, and the gradients divided by
        after; a positive number, or "dynamic": starts at 65536, halves and leaves out the update
        when a gradient is not finite, doubles after 200 good steps.  By default 1024 with float16,
        else none.
    checkpoint : None, "auto" or a list of the file's tensors; "graph" is the graph's own option.
    layout : of activations: "NCHW", the model's own, or another that
        `relay_wgrad.transform.ConvertLayout` takes.
    seed : of dropout's masks and other random inputs, which each step draws anew where its batch
        has none.
    progress : called with a few words before each part that may take long: "differentiating",
        "generating kernels", "compiling", and the conversion of the layout where there is one.

    Raises
    ------
    ValueError : for an unknown option's value, naming it.
    """

    def __init__(
        self,
        graph: TrainingGraph,
        target: Target,
        *,
        optimizer: str = "momentum",
        lr: float | None = None,
        dtype: str | None = None,
        loss_scale: float | str | None = None,
        checkpoint: str | Sequence[str] | None = "graph",
        layout: str | None = None,
        seed: int = 0,
        progress: Progress = lambda what: None,
    ) -> None:
        if optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {optimizer!r}")
        self.lr = default_lr(optimizer, graph) if lr is None else lr
        self.graph = graph
        self.seed = seed
        self.dtype = graph.dtype if dtype is None else dtype
        self._dynamic = loss_scale == "dynamic"
        self.loss_scale = _scale(loss_scale, self.dtype)
        self.steps = 0
        self.skipped = 0  # steps left out because of a gradient that was not finite
        self.good_steps = 0  # since the loss scale changed
        self.optimizer = optimizer
        self._optimizer = _optimizer(graph, optimizer, self.lr)
        progress("differentiating")
        mod = step_module(
            graph,
            dtype=dtype,
            checkpoint=graph.checkpoint if checkpoint == "graph" else checkpoint,
            scaled=self.loss_scale is not None,
        )
        before = mod[ADJOINT]
        if layout not in (None, "NCHW"):
            progress(f"converting to {layout}")
        mod = converted(mod, layout)
        self.layout_changes = (changes(before), changes(mod[ADJOINT]))  # before, after conversion
        # The stock optimizers put every parameter's update into one function.
        mod["optimizer"] = self._optimizer.get_function().with_attr("global_symbol", "optimizer")
        self.module = mod
        self.compiled = compile_module(mod, target, progress=progress)
        self.params = {name: _tensor(value) for name, value in graph.params.items()}
        self.state = self._optimizer.state  # tensors, of the optimizer

    def arguments(self, batch: Mapping[str, np.ndarray[Any, Any]]) -> list[Any]:
        """The adjoint's arguments for a batch, in order; random inputs that it lacks are drawn.

        Raises ValueError for a batch that is not the graph's: `TrainingGraph.batch_values`.
        """
        whole = {**self.graph.draws(self.seed, self.steps), **batch}
        given = [_tensor(value) for value in self.graph.batch_values(whole)]
        given += self.params.values()
        scale = [] if self.loss_scale is None else [_tensor(np.float32(self.loss_scale))]
        return given + scale

    def gradients(self, batch: Mapping[str, np.ndarray[Any, Any]]) -> tuple[Any, Any]:
        """(the outputs of `main`, the gradients by `graph.trainable`) at the present parameters."""
        outputs, gradients = threads.run(self.compiled.vm[ADJOINT], *self.arguments(batch))
        return outputs, gradients

    def step(self, batch: Mapping[str, np.ndarray[Any, Any]]) -> float:
        """One step: the loss before it.  Parameters and running statistics are updated.

        Raises ValueError for a batch that is not the graph's; FloatingPointError for a loss that is
        not finite, and the parameters are then as before the step; every `CHECK_EVERY` steps for a
        parameter that is not finite (`check_finite`).
        """
        names = self.graph.trainable
        outputs, gradients = self.gradients(batch)
        loss = float(outputs[0].numpy())
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"step {self.steps + 1}: the loss is {loss}; the parameters are as before the"
                f" step.  {_ADVICE}"
            )
        if not self._dynamic or self._finite(gradients):
            trained, self.state = threads.run(
                self.compiled.vm["optimizer"],
                [self.params[name] for name in names], gradients, self.state,
            )  # fmt: skip
            self.params.update(zip(names, trained, strict=True))
        for output, name in self.graph.updates.items():
            self.params[name] = outputs[self.graph.outputs.index(output)]
        self.steps += 1
        if self.steps % CHECK_EVERY == 0:
            self.check_finite()
        return loss

    def check_finite(self) -> None:
        """Raises FloatingPointError for a parameter with a value that is not finite, by name.

        A step does this every `CHECK_EVERY` steps: a network can hide such a value from its loss.
        """
        for name, value in self.params.items():
            array = np.from_dlpack(value)
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

        The loss scale is taken where it is dynamic, and is else the trainer's own.
        """
        self.params = {name: _tensor(params[name]) for name in self.params}
        self.state = [_tensor(value) for value in state]
        self.steps, self.skipped = steps, skipped
        if self._dynamic and loss_scale is not None:
            self.loss_scale, self.good_steps = loss_scale, good_steps

    def _finite(self, gradients: Any) -> bool:
        """Whether all gradients are finite; the loss scale follows."""
        assert self.loss_scale is not None
        if not all(np.isfinite(g.numpy()).all() for g in gradients):
            if self.loss_scale == 1.0:
                raise FloatingPointError(
                    f"step {self.steps + 1}: a gradient is not finite even at a loss scale of 1;"
                    f" the parameters are as before the step.  {_ADVICE}"
                )
            self.loss_scale, self.good_steps = max(self.loss_scale / 2, 1.0), 0
            self.skipped += 1
            return False
        self.good_steps += 1
        if self.good_steps >= _DYNAMIC_GROWTH:
            self.loss_scale, self.good_steps = self.loss_scale * 2, 0
        return True

    def loss(self, batch: Mapping[str, np.ndarray[Any, Any]]) -> float:
        """The loss at the present parameters, which stay as they are."""
        return float(self.gradients(batch)[0][0].numpy())

    def profile(
        self, batch: Mapping[str, np.ndarray[Any, Any]], rounds: int = 3, seconds: float = 0.1
    ) -> dict[str, float]:
        """Seconds spent in each kernel during one evaluation of loss and gradients.

        There are `rounds` evaluations or more, until they have taken `seconds`; of each call in it
        the least time counts.  Each convolution of `compiled.convolutions` gets the mean of its
        kernel's calls, and `compiled.scatter` how far the evaluations were apart.
        """
        names: list[str] = []
        current: list[float] = []
        started = 0.0

        def instrument(func: Any, name: str, before: bool, ret: Any, *args: Any) -> int:
            nonlocal started
            if before:
                started = time.perf_counter()
            else:
                current.append(time.perf_counter() - started)
                names.append(name)
            return 0  # VMInstrumentReturnKind.NO_OP: go on with the call

        vm = relax.VirtualMachine(self.compiled.executable, tvm.cpu())
        arguments = self.arguments(batch)
        vm[ADJOINT](*arguments)  # warm
        vm.set_instrument(instrument)
        least: list[float] = []
        totals: list[float] = []
        begin = time.perf_counter()
        while len(totals) < rounds or time.perf_counter() - begin < seconds:
            names.clear()
            current.clear()
            vm[ADJOINT](*arguments)
            totals.append(sum(current))
            least = [min(pair) for pair in zip(least or current, current, strict=True)]
        self.compiled.scatter = scatter(totals)
        total: dict[str, float] = {}
        for name, one in zip(names, least, strict=True):
            total[name] = total.get(name, 0.0) + one
        count = Counter(names)
        for conv in self.compiled.convolutions:
            if conv.kernel in total:
                conv.seconds = total[conv.kernel] / count[conv.kernel]
        return total


def _optimizer(graph: TrainingGraph, name: str, lr: float) -> Any:
    made = make_optimizer(**OPTIMIZERS[name], lr=lr)
    made.init(graph.variables(graph.trainable))
    return made


def initial_state(graph: TrainingGraph, optimizer: str) -> list[Any]:
    """The tensors that an optimizer starts from: as many, and of such shapes, it always has."""
    return list(_optimizer(graph, optimizer, 1.0).state)


def usable_scale(scale: float) -> bool:
    """Whether a loss scale is a positive number of float32, as compiled code takes it."""
    if not 0 < scale < float(np.finfo("float32").max):
        return False
    with np.errstate(under="ignore"):
        return bool(np.float32(scale) > 0)


def _scale(given: float | str | None, dtype: str) -> float | None:
    """The loss scale to start with, None for none."""
    if given is None:
        return STATIC_SCALE if dtype == "float16" else None
    if given == "dynamic":
        return _DYNAMIC_START
    if isinstance(given, (str, bool)) or not usable_scale(given):
        raise ValueError(
            f"loss_scale must be a positive number or 'dynamic', got {given!r}: compiled code takes"
            " it as float32"
        )
    return float(given)


def _tensor(value: Any) -> Any:
    return tvm.runtime.tensor(value)
