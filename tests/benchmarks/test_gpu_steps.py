"""What `benchmarks gpu steps` does that needs no GPU."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import aot_module_simplified, make_boxed_func
from torch import nn

from benchmarks import gpu_models, gpu_sides, runner
from benchmarks.gpu_sides import Row
from benchmarks.gpu_split import Kernel, owners, split, times
from benchmarks.gpu_steps import (
    BENCHMARK,
    Processes,
    Told,
    disagreements,
    groups,
    is_whole,
    measured,
    ratio,
    row_of,
)
from benchmarks.gpu_turns import ENDED, Turns
from benchmarks.runner import Case, Rows
from relay_wgrad.frontend import from_onnx
from relay_wgrad.problem import ConvProblem
from tests.support.torch.model import prepared

CASES = [Case(row._asdict(), row) for row in (Row(m, 8, None, "f16") for m in ("a", "b", "c"))]
GROUPS = [["ours"], ["eager"]]


class Fake:
    """A machine on which every process takes ten seconds, of which the last may be cut off."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, list[tuple[str, str]]()
        self.failing = ""

    def measure(
        self, sides: Sequence[str], row: Row, number: int, seconds: float, told: Told
    ) -> str | None:
        self.calls += [(row.model, side) for side in sides]
        self.now += min(10, seconds)
        if seconds < 10:
            return ENDED
        if row.model == self.failing:
            return "no"
        for side in sides:
            told(side, {"ms": 3.0 if side == "ours" else 4.0, "loss": 1.0, "norm": 2.0})
        return None

    def run(self, path: Path, *words: str, budget: float = math.inf) -> list[str]:
        """The models that are missing in the file, and those that still are after the run."""
        given = ["--against", "eager", "--json", str(path), *words]
        args = runner.parsed(BENCHMARK, given, "", "", True)
        about = {"machine": {}, "versions": {}, "options": {}}
        fake = self

        class Limited(Rows):
            @property
            def seconds_left(self) -> float:
                return budget - fake.now

        rows = Limited(args, about, CASES, lambda row: is_whole(row, args))
        measured(rows, [case for case in CASES if rows.misses(case)], GROUPS, self.measure, 1)
        return [case.key["model"] for case in CASES if rows.misses(case)]


def test_a_row_that_time_does_not_allow_is_measured_anew(tmp_path: Path) -> None:
    fake, path = Fake(), tmp_path / "rows.json"
    assert fake.run(path, budget=35) == ["b", "c"]
    assert fake.calls == [(m, s) for m in "ab" for s in ("ours", "eager")]
    stored = json.loads(path.read_text())["rows"]
    assert [(row["model"], list(row["sides"])) for row in stored] == [
        ("a", ["ours", "eager"]), ("b", ["ours"]),
    ]  # fmt: skip
    assert stored[0]["ratio"] == ratio(stored[0]) == 0.75
    assert "ratio" not in stored[1]
    fake.calls.clear()
    assert fake.run(path, "--resume") == []
    # All sides of a row are of one call.
    assert fake.calls == [(m, s) for m in "bc" for s in ("ours", "eager")]


def test_what_a_run_that_was_killed_had_is_in_the_file(tmp_path: Path) -> None:
    class Killed(Fake):
        def measure(self, *call: Any) -> str | None:
            if len(self.calls) == 3:
                raise KeyboardInterrupt
            return super().measure(*call)

    path = tmp_path / "rows.json"
    with pytest.raises(KeyboardInterrupt):
        Killed().run(path)
    stored = json.loads(path.read_text())["rows"]
    assert [list(row["sides"]) for row in stored] == [["ours", "eager"], ["ours"]]


def test_a_side_that_fails_is_measured_again(tmp_path: Path) -> None:
    fake, path = Fake(), tmp_path / "rows.json"
    fake.failing = "b"
    assert fake.run(path) == ["b"]
    (row,) = (row for row in json.loads(path.read_text())["rows"] if row["model"] == "b")
    assert row["reason"] == "ours: no; eager: no"
    fake.calls.clear()
    fake.failing = ""
    assert fake.run(path, "--resume") == []
    assert {model for model, _ in fake.calls} == {"b"}


def test_pytorchs_sides_may_share_a_process() -> None:
    words = ["--against", "step,eager,graphs"]
    for more, want in (([], 4), (["--together"], 3)):
        args = runner.parsed(BENCHMARK, [*words, *more], "", "", True)
        assert len(groups(args)) == want


