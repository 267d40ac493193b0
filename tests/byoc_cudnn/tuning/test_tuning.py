"""The tuning record, what `partition` chooses by it, what `tune` would try; without a GPU."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import byoc_cudnn
from byoc_cudnn.backends.cutlass.check import Options
from byoc_cudnn.backends.cutlass.codegen import generate
from byoc_cudnn.backends.cutlass.model import choose, ranked
from byoc_cudnn.codegen.linked import kernels_of
from byoc_cudnn.codegen.regions import read_region
from byoc_cudnn.report import FASTER_HERE
from byoc_cudnn.tuning import selection
from byoc_cudnn.tuning.record import FORMAT, Measurement, Record
from byoc_cudnn.tuning.tune import _tasks, tune
from relay_wgrad.backend_names import STOCK
from relay_wgrad.problem import ConvProblem
from tests.support.partition_cases import merged, problem_module, regions

pytestmark = pytest.mark.usefixtures("registered")

F16 = "layout=NHWC/OHWI/NHWC dtype=f16/f16/f16"
WGRAD = ConvProblem.parse(f"wgrad n=8 c=64 h=14 w=14 k=64 r=3 s=3 pad=1,1,1,1 {F16}")
VERSIONS = {"cutlass": "4.1 nvcc 13.0", "cudnn": "9.19.1", STOCK: "0.27"}
DEFAULTS: dict[str, dict[str, Any]] = {
    "cutlass": {"allow_tf32": True, "deterministic": False, "arch": 80, "wgmma": False},
    "cudnn": {
        "allow_tf32": True, "deterministic": False, "scaled_half": True, "workspace_limit": None,
    },
    STOCK: {},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if these were installed."""
    monkeypatch.setattr(selection, "versions", lambda: VERSIONS)


def measured(backend: str, ms: float, problem: ConvProblem = WGRAD, **other: Any) -> Measurement:
    pins: dict[str, Any] = {"cudnn": {"benchmark": True}}.get(backend, {})
    if backend == "cutlass":
        other_than_first = ranked(problem, (), Options())[3]
        pins = {"kernel": other_than_first.kernel.name, "split_k": other_than_first.slices}
    return Measurement(
        **{
            "machine": "GPU sm_90", "backend": backend, "version": VERSIONS[backend],
            "problem": problem.repro(), "epilogue": "", "ms": ms, "options": DEFAULTS[backend],
            "pins": pins, **other,
        }
    )  # fmt: skip


def split(record: Record, problem: ConvProblem = WGRAD, **options: Any) -> tuple[Any, Any]:
    return byoc_cudnn.partition(
        problem_module(problem), ("cutlass", "cudnn"), select="measured", record=record, **options
    )


def test_the_fastest_gets_the_call() -> None:
    record = Record([measured("cutlass", 0.3), measured("cudnn", 0.2), measured(STOCK, 9.0)])
    _, report = split(record)
    (entry,) = report.entries
    assert entry.backend == "cudnn"
    assert entry.times == (("cudnn", 0.2), ("cutlass", 0.3), (STOCK, 9.0))
    assert "cudnn 0.2 ms cutlass 0.3 ms tvm 9 ms" in report.to_markdown()
    record.add(measured("cutlass", 0.1))
    assert split(record)[1].entries[0].backend == "cutlass"


def test_the_choice_is_in_the_program() -> None:
    """The kernel that was measured is the one that is generated."""
    one = measured("cutlass", 0.1)
    out, _ = split(Record([one]))
    (func,) = regions(out).values()
    text = generate([read_region(func)])
    assert one.pins["kernel"] in [name for _, name in kernels_of(text)]
    assert one.pins["kernel"] != choose(WGRAD, (), Options()).kernel.name
    out, _ = split(Record([measured("cudnn", 0.1)]))
    (func,) = regions(out).values()
    assert read_region(func).options["benchmark"] is True


def test_tvm_keeps_what_it_does_fastest() -> None:
    record = Record([measured("cutlass", 0.3), measured("cudnn", 0.2), measured(STOCK, 0.1)])
    _, report = split(record, strict=True)  # nothing was refused
    assert report.offloaded == 0
    assert report.left[0].reason == FASTER_HERE
    assert report.left[0].times[0] == (STOCK, 0.1)
    assert report.refused == ()


@pytest.mark.parametrize(
    "other",
    [
        {"version": "4.0 nvcc 12.8"}, {"machine": "another GPU"}, {"epilogue": "relu"},
        {"problem": "wgrad n=1 c=1 h=1 w=1 k=1 r=1 s=1"}, {"options": {"arch": 80}},
    ],
)  # fmt: skip
def test_another_measurement_does_not_count(other: dict[str, Any]) -> None:
    record = Record([measured("cudnn", 0.2), measured("cudnn", 0.1)])
    record.machine = "GPU sm_90"
    record.add(replace(measured("cutlass", 0.01), **other))
    assert split(record)[1].entries[0].times == (("cudnn", 0.1),)


def test_options_are_part_of_what_was_measured() -> None:
    record = Record([measured("cudnn", 0.1), measured("cutlass", 0.2)])
    _, report = split(record, cudnn={"allow_tf32": False})
    assert report.entries[0].times == (("cutlass", 0.2),)


def test_without_measurements_it_is_the_first() -> None:
    _, report = split(Record())
    assert report.entries[0].backend == "cutlass"
    assert report.entries[0].times == ()


