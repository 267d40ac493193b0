"""A package whose names are imported when they are first asked for."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import lazy_loader


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], Any]:
    """`__getattr__`, `__dir__` and `__all__` of a package: `__init__.pyi` beside `file` names what
    is in it.  Each module of it is an attribute too, and not in `__all__`: some need extras."""
    named, _, names = lazy_loader.attach_stub(package, file)
    modules = {module.name for module in pkgutil.iter_modules([str(Path(file).parent)])}
    public = sorted({*names} - modules)

    def attribute(name: str) -> Any:
        if name in public:
            return named(name)
        if name in modules:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return attribute, lambda: sorted(names), public
