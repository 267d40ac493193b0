"""An inspection as one HTML file: markup, styles, scripts and data, no network."""

from __future__ import annotations

import json
import re
from html import escape
from importlib.resources import files
from typing import Any

from .dataflow import KINDS


def page(data: dict[str, Any]) -> str:
    """The page.  Names from the model are text in it, never markup or code."""
    kinds = list(KINDS)
    small = {
        **data,
        # Thousands of boxes: by place instead of by name.
        "nodes": [
            [n["name"], kinds.index(n["kind"]), n["label"], n["bytes"], n["layer"],
             int(n["backward"])]
            for n in data["nodes"]
        ],
        "kinds": kinds,
    }  # fmt: skip
    # Within a script only `</` and `<!--` could end or bend it.
    text = json.dumps(small, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    parts = {
        "title": escape(f"{data['facts'].get('model', 'model')}: a training step"),
        "style": _asset("page.css"),
        "script": "".join(map(_asset, ("graph.js", "page.js", "memory.js"))),
        "data": text,
    }
    return re.sub("@(title|style|script|data)@", lambda m: parts[m[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")
