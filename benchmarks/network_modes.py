"""One network on its way to a training step, by stages, and its numbers beside PyTorch's.

The modes of `benchmarks cpu networks`: each sends the facts of its row as they are found, and
raises where the network fails.
"""

from __future__ import annotations

import copy
import io
import operator
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import torch
import tvm
from torch import nn
from torch._dynamo.utils import counters
from torch.overrides import TorchFunctionMode
from tvm import relax

import byoc_cudnn
from benchmarks.errors import far_from, furthest, norm
from benchmarks.network_steps import apart
from benchmarks.network_zoo import BATCH, CLASSES, Loss, build, tensors_of
from byoc_cudnn.report import PRODUCT
from legalize.cpu import host_target
from relay_wgrad import keys
from relay_wgrad.frontend import TrainingGraph, from_aot, from_onnx, from_torch
from relay_wgrad.ir import op_name
from relay_wgrad.torch import compiler, reports
from relay_wgrad.training import Trainer
from relay_wgrad.training.step import ADJOINT, converted, step_module
from relay_wgrad.transform import count_reasons, layout_changes
from tests.support.torch.op_cases import Given, autograd

LIBRARIES = ("cudnn", "cutlass")
BOUND = 1e-9  # of gradients in float64
ONNX_BOUND = 1e-6  # a file's attributes and scales are float32
OPSET = 18  # of PyTorch's older exporter, the newest that it writes
BATCHES = (1, 3, 8)
STEPS = 50
RATE = 2e-4
# Beside each other two float32 trainings part by rounding: this far, of PyTorch's first loss.
APART = 0.05
# LLVM's level 0 compiles in half the time; what is computed is the same.
QUICK = {"kind": "llvm", "opt-level": 0}
Send = Callable[[dict[str, Any]], None]


def network_of(name: str, *, double: bool = False) -> tuple[nn.Module, int]:
    """(a network in training mode, the side of its images); in float64 no parameter is constant.

    Those that begin as one constant (gates, scales of residuals) get random numbers then.
    """
    torch.set_num_threads(1)
    network, side = build(name)
    if double:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for p in network.double().parameters():
                if p.numel() > 1 and bool((p == p.flatten()[0]).all()):
                    noise = torch.rand(p.shape, dtype=p.dtype, generator=generator)
                    p.add_(0.2 * (noise - 0.5))
    return network, side


def watch() -> Callable[[], float]:
    """Seconds since it was asked last."""
    times = [time.perf_counter()]

    def lap() -> float:
        times.append(time.perf_counter())
        return round(times[-1] - times[-2], 2)

    return lap


# ---- stages --------------------------------------------------------------------------------------


def facts_of(network: nn.Module, side: int) -> dict[str, Any]:
    """What a row says of a network before anything is done with it."""
    convolutions = sum(isinstance(m, nn.modules.conv._ConvNd) for m in network.modules())
    count = sum(p.numel() for p in network.parameters())
    return {"image": side, "parameters": count, "layers": convolutions}


def partitioned(module: Any) -> dict[str, Any]:
    """How many convolutions of a step go to a library, and why the others do not."""
    _, report = byoc_cudnn.partition(module, LIBRARIES)
    entries = [entry for entry in report.entries if entry.op != PRODUCT]
    left = sorted({f"{e.op}: {e.reason}" for e in entries if not e.backend})
    return {"convolutions": len(entries), "offloaded": sum(bool(e.backend) for e in entries),
            "left": left}  # fmt: skip


def table(name: str, send: Send) -> None:
    """The facts of a network after each stage, by `from_torch`."""
    lap = watch()
    network, side = network_of(name)
    send({**facts_of(network, side), "made_s": lap()})
    images = torch.rand(BATCH, 3, side, side)
    graph = from_torch(Loss(network), (images,), loss="own", dropout="mask", name=name)
    send({"import_s": lap(), "notes": list(graph.notes)})
    rest(graph, send)


def rest(graph: TrainingGraph, send: Send) -> None:
    """Those of a training graph, from its gradient on."""
    lap = watch()
    step = step_module(
        graph, dtype="float16", scaled=True, wide_weight_gradients=False, raise_norms=True
    )
    send({"gradient_s": lap(), "bindings": len(step[ADJOINT].body.blocks[0].bindings)})
    last = converted(step, "NHWC")
    reasons = dict(count_reasons(layout_changes(last[ADJOINT], step[ADJOINT])))
    send({"layout_s": lap(), "between": reasons.get("between", 0),
          "fixed": reasons.get("fixed", 0), "changes": reasons})  # fmt: skip
    if reasons.get("between"):
        raise ValueError(f"{reasons['between']} changes of layout between operators")
    send({**partitioned(last), "partition_s": lap()})


