"""A training step that this package made, as an ONNX model that any runtime runs."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from tvm.ir import IRModule

from ...argument_types import check_type
from ...transform.grad import adjoint_name
from ..graph import TRAINING_GRAPH, TrainingGraph
from ..weights import as_array
from .export import LARGEST
from .writing.function import function_to_onnx

RATE = "learning_rate"


def gradient_to_onnx(
    graph: TrainingGraph,
    *,
    wrt: Sequence[str] | None = None,
    params: Mapping[str, Any] | None = None,
    learning_rate: float | None = None,
    module: IRModule | None = None,
) -> onnx.ModelProto:
    """The graph's loss, outputs and gradients as one ONNX model of opset 20.

    Gradients of convolutions are ConvTranspose and Conv, so every runtime of ONNX can train, not
    those alone that know training operators.

    Inputs are the graph's own and its parameters, which have values in the model, so that they may
    be left out.  Outputs are the graph's (`loss`, `logits`, `<statistic>_new`), `<parameter>_grad`
    of each of `wrt`, and with `learning_rate` (an input of that default) `<parameter>_new`, the
    parameter less its gradient times the rate.

    Parameters
    ----------
    graph : of known sizes; an open batch's is `graph.of_batch(n)`.
    wrt : parameters and data inputs; by default `trainable`.
    params : the parameters' values; by default the graph's.
    learning_rate : of stochastic gradient descent; None: gradients alone.
    module : `graph.gradient(wrt)` or what a pass has made of it; by default the former.

    Raises
    ------
    ValueError : for an operator without a row (`function_to_onnx`), an open batch, an unknown name,
        values of another shape, more than 2 GiB of them, a rate that is not positive.
    TypeError : for a rate that is no number, and for a graph, a module or `params` of another type.
    RuntimeError : before `relay_wgrad.register()`.
    """
    check_type("gradient_to_onnx: graph", graph, TrainingGraph, TRAINING_GRAPH)
    check_type(
        "gradient_to_onnx: params", params, (Mapping, type(None)), "a dict of arrays by name"
    )
    check_type("gradient_to_onnx: module", module, (IRModule, type(None)), "an IRModule")
    if graph.is_open:
        raise ValueError(f"{graph.name}: its batch is open: export `of_batch(n)`")
    if learning_rate is not None:
        _check_rate(graph.name, learning_rate)
    names = list(graph.trainable if wrt is None else wrt)
    if unknown := [repr(name) for name in params or () if name not in graph.params]:
        raise ValueError(
            f"{graph.name}: params has values for {', '.join(unknown)}, which are no parameters of"
            f" the graph: it has {', '.join(graph.params)}"
        )
    values = {}
    for name, initial in graph.params.items():
        if params is not None and name not in params:
            raise ValueError(f"{graph.name}: no value for parameter {name!r}")
        values[name] = as_array(initial if params is None else params[name])
    if (size := sum(v.nbytes for v in values.values())) > LARGEST:
        raise ValueError(f"{graph.name}: weights of {size} bytes are more than one ONNX file holds")
    module = graph.gradient(names) if module is None else module
    outputs = [*graph.outputs, *(f"{n}_grad" for n in names)]
    model = function_to_onnx(
        module, adjoint_name("main"), outputs=outputs, initial=values, name=graph.name
    )
    if learning_rate is not None:
        _add_update(model, [n for n in names if n in graph.trainable], learning_rate, graph.dtype)
    return model


def _check_rate(name: str, rate: Any) -> None:
    if isinstance(rate, bool) or not isinstance(rate, numbers.Real):
        raise TypeError(f"{name}: learning_rate must be a number, got {type(rate).__name__}")
    if not 0 < float(rate) < math.inf:
        raise ValueError(f"{name}: learning_rate must be positive and finite, got {rate}")


def _add_update(model: onnx.ModelProto, names: Sequence[str], rate: float, dtype: str) -> None:
    """parameter_new = parameter - rate * gradient."""
    helper, graph = onnx.helper, model.graph
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    given = {i.name: i for i in graph.input}
    taken = set(given).union(*(node.output for node in graph.node))
    for name in (RATE, *(f"{n}_{end}" for n in names for end in ("step", "new"))):
        if name in taken:
            raise ValueError(f"{graph.name}: something else is named {name!r} already")
    graph.input.append(helper.make_tensor_value_info(RATE, kind, []))
    graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(rate, dtype), RATE))
    for name in names:
        step, new = f"{name}_step", f"{name}_new"
        graph.node.append(helper.make_node("Mul", [f"{name}_grad", RATE], [step], name=step))
        graph.node.append(helper.make_node("Sub", [name, step], [new], name=new))
        info = onnx.ValueInfoProto()
        info.CopyFrom(given[name])
        info.name = new
        graph.output.append(info)
