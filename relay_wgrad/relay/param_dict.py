"""Relay's name for the module that keeps parameters as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm.runtime import load_param_dict as load_param_dict


def save_param_dict(params: Mapping[str, Any]) -> bytearray:
    """Arrays by name, NumPy's or TVM's, as bytes that `load_param_dict` reads."""
    return bytearray(tvm.runtime.save_param_dict(dict(params)))
