"""Small things that upstream's tests take from TVM 0.19 and that 0.27 has no more."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, ClassVar

import tvm
import tvm_ffi

from relay_wgrad import relay

# What upstream's TVMError and DiagnosticError are here; no AttributeError, which is a missing name.
ERRORS = (ValueError, TypeError, RuntimeError)


MAPS = (tvm.ir.Map, dict)  # to ask `isinstance` for


class EnvFunc:
    """A function of TVM 0.19's C++ by its name, which tests give to `TypeRelation`."""

    _known: ClassVar[dict[str, EnvFunc]] = {}

    @classmethod
    def get(cls, name: str) -> EnvFunc:
        """The one of that name."""
        return cls._known.setdefault(name, cls())


class VirtualDevice:
    """What a plan for several devices names; no program here has one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args, kwargs


def _is_relay(value: Any) -> bool:
    return type(value).__module__.startswith("relay_wgrad.relay")


def structural_equal(a: Any, b: Any, map_free_vars: bool = False) -> bool:
    """Relay's, for its nodes, modules, types and attributes; TVM's for all else."""
    if _is_relay(a) or _is_relay(b):
        return relay.structural_equal(a, b, map_free_vars)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(
            structural_equal(x, y, map_free_vars) for x, y in zip(a, b, strict=True)
        )
    return bool(tvm_ffi.structural_equal(a, b, map_free_vars))


def assert_structural_equal(a: Any, b: Any, map_free_vars: bool = False) -> None:
    """AssertionError, with both as text, where they differ."""
    if not structural_equal(a, b, map_free_vars):
        raise AssertionError(f"they differ:\n{a}\n--- and\n{b}")


def structural_hash(value: Any, map_free_vars: bool = False) -> int:
    """Relay's, for its nodes; TVM's for all else."""
    if _is_relay(value):
        return relay.structural_hash(value, map_free_vars)
    return int(tvm_ffi.structural_hash(value, map_free_vars))


def make_node(type_key: str, **fields: Any) -> Any:
    """Attributes of Relay's by their type's name."""
    if type_key == "DictAttrs":
        return fields
    if type_key.startswith(("relay.attrs.", "attrs.")):
        return relay.MetaAttrs(type_key, fields)
    return tvm.ir.make_node(type_key, **fields)


def convert(value: Any) -> Any:
    """A list stays Python's, with all that it holds; the rest is TVM's."""
    if isinstance(value, (list, tuple)):
        return tuple(convert(part) for part in value)
    return value if _is_relay(value) else tvm.runtime.convert(value)


def save_json(value: Any) -> str:
    """A Relay program's text; JSON of all else."""
    if isinstance(value, relay.Span):
        return json.dumps({"span": asdict(value)})
    return value.astext() if _is_relay(value) else str(tvm.ir.save_json(value))


def load_json(text: str) -> Any:
    """What `save_json` has written."""
    if text.startswith('{"span"'):
        return relay.Span(**json.loads(text)["span"])
    if not text.startswith("#[version"):
        return tvm.ir.load_json(text)
    is_module = text.partition("\n")[2].startswith("def @")
    return relay.fromtext(text) if is_module else relay.parse_expr(text)


class Device(tvm.runtime.Device):  # type: ignore[misc]
    """TVM's, with the number of its kind by 0.19's name."""

    @property
    def device_type(self) -> int:
        return int(self.dlpack_device_type())


def device(name: Any, index: int = 0) -> Device:
    """A device by its own name or by a target's: LLVM's is the CPU."""
    first = str(name).split()[0]
    return Device("cpu" if first in ("llvm", "c") else first, index)


def cpu(index: int = 0) -> Device:
    """The CPU."""
    return device("cpu", index)


def py_str(text: Any) -> str:
    """A string of bytes."""
    return text.decode() if isinstance(text, bytes) else str(text)


def no(*args: Any, **kwargs: Any) -> bool:
    """False."""
    return False
