"""One network by the joint graph of AOTAutograd: `benchmarks cpu networks --mode aot`."""

from __future__ import annotations

import operator
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import tvm
from torch import nn
from tvm import relax

import byoc_cudnn
from benchmarks.errors import furthest
from benchmarks.network_checks import BOUND, QUICK, Exact, spread
from benchmarks.network_stages import LIBRARIES, Send, facts_of_network
from benchmarks.network_zoo import BATCH, Loss, build
from byoc_cudnn.report import PRODUCT
from relay_wgrad import keys
from relay_wgrad.frontend import GradientGraph, from_aot
from relay_wgrad.ir import op_name
from relay_wgrad.training.step import ADJOINT, converted

_ASKED = "convolution_backward.default"


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
        if str(getattr(node.target, "__name__", "")) == _ASKED:
            read = {u.args[1] for u in node.users if u.target is operator.getitem and u.users}
            count += (1 in read) + (0 in read and not node.args[7])
    return count


def stages(name: str, send: Send) -> None:
    """Sends the facts of a network after each stage; raises where one fails."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    network, side = build(name, initial=False)
    graph, inputs = joint(network, torch.rand(BATCH, 3, side, side))
    send({**facts_of_network(network, side), "export_s": round(time.perf_counter() - began, 2)})
    began = time.perf_counter()
    made = from_aot(graph, inputs, name=name)
    found = [op_name(b.value) for block in made.module["main"].body.blocks for b in block.bindings]
    recognised = sum("_backward_data" in op or "_backward_weight" in op for op in found)
    send({"import_s": round(time.perf_counter() - began, 2), "bindings": len(found),
          "asked": asked(graph), "recognised": recognised})  # fmt: skip
    module = made.module.clone()
    main = module["main"]
    del module["main"]
    module[ADJOINT] = main.with_attr(keys.SYMBOL, ADJOINT)
    _, report = byoc_cudnn.partition(converted(module, "NHWC"), LIBRARIES)
    entries = [entry for entry in report.entries if entry.op != PRODUCT]
    left = sorted({f"{e.op}: {e.reason}" for e in entries if not e.backend})
    send({"convolutions": len(entries), "offloaded": sum(bool(e.backend) for e in entries),
          "left": left})  # fmt: skip
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


def check(name: str, send: Send) -> None:
    """Sends how far all results in float64 are from PyTorch's of the graph; raises beyond `BOUND`.

    Of each result ‖error‖ / max(‖result‖, 1e-6 ‖all results‖).
    """
    torch.set_num_threads(1)
    network, side = build(name)
    network = network.double()
    spread(network)
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
    found = _results(made, inputs, numbers)
    send({"step_s": round(time.perf_counter() - began, 1)})
    pairs = [(f, w.detach().numpy()) for f, w in zip(found, wanted, strict=True) if w is not None]
    worst, place = furthest(*zip(*[pair for pair in pairs if pair[1].size], strict=True))
    send({"worst": worst, "worst_of": f"result {place}", "loss_error": 0.0})
    if not worst <= BOUND:
        raise ValueError(f"result {place} is {worst:.1e} away")


def _results(made: GradientGraph, inputs: list[Any], numbers: list[Any]) -> list[Any]:
    arrays = [x.detach().numpy() for x in inputs]
    arguments = [np.asarray(a, order="C") for a in made.arguments(arrays, numbers)]
    machine = relax.VirtualMachine(tvm.compile(made.module, tvm.target.Target(QUICK)), tvm.cpu())
    computed = machine["main"](*[tvm.runtime.tensor(a) for a in arguments])
    return made.results(arrays, [x.numpy() for x in computed])
