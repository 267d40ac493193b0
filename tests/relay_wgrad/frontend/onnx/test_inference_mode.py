"""Files for training, trained and written back, predict as they are evaluated."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from relay_wgrad.frontend import from_onnx, to_onnx
from relay_wgrad.frontend.onnx.export import mode_of
from relay_wgrad.training.data import Data
from relay_wgrad.training.evaluation import Evaluator
from tests.support.fast import FAST

pytestmark = pytest.mark.usefixtures("registered")

NODE = helper.make_node
TAIL = [NODE("Flatten", ["r"], ["f"]), NODE("MatMul", ["f", "fc"], ["y"])]
BODY = {
    "norm": [NODE("BatchNormalization", ["c", *"sbmv"], ["r", "m2", "v2"], training_mode=1)],
    "statistics given": [
        NODE("BatchNormalization", ["c", *"sbmv"], ["n", "m2", "v2"], training_mode=1),
        NODE("Relu", ["n"], ["r"]), NODE("Identity", ["m2"], ["mean_out"]),
    ],
    "dropout": [NODE("Dropout", ["c", "ratio", "on"], ["r", "mask"])],
    "noise": [
        NODE("RandomNormalLike", ["c"], ["e"], mean=0.5), NODE("Add", ["c", "e"], ["d"]),
        NODE("RandomUniform", [], ["u"], shape=[6, 6], low=1.0, high=2.0, seed=3.0),
        NODE("Mul", ["d", "u"], ["r"]),
    ],
    "stochastic depth": [
        NODE("Expand", ["keep", "each"], ["p"]), NODE("Bernoulli", ["p"], ["k"]),
        NODE("Div", ["k", "keep"], ["scaled"]), NODE("Mul", ["c", "scaled"], ["r"]),
    ],
    "all": [
        NODE("BatchNormalization", ["c", *"sbmv"], ["n", "m2", "v2"], momentum=0.8,
             training_mode=1),
        NODE("Relu", ["n"], ["n2"]), NODE("Dropout", ["n2", "ratio", "on"], ["d"]),
        NODE("RandomUniformLike", ["d"], ["u"], dtype=TensorProto.FLOAT),
        NODE("Add", ["d", "u"], ["r"]),
    ],
    "inference": [NODE("BatchNormalization", ["c", *"sbmv"], ["r"])],
    "instances": [NODE("InstanceNormalization", ["c", "s", "b"], ["r"])],
}  # fmt: skip
LINES = {
    "norm": "inference: 1 BatchNormalization by running statistics",
    "statistics given": "inference: 1 BatchNormalization by running statistics",
    "dropout": "inference: 1 Dropout off",
    "noise": "inference: 1 RandomNormalLike at its mean, 1 RandomUniform at its mean",
    "stochastic depth": "inference: 1 Bernoulli at its mean",
    "all": "inference: 1 BatchNormalization by running statistics, 1 Dropout off,"
    " 1 RandomUniformLike at its mean",
    "inference": "inference",
    "instances": "inference",
}


def model(body: str, opset: int = 18) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    held: dict[str, Any] = {
        "w": 0.3 * rng.standard_normal((4, 3, 3, 3)), "s": rng.random(4) + 0.5,
        "b": rng.standard_normal(4), "m": np.zeros(4), "v": np.ones(4),
        "fc": 0.1 * rng.standard_normal((144, 5)), "keep": 0.75, "ratio": 0.4,
    }  # fmt: skip
    arrays = [numpy_helper.from_array(np.asarray(a, "float32"), n) for n, a in held.items()]
    arrays.append(numpy_helper.from_array(np.array(True), "on"))
    arrays.append(numpy_helper.from_array(np.array([1, 1, 1, 1]), "each"))
    nodes = [NODE("Conv", ["x", "w"], ["c"], pads=[1] * 4), *BODY[body], *TAIL]
    names = ["y", *(["mean_out", "v2"] if body == "statistics given" else [])]
    taken = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes, "mine",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 3, 6, 6])],
        [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, 5] if n == "y" else [4])
            for n in names
        ],
        [a for a in arrays if a.name in taken],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


@pytest.mark.longer_cases("norm", "dropout", "noise", "stochastic", "inference", "instances")
@pytest.mark.parametrize("body", BODY)
def test_predicts_as_evaluated(body: str) -> None:
    proto = model(body)
    graph = from_onnx(proto, weights="initial", output="y")
    rng = np.random.default_rng(1)
    trained = {
        n: (v + 0.3 * rng.random(v.shape)).astype("float32") for n, v in graph.params.items()
    }
    evaluated = from_onnx(proto, weights="initial", bn="eval", random="off", output="y")
    batch = evaluated.random_batch(7)
    batch["x"] = 3 * batch["x"] + 1  # not as the running statistics have it
    found = Evaluator(evaluated, FAST)(trained, Data(evaluated, batch))

    made = to_onnx(graph, trained, proto)
    assert mode_of(made) == LINES[body]
    onnx.checker.check_model(made)
    first = ReferenceEvaluator(made).run(None, {"x": batch["x"]})
    again = ReferenceEvaluator(made).run(None, {"x": batch["x"]})
    logits = first[0].astype("float64")
    np.testing.assert_array_equal(first[0], again[0])
    chosen = logits[np.arange(8), batch["labels"]]
    loss = float((np.log(np.exp(logits).sum(1)) - chosen).mean())
    assert found.loss == pytest.approx(loss, rel=1e-5)
    assert found.accuracy == (logits.argmax(1) == batch["labels"]).mean()
    if body == "statistics given":
        for value, name in zip(first[1:], ("m", "v"), strict=True):
            np.testing.assert_array_equal(value, trained[name])
    unused = {t.name for t in made.graph.initializer} - {
        n for o in made.graph.node for n in o.input
    }
    assert not unused


def test_training_mode_leaves_the_nodes() -> None:
    proto = model("all")
    graph = from_onnx(proto, weights="initial")
    made = to_onnx(graph, graph.params, proto, mode="training")
    assert mode_of(made) == "training"
    assert list(made.graph.node) == list(proto.graph.node)
    again = to_onnx(graph, graph.params, made)
    assert mode_of(again) == LINES["all"]
    with pytest.raises(ValueError, match="mode='eval': expected inference or training"):
        to_onnx(graph, graph.params, proto, mode="eval")


def test_before_opset_14_training_is_more_outputs() -> None:
    """And dropout has no mode before opset 12: the file's ratio stays."""
    proto = model("norm", 13)
    del proto.graph.node[1].attribute[:]
    proto.graph.node[1].output.extend(["m3", "v3"])
    old = model("dropout", 11)
    del old.graph.node[1].input[1:]
    old.graph.node[1].attribute.append(helper.make_attribute("ratio", 0.4))
    del old.graph.initializer[:]
    old.graph.initializer.extend(t for t in proto.graph.initializer if t.name in ("w", "fc"))
    for given, line in ((proto, LINES["norm"]), (old, "inference")):
        graph = from_onnx(given, weights="initial")
        made = to_onnx(graph, graph.params, given)
        onnx.checker.check_model(made)
        assert mode_of(made) == line
        assert list(made.graph.node[1].output)[:1] == ["r"]
    assert len(made.graph.node[1].attribute) == 1
