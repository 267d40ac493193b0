"""One network by way of ONNX to a training step, by stages: `benchmarks cpu networks`."""

from __future__ import annotations

import copy
import io
import time
import warnings
from typing import Any

import onnx
import torch
from torch import nn

from benchmarks.network_checks import Exact, compared, spread
from benchmarks.network_stages import Send, facts_of_network, rest
from benchmarks.network_zoo import BATCH, build, tensors_of
from relay_wgrad.frontend import TrainingGraph, from_onnx

BOUND = 1e-6  # of gradients in float64: a file's attributes and scales are float32
OPSET = 18  # of the older exporter, the newest that it writes


class Whole(nn.Module):
    """A network with one result: its own, or where it has several all of their elements."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Any) -> Any:
        """The result of images (N, 3, H, W), or (N, elements) of all results."""
        results = tensors_of(self.network(x))
        return results[0] if len(results) == 1 else torch.cat([y.flatten(1) for y in results], 1)


def stages(name: str, send: Send) -> None:
    """Sends the facts of a network after each stage; raises where one fails.

    `torch.onnx.export` writes it in training mode; where its exporter fails, the older one, by
    TorchScript, does.
    """
    torch.set_num_threads(1)
    began = time.perf_counter()
    network, side = build(name, initial=False)
    send({**facts_of_network(network, side), "made_s": round(time.perf_counter() - began, 2)})
    began = time.perf_counter()
    model, exporter, why = exported(network, side)
    send({"export_s": round(time.perf_counter() - began, 2), "exporter": exporter, "why": why,
          "nodes": len(model.graph.node)})  # fmt: skip
    began = time.perf_counter()
    graph = from_onnx(model, loss="mse", weights="initial", dropout="mask")
    send({"import_s": round(time.perf_counter() - began, 2), "notes": list(graph.notes),
          "trained": len(graph.trainable), "constant": _constant(network, graph)})  # fmt: skip
    rest(graph, send)


def _constant(network: nn.Module, graph: TrainingGraph) -> list[str]:
    """The parameters that the graph does not train by any of the names that they have."""
    trained = {graph.onnx_names[n].removeprefix("network.") for n in graph.trainable}
    every = dict(network.named_parameters(remove_duplicate=False))
    reached = {id(p) for name, p in every.items() if name in trained}
    return [n for n, p in network.named_parameters() if p.requires_grad and id(p) not in reached]


def check(name: str, send: Send) -> None:
    """Sends how far loss and gradients in float64 are from autograd's; raises beyond `BOUND`.

    In training mode, but nothing is left out at random: PyTorch and ONNX draw differently.
    """
    torch.set_num_threads(1)
    network, side = build(name)
    network.double()
    spread(network)
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
    compared(graph, batch, loss.detach(), gradients, send, BOUND)


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
