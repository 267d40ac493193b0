"""What a wheel must hold beside modules, and what importing the package gives."""

from __future__ import annotations

import ast
import importlib
import json
import re
import runpy
import subprocess
import sys
from fnmatch import fnmatch
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import relay_wgrad
from relay_wgrad.cli import env

ROOT = Path(__file__).parent.parent
toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
PYPROJECT: dict[str, Any] = toml.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
DATA = PYPROJECT["tool"]["setuptools"]["package-data"]
SETUP = runpy.run_path(str(ROOT / "setup.py"))


@pytest.mark.parametrize("package", ["relay_wgrad", "legalize", "byoc_cudnn"])
def test_every_file_is_shipped(package: str) -> None:
    patterns = DATA[package]
    folder = ROOT / package
    files = [p.relative_to(folder) for p in folder.rglob("*") if p.is_file()]
    others = [str(p) for p in files if p.suffix not in (".py", ".pyc")]
    assert others
    missing = [name for name in others if not any(fnmatch(name, p) for p in patterns)]
    assert not missing
    assert all(any(fnmatch(name, p) for name in others) for p in patterns)


@pytest.mark.longer("a process that imports TVM")
def test_parts_are_attributes() -> None:
    """In a process of its own, in which nothing else has imported them; nor does that import."""
    code = (
        "import sys, relay_wgrad\n"
        "assert not {'relay_wgrad.frontend', 'relay_wgrad.torch'} & {*sys.modules}\n"
        "assert 'transform' in dir(relay_wgrad)\n"
        "relay_wgrad.transform.ConvertLayout, relay_wgrad.frontend.from_onnx\n"
        "relay_wgrad.training.trainer.Trainer, relay_wgrad.inspection, relay_wgrad.relay.build\n"
        "assert 'relay_wgrad.torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_libraries_load_no_front_end() -> None:
    """Relay's surface and its parser, PyTorch, ONNX and JAX: beside what TVM loads itself."""
    code = (
        "import sys, tvm\n"
        "before = {*sys.modules}\n"
        "import byoc_cudnn, legalize.cpu, legalize.cuda\n"
        "new = {*sys.modules} - before\n"
        "refused = {'lark', 'torch', 'onnx', 'jax', 'relay_wgrad.relay', 'relay_wgrad.frontend'}\n"
        "assert not refused & new, refused & new\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_such_part() -> None:
    with pytest.raises(AttributeError, match="module 'relay_wgrad' has no attribute 'nothing'"):
        relay_wgrad.nothing  # noqa: B018


def test_env_tells_of_a_package_that_hides_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert env.shadowed() == []
    other = ModuleSpec("legalize", None, origin=str(tmp_path / "legalize" / "__init__.py"))
    monkeypatch.setattr(env, "find_spec", lambda name: other if name == "legalize" else None)
    assert [name for name, _ in env.shadowed()] == ["legalize", "byoc_cudnn"]
    assert env.shadowed()[0][1].startswith(f"not this package's: {tmp_path / 'legalize'}")


@pytest.mark.share(2)
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["table", "json"])
def test_env_answers_where_a_package_hides_ours(options: list[str], tmp_path: Path) -> None:
    (tmp_path / "legalize").mkdir()
    (tmp_path / "legalize" / "__init__.py").touch()
    code = (
        "import sys\n"
        "sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f)]\n"
        f"sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]\n"
        "from relay_wgrad.cli import main\n"
        f"raise SystemExit(main(['env', *{options!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "not this package's" in done.stdout


@pytest.mark.longer("a process; env's answer stays")
def test_register_tells_of_a_package_that_hides_ours(tmp_path: Path) -> None:
    """Another distribution's `legalize`, first on the path."""
    (tmp_path / "legalize").mkdir()
    (tmp_path / "legalize" / "__init__.py").touch()
    code = (
        "import sys\n"
        # An editable installation's finder knows modules by name; a user's has none.
        "sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f)]\n"
        f"sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]\n"
        "import relay_wgrad\n"
        "relay_wgrad.register()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().split("\n")[-1]
    assert last.startswith("ImportError: No module named 'legalize.rules'")
    assert "`python -m relay_wgrad env` says where it is" in last


def test_console_script() -> None:
    assert PROJECT["scripts"] == {"relay-wgrad": "relay_wgrad.cli:main"}
    from relay_wgrad.cli import main

    assert callable(main)


def needed(wanted: Requirement) -> list[Requirement]:
    """What a distribution with its extras requires here; of one that is not installed, nothing."""
    if wanted.name == "relay-wgrad":
        lines = [*PROJECT["dependencies"]]
        for extra in wanted.extras:
            lines += PROJECT["optional-dependencies"][extra]
        return [Requirement(line) for line in lines]
    try:
        found = [Requirement(line) for line in requires(wanted.name) or ()]
    except PackageNotFoundError:
        return []
    names = ("", *wanted.extras)
    return [r for r in found if not r.marker or any(r.marker.evaluate({"extra": e}) for e in names)]


def test_constraints_pin_all_that_is_tested() -> None:
    """What `make` installs, and what is there of an extra for CUDA."""
    extras = re.search(r"--editable '\.(\[[\w,]+)\]'", (ROOT / "Makefile").read_text())
    assert extras
    todo = [Requirement(f"relay-wgrad{extras[1]},cutlass]")]
    seen: dict[str, Requirement] = {}
    while todo:
        wanted = todo.pop()
        if str(wanted) not in seen:
            seen[str(wanted)] = wanted
            todo += needed(wanted)
    text = (ROOT / "constraints.txt").read_text()
    pinned = {canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==\S+$", text, re.M)}
    wants = {canonicalize_name(wanted.name) for wanted in seen.values()} - {"relay-wgrad"}
    assert "numpy" in wants
    assert not wants - pinned


def test_the_notebooks_extra_is_what_they_import() -> None:
    """Beside the package's own requirements; tests, examples and PyTorch are said in
    notebooks/README.md."""
    imported = set()
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        code = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    ours = {"relay_wgrad", "legalize", "byoc_cudnn", "tests", "torch"}
    ours |= {path.stem for path in (ROOT / "examples").glob("*.py")}
    brought = {"tvm": "apache-tvm", "tvm_ffi": "apache-tvm", "sklearn": "scikit-learn"}
    lines = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["notebooks"]]
    offered = {Requirement(line).name for line in lines}
    others = imported - ours - set(sys.stdlib_module_names)
    assert {brought.get(name, name) for name in others} <= offered


def test_a_package_index_shows_no_link_that_leads_nowhere() -> None:
    readme = (ROOT / "README.md").read_text()
    relative = re.compile(r"\]\((?!https?:)[\w./#-]+\)")
    assert relative.search(readme)
    shown, linked = (SETUP["on_an_index"](readme, home) for home in ("", "https://host/us/wgrad"))
    for text in (shown, linked):
        assert not relative.search(text)
    assert 'trainer.step({"input": x.numpy(), "labels": labels.numpy()})' in text
    assert "![" not in shown
    assert "What was tried: docs/lab/2026-11.md." in shown
    home = "https://host/us/wgrad/blob/main"
    assert f"[docs/lab/2026-11.md]({home}/docs/lab/2026-11.md)" in linked
    assert "(https://host/us/wgrad/raw/main/docs/inspect.png)" in linked


def test_urls_of_the_project_are_given_once_it_has_a_home() -> None:
    assert SETUP["urls"]("") == {}
    assert all(url.startswith("https://h/p") for url in SETUP["urls"]("https://h/p").values())
    assert set(PROJECT["dynamic"]) == {"readme", "urls"}
