"""`relay.build`: from a Relay module to a library, with Relay 0.19's names."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.target import Target

from .. import registry
from ..transform.cpu_pipeline import cpu_pipeline
from ..transform.cuda_pipeline import cuda_pipeline
from .ast import IRModule
from .external import Library, claimed
from .lower import lower
from .surface import check_relay_module

MAIN = "main"
_PIPELINES: dict[str, Callable[[], Any]] = {"cuda": cuda_pipeline, "llvm": cpu_pipeline}
_DESCRIPTION = "relay_wgrad_inputs"  # the key in the file beside an exported library


@dataclass(frozen=True)
class Input:
    """A parameter of @main: its name and the type that it states, None for a size that is `?`."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str

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


def _input(param: relax.Var) -> Input:
    sizes = param.ty.shape.values
    shape = tuple(int(n) if isinstance(n, tvm.tirx.IntImm) else None for n in sizes)
    return Input(str(param.name), shape, str(param.ty.dtype))


class Executor:
    """What `lib["default"](device)` gives: a compiled function, its inputs, its device.

    `graph_executor.GraphModule` wraps it.
    """

    def __init__(self, machine: relax.VirtualMachine, inputs: Sequence[Input], device: Any) -> None:
        self.machine = machine
        self.inputs = {given.name: given for given in inputs}
        self.device = device


class _Compiled:
    """A library that TVM alone has compiled."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def virtual_machine(self, device: Any) -> relax.VirtualMachine:
        return relax.VirtualMachine(self._module, device)

    def export_library(self, path: str, **options: Any) -> None:
        self._module.export_library(path, **options)


class ExecutorFactory:
    """A compiled Relay module: `lib["default"](device)` makes an executor."""

    def __init__(self, library: Library, inputs: Sequence[Input]) -> None:
        self._library = library
        self._inputs = inputs

    def __getitem__(self, name: str) -> Callable[..., Executor]:
        """The constructor of executors.

        Raises KeyError for another name than "default".
        """
        if name != "default":
            raise KeyError(f"a library has one executor, 'default', got {name!r}")
        return self._executor

    def _executor(self, *devices: Any) -> Executor:
        if len(devices) != 1:
            raise ValueError(f"lib['default'] takes one device, got {len(devices)}")
        machine = self._library.virtual_machine(devices[0])
        return Executor(machine, self._inputs, devices[0])

    def export_library(self, path: str | Path, **options: Any) -> None:
        """Writes a shared library, which `relay.load_module` reads back.

        `options` are those of TVM's `export_library`.
        """
        self._library.export_library(str(path), **options)
        # TVM's library knows no names of inputs: they go into a file beside it.
        inputs = [asdict(given) for given in self._inputs]
        _beside(path).write_text(json.dumps({_DESCRIPTION: inputs}), encoding="utf-8")


def build(
    ir_mod: IRModule,
    target: Target | str | Mapping[str, Any] = "llvm",
    params: Mapping[str, Any] | None = None,
) -> ExecutorFactory:
    """Compiles a Relay module's @main for a target.

    Functions with the attribute `Compiler` are built by the compiler of that name
    (`external.register_external`); where none is, or none for the target, TVM's kernels compute
    them, and a warning says so.

    Parameters
    ----------
    ir_mod : what `relay.fromtext` or the builders made.
    target : a TVM target.
    params : arrays by parameters' names; they become constants of the library, and the other
        parameters its inputs.

    Registers the package's operators with TVM if they are not.

    Raises
    ------
    TypeError, ValueError : for a module without @main, a violated type relation, an unknown or
        misshapen parameter, and what has no lowering.
    """
    check_relay_module("build", ir_mod)
    if MAIN not in ir_mod.functions:
        raise ValueError(f"build: the module has no @main, but {', '.join(ir_mod.functions)}")
    if params is not None and not isinstance(params, Mapping):
        raise TypeError(f"build: params must be arrays by name, got {type(params).__name__}")
    names = Counter(param.name for param in ir_mod[MAIN].params)
    twice = sorted(name for name, count in names.items() if count > 1)
    if twice:
        # An input is set by its name: one value would reach all of them.
        raise ValueError(f"build: parameters of @main that share a name: {', '.join(twice)}")
    registry.register()
    chosen = target if isinstance(target, Target) else Target(target)
    external, taken = claimed(ir_mod, chosen)
    mod = lower(ir_mod, taken)
    for var in mod.get_global_vars():
        name = str(var.name_hint)
        if name in ir_mod.functions and name not in (MAIN, *taken):
            del mod[var]  # inlined where @main calls it
    given = {name: _tensor(name, value) for name, value in (params or {}).items()}
    func = mod[MAIN]
    params_of = {str(p.name): _input(p) for p in func.params}
    for name, value in given.items():
        if name not in params_of:
            raise ValueError(f"build: no parameter {name!r}; there are {', '.join(params_of)}")
        params_of[name].check("build", value)
    inputs = [p for name, p in params_of.items() if name not in given]
    if given:
        mod = relax.transform.BindParams(MAIN, given)(mod)
    if external is not None:
        return ExecutorFactory(external(mod, taken, chosen), inputs)
    pipeline = _PIPELINES.get(str(chosen.kind.name), lambda: "default")()
    executable = tvm.compile(mod, target=chosen, relax_pipeline=pipeline)
    return ExecutorFactory(_Compiled(executable), inputs)


def load_module(path: str | Path) -> ExecutorFactory:
    """Reads back what `export_library` wrote.

    Raises ValueError if the file beside it that names its inputs is missing or damaged.
    """
    try:
        found = json.loads(_beside(path).read_text(encoding="utf-8"))
        inputs = [
            Input(str(given["name"]), tuple(given["shape"]), str(given["dtype"]))
            for given in found[_DESCRIPTION]
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{_beside(path)}, which names the inputs: {error}") from error
    return ExecutorFactory(_Compiled(tvm.runtime.load_module(str(path))), inputs)


def _beside(path: str | Path) -> Path:
    return Path(str(path) + ".json")


def host_array(where: str, name: str, value: Any) -> Any:
    """An argument in numpy; TypeError for what is no array of numbers."""
    array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
    if array.dtype == object:
        raise TypeError(f"{where}: {name!r} must be an array, got {type(value).__name__}")
    return array


def _tensor(name: str, value: Any) -> Any:
    return tvm.runtime.tensor(np.ascontiguousarray(host_array("build", name, value)))
