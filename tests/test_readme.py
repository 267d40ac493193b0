"""What the README and the docs tell people to do works."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from .support.children import run_module, run_script

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
DOCS = ROOT / "docs"
LAB = DOCS / "lab"  # what was measured on a day, by programs that may be gone
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted(DOCS.rglob("*.md")) if LAB not in page.parents),
]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", blocks("python"))
def test_python_examples_run(code: str, tmp_path: Path) -> None:
    # TVMScript reads a function's source, so it must be a file.
    script = tmp_path / "example.py"
    script.write_text(code)
    done = run_script(script)
    assert done.returncode == 0, done.stderr
    assert ("conv2d_backward_weight" in done.stdout) is ("torch" not in code)


def commands() -> list[str]:
    """Commands of console blocks and those quoted in the text."""
    found = [
        line.split("#")[0].strip() for block in blocks("console") for line in block.split("\n")
    ]
    for page in PAGES:
        found += re.findall(r"`((?:make|python -m) [^`]+)`", page.read_text())
    return sorted({c for c in found if c.startswith(("make", "python"))})


def test_there_are_commands() -> None:
    assert {"make demo", "make test"} <= set(commands())


@cache
def help_of(*words: str) -> str:
    done = run_module(*words, "--help")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", commands())
def test_commands_exist(command: str) -> None:
    """Targets are in the Makefile; modules answer `--help` with the options they are given."""
    words = command.split()
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text()
        assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in words[1:])
        return
    text = help_of(*words[2 : 3 + {"relay_wgrad": 1, "benchmarks": 2}.get(words[2], 0)])
    assert all(option in text for option in re.findall(r"--[a-z-]+", command))


def test_every_target_is_explained() -> None:
    """`make help` lists what has a comment; README or CONTRIBUTING names it, or it is a part."""
    listed = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    parts = {"lint", "types", "unit", "bench", "clean", "help"}
    named = {word for command in commands() for word in command.split() if "make" in command}
    assert {*listed} - parts <= named
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony
    assert {*phony[1].split()} - {"help"} == {*listed}


def test_install_names_every_extra() -> None:
    """Those that users want; the package is not on an index, so they install from a checkout."""
    project = (ROOT / "pyproject.toml").read_text()
    section = project.partition("[project.optional-dependencies]")[2].partition("\n[tool")[0]
    extras = set(re.findall(r"^(\w+) = \[", section, re.MULTILINE))
    assert "safetensors" in extras
    install = README.partition("## Install")[2].partition("\n## ")[0]
    lines = re.findall(r"^pip install (.*?) +#", install, re.MULTILINE)
    named = {extra for line in lines for extra in re.findall(r"'\.\[(\w+)\]'", line)}
    assert named == extras - {"dev"}
    assert all(line.endswith("-c constraints.txt") for line in lines)


def test_notebooks_are_all_listed() -> None:
    found = {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    index = (DOCS / "index.md").read_text()
    assert set(re.findall(r"\(\.\./notebooks/([^)]+\.ipynb)\)", index)) == found


def test_pages_are_all_listed() -> None:
    """Each under the heading of its folder's kind."""
    index = (DOCS / "index.md").read_text()
    listed = set(re.findall(r"\(([a-z_/0-9-]+\.md)\)", index))
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - {"index.md"}
    assert listed == pages
    kinds = {"How to": "howto", "Reference": "reference", "Explanation": "explanation"}
    for heading, folder in kinds.items():
        section = index.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        found = set(re.findall(r"\(([a-z_/]+\.md)\)", section))
        assert found == {page for page in pages if page.startswith(f"{folder}/")}, heading


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)  # lib["default"](device)
    for target, place in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
        other = page.parent / target if target else page
        assert other.exists(), target
        assert not place or place in places(other), f"{target}#{place}"


def places(page: Path) -> set[str]:
    """What links may name of a page: its headings, as hosts write them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
