"""`relay.transform.RaiseConvBackward`: data gradients, what stays, and time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.rewrite import rewrite
from relay_wgrad.transform import RaiseReport
from tests.support.relay.raise_programs import (
    DGRAD,
    LETS,
    WGRAD,
    W,
    X,
    checked,
    fixture,
    ops,
    program,
    raised,
)
from tests.support.timing import seconds

pytestmark = pytest.mark.usefixtures("registered")

# ---- data gradients ------------------------------------------------------------------------------


def flipped(
    *,
    grad: Any = (2, 4, 4, 5),
    weight: Any = None,
    stride: Any = (1, 1),
    dilation: int = 1,
    groups: int = 1,
    padding: Any = None,
    extra: Any = (0, 0),
    layout: str = "NCHW",
    flips: Any = (2, 3),
    swapped: bool = True,
) -> relay.IRModule:
    """conv2d of the gradient, with zeros between its pixels, and the flipped weight."""
    g = relay.var("grad", shape=grad, dtype="float32")
    w = relay.var("weight", shape=weight or (4, 6 // groups, 3, 2), dtype="float32")
    n, k, p, q = grad
    _, cg, r, s = weight or (4, 6 // groups, 3, 2)
    x, y = g, w
    if stride != (1, 1):
        x = relay.reshape(x, (n, k, p, 1, q, 1))
        widths = [[0, 0]] * 3 + [[0, stride[0] - 1], [0, 0], [0, stride[1] - 1]]
        x = relay.nn.pad(x, widths)
        x = relay.reshape(x, (n, k, p * stride[0], q * stride[1]))
        end = [n, k, (p - 1) * stride[0] + 1, (q - 1) * stride[1] + 1]
        x = relay.strided_slice(x, [0, 0, 0, 0], end)
    if extra != (0, 0):
        x = relay.nn.pad(x, [[0, 0], [0, 0], [0, extra[0]], [0, extra[1]]])
    for axis in flips:
        y = relay.reverse(y, axis)
    if groups > 1:
        y = relay.reshape(y, (groups, k // groups, cg, r, s))
        y = relay.transpose(y, (0, 2, 1, 3, 4))
        y = relay.reshape(y, (groups * cg, k // groups, r, s))
    elif swapped:
        y = relay.transpose(y, (1, 0, 2, 3))
    full = [dilation * (r - 1), dilation * (s - 1)] * 2
    if layout != "NCHW":
        x = relay.layout_transform(x, "NCHW", layout)
    out = relay.nn.conv2d(
        x, y, padding=full if padding is None else padding, dilation=dilation, groups=groups,
        data_layout=layout,
    )  # fmt: skip
    return T.InferType()(relay.IRModule.from_expr(relay.Function([g, w], out)))


DATA_GRADIENTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "stride": ({"stride": (2, 3)}, {"strides": (2, 3)}),
    "rows that strides leave": (
        {"stride": (2, 3), "extra": (1, 2)}, {"strides": (2, 3), "output_padding": (1, 2)}
    ),
    "dilation": ({"dilation": 2, "stride": (2, 2)}, {"strides": (2, 2), "dilation": (2, 2)}),
    "groups": ({"groups": 2}, {"groups": 2, "channels": 6}),
    "padding": ({"padding": (1, 0, 2, 1)}, {"padding": (1, 1, 0, 0)}),
    "another layout": ({"layout": "NHWC"}, {"out_layout": "NHWC"}),
    "one row": ({"grad": (2, 4, 1, 5), "stride": (2, 2)}, {"strides": (1, 2)}),
}  # fmt: skip


@pytest.mark.parametrize("name", DATA_GRADIENTS)
def test_data_gradient(name: str) -> None:
    options, attrs = DATA_GRADIENTS[name]
    mod = flipped(**options)
    out, report = checked(mod)
    assert str(report) == "raised 1 dgrad; 0 left", report.reasons()
    call = out["main"].body
    assert ops(out) == [DGRAD]
    assert call.args == out["main"].params
    got = dict(call.attrs)
    assert got.pop("padding") == attrs.get("padding", (0, 0, 0, 0))
    assert got == {k: v for k, v in attrs.items() if k != "padding"}


def test_rows_that_only_the_run_knows() -> None:
    """Its stride is 1, so the sizes cancel: no size need be known."""
    out, report = raised(
        program(
            "nn.conv2d(%g, transpose(reverse(reverse(%w, axis=2), axis=3), axes=[1, 0, 2, 3]),"
            " padding=[2, 2, 2, 2])",
            "%g: Tensor[(?, 4, ?, ?), float32], %w: Tensor[(4, 6, 3, 3), float32]",
        )
    )
    assert ops(out) == [DGRAD], report.reasons()
    assert "output_padding" not in out["main"].body.attrs


# ---- what stays ----------------------------------------------------------------------------------

LOOK_ALIKES: dict[str, tuple[Callable[[], relay.IRModule], str]] = {
    name: (lambda old=old, new=new: program(f"{LETS} %w".replace(old, new)), reason)
    for name, old, new, reason in [
        ("sum over the channels", "axis=[0]", "axis=[1]", "sum runs over axis 1 of %data"),
        ("mean", "sum(", "mean(", "mean follows"),
        ("maximum", "sum(%e, axis=[0])", "max(%e, axis=[0])", "max follows"),
        ("(N, K, C) for (N, C, K)", "newshape=[4, 4, 6, 3, 3]", "newshape=[4, 6, 4, 3, 3]",
         "cut where no factor"),
        ("relu before the sum", "sum(%e,", "sum(nn.relu(%e),", "relu follows"),
        ("a cast before the sum", "sum(%e,",
         'sum(cast(cast(%e, dtype="float16"), dtype="float32"),', "astype follows"),
        ("repeat for tile", "tile(%grad, reps=[1, 4, 1, 1])", "repeat(%grad, repeats=4, axis=1)",
         "groups of 16, have no common factors"),
        ("tiled along the images", "reps=[1, 4, 1, 1]", "reps=[4, 1, 1, 1]", "sum runs over"),
        ("the gradient flipped", "tile(%grad", "tile(reverse(%grad, axis=2)",
         "of taps of %grad are flipped"),
        ("the convolution is used twice", "sum(%e, axis=[0])",
         "add(sum(%e, axis=[0]), max(%d))", "%d is used by %e and %max"),
        ("needed within a branch", "axes=[1, 0, 2, 3]);",
         "axes=[1, 0, 2, 3]); let %w = (%w, if (True) { exp(%d) } else { %d });",
         "%d is used by %e and the function's result or another block"),
        ("a result before the sum", "(%f, axes=[1, 0, 2, 3]);",
         "(%f, axes=[1, 0, 2, 3]); let %w = (%w, %e);", "the function's result or another block"),
    ]
} | {
    "one axis flipped": (
        lambda: flipped(grad=(4, 4, 5, 5), weight=(4, 4, 3, 3), flips=(2,)),
        "not exactly the two axes of taps",
    ),
    "flipped, not transposed": (
        lambda: flipped(grad=(4, 4, 5, 5), weight=(4, 4, 3, 3), swapped=False),
        "a forward convolution with a flipped weight",
    ),
    "more zeros than taps reach": (
        lambda: flipped(padding=3), "3 rows of zeros before the gradient, and 2"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_stays(name: str) -> None:
    make, reason = LOOK_ALIKES[name]
    mod = make()
    out, report = raised(mod)
    assert report.raised == ()
    assert out["main"] is mod["main"]
    (entry,) = report.left
    assert reason in entry.reason, entry.reason
    assert entry.function == "main"


def test_within_an_operator() -> None:
    """Where a source is a step of another operator, the next one that has a node is taken."""
    body = LETS.replace("%grad", "%g") + "%w"
    flat = "%data: Tensor[(4, 4, 5, 5), float32], %flat: Tensor[(4, 6, 5), float32]"
    out, report = raised(
        program(
            f"let %r = repeat(%flat, repeats=5, axis=2); "
            f"let %g = reshape(%r, newshape=[4, 6, 5, 5]); {body}",
            flat,
        )
    )
    assert len(report.raised) == 1, report.reasons()
    assert ops(out) == ["repeat", "reshape", WGRAD]


@pytest.mark.filterwarnings("error")
def test_relays_wrong_composite_is_warned_of() -> None:
    text = f"{LETS} %w".replace("reps=[1, 4, 1, 1]", "reps=[1, 2, 1, 1]")
    text = text.replace("[4, 4, 6, 3, 3]", "[4, 2, 6, 3, 3]")
    with pytest.warns(UserWarning, match=r"main: %d: .*1 < groups < channels"):
        _, report = raised(program(text))
    assert len(report.left) == 1


def test_forward_convolutions_are_not_in_the_report() -> None:
    _, report = raised(program("nn.conv2d(%data, %w)", f"%data: {X}, %w: {W}"))
    assert report.entries == ()


def test_what_is_no_module() -> None:
    with pytest.raises(TypeError, match="RaiseConvBackward: expected a Relay IRModule, got int"):
        T.RaiseConvBackward()(1)


# ---- size ----------------------------------------------------------------------------------------


def repeated(mod: relay.IRModule, times: int) -> relay.IRModule:
    """@main's body so many times over, each over parameters of its own."""
    function = mod["main"]
    params: list[relay.Var] = []
    results = []
    for i in range(times):
        own = {p: relay.Var(f"{p.name}_{i}", p.type_annotation) for p in function.params}
        new: dict[Any, Any] = dict(own)
        params += own.values()
        results.append(rewrite(function.body, lambda old, node: node, new))
    body = relay.Tuple(results)
    return T.InferType()(relay.IRModule({"main": relay.Function(params, body)}))


