"""Every ATen op of `from_torch`'s list: loss and gradients against autograd's in float64."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as fn

from relay_wgrad.frontend import TrainingGraph, from_torch
from relay_wgrad.frontend.torch.composed import COMPOSED
from relay_wgrad.frontend.torch.names import op_of
from relay_wgrad.frontend.torch.ops import OPS
from relay_wgrad.frontend.torch.program import exported
from relay_wgrad.training.step import step_module
from tests.support.onnx.models import call, relative
from tests.support.torch import op_cases as cases
from tests.support.torch.curve_cases import Recurrent

pytestmark = pytest.mark.usefixtures("registered")

X = torch.randn(2, 4, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def compared(module: nn.Module, bound: float = 1e-7, **options: Any) -> TrainingGraph:
    """The graph, whose loss and gradients are autograd's.

    PyTorch's own hardsigmoid has a sixth in float32 in its gradient, hence the bound.
    """
    graph = from_torch(module, (X,), loss="own", dropout="mask", **options)
    batch = graph.random_batch(3)
    loss, expected = cases.autograd(copy.deepcopy(module), graph, batch)
    outputs, gradients = call(step_module(graph), "main_adjoint", graph.arguments(batch))
    assert relative(outputs[0], loss.numpy()) < 1e-10
    for (name, want), got in zip(expected.items(), gradients, strict=True):
        far = float(np.abs(got.numpy() - want).max())
        assert far <= bound * max(float(np.abs(want).max()), 1e-3), (name, far)
    return graph


@pytest.mark.longer_cases(
    "products",
    "shapes",
    "random",
    "sums",
    "indexing",
    "layers",
    "composed",
    "curves",
    "places",
    "math",
    "resizing",
    "volumes",
    "activations",
    "records",
)
@pytest.mark.parametrize("group", cases.GROUPS)
def test_group(group: str) -> None:
    compared(cases.Side(list(cases.GROUPS[group].values()), torch.float64))


@pytest.mark.longer
def test_recurrent_layers() -> None:
    graph = compared(Recurrent())
    assert len(graph.trainable) == 8 + 10 + 8 + 4 + 4
    assert len([s for s in graph.inputs if s.kind == "mask"]) == 2


class Single(nn.Module):
    """One image without an axis for the batch, its rows as a line, and as a volume."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding="same"), nn.MaxPool2d(2), nn.ConvTranspose2d(4, 2, 2, 2),
            nn.AvgPool2d(2, 1), nn.AdaptiveAvgPool2d((2, 3)),
        )  # fmt: skip
        self.line, self.volume = nn.Conv1d(4, 2, 3, groups=2), nn.Conv3d(1, 2, 2)

    def forward(self, x: Any) -> Any:
        image, line = self.image(x[0]), fn.max_pool1d(self.line(x[1, :, 0]), 2)
        volume = fn.adaptive_avg_pool3d(fn.max_pool3d(self.volume(x[1:]), 2), 1)
        return image.square().sum() + line.sum() * 2 + volume.square().sum()


def test_images_without_a_batch() -> None:
    torch.manual_seed(7)
    compared(Single().double())


def test_each_composed_op_is_compared() -> None:
    """PyTorch makes others of it, in a case above."""
    seen = set()
    modules = [cases.Side(list(c.values()), X.dtype) for c in (cases.COMPOSED, cases.CURVES)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, about PyTorch
        for module in modules:
            program = torch.export.export(module, (X,))
            seen |= {*map(op_of, program.graph.nodes)}
    parts = {"norm.ScalarOpt_dim"}  # of a loss
    assert seen | parts >= COMPOSED, sorted(COMPOSED - seen)
    assert not COMPOSED & set(OPS)


@pytest.mark.longer
def test_each_row_is_compared() -> None:
    """The list has no op that the cases above do not reach."""
    seen = set()
    for functions in (f for group, f in cases.GROUPS.items() if group != "composed"):
        side = cases.Side(list(functions.values()), X.dtype)
        program = exported(torch, side, (X,), OPS).program
        seen |= {*map(op_of, program.graph.nodes)}
    modules = [nn.BatchNorm2d(4), nn.BatchNorm2d(4).eval(), nn.Dropout(0.2).eval()]
    for module in (*modules, Recurrent()):
        program = exported(torch, module.double(), (X,), OPS).program
        seen |= {*map(op_of, program.graph.nodes)}
    assert set(OPS) <= seen, sorted(set(OPS) - seen)


# ---- what only training sees, and is refused ----------------------------------------------------


class Mine(nn.Module):
    """A convolution, and what is tried with it."""

    def __init__(self, tried: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1).double()
        self.tried = tried

    def forward(self, x: torch.Tensor) -> Any:
        return self.tried(self.conv(x), self.conv.weight).mean()


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0]


