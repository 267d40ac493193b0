"""Two to four normalizations that are added, on a GPU, against PyTorch in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from byoc_cudnn.norm import NormCall
from relay_wgrad.dtypes import FLOATS
from tests.support.gpu.norm_runner import ROWS, SUMS, load, other_bits_in_place

pytestmark = pytest.mark.gpu

SHAPES = ((2, 3, 5, 64), (1, 1, 1, 8), (3, 7, 7, 13), (33, 28, 28, 256), (4, 9, 5, 260), (5, 4104))

KINDS = (("relu", 1), ("relu6", 1), ("relu", 2), ("relu", 3))  # activation, further normalizations


def call_of(direction: str, dtype: str, activation: str, summed: bool, others: int = 1) -> NormCall:
    forward = direction == "forward"
    return NormCall(
        f"{direction}_{dtype}_{activation}_{others}{'_summed' * summed}", direction, dtype,
        activation, residual=True, running=forward, bits=True, others=others, summed=summed,
    )  # fmt: skip


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    calls = [
        call_of(direction, dtype, activation, summed, others)
        for direction, summed in (("forward", False), ("backward", False), ("backward", True))
        for dtype in FLOATS
        for activation, others in KINDS
    ]
    return load(calls, tmp_path_factory.mktemp("added"))


def operands(shape: tuple[int, ...], dtype: str, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    rows, sums = getattr(torch, dtype), torch.float64 if dtype == "float64" else torch.float32

    def random(of: torch.dtype, *sizes: int) -> torch.Tensor:
        t = torch.randn(sizes, device="cuda", dtype=torch.float64, generator=generator)
        return (1.5 * t + 0.4).to(of)

    found = {name: random(rows, *shape) for name in ("x", "x2", "x3", "x4", "dy", "dy2")}
    kinds = ("gamma", "beta", "running_mean", "running_var")
    names = [f"{name}{end}" for end in ("", "2", "3", "4") for name in kinds]
    return found | {name: random(sums, shape[-1]) for name in names}


def results(given: dict[str, torch.Tensor], call: NormCall) -> dict[str, torch.Tensor]:
    """Full of NaN; the mask is a byte for each 16 of a row."""
    x, gamma = given["x"], given["gamma"]
    found = {}
    for name in call.results:
        like = x if name.rstrip("234") in ("y", "dx") else gamma
        found[name] = torch.full_like(like, float("nan"))
    if "mask" in found:
        packs = -(-x.shape[-1] * x.element_size() // 16)
        found["mask"] = torch.full((*x.shape[:-1], packs), 90, device="cuda", dtype=torch.uint8)
    return found


def run(functions: Any, given: dict[str, torch.Tensor], *calls: NormCall) -> dict[str, Any]:
    made: dict[str, torch.Tensor] = {}
    for call in calls:
        made |= results(given, call)
        names = (*call.operands, *call.results)
        functions[call.symbol](*[made.get(name, given.get(name)) for name in names])
    return made


def wanted(
    given: dict[str, torch.Tensor],
    made: dict[str, torch.Tensor],
    activation: str,
    summed: bool,
    others: int,
) -> dict[str, tuple[torch.Tensor, float]]:
    """In float64: each result, and how far from it the kernels may be."""
    dtype = str(given["x"].dtype).removeprefix("torch.")
    wide = {name: t.double().flatten(0, -2) for name, t in given.items() if t.ndim > 1}
    wide |= {name: t.double() for name, t in given.items() if t.ndim == 1}
    dy = (given["dy"] + given["dy2"] if summed else given["dy"]).double().flatten(0, -2)
    stored = made["y"].double().flatten(0, -2)
    off = stored <= 0 if activation == "relu" else (stored <= 0) | (stored >= 6)
    dy = torch.where(off, 0, dy)
    m = dy.shape[0]
    z: Any = 0
    rows, sums = ROWS[dtype], SUMS[dtype]
    found: dict[str, tuple[torch.Tensor, float]] = {}
    size: Any = 0
    for which in ("", *(str(n + 2) for n in range(others))):
        x, gamma, beta = (wide[name + which] for name in ("x", "gamma", "beta"))
        mean, var = x.mean(0), x.var(0, unbiased=False)
        rstd = (var + 1e-5).rsqrt()
        normal = (x - mean) * rstd
        z = z + normal * gamma + beta
        dbeta, dgamma = dy.sum(0), (dy * normal).sum(0)
        dx = gamma * rstd * (dy - dbeta / m - normal * dgamma / m)
        apart = (x.abs() + mean.abs()) * rstd
        size = size + apart * gamma.abs()
        spread = var * m / torch.full_like(var, m - 1)
        means, variances = wide["running_mean" + which], wide["running_var" + which]
        found |= {
            "mean" + which: (mean, sums * float(x.abs().mean(0).norm())),
            "rstd" + which: (rstd, sums * 4 * float(rstd.norm())),
            "dbeta" + which: (dbeta, sums * float(dy.abs().sum(0).norm())),
            "dgamma" + which: (dgamma, sums * 4 * float((dy.abs() * apart).sum(0).norm())),
            "dx" + which: (dx, rows * float(dx.norm()) + 8 * sums * float(
                ((gamma * rstd).abs() * (1 + apart) * dy.abs().mean(0)).norm())),
            "new_running_mean" + which: (0.9 * means + 0.1 * mean, sums * float(
                (means.abs() + x.abs().mean(0)).norm())),
            "new_running_var" + which: (0.9 * variances + 0.1 * spread, sums * float(
                (variances.abs() + spread).norm())),
        }  # fmt: skip
    y = z.relu() if activation == "relu" else z.clamp(0, 6)
    found["y"] = (y, rows * float(y.norm()) + 4 * sums * float(size.norm()))
    return found


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("others", [1, 2, 3])
def test_in_the_place_of_an_operand_the_same_bits(
    functions: Any, dtype: str, summed: bool, others: int
) -> None:
    forward = call_of("forward", dtype, "relu", False, others)
    back = call_of("backward", dtype, "relu", summed, others)
    for seed, shape in enumerate(SHAPES):
        given = operands(shape, dtype, seed)
        t = given | run(functions, given, forward, back)
        assert not other_bits_in_place(functions, forward, t)
        assert not other_bits_in_place(functions, back, t)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("activation", "others"), KINDS)
@pytest.mark.parametrize("summed", [False, True])
def test_random_shapes(
    functions: Any, dtype: str, activation: str, others: int, summed: bool
) -> None:
    calls = (
        call_of("forward", dtype, activation, False, others),
        call_of("backward", dtype, activation, summed, others),
    )
    wrong = []
    for seed, shape in enumerate(SHAPES):
        given = operands(shape, dtype, seed)
        made = run(functions, given, *calls)
        again = run(functions, given, *calls)
        for name, value in made.items():
            if not torch.equal(value.view(torch.uint8), again[name].view(torch.uint8)):
                wrong.append(f"{shape} {name}: two runs differ")
        for name, (right, limit) in wanted(given, made, activation, summed, others).items():
            got = made[name].double().reshape(right.shape)
            both = torch.isnan(got) & torch.isnan(right)
            error = float((got - right).masked_fill(both, 0).norm())
            if not error <= limit and not (error == 0 and bool(both.all())):
                wrong.append(f"{shape} {name}: {error:.1e}, at most {limit:.1e}")
    assert not wrong, "\n".join(wrong)
