"""PyTorch modules to training graphs; gradients and statistics are compared with autograd's."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as fn

from byoc_cudnn import partition
from relay_wgrad.frontend import TrainingGraph, from_torch
from relay_wgrad.training.step import step_module
from tests.support.onnx.models import call, relative

pytestmark = pytest.mark.usefixtures("registered")


class Residual(nn.Module):
    """Batch normalization, a shortcut, in-place ops, pooling, dropout, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(8, momentum=0.3)
        self.conv = nn.Conv2d(8, 8, 3, padding="same", bias=False)
        self.norm2 = nn.BatchNorm2d(8)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = fn.max_pool2d(torch.relu(self.norm1(self.stem(x))), 3, 2, 1)
        y = self.norm2(self.conv(x))
        y += x
        fn.relu(y, inplace=True)  # the result is not assigned: y itself changes
        return self.fc(self.dropout(fn.adaptive_avg_pool2d(y, 1).flatten(1)))


class Layer(nn.Module):
    """A convolution, then what is tried."""

    def __init__(self, after: Callable[[torch.Tensor], torch.Tensor], channels: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, channels, 3)
        self.after = after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.conv(x))


def compared(
    module: nn.Module, inputs: tuple[torch.Tensor, ...], bound: float = 1e-10, **options: Any
) -> TrainingGraph:
    """One step of both: loss, every gradient, every running statistic; returns the graph."""
    graph = from_torch(module, inputs, **options)
    batch = graph.random_batch(3)
    step = step_module(graph, checkpoint=graph.checkpoint)
    outputs, gradients = call(step, "main_adjoint", graph.arguments(batch))

    twin = copy.deepcopy(module)
    data = [torch.tensor(batch[s.name]) for s in graph.inputs if s.kind == "data"]
    result = twin(*data)
    kind = options.get("loss", "cross_entropy")
    if kind == "cross_entropy":
        result = fn.cross_entropy(result.flatten(1), torch.tensor(batch["labels"]))
    elif kind == "mse":
        result = fn.mse_loss(result, torch.tensor(batch["target"]))
    named = dict(twin.named_parameters(remove_duplicate=False))
    wanted = [named[graph.onnx_names[name]] for name in graph.trainable]
    expected = torch.autograd.grad(result, wanted)
    assert relative(outputs[0], result.detach().numpy()) < bound
    for name, got, want in zip(graph.trainable, gradients, expected, strict=True):
        # A bias before batch normalization has no effect: both give rounding noise.
        noise = float(want.abs().max()) < bound
        assert noise or relative(got, want.numpy()) < bound, name
    buffers = dict(twin.named_buffers())
    for output, name in graph.updates.items():
        got = outputs[graph.outputs.index(output)]
        assert relative(got, buffers[graph.onnx_names[name]].numpy()) < bound, name
    return graph


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(1))


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 2e-4)], ids=["f64", "f32"]
)
def test_training_step_is_pytorchs(dtype: torch.dtype, bound: float) -> None:
    torch.manual_seed(0)
    module = Residual().to(dtype)
    module.dropout.eval()
    before = copy.deepcopy(module.state_dict())
    graph = compared(module, (draw(3, 3, 12, 12, dtype=dtype),), bound)
    assert graph.classes == 5
    assert graph.batch == 3
    assert graph.onnx_names["norm1_weight"] == "norm1.weight"
    assert set(graph.updates.values()) == set(graph.params) - set(graph.trainable)
    assert len(graph.updates) == 4
    for name, value in module.state_dict().items():  # exporting changes nothing
        assert torch.equal(value, before[name]), name


class Instance(nn.Module):
    """Instance normalization with running statistics, of which the second may be the first."""

    def __init__(self, twice: bool = False) -> None:
        super().__init__()
        self.first = nn.InstanceNorm2d(3, affine=True, track_running_stats=True, momentum=0.3)
        self.second = self.first if twice else nn.InstanceNorm2d(3, track_running_stats=True)
        self.last = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.second(torch.sin(self.first(x)))).mean((2, 3))


def test_instance_normalization_keeps_running_statistics() -> None:
    module, x = Instance().double(), (draw(2, 3, 5, 5),)
    for norm in (module.first, module.second):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    assert len(compared(module, x).updates) == 4
    assert not compared(module.eval(), x).updates
    assert len(from_torch(module, x, bn="train").updates) == 4
    with pytest.raises(ValueError, match="is a normalization that is used twice"):
        from_torch(Instance(twice=True).double(), x)
    with pytest.raises(ValueError, match=r"statistics of \[2, 3, 1, 1\] need more than one pixel"):
        from_torch(nn.Sequential(nn.Conv2d(3, 3, 5), module.first).double().eval(), x, bn="train")


