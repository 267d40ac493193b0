"""Functions in C++ that look at hundreds of Python's and PyTorch's objects between two steps:
`templates/as_it_was.cc`.

A library of our own, built once for a machine, in a second.  Where there is no compiler, loops of
Python's do the same: what is said here is how fast, and nothing else.  Functions take numbers:
addresses of what the caller keeps.  They are called with Python's lock held.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple


class Functions(NamedTuple):
    """The library's, by their names there."""

    take_tensors: Any
    hold_tensors: Any
    drop_tensors: Any
    hold_objects: Any
    take_tags: Any
    hold_tags: Any


@cache
def _built() -> Functions | str:
    """The functions, or why there are none."""
    # Here: who trains on a CPU needs nothing else of `byoc_cudnn`, which takes 0.4 s to import.
    from byoc_cudnn.building.fixed_source import Standing

    def source() -> str:
        place = files("relay_wgrad.torch") / "templates" / "as_it_was.cc"
        return place.read_text(encoding="utf-8")

    def lacking(found: Any) -> str:
        return "\n".join(found.lacking())

    try:
        what = "the look at what steps go by"
        library = Standing("step-library", what, source, lacking, is_host=True).module()
        made = Functions(*(library[f"relay_wgrad_{name}"] for name in Functions._fields))
    except Exception as error:  # of whatever kind: there is another way
        return " ".join(str(error).split())[:300]
    for function in made:
        function.release_gil = False
    return made


def functions() -> Functions | None:
    """The functions; the first call builds the library where it has not been."""
    found = _built()
    return None if isinstance(found, str) else found


def reason() -> str:
    """Why loops of Python's look at what steps go by; empty where they do not."""
    found = _built()
    return f"what it goes by is compared by Python: {found}" if isinstance(found, str) else ""
