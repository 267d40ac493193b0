"""A backend of somebody else's that is built, tuned and chosen by measurement, without a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import byoc_cudnn
from byoc_cudnn import BACKENDS, Decision, Region, register_backend
from byoc_cudnn.building.compiled import Library
from byoc_cudnn.building.toolchain import Toolchain, ToolchainError, find
from byoc_cudnn.table import CODEGENS
from byoc_cudnn.tuning import tune as tuning
from byoc_cudnn.tuning.record import Measurement, Record
from byoc_cudnn.tuning.timing import fastest
from byoc_cudnn.tuning.versions import versions
from relay_wgrad.backend_names import STOCK
from relay_wgrad.cli import tune as tune_command
from relay_wgrad.cli.main import main
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.partition_cases import problem_module, regions

pytestmark = pytest.mark.usefixtures("registered")

LAYOUTS = [("NHWC", "OHWI", "NHWC")]
ALONE = {kind: [""] for kind in ConvKind}
PROBLEM = ConvProblem.parse("fprop n=2 c=8 h=5 w=6 k=4 r=1 s=1 layout=NHWC/OHWI/NHWC")
TILES = (1, 2, 4)
SOURCE = """
#include <tvm/ffi/tvm_ffi.h>
using tvm::ffi::TensorView;
"""
FUNCTION = """
static void run_{symbol}(TensorView x, TensorView w, TensorView out) {{
  const float *a = (const float*)x.data_ptr(), *b = (const float*)w.data_ptr();
  float* c = (float*)out.data_ptr();
  for (long m = 0; m < {M}; m += {tile})  // the pixels, some at a time
    for (long n = 0; n < {N}; ++n)
      for (long i = m; i < m + {tile}; ++i) {{
        float sum = 0;
        for (long k = 0; k < {K}; ++k) sum += a[i * {K} + k] * b[n * {K} + k];
        c[i * {N} + n] = sum;
      }}
}}
TVM_FFI_DLL_EXPORT_TYPED_FUNC({symbol}, run_{symbol});
"""


@dataclass(frozen=True)
class Options:
    fast: bool = True
    tile: int = 1


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    tables = [(table, dict(table)) for table in (BACKENDS, CODEGENS)]
    yield
    for table, before in tables:
        table.clear()
        table.update(before)


def accepts(problem: ConvProblem, epilogue: str) -> Decision:
    one = (problem.r, problem.s) == (1, 1) and problem.kind is ConvKind.FPROP
    return Decision(True) if one else Decision(False, "not a 1x1 forward convolution")


def generate(regions: Sequence[Region], arch: int | None) -> str:
    code = SOURCE
    for region in regions:
        (M, N, K), tile = region.problem.gemm, Options(**region.options).tile
        code += FUNCTION.format(symbol=region.symbol, M=M, N=N, K=K, tile=tile)
    return code


def check_pins(pins: Mapping[str, Any]) -> None:
    if pins.get("tile", 1) not in TILES:
        raise ValueError(f"tile must be one of {TILES}, got {pins['tile']!r}")


def tried(region: Region, arch: int, most: int) -> list[dict[str, Any]]:
    return [{"tile": tile} for tile in TILES][:most]


def mine(**other: Any) -> None:
    more: dict[str, Any] = {
        "options": Options, "generate": generate, "inputs": lambda *_: (), "pins": ("tile",),
        "check_pins": check_pins, "tried": tried, "version": lambda _: "7",
    }  # fmt: skip
    register_backend("mine", accepts, LAYOUTS, ALONE, **(more | other))


def measured(backend: str, ms: float, **other: Any) -> Measurement:
    defaults = json.loads(json.dumps(BACKENDS[backend].options().__dict__))
    kept = {k: v for k, v in defaults.items() if k not in BACKENDS[backend].pins}
    values = {
        "machine": "GPU sm_90", "backend": backend, "version": versions()[backend] or "",
        "problem": PROBLEM.repro(), "epilogue": "", "ms": ms, "options": kept, "pins": {},
    }  # fmt: skip
    return Measurement(**(values | other))


def split(record: Record) -> tuple[tvm.IRModule, byoc_cudnn.Entry]:
    out, report = byoc_cudnn.partition(
        problem_module(PROBLEM), ("cudnn", "mine"), select="measured", record=record
    )
    (entry,) = report.entries
    return out, entry


def region_of(module: tvm.IRModule) -> Region:
    (function,) = regions(module).values()
    return byoc_cudnn.read_region(function)


def test_the_fastest_gets_the_call_with_what_was_measured() -> None:
    mine()
    out, entry = split(Record([measured("cudnn", 0.2), measured("mine", 0.1, pins={"tile": 4})]))
    assert entry.row == "fprop"
    assert entry.backend == "mine"
    assert entry.times == (("mine", 0.1), ("cudnn", 0.2))
    assert region_of(out).options == {"fast": True, "tile": 4}
    _, entry = split(Record([measured("cudnn", 0.05), measured("mine", 0.1)]))
    assert entry.backend == "cudnn"


def test_without_measurements_it_is_the_first() -> None:
    mine()
    assert split(Record())[1].backend == "cudnn"


def test_a_plain_backend_is_chosen_too() -> None:
    """One that says nothing of generation or versions; its measurements are of any version."""
    register_backend("mine", accepts, LAYOUTS, ALONE)
    record = Record([measured("cudnn", 0.2), measured("mine", 0.1, version="of last year")])
    assert split(record)[1].backend == "mine"


def test_another_version_does_not_count() -> None:
    mine()
    record = Record([measured("cudnn", 0.2), measured("mine", 0.1, version="6")])
    assert split(record)[1].backend == "cudnn"


@pytest.mark.parametrize("pins", [{"fast": False}, {"tile": 3}, {"more": 1}])
def test_pins_that_no_kernel_has(pins: dict[str, Any]) -> None:
    mine()
    with pytest.raises(ValueError, match=r"no pins|tile must be one of"):
        Record([measured("mine", 0.1, pins=pins)])


def test_a_file_keeps_what_this_process_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    mine()
    theirs = measured("mine", 0.1, pins={"tile": 2})
    Record([theirs]).save(path)
    del BACKENDS["mine"]
    with pytest.warns(UserWarning, match="1 measurements left aside.*got 'mine'"):
        assert len(Record.load(path)) == 0
    ours = measured("cudnn", 0.2)
    with pytest.warns(UserWarning, match="left aside"):
        Record([ours]).save(path)
    mine()
    assert set(map(str, Record.load(path))) == {str(theirs), str(ours)}


# ---- built and tuned -----------------------------------------------------------------------------


def toolchain() -> Toolchain:
    found = find()
    try:
        return found.require()
    except ToolchainError as error:
        pytest.skip(str(error))


def operands() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(PROBLEM.shape(r)).astype("float32") for r in ("data", "weight"))
    return x, w


def test_a_program_of_it_runs() -> None:
    toolchain()
    mine()
    out, _ = byoc_cudnn.partition(problem_module(PROBLEM), ["mine"], strict=True, mine={"tile": 2})
    library = Library(tvm.compile(relax.transform.RunCodegen()(out), target="llvm"))
    (source,) = library.sources
    assert "m += 2)" in source
    x, w = operands()
    result = library.virtual_machine(tvm.cpu())["main"](*map(tvm.runtime.tensor, (x, w)))
    assert np.allclose(result.numpy(), np.einsum("nhwc,kc->nhwk", x, w[:, 0, 0]), atol=1e-5)
    assert library.plans() == []  # the source exports none


@pytest.mark.longer
def test_a_matrix_product_is_tuned_and_runs() -> None:
    """It is a convolution of one pixel to a backend, and its reshapes move nothing."""
    found = toolchain()
    mine()
    bb = relax.BlockBuilder()
    x, w = (relax.Var(n, relax.TensorType(s, "float32")) for n, s in (("x", (7, 5)), ("w", (3, 5))))
    with bb.function("main", [x, w]):
        with bb.dataflow():
            product = bb.emit(relax.op.matmul(x, bb.emit(relax.op.permute_dims(w))))
            out = bb.emit_output(relax.op.nn.relu(product))
        bb.emit_func_output(out)
    (task,) = tuning._tasks(bb.get(), ("mine",), {"mine": {}}, versions(), 80, 1)
    assert task.region.problem.gemm == (7, 3, 5)
    out, report = byoc_cudnn.partition(bb.get(), ["mine"], products=True, mine={"tile": 2})
    assert [(e.op, e.row) for e in report.entries] == [("matmul", "fprop")]
    library = Library(tvm.compile(relax.transform.RunCodegen()(out), target="llvm"))
    a, b = (np.random.default_rng(0).standard_normal(s).astype("float32") for s in ((7, 5), (3, 5)))
    machine = library.virtual_machine(tvm.cpu(), toolchain=found)
    result = machine["main"](*map(tvm.runtime.tensor, (a, b)))
    assert np.allclose(result.numpy(), np.maximum(a @ b.T, 0), atol=1e-5)


def test_what_is_generated_is_of_the_last_that_was_registered() -> None:
    mine()
    mine(generate=lambda regions, arch: f"// {arch} {regions[0].problem.kind.value}")
    out, _ = byoc_cudnn.partition(problem_module(PROBLEM), ["mine"])
    with tvm.target.Target({"kind": "cuda", "arch": "sm_86"}, host="llvm"):
        (source,) = relax.transform.RunCodegen()(out).attrs["external_mods"]
    assert source.inspect_source() == "// 86 fprop"


@pytest.mark.longer
def test_its_candidates_are_built_and_timed(tmp_path: Path, monkeypatch: Any) -> None:
    mine()
    options = {"mine": {"fast": False}}
    tasks = tuning._tasks([PROBLEM], ("mine",), options, versions(), 80, 2)
    (task,) = tasks
    assert [(c.backend, c.version, c.pins) for c in task.candidates] == [
        ("mine", "7", {"tile": 1}), ("mine", "7", {"tile": 2}),
    ]  # fmt: skip
    said: list[tuple[str, int, int]] = []
    tuning._build_all(tasks, tmp_path, toolchain(), 80, lambda *what: said.append(what))
    x, w = operands()
    for c in task.candidates:
        assert c.call is not None
        result = tvm.runtime.tensor(np.zeros(PROBLEM.shape("grad"), "float32"))
        c.call(tvm.runtime.tensor(x), tvm.runtime.tensor(w), result)
        assert np.allclose(result.numpy(), np.einsum("nhwc,kc->nhwk", x, w[:, 0, 0]), atol=1e-5)
    task.candidates = [replace(c, ms=1.0 / (i + 1)) for i, c in enumerate(task.candidates)]
    (best,) = fastest(task, "GPU sm_80")
    assert (best.pins, best.options) == ({"tile": 2}, {"fast": False})
    assert Record([best]).find("mine", PROBLEM, "", {"fast": False, "tile": 1}) == best


def test_what_cannot_be_built_alone_is_not_tuned() -> None:
    register_backend("mine", accepts, LAYOUTS, ALONE)
    with pytest.raises(ValueError, match="tune: mine has no `generate`"):
        tuning._tasks([PROBLEM], ("mine",), {}, versions(), 80, 2)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "pins": ({"pins": ("tiles",)}, "pins tiles are no options; there are fast, tile"),
    "generator": ({"codegen": "theirs"}, "relax.ext.theirs is registered already, by another"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    given, words = REFUSED[name]
    tvm_ffi.register_global_func("relax.ext.theirs", lambda *_: [], override=True)
    before = dict(BACKENDS), dict(CODEGENS)
    with pytest.raises(ValueError, match=words):
        mine(**given)
    assert before == (BACKENDS, CODEGENS)


def test_tvm_stands_for_its_own_kernels() -> None:
    with pytest.raises(ValueError, match="tvm stands for TVM's own kernels"):
        register_backend(STOCK, accepts, LAYOUTS, ALONE)


def test_the_command_gives_each_the_options_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine()
    given: dict[str, Any] = {}

    def tuned(what: Any, backends: Sequence[str], *, record: Record, **options: Any) -> Record:
        given.update(options, backends=backends)
        record.machine = "GPU sm_90"
        record.add(measured("mine", 0.125, pins={"tile": 4}))
        return record

    monkeypatch.setattr(tune_command, "tune", tuned)
    command = ["tune", "--problem", PROBLEM.repro(), "--backends", "mine,cutlass,tvm",
               "--no-tf32", "--wgmma", "--record", str(tmp_path / "record.json")]  # fmt: skip
    assert main(command) == 0
    assert given["backends"] == ["mine", "cutlass"]
    assert given["mine"] == {}
    assert given["cutlass"] == {"allow_tf32": False, "arch": 90, "wgmma": True}
    shown = capsys.readouterr().out
    assert "0.1250" in shown
    assert "mine 4" in shown