@pytest.mark.longer("three programs; options by layer are test_dropout's")
def test_evaluation_mode_and_options() -> None:
    torch.manual_seed(0)
    module = Residual().double()
    for norm in (module.norm1, module.norm2):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    x = (draw(2, 3, 8, 8),)
    module.eval()
    assert not compared(module, x).updates
    # The option decides for every layer; dropout, off by default, then too.
    assert len(from_torch(module, x, bn="train").updates) == 4
    module.train()
    assert not from_torch(module, x, bn="eval").updates
    module.norm1.eval()  # a frozen layer among others
    module.dropout.eval()
    assert set(compared(module, x).updates) == {"norm2_running_mean_new", "norm2_running_var_new"}
    module.dropout.train()
    assert compared_with_masks(module, x) == 1


def compared_with_masks(module: nn.Module, x: tuple[torch.Tensor, ...]) -> int:
    """The mask's own values in PyTorch's place of dropout; how many masks there are."""
    graph = from_torch(module, x, dropout="mask")
    batch = graph.random_batch(3)
    masks = [s for s in graph.inputs if s.kind == "mask"]
    twin = copy.deepcopy(module)
    (mask,) = masks
    assert set(np.unique(batch[mask.name])) <= {0.0, 1 / 0.75}
    twin.dropout.forward = lambda y: y * torch.tensor(batch[mask.name])  # type: ignore[union-attr]
    loss = fn.cross_entropy(twin(torch.tensor(batch["x"])), torch.tensor(batch["labels"]))
    outputs = call(graph.module, "main", graph.arguments(batch))
    assert relative(outputs[0], loss.detach().numpy()) < 1e-10
    return len(masks)


class Autoencoder(nn.Module):
    """Its output is the loss; the decoder's weight is the encoder's."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2)
        self.decoder = nn.ConvTranspose2d(4, 2, 3, 2, 1, output_padding=1, groups=2)
        self.decoder.weight = self.encoder.weight
        self.scale = nn.Parameter(torch.ones(2, 1, 1), requires_grad=False)
        self.register_buffer("shift", torch.full((1,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.decoder(torch.tanh(self.encoder(x)))[:, :, :8, :8]
        return ((y * self.scale + self.shift - x) ** 2).mean()


def test_own_loss_tied_and_frozen_weights() -> None:
    torch.manual_seed(0)
    module = Autoencoder().double()
    graph = from_torch(module, (draw(2, 2, 8, 8),), loss="own")
    weights = [n for n in graph.trainable if graph.onnx_names[n].endswith("weight")]
    assert len(weights) == 1  # one parameter for both, whose gradients add up
    assert "scale" in graph.params
    assert "scale" not in graph.trainable
    assert graph.outputs == ("loss",)
    compared(module, (draw(2, 2, 8, 8),), loss="own")


def test_a_shared_parameter_has_its_first_name(tmp_path: Path) -> None:
    """`named_parameters`' one, where `torch.export` uses the last."""
    conv = nn.Conv2d(2, 2, 1)
    module = nn.Sequential(conv, nn.ReLU(), conv)
    torch.export.save(torch.export.export(module, IMAGE), tmp_path / "shared.pt2")
    for graph in (from_torch(module, IMAGE, loss="mse", freeze="0.bias"),
                  from_torch(tmp_path / "shared.pt2", loss="mse", freeze="0.bias")):  # fmt: skip
        assert [*graph.onnx_names.values()] == [name for name, _ in module.named_parameters()]
        assert [graph.onnx_names[name] for name in graph.trainable] == ["0.weight"]


CONVOLUTIONS = {
    "grouped": nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2),
    "depthwise": nn.Conv2d(4, 8, 3, padding="same", groups=4, dilation=2),
    "valid": nn.Conv2d(4, 2, 2, padding="valid"),
    "transposed": nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1, groups=2, dilation=2),
}


