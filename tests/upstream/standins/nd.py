"""`tvm.nd`: TVM 0.27's arrays by their names in 0.19."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import cuda
from tvm.runtime import Tensor, empty

from relay_wgrad.relay.ast import ConstantArray

from . import cpu, device

# A class of arrays to ask `isinstance` for: a constant's array is NumPy's here.
NDArray = (Tensor, ConstantArray)

__all__ = ["NDArray", "array", "cpu", "cuda", "device", "empty"]


def array(values: Any, device: Any = None, mem_scope: str | None = None) -> Any:
    """TVM's array of NumPy's, TVM's or a list's numbers."""
    values = values.numpy() if hasattr(values, "numpy") else np.asarray(values)
    return tvm.runtime.tensor(np.array(values, order="C"), device or tvm.cpu(), mem_scope)
