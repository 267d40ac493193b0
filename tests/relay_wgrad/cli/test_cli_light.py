"""What a command takes is said at once: without TVM and PyTorch, which take seconds to load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache

import pytest

from byoc_cudnn.backends import GIVEN
from relay_wgrad.cli import arguments
from relay_wgrad.cli.main import COMMANDS
from relay_wgrad.training import optim, options

# One process for all command lines: none of them loads what the next one must not find.
_RUN = """
import contextlib, io, json, sys
from relay_wgrad.cli.main import main
found = []
for args in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main(args)
        except SystemExit as error:
            code = error.code
    loaded = [name for name in ("tvm", "tvm_ffi", "torch", "rich", "lark") if name in sys.modules]
    found.append((f"{code} {loaded}", said.getvalue()))
json.dump(found, sys.stdout)
"""
HELP = [["--help"], ["--version"], *([c, "--help"] for c in COMMANDS)]
WRONG = [
    (["trian"], "invalid choice: 'trian'"),
    (["train", "--bogus"], "unrecognized arguments: --bogus (see `python -m relay_wgrad train"),
    (["train", "--batch", "0"], "--batch: must be an integer of at least 1, got '0'"),
    (["train", "--optimizer", "adagrad"], "invalid choice: 'adagrad'"),
    (["inspect"], "the following arguments are required: MODEL"),
    (["bench", "--problem", "wgrad n=1"], "--problem"),
    (["train", "--loss", "hinge"], "--loss: 'hinge': expected cross_entropy, bce_with_logits"),
    (["train", "--loss", "huber(delta=0)"], "--loss: huber: delta must be a positive number"),
    (["inspect", "squeezenet", "--backends", "cudn"], "must be some of cuda_direct, cudnn"),
    (["tune", "squeezenet", "--backends", "tvm,x"], "cutlass, tvm, got 'tvm,x'"),
]


def ended(*lines: list[str]) -> list[tuple[str, str]]:
    """Of each command line (its code and what is loaded after it, what it said)."""
    done = subprocess.run(
        [sys.executable, "-c", _RUN, json.dumps(lines)], capture_output=True, text=True, check=True
    )
    return [(last, said) for last, said in json.loads(done.stdout)]


@cache
def light() -> dict[tuple[str, ...], tuple[str, str]]:
    lines = [*HELP, *(args for args, _ in WRONG)]
    return dict(zip(map(tuple, lines), ended(*lines), strict=True))


def test_env_loads_no_pytorch() -> None:
    ((last, said),) = ended(["env"])
    loaded = last.removeprefix("0 ")
    assert "tvm_ffi" in loaded
    assert "torch" not in loaded
    assert "hooks of TVM" in said


@pytest.mark.parametrize("args", HELP)
def test_help(args: list[str]) -> None:
    last, said = light()[tuple(args)]
    assert last == "0 []"
    assert args == ["--version"] or "options:" in said


@pytest.mark.parametrize(("args", "text"), WRONG)
def test_wrong_options(args: list[str], text: str) -> None:
    last, said = light()[tuple(args)]
    assert last == "2 []"
    assert text in said


def test_the_package_loads_nothing() -> None:
    script = (
        "import sys, relay_wgrad\n"
        "assert relay_wgrad.__version__ and 'register' in dir(relay_wgrad)\n"
        "assert not {'tvm', 'numpy', 'torch'} & set(sys.modules)\n"
        "from relay_wgrad import *\n"
        "assert 'tvm' in sys.modules and register and 'torch' not in globals()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_optimizers_by_name() -> None:
    assert tuple(optim.OPTIMIZERS) == options.OPTIMIZERS


def test_backends_by_name() -> None:
    names = [backend.name for backend in GIVEN]
    assert arguments.backends(",".join(names)) == tuple(names)


def test_a_locale_without_our_signs() -> None:
    """The help has "…"; what can't be written is a question mark."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "relay_wgrad", "train", "--help"]
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert b"{none,auto,A,B,?}" in done.stdout


def test_ctrl_c_while_modules_load() -> None:
    """Nothing of ours but `__main__` is there to say so."""
    code = (
        "import runpy, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *others):\n"
        "        if name == 'relay_wgrad.cli.arguments':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "runpy.run_module('relay_wgrad', run_name='__main__', alter_sys=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, b"interrupted\n")
