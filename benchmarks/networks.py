"""Networks that people train, of torchvision and timm: what becomes of each as a training step.

--mode: `table`: whether the network was imported, whether its gradient was made, in float16 as a
GPU has it, whether NHWC left no change of layout between operators, and how many of its
convolutions go to a library (`partition`, which needs no GPU); and in how many seconds.  `onnx`:
the same of what `torch.onnx.export` writes of the network in training mode, imported by
`from_onnx` (`pip install onnxscript`).  `aot`: of the joint graph of AOTAutograd, imported by
`from_aot`, how many of the gradients of convolutions that it asks for are recognised, and how many
convolutions go to a library.  `check`: loss and every parameter's gradient in float64 beside
autograd's, in training mode, with the same random numbers.  `compile`: the same through
`torch.compile(backend="relay_wgrad")`, the breaks of Dynamo's graph, and what PyTorch runs itself.

Each network has a process of its own, and a row with the reason where it fails, dies or takes too
much.  A pattern of --models is the shell's, as `timm/conv*`.
"""

from __future__ import annotations

import argparse
import copy
import fnmatch
import io
import operator
import resource
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
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
import relay_wgrad
from benchmarks import child, network_zoo
from benchmarks.errors import far_from, furthest, norm
from benchmarks.network_zoo import BATCH, Loss, build, tensors_of
from benchmarks.runner import Benchmark, Case, Measure, Option, Row, reason
from byoc_cudnn.report import PRODUCT
from relay_wgrad import keys
from relay_wgrad.frontend import TrainingGraph, from_aot, from_onnx, from_torch
from relay_wgrad.ir import op_name
from relay_wgrad.torch.reports import compiled_graphs
from relay_wgrad.training.step import ADJOINT, converted, step_module
from relay_wgrad.transform import count_reasons, layout_changes
from tests.support.torch.op_cases import autograd

LIBRARIES = ("cudnn", "cutlass")
BOUND = 1e-9  # of gradients in float64
OPSET = 18  # of PyTorch's older exporter, the newest that it writes
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

    compared(graph, batch, loss, wanted, send, shaken)


def moved(graph: TrainingGraph, batch: dict[str, Any]) -> dict[str, Any]:
    """The batch with each number of its images one rounding away."""
    rng = np.random.default_rng(7)
    data = {s.name: np.asarray(batch[s.name]) for s in graph.inputs if s.kind == "data"}
    return {**batch, **{n: rounded(x, rng) for n, x in data.items() if x.dtype.kind == "f"}}


def rounded(value: Any, rng: np.random.Generator) -> Any:
    """Each number one rounding away, up or down."""
    up = np.where(rng.random(value.shape) < 0.5, np.inf, -np.inf).astype(value.dtype)
    return np.nextafter(value, up)


def compared(
    graph: TrainingGraph, batch: dict[str, Any], loss: Any, wanted: dict[str, Any], send: Send,
    shaken: Callable[[], dict[str, Any]],
) -> None:  # fmt: skip
    """Sends how far the graph's step is from this loss and these gradients; raises beyond `BOUND`.

    shaken : makes the wanted gradients for images one rounding away, to tell beside an error how
    far these go.
    """
    began = time.perf_counter()
    compiled = tvm.compile(step_module(graph), tvm.target.Target(QUICK))
    machine = relax.VirtualMachine(compiled, tvm.cpu())
    arguments = [tvm.runtime.tensor(np.asarray(a, order="C")) for a in graph.arguments(batch)]
    outputs, gradients = machine[ADJOINT](*arguments)
    send({"step_s": round(time.perf_counter() - began, 1)})
    apart(float(outputs[0].numpy()), [g.numpy() for g in gradients], loss, wanted, send, shaken)


def apart(
    found: float, gradients: Sequence[Any], loss: Any, wanted: dict[str, Any], send: Send,
    shaken: Callable[[], dict[str, Any]],
) -> None:  # fmt: skip
    """Sends how far a loss and gradients are from what is wanted; raises beyond `BOUND`."""
    loss_error = abs(found - float(loss)) / max(abs(float(loss)), 1e-300)
    total = norm(wanted.values())
    worst, place = furthest(gradients, wanted.values())
    of = list(wanted)[place]
    send({"loss_error": loss_error, "worst": worst, "worst_of": of, "norm": total})
    if not (loss_error <= BOUND and worst <= BOUND):
        own = far_from(shaken()[of], wanted[of], total)
        send({"rounding": own})
        raise ValueError(
            f"the loss is {loss_error:.1e} and the gradient of {of} {worst:.1e} away; PyTorch's own"
            f" goes {own:.1e} by a rounding of images"
        )


