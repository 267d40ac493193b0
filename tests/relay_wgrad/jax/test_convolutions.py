"""`lax`'s convolutions by this package inside `jax.jit`; numbers of all shapes are the generator's
(`tests.fuzz.jax_convolutions`)."""

from __future__ import annotations

import inspect
import logging
import os
import threading
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import lax  # noqa: E402
from jax import numpy as jnp  # noqa: E402
from jax.experimental import checkify  # noqa: E402

import relay_wgrad.jax as rj  # noqa: E402
from relay_wgrad.jax import foreign  # noqa: E402
from relay_wgrad.jax.records import Options  # noqa: E402
from relay_wgrad.problem import ConvKind, ConvProblem  # noqa: E402
from tests.support.children import run_code  # noqa: E402
from tests.support.problems import random_operands, relative_error, torch_reference  # noqa: E402

EXACT = Options("HIGHEST")
RNG = np.random.default_rng(0)
X, W = RNG.standard_normal((4, 6, 9, 8)), RNG.standard_normal((5, 6, 3, 3))


def error(got: Any, want: Any) -> float:
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    return float(jnp.linalg.norm(jnp.ravel(got - want)) / jnp.linalg.norm(jnp.ravel(want)))


@pytest.mark.longer("XLA compiles each of them; training steps have loops too")
def test_loops_branches_and_functions_within_are_rewritten() -> None:
    @jax.checkpoint
    def block(x: Any, w: Any) -> Any:
        return jnp.tanh(lax.conv_general_dilated(x, w, (1, 1), "SAME"))

    def network(x: Any, weights: Any, scale: float = 2.0) -> Any:
        x, _ = lax.scan(lambda x, w: (block(x, w), None), x, weights)
        x = lax.cond(
            x.sum() > 0, lambda x: lax.conv(x, weights[0], (1, 1), "SAME"), lambda x: x * scale, x
        )
        x = lax.fori_loop(0, 2, lambda i, x: lax.conv(x, weights[1], (1, 1), "SAME"), x)
        return (jax.jit(lambda x: lax.conv(x, weights[1], (2, 2), "VALID"))(x) ** 2).sum()

    weights = RNG.standard_normal((3, 6, 6, 3, 3)) * 0.1
    want = jax.value_and_grad(network, 1)(X, weights)
    with rj.recorded() as records:
        got = jax.jit(rj.optimize(jax.value_and_grad(network, 1)))(X, weights)
    assert len(records) > 8
    assert [record.reason for record in records if record.reason] == []
    for found in (got[1], jax.jit(jax.grad(rj.optimize(network), 1))(X, weights)):
        assert error(found, want[1]) < 1e-12
    each = [
        jax.vmap(jax.grad(f, 1), (0, None))(X[:, None], weights)
        for f in (rj.optimize(network), network)
    ]
    assert error(*each) < 1e-12


def test_what_is_no_array_stays_as_it_is() -> None:
    def f(x: Any, w: Any, *, act: Any, train: bool, name: str) -> Any:
        assert train is True
        y = act(lax.conv(x, w, (1, 1), "SAME"))
        return {"y": y, "name": name, "none": None}

    found = rj.optimize(f)(X, W, act=jnp.sin, train=True, name="a")
    assert (found["name"], found["none"]) == ("a", None)
    assert error(found["y"], f(X, W, act=jnp.sin, train=True, name="a")["y"]) < 1e-12
    assert rj.optimize(f).__name__ == "f"


def test_derivative_rules_of_the_user_stay() -> None:
    @jax.custom_vjp
    def twice(x: Any, w: Any) -> Any:
        return 2 * lax.conv(x, w, (1, 1), "SAME")

    twice.defvjp(
        lambda x, w: (twice(x, w), (x, w)),
        lambda kept, g: (g.sum() * jnp.ones_like(kept[0]), jnp.zeros_like(kept[1])),
    )
    f = rj.optimize(twice)
    assert error(f(X, W), twice(X, W)) < 1e-12
    assert float(jax.grad(lambda x: f(x, W).sum())(X)[0, 0, 0, 0]) == twice(X, W).size


