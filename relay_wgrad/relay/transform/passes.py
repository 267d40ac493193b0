"""What a pass is: a change of a Relay module, by name and level, alone or in a sequence.

    seq = relay.transform.Sequential([relay.transform.SimplifyInference(),
                                      relay.transform.FoldConstant()])
    with relay.transform.PassContext(opt_level=3):
        mod = seq(mod)

`PassContext` enters TVM's own, so a script's `tvm.transform.PassContext` counts here too.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..ast import Function, IRModule
from ..infer import infer_module
from ..surface import check_relay_module
from ..uncomputed_constructs import check_computable
from .context import PassContext as PassContext
from .context import TvmPassContext, instrumented

ModuleChange = Callable[[IRModule, TvmPassContext], IRModule]
FunctionChange = Callable[[Function, IRModule, TvmPassContext], Function]
INFER_TYPE = "InferType"
# Of the package's passes, those that need not know what a function computes: they take programs
# with data types and references, which the others refuse by name.
_TAKE_ALL = frozenset({INFER_TYPE, "AnnotateSpans", "PrintIR", "RemoveUnusedFunctions"})


@dataclass(frozen=True)
class PassInfo:
    """A pass's name, the level from which a `Sequential` runs it, and what must run before."""

    name: str
    opt_level: int = 0
    required: tuple[str, ...] = ()


class Pass:
    """A change of modules; `pass_(mod)` gives the new module, whatever the context's level."""

    def __init__(self, change: ModuleChange, info: PassInfo, takes_all: bool = False) -> None:
        self._change = change
        self.info = info
        self._takes_all = takes_all or info.name in _TAKE_ALL

    def __call__(self, mod: IRModule) -> IRModule:
        check_relay_module(self.info.name, mod)
        out: IRModule = instrumented(self.info, mod, lambda: self._run_on(mod))
        return out

    def _run_on(self, mod: IRModule) -> IRModule:
        if not self._takes_all:
            check_computable(self.info.name, mod.functions.values())
        if INFER_TYPE in self.info.required:
            mod = infer_module(mod)
        out = self._change(mod, PassContext.current())
        if not isinstance(out, IRModule):
            raise TypeError(
                f"{self.info.name}: a pass must give a Relay IRModule, got {type(out).__name__}"
            )
        return out

    def __repr__(self) -> str:
        return f"Pass({self.info.name}, opt_level={self.info.opt_level})"


class ModulePass(Pass):
    """What `module_pass` makes."""


class FunctionPass(Pass):
    """What `function_pass` makes."""


def PrintIR(header: str = "", show_meta_data: bool = False) -> Pass:  # noqa: N802
    """Leaves the module as it is, and prints its text to the standard error."""

    def change(mod: IRModule, context: TvmPassContext) -> IRModule:
        print(f"PrintIR({header}):\n{mod.astext(show_meta_data)}", file=sys.stderr)
        return mod

    return Pass(change, PassInfo("PrintIR"))


class Sequential(Pass):
    """Passes one after the other.

    One runs if the context's `opt_level` reaches its own or `required_pass` names it, and
    `disabled_pass` does not.  Raises TypeError for what is no pass of this package.
    """

    def __init__(
        self,
        passes: Sequence[Pass] = (),
        opt_level: int = 0,
        name: str = "sequential",
        required: Sequence[str] = (),
    ) -> None:
        for item in passes:
            if not isinstance(item, Pass):
                raise TypeError(f"Sequential: expected Relay passes, got {item!r}")
        self.passes = tuple(passes)
        super().__init__(self._run, PassInfo(name, opt_level, tuple(required)), takes_all=True)

    def _run(self, mod: IRModule, context: TvmPassContext) -> IRModule:
        disabled = set(map(str, context.disabled_pass or ()))
        required = set(map(str, context.required_pass or ()))
        for item in self.passes:
            info = item.info
            wanted = info.opt_level <= context.opt_level or info.name in required
            if wanted and info.name not in disabled:
                mod = item(mod)
        return mod


def on_functions(change: FunctionChange) -> ModuleChange:
    """A change of each function as one of the module, whose types are inferred anew."""

    def apply(mod: IRModule, context: TvmPassContext) -> IRModule:
        functions = {}
        for name, function in mod.functions.items():
            functions[name] = change(function, mod, context)
            if not isinstance(functions[name], Function):
                got = type(functions[name]).__name__
                raise TypeError(f"a function pass must give a function for @{name}, got {got}")
        return infer_module(replace(mod, functions=functions))

    return apply


def per_function(name: str, opt_level: int, change: FunctionChange) -> Pass:
    """The pass that makes this change of each function, with types before and after."""
    return Pass(on_functions(change), PassInfo(name, opt_level, (INFER_TYPE,)))


def module_pass(
    pass_func: Any = None,
    opt_level: int | None = None,
    name: str | None = None,
    required: Sequence[str] | None = None,
) -> Any:
    """A pass from `f(mod, context) -> mod`, or from a class with that as `transform_module`.

    A decorator, with or without arguments, as TVM's `module_pass`.
    """
    return _decorated(
        pass_func, opt_level, name, required, "transform_module", lambda f: f, ModulePass
    )


def function_pass(
    pass_func: Any = None,
    opt_level: int | None = None,
    name: str | None = None,
    required: Sequence[str] | None = None,
) -> Any:
    """A pass from `f(function, mod, context) -> function`, run on each function of a module.

    Also from a class with that as its method `transform_function`; a decorator as Relay's.
    """
    return _decorated(
        pass_func, opt_level, name, required, "transform_function", on_functions, FunctionPass
    )


def _decorated(
    pass_func: Any,
    opt_level: int | None,
    name: str | None,
    required: Sequence[str] | None,
    method: str,
    adapt: Callable[[Any], ModuleChange],
    kind: type[Pass],
) -> Any:
    if opt_level is None:
        raise ValueError("a pass needs an opt_level")

    def decorate(target: Any) -> Any:
        info = PassInfo(name or target.__name__, opt_level, tuple(required or ()))
        if not inspect.isclass(target):
            return kind(adapt(target), info, takes_all=True)

        def make(*args: Any, **kwargs: Any) -> Pass:
            change = adapt(getattr(target(*args, **kwargs), method))
            return kind(change, info, takes_all=True)

        return make

    return decorate if pass_func is None else decorate(pass_func)
