"""Files that are written whole, or not at all: links, modes, kills, full disks, checks before."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from relay_wgrad import output, relay
from relay_wgrad.cli.main import main
from relay_wgrad.training import state
from tests.support.training_models import residual_net


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def by_text(path: Path) -> None:
    output.write(path, "new")


def by_bytes(path: Path) -> None:
    with output.replacing(path) as made:
        made.write_bytes(b"new")


def by_another_file(path: Path) -> None:
    """As safetensors writes: a private file beside it, which takes its place."""
    with output.replacing(path) as made:
        other = made.with_suffix(".other")
        other.touch(0o600)
        other.write_text("new")
        other.replace(made)


WRITERS = pytest.mark.parametrize("write", [by_text, by_bytes, by_another_file])


@WRITERS
def test_links_stay_and_their_targets_are_replaced(write: Any, tmp_path: Path) -> None:
    real, link, chain = tmp_path / "real", tmp_path / "link", tmp_path / "chain"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to("real")
    chain.symlink_to("link")
    write(chain)
    assert (link.is_symlink(), chain.is_symlink(), real.read_text()) == (True, True, "new")
    assert real.stat().st_mode & 0o7777 == 0o640
    dangling = tmp_path / "dangling"
    dangling.symlink_to("made")
    write(dangling)
    assert dangling.is_symlink()
    assert (tmp_path / "made").read_text() == "new"
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    with pytest.raises(OSError, match="loop"):
        write(loop)
    assert names(tmp_path) == ["chain", "dangling", "link", "loop", "made", "real"]


@WRITERS
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_has_the_mode_of_the_mask(
    write: Any, mask: int, mode: int, tmp_path: Path
) -> None:
    with umask(mask):
        write(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o7777 == mode


def test_every_file_for_the_user_has_the_mode_of_the_mask(tmp_path: Path) -> None:
    """What a training writes, a step as an ONNX model, figures, sources, a library."""
    model, folder = tmp_path / "m.onnx", tmp_path / "made"
    folder.mkdir()
    onnx.save(residual_net(blocks=0, size=6), model)
    logs = {"--save": "s.safetensors", "--export": "t.onnx", "--json": "t.json", "--log": "l.csv"}
    training = [word for option, name in logs.items() for word in (option, str(folder / name))]
    x = relay.var("x", shape=(1, 3))
    library = relay.build(relay.IRModule.from_expr(relay.Function([x], relay.exp(x))), "llvm")
    mask = 0o027
    with umask(mask):
        data = np.random.default_rng(0).standard_normal((8, 3, 6, 6), "float32")
        np.savez(tmp_path / "d.npz", x=data, labels=np.zeros(8, "int64"))
        for words in (
            ["train", "--batch", "4", "--steps", "2", "--data", str(tmp_path / "d.npz"), *training,
             "--no-check"],
            ["export", "-o", str(folder / "step.onnx")],
            ["partition", "-o", str(folder / "p.txt")],
            ["inspect", "--report", str(folder / "i.html")],
        ):  # fmt: skip
            assert main([words[0], str(model), *words[1:], "--quiet"]) == 0
        problem = "wgrad n=2 c=4 h=5 w=5 k=4 r=3 s=3"
        assert main(["emit", "--problem", problem, "-o", str(folder / "e.cc"), "--quiet"]) == 0
        library.export_library(folder / "lib.so")
    modes = {p.name: p.stat().st_mode & 0o7777 for p in folder.rglob("*") if p.is_file()}
    assert {*modes} == {
        *logs.values(),
        "step.onnx",
        "p.txt",
        "i.html",
        "e.cc",
        "lib.so",
        "lib.so.json",
    }
    runnable = {"lib.so"}
    for name, mode in modes.items():
        assert mode == (0o777 if name in runnable else 0o666) & ~mask, name


@WRITERS
def test_devices_and_long_names(write: Any, tmp_path: Path) -> None:
    write(Path("/dev/null"))
    long = tmp_path / ("x" * 250 + ".json")
    write(long)
    assert long.read_text() == "new"
    with pytest.raises(OSError, match="File name too long"):
        write(tmp_path / ("x" * 300))
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: '.*full'"):
        write(full)


# The module alone: its package would import TVM, which takes seconds.
ALONE = f"""
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("output", {output.__file__!r})
output = importlib.util.module_from_spec(spec)
spec.loader.exec_module(output)
"""


def test_a_pipe_by_its_name_in_dev() -> None:
    code = ALONE + "output.check('/dev/stdout'); output.write('/dev/stdout', 'text')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("text", "")


KILLED = """
with output.working_folder(os.path.dirname(sys.argv[1])), output.replacing(sys.argv[1]) as made:
    made.write_text("half")
    print("there", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_run_leaves_goes_with_the_next(tmp_path: Path) -> None:
    """The old file is whole; what a living run is about to write stays."""
    path = tmp_path / "state.json"
    path.write_text("old")
    (tmp_path / ".relay-wgrad-made-mine").write_text("not ours by its name")
    runs = [
        subprocess.Popen([sys.executable, "-c", ALONE + KILLED, str(path)], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE)
        for _ in range(2)
    ]  # fmt: skip
    try:
        for run in runs:
            assert run.stdout is not None
            assert run.stdout.readline() == b"there\n"
        assert len(names(tmp_path)) == 6
        runs[0].send_signal(signal.SIGKILL)
        runs[0].wait()
        assert path.read_text() == "old"
        assert len(names(tmp_path)) == 6
        output.check(path)
        assert len(names(tmp_path)) == 4
        runs[1].communicate(timeout=20)  # its input ends, and it goes on
        assert path.read_text() == "half"
        assert names(tmp_path) == [".relay-wgrad-made-mine", "state.json"]
    finally:
        for run in runs:
            run.kill()
            run.communicate()


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """A limit on a file's size stands for it: writing ends in the middle."""
    pytest.importorskip("safetensors")
    path = tmp_path / "figures.json"
    path.write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        with pytest.raises(OSError, match=rf"File too large: '{path}'"):
            output.write(path, "x" * 10000)
        with (
            pytest.raises(OSError, match=rf"File too large: '{path}'"),
            output.replacing(path) as f,
        ):
            onnx.save(residual_net(), f)
        with pytest.raises(OSError, match=r"cannot be written: .*File too large"):
            state.write(path, {"x": np.zeros(4000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["figures.json"]


def test_a_disk_that_is_full_is_noticed_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.write", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/x'"):
        output.check(tmp_path / "x")
    assert names(tmp_path) == []


def test_checks_of_all_outputs(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("a")
    b.symlink_to("a")
    output.check_all({"--save": a, "--json": tmp_path / "c", "--export": None}, {"MODEL": "x"})
    output.check_all({"--save": a}, {"--resume": b}, same={("--save", "--resume")})
    output.check_all({"--json": tmp_path / "c"}, {"MODEL": tmp_path / "c"})  # a name, no file
    output.check_all({"--save": "/dev/null", "--json": "/dev/null"})
    for outputs, inputs in (({"--save": a, "--json": b}, {}), ({"--json": b}, {"--save": a})):
        with pytest.raises(ValueError, match=rf"^--json {b} would overwrite --save {a}$"):
            output.check_all(outputs, inputs)
    with pytest.raises(IsADirectoryError):
        output.check_all({"--save": a, "--json": tmp_path})
    assert names(tmp_path) == ["a", "b"]
    assert a.read_text() == "a"


TRAIN = ("train", "{net}", "--no-check", "--quiet")


@pytest.mark.parametrize(("args", "message"), [
    ((*TRAIN, "--export", "{folder}/x.onnx"), "IsADirectoryError: [Errno 21] Is a directory:"),
    ((*TRAIN, "--save", "{folder}/x.safetensors"), "IsADirectoryError: [Errno 21] Is a directory:"),
    ((*TRAIN, "--save", "/proc/x.safetensors"), "[Errno 2] No such file or directory: '/proc/x."),
    ((*TRAIN, "--export", "/proc/x.onnx"), "[Errno 2] No such file or directory: '/proc/x.onnx'"),
    ((*TRAIN, "--export", "{folder}/no/x.onnx"), "FileNotFoundError: [Errno 2] no such folder"),
    ((*TRAIN, "--export", "{net}"), "ValueError: --export {net} would overwrite MODEL {net}"),
    ((*TRAIN, "--export", "{folder}/b.onnx", "--json", "{folder}/b.onnx"),
     "ValueError: --json {folder}/b.onnx would overwrite --export {folder}/b.onnx"),
    (("bench", "{net}", "--json", "/proc/x"), "[Errno 2] No such file or directory: '/proc/x'"),
    (("inspect", "{net}", "--report", "/proc/x.md"), "[Errno 2] No such file or directory: '/proc"),
    (("partition", "{net}", "-o", "/proc/x"), "[Errno 2] No such file or directory: '/proc/x'"),
    (("partition", "{net}", "-o", "{net}"), "--output {net} would overwrite MODEL {net}"),
    (("tune", "{net}", "--record", "{folder}"), "IsADirectoryError"),
    (("tune", "{net}", "--record", "/proc/x"), "[Errno 2] No such file or directory: '/proc/x'"),
    (("emit", "--problem", "fprop n=1 c=1 h=4 w=4 k=1 r=1 s=1", "-o", "/proc/x.cc"),
     "emit: [Errno 2] No such file or directory: '/proc/x.cc'"),
])  # fmt: skip
def test_outputs_are_checked_before_the_work(
    args: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def never(*args: object, **options: object) -> None:
        raise AssertionError("work began")

    monkeypatch.setattr("relay_wgrad.cli.arguments.graph_of", never)
    for command in ("bench", "inspect"):
        monkeypatch.setattr(f"relay_wgrad.cli.{command}.ceilings", never)
    net, folder = tmp_path / "net.onnx", tmp_path / "folder"
    onnx.save(residual_net(blocks=0), net)
    for name in ("x.onnx", "x.safetensors"):
        (folder / name).mkdir(parents=True)
    given = {"net": net, "folder": folder}
    assert main([arg.format(**given) for arg in args]) == (2 if args[0] == "emit" else 1)
    last = capsys.readouterr().err.splitlines()
    assert len(last) == 1
    assert message.format(**given) in last[0]
    assert names(folder) == ["x.onnx", "x.safetensors"]


def test_working_folders_of_many_threads(tmp_path: Path) -> None:
    """None takes another's for a leftover: it looks for those before it makes its own."""

    def work(_: int) -> bool:
        with output.working_folder(tmp_path) as folder:
            (folder / "file").write_text("kept")
            return (folder / "file").read_text() == "kept"

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(500)))
    assert list(tmp_path.iterdir()) == []
