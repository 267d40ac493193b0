"""TVM's serialized arrays: what the metadata's `b64ndarrays` holds.

u64 magic, u64 reserved, i32 device type, i32 device, i32 rank, u8 code, u8 bits, u16 lanes,
i64 shape[rank], i64 bytes, data; all little-endian
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from typing import Any

import numpy as np

from .literals import ARRAY_DTYPES, dtype_name

_MAGIC = 0xDD5E40F096B4A13F
_HEADER = struct.Struct("<QQiiiBBH")
_CPU = 1
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4}


def _dlpack(name: str) -> tuple[int, int]:
    """(type code, bits) of a dtype; a bool is one bit, stored in a byte."""
    if name == "bool":
        return _CODES["uint"], 1
    kind = name.rstrip("0123456789")
    return _CODES[kind], int(name[len(kind) :])


_BY_CODE = {_dlpack(name): dtype for name, dtype in ARRAY_DTYPES.items()}


def from_base64(text: str) -> np.ndarray[Any, Any]:
    """The array, read-only.  Raises ValueError."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"an array that is not base64: {error}") from None
    if len(raw) < _HEADER.size:
        raise ValueError("an array cut off within its header")
    magic, _, _, _, rank, code, bits, lanes = _HEADER.unpack_from(raw)
    if magic != _MAGIC:
        raise ValueError("an array without TVM's mark")
    dtype = _BY_CODE.get((code, bits))
    if dtype is None or lanes != 1:
        raise ValueError(f"an array of an unknown dtype: code {code}, {bits} bits, {lanes} lanes")
    begin = _HEADER.size + 8 * (rank + 1)
    # numpy's own bound on the rank; a sound text stays far below.
    if not 0 <= rank <= 32 or begin > len(raw):
        raise ValueError(f"an array of rank {rank}, cut off or too deep")
    *shape, size = struct.unpack_from(f"<{rank + 1}q", raw, _HEADER.size)
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"an array of shape {tuple(shape)} in {size} bytes")
    if size != len(raw) - begin:
        raise ValueError(f"an array of {size} bytes, with {len(raw) - begin} there")
    flat = np.frombuffer(raw, np.uint8, offset=begin)
    if dtype == np.bool_ and flat.max(initial=0) > 1:
        raise ValueError("a bool array with values other than 0 and 1")
    return flat.view(dtype).reshape(shape) if size else np.empty(shape, dtype)


def to_base64(array: np.ndarray[Any, Any]) -> str:
    """The text that `from_base64` reads back.  Raises ValueError for a dtype that Relay hasn't."""
    name = dtype_name(array.dtype)
    if name is None:
        raise ValueError(f"Relay has no constants of dtype {array.dtype}")
    code, bits = _dlpack(name)
    header = _HEADER.pack(_MAGIC, 0, _CPU, 0, array.ndim, code, bits, 1)
    sizes = struct.pack(f"<{array.ndim + 1}q", *array.shape, array.nbytes)
    data = np.ascontiguousarray(array)
    if data.dtype.byteorder == ">":
        data = data.astype(data.dtype.newbyteorder("<"))
    return base64.b64encode(header + sizes + data.tobytes()).decode("ascii")
