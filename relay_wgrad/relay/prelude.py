"""Relay's standard modules, by their names: lists, options, trees; numbers; cells of gradients."""

from __future__ import annotations

from importlib import resources

from .ast import IRModule
from .expr_methods import ModuleMethods
from .text.parser import fromtext

_NAMES = ("prelude.rly", "nat.rly", "gradient.rly")


def standard_module(name: str) -> IRModule:
    """The module of that file's name.  Raises ValueError for one that there is not."""
    if name not in _NAMES:
        raise ValueError(f"import_from_std: expected one of {', '.join(_NAMES)}, got {name!r}")
    text = (resources.files(__package__) / "std" / name).read_text(encoding="utf-8")
    return fromtext(text, name)


ModuleMethods.standard_module = staticmethod(standard_module)


class Prelude:
    """A module with lists, options and trees in it, and its functions by name: `prelude.map`."""

    def __init__(self, mod: IRModule | None = None) -> None:
        self.mod = IRModule({}) if mod is None else mod
        made = standard_module("prelude.rly")
        self.mod.update(made)
        for name in made.functions:
            setattr(self, name, self.mod.get_global_var(name))
