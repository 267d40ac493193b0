"""Relay 0.19's printed programs, read just far enough to compare with Relax.

One straight-line function of calls with literal attributes: what the `wgrad_*` and `convt_*` files
hold.  Anything else is an error, not a silent gap.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any

from tests.fixtures.relay.inputs import HERE, load

__all__ = ["RelayCall", "fixture_names", "layout_transforms", "load", "parse_relay"]

_CALL = re.compile(
    r"(?:%(?P<var>\d+) = )?(?P<op>[\w.]+)\((?P<args>.*)\)"
    r" /\* ty=Tensor\[\((?P<shape>[\d, ]+)\), (?P<dtype>\w+)\] \*/;?"
)
_PARAM = re.compile(r"%(\w+): Tensor\[\(([\d, ]+)\), (\w+)\] /\*")


@dataclass(frozen=True)
class RelayCall:
    """One call: its operands' names (`data`, `0`, …), written attributes, and result type."""

    name: str
    op: str
    operands: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    attrs: dict[str, Any] = field(default_factory=dict)


def fixture_names(pattern: str) -> list[str]:
    """Names of the fixtures whose Relay file matches a glob pattern."""
    names = sorted(path.stem for path in HERE.glob(f"{pattern}.relay"))
    if not names:
        raise FileNotFoundError(f"no fixture matches {pattern}")
    return names


def layout_transforms(name: str) -> int:
    """The calls of `layout_transform` in a fixture's program."""
    return len(re.findall(r"\blayout_transform\(", load(name)[2]))


def parse_relay(text: str) -> tuple[dict[str, tuple[tuple[int, ...], str]], list[RelayCall]]:
    """({parameter: (shape, dtype)}, calls in printed order; the last is the result)."""
    version, header, *body, end = text.strip().splitlines()
    if version != '#[version = "0.0.5"]' or not header.startswith("def @main(") or end != "}":
        raise ValueError(f"not one Relay function: {text[:80]!r}")
    params = {name: (_ints(shape), dtype) for name, shape, dtype in _PARAM.findall(header)}
    return params, [_call(line.strip()) for line in body]


def _call(line: str) -> RelayCall:
    match = _CALL.fullmatch(line)
    if match is None:
        raise ValueError(f"not a Relay call: {line!r}")
    # Operands are %names; the rest are Python literals.
    parsed = ast.parse(f"f({match['args'].replace('%', 'v_')})", mode="eval").body
    assert isinstance(parsed, ast.Call)
    operands = tuple(arg.id.removeprefix("v_") for arg in parsed.args if isinstance(arg, ast.Name))
    attrs = {str(k.arg): ast.literal_eval(k.value) for k in parsed.keywords}
    name = match["var"] or "result"
    return RelayCall(name, match["op"], operands, _ints(match["shape"]), match["dtype"], attrs)


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(x) for x in text.split(",") if x.strip())
