"""Sources for convolutions that are known only when a program runs: what `cuda_any.h` goes by.

A library's function takes what a row of a module's source has (`attributes`), and returns a
function of two operands and a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relay_wgrad.problem import ConvProblem

from .entry import KINDS


def tables(
    who: str,
    layouts: Sequence[tuple[str, str, str]],
    marked: Sequence[str],
    dtypes: tuple[str, Mapping[str, str]],
    options: tuple[str, Mapping[str, str]] | None = None,
) -> str:
    """The tables of names that `cuda_any.h` reads.

    who : the library, for messages.  layouts : those of a backend, `marked` the data's layouts that
    are true in C++.  dtypes, options : the C++ type and the value of each name.
    """
    by_layout = {"/".join(names): str(names[0] in marked).lower() for names in layouts}
    return "\n".join([
        "// ---- names " + "-" * 86 + "\n\nnamespace {\n",
        f'const char* const kWho = "{who}";',
        _table("kKinds", "Kind", {kind.value: f"Kind::{name}" for kind, name in KINDS.items()}),
        _table("kLayouts", "bool", by_layout),
        _table("kDtypes", *dtypes),
        *([] if options is None else [_table("kOptions", *options)]),
        "\n}  // namespace\n",
    ])  # fmt: skip


def _table(name: str, value_type: str, values: Mapping[str, str]) -> str:
    rows = ", ".join(f'{{"{key}", {value}}}' for key, value in values.items())
    return f"const std::pair<const char*, {value_type}> {name}[] = {{{rows}}};"


def attributes(problem: ConvProblem) -> tuple[Any, ...]:
    """What such a function takes first, of which the problem's sizes are for messages only."""
    p = problem
    return (
        p.repro(), p.kind.value, "/".join((p.data_layout, p.kernel_layout, p.grad_layout)),
        (p.data_dtype, p.weight_dtype, p.grad_dtype), p.strides, p.padding, p.dilation, p.groups,
    )  # fmt: skip
