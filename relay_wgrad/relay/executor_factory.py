"""What `relay.build` gives, written to a shared library and read back."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from ..argument_types import check_type
from .elf import check_elf
from .external import Library
from .memory import allocating
from .types import NUMBERS

MAIN = "main"
MAIN_LIBRARY = "default"  # a library's name where none is given
# Keys of the file beside an exported library.
_INPUTS, _FILE, _NAME, _WIDEST = (
    f"relay_wgrad_{what}" for what in ("inputs", "library", "name", "memory")
)
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Input:
    """A parameter of @main: its name and the type that it states, None for a size that is `?`.

    `used` is false where nothing of the result is computed from it.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    used: bool = True

    def check(self, where: str, value: Any) -> None:
        """Raises ValueError where an array is not of the type."""
        got = [int(size) for size in value.shape]
        same = len(got) == len(self.shape) and all(
            want in (None, size) for want, size in zip(self.shape, got, strict=True)
        )
        if not same or str(value.dtype) != self.dtype:
            want = ", ".join("?" if size is None else str(size) for size in self.shape)
            raise ValueError(
                f"{where}: %{self.name} is [{want}] of {self.dtype}, got {got} of {value.dtype}"
            )


class Executor:
    """What `lib["default"](device)` gives: a compiled function, its inputs, its device.

    `graph_executor.GraphModule` wraps it.  `widest` says which tensor of it is the largest.
    """

    def __init__(
        self,
        machine: relax.VirtualMachine,
        inputs: Sequence[Input],
        device: Any,
        widest: str = "",
    ) -> None:
        self.machine = machine
        self.inputs = {given.name: given for given in inputs}
        self.device = device
        self.widest = widest


