"""An inspection as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..display import memory, work

BACKEND, ON_A_GPU = "backend", "on a GPU"


def markdown(data: dict[str, Any]) -> str:
    """Facts, totals, and tables of convolutions, layout changes and copies."""
    facts, totals = data["facts"], data["totals"]
    lines = [f"# {_safe(facts.get('model', 'model'))}: a training step", ""]
    lines += [f"- {key.replace('_', ' ')}: {_safe(value)}" for key, value in facts.items()]
    kinds = ", ".join(f"{n} {kind}" for kind, n in totals["kinds"].items())
    lines += [
        f"- convolutions: {totals['convolutions']} ({kinds}), {work(totals['flop'])}",
        f"- layout changes: {totals['layout_changes']}",
        f"- layout changes that move memory: {totals['layout_changes_that_move']}",
        f"- results alive at once, at most: {memory(totals['peak_bytes'])}",
    ]
    if "backends" in totals:
        where = ", ".join(f"{name} {n}" for name, n in totals["backends"].items())
        lines.append(f"- {'backends' if elsewhere(facts) == BACKEND else ON_A_GPU}: {where}")
    if "seconds" in totals:
        floor = totals["floor_seconds"]
        lines.append(
            f"- time in convolutions: {_number(totals['seconds'], 1e3, 2)} ms"
            + (f", floor {_number(floor, 1e3, 2)} ms" if floor else "")
        )
    blocks = [layer["block"] for layer in data["layers"]]
    rows = []
    for number, conv in enumerate(data["convolutions"], 1):
        block = blocks[data["nodes"][conv["node"]]["layer"]] if blocks else 0
        rows.append(
            [
                number, data["blocks"][block] if blocks else "", conv["kind"], conv["short"],
                conv["layout"], conv["dtype"], conv.get("kernel", ""), _where(conv),
                conv.get("reason", ""),
                _number(conv.get("seconds"), 1e3), _number(conv.get("floor_seconds"), 1e3),
                _number(conv.get("share_of_floor"), 100, 0),
            ]
        )  # fmt: skip
    lines += ["", "## Convolutions", ""]
    lines += _table(
        ("#", "block", "kind", "problem", "layout", "dtype", "kernel", elsewhere(facts), "reason",
         "ms", "floor ms", "% of floor"), rows)  # fmt: skip
    if kernels := data.get("kernels"):
        lines += ["", "## Kernels", ""]
        lines += _table(
            ("kernel", "calls", "ms", "MB", "TB/s"),
            [
                [k["name"], k["calls"], _number(k["seconds"], 1e3), _number(k["bytes"], 1e-6, 1),
                 _number(k["bytes"] / k["seconds"] if k["seconds"] else None, 1e-12, 2)]
                for k in kernels
            ],
        )  # fmt: skip
    if compiled := data.get("compiled"):
        lines += ["", "## Compiling", "", totals["compiling"], ""]
        lines += _table(
            ("kernel", "s"),
            [[k["name"], "kept" if k["kept"] else _number(k["seconds"], 1)] for k in compiled],
        )
    lines += ["", "## Layout changes", ""]
    lines += _table(
        ("tensor", "shape", "reason", "moves memory"),
        [
            [c["name"], "×".join(c["shape"]), c["reason"], "yes" if c["moves"] else "no"]
            for c in data["changes"]
        ],
    )
    if copies := data.get("copies"):
        lines += ["", "## Copies along channels, on a GPU", ""]
        lines += _table(
            ("tensor", "what", "MB", "left to TVM, why"),
            [[c["name"], c["what"], _number(c["bytes"], 1e-6, 1), c["reason"]] for c in copies],
        )
    return "\n".join(lines) + "\n"


def elsewhere(facts: dict[str, Any]) -> str:
    """What the column is called that says which library takes a convolution: times that were
    measured on a CPU are none of it."""
    return ON_A_GPU if "cpu" in facts else BACKEND


def _where(conv: dict[str, Any]) -> str:
    if "backend" not in conv:
        return ""
    return f"{conv['backend']}.{conv['row']}" if conv["backend"] else "stays"


def _number(value: float | None, scale: float, digits: int = 3) -> str:
    if value is None:
        return ""
    scaled = value * scale
    is_small = digits and 0 < abs(scaled) < 10 ** (1 - digits)
    return f"{scaled:.2g}" if is_small else f"{scaled:.{digits}f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """The columns in which some row has something."""
    kept = [i for i in range(len(head)) if any(str(row[i]) for row in rows)]
    if not kept:
        return ["none"]
    every = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(_safe(row[i]) for i in kept) + " |" for row in every]


def _safe(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