def test_sides_that_differ_have_no_ratio() -> None:
    sides: dict[str, Any] = {
        "ours": {"ms": 1.0, "loss": 7.0, "norm": 1.0},
        "eager": {"ms": 2.0, "loss": 7.1, "norm": 1.2},
    }
    assert row_of(sides) == {
        "sides": sides, "reason": "the sides differ in norm: ours 1, eager 1.2"
    }  # fmt: skip
    sides["ours"]["norm"] = math.nan
    assert "ratio" not in row_of(sides)
    sides["ours"]["norm"] = 1.17
    assert row_of(sides) == {"sides": sides, "ratio": 0.5}
    assert math.isnan(ratio({"sides": {"ours": {"ms": 1.0}, "eager": {"error": "no"}}}))


@pytest.mark.longer("whole networks; smaller ones stay")
def test_sides_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, of a small network: ours, PyTorch's, and `TrainingStep`."""

    class Tiny(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(
                nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Dropout(), nn.ReLU(),
                nn.Flatten(), nn.Linear(4 * 4 * 4, 5),
            )  # fmt: skip

    monkeypatch.setattr(gpu_models, "UNet", Tiny)
    monkeypatch.setattr(gpu_models, "CLASSES", 5)
    # PyTorch's own tests, which others of this process may have imported, let nobody set them.
    monkeypatch.setattr(gpu_sides, "settings", lambda dtype: None)
    row = Row("unet", 2, 6, "f32")
    sides = dict(gpu_sides.measure(("ours", "eager"), row, "cpu"))
    for one in ("step", "backend"):
        sides |= gpu_sides.measure((one,), row, "cpu")
    assert list(sides) == ["ours", "eager", "step", "backend"]
    assert not disagreements(sides, 1e-4)
    assert all(figures["ms"] > 0 for figures in sides.values())


@pytest.mark.longer("starts processes of TVM")
def test_a_side_that_fails_is_an_error() -> None:
    measure, told = Processes("cpu"), dict[str, Any]()
    error = measure(["eager"], Row("onnx:none", 1, None, "f32"), 0, 60, told.__setitem__)
    assert error is not None
    assert "no bundled network 'none'" in error
    error = measure(["eager"], Row("onnx:resnet50", 1, None, "f32"), 0, 0, told.__setitem__)
    assert error == ENDED
    assert not told


def test_pytorch_compiles_before_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both passes of `torch.compile`; while it has no turn no compiled code runs."""
    events: list[str] = []

    def inductor(graph: Any, inputs: Any) -> Any:
        def compiled(part: Any, values: Any) -> Any:
            events.append("compiled")

            def run(*args: Any) -> Any:
                events.append("run")
                return part(*args)

            return make_boxed_func(run)

        return aot_module_simplified(graph, inputs, fw_compiler=compiled, bw_compiler=compiled)

    class Line(Turns):
        def keep(self) -> None:
            events.append("turn")
            self.held = True

    monkeypatch.setattr(torch, "_TorchCompileInductorWrapper", lambda *settings: inductor)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    monkeypatch.setattr(gpu_models, "UNet", lambda: nn.Sequential(nn.Conv2d(3, 2, 6), nn.Flatten()))
    monkeypatch.setattr(gpu_models, "CLASSES", 2)
    turns, row = Line(), Row("unet", 2, 6, "f32")
    turns.held = False
    turns.short = contextlib.nullcontext  # type: ignore[method-assign]
    # PyTorch's settings are lost where monkeypatch puts them back.
    with torch._functorch.config.patch(force_non_lazy_backward_lowering=False):
        sides = dict(gpu_sides.measure(("eager", "compile", "graphs"), row, "cpu", turns))
    assert events[:5] == ["compiled"] * 4 + ["turn"]
    assert set(events[5:]) == {"run"}
    assert not disagreements(sides, 1e-5)


def test_the_kernels_of_a_step_are_split() -> None:
    p = "fprop n=2 c=8 h=4 w=4 k=8 r=1 s=1 stride=1,1 pad=0,0,0,0 dil=1,1 groups=1"
    problem = ConvProblem.parse(f"{p} layout=NHWC/OHWI/NHWC dtype=f16/f16/f16").repro()
    plan = f"cudnn=9 gpu=one | {problem} epilogue=0 options=1 limit=1 align=16\t1:\t0\t0.25"
    kernels = [
        Kernel("relay_wgrad_cudnn_fprop", 0, "sm90_gemm", 0.75),
        Kernel("relay_wgrad_cudnn_fprop", 0, "sums_of_parts", 0.25),
        Kernel("relay_wgrad_norm_0", 1, "void (anonymous namespace)::moments<__half, 8>(int)", 2.0),
        Kernel("relay_wgrad_cudnn_fprop", 2, "sm90_gemm", 1.0),
        Kernel("add_3", 3, "add_3_kernel", 0.5),
    ]
    found = split(kernels, 0.125, {"relay_wgrad_cudnn_fprop": problem}, [plan, "odd\tline"])
    assert found["kinds"] == {"fprop": 2.0, "norms": 2.0, "rest": 0.5}
    assert (found["ms"], found["idle_ms"], found["kernels"]) == (4.5, 0.125, 5)
    assert found["rest"] == {"add": 0.5}
    assert found["norms"] == {"moments": 2.0}
    (row,) = found["convolutions"]
    assert (row["calls"], row["ms"], row["alone_ms"]) == (2, 2.0, 0.25)
    assert row["tb_s"] == pytest.approx(ConvProblem.parse(problem).bytes / 1e9)


def _event(category: str, name: str, begin: float, length: float, number: int = 0) -> Any:
    return {"cat": category, "name": name, "ts": begin, "dur": length,
            "args": {"correlation": number}}  # fmt: skip


def test_kernels_belong_to_the_calls_that_started_them() -> None:
    """By the host's start of each; of the graph's by their places, or by a name that one has."""
    called = [
        _event("user_annotation", "call of conv", 0, 10), _event("cuda_runtime", "launch", 1, 1, 7),
        _event("cuda_driver", "launch", 5, 1, 8), _event("user_annotation", "call of add", 20, 5),
        _event("cuda_runtime", "launch", 21, 1, 9), _event("cpu_op", "other", 0, 50),
        _event("kernel", "k", 130, 9, 9), _event("kernel", "k", 100, 9, 7),
        _event("gpu_memset", "Memset", 115, 9, 8), _event("kernel", "before", 90, 1, 3),
    ]  # fmt: skip
    known = owners(called)
    assert known == [("before", -1, "before"), ("conv", 0, "k"), ("conv", 0, "Memset"),
                     ("add", 1, "k")]  # fmt: skip
    replayed = [
        _event("kernel", "before", 0, 1000), _event("kernel", "k", 1000, 2000),
        _event("gpu_memset", "Memset", 2000, 2000), _event("kernel", "k", 5000, 500),
    ]  # fmt: skip
    found, idle = times(known, replayed)
    assert [(k.function, k.call, k.ms) for k in found] == [
        ("before", -1, 1.0), ("conv", 0, 2.0), ("conv", 0, 1.0), ("add", 1, 0.5)
    ]  # fmt: skip
    assert idle == 1.0  # and all of it are the step's 5.5 ms
    more = [_event("kernel", "new", 0, 5), *replayed, _event("kernel", "k", 5500, 5),
            _event("kernel", "before", 5505, 5)]  # fmt: skip
    others, _ = times(known, more)
    assert [k.function for k in others] == ["new", "before", "conv", "conv", "add", "k", "before"]


@pytest.mark.longer_cases("densenet121")
@pytest.mark.parametrize("name", ["densenet121", "shufflenet", "inception_v1"])
def test_pytorchs_side_has_every_operator(name: str) -> None:
    """By shapes alone: what compares numbers compiles whole networks."""
    graph = from_onnx(name, batch=2)
    _, logits, gradients, statistics = prepared(
        name, graph, graph.random_batch(0), "train", device="meta"
    )()
    assert logits.shape == (2, 1000)
    assert [g.shape for g in gradients] == [graph.params[n].shape for n in graph.trainable]
    assert len(statistics) == len(graph.updates)
    module = gpu_models.OnnxModule(name, graph).to("meta")
    assert module(torch.empty(graph.inputs[0].shape, device="meta")).shape == (2, 1000)


def test_torch_compile_sees_through_a_bundled_network() -> None:
    """One graph, as of a module of PyTorch's own, or its sides would be slower than they are."""
    module = gpu_models.OnnxModule("squeezenet", from_onnx("squeezenet", batch=1)).to("meta")
    whole = torch.compile(module, backend="eager", fullgraph=True)
    assert whole(torch.empty(1, 3, 224, 224, device="meta")).shape == (1, 1000)


def test_the_unet() -> None:
    with torch.device("meta"):
        network = gpu_models.UNet()
        assert network(torch.empty(2, 3, 64, 64)).shape == (2, 1000)
    with pytest.raises(ValueError, match="no bundled network 'lenet'"):
        gpu_models.build("onnx:lenet", 1, None)


def test_a_library_is_built_before_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    from byoc_cudnn.building.compiled import Library

    done: list[str] = []
    monkeypatch.setattr(Library, "load", lambda self: done.append("built"))
    monkeypatch.setattr(Library, "virtual_machine", lambda self, device: done.append("loaded"))
    with gpu_sides.in_turn(lambda: done.append("its turn")):
        Library(None).virtual_machine()
    assert done == ["built", "its turn", "loaded"]
