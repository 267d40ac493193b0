"""`relay.build`: from a Relay module to a library, with Relay 0.19's names."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
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

MAIN = "main"
_PIPELINES: dict[str, Callable[[], Any]] = {"cuda": cuda_pipeline, "llvm": cpu_pipeline}
_DESCRIPTION = "relay_wgrad_inputs"  # the key in the file beside an exported library


class Executor:
    """What `lib["default"](device)` gives: a compiled function, its inputs' names, its device.

    `graph_executor.GraphModule` wraps it.
    """

    def __init__(self, machine: relax.VirtualMachine, inputs: list[str], device: Any) -> None:
        self.machine = machine
        self.inputs = inputs
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

    def __init__(self, library: Library, inputs: list[str]) -> None:
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
        _beside(path).write_text(json.dumps({_DESCRIPTION: self._inputs}), encoding="utf-8")


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
    if not isinstance(ir_mod, IRModule):
        raise TypeError(f"build: expected a Relay IRModule, got {type(ir_mod).__name__}")
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
    given = {name: _array(name, value) for name, value in (params or {}).items()}
    func = mod[MAIN]
    _check_params(func, given)
    inputs = [str(p.name) for p in func.params if str(p.name) not in given]
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
        inputs = [str(name) for name in found[_DESCRIPTION]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{_beside(path)}, which names the inputs: {error}") from error
    return ExecutorFactory(_Compiled(tvm.runtime.load_module(str(path))), inputs)


def _beside(path: str | Path) -> Path:
    return Path(str(path) + ".json")


def _array(name: str, value: Any) -> Any:
    array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
    if array.dtype == object:
        raise TypeError(f"build: parameter {name!r} must be an array, got {type(value).__name__}")
    return tvm.runtime.tensor(np.ascontiguousarray(array))


def _check_params(func: relax.Function, given: Mapping[str, Any]) -> None:
    types = {str(p.name): p.ty for p in func.params}
    for name, value in given.items():
        if name not in types:
            raise ValueError(f"build: no parameter {name!r}; there are {', '.join(types)}")
        check_value("build", name, types[name], value)


def check_value(where: str, name: str, ty: Any, value: Any) -> None:
    """Raises ValueError where an array is not what a parameter's type says."""
    want = list(ty.shape.values)
    got = list(value.shape)
    same = len(want) == len(got) and all(
        int(g) == int(w) for g, w in zip(got, want, strict=True) if isinstance(w, tvm.tirx.IntImm)
    )
    if not same or str(value.dtype) != str(ty.dtype):
        raise ValueError(
            f"{where}: %{name} is [{', '.join(map(_size, want))}] of {ty.dtype},"
            f" got {[int(g) for g in got]} of {value.dtype}"
        )


def _size(dim: Any) -> str:
    return str(int(dim)) if isinstance(dim, tvm.tirx.IntImm) else "?"
