"""What is a training normalization, and what is only similar."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from torch.nn import functional as f
from tvm import relax
from tvm.ir import assert_structural_equal

from relay_wgrad.frontend import from_torch
from relay_wgrad.ir import op_name
from relay_wgrad.training.step import ADJOINT, converted, step_module
from relay_wgrad.transform import grad, mixed_precision
from relay_wgrad.transform.raise_norm import RaiseBatchNorm, RaisedNorm, raise_batch_norm
from tests.support.compiled import virtual_machine
from tests.support.fast import FAST
from tests.support.layout_cases import calls

pytestmark = pytest.mark.usefixtures("registered")

op = relax.op
X, C = (2, 3, 4, 5), (3,)


def tensor(name: str, shape: Any = X) -> relax.Var:
    return relax.Var(name, relax.TensorType(list(shape), "float32"))


def upstreams(training: bool = True, **attrs: Any) -> tvm.IRModule:
    bb = relax.BlockBuilder()
    params = [tensor("x"), *(tensor(n, C) for n in ("gamma", "beta", "mean", "var"))]
    with bb.function("main", params):
        with bb.dataflow():
            n = bb.emit(op.nn.batch_norm(*params, axis=1, training=training, **attrs))
            y, mean, var = (bb.emit(relax.TupleGetItem(n, i)) for i in range(3))
            out = [bb.emit_output(v) for v in (op.sum(op.nn.relu(y)), mean, var)]
        bb.emit_func_output(relax.Tuple(out))
    return bb.get()


def test_upstreams_operator() -> None:
    mod, entries = raise_batch_norm(upstreams(momentum=0.2, scale=False))
    assert [(e.activation, e.residual, e.running) for e in entries] == [("relu", False, True)]
    (call,) = calls(mod, "batch_norm_train")
    assert (call.attrs["momentum"], bool(call.attrs["unbiased"])) == (0.2, False)
    assert [a.name for a in call.args if isinstance(a, relax.Var)] == ["x", "beta", "mean", "var"]
    adjoint = tvm.IRModule({"main": grad(mod, wrt=["x"])["main_adjoint"]})
    (backward,) = calls(adjoint, "batch_norm_train_backward")
    assert backward.attrs["activation"] == "relu"
    assert raise_batch_norm(upstreams(training=False))[1] == []


def written_out(change: str = "") -> tvm.IRModule:
    """The normalization as front ends write it, with one thing otherwise."""
    bb = relax.BlockBuilder()
    x, gamma, other = tensor("x"), tensor("gamma", C), tensor("other")
    axes = {"axes": [2], "pixels": [2, 3]}.get(change, [0, 2, 3])
    with bb.function("main", [x, gamma, other]):
        with bb.dataflow():
            m = bb.emit(op.mean(x, axes, keepdims=True))
            c = bb.emit(op.subtract(x, m))
            square = bb.emit(op.multiply(c, x if change == "square" else c))
            v = bb.emit(op.mean(square, axes, keepdims=True))
            d = bb.emit(op.sqrt(op.add(v, relax.const(1e-5))))
            n = bb.emit(op.divide(other if change == "centred" else c, d))
            g = bb.emit(op.multiply(n, op.reshape(gamma, (1, 3, 1, 1))))
            of_mean = bb.emit(op.add(other, op.multiply(m, c)))
            z = bb.emit(op.add(g, of_mean if change == "mean is added" else other), name_hint="z")
            y = bb.emit(op.nn.relu(z), name_hint="y")
            outs = [op.sum(y)]
            outs += [op.sum(z)] if change == "sum is used" else []
            outs += [op.sum(v)] if change == "variance is used" else []
            out = [bb.emit_output(v) for v in outs]
        bb.emit_func_output(relax.Tuple(out))
    return bb.get()


@pytest.mark.parametrize("change", ["axes", "square", "centred"])
def test_what_is_only_similar_stays(change: str) -> None:
    mod = written_out(change)
    same, entries = raise_batch_norm(mod)
    assert entries == []
    assert_structural_equal(same, mod)


def test_what_is_used_twice_is_not_taken_along() -> None:
    assert raise_batch_norm(written_out())[1] == [RaisedNorm("y", "relu", True)]
    for change in ("sum is used", "variance is used", "mean is added"):
        mod, entries = raise_batch_norm(written_out(change))
        taken = ("z", "") if change == "sum is used" else ("y", "relu")
        assert entries == [RaisedNorm(*taken, True)]
        relax.analysis.well_formed(mod)
    assert raise_batch_norm(written_out(), keep=["z"])[1] == [RaisedNorm("z", "", True)]
    assert calls(RaiseBatchNorm()(written_out()), "batch_norm_train")
    with pytest.raises(ValueError, match="'f' must be a function of one dataflow block"):
        raise_batch_norm(tvm.IRModule({"f": relax.Function([x := tensor("x")], x)}), "f")


def test_a_scale_and_a_shift_of_their_own_are_gamma_and_beta() -> None:
    """As Caffe's files have them, with shapes that lack the batch's axis."""
    bb = relax.BlockBuilder()
    params = [tensor("x"), *(tensor(n, C) for n in ("gamma", "beta", "mean", "var", "s", "t"))]
    x, gamma, beta, mean, var, s, t = params
    with bb.function("main", params):
        with bb.dataflow():
            n = bb.emit(op.nn.batch_norm(x, gamma, beta, mean, var, axis=1, training=True))
            y = bb.emit(relax.TupleGetItem(n, 0))
            y = bb.emit(op.multiply(y, op.reshape(s, (3, 1, 1))))
            y = bb.emit(op.add(op.reshape(t, (3, 1, 1)), y))
            out = bb.emit_output(op.sum(op.nn.relu(y)))
        bb.emit_func_output(out)
    mod, entries = raise_batch_norm(bb.get())
    assert [e.activation for e in entries] == ["relu"]
    names = [op_name(b.value) for b in mod["main"].body.blocks[0].bindings]
    assert names.count("relax.multiply") == 2  # of vectors
    assert names.count("relax.add") == 1
    values = [np.random.default_rng(i).random([int(n) for n in p.ty.shape.values], "float32")
              for i, p in enumerate(params)]  # fmt: skip
    vm = virtual_machine(mod, FAST)
    got = vm["main"](*(tvm.runtime.tensor(v) for v in values)).numpy()
    a, g, b, _, _, scale, shift = (torch.tensor(v, dtype=torch.float64) for v in values)
    want = torch.nn.functional.batch_norm(a, None, None, g, b, True, 0.0, 1e-5)
    want = torch.relu(want * scale.reshape(3, 1, 1) + shift.reshape(3, 1, 1)).sum()
    assert abs(float(got) - float(want)) < 1e-4 * float(want)


# ---- groups of an image's channels ---------------------------------------------------------------

GROUPED = "group_norm_train"
ACTIVATIONS = {
    "hardswish": f.hardswish, "elu": f.elu, "gelu": f.gelu, "silu": f.silu, "relu6": f.relu6,
    "gelu_tanh": lambda z: f.gelu(z, approximate="tanh"),
}  # fmt: skip


class Groups(nn.Module):
    """Instance and group normalization of volumes, with all activations and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv3d(2, 4, 3, padding=1), nn.Conv3d(4, 3, 1)
        self.instance, self.group = nn.InstanceNorm3d(4, affine=True), nn.GroupNorm(2, 4)
        self.plain = nn.InstanceNorm3d(4)
        for norm in (self.instance, self.group):
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)

    def forward(self, x: Any) -> Any:
        x = f.leaky_relu(self.instance(self.first(x)), 0.02)
        y = f.leaky_relu(self.group(torch.sin(x)) + x)
        for act in ACTIVATIONS.values():
            y = act(self.plain(y))
        return self.last(y).mean((2, 3, 4))


