"""Libraries chosen for a step's convolutions by measurement; the measuring itself needs a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tvm import relax

from byoc_cudnn.backends.cuda_direct.faster import microseconds
from byoc_cudnn.table import backend_of
from byoc_cudnn.tuning import missing_measurements as measuring
from byoc_cudnn.tuning.record import Measurement, Record, without_pins
from byoc_cudnn.tuning.versions import versions
from relay_wgrad.training import gpu
from relay_wgrad.training.devices import place
from relay_wgrad.training.libraries import backend_options, partitioned
from relay_wgrad.training.options import Options

MEASURED = Options(select="measured")
GPU: Any = SimpleNamespace(index=0, device_name="one", compute_version="9.0", exist=True)
LIBRARIES = ("cudnn", "cutlass")


def two_convolutions() -> Any:
    """Of 16 to 16 channels, then of 16 to 24."""
    bb = relax.BlockBuilder()
    shapes = {"x": (2, 8, 8, 16), "v": (16, 3, 3, 16), "w": (24, 3, 3, 16)}
    x, v, w = (relax.Var(n, relax.TensorType(shape, "float16")) for n, shape in shapes.items())
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_dtype": "float16"}
    with bb.function("main", [x, v, w]):
        with bb.dataflow():
            y = bb.emit(relax.op.nn.conv2d(x, v, padding=1, **layouts))
            out = bb.emit_output(relax.op.nn.conv2d(y, w, padding=1, **layouts))
        bb.emit_func_output(out)
    return bb.get()


class Tune:
    """CUTLASS is faster for 16 channels, cuDNN for 24."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def __call__(
        self, mod: Any, names: Sequence[str], *, candidates: int, record: Record, device: int,
        progress: Any, **options: Any,
    ) -> Record:  # fmt: skip
        record.machine = "one sm_90"
        self.asked.append((names, candidates, len(record), options))
        _, found = partitioned(mod, ["cudnn"], Options(), [])
        for name in names:
            made = asdict(backend_of(name).make_options(options[name]))
            for one in found:
                wide = " k=24 " in str(one.problem)
                ms = 1.0 if wide == (name == "cudnn") else 2.0
                record.add(Measurement(
                    record.machine, name, versions()[name] or "", str(one.problem), "", ms,
                    without_pins(name, made),
                ))  # fmt: skip
        return record


def test_each_goes_to_the_library_that_was_faster(
    registered: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RELAY_WGRAD_CACHE", str(tmp_path))
    tune = Tune()
    monkeypatch.setattr(measuring, "tune", tune)
    for known in (0, 4):  # the second time the user's record has them
        _, found = partitioned(two_convolutions(), LIBRARIES, MEASURED, [], GPU)
        assert [one.source for one in found] == ["cutlass.fprop", "cudnn.fprop"]
        names, candidates, before, options = tune.asked[-1]
        assert (names, candidates, before) == (LIBRARIES, 3, known)
        assert options == backend_options(LIBRARIES, MEASURED, 90)
    _, found = partitioned(two_convolutions(), LIBRARIES, Options(), [], GPU)
    assert {one.source for one in found} == {"cudnn.fprop"}
    assert len(tune.asked) == 2


def test_libraries_are_compared_at_their_best() -> None:
    given = backend_options(LIBRARIES, MEASURED, 90)
    assert given["cudnn"] == {"allow_tf32": True, "deterministic": True, "benchmark": True}
    assert given["cutlass"] == {
        "allow_tf32": True, "deterministic": True, "arch": 90, "wgmma": True
    }  # fmt: skip
    assert "wgmma" not in backend_options(LIBRARIES, MEASURED, 80)["cutlass"]
    assert "wgmma" not in backend_options(LIBRARIES, Options(), 90)["cutlass"]


def test_helpers_are_for_the_device() -> None:
    """Some of their kernels run on Hopper alone; others are built for any GPU."""
    helped = ("cuda_direct", "cudnn")
    assert backend_options(helped, Options(), 90)["cuda_direct"]["arch"] == 90
    assert "arch" not in backend_options(helped, Options(), 80)["cuda_direct"]
    assert "arch" not in backend_options(helped, Options(), 120)["cuda_direct"]


def test_all_libraries_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "libraries", lambda: (list(LIBRARIES), []))
    assert gpu._backends(MEASURED, []) == list(LIBRARIES)
    assert gpu._backends(Options(), []) == ["cudnn"]
    helped, alone = Options(), Options(helpers=False)
    monkeypatch.setattr(gpu, "libraries", lambda: ([*LIBRARIES, "cuda_direct"], []))
    assert gpu._backends(helped, [], GPU) == ["cuda_direct", "cudnn"]
    assert gpu._backends(helped, []) == gpu._backends(alone, [], GPU) == ["cudnn"]
    ampere = SimpleNamespace(**{**vars(GPU), "compute_version": "8.0"})
    assert gpu._backends(helped, [], ampere) == ["cudnn"]
    notes: list[str] = []
    monkeypatch.setattr(gpu, "libraries", lambda: (["cuda_direct"], ["cudnn: not installed"]))
    assert gpu._backends(helped, notes, GPU) == []  # it would take what it is slow at
    assert "generated CUDA kernels" in notes[0]
    for options, chosen, device, known in (
        (helped, ["cuda_direct", "cudnn"], GPU, True),
        (helped, ["cuda_direct", "cudnn"], ampere, False),
        (helped, ["cudnn", "cuda_direct"], GPU, False),  # cuDNN would take them as they are
        (helped, ["cudnn"], GPU, False),
        (MEASURED, ["cuda_direct", "cudnn"], GPU, False),
        (Options(wide=True), ["cuda_direct", "cudnn"], GPU, False),
    ):
        forms = gpu._blocks(options, chosen, device)
        assert forms is (microseconds if known else True)
    rows = gpu._blocks(Options(blocks="rows"), ["cuda_direct", "cudnn"], GPU)
    assert rows == "rows"
    assert backend_options(["cuda_direct", "cudnn"], helped, 90)["cuda_direct"]["faster"]
    assert not backend_options(["cuda_direct"], helped, 90)["cuda_direct"]["faster"]
    with pytest.raises(ValueError, match="select must be first or measured, got 'fastest'"):
        place("cpu", Options(select="fastest"))
    with pytest.raises(ValueError, match="a bool or of blocks, rows, windows, got 'columns'"):
        place("cpu", Options(blocks="columns"))