def test_zeros_between_pixels_are_a_dilation() -> None:
    """A transposed convolution that is written with `lax.pad`; not what pads with something else,
    or cuts pixels."""

    def f(x: Any, w: Any, value: Any = 0.0, low: int = 1, batch: int = 0) -> Any:
        config = ((0, batch, 0), (0, 0, 0), (low, 0, 1), (0, 2, 2))
        wide = lax.pad(x, jnp.asarray(value, x.dtype), config)
        return lax.conv(wide, w, (1, 1), "SAME")

    for options, kind in (
        ({}, "dgrad"), ({"value": 1.0}, "fprop"), ({"low": -1}, "fprop"), ({"batch": 1}, "fprop"),
    ):  # fmt: skip
        g = partial(f, **options)
        for function in (g, jax.grad(lambda x, w, g=g: jnp.sin(g(x, w)).sum(), (0, 1))):
            with rj.recorded() as records:
                got = rj.optimize(function)(X, W)
            for one, two in zip(jax.tree.leaves(got), jax.tree.leaves(function(X, W)), strict=True):
                assert error(one, two) < 1e-12
            assert records[0].problem.partition(" ")[0] == kind, options
    both = jax.vmap(rj.optimize(lambda x, w: f(x[None], w)), (0, None))(X, W)
    assert error(both[:, 0], f(X, W)) < 1e-12


def test_mutable_references() -> None:
    """They are written to once; functions within that are given one stay as they are."""
    if not hasattr(jax, "new_ref"):
        pytest.skip("this JAX has no references")
    import_module("flax.nnx")  # for which they are objects too

    def counted(count: Any, x: Any) -> Any:
        count[...] = count[...] + 1
        return lax.conv(x, jnp.asarray(W), (1, 1), "SAME")

    reason = "within a program of mutable references"
    for function, reasons in (
        (rj.optimize(counted), [""]), (jax.jit(rj.optimize(counted)), [""]),
        (rj.optimize(jax.jit(counted)), [reason]),
    ):  # fmt: skip
        count = jax.new_ref(jnp.zeros(()))
        with rj.recorded() as records:
            assert error(function(count, X), lax.conv(X, W, (1, 1), "SAME")) < 1e-12
        assert [record.reason for record in records] == reasons
        assert float(count[...]) == 1


@pytest.mark.parametrize("kind", ConvKind, ids=lambda kind: kind.value)
@pytest.mark.parametrize("line", [
    "n=2 c=4 h=7 w=6 k=6 r=3 s=2 stride=2,1 pad=0,2,1,0 dil=1,2 groups=2 layout=NHWC/HWIO/NHWC",
    "n=2 c=4 h=7 w=6 k=6 r=3 s=2 stride=2,1 pad=1,0,0,1 groups=2 layout=CNHW/IHOW/NCHW",
    "n=1 c=2 d=4 h=5 w=6 k=3 t=2 r=3 s=1 stride=1,2,1 pad=1,0,0,0,1,0 layout=NDHWC/DHWIO/NDHWC",
])  # fmt: skip
def test_a_problem_by_lax_and_around_a_library(line: str, kind: ConvKind) -> None:
    """What a platform without a kernel runs, and what CUDA has around cuDNN's kernel."""
    problem = ConvProblem.parse(f"{kind.value} {line} dtype=f64/f64/f64")
    operands = random_operands(problem, RNG)
    want = torch_reference(problem, *operands)
    inner = foreign.usual(problem)
    assert inner.padding[: inner.rank] == inner.padding[inner.rank :]
    assert {inner.data_layout, inner.grad_layout} <= {"NHWC", "NCHW", "NDHWC"}
    given = [jnp.asarray(x) for x in operands]
    for run in (
        foreign.by_lax(problem, EXACT),
        foreign.around(problem, inner, foreign.by_lax(inner, EXACT)),
    ):
        assert relative_error(np.asarray(run(*given)), want) < 1e-12


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtypes(dtype: str) -> None:
    x, w = jnp.asarray(X, dtype), jnp.asarray(W, dtype)
    with rj.recorded() as records:
        got = jax.jit(jax.grad(lambda w: (rj.conv(x, w, (1, 1), "SAME") ** 2).sum().astype("f4")))(
            w
        )
    want = jax.grad(lambda w: (lax.conv(x.astype("f8"), w, (1, 1), "SAME") ** 2).sum())(W)
    assert got.dtype == dtype
    assert (
        error(got.astype("f8"), want) < {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6}[dtype]
    )
    assert not any(record.reason for record in records)


