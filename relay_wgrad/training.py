"""Training on a compiled graph: gradient and optimizer in one module, run step by step."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.target import Target

from .frontend import TrainingGraph
from .frontend.optim import make_optimizer
from .lowering import Lowered, lowered_convolutions
from .transform import grad

Progress = Callable[[str], None]


@dataclass
class Compiled:
    """A compiled module and what became of its convolutions, in program order."""

    vm: relax.VirtualMachine
    executable: Any
    convolutions: list[Lowered]
    seconds: dict[str, float] = field(default_factory=dict)

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
    function: str = "main_adjoint",
) -> Compiled:
    """Compiles with the stock pipeline and records what every convolution was lowered to."""
    start = time.perf_counter()
    with target:
        mod = relax.transform.LegalizeOps()(mod)
    convolutions = lowered_convolutions(mod, function)
    legalized = time.perf_counter()
    executable = tvm.compile(mod, target=target)
    vm = relax.VirtualMachine(executable, tvm.cpu())
    seconds = {"legalize": legalized - start, "build": time.perf_counter() - legalized}
    return Compiled(vm, executable, convolutions, seconds)


# Name on the command line -> arguments of `make_optimizer`.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"name": "sgd"},
    "momentum": {"name": "sgd", "momentum": 0.9},
    "adam": {"name": "adam"},
}


class Trainer:
    """Trains a `TrainingGraph` on the CPU.

    Parameters
    ----------
    graph : the network, its loss and its initial parameters.
    target : the target to compile for.
    optimizer : "sgd", "momentum" (0.9) or "adam".
    lr : the learning rate.
    progress : called with a word before each long part.
    """

    def __init__(
        self,
        graph: TrainingGraph,
        target: Target,
        *,
        optimizer: str = "momentum",
        lr: float = 0.05,
        progress: Progress = lambda what: None,
    ) -> None:
        if optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {optimizer!r}")
        self.graph = graph
        progress("differentiating")
        mod = grad(graph.module, "main", wrt=graph.trainable)
        self._optimizer = make_optimizer(**OPTIMIZERS[optimizer], lr=lr)
        self._optimizer.init(graph.variables(graph.trainable))
        # The stock optimizers put every parameter's update into one function.
        mod["optimizer"] = self._optimizer.get_function().with_attr("global_symbol", "optimizer")
        self.module = mod
        progress("compiling")
        self.compiled = compile_module(mod, target)
        self.params = {name: _tensor(value) for name, value in graph.params.items()}
        self._state = self._optimizer.state

    def arguments(self, batch: Mapping[str, np.ndarray[Any, Any]]) -> list[Any]:
        """The adjoint's arguments for a batch, in order."""
        return [_tensor(batch[s.name]) for s in self.graph.inputs] + list(self.params.values())

    def step(self, batch: Mapping[str, np.ndarray[Any, Any]]) -> float:
        """One step: the loss before it.  Parameters and running statistics are updated."""
        vm, names = self.compiled.vm, self.graph.trainable
        outputs, gradients = vm["main_adjoint"](*self.arguments(batch))
        trained, self._state = vm["optimizer"](
            [self.params[name] for name in names], gradients, self._state
        )
        self.params.update(zip(names, trained, strict=True))
        for output, name in self.graph.updates.items():
            self.params[name] = outputs[self.graph.outputs.index(output)]
        return float(outputs[0].numpy())

    def loss(self, batch: Mapping[str, np.ndarray[Any, Any]]) -> float:
        """The loss at the present parameters, which stay as they are."""
        outputs, _ = self.compiled.vm["main_adjoint"](*self.arguments(batch))
        return float(outputs[0].numpy())

    def profile(self, batch: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, float]:
        """Seconds spent in each kernel during one evaluation of loss and gradients.

        Each convolution of `compiled.convolutions` gets the mean time of its kernel's runs.
        """
        total: dict[str, float] = {}
        count: dict[str, int] = {}
        started = 0.0

        def instrument(func: Any, name: str, before: bool, ret: Any, *args: Any) -> int:
            nonlocal started
            if before:
                started = time.perf_counter()
            else:
                total[name] = total.get(name, 0.0) + time.perf_counter() - started
                count[name] = count.get(name, 0) + 1
            return 0  # VMInstrumentReturnKind.NO_OP: go on with the call

        vm = relax.VirtualMachine(self.compiled.executable, tvm.cpu())
        vm["main_adjoint"](*self.arguments(batch))  # warm
        vm.set_instrument(instrument)
        vm["main_adjoint"](*self.arguments(batch))
        for conv in self.compiled.convolutions:
            if conv.kernel in total:
                conv.seconds = total[conv.kernel] / count[conv.kernel]
        return total


def _tensor(value: np.ndarray[Any, Any]) -> Any:
    return tvm.runtime.tensor(value)
