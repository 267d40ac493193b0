"""First-order gradients of programs: Relay's own results, slopes, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

from relay_wgrad import relay
from relay_wgrad.relay import transform
from relay_wgrad.relay.records.hooks import GRADIENTS
from relay_wgrad.relay.text import fromtext
from tests.support.fast import FAST
from tests.support.relay.fixtures import load
from tests.support.relay.texts import HEADER, call_chain, fixture_text
from tests.support.timing import seconds

VECTOR = "Tensor[(3), float32]"
X = np.array([1, -2, 3], "float32")


@pytest.mark.parametrize("name", ["smallnet", "mlp", "resnet8_cifar"])
def test_the_same_program_as_relay(name: str) -> None:
    """Node for node what Relay's FirstOrderGradient printed, so its numbers too."""
    forward = fromtext(fixture_text(f"{name}_fwd"))
    ours = transform.FirstOrderGradient()(transform.SimplifyInference()(forward))
    assert relay.structural_equal(ours, fromtext(fixture_text(f"{name}_grad")))


# Relay has no gradient of the one, and cannot run that of the other (depthwise).
@pytest.mark.longer("whole networks; smaller ones stay")
@pytest.mark.parametrize("name", ["dcgan_fwd", "mobilenet_fwd"])
@pytest.mark.usefixtures("registered")
def test_networks_of_which_relay_has_none(name: str) -> None:
    """The slope of a weighted sum of the outputs, in float64, along a random direction."""
    mod = fromtext(fixture_text(name).replace("float32", "float64"))
    main = transform.InferType()(mod)["main"]
    rng = np.random.default_rng(3)
    # Of the deep one the first blocks: compiling is what takes the time.
    calls = [n for n in relay.ast.post_order(main) if isinstance(n, relay.Call)]
    result = calls[-1] if name == "dcgan_fwd" else calls[18]
    depthwise = [n for n in relay.ast.post_order(result) if "groups" in getattr(n, "attrs", ())]
    assert len(depthwise) == (0 if name == "dcgan_fwd" else 3), len(depthwise)
    weights = relay.Constant(rng.standard_normal(result.checked_type.shape))
    weighted = relay.Function(main.params, result * weights)
    mod = transform.FirstOrderGradient()(relay.IRModule({"main": weighted}))
    mod = transform.Sequential([transform.ToGraphNormalForm(), transform.SimplifyExpr()])(mod)
    module = built(mod)
    params = {k: v.astype("float64") for k, v in load(name)[0].items()}
    ways = {k: rng.standard_normal(v.shape) * np.abs(v).mean() for k, v in params.items()}
    module.run(**params)
    grads = [module.get_output(i + 1).numpy() for i in range(len(params))]
    inner = sum(float((g * ways[k]).sum()) for g, k in zip(grads, params, strict=True))

    def at(step: float) -> float:
        module.run(**{k: v + step * ways[k] for k, v in params.items()})
        return float(module.get_output(0).numpy().sum())

    slope = (at(1e-6) - at(-1e-6)) / 2e-6
    assert abs(slope) > 0.1
    assert inner == pytest.approx(slope, rel=1e-6)


def built(mod: relay.IRModule) -> relay.graph_executor.GraphModule:
    target = FAST
    return relay.graph_executor.GraphModule(relay.build(mod, target)["default"](tvm.cpu()))


def run(text: str, **inputs: Any) -> list[np.ndarray]:
    """The results and gradients of a program, flat."""
    module = built(transform.FirstOrderGradient()(fromtext(HEADER + text)))
    module.run(**inputs)
    return [module.get_output(i).numpy() for i in range(module.get_num_outputs())]


