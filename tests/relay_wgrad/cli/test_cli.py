"""The command line: in this process where that is the same, else in one of its own, as users do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from byoc_cudnn import BACKENDS
from relay_wgrad.cli.main import COMMANDS
from relay_wgrad.frontend import BUNDLED
from tests.support.children import finding, run_module
from tests.support.training_models import residual_net

ROOT = Path(__file__).parents[3]


def run(*args: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return run_module("relay_wgrad", *args, cwd=cwd, env={"COLUMNS": "200"})


def test_help_and_version(call: Any) -> None:
    words = [sys.executable, "-W", "error", "-m", "relay_wgrad", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(command in done.stdout for command in COMMANDS)
    _, text, _ = call("train", "--help")
    for option in ("--batch", "--image-size", "--steps", "--lr", "--optimizer", "--layout",
                   "--dtype", "--loss-scale", "--bn", "--checkpoint", "--dropout", "--save",
                   "--resume", "--json", *BUNDLED):  # fmt: skip
        assert option in text
    assert re.fullmatch(r"relay-wgrad \d+\.\d+\.\d+\n", call("--version")[1])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, call: Any) -> None:
    code, text, _ = call(command, "--help")
    assert code == 0
    for part in ("--quiet", f"python -m relay_wgrad {command}"):
        assert part in text
    assert "default: None" not in text
    assert "default: False" not in text


@pytest.mark.parametrize("command", ["train", "inspect", "partition", "export", "tune", "bench"])
def test_models_are_described_alike(command: str, call: Any) -> None:
    text = " ".join(call(command, "--help")[1].split())
    for option in ("--batch", "--image-size", "--loss", "--bn", "--dtype", "--layout",
                   "--checkpoint", "--dropout", "--seed"):  # fmt: skip
        assert f" {option} " in text
    assert f"(default: {32 if command == 'tune' else 4}; of a .pt2 file its own)" in text


def test_env() -> None:
    done = run("env")
    assert done.returncode == 0, done.stderr
    assert "apache-tvm" in done.stdout
    assert "all found" in done.stdout


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ((), 2, "required: COMMAND"),
        (("trian",), 2, "invalid choice"),
        (("train", "--batch", "0"), 2, "must be an integer of at least 1, got '0'"),
        (("train", "--steps", "x"), 2, "must be an integer of at least 1, got 'x'"),
        (("train", "--lr", "-1"), 2, "must be a positive number, got '-1'"),
        (("train", "--dtype", "int8"), 2, "must be one of f32, f16, bf16, f64, got 'int8'"),
        (("train", "--loss-scale", "big"), 2, "must be a positive number, got 'big'"),
        (("train", "--layout", "HWNC"), 2, "invalid choice: 'HWNC'"),
        (
            ("train", "squeezenet", "--checkpoint", "nowhere"),
            1,
            "checkpoint: squeezenet has no computed tensor 'nowhere'",
        ),
        (("train", "squeezenet", "--json", "no/such/folder/x.json"), 1, "no/such/folder/x.json"),
        (("train", "resnet51"), 1, "resnet50"),
        (("train", "squeezenet", "--device", "gpu"), 1, "device must be cpu, cuda, cuda:N or auto"),
        (("train", "squeezenet", "--device", "cuda:77"), 1, "'cuda:77' cannot be trained on: "),
        (("train", "no/such/file.onnx"), 1, "no/such/file.onnx"),
        (
            ("train", "vgg19", "--image-size", "100"),
            1,
            "it fixes the image size at 224x224 (for the fully connected Gemm node 'n38')",
        ),
        (("train", "squeezenet", "--batch", "1" + "0" * 20), 1, "the largest batch is 14266"),
        (("train", "--seed", "-1"), 2, "must be an integer of at least 0, got '-1'"),
        (("train", "--resume", "nowhere"), 1, "no state file 'nowhere'"),
        (("train", "--save", "no/such/folder/x.safetensors"), 1, "no such folder"),
        (("train", "--export", "no/such/folder/x.onnx"), 1, "no such folder"),
        (("train", "--save", "x.txt"), 2, "must end in .safetensors, got 'x.txt'"),
        (("train", "--export", "x.pt"), 2, "must end in .onnx, got 'x.pt'"),
        (("train", "net.pt2", "--export", "x.onnx"), 2, "--export writes ONNX files"),
        (("train", "net.pt2", "--weights", "seeded"), 2, "--weights seeded is for ONNX files"),
        (("train", "--data", "x.csv"), 2, "must end in .npz, got 'x.csv'"),
        (("train", "--data", "nowhere"), 2, "no folder of images, and no .npz file, 'nowhere'"),
        (("train", "squeezenet", "--data", "nowhere.npz"), 1, "nowhere.npz"),
        (("train", "squeezenet", "--loss", "own"), 1, "--loss own: expected cross_entropy, bce_"),
        (("train", "--loss", "l2"), 2, "'l2': expected cross_entropy, bce_with_logits, mse, l1, "),
        (("train", "--loss", "huber(delta=0)"), 2, "huber: delta must be a positive number, got 0"),
        (("inspect", "squeezenet", "--report", "x.pdf"), 2, ".html or .htm or .json or .md"),
        (("tune",), 2, "give a model, or problems with --problem"),
        (("tune", "resnet51"), 1, "resnet50"),
        (("partition",), 2, "required: MODEL"),
        (
            ("partition", "resnet50", "--backends", "cudn"),
            2,
            f"some of {', '.join(sorted(BACKENDS))}, got 'cudn'",
        ),
        (("partition", "resnet50", "--format", "html"), 2, "invalid choice: 'html'"),
        (("partition", "resnet51"), 1, "resnet50"),
        (("export", "squeezenet"), 2, "required: -o/--output"),
        (("export", "squeezenet", "-o", "x.pb"), 2, "must end in .onnx, got 'x.pb'"),
        (("export", "squeezenet", "-o", "x.onnx", "--dtype", "f16"), 2, "must be f32 or f64"),
        (("bench", "--problem", "wgrad n=1"), 2, "size 'c' is missing"),
        (("bench", "--kinds", "wgrad,x"), 2, "some of fprop, dgrad, wgrad, got 'wgrad,x'"),
    ],
)
def test_errors(args: tuple[str, ...], code: int, message: str, call: Any) -> None:
    got, text, error = call(*args)
    assert got == code
    (line,) = error.splitlines()
    assert message in line
    assert "--help" not in line.partition(message)[0]
    assert text == ""


@pytest.mark.longer
def test_users_own_model(tmp_path: Path) -> None:
    """A file of the user's: mixed precision, checkpoints, masks; then one that is refused.

    Channels are last unless the user says otherwise.
    """
    path = tmp_path / "mine.onnx"
    model = residual_net(blocks=1, dropout=0.25)
    onnx.save(model, path)
    figures = tmp_path / "figures.json"
    done = run("train", str(path), "--batch", "2", "--steps", "8", "--dtype", "bf16",
               "--checkpoint", "pool", "--dropout", "mask", "--no-check",
               "--optimizer", "adam", "--lr", "0.003",
               "--json", str(figures))  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stderr  # no progress where nobody watches
    assert "layout changes in the step" in done.stdout
    data = json.loads(figures.read_text())
    assert data["losses"][-1] < data["losses"][0]
    assert data["planned_bytes"] > 0
    assert all("layout=NHWC" in c["problem"] for c in data["convolutions"])
    assert all("bf16" in c["problem"] for c in data["convolutions"])

    model.graph.node[2].op_type = "NonZero"
    model.graph.node[2].name = "odd one"
    onnx.save(model, path)
    done = run("train", str(path), "--quiet")
    assert done.returncode == 1
    assert "ONNX op NonZero (NonZero node 'odd one') is not supported" in done.stderr
    assert "Traceback" not in done.stderr


def test_error_of_a_process() -> None:
    done = run("train", "no/such/file.onnx")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "FileNotFoundError: no ONNX file 'no/such/file.onnx'\n"


def test_interrupted(monkeypatch: pytest.MonkeyPatch, call: Any) -> None:
    def stopped(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("relay_wgrad.cli.env.run", stopped)
    assert call("env") == (130, "", "interrupted\n")


@pytest.mark.longer("three trainings; resuming is the trainer's")
def test_interrupted_and_resumed(tmp_path: Path, call: Any) -> None:
    """Four steps at once, and two and two: the same losses."""
    pytest.importorskip("safetensors")
    path, state = tmp_path / "mine.onnx", tmp_path / "state.safetensors"
    onnx.save(residual_net(blocks=0, size=6), path)

    def losses(*args: str) -> list[float]:
        figures = tmp_path / "figures.json"
        done = call("train", str(path), "--batch", "2", "--optimizer", "adam", "--no-check",
                    "--json", str(figures), *args)  # fmt: skip
        assert done[0] == 0, done
        return json.loads(figures.read_text())["losses"]

    whole = losses("--steps", "4", "--lr", "0.01")
    first = losses("--steps", "2", "--lr", "0.01", "--save", str(state))
    second = losses("--steps", "2", "--resume", str(state))  # at the rate that was saved
    assert first == whole[:3]
    assert second == whole[2:]


def test_partition(call: Any, tmp_path: Path) -> None:
    command = ("partition", "squeezenet", "--image-size", "64")
    code, text, _ = call(*command, "--layout", "NHWC", "--dtype", "f16", "--strict")
    assert code == 0
    assert "77 of 77 convolutions offloaded" in text
    assert "NHWC/OHWI" in text
    assert "\x1b" not in text

    file = tmp_path / "report.json"
    code, text, error = call(
        *command, "--dtype", "f64", "--format", "json", "-o", str(file), "--strict"
    )
    assert (code, text) == (1, "")
    assert "77 of 77 convolutions stay" in error
    data = json.loads(file.read_text())
    assert (data["total"], data["offloaded"]) == (77, 0)
    assert all("float64" in entry["reason"] for entry in data["entries"])

    code, text, _ = call(
        *command, "--layout", "NHWC", "--format", "markdown", "--backends", "cutlass,cudnn"
    )
    assert code == 0
    assert text.count("\n| ") == 77 + 2
    assert "cutlass." in text


@pytest.mark.longer
def test_bench(tmp_path: Path, call: Any) -> None:
    figures = tmp_path / "figures.json"
    line = "wgrad n=1 c=8 h=8 w=8 k=8 r=3 s=3 pad=1,1,1,1"
    code, text, error = call("bench", "--problem", line, "--rounds", "2", "--json", str(figures))
    assert code == 0
    assert error == "" or error.startswith("warning: times scatter")  # on a busy machine
    assert "1×8×8×8 → 8 3×3 p1" in text
    data = json.loads(figures.read_text())
    (row,) = data["rows"]
    assert row["problem"].startswith("wgrad n=1 c=8")
    assert row["flop"] == 2 * 8 * 8 * 8 * 8 * 9
    assert row["seconds"] > 0
    floor = max(row["flop"] / data["gflops"], (512 + 512 + 576) * 4 / data["copy_gbytes"]) / 1e9
    assert row["floor_seconds"] == pytest.approx(floor)


@pytest.mark.longer("test_bench stays")
def test_bench_of_a_model(tmp_path: Path, call: Any) -> None:
    """Each distinct problem once, with its count; of the kinds that were asked for."""
    figures = tmp_path / "figures.json"
    path = tmp_path / "mine.onnx"
    onnx.save(residual_net(blocks=2), path)
    options = ("--kinds", "dgrad", "--rounds", "1", "--json", str(figures))
    assert call("bench", str(path), *options)[0] == 0
    (row,) = json.loads(figures.read_text())["rows"]
    assert row["count"] == 4
    assert row["problem"].startswith("dgrad n=4 c=8 h=6 w=6 k=8 r=3 s=3")


@pytest.mark.longer("starts processes of TVM")
def test_reader_that_leaves() -> None:
    env = {**os.environ, **finding(ROOT)}
    done = subprocess.run(
        f"{sys.executable} -m relay_wgrad partition squeezenet --format json | head -c 1",
        shell=True, capture_output=True, text=True, check=False, env=env,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("{", "")


@pytest.mark.longer("what make demo does; smaller models are left")
def test_train(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = run("train", "squeezenet", "--batch", "2", "--image-size", "48", "--steps", "2",
               "--bn", "eval", "--lr", "0.001", "--json", str(figures))  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout  # no colours when piped
    assert "largest relative error" in done.stdout
    data = json.loads(figures.read_text())
    assert data["losses"][-1] < data["losses"][0]
    convolutions = data["convolutions"]
    assert len(convolutions) == 26 + 26 + 25
    assert {c["op"] for c in convolutions} == {
        "conv2d", "conv2d_backward_data", "conv2d_backward_weight",
    }  # fmt: skip
    assert all(c["error"] < 1e-4 and c["seconds"] > 0 for c in convolutions)
    assert data["peak_bytes"] > 2**20


def test_inspect(tmp_path: Path, call: Any) -> None:
    path = tmp_path / "mine.onnx"
    onnx.save(residual_net(blocks=1), path)
    page, data = tmp_path / "report.html", tmp_path / "report.json"
    code, text, error = call("inspect", str(path), "--layout", "NHWC", "--report", str(page))
    assert (code, text) == (0, "")
    assert error == f"wrote {page}\n"
    assert page.read_text().startswith("<!doctype html>")
    assert call("inspect", str(path), "--report", str(data), "--quiet") == (0, "", "")
    found = json.loads(data.read_text())
    assert found["totals"]["backends"] == {"cudnn": 8}
    assert found["facts"]["batch"] == 4
    code, text, error = call("inspect", str(path), "--backends", "cutlass")
    assert (code, error) == (0, "")
    assert text.startswith("# mine: a training step")
    assert call("inspect", str(path), "--report", "no/such/folder/x.html")[0] == 1


@pytest.mark.longer("measures; test_inspect stays")
def test_inspect_measures(tmp_path: Path, call: Any) -> None:
    path, report = tmp_path / "mine.onnx", tmp_path / "report.json"
    onnx.save(residual_net(blocks=0, size=6), path)
    assert call("inspect", str(path), "--measure", "--report", str(report), "--quiet")[0] == 0
    found = json.loads(report.read_text())
    assert all(c["seconds"] > 0 and c["floor_seconds"] > 0 for c in found["convolutions"])
    assert found["totals"]["planned_bytes"] > 0
    assert {each["kept"] for each in found["compiled"]} <= {True, False}
    assert all(each["kept"] == (each["seconds"] == 0) for each in found["compiled"])


def test_pytorch_file(tmp_path: Path, call: Any) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "net.pt2"
    net = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 3),
    )
    torch.export.save(torch.export.export(net, (torch.rand(2, 2, 6, 6),)), path)
    code, text, _ = call("partition", str(path), "--strict")
    assert code == 0
    assert "2 of 2 convolutions offloaded" in text
    figures = tmp_path / "figures.json"
    words = ("train", str(path), "--steps", "2", "--lr", "0.01", "--json", str(figures))
    for against, told in (("rows", "at most 64 rows of each kernel's result"),
                          ("composite", "historical composite, TVM's own rules")):  # fmt: skip
        code, text, error = call(*words, "--against", against)
        assert code == 0, error
        assert "(batch 2," in text
        assert f"second opinion ({told}" in text
        rows = json.loads(figures.read_text())["convolutions"]
        assert all(row["error"] < 1e-4 for row in rows)
        assert all(("stock_seconds" in row) is (against == "composite") for row in rows)
    for option, value, wrong, message in (
        ("--batch", "3", 2, "was exported with a batch of 2, not 3"),
        ("--image-size", "7", 2, "was exported for images of 6x6, not 7"),
        ("--dtype", "f64", 1, "expected float16, bfloat16 or the graph's own, float32"),
    ):
        code, _, error = call("partition", str(path), option, value)
        assert (code, message in error) == (wrong, True), error
