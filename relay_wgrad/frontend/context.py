"""What builders see: values, options, and the function under construction."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import IRModule

from ..dtypes import FLOATS
from ..ir import constant
from ..relation import as_size
from .graph import Distribution, InputSpec, TrainingGraph, mean_of
from .sizes import Limits, is_open, number, spec_of, type_of
from .trainable import Choice
from .weights import Array, Role

_NAMED = 3  # nodes in a note


@dataclass
class Value:
    """One tensor of a file: known now (`array`), or computed by the function (`expr`), or both.

    `weight`: an initializer, that becomes a parameter when it is used as a tensor.
    `param`: the parameter of which `expr` is a plain reshaping.
    `batched`: depends on the data, so its first axis is the batch.
    `measured`: computed from the shape of a tensor, so it already knows the new sizes.
    `probes`: of what depends on an open batch, its numbers for two batches (`onnx.open_batch`);
    `array` then has expressions.
    """

    name: str
    array: Array | None = None
    expr: Any = None
    weight: bool = False
    param: str | None = None
    batched: bool = False
    measured: bool = False
    probes: tuple[Array, Array] | None = None


def shape_of(expr: Any) -> tuple[Any, ...]:
    """The shape of a Relax tensor: ints, and expressions of the batch where that is open."""
    return tuple(as_size(d) for d in expr.ty.shape.values)


@dataclass
class Options:
    """The choices of `from_onnx` that builders look at."""

    dtype: str
    bn: str
    dropout: str
    opset: int
    resized: bool = False  # a size other than the file's was asked for
    size: str = ""  # " at HxW", the image size for which the file was made
    random: str = "input"  # what random ops become: inputs of `main`, or with "off" their means
    choice: Choice = field(default_factory=Choice)  # of parameters to train
    extra: Mapping[str, Any] = field(default_factory=dict)  # ops of other domains -> builders


@dataclass
class Context:
    """The function under construction."""

    options: Options
    builder: Any
    original: dict[str, tuple[int, ...]]  # shapes at the sizes the file was made for
    parameters: dict[str, relax.Var] = field(default_factory=dict)
    roles: dict[str, Role] = field(default_factory=dict)
    initial: dict[str, Array] = field(default_factory=dict)
    onnx_names: dict[str, str] = field(default_factory=dict)
    masks: list[tuple[InputSpec, relax.Var]] = field(default_factory=list)
    states: list[tuple[str, Any]] = field(default_factory=list)  # (parameter, its new value)
    names: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)  # what the graph leaves out
    constant: set[str] = field(default_factory=set)  # parameters that the model does not train
    joined: frozenset[str] = frozenset()  # results that a Concat alone takes, which may be empty
    batch: Any = None  # the variable of an open batch
    limits: Limits = field(default_factory=Limits)  # of it
    kept_whole: list[str] = field(default_factory=list)  # nodes whose dropout is the identity

    def unique(self, name: str) -> str:
        """`name` as an identifier that no argument of the function has yet."""
        base = re.sub(r"\W+", "_", name).strip("_") or "value"
        base = f"p_{base}" if base[0].isdigit() else base
        result, count = base, 1
        while result in self.names:
            result, count = f"{base}_{count}", count + 1
        self.names.add(result)
        return result

    def draw(
        self,
        name: str,
        shape: tuple[Any, ...],
        dtype: str,
        distribution: Distribution,
        option: str = "random",
    ) -> Any:
        """Random numbers: an input of `main`, or their mean where the option is "off"."""
        if getattr(self.options, option) == "off":
            self.note(f"{name} ({distribution[0]}) is its mean, {mean_of(distribution):g}")
            return self.full(shape, mean_of(distribution), dtype)
        spec, var = self.input(name, "random", shape, dtype, distribution=distribution)
        self.masks.append((spec, var))
        return var

    def input(
        self, name: str, kind: str, shape: tuple[Any, ...], dtype: str, **given: Any
    ) -> tuple[InputSpec, relax.Var]:
        """A new argument of `main`; a shape may be a tensor's, or a specification's."""
        whole = spec_of(shape)
        spec = InputSpec(self.unique(name), kind, whole, dtype, **given)
        return spec, relax.Var(spec.name, type_of(whole, dtype, self.batch))

    def full(self, shape: tuple[Any, ...], value: Any, dtype: str) -> Any:
        """A tensor of one number."""
        if is_open(shape):
            return self.emit(relax.op.broadcast_to(constant(value, dtype), shape))
        return relax.const(np.full(shape, value, dtype), dtype)

    def at_least(self, batch: int, why: str) -> None:
        """Notes that an open batch must have so many images."""
        self.limits = self.limits.from_(batch, why)

    def note(self, what: str) -> None:
        """Keeps a line of what was switched off."""
        self.notes.append(f"switched off: {what}")

    def note_dropout(self, nodes: Sequence[str], why: str = "") -> None:
        """Keeps a line of the nodes whose dropout is the identity, if there are any."""
        if nodes:
            some = ", ".join(nodes[:_NAMED]) + (", …" if len(nodes) > _NAMED else "")
            self.note(f"dropout of {len(nodes)} node{'s'[: len(nodes) > 1]} ({some}){why}")

    def note_once(self, what: str) -> None:
        """The same of what many nodes share."""
        if f"switched off: {what}" not in self.notes:
            self.note(what)

    def is_frozen(self, *parameters: Any) -> bool:
        """Whether these variables are parameters that are not trained, all of them."""
        names = [getattr(var, "name", "") for var in parameters if var is not None]
        return bool(names) and all(
            name in self.constant
            or (
                name in self.parameters
                and not self.options.choice.trains(name, self.onnx_names[name])
            )
            for name in names
        )

    def emit(self, expr: Any) -> Any:
        """Binds an expression to a new variable of the dataflow block.

        Raises ValueError where an open batch meets a number that it need not be.
        """
        var = self.builder.emit(expr)
        known = isinstance(getattr(var.ty, "shape", None), relax.ShapeExpr)
        if self.batch is not None and isinstance(var.ty, relax.TensorType) and not known:
            raise ValueError("its operands fit each other for one number of images alone")
        return var

    def main(self, body: Callable[[], tuple[Sequence[Any], Sequence[Any]]]) -> IRModule:
        """The module whose `main` is what `body` emits; it gives the results and the arguments."""
        with self.builder.function("main"):
            try:
                with self.builder.dataflow():
                    results, arguments = body()
                    returned = relax.Tuple([self.builder.emit_output(e) for e in results])
            except Exception:
                self.builder.emit_func_output(relax.Tuple([]), [])  # or TVM warns of an open block
                raise
            self.builder.emit_func_output(returned, arguments)
        return self.builder.get()

    def training_graph(
        self, results: Sequence[str], arguments: Sequence[tuple[InputSpec, Any]], checkpoint: Any,
        **given: Any,
    ) -> TrainingGraph:  # fmt: skip
        """Of a `main` that takes arguments and gives these results, then the new states; of its
        parameters those that are chosen to train."""
        new = {f"{name}_new": name for name, _ in self.states}
        graph = TrainingGraph(
            inputs=tuple(spec for spec, _ in arguments), outputs=(*results, *new), updates=new,
            onnx_names=dict(self.onnx_names), dtype=self.options.dtype, limits=self.limits,
            checkpoint=checkpoint if isinstance(checkpoint, (str, type(None))) else (*checkpoint,),
            **given,
        )  # fmt: skip
        choice = self.options.choice
        if choice == Choice():
            return graph
        return graph.partial(choice.trainable or None, choice.freeze or None)

    def const(self, value: Any) -> Any:
        """A constant of the graph's dtype."""
        return constant(value, self.options.dtype)

    def tensor(self, value: Value) -> Any:
        """The expression of a value: a variable, a parameter (initializers) or a constant."""
        if value.expr is None:
            if value.weight:
                return self.parameter(value)
            if value.array is None:
                counted = "has as many elements as the batch has images"
                why = "has no value" if value.probes is None else counted
                raise ValueError(f"{value.name!r} {why}")
            if value.probes is not None:
                value.expr = self._counted(value.array, str(value.probes[0].dtype))
            elif str(value.array.dtype) in FLOATS:
                value.expr = self.const(value.array)
            else:
                value.expr = relax.const(value.array, str(value.array.dtype))
        return value.expr

    def _counted(self, sizes: Array, dtype: str) -> Any:
        """A tensor of one size that depends on the batch."""
        if sizes.size != 1:
            raise ValueError("sizes of an open batch are no tensor")
        size = sizes.reshape(-1)[0]
        found = number([size], self.options.dtype if dtype in FLOATS else dtype, self.emit)
        return self.emit(relax.op.reshape(found, sizes.shape)) if sizes.shape else found

    def affine_parameter(self, value: Value, kind: str) -> Any:
        """Like `parameter`, for a norm's "scale" or "bias".  Ones and zeros that a Constant gives
        stay what they are: exporters write them for a norm without parameters, and for a group
        norm before its own."""
        known = value.array if value.expr is None and not value.weight else None
        if known is not None and bool((known == (kind == "scale")).all()):
            return self.tensor(value)
        return self.parameter(value, kind)

    def parameter(self, value: Value, kind: str = "", fan_in: int = 1) -> Any:
        """Like `tensor`, for a slot of a known role: a constant there becomes a parameter too."""
        if value.expr is None and value.array is not None and not value.measured:
            if str(value.array.dtype) not in FLOATS:
                raise ValueError(f"parameter {value.name!r} is {value.array.dtype}, not a float")
            name = self.unique(value.name)
            shape = tuple(value.array.shape)
            value.expr = relax.Var(name, relax.TensorType(shape, self.options.dtype))
            value.param = name
            self.parameters[name] = value.expr
            self.initial[name] = value.array
            self.onnx_names[name] = value.name
        if kind and value.param is not None:
            self.roles.setdefault(value.param, Role(kind, fan_in))
        return self.tensor(value)
