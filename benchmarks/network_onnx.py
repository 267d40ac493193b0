"""One network by way of ONNX to a training step, by stages, as `benchmarks.networks` has them."""

from __future__ import annotations

import io
import time
import warnings
from typing import Any

import onnx
import torch
from torch import nn

from benchmarks.network_stages import Send, facts_of_network, rest
from benchmarks.network_zoo import BATCH, build, tensors_of
from relay_wgrad.frontend import from_onnx

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
    trained = {graph.onnx_names[n].removeprefix("network.") for n in graph.trainable}
    own = [n for n, p in network.named_parameters(remove_duplicate=True) if p.requires_grad]
    send({"import_s": round(time.perf_counter() - began, 2), "notes": list(graph.notes),
          "trained": len(trained), "constant": [n for n in own if n not in trained]})  # fmt: skip
    rest(graph, send)


def exported(network: nn.Module, side: int) -> tuple[onnx.ModelProto, str, str]:
    """(the model in training mode, "dynamo" or "torchscript", why not dynamo)."""
    module, images = Whole(network).train(), torch.rand(BATCH, 3, side, side)
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
            why = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
        file = io.BytesIO()
        torch.onnx.export(
            module, (images,), file, dynamo=False, opset_version=OPSET,
            training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
        )  # fmt: skip
    return onnx.load_model_from_string(file.getvalue()), "torchscript", why[:300]
