"""A gradient graph that others made, as one Relax function, and what calls it in their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from tvm.ir import IRModule

from ..picking import Pick, picked
from ..transform.raising.report import RaiseReport
from ..uncopied import Uncopied
from .graph import InputSpec
from .weights import Array


class Result(NamedTuple):
    """One result of the graph: "result" number `value` of `main`, "input" number `value` as it was
    given, "copy of result" or "copy of input", the same in memory of its own, or a known "value".
    """

    kind: str
    value: Any


@dataclass(frozen=True)
class GradientGraph(Uncopied, instead="pickle the others' graph, and import that again"):
    """Forward, backward or both: `module["main"]` takes `inputs` and then `drawn`, and returns a
    tuple of the results that are computed.

    name : of the graph, in errors.
    inputs : the graph's own, in its order; None for what is no tensor or is not read.
    drawn : random numbers that the graph draws, `InputSpec`s to be drawn for each call.
    outputs : what each of the graph's results is, in its order.
    state : values of inputs that are parameters, buffers or constants of an exported program.
    last : of each input and each computed result of four axes, whether it goes with the channels
        last, (N, H, W, C), since the graph's tensor lies so.
    report : where convolutions were recognised on import (`from_stablehlo`), those that are
        gradients, and those that were written in a general way, with the reason.
    """

    name: str
    module: IRModule
    inputs: tuple[InputSpec | None, ...]
    outputs: tuple[Result, ...]
    drawn: tuple[InputSpec, ...] = ()
    state: dict[str, Array] = field(default_factory=dict)
    last: tuple[tuple[bool, ...], tuple[bool, ...]] = ((), ())
    report: RaiseReport | None = None

    def arguments(self, inputs: Sequence[Any], drawn: Sequence[Any] = ()) -> list[Any]:
        """The arguments of `main` of the graph's own, without what is no tensor or not read.

        Raises ValueError for another number of either.
        """
        if len(inputs) != len(self.inputs) or len(drawn) != len(self.drawn):
            raise ValueError(
                f"{self.name}: takes {len(self.inputs)} inputs and {len(self.drawn)} drawn, got"
                f" {len(inputs)} and {len(drawn)}"
            )
        return [*self._read(inputs), *drawn]

    def results(self, inputs: Sequence[Any], made: Sequence[Any], copy: Any = None) -> list[Any]:
        """The graph's results, from its inputs and what `main` gave; `copy` makes copies."""
        pick, copied, values = self._sources
        found = list(pick([*inputs, *values, *made]))
        if copy is not None:
            for i in copied:
                found[i] = copy(found[i])
        return found

    @cached_property
    def read(self) -> list[int]:
        """The places of inputs that `main` is given."""
        return [i for i, spec in enumerate(self.inputs) if spec is not None]

    @cached_property
    def _read(self) -> Pick:
        return picked(self.read)

    @cached_property
    def _sources(self) -> tuple[Pick, list[int], list[Any]]:
        """(what picks the results out of inputs, values and what `main` gives; which are copied;
        the values)."""
        values = [value for kind, value in self.outputs if kind == "value"]
        of_value = iter(range(len(self.inputs), len(self.inputs) + len(values)))
        first = {"input": 0, "result": len(self.inputs) + len(values)}
        places = [
            next(of_value) if kind == "value" else first[kind.removeprefix("copy of ")] + value
            for kind, value in self.outputs
        ]
        copied = [i for i, (kind, _) in enumerate(self.outputs) if kind.startswith("copy")]
        return picked(places), copied, values
