"""The table in docs/reference/relay_operators.md is the one in the package."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from relay_wgrad.relay.gradients import FAMILIES
from relay_wgrad.relay.records import REGISTRY, REQUIRED, Attr, RelayOp
from tests.support.relay.gradients import differentiable
from tests.support.relay.op_cases import CASES

DOC = Path(__file__).parents[4] / "docs" / "reference" / "relay_operators.md"
START, END = "<!-- table -->\n", "<!-- end of table -->\n"
RELAYS = {name for family in FAMILIES for name in family.RULES}  # what `gradient` has rules for


def _attr(attr: Attr) -> str:
    if attr.default is REQUIRED:
        return attr.name
    default = list(attr.default) if isinstance(attr.default, tuple) else attr.default
    shown = f'"{default}"' if isinstance(default, str) else default
    return f"{attr.name}={shown}"


@cache
def differentiated() -> set[str]:
    """Those of which a case has a gradient, by TVM's registry."""
    return {CASES[index].op for index in differentiable()}


def _gradient(op: str) -> str:
    """The surfaces that differentiate it: its Relax form by `grad`, its call by `gradient`."""
    found = {"Relax": op in differentiated(), "Relay": op in RELAYS}
    return ", ".join(name for name, has in found.items() if has) or "no"


def _row(op: RelayOp) -> str:
    attrs = ", ".join(map(_attr, op.attrs))
    cells = [
        f"`{op.name}({', '.join(op.inputs)})`",
        f"`{attrs}`" if attrs else "",
        {"relay": "Relay", "numpy": "NumPy", "torch": "PyTorch"}[op.checked],
        _gradient(op.name),
    ]
    return f"| {' | '.join(cells)} |"


def table() -> str:
    head = "| operator | attributes | checked against | gradient |\n| --- | --- | --- | --- |\n"
    return head + "".join(f"{_row(op)}\n" for op in REGISTRY.values())


def test_the_document_has_the_table(request: pytest.FixtureRequest) -> None:
    text = DOC.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    old, _, after = rest.partition(END)
    new = table()
    if request.config.getoption("--update-golden"):
        DOC.write_text(f"{before}{START}{new}{END}{after}", encoding="utf-8")
        old = new
    assert old == new, "docs/reference/relay_operators.md differs (--update-golden)"


def counts() -> str:
    checked = Counter(op.checked for op in REGISTRY.values())
    return (
        f"{len(REGISTRY)} operators: {checked['relay']} checked against results of real Relay,"
        f" {checked['numpy']} against NumPy,\n{checked['torch']} against PyTorch."
    )


def test_the_document_counts_the_operators(request: pytest.FixtureRequest) -> None:
    text = DOC.read_text(encoding="utf-8")
    if request.config.getoption("--update-golden"):
        text = re.sub(r"^\d+ operators: .*\n.* against PyTorch\.", counts(), text, flags=re.M)
        DOC.write_text(text, encoding="utf-8")
    assert counts() in text, "docs/reference/relay_operators.md differs (--update-golden)"
