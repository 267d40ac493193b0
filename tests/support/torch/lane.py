"""A lane without a device (`relay_wgrad.torch.replayed.Lane`): what it captured it does again."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import torch
import tvm

from relay_wgrad.torch import compiler, joint_program, programs


class Lane:
    """Captures by doing a function's work again.

    kept : of machines that keep their memory (`memory_plans.memory_is_kept`) what they have made:
        while something is captured no work is done on it.
    """

    kept: Mapping[Any, Any] = MappingProxyType({})

    def __init__(self, fails: int = 0) -> None:
        self.captures, self.launches, self.fails = 0, 0, fails
        self.refuses = False  # PyTorch's work

    def done(self, function: Callable[[], Any]) -> Any:
        return function()

    def captured(
        self, function: Callable[[], Any], work: Callable[[], None] | None = None
    ) -> tuple[Any, Callable[[], None]]:
        if work is not None:
            results, launch = self.captured(function)
            return results, self.also(launch, work)
        self.captures += 1
        if self.captures <= self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        before = [(x, x.numpy()) for some in self.kept.values() for x in some]
        results = function()
        for result in results:
            torch.from_dlpack(result).fill_(-1)  # no work has been done
        for tensor, values in before:
            tensor.copyfrom(values)

        def launch() -> None:
            self.launches += 1
            for old, new in zip(results, function(), strict=True):
                torch.from_dlpack(old).copy_(torch.from_dlpack(new))

        return results, launch

    def also(self, launch: Callable[[], None], work: Callable[[], None]) -> Callable[[], None]:
        if self.refuses:
            raise RuntimeError("operation not permitted when stream is capturing")

        def both() -> None:
            launch()
            work()

        return both


def borrowed(tensor: torch.Tensor) -> Any:
    """TVM's tensor of memory that it does not hold, as a CUDA graph has operands' addresses."""
    size = tensor.untyped_storage().nbytes()
    if not size:
        return tvm.runtime.from_dlpack(tensor.detach())
    memory = (ctypes.c_uint8 * size).from_address(tensor.untyped_storage().data_ptr())
    flat = torch.frombuffer(memory, dtype=torch.uint8).view(tensor.dtype)
    strided = flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return tvm.runtime.from_dlpack(strided)


def on_lanes(monkeypatch: pytest.MonkeyPatch) -> list[Lane]:
    """The lanes of what is compiled from now on, for a device that is none."""
    found: list[Lane] = []
    compiled_at = programs.compiled_at

    def place(*given: Any) -> Any:
        return replace(compiled_at(*given), work=lambda: found.append(Lane()) or found[-1])

    for module in (programs, compiler, joint_program):
        monkeypatch.setattr(module, "compiled_at", place)
    return found
