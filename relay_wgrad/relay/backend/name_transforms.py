"""Names as Relay wrote them into C: `TVM_conv_2d` as a function, a variable, a constant."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PREFIX = "TVM"


def _checked(name: str, what: str) -> str:
    if not name:
        raise ValueError(f"{what} name is empty")
    if not name.startswith(_PREFIX):
        raise ValueError(f"{what} not TVM prefixed: {name!r}")
    return name


def to_c_function_style(original_name: str) -> str:
    """`TVM_run_all` as `TVMRunAll`.  Raises ValueError for a name that does not begin with TVM."""
    words = _checked(original_name, "Function")[len(_PREFIX) :].split("_")
    return _PREFIX + "".join(word[:1].upper() + word[1:] for word in words)


def to_c_variable_style(original_name: str) -> str:
    """`TVM_Run` as `tvm_run`.  Raises ValueError for a name that does not begin with TVM."""
    return _checked(original_name, "Variable").lower()


def to_c_constant_style(original_name: str) -> str:
    """`TVM_Run` as `TVM_RUN`.  Raises ValueError for a name that does not begin with TVM."""
    return _checked(original_name, "Constant").upper()


def prefix_name(names: Sequence[str] | str) -> str:
    """`TVM_a_b` for ["a", "b"].  Raises ValueError where a part is empty."""
    return _combined([_PREFIX], names)


def prefix_generated_name(names: Sequence[str] | str) -> str:
    """`TVMGen_a_b` for ["a", "b"].  Raises ValueError where a part is empty."""
    return _combined([_PREFIX + "Gen"], names)


def _combined(first: list[str], names: Sequence[str] | str) -> str:
    if isinstance(names, str):
        if not names:
            raise ValueError("Name is empty")
        names = [names]
    if not names:
        raise ValueError("Name segments empty")
    if not all(names):
        raise ValueError("Name segment is empty")
    return "_".join([*first, *names])


def sanitize_name(original_name: str) -> str:
    """The name with `_` for each character that C has not in names.

    Raises ValueError for an empty one.
    """
    if not original_name:
        raise ValueError("Name is empty")
    return re.sub(r"\W", "_", original_name, flags=re.ASCII)
