"""The two surfaces apart: what passes for Relax modules say of a Relay one.

Both have passes and classes of the same names, so an error names the right one to use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import tvm
from tvm import relax

from ..graph.walk import functions_in

Change = Callable[[tvm.IRModule, tvm.transform.PassContext], tvm.IRModule]


def check_relax_module(op: str, mod: Any, counterpart: str = "") -> None:
    """TypeError for what is no Relax module.

    `counterpart`: what does the same for Relay modules, in `relay_wgrad.relay.transform`.
    """
    if isinstance(mod, tvm.IRModule):
        return
    got = kind_of(mod)
    if got != "Relay IRModule":
        raise TypeError(f"{op}: mod must be an IRModule, got {got}")
    remedy = "lower it first, by relay_wgrad.relay.lower"
    if counterpart:
        remedy = f"use relay_wgrad.relay.transform.{counterpart}"
    raise TypeError(f"{op}: this is a Relay module: {remedy}")


def check_names(op: str, functions: Any) -> None:
    """TypeError for what is neither None nor a collection of names."""
    if functions is None:
        return
    if isinstance(functions, str) or not isinstance(functions, Collection) or not all(
        isinstance(name, str) for name in functions
    ):  # fmt: skip
        raise TypeError(f"{op}: functions must be a list of names, got {functions!r}")


def functions_of(
    op: str, mod: tvm.IRModule, names: Collection[str] | None
) -> dict[str, relax.Function]:
    """The Relax functions of these names, or all, in the module's order.

    Raises what `check_names` does, and ValueError for a name that none has.
    """
    check_names(op, names)
    found = {str(var.name_hint): func for var, func in functions_in(mod)}
    if missing := [name for name in names or () if name not in found]:
        raise ValueError(
            f"{op}: the module has no Relax function {', '.join(missing)};"
            f" it has: {', '.join(sorted(found))}"
        )
    return {name: func for name, func in found.items() if names is None or name in names}


def kind_of(value: Any) -> str:
    """A value's class; that of a Relay node or module with `Relay` before it."""
    cls = type(value)
    # By its name: Relay's classes are built on these passes.
    of_relay = cls.__module__.startswith("relay_wgrad.relay.")
    return f"Relay {cls.__name__}" if of_relay else str(cls.__name__)


class ModulePass(tvm.ir.transform.ModulePass):
    """A module pass of TVM's, which refuses a Relay module in words.

    `change(module, context)` gives the new module; `name` is the pass's, and `counterpart` the
    pass for Relay modules.
    """

    def __init__(self, name: str, change: Change, counterpart: str = "") -> None:
        self.__init_handle_by_constructor__(
            tvm.get_global_func("transform.MakeModulePass"),
            change,
            tvm.ir.transform.PassInfo(0, f"relay_wgrad.{name}", [], False),
        )
        self.name = name
        self.counterpart = counterpart

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        check_relax_module(self.name, mod, self.counterpart)
        return super().__call__(mod)
