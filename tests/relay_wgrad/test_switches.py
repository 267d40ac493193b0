"""Every switch of the public functions: what is neither True nor False is refused by its name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

import byoc_cudnn
import relay_wgrad.torch as torch_functions
from relay_wgrad import threads
from relay_wgrad.frontend import TrainingGraph, from_torch
from relay_wgrad.problem import ConvKind, ConvProblem
from relay_wgrad.transform import ConvertLayout, SpaceToDepth
from relay_wgrad.transform.raise_norm import RaiseBatchNorm
from tests.support.public import resolved

pytestmark = pytest.mark.usefixtures("registered")

NAMES = Path(__file__).parent.parent / "golden" / "public_names.txt"
RECORDS = {"byoc_cudnn.Backend", "byoc_cudnn.Decision", "legalize.composite.Composite"}
"""What users are given and do not make."""
OTHERS = {
    ("relay_wgrad.training.options.Options", "blocks"): "a form by name, too",
    ("relay_wgrad.torch.Conv1d", "bias"): "PyTorch's own",
    ("relay_wgrad.torch.ConvTranspose1d", "bias"): "PyTorch's own",
}


def switches(function: Any) -> list[str]:
    """The parameters that are True or False."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.annotation == "bool" or isinstance(p.default, bool)]


CASES = [
    (name, switch)
    for name in NAMES.read_text().split()
    if name not in RECORDS and callable(resolved(name))
    for switch in switches(resolved(name))
    if (name, switch) not in OTHERS
]


@cache
def module() -> tvm.IRModule:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3, 8, 8), "float32"))
    w = relax.Var("w", relax.TensorType((8, 3, 3, 3), "float32"))
    with bb.function("main", [x, w]):
        with bb.dataflow():
            made = bb.emit_output(relax.op.sum(relax.op.nn.conv2d(x, w)))
        bb.emit_func_output(made)
    return bb.get()


@cache
def graph() -> TrainingGraph:
    return from_torch(torch.nn.Conv2d(3, 2, 8), (torch.zeros(2, 3, 8, 8),))


def arguments(name: str) -> Mapping[str, Any]:
    """The rest of a call that is right."""
    problem = ConvProblem(ConvKind.FPROP, 1, 8, 4, 4, 8, 1, 1)
    traced = torch.fx.symbolic_trace(torch.nn.ReLU())
    images, labels = np.zeros((4, 3, 8, 8), "float32"), np.zeros(4, "int64")
    last = name.rpartition(".")[2]
    return {
        "emit": {"problem": problem},
        "partition_for_cudnn": {"mod": module()},
        "partition_for_cutlass": {"mod": module()},
        "Data": {"graph": graph(), "arrays": {"x": images, "labels": labels}},
        "from_aot": {"graph": traced, "example_inputs": (torch.zeros(1),)},
        "value_and_grad": {"function": lambda x: x, "example_args": (0.0,)},
        "ImageFolder": {"graph": graph(), "folder": "."},
        "step_module": {"graph": graph()},
        "Trainer": {"graph": graph()},
        "Evaluator": {"graph": graph()},
        "TrainingStep": {"module": torch.nn.Linear(1, 1), "example": torch.zeros(1, 1)},
    }.get(last, {})  # fmt: skip


def call(name: str, rest: Mapping[str, Any]) -> Any:
    """The rest by place where a parameter has another name."""
    function = resolved(name)
    given, parameters = dict(rest), inspect.signature(function).parameters
    places = [given.pop(key) for key in list(given) if key not in parameters]
    made = function(*places, **given)
    if isinstance(made, tvm.transform.Pass):
        return made(module())
    return made


@pytest.mark.parametrize("value", ["no", 2, None], ids=repr)
@pytest.mark.parametrize(("name", "switch"), CASES)
def test_neither_true_nor_false(name: str, switch: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=switch):
        call(name, {**arguments(name), switch: value})


UNDECIDED = [
    (function, parameter.name)
    for function in (
        byoc_cudnn.build, *(getattr(torch_functions, name) for name in torch_functions.__all__)
    )
    if inspect.isfunction(function)
    for parameter in inspect.signature(function).parameters.values()
    if parameter.annotation == "bool | None"
]  # fmt: skip
"""Functions, and their switches that may also be None."""


def of_convolution(function: Callable[..., Any]) -> dict[str, Any]:
    """One pixel's tensors and sizes, under the names that the function has for them."""
    rank = int(re.sub(r"\D", "", function.__name__) or 2)
    ones = (1,) * (2 + rank)
    names = inspect.signature(function).parameters
    given = {"input": torch.ones(ones), "weight": torch.ones(ones), "grad_output": torch.ones(ones)}
    return {
        name: value
        for name, value in {**given, "input_size": ones, "weight_size": ones}.items()
        if name in names
    }


@pytest.mark.parametrize("value", ["False", 2, 1.0, np.ones(2, bool)], ids=repr)
@pytest.mark.parametrize(
    ("function", "switch"), UNDECIDED, ids=[f"{f.__name__}-{s}" for f, s in UNDECIDED]
)
def test_neither_true_nor_false_nor_none(
    function: Callable[..., Any], switch: str, value: Any
) -> None:
    given = {"mod": module()} if function is byoc_cudnn.build else of_convolution(function)
    with pytest.raises(TypeError, match=f"{switch} must be True, False or None"):
        function(**given, **{switch: value})


@pytest.mark.parametrize(
    "function", dict.fromkeys(f for f, _ in UNDECIDED if f is not byoc_cudnn.build)
)
def test_true_false_and_none(function: Callable[..., Any]) -> None:
    for value in (True, False, None, np.True_):
        switches = [switch for f, switch in UNDECIDED if f is function]
        function(**of_convolution(function), **dict.fromkeys(switches, value))


@pytest.mark.parametrize("value", ["no", 2, None], ids=repr)
def test_weight_gradients(value: Any) -> None:
    with (
        pytest.raises(TypeError, match="no_weight_gradients: disable must be True or False"),
        torch_functions.no_weight_gradients(value),
    ):
        pass


# ---- names of functions, numbers of threads ------------------------------------------------------

PASSES: tuple[Callable[..., tvm.transform.Pass], ...] = (
    ConvertLayout, RaiseBatchNorm, SpaceToDepth
)  # fmt: skip


@pytest.mark.parametrize("make", PASSES, ids=lambda make: make.__name__)
def test_a_function_that_the_module_lacks(make: Callable[..., tvm.transform.Pass]) -> None:
    with pytest.raises(ValueError, match=r"has no Relax function nowhere; it has: main"):
        make(functions=["nowhere"])(module())


@pytest.mark.parametrize("functions", ["main", 3, [1]], ids=repr)
@pytest.mark.parametrize("make", PASSES, ids=lambda make: make.__name__)
def test_what_is_no_list_of_names(make: Callable[..., tvm.transform.Pass], functions: Any) -> None:
    with pytest.raises(TypeError, match="functions must be a list of names, got"):
        make(functions=functions)(module())


@pytest.mark.parametrize(("count", "error"), [(0, ValueError), (-1, ValueError), (True, TypeError),
                                          ("2", TypeError), (1.0, TypeError)])  # fmt: skip
def test_numbers_of_threads(count: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="run: threads must be an integer of at least 1"):
        threads.run(lambda: None, threads=count)
