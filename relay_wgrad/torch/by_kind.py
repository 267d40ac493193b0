"""Programs for graphs of AOTAutograd, one for each kind of call: sizes, device, choices."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import torch

from ..ambient import outside
from ..frontend.torch.retracing import lies_last
from .programs import Choices, choices
from .reports import CompiledGraph

PROGRAMS = 16
"""Of one graph, for different sizes; the least recently called one goes."""

Program = TypeVar("Program")


class ByKind(Generic[Program]):
    """Finds the program for a call, or makes it.

    said : what the graph says of its inputs.
    report : gets the reason why there are no programs, from when there is one.
    """

    def __init__(self, said: Sequence[Any], report: CompiledGraph) -> None:
        self.report = report
        self.reason = ""  # why there are no programs
        self._varies = _varies(said)
        self._programs: OrderedDict[Any, Program] = OrderedDict()
        self._lock = threading.Lock()

    def made(self, inputs: Sequence[Any], chosen: Choices) -> Program:
        """A new program.  Raises whatever is against it."""
        raise NotImplementedError

    def refused(self, reason: str) -> None:
        """Says once that there are no programs, and why."""
        raise NotImplementedError

    def program(self, inputs: Sequence[Any]) -> Program | None:
        """The program for these inputs, None where there can be none."""
        if self.reason:
            return None
        device = next((x.device for x in inputs if isinstance(x, torch.Tensor)), "cpu")
        key: Any = (choices(device), device)
        if self._varies:
            key += tuple(
                (x.shape, x.dtype, x.device, lies_last(x)) if isinstance(x, torch.Tensor) else x
                for x in inputs
            )
        return self._known(key) or self._new(key, inputs)

    def _new(self, key: Any, inputs: Sequence[Any]) -> Program | None:
        """A new program, one thread at a time."""
        with _compiling():
            program = self._known(key)  # another thread's, meanwhile
            if program is not None or self.reason:
                return program
            try:
                program = self.made(inputs, key[0])
            except Exception as error:  # of any kind: PyTorch can run it all the same
                kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
                self.reason = f"{kind}{error}"
                self.refused(self.reason)
                return None
            self._keep(key, program)
            return program

    def _known(self, key: Any) -> Program | None:
        with self._lock:
            if key in self._programs:
                self._programs.move_to_end(key)
            return self._programs.get(key)

    def _keep(self, key: Any, program: Program) -> None:
        with self._lock:
            while len(self._programs) >= PROGRAMS:
                self._programs.popitem(last=False)
            self._programs[key] = program


def told(report: CompiledGraph, reason: str) -> None:
    """Reports, and warns of, a graph that PyTorch runs."""
    report.reason = reason
    warnings.warn(f"relay_wgrad: PyTorch runs this: {reason}", stacklevel=6)


def _varies(values: Sequence[Any]) -> bool:
    """Whether a graph is for more than one kind of call; of one kind Dynamo's guards make sure."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    sizes = [size for value in tensors for size in (*value.shape, *value.stride())]
    return len(tensors) < len(values) or not all(isinstance(size, int) for size in sizes)


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Within, what is done is part of a compilation, as for Dynamo: it compiles nothing meanwhile,
    and calls of compiled code by other threads, which see that something is traced, go on.  The
    caller's modes do not count."""
    from torch._dynamo.convert_frame import compile_lock

    compiler: Any = torch.compiler
    with compile_lock, outside():
        before, compiler._is_compiling_flag = compiler._is_compiling_flag, True
        try:
            yield
        finally:
            compiler._is_compiling_flag = before
