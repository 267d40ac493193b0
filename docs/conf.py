"""The site: these pages as Sphinx shows them, each link and reference checked (`make docs`)."""

import re
from typing import Any

project = "relay-wgrad"
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
html_theme = "furo"
html_title = project
exclude_patterns = ["requirements.txt"]
myst_heading_anchors = 4  # links name headings as the repository's host does
myst_fence_as_directive = ["mermaid"]

_LINK = re.compile(r"\]\(([a-z_/0-9-]+)\.md\)")


def _with_contents(app: Any, page: str, source: list[str]) -> None:
    """The navigation is the index: a part for each of its headings, the pages that it links to."""
    if page != "index":
        return
    parts = []
    for section in re.split(r"^## ", source[0], flags=re.MULTILINE):
        heading, *_ = section.split("\n")
        pages = "\n".join(dict.fromkeys(_LINK.findall(section)))
        if pages:
            caption = "" if heading.startswith("#") else f":caption: {heading}\n"
            parts.append(f"```{{toctree}}\n:hidden:\n{caption}\n{pages}\n```\n")
    source[0] += "\n" + "\n".join(parts)


def setup(app: Any) -> None:
    app.connect("source-read", _with_contents)
