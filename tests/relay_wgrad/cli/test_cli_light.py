"""What a command takes is said at once: without TVM and PyTorch, which take seconds to load."""

from __future__ import annotations

import subprocess
import sys

import pytest

from byoc_cudnn.backends import GIVEN
from relay_wgrad.cli import arguments
from relay_wgrad.cli.main import COMMANDS
from relay_wgrad.training import optim, options

_RUN = """
import sys
from relay_wgrad.cli.main import main
try:
    code = main(sys.argv[1:])
except SystemExit as error:
    code = error.code
loaded = [name for name in ("tvm", "tvm_ffi", "torch", "rich", "lark") if name in sys.modules]
print(code, loaded, file=sys.stderr)
"""


def ended(*args: str) -> tuple[str, str]:
    """(the last line, what was said before)"""
    done = subprocess.run([sys.executable, "-c", _RUN, *args], capture_output=True, text=True)
    *said, last = done.stderr.splitlines()
    return last, "\n".join([done.stdout, *said])


def test_env_loads_no_pytorch() -> None:
    last, said = ended("env")
    loaded = last.removeprefix("0 ")
    assert "tvm_ffi" in loaded
    assert "torch" not in loaded
    assert "hooks of TVM" in said


@pytest.mark.parametrize("args", [["--help"], ["--version"], *([c, "--help"] for c in COMMANDS)])
def test_help(args: list[str]) -> None:
    last, said = ended(*args)
    assert last == "0 []"
    assert args == ["--version"] or "options:" in said


@pytest.mark.parametrize(
    ("args", "text"),
    [
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
    ],
)
def test_wrong_options(args: list[str], text: str) -> None:
    last, said = ended(*args)
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
