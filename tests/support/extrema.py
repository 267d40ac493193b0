"""max, min, argmax and argmin of rows, compiled for any target, beside NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from tests.support.built import built

INF, NAN = np.inf, np.nan


ROWS = np.array(
    [
        [INF] * 4, [-INF] * 4, [NAN] * 4, [1, NAN, INF, 3], [-INF, 2, -3, -INF], [-NAN, 0, 1, 2],
        [-0.0, 0.0, -0.0, 0.0], [-1, -5, -2, -1], [5, 5, 7, 7], [0, -INF, NAN, NAN],
    ]
)  # fmt: skip


WHOLE = {
    "uint8": [[0] * 4, [255] * 4, [0, 3, 3, 1]], "int8": [[-128] * 4, [127] * 4, [1, -1, 1, -1]],
    "int32": [[-(2**31)] * 4, [2**31 - 1] * 4, [3, 4, 4, -9]],
    "bool": [[0] * 4, [1] * 4, [0, 1, 1, 0]],
}  # fmt: skip


def wrong(rows: Any, dtype: str, target: Any, pipeline: Any, device: Any) -> list[Any]:
    """The reductions that are not NumPy's, with both."""
    x = relax.Var("x", relax.TensorType(rows.shape, dtype))
    names = [(name, axis) for name in ("max", "min", "argmax", "argmin") for axis in (1, 0, None)]
    mod = built(
        [x], lambda emit: relax.Tuple([emit(getattr(R, name)(x, axis)) for name, axis in names])
    )
    executable = tvm.compile(mod, target=target, relax_pipeline=pipeline)
    got = relax.VirtualMachine(executable, device)["main"](tvm.runtime.tensor(rows, device))
    wide = rows.astype("float64") if dtype not in WHOLE else rows
    found = []
    for (name, axis), value in zip(names, got, strict=True):
        have, want = value.numpy().astype("float64"), getattr(np, name)(wide, axis)
        if not np.array_equal(have, want.astype("float64"), equal_nan=True):
            found.append((name, axis, have, want))
    return found