class Compiled:
    """A library that TVM alone has compiled."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def virtual_machine(self, device: Any) -> relax.VirtualMachine:
        return relax.VirtualMachine(self._module, device)

    def export_library(self, path: str, **options: Any) -> None:
        self._module.export_library(path, **options)


class ExecutorFactory:
    """A compiled Relay module: `lib["default"](device)` makes an executor, by the library's name.

    As Relay's older scripts do, it can be unpacked: `graph, lib, params = relay.build(…)`, for
    `graph_executor.create(graph, lib, device)`.
    """

    def __init__(
        self,
        library: Library,
        inputs: Sequence[Input],
        libmod_name: str = MAIN_LIBRARY,
        widest: str = "",
    ) -> None:
        self._library = library
        self._inputs = inputs
        self.libmod_name = libmod_name
        self._widest = widest

    def __getitem__(self, name: str) -> Callable[..., Executor]:
        """The constructor of executors.

        Raises KeyError for another name than the library's (`mod_name` of `relay.build`).
        """
        if name != self.libmod_name:
            raise KeyError(f"a library has one executor, {self.libmod_name!r}, got {name!r}")
        return self._executor

    def __iter__(self) -> Iterator[Any]:
        """The graph as JSON, the library, the parameters that are not part of it."""
        return iter((self.get_graph_json(), self, self.get_params()))

    def _executor(self, *devices: Any) -> Executor:
        if len(devices) != 1:
            raise ValueError(f"lib[{self.libmod_name!r}] takes one device, got {len(devices)}")
        with allocating(f"lib[{self.libmod_name!r}]", self._widest):
            machine = self._library.virtual_machine(devices[0])
        return Executor(machine, self._inputs, devices[0], self._widest)

    @property
    def lib(self) -> ExecutorFactory:
        """Itself: graph and kernels are one library here."""
        return self

    module = lib

    def get_lib(self) -> ExecutorFactory:
        """Itself, as `lib`."""
        return self

    @property
    def params(self) -> dict[str, Any]:
        """As `get_params`."""
        return self.get_params()

    def get_params(self) -> dict[str, Any]:
        """Empty: what `build` was given as parameters are constants of the library."""
        return {}

    def get_graph_json(self) -> str:
        """Inputs with their types, and one node that is the compiled function.

        In the form of Relay's graph executor.
        """
        nodes: list[dict[str, Any]] = [
            {"op": "null", "name": given.name, "inputs": []} for given in self._inputs
        ]
        count = len(nodes)
        nodes.append({"op": "tvm_op", "name": MAIN, "inputs": [[i, 0, 0] for i in range(count)]})
        attrs = {
            "shape": ["list_shape", [list(given.shape) for given in self._inputs]],
            "dltype": ["list_str", [given.dtype for given in self._inputs]],
        }
        graph = {
            "nodes": nodes,
            "arg_nodes": list(range(count)),
            "heads": [[count, 0, 0]],
            "attrs": attrs,
        }
        return json.dumps(graph)

    get_executor_config = get_graph_json

    @property
    def graph_json(self) -> str:
        """As `get_graph_json`."""
        return self.get_graph_json()

    def export_library(self, path: str | Path, **options: Any) -> None:
        """Writes a shared library, which `relay.load_module` reads back.

        `options` are those of TVM's `export_library`.  Raises TypeError for what is no path.
        """
        check_type("export_library: path", path, (str, os.PathLike), "a path")
        with allocating("export_library", self._widest):
            self._library.export_library(str(path), **options)
        # TVM's library knows no names of inputs, and nothing tells whether it is whole: both go
        # into a file beside it.
        found = {
            _INPUTS: [asdict(given) for given in self._inputs],
            _FILE: _fingerprint(path),
            _NAME: self.libmod_name,
            _WIDEST: self._widest,
        }
        _beside(path).write_text(json.dumps(found), encoding="utf-8")


def load_module(path: str | Path) -> ExecutorFactory:
    """Reads back what `export_library` wrote.

    Nothing of a library is run, or mapped into memory, before it is known to be the one that was
    exported: a part of one would end the process.

    Raises
    ------
    ValueError : if the file beside it that names its inputs is missing or damaged, and for a
        library that is not the file that was exported.
    """
    beside = _beside(path)
    try:
        found = json.loads(beside.read_text(encoding="utf-8"))
        inputs = [_input(given) for given in found[_INPUTS]]
        wanted, name = found.get(_FILE), found.get(_NAME, MAIN_LIBRARY)
        widest = found.get(_WIDEST, "")
        if not isinstance(name, str) or not isinstance(widest, str):
            raise ValueError(f"{str(name)[:100]} is no library's name")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        # A RecursionError's own words are of Python's stack.
        said = "too deeply nested" if isinstance(error, RecursionError) else error
        raise ValueError(f"{beside}, which names the inputs: {said}") from error
    _check_file(path, wanted)
    with allocating(f"load_module: {path}", widest):
        loaded = tvm.runtime.load_module(str(path))
    return ExecutorFactory(Compiled(loaded), inputs, name, widest)


def _input(given: Any) -> Input:
    """An input as `export_library` describes it."""
    name, shape, dtype = given["name"], given["shape"], given["dtype"]
    sound = isinstance(name, str) and isinstance(shape, list) and dtype in NUMBERS
    if not sound or any(n is not None and (type(n) is not int or n < 0) for n in shape):
        raise ValueError(f"{str(given)[:100]} is no input with name, shape and dtype")
    return Input(name, tuple(shape), dtype, given.get("used") is not False)


def _check_file(path: str | Path, wanted: Any) -> None:
    """Raises ValueError for a file that is not the one that was exported."""
    try:
        got = _fingerprint(path)
    except OSError as error:
        raise ValueError(f"{path}: {error}") from error
    if wanted is None:  # exported before libraries were described
        check_elf(path)
    elif not isinstance(wanted, Mapping) or dict(wanted) != got:
        size = wanted.get("size") if isinstance(wanted, Mapping) else wanted
        raise ValueError(
            f"{path}: not the library that was exported, or a part of it: {got['size']} bytes of"
            f" SHA-256 {got['sha256'][:12]}…, and {_beside(path).name} says {size} bytes"
            + (f" of {str(wanted.get('sha256'))[:12]}…" if isinstance(wanted, Mapping) else "")
        )


def _fingerprint(path: str | Path) -> dict[str, Any]:
    size, digest = 0, hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            digest.update(chunk)
    return {"size": size, "sha256": digest.hexdigest()}


def _beside(path: str | Path) -> Path:
    return Path(str(path) + ".json")
