"""Trained parameters back into the ONNX file that they came from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ...argument_types import check_type
from ..graph import TRAINING_GRAPH, TrainingGraph
from ..weights import as_array
from .file import size_of
from .inference import predicting
from .model_source import load

INPUT_TOO = 4  # before this IR version an initializer had to be an input of the graph as well
MODES = ("inference", "training")
MODE = "relay_wgrad.mode"  # in a model's metadata
LARGEST = 2**31 - 2**20  # bytes of weights: a protobuf message has less than 2 GiB


def to_onnx(
    graph: TrainingGraph,
    params: Mapping[str, Any],
    model: str | os.PathLike[str] | onnx.ModelProto,
    *,
    mode: str = "inference",
) -> onnx.ModelProto:
    """The model with these parameters in place of its own.

    `params` has a value for each of `graph.params`, as `Trainer.params` does; `model` is what
    `from_onnx` made the graph of: a path, a name in `BUNDLED` or a ModelProto, which stays as it
    is.  Initializers keep their names and dtypes; a parameter that a node makes, such as a
    ConstantOfShape, becomes an initializer instead.  Everything else is as in the file, its batch
    too, but for the `mode`: "inference" makes of a file for training what predicts as an
    `Evaluator` does, by running statistics, without dropout, with random numbers at their means;
    "training" leaves its nodes as they are.  The model's metadata have a line `relay_wgrad.mode`.

    Raises ValueError for a missing parameter, one of another shape, a model that is not the
    graph's, an unknown mode; and what `from_onnx` raises for a model that cannot be read.  Raises
    TypeError for what is no graph, and for parameters that are no dict.
    """
    check_type("to_onnx: graph", graph, TrainingGraph, TRAINING_GRAPH)
    check_type("to_onnx: params", params, Mapping, "a dict of arrays by name")
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}: expected {' or '.join(MODES)}")
    trained = {}
    for name, file in graph.onnx_names.items():
        if name not in params:
            raise ValueError(f"{graph.name}: no value for parameter {name!r}")
        value = params[name]
        array = as_array(value)
        if array.shape != graph.params[name].shape:
            raise ValueError(
                f"{graph.name}: parameter {name!r} is {list(graph.params[name].shape)},"
                f" got {list(array.shape)}"
            )
        trained[file] = array
    source = load(model)[1]
    types = {tensor.name: tensor.data_type for tensor in source.graph.initializer}
    size = sum(size_of(t) or 0 for t in source.graph.initializer if t.name not in trained)
    for file, array in trained.items():  # before any copy: it would be as large
        dtype = helper.tensor_dtype_to_np_dtype(types[file]) if file in types else array.dtype
        size += array.size * dtype.itemsize
    if size > LARGEST:
        raise ValueError(f"{graph.name}: weights of {size} bytes are more than one ONNX file holds")
    out = onnx.ModelProto()
    out.CopyFrom(source)
    held = {tensor.name: tensor for tensor in out.graph.initializer}
    makers = {name: node for node in out.graph.node for name in node.output}
    for file, array in trained.items():
        maker = makers.get(file)
        if (tensor := held.get(file)) is not None:
            if tuple(tensor.dims) != array.shape:
                raise ValueError(
                    f"{graph.name}: {file!r} is {list(tensor.dims)} in the model,"
                    f" but {list(array.shape)} in the graph"
                )
            array = array.astype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
            tensor.CopyFrom(numpy_helper.from_array(array, file))
        elif maker is not None and len(maker.output) == 1:
            out.graph.node.remove(maker)
            _add_initializer(out, file, array)
        else:
            raise ValueError(f"{graph.name}: the model has no initializer {file!r}")
    changed = predicting(out) if mode == "inference" else ""
    for entry in [e for e in out.metadata_props if e.key == MODE]:
        out.metadata_props.remove(entry)
    out.metadata_props.add(key=MODE, value=f"{mode}: {changed}" if changed else mode)
    return out


def mode_of(model: onnx.ModelProto) -> str:
    """What `to_onnx` said of the mode of a model that it made."""
    return next((entry.value for entry in model.metadata_props if entry.key == MODE), "")


def _add_initializer(model: onnx.ModelProto, name: str, array: Any) -> None:
    tensor = numpy_helper.from_array(np.asarray(array, order="C"), name)
    model.graph.initializer.append(tensor)
    if model.ir_version < INPUT_TOO:
        info = helper.make_tensor_value_info(name, tensor.data_type, array.shape)
        model.graph.input.append(info)
