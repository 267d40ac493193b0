"""A target that several files' kernels are for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tvm.target import Target

from legalize import cpu
from legalize.cpu.machine import machine
from tests.support.fast import FAST


@pytest.fixture
def many_registers(monkeypatch: pytest.MonkeyPatch) -> Target:
    """A target of 32 registers, which the vectors of any CPU can stand for."""
    monkeypatch.setattr(cpu, "machine", lambda target: replace(machine(target), registers=32))
    return FAST