def test_the_rest_is_laxs_and_says_why() -> None:
    half = jnp.asarray(X, "bfloat16"), jnp.asarray(W, "bfloat16")
    cases = {
        "of int32": (lambda: rj.conv(jnp.asarray(X, int), jnp.asarray(W, int), (1, 1), "SAME")),
        "of bfloat16 and bfloat16, summed as float32": (
            lambda: rj.conv(*half, (1, 1), "SAME", preferred_element_type=jnp.float32)
        ),
        "of 4 axes of pixels": (
            lambda: rj.conv(jnp.ones((1, 1, *[2] * 4)), jnp.ones([1] * 6), [1] * 4, "SAME")
        ),
    }  # fmt: skip
    for reason, call in cases.items():
        with rj.recorded() as records:
            call()
        assert [record.reason.replace("int64", "int32") for record in records] == [reason]


@pytest.mark.parametrize(("shapes", "padding"), [
    (((0, 6, 9, 8), (5, 6, 3, 3)), ((1, 1), (1, 1))),  # no images
    (((2, 0, 9, 8), (5, 0, 3, 3)), ((1, 1), (1, 1))),  # no channels
    (((1, 2, 3, 3), (3, 2, 5, 5)), ((0, 0), (0, 0))),  # no pixels of the result
    (((1, 2, 2, 3), (3, 2, 2, 1)), ((8, -2), (0, 0))),  # padding alone
])  # fmt: skip
def test_sums_without_a_term_are_zero(shapes: Any, padding: Any) -> None:
    x, w = jnp.full(shapes[0], jnp.nan), jnp.ones(shapes[1])

    def ours(x: Any, w: Any) -> Any:
        return rj.conv_general_dilated(x, w, (1, 1), padding)

    want = lax.conv_general_dilated(x, w, (1, 1), padding)
    for function in (ours, jax.jit(ours)):
        with rj.recorded() as records:
            got = function(x, w)
        assert (got.shape, got.dtype, bool(got.any())) == (want.shape, want.dtype, False)
        assert records == [rj.Record("zeros")]
    found = jax.grad(lambda x, w: ours(x, w).sum(), (0, 1))(x, w)
    assert [(g.shape, bool(g.any())) for g in found] == [(x.shape, False), (w.shape, False)]


def test_errors_are_laxs() -> None:
    for function in (rj.conv_general_dilated, lax.conv_general_dilated):
        with pytest.raises(ValueError, match="feature_group_count"):
            function(X, W, (1, 1), "SAME", feature_group_count=4)


@pytest.mark.parametrize("kind", ConvKind, ids=lambda kind: kind.value)
def test_laxs_own_has_the_precision_that_was_asked_for(kind: ConvKind) -> None:
    """Of a platform without a kernel, and where XLA's is faster."""
    problem = ConvProblem.parse(f"{kind.value} n=1 c=2 h=5 w=5 k=3 r=3 s=3")
    given = [jax.ShapeDtypeStruct(problem.shape(role), "float32") for role in problem.roles[:2]]
    for name in ("DEFAULT", "HIGH", "HIGHEST"):
        text = str(jax.make_jaxpr(foreign.by_lax(problem, Options(name)))(*given))
        assert f"Precision.{name}," in text.replace("\n", ",")


@pytest.mark.parametrize(("asked", "name"), [
    (None, "DEFAULT"), (lax.Precision.DEFAULT, "DEFAULT"), ("high", "HIGH"), ("float32", "HIGHEST"),
    (("high", "default"), "HIGH"), ((lax.Precision.HIGH, lax.Precision.HIGHEST), "HIGHEST"),
])  # fmt: skip
def test_the_precision_that_is_asked_for(asked: Any, name: str) -> None:
    """TF32 is for DEFAULT alone; derivatives have their function's, and the context's counts."""
    x, w = jnp.asarray(X, "float32"), jnp.asarray(W, "float32")

    def run(x: Any, w: Any) -> Any:
        return rj.conv(x, w, (1, 1), "SAME", precision=asked).sum()

    text = str(jax.make_jaxpr(jax.grad(run, (0, 1)))(x, w))
    assert text.count(f"Options(precision='{name}')") == text.count("Options(") >= 2
    assert Options(name).allow_tf32 is (name == "DEFAULT")
    if asked is None:
        with jax.default_matmul_precision("tensorfloat32"):
            assert "Options(precision='HIGH')" in str(jax.make_jaxpr(run)(x, w))
    got = jax.jit(lambda: rj.conv(x, w, (1, 1), "SAME", precision=asked))()
    assert error(got.astype("f8"), lax.conv(X, W, (1, 1), "SAME")) < 1e-6


