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


def test_a_program_that_is_late_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, counted: Counter[str]
) -> None:
    """Its problem is this package's, and stays so; the record says why."""
    monkeypatch.setattr(foreign, "PATIENCE", 0.0)
    problem = ConvProblem.parse("fprop n=1 c=3 h=6 w=7 k=2 r=3 s=3 dtype=f64/f64/f64")
    for _ in range(2):
        with rj.recorded() as records:
            run = foreign.call(problem, Options(), "cpu")
        assert [(r.reason, r.ours_ms, r.lax_ms) for r in records] == [("", None, float("inf"))]
    assert counted == {"lowered": 1}
    x, w = RNG.standard_normal((1, 3, 6, 7)), RNG.standard_normal((2, 3, 3, 3))
    want = lax.conv_general_dilated(x, w, (1, 1), "VALID")
    assert np.linalg.norm(jax.jit(run)(x, w) - want) <= 1e-12 * np.linalg.norm(want)


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
LINE = "fprop n=8 c=64 h=1 w=900 k=64 r=1 s=3"
TRANSPOSED = "dgrad n=8 c=1 h=1 w=66304 k=512 r=1 s=1024 stride=1,256"
LAXS = "XLA gives cuDNN the same convolution"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (PLAIN, LAXS), (PLAIN.replace("fprop", "wgrad"), LAXS), (f"{PLAIN} stride=2,2", LAXS),
        (f"{PLAIN} groups=64", None), (f"{PLAIN} dil=2,2", None),
        (PLAIN.replace("c=64", "c=3"), None), (PLAIN.replace("w=14", "w=5"), None),
        (LINE, LAXS), (LINE.replace("fprop", "dgrad"), LAXS), (f"{LINE} dil=1,2", None),
        (LINE.replace("w=900", "w=5"), None), (LINE.replace("c=64", "c=3"), None),
        (LINE.replace("fprop", "wgrad"), ""), (f"{LINE} groups=64".replace("fprop", "wgrad"), ""),
        (f"{LINE} dil=1,8 groups=64".replace("fprop", "wgrad"), ""),
        (f"{LINE} stride=1,2".replace("fprop", "wgrad"), None),
        (LINE.replace("fprop", "wgrad").replace("w=900", "w=40"), None),
        (LINE.replace("fprop", "wgrad").replace("h=1 ", "h=2 "), LAXS),
        (TRANSPOSED, ""), (TRANSPOSED.replace("dgrad", "fprop"), ""),
        (TRANSPOSED.replace("dgrad", "wgrad"), ""), (TRANSPOSED.replace("s=1024", "s=63"), None),
        (TRANSPOSED.replace("stride=1,256", "stride=1,16"), None),
    ],
)  # fmt: skip
def test_what_is_no_question_on_cuda(line: str, reason: str | None, counted: Counter[str]) -> None:
    """Nothing is timed for it, and nothing built for what is `lax`'s, unless all are asked about.

    reason : why it is `lax`'s, "" where it is not; None of what is timed.
    """
    problem = ConvProblem.parse(line)
    rj.set_measured("cuda")
    rule = choice.by_rule(problem, "cuda")
    assert (None if rule is None else rule.reason) == reason
    assert choice.by_rule(problem, "cpu") is None
    if reason:
        with rj.recorded() as records:
            foreign.call(problem, Options(), "cuda")  # without a GPU
        assert [r.reason for r in records] == [LAXS]
    assert not counted
    for platforms in ((), ("cuda:all",), ("cuda", "cuda:all")):
        rj.set_measured(*platforms)
        assert choice.by_rule(problem, "cuda") is None
        assert choice.is_measured("cuda") is bool(platforms)
    assert rj.set_measured() == ("cuda", "cuda:all")


@pytest.mark.parametrize(("ours", "timed"), [(1.0, 2), (1.9, 4)])
def test_kin_are_timed_once_where_it_is_clear(
    ours: float, timed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that differ in how far they are dilated; not those that are not."""
    found: list[Any] = []

    def times(*programs: Any) -> choice.Times:
        found.append(programs)
        return choice.Times(ours, 2.0)

    monkeypatch.setattr(comparison, "times", times)
    monkeypatch.setattr(comparison, "lowered", lambda problem, *rest: Compiled())
    line = "fprop n=2 c=4 h=1 w=30 k=4 r=1 s=3 groups=4"
    steps = [ConvProblem.parse(f"{line} pad=0,{d},0,{d} dil=1,{d}") for d in (1, 2, 4, 8)]
    foreign.compare([(problem, Options()) for problem in steps], "cpu")
    assert len(found) == timed
    of_each = [choice.kept(problem, Options(), "cpu") for problem in steps]
    assert of_each == [choice.Times(ours, 2.0)] * 4
    assert choice.kept(ConvProblem.parse(f"{line} dil=1,2"), Options(), "cpu") is None  # shorter


class Compiled:
    def compile(self) -> Compiled:
        return self


@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("rest", ["", " groups=4 dil=1,3", " layout=NHWC/OHWI/NHWC stride=1,2"])
def test_lines_are_laxs_of_one_axis(kind: str, rest: str) -> None:
    """XLA tells a weight gradient of one axis from one of an image's single row."""
    line = f"{kind} n=2 c=4 h=1 w=20 k=8 r=1 s=3 pad=0,2,0,1{rest} dtype=f64/f64/f64"
    problem = ConvProblem.parse(line)
    given = [RNG.standard_normal(problem.shape(role)) for role in problem.roles[:2]]
    run = foreign.by_lax(problem, Options())
    text = str(jax.make_jaxpr(run)(*given))
    assert "window_strides=(1,)" in text or "window_strides=(2,)" in text or kind != "fprop"
    wider = problem.repro().replace("h=1 ", "h=2 ").replace("r=1 ", "r=2 ")  # no line: two rows
    padded = [
        np.concatenate([x, 0 * x], problem.layout(role).index("H")) if role != "grad" else x
        for role, x in zip(problem.roles, given, strict=False)
    ]
    want = foreign.by_lax(ConvProblem.parse(wider), Options())(*padded)
    role = problem.roles[2]
    if role != "grad":
        want = jnp.take(want, jnp.array([0]), problem.layout(role).index("H"))
    got = run(*given)
    assert got.shape == problem.shape(role)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_platforms_by_name() -> None:
    with pytest.raises(ValueError, match="platforms are cpu, cuda, cuda:all, got 'tpu'"):
        rj.set_measured("tpu")