class Many(nn.Module):
    """Layers side by side, each after a convolution of its own, whose gradient tells."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleDict({name: nn.Conv2d(2, 4, 3) for name in CONVOLUTIONS})
        self.layers = nn.ModuleDict(CONVOLUTIONS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum((f(self.convs[name](x)) ** 2).mean() for name, f in self.layers.items())


def test_convolutions() -> None:
    torch.manual_seed(0)
    compared(Many().double(), (draw(2, 2, 8, 11),), 1e-10, loss="own")


def test_it_works_with_the_rest() -> None:
    """Checkpoints, mixed precision and NHWC, the partition."""
    torch.manual_seed(0)
    module = Residual().eval()
    x = (draw(2, 3, 8, 8, dtype=torch.float32),)
    graph = from_torch(module, x, checkpoint="auto", name="mine")
    assert graph.name == "mine"
    kept = from_torch(module, x, checkpoint=["max_pool2d"])
    assert kept.checkpoint == ("max_pool2d",)
    step = step_module(graph, dtype="bfloat16", checkpoint="auto")
    report = partition(step, ("cudnn",))[1]
    assert report.total > 2 + 1 + 2  # some are computed a second time
    assert not report.left


def test_exported_program_and_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Residual().double()
    program = torch.export.export(module, (draw(2, 3, 8, 8),))
    want = from_torch(module, (draw(2, 3, 8, 8),))
    torch.export.save(program, tmp_path / "net.pt2")
    for given in (program, tmp_path / "net.pt2", str(tmp_path / "net.pt2")):
        graph = from_torch(given)
        assert graph.trainable == want.trainable
        assert graph.name == ("ExportedProgram" if given is program else "net")
        for name, value in want.params.items():
            assert np.array_equal(graph.params[name], value)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += x.sum(0)
        return x * self.w


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.w if x.sum() > 0 else x


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.norm(x) * 2)


IMAGE = (draw(2, 2, 8, 8, dtype=torch.float32),)
REFUSED = {
    "no row": (Layer(lambda x: torch.lgamma(x)), IMAGE, {"loss": "mse"},
               r"Layer: PyTorch op lgamma.default \(lgamma\) is not supported: write it"),
    "no op": (Layer(lambda x: fn.fractional_max_pool2d(x, 2, 3)), IMAGE, {},
              r"PyTorch op .* \(.*\) is not supported"),
    "logits": (Layer(lambda x: x.sum((1, 2, 3))), IMAGE, {},
               r"cross_entropy wants logits \(N, classes\) or .* is \[2\]"),
    "own": (Layer(lambda x: x), IMAGE, {"loss": "own"}, r"must be a scalar, got \[2, 4, 6, 6\]"),
    "loss": (Layer(lambda x: x), IMAGE, {"loss": "l2"}, "loss='l2': expected cross_entropy, bce_w"),
    "output": (Layer(lambda x: x), IMAGE, {"output": 1}, "there are 1 outputs, got output=1"),
    "dtype": (Layer(lambda x: x).bfloat16(), (IMAGE[0].bfloat16(),), {},
              "got bfloat16; half precision is Trainer's dtype"),
    "no parameters": (nn.ReLU(), IMAGE, {}, "no parameters: there is nothing to train"),
    "no values": (Layer(lambda x: x).to("meta"), (IMAGE[0].to("meta"),), {"loss": "mse"},
                  r"Layer: '.*' has no values: its device is meta"),
    "no images": (Layer(lambda x: x), (IMAGE[0][:0],), {"loss": "mse"},
                  r"argument 'x' has no elements: its shape is \[0, 2, 8, 8\]"),
    "a branch as an op": (Layer(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))),
                          IMAGE, {"loss": "mse"}, r"Cond \(control flow\).*torch.where"),
    "a number": (Layer(lambda x: x * x.max().item()), IMAGE, {"loss": "mse"},
                 r"item.default .*a number read from a tensor is not known"),
    "a mask": (Layer(lambda x: x[x > 0]), IMAGE, {"loss": "mse"},
               "by a mask the number of elements is not known on import$"),
    "buffer": (Counts(), (torch.ones(2, 3),), {"loss": "mse"}, "changes the buffer 'count'"),
    "branches": (Branches(), (torch.ones(2, 3),), {}, "torch.export refuses Branches"),
    "statistics": (nn.Sequential(nn.Conv2d(2, 2, 8), nn.BatchNorm2d(2)).eval(),
                   (IMAGE[0][:1],), {"loss": "mse", "bn": "train"}, "more than one value"),
    "one used twice": (Twice(), IMAGE, {"loss": "mse"}, "a normalization that is used twice"),
    "checkpoint": (Layer(lambda x: x), IMAGE, {"loss": "mse", "checkpoint": ["nowhere"]},
                   "no computed tensor 'nowhere'"),
}  # fmt: skip


@pytest.mark.parametrize(("module", "inputs", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(module: nn.Module, inputs: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_torch(module, inputs, **options)


def test_arguments_of_another_type(tmp_path: Path) -> None:
    module = Residual()
    with pytest.raises(TypeError, match=r"expected a torch.nn.Module, got int"):
        from_torch(3)
    with pytest.raises(TypeError, match="must be a tuple of tensors"):
        from_torch(module)
    with pytest.raises(TypeError, match="must be a tuple, got Tensor"):
        from_torch(module, torch.ones(2, 3, 8, 8))
    with pytest.raises(FileNotFoundError, match="no file"):
        from_torch(tmp_path / "nowhere.pt2")
    (tmp_path / "text.pt2").write_text("text")
    with pytest.raises(ValueError, match="is not an exported program"):
        from_torch(tmp_path / "text.pt2")


class ByValue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        print("a line of the module's", file=sys.stderr)
        y = self.dense(x)
        return y if y.sum() > 0 else -y


class _Told(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_a_refusal_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    """It says where the module asks for a value; no graph and no log on standard error."""
    told, loggers = _Told(), [logging.getLogger(), *map(logging.getLogger, ("torch", "tvm"))]
    for logger in loggers:
        logger.addHandler(told)
    try:
        with pytest.raises(
            ValueError, match=r"ByValue: a branch, .* torch.where \(.*, line \d+, in f"
        ):
            from_torch(ByValue(), (torch.ones(2, 3),))
    finally:
        for logger in loggers:
            logger.removeHandler(told)
    assert capfd.readouterr().err == "a line of the module's\n"
    assert told.records == []
