"""The runner of upstream's tests, on small files that are made up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .loader import Finder
from .names import TABLE, Missing, MissingNameError, resolve
from .reasons import REASONS, read_reasons
from .runner import run_file
from .scope import FOLDER, OUT_OF_SCOPE, in_scope

TEXT = """
import os, signal, time
import pytest

def test_good():
    assert True

def test_bad():
    assert 1 == 2, "one is not two"

def test_left_out():
    pytest.skip("for want of something")

def test_crash():
    os.kill(os.getpid(), signal.SIGSEGV)

@pytest.mark.parametrize("n", [1, 2])
def test_after(n):
    assert n == 1
"""

SLOW = """
import time

def test_slow():
    time.sleep(60)

def test_after():
    pass
"""

RELAY = """
import numpy as np
import tvm
import tvm.testing
import tvm.relay.testing
from tvm import relay, te, tir
from tvm.contrib import utils
from tvm.relay import transform as passes
from tvm.relay.no_such_place import nothing

shape, dtype = tvm.testing.parameters(((2, 3), "float32"), ((4,), "int32"))
kind = tvm.testing.parameter("a", "b")

class TestClass:
    size = tvm.testing.parameter(1, 2, 3)

    def test_size(self, target, dev, size):
        assert target == "llvm" and dev == tvm.cpu() and size in (1, 2, 3)

def test_relay(shape, dtype):
    x = relay.var("x", relay.TensorType(shape, dtype))
    mod = passes.InferType()(tvm.IRModule.from_expr(x + x))
    tvm.ir.assert_structural_equal(mod["main"].ret_type, relay.TensorType(shape, dtype))
    array = tvm.nd.array(np.ones(shape, dtype))
    tvm.testing.assert_allclose(array, np.ones(shape, dtype))

def test_kind(kind):
    with pytest.raises(tvm.TVMError):
        raise ValueError(kind)

def test_uses_it():
    nothing()

def test_types_differ():
    tvm.ir.assert_structural_equal(relay.TensorType((1,)), relay.TensorType((2,)))

@tvm.testing.requires_cuda
def test_gpu():
    raise AssertionError

import pytest
"""


def checkout(tmp_path: Path, **files: str) -> Path:
    """A made-up checkout with these tests."""
    folder = tmp_path / FOLDER
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return tmp_path


def outcomes(where: Path, name: str, timeout: float = 60) -> dict[str, tuple[str, str]]:
    """Each test's outcome and error, without the file's name."""
    results = run_file(where, name, timeout)
    return {
        test.removeprefix(f"{name}::"): (result.outcome, result.error)
        for test, result in results.items()
    }


def test_a_crash_is_its_tests_failure_and_the_rest_runs(tmp_path: Path) -> None:
    got = outcomes(checkout(tmp_path, test_it=TEXT), "test_it.py")
    assert {test: outcome for test, (outcome, _) in got.items()} == {
        "test_good": "passed",
        "test_bad": "failed",
        "test_left_out": "skipped",
        "test_crash": "failed",
        "test_after[1]": "passed",
        "test_after[2]": "failed",
    }
    assert got["test_bad"][1] == "AssertionError: one is not two"
    assert got["test_crash"][1] == "crash: SIGSEGV"


@pytest.mark.longer("waits for a time limit")
def test_a_test_that_does_not_end_fails_alone(tmp_path: Path) -> None:
    got = outcomes(checkout(tmp_path, test_it=SLOW), "test_it.py", timeout=2)
    assert got == {"test_slow": ("failed", "no end in 2 s"), "test_after": ("passed", "")}


def test_a_file_that_cannot_be_imported_fails_in_all_its_tests(tmp_path: Path) -> None:
    text = "import not_there\ndef test_a(): pass\nclass TestB:\n    def test_c(self): pass\n"
    got = outcomes(checkout(tmp_path, test_it=text), "test_it.py")
    assert {outcome for outcome, _ in got.values()} == {"failed"}
    assert list(got) == ["test_a", "TestB::test_c"]
    assert "not_there" in got["test_a"][1]


def test_a_whole_checkouts_conftest_is_not_read(tmp_path: Path) -> None:
    """It asks for a plugin of TVM 0.19, without which pytest stops before the first test."""
    where = checkout(tmp_path, test_it="def test_a(): pass\n")
    for folder in (where, where / "tests", where / FOLDER):
        (folder / "conftest.py").write_text('pytest_plugins = ["tvm.testing.no_such_plugin"]\n')
    assert outcomes(where, "test_it.py") == {"test_a": ("passed", "")}


def test_what_pytest_said_when_it_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = checkout(tmp_path, test_it="def test_a(): pass\ndef test_b(): pass\n")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    got = outcomes(where, "test_it.py")
    assert list(got) == ["test_a", "test_b"]
    for outcome, error in got.values():
        assert outcome == "failed"
        assert error.startswith("exit status 4: "), error
        assert error.endswith("error: unrecognized arguments: --no-such-option"), error


@pytest.mark.longer("processes that import TVM")
def test_imports_give_the_relay_surface(tmp_path: Path) -> None:
    got = outcomes(checkout(tmp_path, test_it=RELAY), "test_it.py")
    failed = {test: error for test, (outcome, error) in got.items() if outcome == "failed"}
    assert set(failed) == {"test_uses_it", "test_types_differ"}
    assert "missing name tvm.relay.no_such_place.nothing" in failed["test_uses_it"]
    assert got.pop("test_gpu")[0] == "skipped"
    assert len(got) == 3 + 2 + 2 + 2  # sizes, shapes with dtypes, kinds, the failures


def test_the_command_prints_a_table(tmp_path: Path) -> None:
    where = checkout(tmp_path, test_it="def test_a(): pass\n", test_vm="def test_b(): 1 / 0\n")
    out = subprocess.run(
        [sys.executable, "-m", "tests.upstream", str(where), "--json", str(tmp_path / "out.json")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "1 of 1 that passed or failed" in out.stdout
    assert "test_vm.py" not in out.stdout
    assert '"test_it.py::test_a"' in (tmp_path / "out.json").read_text()


def test_every_file_that_is_left_out_has_a_reason(tmp_path: Path) -> None:
    where = checkout(tmp_path, test_vm="", test_it="")
    assert in_scope(where) == ["test_it.py"]
    assert in_scope(where, "*vm*") == []
    assert all(OUT_OF_SCOPE.values())
    with pytest.raises(ValueError, match="has no test"):
        in_scope(tmp_path / "elsewhere")


def test_every_substitution_has_a_reason() -> None:
    assert all(row.why for row in TABLE.values())
    assert [name for name in TABLE if isinstance(resolve(name), Missing)] == []
    assert resolve("tvm.relay.transform.InferType") is not None
    missing = resolve("tvm.no_such_name.at_all")
    assert isinstance(missing, Missing)
    with pytest.raises(MissingNameError, match=r"tvm\.no_such_name\.at_all"):
        missing()


def test_the_list_of_reasons_is_read() -> None:
    assert read_reasons("# a comment\nas it is:\n  a.py::b\n  a.py::c[1]\n") == {
        "a.py::b": "as it is:",
        "a.py::c[1]": "as it is:",
    }
    with pytest.raises(ValueError, match="line 1: x has no reason"):
        read_reasons("  x\n")
    with pytest.raises(ValueError, match="line 3: x is named twice"):
        read_reasons("a\n  x\n  x\n")
    assert isinstance(read_reasons(REASONS.read_text()), dict)


def test_only_the_checkouts_files_are_loaded_so(tmp_path: Path) -> None:
    assert Finder(tmp_path).find_spec("json") is None
