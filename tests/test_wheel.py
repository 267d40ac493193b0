"""What users get, the wheel and the sdist, works in an environment that has nothing else.

Packages come by pip, as for `make`; where its index does not answer, these tests are skipped.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.longer("builds, and installs all dependencies anew")

ROOT = Path(__file__).parent.parent
OURS = {"relay_wgrad", "legalize", "byoc_cudnn"}
CONSTRAINTS = ("--constraint", str(ROOT / "constraints.txt"))
ENV = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def run(words: Sequence[str | Path], cwd: Path) -> str:
    """What a command prints; this process's path of modules is not that one's."""
    done = subprocess.run(
        [*map(str, words)], cwd=cwd, env=ENV, capture_output=True, text=True, check=False,
        timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for all of it, where pip's index answers."""
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", *CONSTRAINTS, "lark"]
    asked = subprocess.run(
        words, cwd=folder, env=ENV, capture_output=True, text=True, check=False, timeout=300
    )
    if asked.returncode:
        pytest.skip(f"pip's index does not answer: {asked.stderr.strip()[-200:]}")
    return folder


@pytest.fixture(scope="module")
def sdist(scratch: Path) -> Path:
    """Made of what git would commit, in a copy: building leaves files beside the sources."""
    listed = run(["git", "ls-files", "-z", "-co", "--exclude-standard"], ROOT)
    copy = scratch / "copy"
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    run([sys.executable, "-m", "build", "--sdist", "--outdir", scratch / "dist"], copy)
    (made,) = (scratch / "dist").glob("*.tar.gz")
    return made


@pytest.fixture(scope="module")
def wheel(scratch: Path, sdist: Path) -> Path:
    """Made of the sdist alone."""
    with tarfile.open(sdist) as archive:
        # Python has it from 3.11.4 on.
        safe: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(scratch / "unpacked", **safe)
    (source,) = (scratch / "unpacked").iterdir()
    run([sys.executable, "-m", "build", "--wheel", "--outdir", scratch / "dist"], source)
    (made,) = (scratch / "dist").glob("*.whl")
    return made


def test_the_sdist_is_the_repository(sdist: Path) -> None:
    listed = run(["git", "ls-files", "-co", "--exclude-standard"], ROOT).split("\n")
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert {name for name in listed if (ROOT / name).is_file()} <= names
    extra = {name for name in names - {*listed} if not name.startswith("relay_wgrad.egg-info/")}
    assert extra == {"PKG-INFO", "setup.cfg"}


def test_the_wheel_has_our_packages_whole_and_nothing_else(wheel: Path) -> None:
    """Templates, the grammar, a page's parts, `py.typed`: what is beside the modules too."""
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    listed = run(["git", "ls-files", "-co", "--exclude-standard", *sorted(OURS)], ROOT)
    assert sorted(names) == sorted(n for n in listed.split("\n") if (ROOT / n).is_file())
    assert {name.partition("/")[0] for name in names} == OURS
    for part in (r"\.lark$", r"assets/.*\.js$", r"/templates/.*\.in$", r"/py\.typed$"):
        assert any(re.search(part, name) for name in names), part


def test_an_index_would_take_both(sdist: Path, wheel: Path) -> None:
    said = run([sys.executable, "-m", "twine", "check", "--strict", sdist, wheel], sdist.parent)
    assert said.count("PASSED") == 2


def test_it_works_in_an_empty_environment(scratch: Path, sdist: Path, wheel: Path) -> None:
    """The wheel with its dependencies, then what pip makes of the sdist, from an empty folder."""
    run([sys.executable, "-m", "venv", scratch / "venv"], scratch)
    programs, empty = scratch / "venv" / "bin", scratch / "empty"
    empty.mkdir()
    examples = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    (example,) = (text for text in examples if "@I.ir_module" in text)  # the one without extras
    # TVMScript reads a function's source, so it must be a file; its folder comes first on the path.
    (empty / "example.py").write_text(example)
    pip = [programs / "python", "-m", "pip", "install", "--quiet"]
    for words in ([*CONSTRAINTS, wheel], ["--force-reinstall", "--no-deps", sdist]):
        run([*pip, *words], empty)
        assert "conv2d_backward_weight" in run([programs / "python", "example.py"], empty)
        assert "train" in run([programs / "relay-wgrad", "--help"], empty)
        said = run([programs / "relay-wgrad", "env"], empty)
        assert "all found" in said
        assert "not this package's" not in said
        code = "import relay_wgrad, legalize, byoc_cudnn; print(relay_wgrad, legalize, byoc_cudnn)"
        files = run([programs / "python", "-c", code], empty)
        assert files.count("site-packages") == len(OURS)
    assert "No broken requirements" in run([programs / "python", "-m", "pip", "check"], empty)
