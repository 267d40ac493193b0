"""Joins' kernels on a GPU, bit for bit NumPy's."""

from __future__ import annotations

from typing import Any

import pytest

from byoc_cudnn.joins import JoinsCall
from tests.support.gpu.joins_runner import load, some_calls, wrong_joins

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(tmp_path_factory.mktemp("joins"))


@pytest.mark.parametrize("call", some_calls(), ids=lambda call: call.symbol)
def test_bits(functions: Any, call: JoinsCall) -> None:
    assert not wrong_joins(functions, call)
