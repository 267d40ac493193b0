"""`relay.build`: from a Relay module to a library, with Relay 0.19's names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.target import Target

from .. import registry
from ..building.disk_cache import DiskCache
from ..building.program import build as build_cpu
from ..keys import SYMBOL
from ..pipeline.cpu import cpu_pipeline
from ..pipeline.cuda import cuda_pipeline
from .ast import Function, GlobalVar, IRModule, post_order
from .backend import Executor, Runtime, check_backend
from .executor_factory import MAIN, MAIN_LIBRARY, Compiled, ExecutorFactory, Input
from .executor_factory import load_module as load_module
from .external import Library, claimed
from .isolated_calls import first_failing_call
from .lower import lowered
from .memory import Widest, is_out_of_memory
from .surface import check_relay_module, reason
from .variables import all_vars


def _input(param: relax.Var, used: Collection[str]) -> Input:
    sizes = param.ty.shape.values
    shape = tuple(int(n) if isinstance(n, tvm.tirx.IntImm) else None for n in sizes)
    return Input(str(param.name), shape, str(param.ty.dtype), str(param.name) in used)


def _target(target: Any, host: Any) -> Target:
    """The one target that a script may write in several ways; of several the CPU's."""
    if target is None:
        target = Target.current(allow_none=True) or "llvm"
    given = [target]
    if isinstance(target, Mapping) and "kind" not in target:
        given = list(target.values())
    elif isinstance(target, (list, tuple)):
        given = list(target)
    if len(given) != 1:
        # A program here is for one device, and Relay's default of several is the CPU's.
        made = [_made(one) for one in given]
        given = [one for one in made if "cpu" in one.keys]
        if len(given) != 1:
            names = ", ".join(str(one.kind.name) for one in made) or "none"
            raise ValueError(f"build: of several targets one must be the CPU's, got {names}")
    (target,) = given
    chosen = _made(target)
    return chosen if host is None or chosen.host is not None else Target(chosen, _made(host))


_LISTS = ("keys", "libs", "mattr")


def _made(target: Any) -> Target:
    """A target of what Relay took for one: "llvm -mcpu=skylake-avx512 -num-cores=2" too, which TVM
    reads no more."""
    if isinstance(target, Target):
        return target
    words = (
        target.split() if isinstance(target, str) and not target.lstrip().startswith("{") else []
    )
    if len(words) < 2:
        return Target(target)
    options: dict[str, Any] = {"kind": words[0]}
    for word in words[1:]:
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not name or not (equals and value):
            raise ValueError(
                f"build: the target {target!r} must be a kind and -NAME=VALUE, got {word!r}"
            )
        if name in options:
            raise ValueError(f"build: the target {target!r} has -{name} twice")
        if name in _LISTS:
            options[name] = value.split(",")
        else:
            options[name] = int(value) if re.fullmatch(r"-?\d+", value) else value
    return Target(options)


def _used(mod: IRModule) -> IRModule:
    """The module without the functions that @main needs not: those of a prelude, say."""
    found, stack = {MAIN}, [MAIN]
    while stack:
        for node in post_order(mod[stack.pop()]):
            if isinstance(node, GlobalVar) and node.name in mod and node.name not in found:
                found.add(node.name)
                stack.append(node.name)
    if len(found) == len(mod.functions):
        return mod
    return replace(mod, functions={n: f for n, f in mod.functions.items() if n in found})