# ---- by way of ONNX ------------------------------------------------------------------------------


class Whole(nn.Module):
    """A network with one result: its own, or where it has several all of their elements."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Any) -> Any:
        """The result of images (N, 3, H, W), or (N, elements) of all results."""
        results = tensors_of(self.network(x))
        return results[0] if len(results) == 1 else torch.cat([y.flatten(1) for y in results], 1)


def table_of_onnx(name: str, send: Send) -> None:
    """As `table`, of what `torch.onnx.export` writes in training mode, by `from_onnx`.

    Where PyTorch's exporter fails, the older one, by TorchScript, writes it.
    """
    lap = watch()
    network, side = network_of(name)
    send({**facts_of(network, side), "made_s": lap()})
    model, exporter, why = exported(network, side)
    send({"export_s": lap(), "exporter": exporter, "why": why, "nodes": len(model.graph.node)})
    graph = from_onnx(model, loss="mse", weights="initial", dropout="mask")
    send({"import_s": lap(), "notes": list(graph.notes), "trained": len(graph.trainable),
          "constant": _constant(network, graph)})  # fmt: skip
    rest(graph, send)


def _constant(network: nn.Module, graph: TrainingGraph) -> list[str]:
    """The parameters that the graph does not train by any of the names that they have."""
    trained = {graph.onnx_names[n].removeprefix("network.") for n in graph.trainable}
    every = dict(network.named_parameters(remove_duplicate=False))
    reached = {id(p) for name, p in every.items() if name in trained}
    return [n for n, p in network.named_parameters() if p.requires_grad and id(p) not in reached]


def check_onnx(name: str, send: Send) -> None:
    """As `check`, by way of ONNX; raises beyond `ONNX_BOUND`.

    In training mode, but nothing is left out at random: PyTorch and ONNX draw differently.
    """
    network, side = network_of(name, double=True)
    for module in network.modules():
        for rate in ("p", "drop_prob"):
            if isinstance(getattr(module, rate, None), float):
                setattr(module, rate, 0.0)
    model, exporter, why = exported(network, side)
    graph = from_onnx(model, loss="mse", weights="initial", dtype="float64", dropout="mask")
    batch = graph.random_batch(3)
    send({"image": side, "parameters": len(graph.trainable), "exporter": exporter, "why": why,
          "random": sum(spec.kind in ("mask", "random") for spec in graph.inputs)})  # fmt: skip
    whole = Whole(copy.deepcopy(network))
    images, target = (torch.tensor(batch[spec.name]) for spec in graph.inputs[:2])
    named = dict(whole.named_parameters(remove_duplicate=False))
    wanted = [named[graph.onnx_names[n]] for n in graph.trainable]
    with Exact():
        loss = ((whole(images) - target) ** 2).mean()
    found = torch.autograd.grad(loss, wanted, allow_unused=True)
    gradients = {
        n: (torch.zeros_like(p) if g is None else g).numpy()
        for n, p, g in zip(graph.trainable, wanted, found, strict=True)
    }
    compared(graph, batch, loss.detach(), gradients, send, ONNX_BOUND)


def exported(network: nn.Module, side: int) -> tuple[onnx.ModelProto, str, str]:
    """(the model in training mode, "dynamo" or "torchscript", why not dynamo)."""
    module, dtype = Whole(network).train(), next(network.parameters()).dtype
    images = torch.rand(BATCH, 3, side, side, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of training mode, and of what PyTorch itself deprecates
        try:
            # Its optimizer would fold batch normalization into convolutions: it is said to infer.
            program = torch.onnx.export(
                module, (images,), dynamo=True, verbose=False, optimize=False
            )
            assert program is not None
            return program.model_proto, "dynamo", ""
        except Exception as error:  # of any kind; the row says it
            why = f"{type(error).__name__}: {error.__cause__ or error}".partition("\n")[0]
        file = io.BytesIO()
        torch.onnx.export(
            module, (images,), file, dynamo=False, opset_version=OPSET,
            training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
        )  # fmt: skip
    return onnx.load_model_from_string(file.getvalue()), "torchscript", why[:300]


# ---- by AOTAutograd's joint graph ----------------------------------------------------------------


_BACKWARD = "convolution_backward.default"


class _Tuple(nn.Module):
    """A network's loss, in a tuple."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, x: Any) -> Any:
        """(The loss of images,)."""
        return (self.loss(x),)


