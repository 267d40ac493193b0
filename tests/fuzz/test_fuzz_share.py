"""The share of the fuzzer that every test run pays for, and tests of the fuzzer itself."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from relay_wgrad.ops import algebra
from tests.fuzz import __main__ as fuzz
from tests.fuzz import check, reference
from tests.fuzz.case import OPS, Case, parse, random_case
from tests.fuzz.poison import poison_bytes
from tests.fuzz.program import output_padding
from tests.support.compiled import virtual_machine

SHARE = 25  # problems, each for all ops
STEP = 5
SEED = 20
LOPSIDED = (
    "conv2d {order} fprop n=2 c=4 h=9 w=8 k=6 r=3 s=3 stride=2,1 pad=2,1,0,1 dil=1,1 groups=2"
    " layout=NHWC/OHWI/NCHW dtype=f32/f32/f32 seed=5"
)


@pytest.mark.longer
@pytest.mark.parametrize("first", range(0, SHARE, STEP))
def test_share(first: int) -> None:
    images, volumes = list(OPS)[:4], list(OPS)[4:]
    cases = [random_case(op, SEED, i) for i in range(first, first + STEP) for op in images]
    cases += [random_case(op, SEED, first) for op in volumes]
    units = [(case, order) for case in cases for order in (1, 2)]
    outcomes, _ = check.run_batch(units, check.default_target())
    assert [x.line for x in outcomes] == [case.line(order) for case, order in units]
    target = check.default_target()
    failed = [f"{x.failure}\n{fuzz.command(x.line, target)}" for x in outcomes if x.failure]
    assert not failed, "\n".join(failed)


def _swapped_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weight's gradient takes bottom for top: right shapes, wrong numbers."""
    right = algebra.wgrad_call

    def wrong(grad, data, a):
        top, left, bottom, right_ = a.padding
        return right(grad, data, replace(a, padding=(bottom, left, top, right_)))

    monkeypatch.setattr(algebra, "wgrad_call", wrong)


# At order 2 the wrong partial is contracted, and the other operand's gradient shows it first.
@pytest.mark.parametrize(("order", "result"), [(1, "b"), (2, "a")])
def test_planted_fault_is_caught(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], order: int, result: str
) -> None:
    line = LOPSIDED.format(order=order)
    _swapped_padding(monkeypatch)
    assert fuzz.main(["--repro", line]) == 1
    out = capsys.readouterr().out
    assert f"FAILED {result} (run 0): relative error" in out
    assert f'python -m tests.fuzz --repro "{line}"' in out


@pytest.mark.longer("tests.planted has its kin")
def test_planted_fault_is_found_among_random_cases(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _swapped_padding(monkeypatch)
    argv = "--count 8 --ops conv2d --orders 1 --dtypes float32 --jobs 0 --seed 1 --max-flop 1e5"
    assert fuzz.main(argv.split()) == 1
    lines = [x for x in capsys.readouterr().out.splitlines() if "--repro" in x]
    assert lines
    # Each printed command reproduces its failure alone, and passes without the fault.
    line = lines[0].split('"')[1]
    assert fuzz.main(["--repro", line]) == 1
    monkeypatch.undo()
    assert fuzz.main(["--repro", line]) == 0


def test_repro_runs_exactly_that_case(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[check.Unit]] = []
    monkeypatch.setattr(fuzz, "run_batch", lambda units, target: (seen.append(units), ([], {}))[1])
    case = random_case("conv2d_transpose", 3, 7)
    assert fuzz.main(["--repro", case.line(2)]) == 0
    assert seen == [[(case, 2)]]


@pytest.mark.parametrize("op", OPS)
def test_lines_read_back(op: str) -> None:
    cases = [random_case(op, 0, i) for i in range(200)]
    assert cases == [random_case(op, 0, i) for i in range(200)]
    for case in cases:
        assert parse(case.line(2)) == (case, 2)
    assert 10 < sum(bool(x.symbolic) for x in cases) < 60
    problems = [x.problem for x in cases]
    assert {x.k for x in problems} & {1}
    assert {x.c for x in problems} & {1}
    assert any(x.is_depthwise and x.k > x.c for x in problems)
    assert any(x.strides[0] > x.r for x in problems)
    if op.endswith("_transpose"):
        paddings = [output_padding(x) for x in cases]
        assert any(any(v) for v in paddings)
        assert all(
            v < s for x, e in zip(cases, paddings, strict=True)
            for v, s in zip(e, x.problem.strides, strict=True)
        )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("relu 1 fprop n=1", "a line starts with an op"),
        ("conv2d", "after the op comes an order"),
        ("conv2d 3 fprop n=1", "after the op comes an order"),
        ("conv2d 1 wgrad n=1 c=1 h=1 w=1 k=1 r=1 s=1", "conv2d is a fprop"),
        ("conv2d 1 fprop n=1 c=1 h=1 w=1 k=1 r=1", "size 's' is missing"),
        ("conv2d 1 fprop n=1 c=1 h=1 w=1 k=1 r=1 s=1 sym=n", "come together"),
        ("conv2d 1 fprop n=1 c=1 h=1 w=1 k=1 r=1 s=1 sym=n also=2", "expected n,h,w"),
    ],
)
def test_bad_line(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=message):
        parse(line)
    with pytest.raises(SystemExit) as stop:
        fuzz.main(["--repro", line])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_nan_wrong_shape_and_wrong_index_never_pass() -> None:
    want = np.arange(6.0).reshape(2, 3)
    assert reference.error(want, want, want) == 0
    got = want.copy()
    got[1, 2] = np.nan
    assert reference.error(got, want, want) == math.inf
    assert reference.error(want.T, want, want) == math.inf
    assert reference.error(want[:, ::-1], want, want) > 0.5
    assert reference.error(want, 0 * want, 0 * want) == math.inf


@I.ir_module
class HalfWritten:
    """A kernel that leaves the second half of its result as it was."""

    @T.prim_func(s_tir=True)
    def half(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        for i in range(32):
            y[i] = x[i]

    @R.function
    def main(x: R.Tensor((64,), "float32")) -> R.Tensor((64,), "float32"):
        with R.dataflow():
            y = R.call_tir(HalfWritten.half, (x,), out_ty=R.Tensor((64,), "float32"))
            R.output(y)
        return y


def test_unwritten_memory_is_nan() -> None:
    machine = virtual_machine(HalfWritten, check.host_target())
    for _ in range(3):
        poison_bytes({64 * 4})
        got = machine["main"](tvm.runtime.tensor(np.ones(64, "float32"))).numpy()
        assert (got[:32] == 1).all()
        assert np.isnan(got[32:]).all()


def test_failure_to_compile_is_that_case_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One bad case does not take its batch along."""
    good, _ = parse(LOPSIDED.format(order=1))
    bad = Case("conv2d", replace(good.problem, groups=3), seed=1)
    outcomes, _ = check.run_batch([(good, 1), (bad, 1)], check.default_target())
    assert outcomes[0].failure is None
    assert outcomes[1].failure is not None
    assert "groups must divide C" in outcomes[1].failure
