"""PyTorch's exporter, loaded without a package that it never calls.

With it comes what cuts a graph by a budget of memory, and with that all of networkx: 267 modules,
half of the time of a process's first export.  Nothing here cuts a graph so.  While the exporter is
loaded something else has networkx's place, which is networkx as soon as anything of it is used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

EXPORTER = "torch.export._trace"
_NAME, _FOR = "networkx", "torch._functorch._activation_checkpointing."
_OWN = ("__path__", "__version__")  # of who imports one of its modules, and of its users


class _Late(ModuleType):
    """A package that is loaded by the first who wants something of it.

    Types that a module of `_FOR` writes at its functions, as it is loaded, are nobody's use.
    """

    def __getattr__(self, name: str) -> Any:
        asking = sys._getframe(1).f_globals
        is_loaded = not getattr(asking.get("__spec__"), "_initializing", False)
        if not is_loaded and str(asking.get("__name__")).startswith(_FOR) and name[:1].isupper():
            return object
        if name.startswith("__") and name not in _OWN:  # who looks at all modules asks so
            raise AttributeError(f"module {_NAME!r} has no attribute {name!r}")
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
        return getattr(import_module(_NAME), name)


def load_exporter(exporter: str = EXPORTER) -> None:
    """Loads it, unless somebody has."""
    if exporter in sys.modules:
        return
    spec = find_spec(_NAME) if _NAME not in sys.modules else None
    if spec is None:
        import_module(exporter)
        return
    late = _Late(_NAME)
    late.__spec__, late.__file__ = spec, spec.origin
    sys.modules[_NAME] = late
    try:
        import_module(exporter)
    finally:
        if sys.modules.get(_NAME) is late:
            del sys.modules[_NAME]