def test_many_threads() -> None:
    step = jax.jit(jax.grad(lambda x, w: (rj.conv(x, w, (1, 1), "SAME") ** 2).sum(), (0, 1)))
    x, w = RNG.standard_normal((8, 32, 28, 28)), RNG.standard_normal((32, 32, 3, 3))
    want = jax.grad(lambda x, w: (lax.conv(x, w, (1, 1), "SAME") ** 2).sum(), (0, 1))(x, w)
    wrong: list[float] = []

    def work() -> None:
        for _ in range(3):
            found = step(x, w)
            wrong.extend(
                e for e in (error(a, b) for a, b in zip(found, want, strict=True)) if e > 1e-12
            )

    threads = [threading.Thread(target=work) for _ in range(6)]
    before = threading.active_count()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert threading.active_count() <= before + 2  # those that run kernels for all others


_ENDS = """
import numpy as np, jax, relay_wgrad.jax as rj
x, w = (np.ones(s, "float32") for s in ((4, 64, 56, 56), (64, 64, 3, 3)))
same = lambda x, w: rj.conv(x, w, (1, 1), "SAME")
step = jax.jit(jax.grad(lambda x, w: same(same(x, w), w).sum()))
jax.block_until_ready(step(x, w))
for _ in range(3):
    step(x, w)
"""


def test_a_process_ends_while_its_programs_run() -> None:
    done = run_code(_ENDS)
    assert done.returncode == 0, done.stderr[-2000:]


_SHARED = """
import numpy as np, jax
jax.config.update("jax_enable_x64", True)
from jax import lax, numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import relay_wgrad.jax as rj

mesh = Mesh(np.array(jax.devices()), ("b",))
assert mesh.size == 2
rng = np.random.default_rng(0)
x, w = rng.standard_normal((4, 6, 9, 8)), rng.standard_normal((5, 6, 3, 3))
xs, ws = (jax.device_put(a, NamedSharding(mesh, p)) for a, p in ((x, P("b")), (w, P())))

def loss(conv):
    return lambda x, w: jnp.sin(conv(x, w, (2, 1), "SAME")).sum()

def near(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        far, size = (float(jnp.linalg.norm(jnp.ravel(v))) for v in (a - b, b))
        assert far <= 1e-12 * size

want = jax.grad(loss(lax.conv), (0, 1))(x, w)
step = jax.jit(jax.grad(loss(rj.conv), (0, 1)))
text = step.lower(xs, ws).compile().as_text()
assert "all-gather" not in text, "each device has its own images"
assert "all-reduce" in text
got = step(xs, ws)
near(got, want)
assert got[0].sharding.spec == P("b"), got[0].sharding
odd = jax.device_put(x[:3], NamedSharding(mesh, P()))  # which the devices cannot share
near(step(odd, ws), jax.grad(loss(lax.conv), (0, 1))(x[:3], w))
mapped = jax.shard_map(
    lambda x, w: lax.psum(loss(rj.conv)(x, w), "b"), mesh=mesh, in_specs=(P("b"), P()),
    out_specs=P(),
)
near(jax.jit(jax.grad(mapped, (0, 1)))(xs, ws), want)

# Of `lax`'s the bodies are rewritten, of the function and of its gradient.
plain = jax.shard_map(
    lambda x, w: lax.psum(loss(lax.conv)(x, w), "b"), mesh=mesh, in_specs=(P("b"), P()),
    out_specs=P(),
)
for function, count in (
    (jax.grad(rj.optimize(plain), (0, 1)), 1), (rj.optimize(jax.grad(plain, (0, 1))), 3),
    (rj.optimize(jax.jit(jax.grad(plain, (0, 1)))), 3),
):
    with rj.recorded() as records:
        near(jax.jit(function)(xs, ws), want)
    assert [record.reason for record in records] == [""] * count, records
    assert all("n=2 " in record.problem for record in records), records
whole = jax.shard_map(lambda x, w: lax.conv(x, w, (1, 1), "SAME"), mesh=mesh,
                      in_specs=(P("b"), P()), out_specs=P("b"), check_vma=False)
near(rj.optimize(whole)(xs, ws), lax.conv(x, w, (1, 1), "SAME"))
"""
_SHARED_STEPS = """
@jax.checkpoint
def layer(x, w):
    return jnp.tanh(conv(x, w, (1, 1), "SAME")) + x

def step(weights, x):
    def loss(weights, x):
        return (lax.scan(lambda x, w: (layer(x, w), None), x, weights)[0] ** 2).mean()
    value, gradients = jax.value_and_grad(loss)(weights, x)
    return weights - 0.1 * gradients, value

deep, found = rng.standard_normal((3, 6, 6, 3, 3)) * 0.1, []
for conv, images, place in ((lax.conv, x, None), (rj.conv, xs, NamedSharding(mesh, P()))):
    weights = jax.device_put(jnp.asarray(deep), place)
    run = jax.jit(lambda *given: step(*given), donate_argnums=0)
    for _ in range(3):
        weights, value = run(weights, images)
    found.append((weights, value))
    if conv is rj.conv:
        assert "all-gather" not in run.lower(weights, images).compile().as_text()
near(*found)
"""


