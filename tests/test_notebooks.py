"""The notebooks run, and what is stored of them is their output.

`python -m tests.test_notebooks` runs them and stores the new outputs.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PNG = b"\x89PNG\r\n\x1a\n"
# Where code, environments and temporary files are, on this machine or the one that stored them.
PLACES = re.compile(r"(?<![\w.])(?:/(?:home|root|tmp|work|usr|opt|var|Users)/|[A-Z]:\\)")

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)


def executed(path: Path, drawing: Path) -> Any:
    """The notebook with the outputs of a fresh kernel.  Raises CellExecutionError.

    drawing : matplotlib's folder, in which it keeps the list of fonts that takes it seconds.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as scratch:
        # A kernel of this environment, whatever is installed for the user, with nobody's settings.
        # Its channels are files, not ports: nothing to collide with, and nobody else can listen.
        manager = KernelManager(
            transport="ipc",
            connection_file=str(Path(scratch, "kernel.json")),
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),
        )
        client = NotebookClient(
            notebook, km=manager, timeout=600, record_timing=False, coalesce_streams=True
        )
        client.resources = {"metadata": {"path": str(path.parent)}}
        settings = {"IPYTHONDIR": scratch, "MPLCONFIGDIR": str(drawing)}
        client.execute(env={**os.environ, **settings}, cleanup_kc=True)
    return notebook


def outputs(notebook: Any) -> Iterator[Any]:
    for cell in notebook.cells:
        yield from cell.get("outputs", ())


def pictures(notebook: Any) -> list[bytes]:
    found = (out.get("data", {}).get("image/png") for out in outputs(notebook))
    return [base64.b64decode(picture) for picture in found if picture]


def texts(notebook: Any) -> Iterator[str]:
    """Everything readable in the outputs: streams, and each form of a value but its picture."""
    for out in outputs(notebook):
        yield out.get("text", "")
        yield from (v for k, v in out.get("data", {}).items() if not k.startswith("image/"))


def check(notebook: Any) -> None:
    assert pictures(notebook), "no picture"
    assert all(picture.startswith(PNG) for picture in pictures(notebook))
    for out in outputs(notebook):
        assert out.output_type != "error"
        assert out.get("name") != "stderr", out.text
    for text in texts(notebook):
        assert not PLACES.search(text), text
        assert str(ROOT) not in text
        assert sys.prefix not in text


def test_there_are_notebooks() -> None:
    assert {"00_quick_start.ipynb", "20_convert_layout.ipynb"} <= {p.name for p in NOTEBOOKS}


@each_notebook
def test_stored_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    check(notebook)
    numbers = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert numbers == list(range(1, len(numbers) + 1)), "not run from top to bottom"
    assert path.stat().st_size < 400_000
    assert path.name in (ROOT / "notebooks" / "README.md").read_text()


# Relay's stays; README and the first steps run too, and test_public knows the names of all.
@pytest.mark.longer_cases("00_", "20_", "30_", "40_", "50_", "60_", "70_", "80_")
@each_notebook
def test_runs(path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    drawing = tmp_path_factory.getbasetemp() / "matplotlib"
    stored, now = nbformat.read(path, as_version=4), executed(path, drawing)
    check(now)
    assert len(pictures(now)) == len(pictures(stored)), "store the outputs again"


@pytest.mark.parametrize(
    "text", ["/home/me/x.py", "in /tmp/tmp1/a", "'/opt/main'", "C:\\Users\\me", "/root/.cache"]
)
def test_places_are_found(text: str) -> None:
    assert PLACES.search(text)


def test_words_with_slashes_are_no_places() -> None:
    assert not PLACES.search("GFLOP/s, docs/explanation/layout.md, and/or, 1/2, N/home/x")


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs the notebooks and stores their outputs.")
    parser.add_argument("names", nargs="*", help="of notebooks; by default all")
    names = parser.parse_args().names
    with tempfile.TemporaryDirectory() as drawing:
        for path in NOTEBOOKS:
            if not names or path.name in names:
                nbformat.write(executed(path, Path(drawing)), path)


if __name__ == "__main__":
    main()
