"""One of upstream's files in a process of its own: pytest, which tells each test's start and end.

    python -m tests.upstream.child CHECKOUT FILE DESCRIPTOR < names of tests to leave out

Each line that goes to the descriptor is JSON: {"collected": [...]}, {"start": id},
{"end": id, "outcome": ..., "error": ..., "where": ...} or {"broken": error}.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .axes import TARGET, spread
from .loader import Finder
from .scope import FOLDER

_FIRST = 300  # characters of an error's first line


def one_line(error: BaseException) -> str:
    """An error's kind and the first line of what it says."""
    lines = [line.strip() for line in str(error).splitlines()]
    text = next((line for line in lines if line), "")
    return f"{type(error).__name__}: {text}"[:_FIRST]


class Teller:
    """pytest's hooks: what the tests do goes to the descriptor, and tests are spread over axes."""

    def __init__(self, descriptor: int, done: set[str]) -> None:
        self.descriptor = descriptor
        self.done = done

    def tell(self, **event: Any) -> None:
        os.write(self.descriptor, (json.dumps(event) + "\n").encode())

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        spread(metafunc)

    @pytest.fixture
    def target(self) -> str:
        return TARGET

    @pytest.fixture
    def dev(self) -> Any:
        from .standins import cpu

        return cpu()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.tell(collected=[item.nodeid for item in items])
        items[:] = [item for item in items if item.nodeid not in self.done]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = crash.message if crash else str(report.longrepr).strip().splitlines()[-1]
            self.tell(broken=text.splitlines()[0].removeprefix("E").strip()[:_FIRST])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.tell(start=item.nodeid)
        self.outcome, self.error, self.where = "passed", "", ""
        result = yield
        self.tell(end=item.nodeid, outcome=self.outcome, error=self.error, where=self.where)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[Any]:
        report = yield
        if report.skipped and self.outcome == "passed":
            self.outcome = "skipped"
            self.error = str(
                getattr(report, "wasxfail", "") or (call.excinfo and call.excinfo.value)
            )
        elif report.failed:
            self.outcome = "failed"
            if call.excinfo and not self.error:
                last = call.excinfo.traceback[-1]
                self.error = one_line(call.excinfo.value)
                self.where = f"{Path(str(last.path)).name}:{last.lineno + 1}"
        return report


def tests_of(path: Path) -> list[str]:
    """The tests that a file's text has, without their parameters: where it can't be imported."""
    out = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            out.append(node.name)
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            methods = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
            out += [f"{node.name}::{name}" for name in methods if name.startswith("test")]
    return out


def old_numpy() -> None:
    """Names of NumPy 1 in upstream's tests, and in TVM's own references."""
    import numpy as np

    reshape = np.reshape

    def with_newshape(a: Any, shape: Any = None, newshape: Any = None, **rest: Any) -> Any:
        return reshape(a, newshape if shape is None else shape, **rest)

    np.reshape = with_newshape
    setattr(np, "product", np.prod)  # noqa: B010


def main() -> None:
    """What the module's docstring says."""
    checkout, name, descriptor = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    done = set(json.load(sys.stdin))
    root = (checkout / FOLDER).resolve()
    sys.path.insert(0, str(root))  # upstream's `utils`
    Finder(checkout / "tests").install()
    warnings.simplefilter("ignore")
    old_numpy()
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch, "pytest.ini")
        config.write_text("[pytest]\n")
        options = ["--assert=plain", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist"]
        # A whole checkout's conftest asks for plugins of its TVM; `Teller` is what there is here.
        options += ["--noconftest", "-W", "ignore", f"--rootdir={root}", "-c", str(config)]
        os.chdir(scratch)
        status = pytest.main([*options, str(root / name)], plugins=[Teller(descriptor, done)])
    sys.exit(status)


if __name__ == "__main__":
    main()
