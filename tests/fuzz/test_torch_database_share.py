"""A share of the generator `torch_database`, and a fault that it finds."""

from __future__ import annotations

import pytest
import torch

from relay_wgrad.frontend.torch import retracing
from relay_wgrad.torch import compiler

from .harness import failures
from .torch_database import GENERATOR

pytestmark = pytest.mark.longer(
    "PyTorch's database takes eight seconds to import; rules have tests"
)


def test_share() -> None:
    assert not failures(GENERATOR, range(12))


def test_a_rule_that_writes_in_place_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {**torch._decomp.decomposition_table, **retracing.decompositions()}
    monkeypatch.setattr(compiler, "decompositions", lambda: whole)
    assert GENERATOR.answer("f64 function 1 complex")["status"] == "failed"
