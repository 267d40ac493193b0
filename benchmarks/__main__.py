"""The benchmarks: `python -m benchmarks` lists them, `python -m benchmarks NAME …` runs one.

Each is a module with a command line of its own, whose first line says what it measures.
"""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table


def programs() -> dict[str, str]:
    """What each measures, by name: of the modules here that run as programs."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.If) and "__main__" in ast.unparse(node) for node in tree.body):
            found[path.stem] = (ast.get_docstring(tree) or "").split("\n")[0]
    return found


def main() -> int:
    known, words = programs(), sys.argv[1:]
    if words and words[0] in known:
        sys.argv = words
        runpy.run_module(f"benchmarks.{words[0]}", run_name="__main__", alter_sys=True)
        return 0
    table = Table("benchmark", "what it measures", box=None, pad_edge=False)
    for name, what in known.items():
        table.add_row(name, what)
    Console(highlight=False).print(table)
    if words and words[0] not in ("-h", "--help"):
        print(f"{words[0]}: none of these", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
