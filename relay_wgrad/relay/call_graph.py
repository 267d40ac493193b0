"""Which global functions call which."""

from __future__ import annotations

from collections.abc import Iterator

from .ast import GlobalVar, IRModule, post_order


class CallGraph:
    """The calls between a module's functions: each function's callees, once each.

    Raises ValueError for a call of a function that the module lacks.
    """

    def __init__(self, module: IRModule) -> None:
        self.module = module
        self._callees: dict[str, tuple[str, ...]] = {}
        for name, function in module.functions.items():
            called = [n.name for n in post_order(function) if isinstance(n, GlobalVar)]
            self._callees[name] = tuple(dict.fromkeys(called))
            missing = [callee for callee in called if callee not in module.functions]
            if missing:
                raise ValueError(f"CallGraph: @{name} calls @{missing[0]}, which is not there")

    def callees(self, var: str | GlobalVar) -> tuple[str, ...]:
        """The functions that one calls, in the order of its text."""
        return self._callees[self._name(var)]

    def global_call_count(self, var: str | GlobalVar) -> int:
        """How many functions one calls."""
        return len(self.callees(var))

    def ref_count(self, var: str | GlobalVar) -> int:
        """How many functions call one, itself among them."""
        name = self._name(var)
        return sum(name in callees for callees in self._callees.values())

    def is_recursive(self, var: str | GlobalVar) -> bool:
        """Whether a function calls itself, without another between."""
        name = self._name(var)
        return name in self._callees[name]

    def print_var(self, var: str | GlobalVar) -> str:
        """One function's entry as text: how many call it, and what it calls."""
        name = self._name(var)
        lines = [f"Call graph node: {name}, #refs = {self.ref_count(name)}"]
        return "\n".join(lines + [f"  calls {callee}" for callee in self._callees[name]]) + "\n"

    def order(self) -> Iterator[str]:
        """The functions' names, callees before callers; of a circle one is the first."""
        done: set[str] = set()
        for start in self._callees:
            stack: list[tuple[str, bool]] = [(start, False)]
            while stack:
                name, expanded = stack.pop()
                if expanded:
                    yield name
                elif name not in done:
                    done.add(name)
                    stack.append((name, True))
                    stack += [(callee, False) for callee in reversed(self._callees[name])]

    def __str__(self) -> str:
        return "CallGraph:\n" + "".join(self.print_var(name) for name in self._callees)

    def _name(self, var: str | GlobalVar) -> str:
        name = var.name if isinstance(var, GlobalVar) else var
        if name not in self._callees:
            raise ValueError(
                f"CallGraph: no function @{name}; there are {', '.join(self._callees)}"
            )
        return name
