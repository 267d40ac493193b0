"""What the pages say is refused: each sentence with a case of it and the refusal's words.

A row's `says` stands in its page as it is written there; `run` raises, or gives a report's text.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
import tvm
from onnx import TensorProto, helper
from torch import nn
from tvm import relax
from tvm.script import relax as R

import relay_wgrad.torch as rt
from byoc_cudnn import partition_for_cudnn, partition_for_cutlass
from relay_wgrad import check_tvm, relay
from relay_wgrad.cli import main
from relay_wgrad.frontend import from_onnx, from_torch
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.training import Trainer
from relay_wgrad.training.data import Data

from .exchange_limits import PROBES as EXCHANGE
from .offload_limits import PROBES as OFFLOAD
from .offload_limits import reasons, relax_conv
from .relay.limits import PROBES as RELAY
from .relay.limits import recursion, typed

README = "README.md"
CLI = "docs/reference/cli.md"
TORCH = "docs/howto/torch.md"
TRAINING = "docs/howto/training.md"
OPERATORS = "docs/reference/operators.md"


class Limit(NamedTuple):
    page: str
    says: str
    words: str
    run: Callable[[], Any]


class Network(nn.Module):
    """A convolution, what is tried on its result, and a row for each image."""

    def __init__(self, then: Callable[[torch.Tensor], torch.Tensor] = torch.relu) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.then = then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.then(self.conv(x)).flatten(1)


IMAGES = torch.zeros(2, 3, 6, 6)


def imported(then: Callable[[torch.Tensor], torch.Tensor], **options: Any) -> Any:
    return from_torch(Network(then), (IMAGES,), **options)


def graph() -> Any:
    return imported(torch.relu)


# --- PyTorch


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


def _hooked(x: torch.Tensor) -> torch.Tensor:
    x = x * 1
    x.register_hook(lambda grad: grad)
    return x


def _detached(x: torch.Tensor) -> torch.Tensor:
    x = x * 1
    x.detach().mul_(2)
    return x


def _autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return nn.functional.conv2d(x, torch.ones(4, 4, 1, 1))


class Counting(Network):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return super().forward(x) * self.count


class Unregistered(Network):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(1, requires_grad=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


def _symbolic_height() -> Any:
    dims = {"x": {2: torch.export.Dim("H", min=4)}}
    pooled = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    images = torch.zeros(2, 3, 8, 8)
    return from_torch(torch.export.export(pooled, (images,), dynamic_shapes={"input": dims["x"]}))


def _program_with_a_library() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt2"
        torch.export.save(torch.export.export(Network(), (IMAGES,)), str(path))
        with zipfile.ZipFile(path, "a") as archive:
            root = archive.namelist()[0].split("/")[0]
            archive.writestr(f"{root}/data/aotinductor/model/run.so", "")
        return from_torch(str(path))


def _step(module: nn.Module | None = None) -> Any:
    return rt.TrainingStep(module or Network(), IMAGES)


def _second_order() -> None:
    x = torch.ones(2, 3, 6, 6, requires_grad=True)
    (first,) = torch.autograd.grad(_step()(x).sum(), x, create_graph=True)
    first.sum().backward()


def _with_a_backward_hook() -> Any:
    module = Network()
    module.conv.register_full_backward_hook(lambda *_: None)
    return _step(module)


def _with_a_hook_of_all_modules() -> Any:
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        return _step()
    finally:
        hook.remove()


def _traced_for_other_sizes() -> Any:
    layer = rt.ConvTranspose2d(3, 4, 3)
    return torch.jit.trace(layer, IMAGES, check_trace=False)(torch.zeros(2, 3, 7, 7))


# --- ONNX

node = helper.make_node


def onnx_graph(
    *nodes: onnx.NodeProto,
    shape: Sequence[int] = (2, 3, 6, 6),
    constants: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """The training graph of nodes from `x` to `y`."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    tensors = [onnx.numpy_helper.from_array(v, k) for k, v in (constants or {}).items()]
    made = helper.make_graph(list(nodes), "g", inputs, outputs, tensors)
    opset = helper.make_opsetid("", 18)
    return from_onnx(helper.make_model(made, opset_imports=[opset]), **options)


