"""Relax functions of tensors with sizes that only the run knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax, tirx

from tests.support.built import built


def module(
    body: Callable[..., Any], *shapes: Sequence[int | str], dtype: str = "float32",
    letter: int | None = None,
) -> tvm.IRModule:  # fmt: skip
    """`main`, of tensors whose sizes are numbers, or letters for variables.

    letter : what each letter is instead, if given.
    """
    letters: dict[str, Any] = {}

    def size(x: int | str) -> Any:
        if isinstance(x, int):
            return x
        return letters.setdefault(x, tirx.Var(x, "int64")) if letter is None else letter

    params = [
        relax.Var(f"p{i}", relax.TensorType(list(map(size, shape)), dtype))
        for i, shape in enumerate(shapes)
    ]
    return built(params, lambda emit: body(*params))