def test_another_version_counts_where_none_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "versions", lambda: dict.fromkeys(VERSIONS))
    record = Record([measured("cutlass", 0.1, version="1"), measured("cudnn", 0.2, version="2")])
    assert split(record)[1].entries[0].backend == "cutlass"


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"select": "best"}, ValueError, "select must be 'first' or 'measured', got 'best'"),
        ({"select": "first", "record": "x"}, ValueError, "a record is for select='measured'"),
    ],
)
def test_wrong_arguments(changes: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        byoc_cudnn.partition(problem_module(WGRAD), ("cutlass",), **changes)


def test_a_kernel_of_another_problem_is_no_option() -> None:
    name = choose(replace(WGRAD, c=31), (), Options()).kernel.name
    with pytest.raises(ValueError, match=f"no CUTLASS kernel of the name {name}"):
        choose(WGRAD, (), Options(kernel=name))
    with pytest.raises(TypeError, match="kernel must be str, got 3"):
        Options(kernel=3)  # type: ignore[arg-type]


# ---- files ---------------------------------------------------------------------------------------


def test_a_file_has_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "record.json"
    assert len(Record.load(path)) == 0
    first, second = measured("cutlass", 0.1), measured("cudnn", 0.2)
    Record([first]).save(path)
    Record([second]).save(path)
    assert list(Record.load(path)) == [first, second]
    Record([replace(first, ms=0.05)]).save(path)
    assert {m.backend: m.ms for m in Record.load(path)} == {"cutlass": 0.05, "cudnn": 0.2}
    assert split(Record.load(path))[1].entries[0].backend == "cutlass"


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "record.json"

    def write(number: int) -> None:
        Record([measured("cudnn", 0.1, replace(WGRAD, n=1 + number))]).save(path)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Record.load(path)) == 8


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"format": "x"}',
        '{"format": "relay-wgrad tuning", "version": 2}',
        "[" * 9999,
        "9" * 5000,
    ],
)
def test_what_is_no_record_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"tuning record .*record\.json: "):
        Record.load(path)
    with pytest.raises(ValueError, match="tuning record"):
        Record([measured("cudnn", 0.1)]).save(path)
    assert path.read_text() == text


@pytest.mark.parametrize(
    "change",
    [
        {"ms": 0}, {"ms": "fast"}, {"ms": float("nan")}, {"backend": "mkl"}, {"machine": 3},
        {"problem": "wgrad"}, {"epilogue": "gelu"}, {"pins": {"kernel": 'evil"; system("")'}},
        {"pins": {"arch": 90}}, {"more": 1}, {"ms": 10**400}, {"ms": 1e9}, {"pins": "kernel"},
        {"pins": {"split_k": '1); system("x");//'}}, {"pins": {"split_k": 0}}, {"options": None},
        {"backend": "cudnn", "pins": {"benchmark": "yes"}},
    ],
)  # fmt: skip
def test_single_measurements_that_are_none(change: dict[str, Any], tmp_path: Path) -> None:
    good = json.loads(json.dumps(measured("cutlass", 0.1).__dict__))
    path = tmp_path / "record.json"
    text = {"format": FORMAT, "version": 1, "measurements": [{**good, **change}, good]}
    path.write_text(json.dumps(text))
    with pytest.warns(UserWarning, match="1 measurements left aside"):
        record = Record.load(path)
    assert len(record) == 1


def test_another_spelling_of_a_problem_is_the_same() -> None:
    words = WGRAD.repro().split()
    other = " ".join([words[0], *reversed(words[1:])])
    record = Record([replace(measured("cudnn", 0.2), problem=other)])
    (kept,) = record
    assert kept.problem == WGRAD.repro()
    assert record.find("cudnn", WGRAD, "", kept.options) is kept
    record.add(measured("cudnn", 0.1))
    assert len(record) == 1


# ---- what is tried -------------------------------------------------------------------------------


def test_each_problem_once_with_the_best_of_the_model() -> None:
    fprop = WGRAD.with_kind(ConvProblem.parse(f"fprop n=1 c=1 h=1 w=1 k=1 r=1 s=1 {F16}").kind)
    mod = merged({
        "a": problem_module(WGRAD), "b": problem_module(WGRAD), "c": problem_module(fprop),
    })  # fmt: skip
    tasks = _tasks(mod, ("cutlass", "cudnn"), {}, VERSIONS, 90, 5)
    assert sorted(t.region.problem.repro() for t in tasks) == [fprop.repro(), WGRAD.repro()]
    for task in tasks:
        names = [c.backend for c in task.candidates]
        assert names[-1] == "cudnn"
        assert 2 <= names.count("cutlass") <= 5
        assert len({c.symbol for c in task.candidates}) == len(names)
        first = choose(task.region.problem, (), Options(), 90)
        assert task.candidates[0].pins == {"kernel": first.kernel.name, "split_k": first.slices}
    grouped = replace(WGRAD, groups=32)
    (task,) = _tasks([grouped], ("cutlass", "cudnn"), {}, VERSIONS, 90, 5)
    assert [c.backend for c in task.candidates] == ["cudnn"]


def test_without_a_gpu_there_is_nothing_to_measure() -> None:
    import tvm

    if tvm.cuda(0).exist:
        pytest.skip("there is one")
    with pytest.raises(RuntimeError, match="no CUDA device here"):
        tune([WGRAD])