def joint(network: nn.Module, images: Any) -> tuple[Any, list[Any]]:
    """(forward and backward pass of the network's loss in one graph, its arguments)."""
    from torch._functorch.aot_autograd import aot_export_module

    module = _Tuple(Loss(network))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph, _ = aot_export_module(module, (images,), trace_joint=True, output_loss_index=0)
    return graph, [*(p.detach() for p in module.parameters()), *module.buffers(), images]


def asked(graph: Any) -> int:
    """Gradients of convolutions in a graph of ATen: each that someone reads, of data by a dgrad,
    of weights by a wgrad; the data's of a transposed convolution is a convolution as any other."""
    count = 0
    for node in graph.graph.nodes:
        if str(getattr(node.target, "__name__", "")) == _BACKWARD:
            read = {u.args[1] for u in node.users if u.target is operator.getitem and u.users}
            count += (1 in read) + (0 in read and not node.args[7])
    return count


def table_of_aot(name: str, send: Send) -> None:
    """How many of the gradients of convolutions that the graph asks for `from_aot` recognises."""
    lap = watch()
    network, side = network_of(name)
    graph, inputs = joint(network, torch.rand(BATCH, 3, side, side))
    send({**facts_of(network, side), "export_s": lap()})
    made = from_aot(graph, inputs, name=name)
    found = [op_name(b.value) for block in made.module["main"].body.blocks for b in block.bindings]
    recognised = sum("_backward_data" in op or "_backward_weight" in op for op in found)
    send({"import_s": lap(), "bindings": len(found), "asked": asked(graph),
          "recognised": recognised})  # fmt: skip
    main = made.module["main"].with_attr(keys.SYMBOL, ADJOINT)
    send(partitioned(converted(tvm.IRModule({ADJOINT: main}), "NHWC")))
    if recognised != asked(graph):
        raise ValueError(f"{recognised} of {asked(graph)} gradients are recognised")


class _Drawn(torch.fx.Interpreter):
    """Runs a graph with these random numbers, in the order in which it draws."""

    def __init__(self, graph: Any, numbers: Iterator[Any]) -> None:
        super().__init__(graph)
        self.numbers = numbers

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The node's result, of random ops what was drawn."""
        if torch.Tag.nondeterministic_seeded not in getattr(target, "tags", ()):
            return super().call_function(target, args, kwargs)
        drawn = next(self.numbers)
        if "native_dropout" in str(target):
            return args[0] * drawn / (1 - args[1]), drawn
        return drawn


def check_aot(name: str, send: Send) -> None:
    """Sends how far all results in float64 are from PyTorch's of the graph; raises beyond `BOUND`.

    Of each result ‖error‖ / max(‖result‖, 1e-6 ‖all results‖).
    """
    network, side = network_of(name, double=True)
    images = torch.rand(BATCH, 3, side, side, dtype=torch.float64)
    with Exact():
        graph, inputs = joint(network, images)
    made = from_aot(graph, inputs, name=name)
    rng = np.random.default_rng(3)
    numbers = [spec.random(rng) for spec in made.drawn]
    send({"image": side, "parameters": len(inputs) - 1, "random": len(numbers)})
    drawn = _Drawn(graph, iter([torch.tensor(n) for n in numbers]))
    with torch.no_grad():
        wanted = drawn.run(*inputs, enable_io_processing=False)
    began = time.perf_counter()
    arrays = [x.detach().numpy() for x in inputs]
    given = [tvm.runtime.tensor(np.asarray(a, order="C")) for a in made.arguments(arrays, numbers)]
    machine = relax.VirtualMachine(tvm.compile(made.module, tvm.target.Target(QUICK)), tvm.cpu())
    found = made.results(arrays, [x.numpy() for x in machine["main"](*given)])
    send({"step_s": round(time.perf_counter() - began, 1)})
    pairs = [(f, w.detach().numpy()) for f, w in zip(found, wanted, strict=True) if w is not None]
    worst, place = furthest(*zip(*[pair for pair in pairs if pair[1].size], strict=True))
    send({"worst": worst, "worst_of": f"result {place}", "loss_error": 0.0})
    if not worst <= BOUND:
        raise ValueError(f"result {place} is {worst:.1e} away")


# ---- numbers beside autograd's -------------------------------------------------------------------