def test_groups_of_channels() -> None:
    """The step of operators, channels last, is the step as it was written."""
    torch.manual_seed(0)
    graph = from_torch(Groups().double(), (torch.zeros(2, 2, 3, 4, 3, dtype=torch.float64),))
    raised, entries = raise_batch_norm(graph.module)
    found = [(e.activation, e.residual, e.groups) for e in entries]
    first = [("leaky_relu", False, 4), ("leaky_relu", True, 2)]
    assert found == [*first, *((name, False, 4) for name in ACTIVATIONS)]
    alphas = [c.attrs["alpha"] for c in calls(raised, GROUPED)]
    assert [round(a, 6) for a in alphas] == [0.02, 0.01, 0, 1, 0, 0, 0, 0]
    here = step_module(graph, raise_norms=True)
    last = converted(here, "NHWC")
    adjoint = tvm.IRModule({"main": last[ADJOINT]})
    assert {int(c.attrs["axis"]) for c in calls(adjoint, GROUPED)} == {4}
    assert len(calls(adjoint, f"{GROUPED}_backward")) == len(entries)
    values = [tvm.runtime.tensor(v) for v in graph.arguments(graph.random_batch(0))]
    want, got = (
        [t.numpy() for part in virtual_machine(mod, FAST)[ADJOINT](*values) for t in part]
        for mod in (step_module(graph), last)
    )
    for a, b in zip(got, want, strict=True):
        assert np.linalg.norm(a - b) < 1e-10 * max(np.linalg.norm(b), 1)


