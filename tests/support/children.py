"""Programs in processes of their own that begin with TVM and PyTorch imported.

Importing both takes three seconds of a processor, more than most commands that the tests run.  A
server (the standard library's) has imported them and forks a process for each program: arguments,
environment, folder, standard streams and exit code are a new process's.  What a test must see from
the very start, such as what importing itself does, or signals, runs as `subprocess` does; so does
all under coverage, which follows no fork of a process that it has not begun.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_COVERAGE = "COVERAGE_PROCESS_CONFIG"  # in the environment, where processes are to be measured
_SERVER = multiprocessing.get_context("forkserver")
_PRELOADED = ["tvm", "torch", "relay_wgrad", "legalize", "byoc_cudnn", "onnx"]


def run_module(name: str, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """As `python -W error -m name args…`; options are those of `_run`."""
    return _run(("module", name), args, **options)


def run_script(path: Path, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """As `python -W error path args…`."""
    return _run(("path", str(path)), args, **options)


def run_code(code: str, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """As a script of that text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "program.py")
        path.write_text(code, encoding="utf-8")
        return run_script(path, *args, **options)


def _run(
    what: tuple[str, str], args: tuple[str, ...], *, cwd: Path = ROOT,
    env: Mapping[str, str] | None = None, timeout: float = 300, forked: bool = True,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Raises subprocess.TimeoutExpired, with the child killed, after `timeout` seconds.

    forked : of the server that has imported TVM, in which CUDA cannot begin.
    """
    if _COVERAGE in os.environ or not forked:
        kind, name = what
        command = [sys.executable, "-W", "error", *(["-m"] if kind == "module" else []), name]
        return subprocess.run(
            [*command, *args], cwd=cwd, timeout=timeout, capture_output=True, text=True,
            env={**os.environ, **finding(cwd), **(env or {})},
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        given = {**os.environ, **(env or {})}
        _SERVER.set_forkserver_preload(_PRELOADED)
        child = _SERVER.Process(target=_child, args=(what, args, str(cwd), given, out, err))
        child.start()
        child.join(timeout)
        if child.exitcode is None:
            child.kill()
            child.join()
            raise subprocess.TimeoutExpired([*what, *args], timeout)
        with contextlib.suppress(OSError, ValueError):  # it ended in another way
            _forked[0] += float(Path(folder, "seconds").read_text())
        return subprocess.CompletedProcess(
            [*what, *args], child.exitcode, out.read_text(), err.read_text()
        )


_forked = [0.0]  # seconds of a processor that children of the server have taken


def processor_seconds() -> float:
    """Of this process and its children, as far as they have ended; a killed one's are not known."""
    return sum(os.times()[:4]) + _forked[0]


def finding(cwd: Path) -> dict[str, str]:
    """Where a program finds modules: the folder that it runs in comes first, as it does for a fork.

    Its own folder would come before all: `tests/support` has a `torch`.
    """
    path = os.pathsep.join(filter(None, [str(cwd), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def _child(
    what: tuple[str, str], args: tuple[str, ...], cwd: str, env: dict[str, str],
    out: Path, err: Path,
) -> None:  # fmt: skip
    for descriptor, path, flags in ((0, Path(os.devnull), os.O_RDONLY),
                                    (1, out, os.O_WRONLY | os.O_CREAT),
                                    (2, err, os.O_WRONLY | os.O_CREAT)):  # fmt: skip
        os.dup2(os.open(path, flags), descriptor)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    kind, name = what
    sys.argv = [name, *args]
    sys.path.insert(0, cwd)
    warnings.resetwarnings()
    warnings.simplefilter("error")
    code: Any = 0
    try:
        if kind == "module":
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    except SystemExit as left:
        code = left.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    out.with_name("seconds").write_text(str(sum(os.times()[:4])))
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code or 0)
