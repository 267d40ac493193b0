"""Public functions with arguments of another type, in turn: TypeError or ValueError that says so.

Each row has a function and arguments that it takes; each argument is tried with what users mistake
for it.  What a row takes anyway (a tuple for a list) it names.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn

import byoc_cudnn
import legalize.composite
import legalize.cpu
from byoc_cudnn.backends.cudnn.program import emit
from relay_wgrad import ConvProblem, conventions, relay, transform
from relay_wgrad.frontend import from_onnx, from_torch, gradient_to_onnx, to_onnx
from relay_wgrad.inspection.partial_training import left_out
from relay_wgrad.relay.graph_executor import GraphModule
from relay_wgrad.training import Update, default_lr
from relay_wgrad.training import state as states
from relay_wgrad.training.data import Data
from relay_wgrad.training.images import Reading
from relay_wgrad.training.optim import Rate
from relay_wgrad.training.options import Options
from relay_wgrad.training.step import step_module

pytestmark = pytest.mark.usefixtures("registered")


class Stranger:
    """Nothing that anything takes."""


STRANGERS: dict[str, Any] = {
    "None": None, "True": True, "-1": -1, "2.5": 2.5, "nan": float("nan"), "10**20": 10**20,
    "text": "abc", "bytes": b"x", "[]": [], "pair": [1, 2], "()": (), "{}": {}, "dict": {"a": 1},
    "array": np.zeros(3), "number": np.float32(1.5), "tensor": torch.zeros(2),
    "scalar": torch.tensor(1), "object": Stranger(), "class": Stranger, "path": Path("/nowhere/x"),
    "range": range(2), "NHWC": "NHWC",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """`takes` : names of what an argument takes beside its own, by place or name."""

    function: Callable[..., Any]
    given: Callable[[], Mapping[Any, Any]]
    takes: Mapping[Any, str] = field(default_factory=dict)


def _module() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))


@cache
def _graph() -> Any:
    return from_torch(_module(), (torch.zeros(2, 3, 2, 2),))


@cache
def _open() -> Any:
    return from_torch(_module(), (torch.zeros(2, 3, 2, 2),), batch="N")


def _arrays() -> dict[str, Any]:
    return {"input": np.zeros((4, 3, 2, 2), "float32"), "labels": np.zeros(4, "int64")}


def _problem() -> ConvProblem:
    return ConvProblem.parse("wgrad n=2 c=4 h=8 w=8 k=6 r=3 s=3")


def _relay() -> relay.IRModule:
    x = relay.var("x", shape=(2, 4))
    return relay.IRModule.from_expr(relay.Function([x], relay.nn.relu(x)))


class _Rated:
    lr = Rate()


def _set_rate(value: Any) -> None:
    _Rated().lr = value


@cache
def _executor() -> GraphModule:
    lib = relay.build(_relay(), target="llvm")
    module = GraphModule(lib["default"](tvm.cpu()))
    module.set_input("x", np.zeros((2, 4), "float32"))
    return module


ROWS: dict[str, Row] = {
    "Data": Row(
        lambda graph, arrays, least, size, drop_last: Data(
            graph, arrays, least=least, size=size, drop_last=drop_last
        ),
        lambda: {"graph": _graph(), "arrays": _arrays(), "least": 1, "size": 2, "drop_last": True},
        {"least": "None True -1 10**20", "size": "None"},
    ),
    "ConvProblem.parse": Row(ConvProblem.parse, lambda: {0: _problem().repro()}),
    "of_batch": Row(lambda n: _open().of_batch(n), lambda: {"n": 2}),
    "step_module": Row(
        step_module,
        lambda: {0: _graph(), "dtype": "float32", "scaled": False, "raise_norms": False},
        {"dtype": "None", "scaled": "True", "raise_norms": "True"},
    ),
    "gradient_to_onnx": Row(
        gradient_to_onnx,
        lambda: {0: _graph(), "params": _graph().params, "module": _graph().gradient()},
        {"params": "None", "module": "None"},
    ),
    "default_lr": Row(default_lr, lambda: {0: "sgd", 1: _graph()}),
    "left_out": Row(left_out, lambda: {0: _graph()}),
    "a rate": Row(_set_rate, lambda: {0: 0.1}, {0: "2.5 10**20 number"}),
    "Update": Row(
        lambda **given: Update(**given),
        lambda: {"weight_decay": 0.1, "clip_norm": 1.0, "ema": 0.9, "accumulate": 2,
                 "schedule": "constant", "decay": "all"},
        {"weight_decay": "2.5 10**20 number", "clip_norm": "None 2.5 10**20 number", "ema": "None"},
    ),
    "Options": Row(
        lambda **given: Options(**given),
        lambda: {"strict": False, "tf32": True, "graph": True, "norms": True},
        {"strict": "True"},
    ),
    "Reading": Row(
        lambda **given: Reading(**given),
        lambda: {"augment": "crop", "mean": (0.1, 0.1, 0.1), "std": (0.2, 0.2, 0.2)},
        {"mean": "array bytes", "std": "bytes"},
    ),
    "from_torch": Row(
        lambda **given: from_torch(_module(), (torch.zeros(2, 3, 2, 2),), **given),
        lambda: {"bn": "train", "loss": "mse", "dropout": "off", "random": "off", "name": "net"},
        {"name": "None text NHWC", "dropout": "None"},
    ),
    "save": Row(states.save, lambda: {0: None, 1: "/nowhere/x"}),
    "restore": Row(states.restore, lambda: {0: None, 1: "/nowhere/x"}),
    "host_target": Row(
        legalize.cpu.host_target, lambda: {0: 1, "allow_winograd": False},
        {0: "None", "allow_winograd": "True"},
    ),
    "prim_func": Row(
        legalize.cpu.prim_func, lambda: {0: _problem(), 1: legalize.cpu.host_target(1)}
    ),
    "emit": Row(
        emit, lambda: {0: _problem(), "allow_tf32": True, "workspace_limit": 10},
        {"workspace_limit": "None"},
    ),
    "read_region": Row(byoc_cudnn.read_region, lambda: {0: None}),
    "Composite": Row(
        lambda **given: legalize.composite.Composite(**given)(tvm.IRModule()),
        lambda: {"weight": False, "data": False},
        {"weight": "True", "data": "True"},
    ),
    "grad": Row(
        lambda mod, fn, order, inline: transform.grad(mod, fn, order=order, inline=inline),
        lambda: {0: _graph().module, 1: "main", "order": 1, "inline": False},
        {"inline": "True"},
    ),
    "SpaceToDepth": Row(
        lambda mod, **given: transform.SpaceToDepth(**given)(mod),
        lambda: {0: _graph().module, "stride_one": True, "form": "auto"},
    ),
    "astext": Row(relay.astext, lambda: {0: _relay()}),
    "IRModule": Row(relay.IRModule, lambda: {0: {}}, {0: "None {}"}),
    "is_op": Row(relay.dataflow_pattern.is_op, lambda: {0: "nn.relu"}),
    "ChangeBatch": Row(
        lambda data, size: relay.transform.ChangeBatch(data, size),
        lambda: {"data": {}, "size": 2}, {"data": "{}", "size": "10**20"},
    ),
    "bind_params_by_name": Row(
        relay.build_module.bind_params_by_name, lambda: {0: _relay()["main"], 1: {}},
        {1: "{} dict"},
    ),
    "load_param_dict": Row(relay.load_param_dict, lambda: {0: relay.save_param_dict({})}),
    "benchmark": Row(
        lambda device, repeat, number: _executor().benchmark(device, repeat=repeat, number=number),
        lambda: {"device": tvm.cpu(), "repeat": 1, "number": 1},
        {"repeat": "10**20", "number": "10**20"},  # for ever
    ),
    "convention": Row(
        conventions.pytorch.conv2d, lambda: {0: (1, 4, 8, 8), 1: (6, 4, 3, 3), 2: 1},
        {2: "pair bytes"},
    ),
}  # fmt: skip


def wrong(row: Row) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """(argument and stranger, positional arguments, keywords)."""
    given = dict(row.given())
    for place in given:
        for name, stranger in STRANGERS.items():
            if name not in row.takes.get(place, "").split() and not _same(stranger, given[place]):
                tried = {**given, place: copy.copy(stranger)}
                positional = [v for k, v in tried.items() if isinstance(k, int)]
                keywords = {k: v for k, v in tried.items() if isinstance(k, str)}
                yield f"{place}={name}", positional, keywords


def _same(stranger: Any, own: Any) -> bool:
    return type(stranger) is type(own) and isinstance(own, (bool, str)) and stranger == own


@pytest.mark.parametrize("name", ROWS)
def test_strangers_are_refused(name: str) -> None:
    found = []
    for what, positional, keywords in wrong(ROWS[name]):
        try:
            ROWS[name].function(*positional, **keywords)
        except (TypeError, ValueError, FileNotFoundError):
            continue
        except Exception as error:
            found.append(f"{what}: {type(error).__name__}: {str(error)[:80]}")
        else:
            found.append(f"{what} is taken")
    assert not found


def test_to_onnx() -> None:
    graph = from_onnx("squeezenet", batch=1, image_size=40)
    for stranger in STRANGERS.values():
        with pytest.raises((TypeError, ValueError)):
            to_onnx(stranger, graph.params, "squeezenet")
        if not isinstance(stranger, dict):
            with pytest.raises((TypeError, ValueError)):
                to_onnx(graph, stranger, "squeezenet")