def shared(code: str) -> None:
    """The code ends well where two devices are."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    done = run_code(f"{code}\nprint('shared')", env={"XLA_FLAGS": flags})
    assert (done.returncode, done.stdout.strip()) == (0, "shared"), done.stderr[-3000:]


def test_images_that_two_devices_share() -> None:
    shared(_SHARED)


@pytest.mark.longer("whole training steps; one gradient stays")
def test_steps_whose_images_two_devices_share() -> None:
    shared(_SHARED + _SHARED_STEPS)


def deep(conv: Any) -> Any:
    """A loss of images and of the weights of layers, which are scanned and recomputed."""

    @jax.checkpoint
    def layer(x: Any, w: Any) -> Any:
        return jnp.tanh(conv(x, w, (1, 1), "SAME")) + x

    def loss(weights: Any, x: Any) -> Any:
        return (lax.scan(lambda x, w: (layer(x, w), None), x, weights)[0] ** 2).mean()

    return loss


@pytest.mark.longer("whole training steps")
def test_donated_weights() -> None:
    """Each step's weights take the place of those before."""

    def trained(conv: Any) -> tuple[list[float], Any]:
        def step(weights: Any, x: Any) -> Any:
            value, gradients = jax.value_and_grad(deep(conv))(weights, x)
            return weights - 0.1 * gradients, value

        run, weights = jax.jit(step, donate_argnums=0), jnp.asarray(weights_first)
        values = []
        for _ in range(5):
            last = weights
            weights, value = run(weights, X)
            values.append(float(value))
            assert last.is_deleted()
        return values, weights

    weights_first = RNG.standard_normal((3, 6, 6, 3, 3)) * 0.1
    (ours, last), (theirs, wanted) = trained(rj.conv), trained(lax.conv)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    assert error(last, wanted) < 1e-12


@pytest.mark.longer("the random ones have vmap too")
def test_gradients_of_each_sample() -> None:
    """`vmap` of `grad` of what is scanned and recomputed, and its own gradient."""
    weights = jnp.asarray(RNG.standard_normal((2, 6, 6, 3, 3)) * 0.1)

    def each(conv: Any) -> Any:
        def sizes(weights: Any, x: Any) -> Any:
            made = jax.vmap(jax.grad(deep(conv)), (None, 0))(weights, x[:, None])
            return jnp.sqrt((made**2).sum((1, 2, 3, 4, 5))).sum(), made

        return jax.jit(jax.value_and_grad(sizes, has_aux=True))

    for got, want in zip(
        *(jax.tree.leaves(each(conv)(weights, X)) for conv in (rj.conv, lax.conv)), strict=True
    ):
        assert error(got, want) < 1e-11


