"""Which side computes a convolution: by times that are taken once, or by rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import lax  # noqa: E402
from jax import numpy as jnp  # noqa: E402

import relay_wgrad.jax as rj  # noqa: E402
from relay_wgrad.jax import choice, comparison, foreign, targets  # noqa: E402
from relay_wgrad.jax.records import Options  # noqa: E402
from relay_wgrad.problem import ConvProblem  # noqa: E402

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """On CPUs; nothing is known from before."""
    before = rj.set_measured("cpu")
    monkeypatch.setattr(choice, "known", {})
    monkeypatch.setenv("RELAY_WGRAD_CACHE_MIB", "0")
    jax.clear_caches()
    yield
    rj.set_measured(*before)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many programs were compiled, how many pairs timed; for real."""
    found = Counter[str]()

    def counting(name: str, real: Any) -> Any:
        def called(*args: Any) -> Any:
            found[name] += 1
            return real(*args)

        return called

    for name in ("lowered", "times"):
        monkeypatch.setattr(comparison, name, counting(name, getattr(comparison, name)))
    return found


def chain(conv: Any, x: Any, weights: Any) -> Any:
    """Two layers of one problem, and one of another."""
    for w in weights:
        x = jnp.tanh(conv(x, w, (1,) * (x.ndim - 2), "SAME"))
    return (x**2).sum()


X = RNG.standard_normal((2, 4, 30))
WEIGHTS = [RNG.standard_normal(shape) for shape in ((4, 4, 3), (4, 4, 3), (5, 4, 3))]


def test_all_of_a_trace_are_compared_at_once_and_never_again(
    monkeypatch: pytest.MonkeyPatch, counted: Counter[str]
) -> None:
    asked: list[int] = []
    compare = foreign.compare

    def noted(wanted: Any, platform: str) -> None:
        before = counted["times"]
        compare(wanted, platform)
        asked.append(counted["times"] - before)

    monkeypatch.setattr(foreign, "compare", noted)

    def step(x: Any, weights: Any) -> Any:
        return jax.grad(lambda x, w: chain(rj.conv_general_dilated, x, w), (0, 1))(x, weights)

    want = jax.jit(jax.grad(lambda x, w: chain(lax.conv_general_dilated, x, w), (0, 1)))
    with rj.recorded() as records:
        got = jax.jit(step)(X, WEIGHTS)
    for one, two in zip(jax.tree.leaves(got), jax.tree.leaves(want(X, WEIGHTS)), strict=True):
        assert np.linalg.norm(one - two) <= 1e-12 * np.linalg.norm(two)
    # Two problems, each with its dgrad and wgrad; two programs of each.
    assert counted == {"times": 6, "lowered": 12}
    assert [n for n in asked if n] == [6]
    times = {r.problem: (r.ours_ms, r.lax_ms) for r in records}
    assert len(times) == 6
    assert all(0 < ms < 1e3 for pair in times.values() for ms in pair)
    for record in records:
        is_lax = record.ours_ms > 0.9 * record.lax_ms
        assert (is_lax, record.reason != "") in ((True, True), (False, False)), record
    jax.clear_caches()
    with rj.recorded() as again:
        jax.jit(step)(X, WEIGHTS)
    assert counted["times"] == 6
    assert {r.problem: (r.ours_ms, r.lax_ms) for r in again} == times


def test_times_are_kept_by_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, counted: Counter[str]
) -> None:
    """Another process asks the folder; with what is known to be XLA's, it builds no kernel."""
    monkeypatch.setenv("RELAY_WGRAD_CACHE", str(tmp_path))
    monkeypatch.delenv("RELAY_WGRAD_CACHE_MIB")
    problem = ConvProblem.parse("fprop n=1 c=2 h=5 w=5 k=3 r=3 s=3")
    monkeypatch.setattr(comparison, "times", lambda *programs: choice.Times(2.0, 1.0))
    foreign.call(problem, Options(), "cpu")
    assert counted["lowered"] == 2
    monkeypatch.setattr(choice, "known", {})
    monkeypatch.setattr(targets, "named", lambda *args: pytest.fail("a kernel is built"))
    with rj.recorded() as records:
        foreign.call(problem, Options(), "cpu")
    assert counted["lowered"] == 2
    reason = "XLA's is faster: 1.000 ms, this package's 2.000"
    assert records == [rj.Record(problem.repro(), reason, 2.0, 1.0)]


def test_the_faster_side_by_a_tenth() -> None:
    """What surrounds a call XLA cannot fuse with it."""
    for ours, theirs, is_ours in ((0.8, 1.0, True), (0.95, 1.0, False), (1.1, 1.0, False)):
        assert choice.Times(ours, theirs).is_ours is is_ours
    assert "about as fast: 1.000 ms, this package's 0.950" in choice.Times(0.95, 1.0).reason


@pytest.mark.parametrize(
    ("first", "later", "found", "most"),
    [
        ([0.001, 2.0], [0.001, 2.0], [0.001, 2.0], 2),  # the slow one runs once
        ([2.0, 0.001], [2.0, 0.001], [2.0, 0.001], 2),
        ([0.4, 0.4], [0.001, 0.001], [0.001, 0.001], 250),  # a first run that takes long
        ([0.01, 0.02], [0.002, 0.01], [0.002, 0.01], 20),
        ([0.01, 0.02], [0.008, 0.009], [0.008, 0.009], 40),
    ],
)
def test_rounds(first: list[float], later: list[float], found: list[float], most: int) -> None:
    """They end when one side is clearly faster."""
    calls = [0, 0]

    def run_of(i: int) -> Any:
        def run(count: int) -> float:
            calls[i] += count
            return first[i] if calls[i] == 1 else later[i]

        return run

    assert comparison.seconds([run_of(0), run_of(1)]) == found
    assert sum(calls) <= most + 4


PLAIN = "fprop n=8 c=64 h=14 w=14 k=64 r=3 s=3"


@pytest.mark.parametrize(
    ("line", "is_plain"),
    [
        (PLAIN, True), (PLAIN.replace("fprop", "wgrad"), True), (f"{PLAIN} stride=2,2", True),
        (f"{PLAIN} groups=64", False), (f"{PLAIN} dil=2,2", False),
        (PLAIN.replace("c=64", "c=3"), False),
        (PLAIN.replace("h=14", "h=1").replace("r=3", "r=1"), False),
        (PLAIN.replace("w=14", "w=5"), False),
    ],
)  # fmt: skip
def test_what_is_no_question_on_cuda(line: str, is_plain: bool, counted: Counter[str]) -> None:
    """Nothing is built and nothing timed for it, unless all are asked about."""
    problem = ConvProblem.parse(line)
    rj.set_measured("cuda")
    assert bool(choice.by_rule(problem, "cuda")) is is_plain
    assert choice.by_rule(problem, "cpu") == ""
    if is_plain:
        with rj.recorded() as records:
            foreign.call(problem, Options(), "cuda")  # without a GPU
        assert [r.reason for r in records] == ["XLA gives cuDNN the same convolution"]
    assert not counted
    for platforms in ((), ("cuda:all",), ("cuda", "cuda:all")):
        rj.set_measured(*platforms)
        assert choice.by_rule(problem, "cuda") == ""
        assert choice.is_measured("cuda") is bool(platforms)
    assert rj.set_measured() == ("cuda", "cuda:all")


def test_platforms_by_name() -> None:
    with pytest.raises(ValueError, match="platforms are cpu, cuda, cuda:all, got 'tpu'"):
        rj.set_measured("tpu")
