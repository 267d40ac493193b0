"""Names that nothing else has, of variables and of functions: TVM 0.19's `ir.supply`."""

from __future__ import annotations

from .ast import GlobalVar, IRModule


class NameSupply:
    """Gives out names, each once; with `prefix` before each that asks for it."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self._next: dict[str, int] = {}  # of a name that is taken, the number that follows it

    def fresh_name(self, name: str, add_prefix: bool = True, add_underscore: bool = True) -> str:
        """The name, or the first one with a number after it that is free; it is taken then."""
        name = self._full(name, add_prefix)
        made = name
        while made in self._next:
            self._next[name] += 1
            made = f"{name}{'_' if add_underscore else ''}{self._next[name]}"
        self._next[made] = 0
        return made

    def reserve_name(self, name: str, add_prefix: bool = True) -> str:
        """Takes a name, whether it is free or not."""
        name = self._full(name, add_prefix)
        self._next.setdefault(name, 0)
        return name

    def contains_name(self, name: str, add_prefix: bool = True) -> bool:
        """Whether a name is taken."""
        return self._full(name, add_prefix) in self._next

    def _full(self, name: str, add_prefix: bool) -> str:
        return f"{self.prefix}_{name}" if add_prefix and self.prefix else name


class GlobalVarSupply:
    """Gives out names of functions; beside those of modules, where it begins with some."""

    def __init__(self, value: NameSupply | IRModule | list[IRModule] | None = None) -> None:
        self.names = value if isinstance(value, NameSupply) else NameSupply()
        self._vars: dict[str, GlobalVar] = {}
        mods = [value] if isinstance(value, IRModule) else value
        if isinstance(mods, list) and mods:
            # As functions that PartitionGraph makes are called.
            self.names.prefix = f"tvmgen_{mods[0].attrs.get('mod_name', 'default')}"
        for mod in mods if isinstance(mods, list) else []:
            for var in mod.get_global_vars():
                self.reserve_global(var)

    def fresh_global(self, name: str, add_prefix: bool = True) -> GlobalVar:
        """A variable of a new name."""
        made = self.names.fresh_name(name, add_prefix)
        self._vars[made] = GlobalVar(made)
        return self._vars[made]

    def unique_global_for(self, name: str, add_prefix: bool = True) -> GlobalVar:
        """The one variable of that name."""
        name = self.names.reserve_name(name, add_prefix)
        return self._vars.setdefault(name, GlobalVar(name))

    def reserve_global(self, global_var: GlobalVar, allow_conflict: bool = False) -> None:
        """Takes a variable's name.

        Raises ValueError for one that another variable has, unless `allow_conflict`.
        """
        name = global_var.name
        if not allow_conflict and self.names.contains_name(name, add_prefix=False):
            raise ValueError(f"reserve_global: @{name} is taken")
        self.names.reserve_name(name, add_prefix=False)
        self._vars[name] = global_var
