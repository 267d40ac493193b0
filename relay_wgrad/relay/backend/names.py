"""The executor and the runtime that a script for Relay 0.19 names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

# Which names Relay had, with their options, and what is there in place of those that are not here.
_EXECUTORS: Mapping[str, Mapping[str, type]] = {
    "graph": {"link-params": bool},
    "aot": {
        "link-params": bool,
        "unpacked-api": bool,
        "interface-api": str,
        "workspace-byte-alignment": int,
        "constant-byte-alignment": int,
    },
}
_RUNTIMES: Mapping[str, Mapping[str, type]] = {
    "cpp": {"system-lib": bool},
    "crt": {"system-lib": bool},
}
# An option's type, as Relay calls it, and what it is if nobody gives it.
_TYPES: Mapping[type, tuple[str, Any]] = {
    bool: ("runtime.BoxBool", False),
    int: ("runtime.BoxInt", None),
    str: ("runtime.String", None),
}
_INSTEAD = {
    "aot": 'a program is compiled as a whole anyway: use Executor("graph"), or, for C++ without'
    " Python, `python -m relay_wgrad emit`",
    "crt": 'TVM has no C runtime for microcontrollers any more: use Runtime("cpp")',
}


class _Named:
    """A name with options, of those that are registered."""

    registered: ClassVar[Mapping[str, Mapping[str, type]]]

    def __init__(self, name: str, options: Mapping[str, Any] | None = None) -> None:
        kind = type(self).__name__
        if not isinstance(name, str):
            raise TypeError(f"{kind}: expected a name, got {type(name).__name__}")
        known = self._known(name)
        self.name = name
        self._options = dict(options or {})
        for key, value in self._options.items():
            if key not in known:
                raise ValueError(
                    f'Attribute "{key}" is not available on this {kind};'
                    f" {name} has {', '.join(known)}"
                )
            if not isinstance(value, str if known[key] is str else int):
                got = _TYPES.get(type(value), (type(value).__name__, None))[0]
                raise TypeError(
                    f'Attribute "{key}" should have type "{_TYPES[known[key]][0]}" but instead'
                    f' found "{got}"'
                )

    @classmethod
    def _known(cls, name: str) -> Mapping[str, type]:
        if name not in cls.registered:
            has = ", ".join(cls.registered)
            raise ValueError(f'{cls.__name__} "{name}" is not defined; there are {has}')
        return cls.registered[name]

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        options = f", {self._options}" if self._options else ""
        return f"{type(self).__name__}({self.name!r}{options})"

    def __contains__(self, option: str) -> bool:
        return option in self._options

    def __getitem__(self, option: str) -> Any:
        return self._options.get(option, _TYPES[self.registered[self.name][option]][1])

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    @classmethod
    def list_registered(cls) -> list[str]:
        """The names."""
        return list(cls.registered)

    @classmethod
    def list_registered_options(cls, name: str | _Named) -> dict[str, str]:
        """A name's options and their types.  Raises ValueError for an unknown name."""
        return {key: _TYPES[kind][0] for key, kind in cls._known(str(name)).items()}


class Executor(_Named):
    """What runs a program: "graph" is what `relay.build` makes.

    Its option "link-params" asks for what is so in any case: parameters are constants of the
    library.
    """

    registered = _EXECUTORS


class Runtime(_Named):
    """What a library needs to run: "cpp" is TVM's own runtime."""

    registered = _RUNTIMES


def check_backend(executor: object, runtime: object, pools: object) -> None:
    """Raises TypeError or ValueError for what `relay.build` does not have."""
    for name, given, kind, ours in (
        ("executor", executor, Executor, "graph"), ("runtime", runtime, Runtime, "cpp")
    ):  # fmt: skip
        if given is None:
            continue
        if not isinstance(given, kind):
            raise TypeError(
                f"build: {name} must be relay.backend.{kind.__name__}({ours!r}), got {given!r}"
            )
        if given.name != ours:
            raise ValueError(f"build: {name} {given.name!r} is not there: {_INSTEAD[given.name]}")
    if isinstance(runtime, Runtime) and "system-lib" in runtime and runtime["system-lib"]:
        raise ValueError("build: runtime option system-lib is not there: export the library")
    if pools:
        raise ValueError("build: memory pools are not there: they were the AOT executor's")


__all__ = ["Executor", "Runtime"]
