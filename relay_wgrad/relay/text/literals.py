"""Relay's numbers, strings and tensor types, from text and to text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ...dtypes import numpy_dtype
from ..types import (
    ANY,
    DTYPES,
    NUMBERS,
    OTHER_NAMES,
    Dim,
    SymDim,
    TensorType,
    is_vector,
)

# Relay's names; numpy's type where an array can hold it.
_ARRAYS = {name: numpy_dtype(name) for name in NUMBERS}
ARRAY_DTYPES = _ARRAYS
_NAMES = {dtype: name for name, dtype in _ARRAYS.items()}

_NUMBER = re.compile(r"(-*)(inf|nan|[\d.]+(?:[eE][+-]?\d+)?)(?:([fi])(\d*))?")
_ESCAPE = re.compile(r'\\(x[0-9A-Fa-f]{2}|[0-7]{1,3}|.)|[^ -~]|"', re.DOTALL)
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "'": "'"}
_BACK = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_LONGEST_INTEGER = 20  # digits: more than any dtype holds, few enough to convert at once


def dtype_name(dtype: np.dtype[Any]) -> str | None:
    """Relay's name of a numpy dtype; None if it has none."""
    return _NAMES.get(dtype)


def integer(text: str) -> int:
    """Raises ValueError when there are too many digits for any dtype."""
    if len(text) > _LONGEST_INTEGER:
        raise ValueError(f"the integer {text[:_LONGEST_INTEGER]}... is out of range")
    return int(text)


def number(text: str) -> np.generic:
    """A scalar of the dtype that the suffix says: `1` int32, `1i64`, `0.5f` float32, `0.5f16`.

    An integer without a suffix that needs 64 bits gets them.  Raises ValueError.
    """
    match = _NUMBER.fullmatch(text)
    assert match is not None, text
    signs, digits, kind, width = match.groups()
    sign = "-" * (len(signs) % 2)
    if kind != "f":
        if not digits.isdecimal():
            raise ValueError(f"{text} needs a suffix: {sign}{digits}f")
        value = integer(sign + digits)
        if not kind and not -(2**31) <= value < 2**31:
            width = "64"
        dtype = _ARRAYS.get(f"int{width or 32}")
        if dtype is None or dtype.itemsize == 1:
            raise ValueError(f"unknown suffix i{width}: i16, i32 and i64 are known")
        info = np.iinfo(dtype)
        if not info.min <= value <= info.max:
            raise ValueError(f"{text} is out of {dtype}'s range")
        return dtype.type(value)
    dtype = _ARRAYS.get(f"float{width or 32}")
    if dtype is None:
        raise ValueError(f"unknown suffix f{width}: f16, f and f64 are known")
    real = float(sign + digits)
    with np.errstate(over="ignore"):
        result = dtype.type(real)
    # Also what would be rounded to the largest number: Relay's literals are within the range.
    if digits != "inf" and abs(real) > float(np.finfo(dtype).max):
        raise ValueError(f"{text} is out of {dtype}'s range")
    return result


def attribute_number(text: str) -> Any:
    """As `number`, with Python's int and float for what prints without a width: `1` and `0.5f`."""
    value = number(text)
    if isinstance(value, np.float32):
        return float(text.rpartition("f")[0].replace("--", ""))
    plain = not set("if") & set(text)
    return int(value) if plain or isinstance(value, np.int32) else value


def number_text(value: Any) -> str | None:
    """The text that `number` or `attribute_number` reads back as `value`; None if there is none."""
    if isinstance(value, (bool, np.bool_)):
        return "True" if value else "False"
    if type(value) is int:
        return str(value) if -(2**63) <= value < 2**63 else None
    if isinstance(value, (np.int16, np.int64)):
        return f"{value}i{8 * value.itemsize}"
    if isinstance(value, np.int32):
        return f"{value}"
    if isinstance(value, (np.float16, np.float32, np.float64)):
        suffix = {2: "f16", 4: "f", 8: "f64"}[value.itemsize]
        return _shortest(value.item(), type(value)) + suffix
    if isinstance(value, float):
        return _shortest(value, float) + "f"
    return None


def _shortest(value: float, kind: Any) -> str:
    # Six digits, as Relay prints; more where six read back as another number.
    for digits in (6, 9, 17):
        text = f"{value:.{digits}g}"
        if math.isnan(value) or math.isinf(value):
            break
        if kind(float(text)) == value and abs(float(text)) <= float(np.finfo(kind).max):
            break
    return text


def string(text: str) -> str:
    """What a literal with its quotes stands for.  Raises ValueError for an unknown escape."""
    if "\\" not in text:
        return text[1:-1]

    def decode(match: re.Match[str]) -> str:
        escape = match[1]
        if escape is None:
            return match[0]
        if escape in _SIMPLE:
            return _SIMPLE[escape]
        if escape[0] == "x" and len(escape) == 3:
            return chr(int(escape[1:], 16))
        if escape.isdecimal() and escape.isascii():
            return chr(int(escape, 8))
        raise ValueError(f"unknown escape \\{escape} in a string")

    return _ESCAPE.sub(decode, text[1:-1])


def string_text(value: str) -> str:
    """The literal, with quotes."""

    def encode(match: re.Match[str]) -> str:
        char = match[0]
        # Characters beyond a byte have no escape: they stand for themselves.
        return _BACK.get(char) or (f"\\x{ord(char):02X}" if ord(char) < 256 else char)

    return '"' + re.sub(r'[^ -~]|["\\]', encode, value) + '"'


def tensor_type(text: str, meta: Callable[[str], Any]) -> TensorType:
    """`Tensor[(2, ?), float32]`; `meta` gives what `meta[…][…]` stands for.  Raises ValueError."""
    inner, _, dtype = text[text.index("(") + 1 : -1].rpartition(")")
    dtype = dtype.strip().lstrip(",").strip()
    dims = [dim.strip() for dim in inner.split(",")]
    if dims[-1] == "":
        dims.pop()
    return TensorType(tuple(_dim(dim, meta) for dim in dims), known_dtype(dtype))


def known_dtype(name: str) -> str:
    """The name itself, or another one's.  Raises ValueError for one that Relay hasn't."""
    if name not in DTYPES and name not in OTHER_NAMES and not is_vector(name):
        raise ValueError(f"unknown dtype {name}")
    return name


def _dim(text: str, meta: Callable[[str], Any]) -> Dim:
    if text == "?":
        return ANY
    if text.startswith("meta["):
        size = meta(text)
        if not isinstance(size, SymDim):
            raise ValueError(f"{text[:60]} is no size")
        return size
    digits = text.removesuffix("i64")
    if not (digits.isascii() and digits.isdecimal()):
        raise ValueError(f"a dimension is a whole number or ?, not {text or 'nothing'}")
    value = integer(digits)
    if value >= 2**63:
        raise ValueError(f"the dimension {value} is out of range")
    return value