PROGRAMS: dict[str, tuple[str, list[Any]]] = {
    "a value used several times": (
        f"def @main(%x: {VECTOR}) {{ %0 = multiply(%x, %x); add(multiply(%0, %x), %0) }}",
        [X**3 + X**2, 3 * X**2 + 2 * X],
    ),
    "a parameter that is not used": (
        f"def @main(%x: {VECTOR}, %y: {VECTOR}) {{ negative(%x) }}",
        [-X, -np.ones(3), np.zeros(3)],
    ),
    "a parameter is the result": (f"def @main(%x: {VECTOR}) {{ %x }}", [X, np.ones(3)]),
    "a tuple of results, nested": (
        f"def @main(%x: {VECTOR}) {{ %0 = negative(%x); (%0, (multiply(%x, %x), %0)) }}",
        [-X, X**2, -X, 2 * X - 2],
    ),
    "lets, and one that is not used": (
        (
            f"def @main(%x: {VECTOR}) {{ let %a = multiply(%x, %x); let %b = exp(%a);"
            " let %c = add(%a, %x); %c }"
        ),
        [X**2 + X, 2 * X + 1],
    ),
    "a constant": (f"def @main(%x: {VECTOR}) {{ multiply(%x, 3f) }}", [3 * X, 3 * np.ones(3)]),
    "functions that are values, called twice": (
        (
            f"def @main(%x: {VECTOR}) {{ let %f = fn (%a: {VECTOR}, %b: {VECTOR})"
            " { multiply(%a, %b) }; %f(%f(%x, %x), %x) }"
        ),
        [X**3, 3 * X**2],
    ),
    "calls of another global function": (
        f"def @sq(%x: {VECTOR}) {{ multiply(%x, %x) }}def @main(%x: {VECTOR}) {{ @sq(@sq(%x)) }}",
        [X**4, 4 * X**3],
    ),
    "fields of a split": (
        f"def @main(%x: {VECTOR}) {{ %0 = split(%x, indices_or_sections=[1]); (%0.1, %0.1) }}",
        [X[1:], X[1:], [0, 2, 2]],
    ),
    "a bool on the way": (
        f"def @main(%x: {VECTOR}) {{ where(less(%x, 0f), negative(%x), exp(%x)) }}",
        [np.where(X < 0, -X, np.exp(X)), np.where(X < 0, -1, np.exp(X))],
    ),
    "an integer on the way": (
        (
            f'def @main(%x: {VECTOR}) {{ multiply(%x, cast(cast(%x, dtype="int32"),'
            ' dtype="float32")) }'
        ),
        [X * X, X],
    ),
    "a mean over a tuple parameter's part": (
        f"def @main(%x: {VECTOR}) {{ %0 = (%x, (exp(%x), %x)); mean((%0.1).1) }}",
        [X.mean(), np.ones(3) / 3],
    ),
}


@pytest.mark.share(5)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.usefixtures("registered")
def test_programs(name: str) -> None:
    text, expected = PROGRAMS[name]
    inputs = {"x": X, "y": X} if "%y" in text else {"x": X}
    got = run(text, **inputs)
    assert len(got) == len(expected)
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("registered")
def test_an_integer_parameter_has_zeros() -> None:
    text = f"def @main(%x: {VECTOR}, %i: Tensor[(2), int32]) {{ take(%x, %i, axis=0) }}"
    taken, by_x, by_i = run(text, x=X, i=np.array([2, 2], "int32"))
    np.testing.assert_array_equal(taken, X[[2, 2]])
    np.testing.assert_array_equal(by_x, [0, 0, 2])
    assert (by_i.dtype, by_i.tolist()) == (np.int32, [0, 0])


@pytest.mark.usefixtures("registered")
def test_an_unknown_batch() -> None:
    text = "def @main(%x: Tensor[(?, 4), float32], %w: Tensor[(2, 4), float32]) {"
    text += " nn.relu(nn.dense(%x, %w, units=2)) }"
    w = np.array([[1, 2, 3, 4], [-1, -1, -1, -1]], "float32")
    for rows in (1, 3):
        x = np.ones((rows, 4), "float32")
        _, by_x, by_w = run(text, x=x, w=w)
        np.testing.assert_allclose(by_x, np.tile(w[0], (rows, 1)))
        np.testing.assert_allclose(by_w, [[rows] * 4, [0] * 4])


@pytest.mark.longer
@pytest.mark.usefixtures("registered")
def test_the_gradient_of_a_gradient() -> None:
    """Of a convolution's: by the rules of its gradients."""
    shapes = {"x": (1, 2, 5, 5), "w": (3, 2, 3, 3)}
    x, w = (relay.Var(n, relay.TensorType(s, "float64")) for n, s in shapes.items())
    conv = relay.transform.InferType()(
        relay.IRModule({"main": relay.Function((x, w), _conv_square(x, w))})
    )
    once = transform.FirstOrderGradient()(conv)["main"]
    # The squared norm of the first gradient, by a function around it.
    first = relay.TupleGetItem(relay.Call(once, (x, w)), 1)
    norm = _sum_of_squares(relay.TupleGetItem(first, 0)) + _sum_of_squares(
        relay.TupleGetItem(first, 1)
    )
    twice = transform.gradient(relay.Function((x, w), norm))
    module = built(relay.IRModule({"main": twice}))
    rng = np.random.default_rng(1)
    at = {n: rng.standard_normal(s) for n, s in shapes.items()}
    ways = {n: rng.standard_normal(s) for n, s in shapes.items()}
    module.run(**at)
    inner = sum(float((module.get_output(i + 1).numpy() * ways[n]).sum()) for i, n in enumerate(at))
    values = []
    for step in (1e-6, -1e-6):
        module.run(**{n: at[n] + step * ways[n] for n in at})
        values.append(float(module.get_output(0).numpy()))
    assert inner == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-6)


def _sum_of_squares(x: relay.Expr) -> relay.Expr:
    return relay.sum(relay.multiply(x, x))


def _conv_square(x: relay.Var, w: relay.Var) -> relay.Expr:
    return _sum_of_squares(relay.nn.conv2d(x, w, strides=(2, 2), padding=(1, 1)))