@pytest.mark.longer("programs long enough to tell linear time")
def test_time_is_linear() -> None:
    legalized = T.Legalize()(fixture("resnet8_cifar_grad_gnf"))
    spent = []
    for times in (1, 10):
        mod = repeated(legalized, times)
        reports: list[RaiseReport] = []
        raising = T.RaiseConvBackward(reports.append)
        out = raising(mod)
        spent.append(seconds(lambda raising=raising, mod=mod: raising(mod), 2))
        assert (len(reports[-1].raised), reports[-1].left) == (10 * times, ())
        assert ops(out).count(WGRAD) == 10 * times
    print(f"{spent[0]:.2f} s, ten times as long: {spent[1]:.2f} s")
    assert spent[1] < 25 * spent[0]


@pytest.mark.longer("deep ones of other passes stay")
@pytest.mark.parametrize("form", ["graph", "lets"])
def test_long_chains(form: str) -> None:
    """2,000 transposes on each side of one convolution."""
    count = 2_000
    lines = ["let %x0 = %data;"]
    lines += [f"let %x{i + 1} = transpose(%x{i}, axes=[1, 0, 2, 3]);" for i in range(count)]
    lines += [LETS.replace("%data", f"%x{count}"), "let %y0 = %w;"]
    lines += [f"let %y{i + 1} = transpose(%y{i}, axes=[1, 0, 2, 3]);" for i in range(count)]
    mod = program("\n".join([*lines, f"%y{count}"]))
    if form == "graph":
        mod = T.ToGraphNormalForm()(mod)
    reports: list[RaiseReport] = []
    out = T.RaiseConvBackward(reports.append)(mod)
    assert len(reports[0].raised) == 1
    assert ops(out) == [WGRAD]