def build(
    ir_mod: IRModule | Function,
    target: Any = None,
    target_host: Any = None,
    executor: Executor | None = None,
    runtime: Runtime | None = None,
    workspace_memory_pools: None = None,
    constant_memory_pools: None = None,
    params: Mapping[str, Any] | None = None,
    mod_name: str = MAIN_LIBRARY,
) -> ExecutorFactory:
    """Compiles a Relay module's @main for a target.

    Functions with the attribute `Compiler` are built by the compiler of that name
    (`external.register_external`); where none is, or none for the target, TVM's kernels compute
    them, and a warning says so.

    Parameters
    ----------
    ir_mod : what `relay.fromtext` or the builders made; a function is taken as @main.
    target : a TVM target, or several, as a list or by device type, of which the CPU's is taken:
        a program is for one device; by default the one that is current (`with Target(…):`), or
        "llvm".
    target_host : the host's target for a device's; by default TVM's choice.
    executor : `relay.backend.Executor("graph")`, the default.
    runtime : `relay.backend.Runtime("cpp")`, the default.
    workspace_memory_pools, constant_memory_pools : None; they are for microcontrollers.
    params : arrays by parameters' names; they become constants of the library, and the other
        parameters its inputs.  A name that no parameter has is ignored, as in Relay: often
        `bind_params_by_name` has bound it already.  (A mistyped one shows at the run, which names
        the inputs that are not set.)

    mod_name : the library's name: `lib[mod_name](device)`.

    Registers the package's operators with TVM if they are not.

    Raises
    ------
    TypeError, ValueError : for a module without @main, a violated type relation, a misshapen
        parameter, several targets without one for the CPU, what has no lowering, and another
        executor or runtime.
    MemoryError : names the largest tensor.
    """
    check_backend(executor, runtime, workspace_memory_pools or constant_memory_pools)
    if not isinstance(mod_name, str):
        raise TypeError(f"build: mod_name must be a string, got {type(mod_name).__name__}")
    if isinstance(ir_mod, Function):
        ir_mod = IRModule.from_expr(ir_mod.without_attr(SYMBOL))
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
    ir_mod = _used(ir_mod)
    registry.register()
    chosen = _target(target, target_host)
    external, taken = claimed(ir_mod, chosen)
    mod, widest = lowered(ir_mod, taken)
    for var in mod.get_global_vars():
        name = str(var.name_hint)
        if name in ir_mod.functions and name not in (MAIN, *taken):
            del mod[var]  # inlined where @main calls it
    used = {var.name for var in all_vars(ir_mod[MAIN].body)}
    params_of = {str(p.name): _input(p, used) for p in mod[MAIN].params}
    given = {n: _tensor(n, value) for n, value in (params or {}).items() if n in params_of}
    for name, value in given.items():
        params_of[name].check("build", value)
    inputs = [p for name, p in params_of.items() if name not in given]
    if given:
        mod = relax.transform.BindParams(MAIN, given)(mod)
    if external is not None:
        made = external(mod, taken, chosen)
    else:
        made = _compiled(mod, ir_mod, chosen, widest)
    return ExecutorFactory(made, inputs, mod_name, widest.words)


def _compiled(mod: tvm.IRModule, ir_mod: IRModule, target: Target, widest: Widest) -> Library:
    """TVM's library; what it cannot compile is told with operator and place."""
    try:
        if target.kind.name == "llvm":
            executable, _, _ = build_cpu(mod, target, cpu_pipeline(), DiskCache())
        else:
            pipeline = cuda_pipeline() if target.kind.name == "cuda" else "default"
            executable = tvm.compile(mod, target=target, relax_pipeline=pipeline)
        return Compiled(executable)
    except (RuntimeError, MemoryError, ValueError, OverflowError) as error:
        if is_out_of_memory(error):
            raise MemoryError(f"build: not enough memory: {widest.words}") from error
        blame = first_failing_call(ir_mod, target)
        if not blame and isinstance(error, ValueError):
            raise  # it has words of its own
        raise ValueError(f"build: TVM cannot compile {blame}{reason(error)}") from error


def host_array(where: str, name: str, value: Any) -> Any:
    """An argument in numpy; TypeError for what is no array of numbers."""
    array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
    if array.dtype == object:
        raise TypeError(f"{where}: {name!r} must be an array, got {type(value).__name__}")
    return array


def _tensor(name: str, value: Any) -> Any:
    return tvm.runtime.tensor(np.asarray(host_array("build", name, value), order="C"))