@pytest.mark.longer("a thousand steps, of four threads at once")
def test_steps_need_no_more_memory() -> None:
    import resource

    step = jax.jit(jax.grad(lambda x, w: (rj.conv(x, w, (1, 1), "SAME") ** 2).sum(), (0, 1)))
    x, w = RNG.standard_normal((8, 32, 28, 28)), RNG.standard_normal((32, 32, 3, 3))
    sizes, counts = [], []

    def work(count: int) -> None:
        for _ in range(count):
            jax.block_until_ready(step(x, w))

    for count in (50, 200):  # of each thread; the first ones make what stays
        threads = [threading.Thread(target=work, args=(count,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        counts.append(len(list(Path("/proc/self/task").iterdir())))
    assert sizes[1] - sizes[0] < 50_000  # KiB: a result is 1,600, a leak of one a step 1,280,000
    assert counts[1] <= counts[0] + 1  # one that has ended may still be listed


def test_importing_this_imports_no_jax() -> None:
    done = run_code("import sys, relay_wgrad.jax; print('jax' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize("name", ["conv_general_dilated", "conv", "conv_transpose"])
def test_arguments_are_laxs(name: str) -> None:
    """Layers give them by name, and newer releases have more: all that this JAX has."""
    ours, theirs = (inspect.signature(getattr(of, name)).parameters for of in (rj, lax))
    assert list(ours)[: len(theirs)] == list(theirs)
    assert [p.default for p in ours.values()][: len(theirs)] == [p.default for p in theirs.values()]


ROWS: dict[str, dict[str, Any]] = {
    "an array": {"window_strides": np.array([2, 1])},
    "out_sharding": {"out_sharding": None},
    "numpy's integers": {"window_strides": (1, 1), "rhs_dilation": (np.int64(2), np.int32(1))},
}


@pytest.mark.parametrize("name", ROWS)
def test_values_of_arguments_are_laxs(name: str) -> None:
    row = {"window_strides": (1, 1), "padding": "SAME", **ROWS[name]}
    with rj.recorded() as records:
        found = rj.conv_general_dilated(X, W, **row)
    assert [record.reason for record in records] == [""]
    np.testing.assert_allclose(found, lax.conv_general_dilated(X, W, **row), atol=1e-5)


@pytest.mark.parametrize("name", ["window_strides", "lhs_dilation", "rhs_dilation"])
def test_what_xla_refuses(name: str) -> None:
    row = {"window_strides": (1, 1), "padding": "VALID", name: (0, 1)}
    messages = []
    for function in (rj.conv_general_dilated, lax.conv_general_dilated):
        with np.errstate(divide="ignore"), pytest.raises((ValueError, TypeError)) as caught:
            function(X, W, **row)
        messages.append(str(caught.value).partition("loc(")[0])
    assert messages[0] == messages[1]


def test_without_jit() -> None:
    """`disable_jit` is for the user's functions."""
    want = lax.conv_general_dilated(X, W, (1, 1), "SAME")
    with jax.disable_jit():
        for function in (rj.conv_general_dilated, rj.optimize(lax.conv_general_dilated)):
            np.testing.assert_allclose(function(X, W, (1, 1), "SAME"), want, atol=1e-5)


def test_checkify_sees_nan() -> None:
    def run(x: Any) -> Any:
        return rj.conv_general_dilated(x, W, (1, 1), "SAME").sum()

    for of in (run, jax.grad(lambda x: run(x) ** 2)):
        checked = jax.jit(checkify.checkify(of, errors=checkify.float_checks))
        assert checked(X)[0].get() is None
        error = checked(jnp.asarray(X).at[0, 0, 0, 0].set(jnp.nan))[0]
        assert "nan generated by primitive: relay_wgrad_convolution" in (error.get() or "")


def test_an_exported_program_has_laxs() -> None:
    """Another process would not have the kernels."""
    function = jax.jit(lambda x: rj.conv_general_dilated(x, W, (1, 1), "SAME"))
    with rj.recorded() as records:
        made = jax.export.export(function)(jax.ShapeDtypeStruct(X.shape, X.dtype))
    assert "custom_call" not in made.mlir_module()
    assert [record.reason for record in records] == ["in an exported program"]
    np.testing.assert_allclose(made.call(X), function(X), atol=1e-5)


def test_what_is_rewritten_is_so_once() -> None:
    """XLA compiles a program of each function in `jit` once, though `optimize` traces each call."""
    inner = jax.jit(lambda x: jnp.tanh(lax.conv_general_dilated(x, W, (1, 1), "SAME")))
    function, compiled = rj.optimize(inner), []
    function(X)
    with rj.recorded() as records, jax.log_compiles():
        handler = logging.Handler()
        handler.emit = lambda record: compiled.append(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("jax")
        logger.addHandler(handler)
        try:
            found = function(X)
        finally:
            logger.removeHandler(handler)
    assert [line for line in compiled if line.startswith("Finished XLA")] == []
    assert [record.reason for record in records] == [""]
    np.testing.assert_allclose(found, inner(X), atol=1e-5)


def test_what_cannot_be_called() -> None:
    with pytest.raises(TypeError, match="optimize: function must be callable, got int"):
        rj.optimize(3)  # type: ignore[arg-type]