def test_upstreams_groups_and_what_is_over_pixels() -> None:
    assert raise_batch_norm(written_out("pixels"))[1] == [RaisedNorm("y", "relu", True, groups=3)]
    for kind, groups in (("group", 3), ("instance", 6)):
        bb = relax.BlockBuilder()
        params = [tensor("x", (2, 4, 5, 6)), tensor("gamma", (6,)), tensor("beta", (6,))]
        given = {"channel_axis": 3, "axes": [1, 2], "epsilon": 1e-3}
        given |= {"num_groups": 3} if kind == "group" else {}
        with bb.function("main", params):
            with bb.dataflow():
                y = bb.emit(getattr(op.nn, f"{kind}_norm")(*params, **given))
                out = bb.emit_output(op.sum(op.nn.leakyrelu(y, 0.3)))
            bb.emit_func_output(out)
        mod, entries = raise_batch_norm(bb.get())
        assert [(e.activation, e.groups) for e in entries] == [("leaky_relu", groups)]
        values = [np.random.default_rng(i).random([int(n) for n in p.ty.shape.values], "float32")
                  for i, p in enumerate(params)]  # fmt: skip
        got = virtual_machine(mod, FAST)["main"](*(tvm.runtime.tensor(v) for v in values)).numpy()
        a, g, b = (torch.tensor(v, dtype=torch.float64) for v in values)
        want = f.leaky_relu(f.group_norm(a.movedim(3, 1), groups, g, b, 1e-3), 0.3).sum()
        assert abs(float(got) - float(want)) < 1e-5 * abs(float(want))


def test_what_is_used_elsewhere_is_no_part_of_an_activation() -> None:
    """Of a LeakyReLU whose comparison another value is made of too."""
    bb = relax.BlockBuilder()
    x = tensor("x", (2, 4, 5, 6))
    with bb.function("main", [x]):
        with bb.dataflow():
            rows = bb.emit(op.reshape(x, (2, 4, 30)))
            centred = bb.emit(op.subtract(rows, bb.emit(op.mean(rows, [2], keepdims=True))))
            v = bb.emit(op.mean(op.multiply(centred, centred), [2], keepdims=True))
            n = bb.emit(op.divide(centred, op.sqrt(op.add(v, relax.const(1e-5)))))
            z = bb.emit(op.reshape(n, (2, 4, 5, 6)), name_hint="z")
            above = bb.emit(op.greater(z, relax.const(0.0)))
            y = bb.emit(op.where(above, z, op.multiply(z, relax.const(0.1))))
            share = op.mean(op.astype(above, "float32"))
            out = [bb.emit_output(v) for v in (op.sum(y), share)]
        bb.emit_func_output(relax.Tuple(out))
    assert raise_batch_norm(bb.get())[1] == [RaisedNorm("z", groups=4)]


# ---- rows: layer normalization over one axis -----------------------------------------------------


