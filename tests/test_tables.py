"""One fact, one place: a list of names of some length stands in one module.

The same four words in two modules are one fact that somebody must change twice.  Keys of tables are
left out: of two tables over the same keys each says something of its own, and a missing key is an
error when it is asked for.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = ("relay_wgrad", "legalize", "byoc_cudnn", "benchmarks")
FEWEST = 4  # words that are hardly the same by chance


def lists_of(source: str) -> set[frozenset[str]]:
    """The words of each tuple, list and set of a module that has nothing but texts."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            words = [e.value for e in node.elts if isinstance(e, ast.Constant)]
            if len(words) == len(node.elts) and all(isinstance(word, str) for word in words):
                found.add(frozenset(map(str, words)))
    return {words for words in found if len(words) >= FEWEST}


def test_lists_of_a_module() -> None:
    source = "A = ('a', 'b', 'c', 'd')\ndef f(x=['d', 'c', 'b', 'a'], y={'a', 'b', 'c', 1}): ...\n"
    assert lists_of(source) == {frozenset("abcd")}


def test_a_list_of_names_stands_in_one_module() -> None:
    places = defaultdict(list)
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            for words in lists_of(path.read_text(encoding="utf-8")):
                places[words].append(path.relative_to(ROOT).as_posix())
    twice = {tuple(sorted(words)): found for words, found in places.items() if len(found) > 1}
    assert not twice
