"""A training graph: one Relax function from a batch and parameters to a scalar loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import IRModule

from ..argument_types import checked_integer
from ..transform.size_checks import without_check
from ..uncopied import Uncopied
from .sizes import Limits, Open, Size, at, is_open
from .trainable import Choice, Patterns
from .weights import Array, as_array

Distribution = tuple[str, float] | tuple[str, float, float]
"""("bernoulli", p), ("uniform", low, high), ("normal", mean, deviation), ("integers", low, high);
`high` is left out."""


def mean_of(distribution: Distribution) -> float:
    """Of one number."""
    kind, *numbers = distribution
    return sum(numbers) / 2 if kind == "uniform" else numbers[0]


DRAWN = ("mask", "random")
"""Kinds of inputs that are drawn anew for each batch."""


@dataclass(frozen=True)
class InputSpec:
    """One non-parameter argument of `main`; `kind` is data, labels, target, mask or random.

    Of a graph with an open batch sizes may be `Open`, a multiple of the batch.
    """

    name: str
    kind: str
    shape: tuple[Size, ...]
    dtype: str
    keep: float = 1.0  # masks: the probability that an element is kept
    distribution: Distribution = ("normal", 0.0, 1.0)  # of `random`
    ignored: int | None = None  # labels: one that counts for nothing

    def random(
        self, rng: np.random.Generator, classes: int | None = None, batch: int | None = None
    ) -> Array:
        """A value: normal data, uniform labels, a mask that is scaled by 1/keep.

        Drawn in float32 and cast, so that float64 and float32 graphs get the same.  Raises
        ValueError for open sizes without a batch.
        """
        value: Array
        shape = at(self.shape, batch)
        if self.kind == "labels":
            value = rng.integers(0, classes or 2, shape)
        elif self.kind == "mask":
            value = (rng.random(shape) < self.keep) / self.keep
        elif self.kind == "random":
            value = _sample(rng, self.distribution, shape)
        else:
            value = rng.standard_normal(shape, dtype=np.float32)
        return np.asarray(value, dtype=self.dtype)

    def of(self, batch: int) -> InputSpec:
        """The same in numbers, of a batch."""
        return replace(self, shape=at(self.shape, batch))


def _sample(rng: np.random.Generator, distribution: Distribution, shape: tuple[int, ...]) -> Array:
    kind, *numbers = distribution
    if kind == "integers":
        return rng.integers(int(numbers[0]), int(numbers[1]), shape)
    if kind == "normal":
        return rng.standard_normal(shape, np.float32) * numbers[1] + numbers[0]
    even = rng.random(shape, np.float32)  # below 1, in float32 too
    if kind == "bernoulli":
        return even < numbers[0]
    return even * (numbers[1] - numbers[0]) + numbers[0]


TRAINING_GRAPH = "a TrainingGraph, as of from_onnx or from_torch"
"""What a function wants that takes one, in words."""


@dataclass
class TrainingGraph(
    Uncopied, instead="pickle what it is made of, a module or a file's name, and import that again"
):
    """A network, its loss, and initial values.

    `module["main"]` takes `inputs` and then the parameters, in the order of `params`, and returns
    a tuple named by `outputs`: the scalar loss first, then the logits, then one updated value for
    each running statistic.  Its body is one dataflow block, as `relax.transform.Gradient` wants.
    """

    name: str
    module: IRModule
    inputs: tuple[InputSpec, ...]
    params: dict[str, Array]
    trainable: tuple[str, ...]
    outputs: tuple[str, ...]
    updates: dict[str, str] = field(default_factory=dict)  # output's name -> parameter's name
    onnx_names: dict[str, str] = field(default_factory=dict)  # parameter -> its name in the file
    classes: int | None = None
    dtype: str = "float32"
    checkpoint: str | tuple[str, ...] | None = None  # "auto", or names of tensors in the file
    tensors: dict[str, str] = field(default_factory=dict)  # tensor in the file -> variable of main
    weights: str = "initial"  # where `params` are from: the model ("initial"), or "seeded"
    notes: tuple[str, ...] = ()  # a line for what was switched off, or is shared
    frozen: tuple[str, ...] = ()  # parameters that `partial` left out
    limits: Limits = field(default_factory=Limits)  # of an open batch
    loss: Any = None  # its record, None for one of the model's own
    returned: Any = None  # PyTorch's tree of a result that is a tuple or the like of one tensor
    writes: tuple[str, ...] = ()  # inputs that the module itself changes in place

    def __copy__(self) -> TrainingGraph:
        return replace(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> TrainingGraph:
        memo[id(self.module)] = self.module.clone()
        return replace(
            self, **{f.name: deepcopy(getattr(self, f.name), memo) for f in fields(self)}
        )

    @property
    def batch(self) -> int:
        """N, the images in a batch.  Raises ValueError where it is open."""
        size = self.inputs[0].shape[0]
        if isinstance(size, Open):
            raise ValueError(
                f"{self.name}: its batch is open, and a number is needed here: `of_batch(n)` is the"
                " graph for n images"
            )
        return size

    @property
    def is_open(self) -> bool:
        """Whether one compiled step takes any number of images."""
        return any(is_open(spec.shape) for spec in self.inputs)

    def of_batch(self, batch: int) -> TrainingGraph:
        """The graph for so many images, of one with an open batch; itself of its own number.

        Raises ValueError for a number that it does not take, TypeError for what is no integer.
        """
        batch = checked_integer("of_batch: batch", batch, 1)
        if not self.is_open:
            if batch != self.batch:
                raise ValueError(f"{self.name}: its batch is {self.batch}, got {batch}")
            return self
        self.limits.check(self.name, batch)
        module = without_check(self.module, "main").clone()
        main = module["main"]
        (size,) = relax.analysis.defined_symbolic_vars(main)
        del module["main"]  # its GlobalVar has the old type
        module["main"] = main.bind_symbolic_vars({size: batch})
        inputs = tuple(spec.of(batch) for spec in self.inputs)
        return replace(self, module=module, inputs=inputs, limits=Limits())

    def images(self, batch: Mapping[str, Any]) -> int | None:
        """How many images a batch has, by its data; None of a graph of a fixed number.

        Raises ValueError for a number that the graph does not take, TypeError for what is no dict.
        """
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"{self.name}: a batch is a dict of {self.batch_text()}, got {type(batch).__name__}"
            )
        if not self.is_open:
            return None
        for spec in self.inputs:
            if spec.name in batch and spec.shape and isinstance(first := spec.shape[0], Open):
                shape = np.shape(batch[spec.name])
                if len(shape) == len(spec.shape) and first.times == 1:
                    self.limits.check(self.name, shape[0])
                    return int(shape[0])
        return None

    @property
    def main(self) -> Any:
        """The function from (inputs…, parameters…) to (loss, logits, statistics…)."""
        return self.module["main"]

    def random_batch(self, seed: int = 0, batch: int | None = None) -> dict[str, Array]:
        """Seeded values for every input: normal images, uniform labels, what is random drawn.

        batch : how many images, where that is open.
        """
        if batch is not None:
            self.limits.check(self.name, batch)
        return {
            spec.name: spec.random(np.random.default_rng([seed, index]), self.classes, batch)
            for index, spec in enumerate(self.inputs)
        }

    def draws(
        self, seed: int, step: int, batch: int | None = None, rank: int = 0
    ) -> dict[str, Array]:
        """Dropout's masks and other random inputs of one step; no others.

        batch : how many images, where that is open.
        rank : of several processes, which draw different ones.
        """
        of = [rank] if rank else []
        return {
            spec.name: spec.random(np.random.default_rng([seed, step, index, *of]), batch=batch)
            for index, spec in enumerate(self.inputs)
            if spec.kind in DRAWN
        }

    def batch_values(self, batch: Mapping[str, Any]) -> list[Array]:
        """The batch's values in the order of `inputs`; what else is in it is not looked at.

        A value is a NumPy array, or a PyTorch or TVM tensor on the CPU.  Raises ValueError for a
        missing name, another shape or dtype, and for a label that is no class: compiled code looks
        labels up without asking, so a wrong one would read foreign memory.  No label means
        "ignore" but the loss's own `ignore_index`.
        """
        values: list[Array] = []
        images = self.images(batch)
        for spec in self.inputs:
            if spec.name not in batch:
                given = ", ".join(map(str, batch)) or "nothing"
                raise ValueError(
                    f"{self.name}: no value for argument {spec.name!r}; a batch is"
                    f" {self.batch_text()}, got {given}"
                )
            shape = spec.shape if images is None else at(spec.shape, images)
            value = self._checked(spec.name, shape, spec.dtype, batch[spec.name])
            if spec.kind == "labels" and self.classes is not None:
                check_labels(spec.name, value, self.classes, spec.ignored)
            values.append(value)
        return values

    def batch_text(self) -> str:
        """What a batch is made of, as `x float32[4, 3, 12, 12], labels int64[4]`."""
        return ", ".join(f"{s.name} {s.dtype}{list(s.shape)}" for s in self.inputs)

    def arguments(
        self, batch: Mapping[str, Any], params: Mapping[str, Array] | None = None
    ) -> list[Array]:
        """The arguments of `main` in order: the batch's values, then the parameters'.

        Raises ValueError for a missing name or a value of another shape or dtype, and as
        `batch_values` does.
        """
        values = self.batch_values(batch)
        given = self.params if params is None else params
        for name, initial in self.params.items():
            if name not in given:
                raise ValueError(f"{self.name}: no value for argument {name!r}")
            values.append(self._checked(name, initial.shape, self.dtype, given[name]))
        return values

    def _checked(self, name: str, shape: tuple[Size, ...], dtype: str, value: Any) -> Array:
        try:
            array = as_array(value)
        except (TypeError, ValueError, RuntimeError) as error:  # PyTorch's, which name no argument
            raise ValueError(
                f"{self.name}: argument {name!r} is {dtype}{list(shape)}, got no array: {error}"
            ) from error
        if np.ma.is_masked(value):
            raise ValueError(f"{self.name}: argument {name!r} has masked values; fill them first")
        if tuple(array.shape) != tuple(shape) or str(array.dtype) != dtype:
            raise ValueError(
                f"{self.name}: argument {name!r} is {dtype}{list(shape)}, "
                f"got {array.dtype}{list(array.shape)}"
            )
        return array

    def partial(self, trainable: Patterns = None, freeze: Patterns = None) -> TrainingGraph:
        """The graph with a part of `trainable`: only what it needs is differentiated and kept.

        Patterns are those of the shell, for names in the model or here, joined by commas or in a
        list; one that matches a layer is for all its parameters.  `trainable`: what is trained, by
        default all; `freeze`: what of it is not.  What is left out is in `frozen`.  Batch
        normalization goes on as it was: `bn="frozen"` on import freezes its statistics too.

        Raises ValueError for a pattern that matches none, naming what is near it, and where none is
        left.
        """
        choice = Choice.from_patterns(trainable, freeze)
        names = {name: self.onnx_names.get(name, name) for name in self.trainable}
        kept = choice.of_names(self.name, names)
        out = tuple(name for name in self.trainable if name not in kept)
        return replace(self, trainable=kept, frozen=(*self.frozen, *out))

    def variables(self, names: Sequence[str]) -> list[relax.Var]:
        """The parameters of `main` with these names.  Raises ValueError for an unknown one."""
        known = {var.name: var for var in self.main.params}
        for name in names:
            if name not in known:
                raise ValueError(f"{self.name}: `main` has no parameter {name!r}")
        return [known[name] for name in names]

    def checkpointed(self, module: IRModule | None = None, at: Any = ...) -> IRModule:
        """The module (by default `module`) with regions marked for recomputation.

        `at`: "auto", names of tensors in the file, or None for no regions; by default
        `checkpoint`.  Only `relay_wgrad.transform.grad` takes marked modules.  Raises ValueError
        for a name that is no tensor of the graph or that does not bound a region.
        """
        from ..transform.checkpoint import checkpoint

        at = self.checkpoint if at is ... else at
        module = self.module if module is None else module
        if at is None:
            return module
        inputs = [s.name for s in self.inputs if s.kind == "data"]
        if isinstance(at, str):
            return checkpoint(module, cuts=at, inputs=inputs)
        for name in at:
            if name not in self.tensors:
                raise ValueError(f"checkpoint: {self.name} has no computed tensor {name!r}")
        return checkpoint(module, cuts=[self.tensors[name] for name in at], inputs=inputs)

    def gradient(self, wrt: Sequence[str] | None = None) -> IRModule:
        """The module with `main_adjoint` added: it returns (main's outputs, gradients).

        `wrt` names parameters (and data inputs, where wanted); by default `trainable`.  The
        gradients come in that order.  This is `relay_wgrad.transform.grad`.  Raises ValueError for
        an op without a gradient, RuntimeError before `relay_wgrad.register()`: upstream's rules
        give other gradients at ties.
        """
        from ..transform.grad import grad

        names = self.trainable if wrt is None else wrt
        self.variables(names)  # raises for an unknown one
        return grad(self.checkpointed(), "main", wrt=list(names))


def check_labels(name: str, labels: Array, classes: int, ignored: int | None = None) -> None:
    """Raises ValueError for a label that is not 0 … classes - 1 or `ignored`, naming the first."""
    if not labels.size or (labels.min() >= 0 and labels.max() < classes):
        return
    wrong = (labels < 0) | (labels >= classes)
    if ignored is not None:
        wrong &= labels != ignored
    if wrong.any():
        index = int(np.flatnonzero(wrong)[0])
        at = index if labels.ndim < 2 else [int(i) for i in np.unravel_index(index, labels.shape)]
        other = "" if ignored is None else f", or {ignored} to be ignored"
        raise ValueError(
            f"{name} must be 0 … {classes - 1}{other}, got {labels.flat[index]} at index {at}"
        )
