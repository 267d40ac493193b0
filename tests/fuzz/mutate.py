"""Damage for files: bytes, the fields of a protobuf message, the values of a JSON text."""

from __future__ import annotations

from typing import Any

import numpy as np

Rng = np.random.Generator
INTEGERS = (0, 1, -1, 2, -2, 3, 7, 255, 65536, 2**31 - 1, -(2**31), 2**31, 2**40, 2**62, 2**63 - 1,
            -(2**63))  # fmt: skip
TEXTS = (
    "",
    "x",
    "y",
    "w",
    "nan",
    "-5",
    "../w.bin",
    "link.bin",
    "/etc/passwd",
    "é\n\u2028",
    "a" * 3000,
    "None",
)
FLOATS = (0.0, -1.0, float("nan"), float("inf"), 1e300, 1e-300)


def choice(rng: Rng, values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


def damaged(rng: Rng, content: bytes) -> bytes:
    """One to four of: bits flipped, bytes overwritten, cut out, put in twice, the end cut off."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 5))):
        if not data:
            break
        at = int(rng.integers(len(data)))
        # Heads and tails hold what is said of the rest.
        if rng.random() < 0.5:
            at = choice(rng, (at % 64, len(data) - 1 - at % min(len(data), 256))) % len(data)
        length = min(int(rng.integers(1, 17)), len(data) - at)
        kind = int(rng.integers(6))
        if kind == 0:
            data[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            number = choice(rng, INTEGERS) & (2**64 - 1)
            data[at : at + 8] = number.to_bytes(8, "little")[: min(8, len(data) - at)]
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            data[at:at] = data[at : at + length]
        elif kind == 4:
            del data[at:]
        else:
            data[at : at + length] = rng.bytes(length)
    return bytes(data)


def message(rng: Rng, proto: Any) -> None:
    """Changes one to three fields of a protobuf message, at any depth, in place."""
    for _ in range(int(rng.integers(1, 4))):
        node = proto
        while True:
            fields = [f for f, _ in node.ListFields()]
            if not fields:
                break
            field = choice(rng, fields)
            value = getattr(node, field.name)
            repeated = hasattr(value, "extend")
            if field.message_type is None or (repeated and rng.random() < 0.15):
                _set(rng, node, field, value, repeated)
                break
            node = choice(rng, value) if repeated else value


def _set(rng: Rng, node: Any, field: Any, value: Any, repeated: bool) -> None:
    kind = int(rng.integers(4))
    if field.message_type is not None:
        if kind == 0:
            del value[int(rng.integers(len(value)))]
        elif kind == 1:
            value.append(choice(rng, value))
        else:  # one takes another's place
            value[int(rng.integers(len(value)))].CopyFrom(choice(rng, value))
        return
    if kind == 0:
        node.ClearField(field.name)
        return
    old = choice(rng, value) if repeated else value
    new: Any
    if isinstance(old, bool):
        new = not old
    elif isinstance(old, float):
        new = choice(rng, FLOATS)
    elif isinstance(old, int):
        new = choice(rng, INTEGERS) if rng.random() < 0.8 else old + choice(rng, (-1, 1))
    elif isinstance(old, bytes):
        new = damaged(rng, old)
    else:
        new = choice(rng, TEXTS)
    try:
        if not repeated:
            setattr(node, field.name, new)
        elif kind == 1:
            value.append(new)
        else:
            value[int(rng.integers(len(value)))] = new
    except (ValueError, TypeError):  # a number or a text that the field does not take
        node.ClearField(field.name)


def json_value(rng: Rng, value: Any) -> Any:
    """A JSON value with one of its leaves, lists or keys changed."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = choice(rng, list(value))
        if rng.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: json_value(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = int(rng.integers(len(value)))
        return [*value[:at], json_value(rng, value[at]), *value[at + 1 :]]
    return choice(rng, (*INTEGERS, *TEXTS, *FLOATS, None, True, [], {}, [[]], [value], "9" * 5000))