def hooked(y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    z = y * 2
    z.register_hook(lambda g: 0 * g)
    return z


def doubled_unseen(y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    z = y * w.mean()
    with torch.no_grad():
        z.view(-1)[3:].mul_(2)
    return z * y


def doubled_by_detach(y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    z = y * w.mean()
    z.detach().mul_(2)
    return z * y


def clamped(y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        w.clamp_(-1, 1)
    return y * w.mean()


def automatic(y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return y @ y


REFUSED = {
    "a backward of one's own": (lambda y, w: Straight.apply(y), "the autograd.Function Straight"),
    "a backward of one's own, kept": (
        lambda y, w, kept=Straight.apply: kept(y), "the autograd.Function Straight"
    ),
    "a hook": (hooked, "register_hook on a tensor changes its gradient"),
    "in place under no_grad": (doubled_unseen, r"aten.mul_.Tensor \(mul_.*autograd does not see"),
    "in place by detach": (doubled_by_detach, r"aten.mul_.Tensor \(mul_\) changes in place"),
    "a parameter": (clamped, "aten.clamp_.default .*autograd does not"),
    "autocast": (automatic, "wrap_with_autocast"),
    "random slopes": (lambda y, w: fn.rrelu(y, training=True), r"rrelu.default .*random slopes"),
    "a drawn index": (
        lambda y, w: y[:, torch.randperm(4)], "op randperm.default .*pass it as an input"
    ),
    "never set": (lambda y, w: y * torch.empty(6), r"mul.Tensor.*never set \(torch.empty\)"),
    "half precision": (lambda y, w: y.half(), r"_to_copy.default .*: computes in float16: "),
    "no row": (lambda y, w: torch.lgamma(y), r"lgamma.default \(lgamma\) is not supported: write"),
    "one value": (lambda y, w: y[:1, :1, :1, :1].var(), "1 values are too few for correction=1"),
    "a third norm": (lambda y, w: torch.linalg.vector_norm(y, 3), "the norm of order 3 is not"),
    "dilated pool": (lambda y, w: fn.max_pool2d(y, 2, dilation=2), "dilated pooling has no grad"),
    "divisor": (lambda y, w: fn.avg_pool2d(y, 2, divisor_override=3), "divisor_override is not"),
    "nothing": (lambda y, w: y + y[:, 2:2].sum(), "an empty slice, 2:2 of 4, is not supported"),
    "frequencies": (
        lambda y, w: y * fn.embedding(torch.tensor([1]), w[0, :, 0], scale_grad_by_freq=True),
        "scale_grad_by_freq=True is not supported",
    ),
    "cubic samples": (
        lambda y, w: fn.grid_sample(y, y[..., :2], mode="bicubic", align_corners=False),
        "mode 'bicubic' with padding 'zeros': bilinear or nearest",
    ),
    "a diagonal": (lambda y, w: torch.einsum("ncii->nc", y), "'ncii' does not name 4 different"),
    "computed places": (
        lambda y, w: y.scatter(1, (y > 0).long(), 1.0), "only at places that are known on import"
    ),
    "second result": (
        lambda y, w: fn.max_unpool2d(*fn.max_pool2d(y, 2, return_indices=True), 2),
        "result 1 of aten.max_pool2d_with_indices.default is not supported",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("tried", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(tried: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_torch(Mine(tried), (X,), loss="own")


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of PyTorch, about PyTorch
def test_what_an_export_lost_is_refused() -> None:
    """Hooks that were there before, and programs in which regions cannot be seen any more."""
    module = Mine(lambda y, w: y)
    program = torch.export.export(module, (X,))
    with pytest.raises(ValueError, match=r"run_decompositions was called.*no_grad\(\) cannot be"):
        from_torch(program.run_decompositions({}), loss="own")
    with torch.no_grad():
        program = torch.export.export(Mine(cases_with_enable_grad), (X,))
    with pytest.raises(ValueError, match=r"exported under torch.no_grad\(\): pass the module"):
        from_torch(program, loss="own")
    module.conv.weight.register_hook(lambda g: 2 * g)
    with pytest.raises(ValueError, match=r"hooks on the gradient of 'conv.weight' would be lost"):
        from_torch(module, (X,), loss="own")
    module = Mine(lambda y, w: y)
    module.conv.register_full_backward_hook(lambda m, a, b: None)
    with pytest.raises(ValueError, match="backward hooks of 'conv' would be lost"):
        from_torch(module, (X,), loss="own")


def cases_with_enable_grad(y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        return y * w.mean()


def test_a_region_of_an_exported_program() -> None:
    """The program that is given stays as it is; a stop can be its result."""
    module = Mine(lambda y, w: cases.STOPS["no_grad and enable_grad"](y))
    program = torch.export.export(module, (X,))
    before = str(program.graph)
    graphs = [from_torch(program, loss="own"), from_torch(module, (X,), loss="own")]
    assert str(program.graph) == before
    batch = graphs[0].random_batch(1)
    got = [call(step_module(g), "main_adjoint", g.arguments(batch)) for g in graphs]
    for a, b in zip(got[0][1], got[1][1], strict=True):
        assert np.array_equal(a.numpy(), b.numpy())


def test_random_ops_switched_off() -> None:
    """Stochastic depth is then the identity, and dropout its own option."""
    tried = cases.Side([cases.RANDOM["drop path"], cases.RANDOM["dropout in place"]], X.dtype)
    off = from_torch(tried, (X,), loss="own", random="off", dropout="off")
    assert [s.kind for s in off.inputs] == ["data"]
    assert [n.partition(" (")[0] for n in off.notes] == ["switched off: dropout of 1 node",
                                                         "switched off: bernoulli"]  # fmt: skip
    plain = cases.Side([lambda y: y + y.sin(), lambda y: y * 2], X.dtype)
    plain.load_state_dict(tried.state_dict())
    batch = off.random_batch(2)
    (got,) = call(off.module, "main", off.arguments(batch))
    with torch.no_grad():
        assert relative(got, plain(torch.tensor(batch["x"])).numpy()) < 1e-12
    kinds = [(s.kind, s.distribution) for s in from_torch(tried, (X,), loss="own").inputs]
    assert kinds[1:] == 2 * [("random", ("bernoulli", 0.7))]
    one = from_torch(tried, (X,), loss="own", dropout="off")
    assert [s.shape for s in one.inputs[1:]] == [(X.shape[0], 1, 1, 1)]
    with pytest.raises(ValueError, match="random='on': expected input or off"):
        from_torch(tried, (X,), loss="own", random="on")
    integers = cases.Side([cases.RANDOM["randint"]], X.dtype)
    with pytest.raises(ValueError, match="random='off' has no mean for integers"):
        from_torch(integers, (X,), loss="own", random="off")


class Block(nn.Module):
    """EfficientNet's: squeeze and excitation, then a branch that is left out at random."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.squeeze = nn.Conv2d(4, 2, 1)
        self.excite = nn.Conv2d(2, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = fn.silu(self.norm(self.conv(x)), inplace=True)
        s = self.squeeze(fn.adaptive_avg_pool2d(y, 1))
        y = y * torch.sigmoid(self.excite(fn.silu(s, inplace=True)))
        if not self.training:
            return x + y
        kept = torch.empty([x.shape[0], 1, 1, 1], dtype=y.dtype).bernoulli_(0.8).div_(0.8)
        return x + y * kept


@pytest.mark.longer
def test_stochastic_depth_trains() -> None:
    torch.manual_seed(2)
    module = nn.Sequential(Block(), Block(), nn.Flatten(), nn.Dropout(0.2, inplace=True),
                           nn.Linear(144, 1)).double()  # fmt: skip

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.body(x) ** 2).mean()

    graph = compared(Net())
    assert [s.distribution[0] for s in graph.inputs if s.kind == "random"] == ["bernoulli"] * 3
    drawn = [graph.draws(0, step) for step in range(20)]
    assert len({tuple(d["bernoulli"].ravel()) for d in drawn}) > 1
    assert all(set(np.unique(d["bernoulli"])) <= {0.0, 1.0} for d in drawn)
    assert "x" not in drawn[0]
