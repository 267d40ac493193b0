"""The choice for one convolution: what is measured, when, and what becomes of the record."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from byoc_cudnn.backends.cuda_direct.model import ranked
from byoc_cudnn.building.toolchain import ToolchainError
from byoc_cudnn.table import BACKENDS
from byoc_cudnn.tuning import single_convolution
from byoc_cudnn.tuning.single_convolution import Base, choose
from relay_wgrad.problem import ConvProblem

PROBLEM = ConvProblem.parse(
    "dgrad n=8 c=96 h=112 w=112 k=96 r=3 s=3 stride=2,2 pad=1,1,1,1 groups=96"
    " layout=NHWC/OHWI/NHWC dtype=f16/f16/f16"
)
DENSE = replace(PROBLEM, groups=1, k=64)
CUDNN = {"allow_tf32": True, "benchmark": True, "deterministic": False, "workspace_limit": None}
DIRECT: dict[str, dict[str, Any]] = {"cuda_direct": {"deterministic": False, "allow_tf32": True}}


class Device:
    """Stands for a GPU; `times` of a call are by whose it is."""

    def __init__(self, folder: Path, times: dict[str, float]) -> None:
        self.folder, self.times = folder, times
        self.timed: list[list[str]] = []
        self.built: list[str] = []

    def time_all(self, task: Any, timer: Any, device: Any) -> None:
        self.timed.append([c.backend for c in task.candidates])
        for number, c in enumerate(task.candidates):
            c.ms = self.times[c.backend] + number * 1e-3

    def alone(self, problem: ConvProblem, options: Any, arch: int) -> Any:
        self.built.append(options.kernel)
        return ("kernel", options.kernel, arch)


def base(problem: ConvProblem = PROBLEM) -> Base:
    return Base("cudnn", CUDNN, lambda *_: problem)


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    made = Device(tmp_path, {"cudnn": 2.0, "cuda_direct": 1.0})
    known = {"cudnn": "9", "cuda_direct": "nvcc 13.0", "tvm": "0"}
    monkeypatch.setattr(single_convolution, "arch_of", lambda device: 90)
    monkeypatch.setattr(single_convolution, "machine_name", lambda device: "GPU sm_90")
    monkeypatch.setattr(single_convolution, "known_versions", lambda: known)
    monkeypatch.setattr(single_convolution, "time_all", made.time_all)
    monkeypatch.setattr(single_convolution.TIMER, "loaded", {"relay_wgrad_time": None})
    path = staticmethod(lambda: tmp_path / "r.json")
    monkeypatch.setattr(single_convolution.Record, "default_path", path)
    direct = replace(BACKENDS["cuda_direct"], alone=made.alone)
    monkeypatch.setitem(BACKENDS, "cuda_direct", direct)
    single_convolution.measurements.cache_clear()
    yield made
    single_convolution.measurements.cache_clear()


def test_the_fastest_is_measured_once_for_a_machine(device: Device) -> None:
    found = choose(PROBLEM, base(), DIRECT, 0)
    first = ranked(PROBLEM, (), 90)[0].kernel.name
    assert (found.backend, found.call) == ("cuda_direct", ("kernel", first, 90))
    assert found.times == (("cuda_direct", 1.001), ("cudnn", 2.0))
    assert device.timed == [["cudnn", *["cuda_direct"] * 3]]
    single_convolution.measurements.cache_clear()  # another process
    again = choose(PROBLEM, base(), DIRECT, 0)
    assert (again.backend, again.call, again.times) == (found.backend, found.call, found.times)
    assert len(device.timed) == 1
    assert len(device.built) == 4


def test_the_base_stays_where_it_is_faster(device: Device) -> None:
    device.times["cudnn"] = 0.5
    given = base()
    for _ in range(2):
        found = choose(PROBLEM, given, DIRECT, 0)
        assert (found.backend, found.call) == ("cudnn", given.call)
    assert len(device.timed) == 1
    assert len(device.built) == 3


def test_other_options_are_measured_anew(device: Device) -> None:
    choose(PROBLEM, base(), DIRECT, 0)
    strict = {"deterministic": True, "allow_tf32": True}
    other = Base("cudnn", {**CUDNN, "deterministic": True}, base().call)
    choose(PROBLEM, other, {"cuda_direct": strict}, 0)
    assert len(device.timed) == 2


def test_nobody_else_takes_it(device: Device) -> None:
    given = base(DENSE)
    assert not single_convolution.are_any(DENSE, DIRECT)
    assert choose(DENSE, given, DIRECT, 0).call is given.call
    assert device.timed == []


def test_what_cannot_be_built_is_left_out(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise ToolchainError("nvcc: no such luck")

    monkeypatch.setitem(BACKENDS, "cuda_direct", replace(BACKENDS["cuda_direct"], alone=fails))
    with pytest.warns(RuntimeWarning, match="cuda_direct is left out: nvcc: no such luck"):
        assert choose(PROBLEM, base(), DIRECT, 0).backend == "cudnn"
    with warnings.catch_warnings():  # said once
        warnings.simplefilter("error")
        assert choose(replace(PROBLEM, n=2), base(), DIRECT, 0).backend == "cudnn"
    assert device.timed == []


def test_no_memory_to_measure_in(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise RuntimeError("CUDA: out of memory")

    monkeypatch.setattr(single_convolution, "time_all", full)
    given = base()
    with pytest.warns(RuntimeWarning, match=r"not measured, so it is cudnn's: CUDA: out of memory"):
        assert choose(PROBLEM, given, DIRECT, 0).call is given.call


def test_many_sizes_of_a_layer(device: Device) -> None:
    """A few are measured; then the nearest of them counts, with the kernel that is expected."""
    for n in range(1, single_convolution.SIZES + 1):
        choose(replace(PROBLEM, n=n), base(), DIRECT, 0)
    device.times["cudnn"] = 0.1
    found = choose(replace(PROBLEM, n=100), base(), DIRECT, 0)
    assert (found.backend, found.call, found.times) == ("cuda_direct", ("kernel", None, 90), ())
    assert len(device.timed) == single_convolution.SIZES


def test_what_would_be_built(device: Device) -> None:
    """All that is tried, of what was measured the fastest alone; of others nothing."""
    found = single_convolution.kernels(PROBLEM, DIRECT, 0)
    again = single_convolution.kernels(replace(PROBLEM, n=4), DIRECT, 0)
    assert len(found) == 3
    assert found[0][0] == again[0][0]  # in common
    assert device.built == []
    assert [build() for _, build in found] == [("kernel", name, 90) for name in device.built]
    choose(PROBLEM, base(), DIRECT, 0)
    assert len(single_convolution.kernels(PROBLEM, DIRECT, 0)) == 1
    assert single_convolution.kernels(DENSE, DIRECT, 0) == []


def test_kernels_are_built_ahead(device: Device) -> None:
    problems = [PROBLEM, PROBLEM, DENSE, replace(PROBLEM, n=4)]
    assert single_convolution.prefetch(problems, DIRECT, 0) == 6
    count = len({*device.built})
    assert len({*device.built[:count]}) == count < 6  # each by one thread, before any again
    assert single_convolution.prefetch([DENSE], DIRECT, 0) == 0


def test_a_full_disk_leaves_a_backend_out(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(BACKENDS, "cuda_direct", replace(BACKENDS["cuda_direct"], alone=full))
    with pytest.warns(RuntimeWarning, match="cuda_direct is left out: .*No space left"):
        assert [build() for _, build in single_convolution.kernels(PROBLEM, DIRECT, 0)] == [
            None
        ] * 3
    assert choose(PROBLEM, base(), DIRECT, 0).backend == "cudnn"


@pytest.mark.parametrize("how", ["damaged", "another's"])
def test_a_record_that_cannot_be_read(
    device: Device, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One warning and times of this process alone, not an error in each call."""

    def refuses() -> Path:
        raise ToolchainError("the folder must be yours alone")

    if how == "damaged":
        (device.folder / "r.json").write_text("{")
    else:
        monkeypatch.setattr(single_convolution.Record, "default_path", staticmethod(refuses))
    with pytest.warns(RuntimeWarning) as said:
        found = [choose(PROBLEM, base(), DIRECT, 0).backend for _ in range(2)]
    assert found == ["cuda_direct"] * 2
    texts = [str(one.message).partition(":")[0] for one in said]
    assert texts == ["no times are known", "times are measured anew in each process"]
    assert len(device.timed) == 1
