"""Modules of one sum, whose gradients the tests of `transform.grad` take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

from tests.support.built import built

op = relax.op


TYPE = relax.TensorType((2, 3), "float64")


Emit = Callable[[Any], Any]


def module(build: Callable[[Emit, Any, Any], Any]) -> tvm.IRModule:
    """sum(build(emit, x·w, w)) of x and w."""
    x, w = relax.Var("x", TYPE), relax.Var("w", TYPE)
    return built([x, w], lambda emit: op.sum(build(emit, emit(op.multiply(x, w)), w)))