def check_compiled(name: str, send: Send) -> None:
    """As `check`, by `torch.compile` with our backend, which draws eager's numbers on a CPU."""
    network, side = network_of(name, double=True)
    module = Loss(network)
    images = torch.rand(BATCH, 3, side, side, dtype=torch.float64)
    send({"image": side, "parameters": sum(p.numel() for p in module.parameters())})

    def results(images: Any, compiled: bool) -> tuple[float, dict[str, Any]]:
        own = copy.deepcopy(module)
        named = {name: p for name, p in own.named_parameters() if p.requires_grad}
        call = torch.compile(own, backend="relay_wgrad", dynamic=False) if compiled else own
        torch.manual_seed(3)
        with nullcontext() if compiled else Exact():
            loss = call(images)
            found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        pairs = zip(named.items(), found, strict=True)
        return float(loss.detach()), {
            n: (p * 0 if g is None else g).detach().numpy() for (n, p), g in pairs
        }

    wanted = results(images, compiled=False)
    before, lap = {id(graph) for graph in compiled_graphs()}, watch()
    loss, gradients = results(images, compiled=True)
    graphs = [graph for graph in compiled_graphs() if id(graph) not in before]
    ours = [graph for graph in graphs if not graph.reason]
    send({"step_s": lap(), "graphs": len(graphs), "breaks": dict(counters["graph_break"]),
          "convolutions": sum(len(graph.convolutions) for graph in graphs),
          "offloaded": sum(len(graph.convolutions) for graph in ours),
          "left": sorted({graph.reason for graph in graphs if graph.reason})})  # fmt: skip

    def shaken() -> dict[str, Any]:
        other = rounded(images.numpy(), np.random.default_rng(7))
        return results(torch.from_numpy(other), compiled=False)[1]

    apart(loss, list(gradients.values()), *wanted, send, shaken)


MODES = {
    "table": table, "check": check, "compile": check_compiled, "onnx": table_of_onnx,
    "aot": table_of_aot,
}  # fmt: skip
"""Mode -> what sends the facts of a network."""


def row(mode: str, name: str) -> dict[str, Any]:
    """The facts of a network, in a process of its own; those before a failure, and its reason."""
    relay_wgrad.register()
    found: dict[str, Any] = {}
    try:
        MODES[mode](name, found.update)
    except Exception as error:  # its reason is what the row is for
        where = traceback.extract_tb(error.__traceback__)[-1]
        found["reason"] = reason(error)
        found["at"] = f"{Path(where.filename).name}:{where.lineno}"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {**found, "peak_gib": round(peak / child.GIB, 2)}


def cases(args: argparse.Namespace) -> Iterator[Case]:
    names = network_zoo.networks()
    for pattern in args.models:
        if not fnmatch.filter(names, pattern):
            args.error(f"--models: no network is like {pattern!r}")
    for name in names:
        if not args.models or any(fnmatch.fnmatchcase(name, p) for p in args.models):
            yield Case({"mode": args.mode, "name": name})


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    return lambda case: measured(*case.key.values(), args.seconds, args.gib)


def measured(mode: str, name: str, seconds: float, gib: float) -> Row:
    """The row of one network, from a process of its own."""
    began = time.monotonic()
    found = child.row(row, mode, name, seconds=seconds, gib=gib)
    return {**found, "seconds": round(time.monotonic() - began, 1)}


def summary(rows: Sequence[Row]) -> Iterator[str]:
    total = sum(row.get("convolutions", 0) for row in rows)
    if total:
        gone = sum(row.get("offloaded", 0) for row in rows)
        yield f"{gone} of {total} convolutions are taken"


BENCHMARK = Benchmark(
    cases, begin, summary=summary,
    options={
        "mode": Option("table", "what is looked at", MODES),
        "models": Option((), "patterns of names; else all"),
        "seconds": Option(600.0, "of one row, at most"),
        "gib": Option(14.0, "of memory for one row, at most"),
    },
    columns=(
        ("network", "name"), ("image",), ("params", "parameters"), ("import s", "import_s", ".3g"),
        ("of it export", "export_s", ".3g"), ("gradient s", "gradient_s", ".3g"), ("between",),
        ("fixed",), ("asked",), ("recognised",), ("offloaded",), ("convolutions",), ("random",),
        ("graphs",),
        ("loss error", "loss_error", ".3g"), ("worst", None, ".3g"), ("of", "worst_of"),
        ("seconds", None, ".3g"), ("reason",),
    ),
)  # fmt: skip
