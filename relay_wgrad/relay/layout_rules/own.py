"""Users' rules of layouts: `relay.op.register_infer_correct_layout`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..attributes import Attrs
from ..op.registration import get_attr
from .following import RULES, Asked, Inferred, Rule
from .named import Layout

KEY = "FInferCorrectLayout"
UNKNOWN = Layout(())


@dataclass(frozen=True)
class InferCorrectLayoutOutput:
    """What such a rule gives: the layout of each operand and result, and the call's attributes.

    A layout is one that the rule was given, or a name.
    """

    input_layouts: Sequence[Any]
    output_layouts: Sequence[Any]
    new_attrs: Mapping[str, Any] | None = None


def layout(name: str) -> Layout:
    """A layout by its name, `NCHW16c`; "" is one that is not known.

    Raises ValueError for what is no layout.
    """
    return Layout.parse(name)


def rule_of(name: str) -> Rule | None:
    """A user's rule for an operator, or the package's."""
    own = get_attr(name, KEY)
    if own is None:
        return RULES.get(name)
    return lambda asked: _call_rule(own, asked)


def is_own(name: str) -> bool:
    """Whether a user has set an operator's rule."""
    return get_attr(name, KEY) is not None


def _call_rule(own: Any, asked: Asked) -> Inferred | None:
    old = [one or UNKNOWN for one in asked.old]
    new = [] if asked.new is None else [one or UNKNOWN for one in asked.new]
    attrs = Attrs(dict(asked.attrs), asked.op)
    given = own(attrs, new, old, list(asked.types))
    found = [getattr(given, name, None) for name in ("input_layouts", "output_layouts")]
    if None in found:
        raise TypeError(
            f"{asked.op}: the registered layout rule must give an InferCorrectLayoutOutput,"
            f" got {given!r}"
        )
    inputs, outputs = ([_layout(asked.op, one) for one in part] for part in found)  # type: ignore[union-attr]
    if UNKNOWN in (*inputs, *outputs):
        return None
    changed = getattr(given, "new_attrs", None)
    before = asked.attrs
    changes = {k: v for k, v in dict(changed or {}).items() if k not in before or before[k] != v}
    return Inferred(inputs, outputs, changes)


def _layout(op: str, value: Any) -> Layout:
    name = value if isinstance(value, str) else getattr(value, "name", None)
    if not isinstance(name, str):
        raise TypeError(f"{op}: the registered layout rule gave {value!r}, which is no layout")
    return Layout.parse(name)