def _conv(**attributes: Any) -> Any:
    nodes = node("Conv", ["x", "w"], ["c"], **attributes), node("Flatten", ["c"], ["y"])
    return onnx_graph(*nodes, constants={"w": np.ones((4, 3, 3, 3), "float32")})


def _as_floats(op: str, inputs: Sequence[str] = ("x",), **attributes: Any) -> Any:
    nodes = node(op, inputs, ["q"], **attributes), node("Cast", ["q"], ["y"], to=1)
    return onnx_graph(*nodes)


def _single_value_statistics() -> Any:
    norm = node("BatchNormalization", ["x", *"abcd"], ["n"])
    parameters = {name: np.ones(3, "float32") for name in "abcd"}
    shape = (1, 3, 1, 1)
    return onnx_graph(norm, node("Flatten", ["n"], ["y"]), shape=shape, constants=parameters)


def _indices_of_a_batch() -> Any:
    nodes = node("Gather", ["x", "i"], ["g"], axis=0), node("Flatten", ["g"], ["y"])
    return onnx_graph(*nodes, shape=(4, 3, 6, 6), constants={"i": np.array([0, 1])}, batch="N")


def _branch() -> Any:
    result = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    body = helper.make_graph([node("Identity", ["x"], ["z"])], "body", [], [result])
    choice = node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    return onnx_graph(node("Greater", ["x", "x"], ["c"]), choice)


# --- data, command line, TVM, Relay


def _data(images: Any = None, labels: Any = None) -> Any:
    images = np.zeros((4, 3, 6, 6), "float32") if images is None else images
    return Data(graph(), {"x": images, "labels": np.zeros(4, int) if labels is None else labels})


