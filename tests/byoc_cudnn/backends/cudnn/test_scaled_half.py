"""Scaled float16 operands: the kernel on a CPU, its errors beside tf32's, and who gets it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from byoc_cudnn.backends.cudnn import BACKEND, scaled_half
from byoc_cudnn.backends.cudnn.check import SCALED_HALF, Options
from byoc_cudnn.backends.cudnn.codegen import generate
from byoc_cudnn.building.compiled import library_command
from byoc_cudnn.building.toolchain import find
from byoc_cudnn.codegen.linked import kernels_of
from byoc_cudnn.codegen.regions import Region
from relay_wgrad.problem import ConvProblem
from tests.support.cuda_emulated import aligned
from tests.support.scaled_half import (
    cases,
    errors,
    expect_specials,
    on_cpu,
    scaled,
    specials,
    tf32,
)

LINE = "wgrad n=2 c=32 d=8 h=8 w=8 k=16 t=3 r=3 s=3 pad=1,1,1,1,1,1 layout=NDHWC/ODHWI/NDHWC"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if not find().compiler:
        pytest.skip("no C++ compiler")
    return on_cpu(tmp_path_factory.mktemp("scaled"))


def product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of one tap: (K, 1, C), summed in float64 and rounded once to float16, as tensor cores do."""
    with np.errstate(invalid="ignore"):
        return (y.astype(np.float64).T @ x.astype(np.float64)).astype(np.float32)[:, None]


def test_errors_are_those_of_tf32(kernel: Any) -> None:
    """At most 1.8 times those of tf32 that rounds to the nearest; where tf32's even out in a sum of
    one sign, the result's own rounding to float16 is left."""
    rng = np.random.default_rng(5)
    for name, (x, y) in cases(rng, 3001, 24, 16).items():
        want = y.astype(np.float64).T @ x.astype(np.float64)
        got = scaled(kernel, aligned(x), aligned(y), 1, 3, product)[:, 0]
        bound = np.maximum(1.8 * errors(tf32(y).T @ tf32(x), want), 2.0**-11)
        assert (errors(got.astype(np.float64), want) <= bound).all(), (name, bound)


@pytest.mark.longer_cases("13-8-2056", why="a thread of the CPU for each of many blocks'")
@pytest.mark.parametrize(
    ("rows", "c", "k", "blocks"),
    [(1, 8, 8, 1), (13, 8, 2056, 2), (130, 40, 24, 5)],
)
def test_sizes(kernel: Any, rows: int, c: int, k: int, blocks: int) -> None:
    """Channels in more than one block's chunk, fewer rows than lanes, blocks without a row."""
    rng = np.random.default_rng((6, rows, c))
    x, y = (rng.standard_normal((rows, n)).astype(np.float32) for n in (c, k))
    got = scaled(kernel, aligned(x), aligned(y), 1, blocks, product)[:, 0]
    want = y.astype(np.float64).T @ x.astype(np.float64)
    assert (errors(got.astype(np.float64), want) < 2e-3).all()


def test_nothing_overflows(kernel: Any) -> None:
    """All of one sign and size: the largest sums that norms allow; and what stands alone."""
    for value in (1.0, 3e38, 1e-38, 1e-45, 65504.0):
        x = np.full((4096, 8), value, np.float32)
        y = np.full((4096, 8), 1.99, np.float32)
        want = y.astype(np.float64).T @ x.astype(np.float64)
        with np.errstate(over="ignore"):
            kept = want.astype(np.float32)
        got = scaled(kernel, aligned(x), aligned(y), 1, 2, product)[:, 0]
        if np.isinf(kept).all():
            assert np.isinf(got).all()
        else:
            np.testing.assert_allclose(got, kept, rtol=2.0**-10, atol=2e-45)


def test_groups_and_taps(kernel: Any) -> None:
    """A filter's channels are those of its group; the scales are undone for each tap."""
    rng = np.random.default_rng(7)
    x = (rng.standard_normal((50, 16)) * 4.0 ** np.arange(16)).astype(np.float32)
    y = (rng.standard_normal((50, 24)) * 4.0 ** -np.arange(24)).astype(np.float32)

    def grouped(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        sums = [
            [np.roll(b, tap, 0)[:, 12 * g : 12 * g + 12].astype(float).T @ a[:, 8 * g : 8 * g + 8]
             for tap in range(3)]
            for g in range(2)
        ]  # fmt: skip
        return np.concatenate([np.stack(of, 1) for of in sums])

    got = scaled(kernel, aligned(x), aligned(y), 2, 2, grouped)
    want = grouped(x.astype(float), y)
    assert got.shape == (24, 3, 8)
    norms = np.linalg.norm(y, axis=0)[:, None] * np.linalg.norm(x, axis=0).reshape(2, 1, 8).repeat(
        12, 1
    ).reshape(24, 8)
    assert (abs(got - want) < 2e-3 * norms[:, None]).all()


def test_special_values(kernel: Any) -> None:
    """NaN and infinity reach the results of their channels, and those alone."""
    x, y, want = specials(np.random.default_rng(8), 64, 8)
    got = scaled(kernel, aligned(x), aligned(y), 1, 1, product)[:, 0]
    expect_specials(got, want)
    assert np.array_equal(np.sign(got[np.isinf(got)]), np.sign(want[np.isinf(want)]))


@pytest.mark.parametrize(
    ("changed", "options"),
    [
        (("c=32", "c=12"), {}), (("k=16", "k=20"), {}), (("wgrad", "dgrad"), {}),
        (("NDHWC/ODHWI/NDHWC", "NCDHW/OIDHW/NCDHW"), {}),
        (("NDHWC/ODHWI/NDHWC", "NDHWC/ODHWI/NDHWC dtype=f16/f16/f16"), {}),
        (("", ""), {"allow_tf32": False}), (("", ""), {"scaled_half": False}),
    ],
)  # fmt: skip
def test_what_keeps_cudnns_kernels(changed: tuple[str, str], options: dict[str, Any]) -> None:
    """Never where tf32 is not allowed."""
    assert scaled_half.may_serve(ConvProblem.parse(LINE), Options())
    problem = ConvProblem.parse(LINE.replace(*changed) if changed[0] else LINE)
    assert not scaled_half.may_serve(problem, Options(**options))
    text = generate([Region.of("f", problem, **options)])
    assert scaled_half.KERNEL not in text
    assert kernels_of(text) == []


def test_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Options().scaled_half
    monkeypatch.setenv(SCALED_HALF, "0")
    assert not Options().scaled_half
    assert Options(scaled_half=True).scaled_half
    with pytest.raises(TypeError, match="cudnn: scaled_half must be bool, got 1"):
        Options(scaled_half=1)  # type: ignore[arg-type]


def test_without_a_compiler_of_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no object, and the row's function is null."""
    monkeypatch.setenv("RELAY_WGRAD_KERNELS_BY", "nobody")
    text = generate([Region.of("f", ConvProblem.parse(LINE))])
    assert kernels_of(text) == [(scaled_half.ARCHS, scaled_half.KERNEL)]
    if find().missing():
        pytest.skip(find().missing())
    assert list(BACKEND.inputs(text, find(), None)) == []
    host, library = tmp_path / "host.cc", tmp_path / "host.so"
    host.write_text(text, encoding="utf-8")
    subprocess.run(library_command(host, library, inputs=()), check=True)
    assert tvm_ffi.load_module(str(library)).implements_function("f")