class Layers(nn.Module):
    """Layer normalization as networks write it: of channels last, first, and of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 5, 1)
        self.inner, self.tokens = nn.LayerNorm(6, 1e-6), nn.LayerNorm(5)
        self.weight, self.bias = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6))
        for norm in (self.inner, self.tokens):
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        x = f.gelu(self.inner(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)) + x
        c = x - x.mean(1, keepdim=True)
        n = c / torch.sqrt((c * c).mean(1, keepdim=True) + 1e-6)
        x = x + n * self.weight[:, None, None] + self.bias[:, None, None]
        return self.tokens(self.last(x).flatten(2).transpose(1, 2)).mean(1)


def test_layers_are_rows() -> None:
    """The step of operators, channels first and last, is the step as it was written."""
    torch.manual_seed(0)
    graph = from_torch(Layers().double(), (torch.zeros(2, 2, 4, 3, dtype=torch.float64),))
    raised, entries = raise_batch_norm(graph.module)
    assert [(e.residual, e.groups) for e in entries] == [(False, 1)] * 3
    found = [[int(n) for n in c.args[0].ty.shape.values] for c in calls(raised, GROUPED)]
    assert found == [[24, 1, 6], [24, 1, 6], [24, 1, 5]]
    here = step_module(graph, raise_norms=True)
    last = converted(here, "NHWC")
    adjoint = tvm.IRModule({"main": last[ADJOINT]})
    assert len(calls(adjoint, f"{GROUPED}_backward")) == 3
    values = [tvm.runtime.tensor(v) for v in graph.arguments(graph.random_batch(0))]
    want, *others = (
        [t.numpy() for part in virtual_machine(mod, FAST)[ADJOINT](*values) for t in part]
        for mod in (step_module(graph), here, last)
    )
    for got in others:
        for a, b in zip(got, want, strict=True):
            assert np.linalg.norm(a - b) < 1e-10 * max(np.linalg.norm(b), 1)


@pytest.mark.parametrize("promoted", [False, True])
def test_layers_in_half_follow_what_they_normalize(promoted: bool) -> None:
    """Of a convolution it is half, of a sum float32, or half where half tensors' sums are."""
    graph = from_torch(Layers(), (torch.zeros(2, 2, 4, 3),))
    raised, _ = raise_batch_norm(graph.module)
    mod = mixed_precision(raised, dtype="bfloat16", promoted=promoted)
    found = [str(c.args[0].ty.dtype) for c in calls(mod, GROUPED)]
    assert found == ["bfloat16", "bfloat16" if promoted else "float32", "bfloat16"]


@pytest.mark.parametrize(
    ("shape", "axis", "vector", "raised"),
    [
        ((2, 5, 6), 2, (6,), 1),
        ((2, 5, 6), 1, (5, 1), 1),
        ((2, 5, 6), 2, (5, 1), 0),  # an image's over its pixels, with a number for each channel
        ((2, 5, 6), 2, (), 0),
        ((2, 3, 2049), 2, (2049,), 0),  # no kernel has a row so long
        ((2, 3, 2048), 2, (2048,), 1),
    ],
)
def test_which_rows_are_taken(
    shape: tuple[int, ...], axis: int, vector: tuple[int, ...], raised: int
) -> None:
    bb = relax.BlockBuilder()
    x, gamma = tensor("x", shape), tensor("gamma", (max(vector, default=1),))
    with bb.function("main", [x, gamma]):
        with bb.dataflow():
            m = bb.emit(op.mean(x, [axis], keepdims=True))
            c = bb.emit(op.subtract(x, m))
            v = bb.emit(op.mean(op.multiply(c, c), [axis], keepdims=True))
            n = bb.emit(op.divide(c, op.sqrt(op.add(v, relax.const(1e-5)))))
            if vector:
                lifted = gamma if len(vector) == 1 else bb.emit(op.reshape(gamma, vector))
                n = bb.emit(op.multiply(n, lifted))
            out = bb.emit_output(op.sum(op.multiply(n, n)))
        bb.emit_func_output(out)
    mod, entries = raise_batch_norm(bb.get())
    assert len(entries) == raised
    relax.analysis.well_formed(mod)
