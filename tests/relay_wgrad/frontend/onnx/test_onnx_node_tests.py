"""ONNX's own tests of Conv and ConvTranspose, as `onnx.backend.test` has them, through `from_onnx`.

Their weights are inputs of the graph; here they are its parameters, with the values of the tests.
All are run that are there: images, sequences (1-D) as images of height 1, and volumes (3-D).
"""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.case import node as node_cases
from onnx.backend.test.loader import load_model_tests
from onnx.reference import ReferenceEvaluator

from relay_wgrad.frontend import from_onnx
from tests.support.onnx.models import F64, call, check, draw, node, tiny

OPS = ("Conv", "ConvTranspose")
FILES = ("pytorch-converted", "pytorch-operator")


def _generated() -> list[Any]:
    """(kind, name, model, inputs, outputs) of the node tests; importing a module makes them."""
    for module in ("conv", "convtranspose"):
        importlib.import_module(f"{node_cases.__name__}.{module}")
    found = []
    for case in node_cases._NodeTestCases:
        graph = case.model.graph
        if [n.op_type for n in graph.node] in ([op] for op in OPS):
            (inputs, outputs), *_ = case.data_sets
            named = dict(zip((i.name for i in graph.input), inputs, strict=True))
            found.append(("node", case.name, case.model, named, outputs[0]))
    return found


def _stored(kind: str) -> list[Any]:
    """The same of the tests that the package ships as files."""

    def tensor(path: Path) -> Any:
        return numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))

    found = []
    for case in load_model_tests(kind=kind):
        model = onnx.load(Path(case.model_dir, "model.onnx"))
        if not {n.op_type for n in model.graph.node} & set(OPS):
            continue
        data = Path(case.model_dir, "test_data_set_0")
        weights = {t.name for t in model.graph.initializer}
        names = [i.name for i in model.graph.input if i.name not in weights]
        values = {name: tensor(data / f"input_{k}.pb") for k, name in enumerate(names)}
        found.append((kind, case.name, model, values, tensor(data / "output_0.pb")))
    return found


CASES = [*_generated(), *(case for kind in FILES for case in _stored(kind))]


def _training_graph(case: Any) -> Any:
    """The model with all inputs but the first one as weights."""
    _, _, model, values, _ = case
    made = onnx.ModelProto()
    made.CopyFrom(model)
    first = next(iter(values))
    made.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(v), n) for n, v in values.items() if n != first
    )
    for opset in made.opset_import:  # of the oldest files; convolutions have not changed since
        opset.version = max(opset.version, 9)
    return from_onnx(made, loss="mse", weights="initial")


def test_how_many_there_are() -> None:
    """Of onnx 1.23; other versions may have more."""
    run = Counter(case[0] for case in CASES)
    assert run["node"] >= 17
    assert run["pytorch-converted"] >= 28
    assert run["pytorch-operator"] >= 2
    ops = Counter(c[2].graph.node[0].op_type for c in CASES if c[0] == "node")
    assert ops["Conv"] >= 6
    assert ops["ConvTranspose"] >= 11


