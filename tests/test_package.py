"""What a wheel must hold beside modules."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

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
