"""Relay's name for the module that keeps parameters as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm

from ..argument_types import check_type


def save_param_dict(params: Mapping[str, Any]) -> bytearray:
    """Arrays by name, NumPy's or TVM's, as bytes that `load_param_dict` reads."""
    return bytearray(tvm.runtime.save_param_dict(dict(params)))


def load_param_dict(param_bytes: bytes | bytearray) -> dict[str, Any]:
    """Arrays by name, of what `save_param_dict` wrote.

    Raises TypeError for what is no bytes, ValueError for other bytes.
    """
    check_type("load_param_dict: param_bytes", param_bytes, (bytes, bytearray), "bytes")
    try:
        return dict(tvm.runtime.load_param_dict(param_bytes))
    except tvm.error.InternalError as error:
        raise ValueError("load_param_dict: not what save_param_dict wrote") from error