@pytest.mark.share(7)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c[1])
def test_node(case: Any, registered: None) -> None:
    graph = _training_graph(case)
    batch = graph.random_batch()
    batch[graph.inputs[0].name] = next(iter(case[3].values()))
    _, result = call(graph.module, "main", graph.arguments(batch))
    assert result.numpy().shape == case[4].shape
    np.testing.assert_allclose(result.numpy(), case[4], rtol=1e-5, atol=1e-5)


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("made", "weight", "shape"),
    [
        (node("Conv", "w", pads=[2, 0], strides=[2], dilations=[2]), (4, 3, 2), (2, 3, 9)),
        (node("ConvTranspose", "w", pads=[1, 0], strides=[3]), (3, 4, 2), (2, 3, 5)),
        (node("ConvTranspose", "w", output_shape=[9, 12]), (3, 4, 2, 3), (2, 3, 5, 4)),
        (
            node("Conv", "w", auto_pad="SAME_LOWER", strides=[2, 1, 1]),
            (4, 3, 2, 3, 1),
            (2, 3, 5, 4, 2),
        ),
        (
            node("ConvTranspose", "w", pads=[1, 0, 0, 0, 0, 1], strides=[2, 1, 3]),
            (3, 2, 3, 2, 2),
            (2, 3, 3, 4, 2),
        ),
    ],
    ids=["1-D", "1-D transposed", "zeros around", "3-D", "3-D transposed"],
)
def test_gradients(made: onnx.NodeProto, weight: Any, shape: Any, registered: None) -> None:
    model = tiny([made], shape, {"w": draw(*weight)})
    if "output_shape" in {a.name for a in made.attribute}:
        # ONNX's evaluator has no such nodes: the rows that are missing are zeros at the end.
        graph = from_onnx(model, loss="mse", weights="initial", dtype=F64)
        outputs, gradients = call(
            graph.gradient(["w"]), "main_adjoint", graph.arguments(graph.random_batch())
        )
        assert outputs[1].numpy().shape == (2, 4, 9, 12)
        assert not outputs[1].numpy()[:, :, 6:].any()
        assert not outputs[1].numpy()[..., 6:].any()
        assert gradients[0].numpy().any()
        return
    check(model)


def test_one_axis_has_one_value() -> None:
    with pytest.raises(
        ValueError, match=r"strides=\[1, 2\]: must have 1 values, one for each spatial"
    ):
        from_onnx(tiny([node("Conv", "w", strides=[1, 2])], (1, 2, 9), {"w": draw(3, 2, 3)}))
    with pytest.raises(ValueError, match="must have as many axes as the data, 3"):
        from_onnx(tiny([node("Conv", "w")], (1, 2, 9), {"w": draw(3, 2, 3, 3)}))


MISSING = [  # (kernel, stride, auto_pad, output_shape): of two rows 1, 2 by taps 1, 2, …
    (1, 2, "SAME_UPPER", None), (1, 2, "SAME_LOWER", None), (2, 3, "SAME_UPPER", None),
    (2, 5, "SAME_UPPER", None), (2, 5, "SAME_LOWER", None), (1, 4, "SAME_LOWER", None),
    (2, 2, "NOTSET", 6), (3, 2, "NOTSET", 9), (2, 2, "SAME_UPPER", 7),
]  # fmt: skip


@pytest.mark.share(4)  # each rank and each kind of missing rows
@pytest.mark.parametrize(("kernel", "stride", "auto", "size"), MISSING)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_rows_that_no_tap_reaches(
    rank: int, kernel: int, stride: int, auto: str, size: int | None
) -> None:
    """Zeros after the others here; docs/explanation/transposed.md says what others make of them."""
    taps = np.arange(1.0, kernel + 1)
    reached = np.zeros(stride + max(kernel, 1))
    reached[:kernel] += taps
    reached[stride : stride + kernel] += 2 * taps
    total = 2 * stride if size is None else size
    wanted = np.zeros(total)
    wanted[: len(reached)] = reached[:total]
    more = [1] * (rank - 1)
    given = {"strides": [stride, *more], "auto_pad": auto}
    if size is not None:
        given["output_shape"] = [size, *more]
    weights = {"w": taps.reshape(1, 1, -1, *more)}
    model = tiny([node("ConvTranspose", "w", **given)], (1, 1, 2, *more), weights)
    graph = from_onnx(model, loss="mse", weights="initial", dtype=F64)
    x = np.array([1.0, 2.0]).reshape(1, 1, 2, *more)
    batch = {"x": x, "target": np.zeros((1, 1, total, *more))}
    found = call(graph.module, "main", graph.arguments(batch))[1].numpy()
    np.testing.assert_array_equal(found.reshape(-1), wanted)
    if size is None:  # ONNX's evaluator has as many rows, with zeros on both sides
        theirs = ReferenceEvaluator(model).run(None, {"x": x})[0].reshape(-1)
        before = (total - len(reached) + (auto == "SAME_UPPER")) // 2
        np.testing.assert_array_equal(theirs, np.roll(wanted, before))
