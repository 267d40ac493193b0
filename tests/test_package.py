"""What a wheel must hold beside modules, and what importing the package gives."""

from __future__ import annotations

import re
import subprocess
import sys
from fnmatch import fnmatch
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

import relay_wgrad
from relay_wgrad.inspection import environment as env

ROOT = Path(__file__).parent.parent
DATA = dict(
    re.findall(
        r"^(\w+) = \[(.*)\]$",
        (ROOT / "pyproject.toml").read_text().split("[tool.setuptools.package-data]")[1],
        re.MULTILINE,
    )
)


@pytest.mark.parametrize("package", ["relay_wgrad", "legalize", "byoc_cudnn"])
def test_every_file_is_shipped(package: str) -> None:
    patterns = re.findall(r'"([^"]+)"', DATA[package])
    folder = ROOT / package
    files = [p.relative_to(folder) for p in folder.rglob("*") if p.is_file()]
    others = [str(p) for p in files if p.suffix not in (".py", ".pyc")]
    assert others
    missing = [name for name in others if not any(fnmatch(name, p) for p in patterns)]
    assert not missing
    assert all(any(fnmatch(name, p) for name in others) for p in patterns)


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


def test_console_script() -> None:
    scripts = (ROOT / "pyproject.toml").read_text().split("[project.scripts]")[1]
    assert scripts.split("\n")[1] == 'relay-wgrad = "relay_wgrad.cli:main"'
    from relay_wgrad.cli import main

    assert callable(main)
