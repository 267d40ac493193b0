"""Programs as older releases printed them, written by hand: `tests/fixtures/relay_dialects`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parents[2] / "fixtures" / "relay_dialects"


@dataclass(frozen=True)
class Pair:
    """An old text; its release, where it does not say it; the same in 0.19's text; and a text of
    today that says in other words what the old one means."""

    text: str
    release: str | None
    today: str
    meaning: str


def _pair(old: str, release: str | None = None) -> Pair:
    name = old.partition("_")[0]
    texts = {path.stem: path.read_text(encoding="utf-8") for path in HERE.glob("*.relay")}
    today = texts[f"{name}_today"]
    return Pair(texts[old], release, today, texts.get(f"{name}_meaning", today))


PAIRS = {
    "network": _pair("network_0.8"),
    "groups": _pair("groups_0.8", "0.8"),
    "scattered": _pair("scattered_0.10"),
}