@pytest.mark.usefixtures("registered")
def test_normalizations_need_no_pass_before() -> None:
    """The same numbers as after SimplifyInference; the moving statistics are results too."""
    text = """def @main(%x: Tensor[(2, 3, 2, 2), float32], %g: Tensor[(3), float32],
      %b: Tensor[(3), float32], %m: Tensor[(3), float32], %v: Tensor[(3), float32]) {
      %0 = nn.batch_norm(%x, %g, %b, %m, %v);
      %1 = nn.dropout(%0.0);
      (multiply(%1.0, %1.0), multiply(%0.2, 2f))
    }"""
    rng = np.random.default_rng(0)
    inputs = {n: rng.random(3).astype("float32") + 0.5 for n in "gbmv"}
    inputs["x"] = rng.random((2, 3, 2, 2)).astype("float32")
    got = run(text, **inputs)
    shape = (1, 3, 1, 1)
    g, b, m, v = (inputs[n].reshape(shape).astype("float64") for n in "gbmv")
    hat = (inputs["x"] - m) / np.sqrt(v + 1e-5)
    y = hat * g + b
    by_y = 2 * y
    axes = (0, 2, 3)
    by_v = (by_y * g * (inputs["x"] - m) * -0.5 * (v + 1e-5) ** -1.5).sum(axes) + 2
    want = [
        y * y, 2 * v.ravel(), by_y * g / np.sqrt(v + 1e-5), (by_y * hat).sum(axes),
        by_y.sum(axes), -(by_y * g / np.sqrt(v + 1e-5)).sum(axes), by_v,
    ]  # fmt: skip
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4)


def test_a_users_rule_counts() -> None:
    GRADIENTS.add("nn.relu", lambda orig, grad: [relay.negative(grad)], 10)
    try:
        out = transform.FirstOrderGradient()(
            fromtext(f"{HEADER}def @main(%x: {VECTOR}) {{ nn.relu(%x) }}")
        )
    finally:
        GRADIENTS.remove("nn.relu", 10)
    names = [n.op.name for n in relay.ast.post_order(out["main"]) if isinstance(n, relay.Call)]
    assert "negative" in names
    assert "less" not in names


REFUSED = {
    f"def @main(%x: {VECTOR}) {{ prod(%x) }}": r"operator prod has no gradient \(.*:2:",
    f"def @main(%x: {VECTOR}) -> {VECTOR} {{ @main(%x) }}": "recursion has no gradient",
    f"def @main(%x: {VECTOR}) {{ fn (%y: {VECTOR}) {{ %y }} }}": "a function that is not called",
    f"def @main(%x: {VECTOR}) {{ take(%x, 1, axis=0, batch_dims=1) }}": "batch_dims=0",
    'def @main(%x: Tensor[(3, 3), float32]) { nn.pad(%x, 0f, pad_width=[[1, 1], [0, 0]],'
    ' pad_mode="edge") }': r"the gradient of nn.pad: only with pad_mode='constant'.*:2:",
    "def @main(%x: Tensor[(1, 1, 6, 6), float32]) { nn.max_pool2d(%x, pool_size=[2, 2],"
    " dilation=[2, 2]) }": r"only with dilation 1, got \[2, 2\]",
    "def @main(%x: Tensor[(?, 4), float32]) { tile(%x, reps=[2, 1]) }": r"tile: needs known sizes",
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=REFUSED[text]):
        transform.FirstOrderGradient()(fromtext(HEADER + text))


@pytest.mark.parametrize(
    ("rule", "match"),
    [
        (lambda orig, grad: [], "must give 1 gradients, one for each argument, got 0"),
        (lambda orig, grad: [relay.sum(grad)], r"argument 0 must be Tensor\[\(3\).*got float32"),
        (lambda orig, grad: [1.0], "argument 0 must be an expression, got 1.0"),
    ],
)
def test_a_wrong_rule(rule: Any, match: str) -> None:
    GRADIENTS.add("nn.relu", rule, 11)
    try:
        with pytest.raises((ValueError, TypeError), match=f"nn.relu .*{match}"):
            transform.FirstOrderGradient()(
                fromtext(f"{HEADER}def @main(%x: {VECTOR}) {{ nn.relu(%x) }}")
            )
    finally:
        GRADIENTS.remove("nn.relu", 11)


def test_misuse_of_gradient() -> None:
    x = relay.Var("x", relay.TensorType((3,), "float32"))
    with pytest.raises(ValueError, match="first_order or higher_order, got 'forward'"):
        transform.gradient(relay.Function((x,), x), mode="forward")
    with pytest.raises(TypeError, match="expected a function, got Var"):
        transform.gradient(x)
    with pytest.raises(ValueError, match="%x is not bound here"):
        transform.gradient(relay.Function((), relay.negative(x)))


@pytest.mark.longer("programs long enough to tell linear time")
def test_depth_costs_no_stack_and_linear_time() -> None:
    def cost(depth: int) -> float:
        text = call_chain(depth).replace("%x)", f"%x: {VECTOR})", 1)
        mod = fromtext(text)
        return seconds(lambda: transform.FirstOrderGradient()(mod), 2)

    short, long = cost(500), cost(4000)
    assert long < 8 * short * 3  # quadratic would be 64 times