def command(*words: str) -> str:
    """What a command says whose arguments are wrong."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            code = main(list(words))
        except SystemExit as stop:
            code = stop.code
    return said.getvalue() if code == 2 else ""


def _negative_size() -> Any:
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", R.Tensor((n,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.zeros((n - 3,), "float32"))
        builder.emit_func_output(result)
    made = tvm.compile(builder.get(), "llvm", relax_pipeline=cpu_pipeline())
    numbers = tvm.runtime.tensor(np.ones(2, "float32"))
    return relax.VirtualMachine(made, tvm.cpu())["main"](numbers)


def _wider_object() -> Any:
    from flax import nnx

    from relay_wgrad.jax import optimize

    def adds(layer: Any) -> None:
        layer.more = nnx.Param(np.zeros(3))

    return optimize(adds)(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))


def _groups() -> Any:
    x = relax.Var("x", R.Tensor((2, 30, 6, 6), "float32"))
    w = relax.Var("w", R.Tensor((30, 7, 3, 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        builder.emit_func_output(builder.emit(relax.op.nn.conv2d(x, w, groups=4)))


def _other_tvm() -> None:
    before, tvm.__version__ = tvm.__version__, "0.26.0"
    try:
        check_tvm()
    finally:
        tvm.__version__ = before


PROBES = [
    (README, "refuses with what is missing", "0.26.0", _other_tvm),
    (README, "one GPU a process", "device must be cpu", lambda: Trainer(graph(), "cuda:0,cuda:1")),
    (README, "no quantization", "unknown Relay operator", lambda: typed("qnn.quantize(%x, 1f, 0)")),
    (README, "no references", "references",
     lambda: relay.build(typed("let %r = ref(%x); ref_read(%r)"), "llvm")),
    (README, "no virtual machine", "vm", lambda: relay.vm),
    (README, "recursion is not compiled", "recursion has no lowering", recursion),
    (README, "float64 convolutions are not offloaded", "float64",
     lambda: reasons(partition_for_cudnn, relax_conv("float64"))),
    (README, "Volumes (three dimensions) do not go to CUTLASS", "three dimensions",
     lambda: reasons(partition_for_cutlass, relax_conv("float16", 3))),
    (README, "What is not supported is refused with operator, rule and both values",
     "groups", _groups),
    (OPERATORS, ("what stock TVM lets pass is refused: empty batches, negative padding, strides or "
     "dilation below 1"), "N must be positive, got N=0", lambda: relax_conv("float32", batch=0)),
    (OPERATORS, ("In our pipelines a tensor of a negative size is refused too, whatever made it. A "
     "convolution that cuDNN or CUTLASS takes is not compared: a negative size is refused"),
     "a tensor's size must be at least 0, got -1", _negative_size),
    (CLI, ("this package refuses one that holds a pickle of anything but tensors, a member that is "
     "none of a program's"), "run.so", _program_with_a_library),
    (CLI, "All else is refused by name, with what to do where there is something: masks as indices",
     "by a mask the number of elements", lambda: imported(lambda x: x[x > 0].reshape(1, -1))),
    (CLI, "half precision (that is `Trainer`'s `dtype`)", "half precision is Trainer's dtype",
     lambda: from_torch(Network().half(), (IMAGES.half(),))),
    (CLI, "symbolic sizes but a batch", "only a batch", _symbolic_height),
    (CLI, "buffers and parameters that the module changes itself", "changes the buffer",
     lambda: from_torch(Counting(), (IMAGES,))),
    (CLI, "all else is refused by name. Assignments", "fft_rfft",
     lambda: imported(lambda x: torch.fft.rfft(x).abs())),
    (CLI, ("**What `torch.export` would lose is refused**: an `autograd.Function` with a backward "
     "of its own"), "has a backward of its own", lambda: imported(Doubled.apply)),
    (CLI, "hooks on gradients", "register_hook", lambda: imported(_hooked)),
    (CLI, "a change in place that autograd does not see", "changes in place",
     lambda: imported(_detached)),
    (CLI, "autocast that is on", "autocast", lambda: imported(_autocast)),
    (TORCH, "tensors by position; names and other values are refused", "keyword argument",
     lambda: _step()(x=IMAGES)),
    (TORCH, "names and other values are refused", "must be tensors, got int",
     lambda: _step()(IMAGES, 3)),
    (TORCH, "| gradients of gradients | refused |", "no gradients of their own", _second_order),
    (TORCH, ("hooks that record or count | refused when the step is made. Added later, PyTorch "
     "runs the module itself, which a warning and `notes` say; with `loss=` they are refused"),
     "would be lost", _with_a_backward_hook),
    (TORCH, "hooks of all modules (`register_module_forward_hook`)", "hooks of all modules",
     _with_a_hook_of_all_modules),
    (TORCH, "a tensor that requires a gradient and is no registered parameter | refused",
     "no registered parameter", lambda: _step(Unregistered())),
    (TORCH, "a transposed convolution keeps its example's sizes, and refuses others", "sizes",
     _traced_for_other_sizes),
    (TORCH, "`torch.jit.script` | does not work", "padding",
     lambda: torch.jit.script(rt.Conv2d(3, 4, 3))),
    (TRAINING, ("A graph in a cycle or out of order, names that are given twice, and sizes below "
     "zero are refused by name"), "form a cycle",
     lambda: onnx_graph(node("Add", ["x", "y"], ["z"]), node("Relu", ["z"], ["y"]))),
    (TRAINING, "out of order", "must be in order",
     lambda: onnx_graph(node("Relu", ["z"], ["y"]), node("Relu", ["x"], ["z"]))),
    (TRAINING, "names that are given twice", "2 values are named",
     lambda: onnx_graph(node("Relu", ["x"], ["y"]), node("Tanh", ["x"], ["y"]))),
    (TRAINING, "What is missing or of another shape or dtype is refused by name",
     "no value for argument 'labels'", lambda: Trainer(graph()).step({"x": IMAGES.numpy()})),
    (TRAINING, "a wrong label with its place", "got 64 at index 3",
     lambda: _data(labels=np.array([0, 1, 2, 64]))),
    (TRAINING, ("A value that is not finite, or that the input's dtype does not hold, is refused "
     "with its place"), "at index [0, 0, 0, 0], which float32 does not hold",
     lambda: _data(np.full((4, 3, 6, 6), 1e300))),
    (TRAINING, "so are complex numbers", "complex128",
     lambda: _data(np.zeros((4, 3, 6, 6), complex))),
    (TRAINING, "labels that are not integers", "float64", lambda: _data(labels=np.zeros(4))),
    (TRAINING, "and others of the file's batch are refused", "it wants a number",
     _indices_of_a_batch),
    ("docs/howto/jax.md", "one that adds parts to them is refused",
     "adds or takes away parts of an nnx object", _wider_object),
    (TRAINING, "**What needs the number on import** is refused by name: another part of the batch",
     "a part of the batch is taken", lambda: imported(lambda x: x + x[0], batch="N")),
    (TRAINING, "parts other numbers than 1 from the rest (`x.shape[0] < 4`", "torch.export refuses",
     lambda: imported(lambda x: x * 2 if x.shape[0] < 4 else x, batch="N")),
    (TRAINING, "running sums and extrema over images", "cumsum",
     lambda: imported(lambda x: x.cumsum(0), batch="N")),
    (TRAINING, "on a GPU ([below](#on-a-gpu)), refused with `--device cpu`", "for a GPU",
     lambda: command("train", "squeezenet", "--no-tf32")),
    (TRAINING, "the stock gradient refuses bfloat16 parameters", "bfloat16",
     lambda: relax.transform.Gradient("main")(relax_conv("bfloat16", total=True))),
    (TRAINING, "A name that is none is refused, with the reason", "no computed tensor",
     lambda: from_onnx("squeezenet", batch=1, checkpoint=["nothing"])),
    (TRAINING, "Batch statistics of a single value per channel are refused", "more than one value",
     _single_value_statistics),
    (TRAINING, "`Multinomial` is refused", "Multinomial",
     lambda: _as_floats("Multinomial", sample_size=2)),
    (TRAINING, ("Control flow (`If`, `Loop`, `Scan`), quantization, and what gives as many "
     "elements as data say (`NonZero`, `Unique`, `Compress`) are refused by name"),
     "If node", _branch),
    (TRAINING, "quantization", "QuantizeLinear", lambda: _as_floats("QuantizeLinear", ["x", "x"])),
    (TRAINING, "as many elements as data say (`NonZero`", "NonZero", lambda: _as_floats("NonZero")),
    (TRAINING, "is refused with op and node: `ONNX op Loop (Loop node 'odd one') is not supported",
     "ONNX op Loop (Loop node 'odd one') is not supported; supported: ",
     lambda: onnx_graph(node("Loop", ["", "", "x"], ["y"], name="odd one"))),
    (TRAINING, ("settings that contradict the file's own weights (`kernel_shape must be W's, got "
     "[3, 5] and [3, 3]`)"), "kernel_shape must be W's, got [3, 5] and [3, 3]",
     lambda: _conv(kernel_shape=[3, 5])),
    (TRAINING, "strides, dilations and windows below 1", "must be at least 1",
     lambda: _conv(strides=[0, 1])),
    (TRAINING, "is refused before it is built", "expected 1 operand, got 2",
     lambda: onnx_graph(node("Relu", ["x", "x"], ["y"]))),
]  # fmt: skip
LIMITS = [Limit(*row) for row in (*PROBES, *OFFLOAD, *EXCHANGE, *RELAY)]
ELSEWHERE = {
    ("docs/howto/byoc.md", "Tensors whose shapes do not fit each other are refused"):
        "tests/byoc_cudnn/backends/cudnn/test_cudnn_library.py::test_shapes_are_checked",
    ("docs/howto/training.md", "on a host that refuses, such a library raises"):
        "tests/legalize/cpu/test_matrix.py::test_a_kernel_asks_linux",
    ("docs/howto/from_anywhere.md", "of sizes that vary it is refused with a reason"):
        "tests/relay_wgrad/torch/test_pairs.py::test_compiled_autograd",
}  # fmt: skip
"""(page, what it says) -> the test of it, where a probe would have to compile a library, or has a
fixture of its own."""
