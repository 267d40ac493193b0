"""What commands leave behind and say where something goes wrong: interrupts, files, streams."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

from relay_wgrad import output
from relay_wgrad.cli.main import main
from relay_wgrad.cores import configure_threads
from relay_wgrad.training import Trainer, state
from tests.support.children import finding
from tests.support.training_models import residual_net

ROOT = Path(__file__).parents[3]
LINE = "wgrad n=1 c=8 h=8 w=8 k=8 r=3 s=3"


def started(*args: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "relay_wgrad", *args],
        text=True, stderr=subprocess.PIPE,
        env={**os.environ, **finding(ROOT)}, **options,
    )  # fmt: skip


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT as in a terminal: a shell's background jobs, and what they start, ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.longer("starts processes of TVM")
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_while_training(tmp_path: Path) -> None:
    """In whatever TVM does then: the exit code is 130, and a file that was there stays."""
    figures = tmp_path / "a.json"
    figures.write_text("before")
    onnx.save(residual_net(blocks=1), tmp_path / "net.onnx")
    saved = tmp_path / "made"
    code = (
        "import pathlib, sys\n"
        "from relay_wgrad.training import trainer as training\n"
        "send = training.Trainer._send\n"
        "def noted(self, batch):\n"
        f"    pathlib.Path({str(saved)!r}).touch()\n"
        "    return send(self, batch)\n"
        "training.Trainer._send = noted\n"
        "from relay_wgrad.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    args = ["train", str(tmp_path / "net.onnx"), "--steps", "100000000", "--no-check",
            "--json", str(figures)]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", code, *args], text=True, stderr=subprocess.PIPE,
        stdout=subprocess.PIPE, env={**os.environ, **finding(ROOT)},
    )  # fmt: skip
    try:
        while not saved.exists() and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert error.splitlines()[-1] == "interrupted"
    assert "Traceback" not in error
    assert figures.read_text() == "before"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "made", "net.onnx"]


@pytest.mark.longer("starts processes of TVM")
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_while_training_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The step that it comes in is whole; a second one ends at once, and what was saved stays."""
    train, count = Trainer.train, 1

    def interrupted(self: Trainer, *args: Any) -> Iterator[float]:
        for loss in train(self, *args):
            if self.steps == 3:
                for _ in range(count):
                    signal.raise_signal(signal.SIGINT)
            yield loss

    monkeypatch.setattr(Trainer, "train", interrupted)
    onnx.save(residual_net(blocks=1), tmp_path / "net.onnx")
    saved = tmp_path / "state.safetensors"
    args = [
        "train",
        str(tmp_path / "net.onnx"),
        "--steps",
        "50",
        "--no-check",
        "--save",
        str(saved),
    ]
    assert main(args) == 130
    assert state.header(saved)["steps"] == "3"
    content = saved.read_bytes()
    assert f"saved to {saved}" in capsys.readouterr().err
    count = 2
    assert main([*args, "--lr", "0.1"]) == 130
    assert saved.read_bytes() == content


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_that_comes_back_as_another_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(args: object) -> int:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("") from None
        return 0

    monkeypatch.setattr("relay_wgrad.cli.env.run", run)
    before = signal.getsignal(signal.SIGINT)
    assert main(["env"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_mistakes_of_the_package_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(args: object) -> int:
        raise AttributeError("mine")

    monkeypatch.setattr("relay_wgrad.cli.env.run", run)
    with pytest.raises(AttributeError, match="mine"):
        main(["env"])


def test_a_file_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("before")
    real.chmod(0o604)
    link.symlink_to(real)
    output.write(link, "after")
    assert link.is_symlink()
    assert real.read_text() == "after"
    assert real.stat().st_mode & 0o777 == 0o604

    def stopped(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        output.write(real, "never")
    assert real.read_text() == "after"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    output.write(pipe, "text")
    assert os.read(reader, 100) == b"text"
    os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.parametrize(("where", "error"), [
    ("", IsADirectoryError), ("no/such/x", FileNotFoundError), ("file/x", FileNotFoundError),
])  # fmt: skip
def test_where_nothing_can_be_written(where: str, error: type[OSError], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for function in (output.check, lambda path: output.write(path, "text")):
        with pytest.raises(error, match=str(tmp_path)):
            function(tmp_path / where)


@pytest.mark.longer("starts processes of TVM")
@pytest.mark.parametrize("shell", ["emit --problem '{}' >&-", "env --json >&-"])
def test_a_closed_output(shell: str) -> None:
    command = f"{sys.executable} -m relay_wgrad {shell.format(LINE)}"
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, check=False,
        env={**os.environ, **finding(ROOT)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.longer("starts processes of TVM")
def test_a_reader_of_a_program_that_leaves() -> None:
    read, write = os.pipe()
    os.close(read)
    process = started("emit", "--problem", LINE, stdout=write)
    os.close(write)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (1, "")


@pytest.mark.parametrize("given", ["99999999999", "0", "-1", "two", ""])
def test_a_number_of_threads_that_is_none(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", given)
    with pytest.raises(ValueError, match=f"TVM_NUM_THREADS must be from 1 to 4096, got '{given}'"):
        configure_threads()


@pytest.mark.parametrize("content", [b"", b"garbage"])
def test_a_file_that_is_no_exported_program(
    content: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "g.pt2"
    path.write_bytes(content)
    assert main(["partition", str(path), "--quiet"]) == 1
    error = capfd.readouterr().err
    assert error.startswith(f"ValueError: {str(path)!r} is not an exported program")
    assert error.count("\n") == 1


@pytest.mark.parametrize(("args", "message"), [
    (("bench", "resnet50", "--problem", LINE), "bench: give a model, or problems"),
    (("bench", "--problem", LINE.replace("n=1", "n=" + "9" * 18)),
     f"n must be less than 2**31, got n={'9' * 18}"),
    (("emit", "--problem", LINE + " layout=a/b/c"), "must have the letters NCHW, got 'a'"),
    (("emit", "--problem", LINE + " layout=NCHW/OIHH/NCHW"), "must have the letters OIHW"),
])  # fmt: skip
def test_arguments_that_are_refused(
    args: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(args)
    except SystemExit as left:
        code = int(left.code or 0)
    assert code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