class Exact(TorchFunctionMode):
    """PyTorch with a sixth of float64 in hardsigmoid's gradient, where its own has float32's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.hardsigmoid:
            return torch.nn.functional.relu6(args[0] + 3) / 6
        return func(*args, **(kwargs or {}))


def check(name: str, send: Send) -> None:
    """Sends how far loss and gradients in float64 are from autograd's; raises beyond `BOUND`.

    For each parameter ‖error‖ / max(‖gradient‖, 1e-6 ‖all gradients‖): one whose true gradient is
    0, as a bias's before batch normalization, has nothing but rounding.
    """
    network, side = network_of(name, double=True)
    module = Loss(network)
    images = torch.rand(BATCH, 3, side, side, dtype=torch.float64)
    graph = from_torch(module, (images,), loss="own", dropout="mask", name=name)
    batch = graph.random_batch(3)
    drawn = sum(spec.kind in ("mask", "random") for spec in graph.inputs)
    send({"image": side, "parameters": len(graph.trainable), "random": drawn})
    with Exact():
        loss, wanted = autograd(copy.deepcopy(module), graph, batch)

    def shaken() -> dict[str, Any]:
        with Exact():
            return autograd(copy.deepcopy(module), graph, moved(graph, batch))[1]

    compared(graph, batch, loss, wanted, send, BOUND, shaken=shaken)


def moved(graph: TrainingGraph, batch: dict[str, Any]) -> dict[str, Any]:
    """The batch with each number of its images one rounding away."""
    rng = np.random.default_rng(7)
    changed = dict(batch)
    for name in (s.name for s in graph.inputs if s.kind == "data"):
        value = np.asarray(batch[name])
        if value.dtype.kind == "f":
            up = np.where(rng.random(value.shape) < 0.5, np.inf, -np.inf).astype(value.dtype)
            changed[name] = np.nextafter(value, up)
    return changed


def check_open(name: str, send: Send) -> None:
    """As `check`, of one step that is compiled for any number of images, for each of `BATCHES`.

    A number below the least that the graph takes, as 1 for statistics of 1x1 pixels, is that one.
    """
    network, side = network_of(name, double=True)
    module = Loss(network)
    images = torch.rand(BATCH, 3, side, side, dtype=torch.float64)
    given = (images, torch.arange(BATCH))
    graph = from_torch(module, given, loss="own", dropout="mask", name=name, batch="N")
    labels = [spec.name for spec in graph.inputs if spec.kind == "data"][1]
    machine, worst = _compiled(graph), 0.0
    for count in sorted({max(n, graph.limits.least) for n in BATCHES}):
        batch = {**graph.random_batch(3, count), labels: np.arange(count) % CLASSES}
        with Exact():
            loss, wanted = autograd(copy.deepcopy(module), graph, batch)
        row: dict[str, Any] = {}
        try:
            compared(graph, batch, loss, wanted, row.update, BOUND, machine)
        except ValueError as error:
            raise ValueError(f"{count} images: {error}") from error
        worst = max(worst, row["worst"])
        drawn = sum(spec.kind in ("mask", "random") for spec in graph.inputs)
        send({**row, "worst": worst, "image": side, "parameters": len(wanted), "random": drawn})


def compared(
    graph: TrainingGraph, batch: dict[str, Any], loss: Any, wanted: dict[str, Any], send: Send,
    bound: float, machine: Any = None, shaken: Callable[[], dict[str, Any]] | None = None,
) -> None:  # fmt: skip
    """Sends how far the graph's step is from this loss and these gradients; raises beyond.

    machine : of `_compiled`, where that is done.  shaken : makes the wanted gradients for images
    one rounding away, to tell beside an error how far these go.
    """
    began = time.perf_counter()
    machine = _compiled(graph) if machine is None else machine
    arguments = [tvm.runtime.tensor(np.asarray(a, order="C")) for a in graph.arguments(batch)]
    outputs, gradients = machine[ADJOINT](*arguments)
    send({"step_s": round(time.perf_counter() - began, 1)})
    loss_error = abs(float(outputs[0].numpy()) - float(loss)) / max(abs(float(loss)), 1e-300)
    total = norm(wanted.values())
    worst, place = furthest((g.numpy() for g in gradients), wanted.values())
    of = list(wanted)[place]
    send({"loss_error": loss_error, "worst": worst, "worst_of": of, "norm": total})
    if not (loss_error <= bound and worst <= bound):
        said = f"the loss is {loss_error:.1e} and the gradient of {of} {worst:.1e} away"
        if shaken is not None:
            own = far_from(shaken()[of], wanted[of], total)
            send({"rounding": own})
            said += f"; PyTorch's own goes {own:.1e} by a rounding of images"
        raise ValueError(said)


def _compiled(graph: TrainingGraph) -> Any:
    module = step_module(graph)
    return relax.VirtualMachine(tvm.compile(module, tvm.target.Target(QUICK)), tvm.cpu())


# ---- training ------------------------------------------------------------------------------------


def parted(
    send: Send, ours: list[float], theirs: list[float], moved: Callable[[], list[float]]
) -> None:
    """Sends losses of steps, and raises if they part by more than `APART`.

    moved : PyTorch's for images one rounding away, to tell how far these go.
    """
    far = apart(ours, theirs)
    send({"first": ours[0], "last": ours[-1], "last_pytorch": theirs[-1], "furthest": far,
          "losses": ours, "pytorch": theirs})  # fmt: skip
    if far > APART:
        own = apart(moved(), theirs)
        send({"rounding": own})
        raise ValueError(
            f"losses part by {far:.1%} of the first, PyTorch's own by {own:.1%} by a rounding"
        )


def sgd(
    module: Any, loss: Callable[[Any, int], Any], steps: int, backend: Any = None
) -> list[float]:
    """Losses of steps of a copy of a module; loss : (it, compiled, the step) -> its loss."""
    module = copy.deepcopy(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    called = torch.compile(module, backend=backend, dynamic=False) if backend else module
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        made = loss(called, step)
        made.backward()
        losses.append(float(made.detach()))
        optimizer.step()
    return losses


def _task(name: str) -> tuple[Any, Any, Any]:
    """(a network with its loss, images, labels)."""
    network, side = network_of(name)
    images = torch.rand(BATCH, 3, side, side, generator=torch.Generator().manual_seed(0))
    return Loss(network), images, torch.arange(BATCH) % CLASSES


def train(name: str, send: Send) -> None:
    """50 steps of SGD on one batch in float32 by `Trainer`, and PyTorch's.

    Dropout and stochastic depth are as the batches have them, the same for both.
    """
    module, images, labels = _task(name)
    graph = from_torch(module, (images, labels), loss="own", dropout="mask", name=name)
    send({"image": images.shape[-1], "parameters": len(graph.trainable)})
    data = [spec.name for spec in graph.inputs if spec.kind == "data"]
    given = dict(zip(data, (images.numpy(), labels.numpy()), strict=True))
    trainer = Trainer(graph, host_target(), optimizer="sgd", lr=RATE, layout="NHWC")
    batches = [{**graph.random_batch(step), **given} for step in range(STEPS)]

    def eager(batches: list[dict[str, Any]]) -> list[float]:
        def loss(module: Any, step: int) -> Any:
            drawn = [(s, batches[step][s.name]) for s in graph.inputs if s.kind != "data"]
            with Given(drawn):
                return module(*(torch.tensor(batches[step][name]) for name in data))

        return sgd(module, loss, STEPS)

    ours = [float(trainer.step(batch)) for batch in batches]
    # The images are the same in all batches, and so is what each is moved by.
    parted(send, ours, eager(batches), lambda: eager([moved(graph, b) for b in batches]))


def train_compiled(name: str, send: Send) -> None:
    """As `train`, by `torch.compile(backend="relay_wgrad")`, beside eager mode, of equal seeds.

    Raises where a graph is left to PyTorch, or there are more breaks than Dynamo's own.
    """
    module, images, labels = _task(name)
    send({"image": images.shape[-1], "parameters": len(list(module.parameters()))})

    def run(x: Any, steps: int, backend: Any = None) -> list[float]:
        def loss(module: Any, step: int) -> Any:
            torch.manual_seed(step)
            return module(x, labels)

        counters.clear()
        return sgd(module, loss, steps, backend)

    run(images, 1, "eager")
    own, before = sum(counters["graph_break"].values()), len(reports.compiled_graphs())
    ours = run(images, STEPS, compiler.backend)
    added, graphs = sum(counters["graph_break"].values()) - own, reports.compiled_graphs()[before:]
    count = sum(len(graph.convolutions) for graph in graphs)
    left = [graph.reason for graph in graphs if graph.reason]
    send({"graphs": len(graphs), "compiled": count, "breaks_added": added, "left": left})
    if left or added:
        raise ValueError(f"{added} graph breaks are added; left to PyTorch: {'; '.join(left)}")
    ends = torch.where(torch.rand(images.shape) < 0.5, torch.inf, -torch.inf)
    nudged = torch.nextafter(images, ends)
    parted(send, ours, run(images, STEPS), lambda: run(nudged, STEPS))


MODES = {
    "table": table, "check": check, "open-check": check_open, "train": train,
    "compile": train_compiled, "onnx": table_of_onnx, "onnx-check": check_onnx, "aot": table_of_aot,
    "aot-check": check_aot,
}  # fmt: skip
"""Mode -> what sends the facts of a network."""
