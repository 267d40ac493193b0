"""What `from_onnx` refuses, and the message with which it does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from relay_wgrad.frontend import from_onnx
from tests.support.onnx.models import draw, node, tiny

W = draw(6, 2, 3, 3)


def refused(message: str, model: Any, error: type[Exception] = ValueError, **options: Any) -> None:
    with pytest.raises(error) as caught:
        from_onnx(model, **options)
    assert message in str(caught.value)


def test_refused_files(tmp_path: Any) -> None:
    refused("no bundled model 'resnet5': did you mean resnet50?", "resnet5")
    refused("no ONNX file 'no/such.onnx'", "no/such.onnx", FileNotFoundError)
    for content in (b"", b"this is text, not a model\n" * 20, bytes(range(256))):
        (tmp_path / "bad.onnx").write_bytes(content)
        refused("is not an ONNX model", tmp_path / "bad.onnx")
    refused("is not an ONNX model", tmp_path)
    refused("expected a path, a name or a ModelProto", 7, TypeError)


def test_refused_initializers_without_data() -> None:
    model = tiny([node("Conv", "w")], (1, 2, 5, 5), {"w": W})
    model.graph.initializer[0].ClearField("raw_data")
    refused("Conv node", model)
    refused("initializer 'w' of shape [6, 2, 3, 3] lacks data", model)


def test_refused_functions_of_the_file() -> None:
    leak = helper.make_node("Leak", ["conv"], ["leaked"], domain="my.ops")
    model = tiny([node("Conv", "w")], (1, 2, 5, 5), {"w": W})
    leak.input[0] = model.graph.node[-1].output[0]
    model.graph.node.append(leak)
    model.graph.output[0].name = "leaked"
    refused("ONNX op my.ops::Leak", model)
    body = [helper.make_node("LeakyRelu", ["x"], ["y"])]
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("my.ops", "Leak", ["x"], ["y"], body, opsets))
    refused("is a function of the file, which is not looked into: write it out by", model)


def test_refused_options() -> None:
    refused("bn='test': expected train or eval", "resnet50", bn="test")
    refused("dtype='float16': expected float32 or float64", "resnet50", dtype="float16")
    refused("batch=0: expected a positive number", "resnet50", batch=0)
    refused("no output 'z': choose output= one of y", tiny([node("Relu")], (1, 2)), output="z")
    refused("classes, d…), but 'y' is [2]; loss='mse'", tiny([node("Relu")], (2,)))
    refused("loss='l2': expected cross_entropy,", tiny([node("Relu")], (1, 2)), loss="l2")
    refused("is no (N, C, H, W)", tiny([node("Relu")], (1, 2)), image_size=8)
    refused("opset 7; 9 is the oldest supported", tiny([node("Relu")], (1, 2), opset=7))
    refused("opset 99; onnx", tiny([node("Relu")], (1, 2), opset=99))


def test_refused_image_sizes() -> None:
    refused(
        "Reshape node 'n37': its target [1, 25088], made for [1, 512, 7, 7], does not take "
        "[1, 512, 2, 2]: it fixes the image size at 224x224 (for the fully connected Gemm node "
        "'n38')",
        "vgg19",
        image_size=64,
    )
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("Gemm", ["f", "w"], ["y"], name="fc"),
    ]
    model = tiny(nodes, (1, 2, 3, 3), {"w": draw(18, 4)})
    refused(
        "Gemm node 'fc': expects 18 features, got 32: this layer fixes the image size at 3x3",
        model,
        image_size=4,
    )
    refused("the image is too small", "squeezenet", image_size=8)
    refused(
        "batch statistics of [1, 512, 1, 1] need more than one value", "resnet50", image_size=32
    )


def test_refused_ops(capfd: pytest.CaptureFixture[str]) -> None:
    model = tiny([node("AveragePol", name="pool")], (1, 2, 3, 3))
    refused("ONNX op AveragePol (AveragePol node 'pool') is not supported; supported: A", model)
    refused("Conv node 'y': ONNX Conv: X's C must be W's C/group times group (group=1), got X C=3"
            " and W C/group * group=2",
            tiny([node("Conv", "w")], (1, 3, 5, 5), {"w": W}))  # fmt: skip
    refused("node 'y': ONNX ConvTranspose: X and W must have the same channels K, got X K=3 and"
            " W K=6", tiny([node("ConvTranspose", "w")], (1, 3, 5, 5), {"w": W}))  # fmt: skip
    refused("node 'y': ONNX Conv: P must be positive, got P=0 from H=2, R=3, padding 0 in all,",
            tiny([node("Conv", "w")], (1, 2, 2, 5), {"w": W}))  # fmt: skip
    dilated = node("MaxPool", kernel_shape=[2, 2], dilations=[2, 2])
    refused("dilated pooling has no gradient", tiny([dilated], (1, 2, 5, 5)))
    refused("nothing makes its operand 'gone'", tiny([node("Add", "gone")], (1, 2)))
    lost = tiny([node("Relu")], (1, 2))
    lost.graph.node[0].input[0] = "gone"
    refused("nothing makes its operand 'gone'", lost)
    refused("Softmax node 'y': In relax.nn.softmax, the input axis 7 is out of range",
            tiny([node("Softmax", axis=7)], (1, 2)))  # fmt: skip
    assert "Warning" not in "".join(capfd.readouterr())  # TVM's of a builder left open


WEIGHTS = {"Conv": draw(6, 2, 3, 3), "ConvTranspose": draw(2, 6, 3, 3)}


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "MaxPool", "AveragePool"])
@pytest.mark.parametrize("attribute", ["strides", "dilations", "kernel_shape"])
@pytest.mark.parametrize("value", [[0, 1], [2, -1]])
def test_refused_windows(op: str, attribute: str, value: list[int]) -> None:
    """Zero would divide by itself further on; the message has node, attribute and value."""
    given = {"kernel_shape": [3, 3], attribute: value}
    weights = {"w": WEIGHTS[op]} if op in WEIGHTS else {}
    made = node(op, *weights, name="layer", **given)
    message = f"{attribute}={value}: must be at least 1"
    if weights and attribute == "kernel_shape":
        message = f"kernel_shape must be W's, got {value} and [3, 3]"
    refused(
        f"{op} node 'layer': {message}",
        tiny([made], (1, 2, 5, 5), weights),
        loss="mse",
    )


@pytest.mark.parametrize("op", WEIGHTS)
def test_refused_kernel_shape(op: str) -> None:
    weights = {"w": WEIGHTS[op]}
    refused(
        f"{op} node 'layer': kernel_shape must be W's, got [3, 5] and [3, 3]",
        tiny([node(op, "w", name="layer", kernel_shape=[3, 5])], (1, 2, 5, 5), weights),
        loss="mse",
    )


def test_refused_attributes() -> None:
    refused("MaxPool node 'y': kernel_shape is missing", tiny([node("MaxPool")], (1, 2, 5, 5)))
    refused("LRN node 'y': size=0", tiny([node("LRN", size=0)], (1, 2, 5, 5)), loss="mse")
    for op, weight in WEIGHTS.items():
        for groups in (0, -2):
            refused(
                f"{op} node 'y': ONNX {op}: group must be at least 1, got group={groups}",
                tiny([node(op, "w", group=groups)], (1, 2, 5, 5), {"w": weight}),
            )
    extra = node("ConvTranspose", "w", output_padding=[0, -1])
    model = tiny([extra], (1, 2, 5, 5), {"w": WEIGHTS["ConvTranspose"]})
    refused("output_padding=[0, -1]: must be at least 0", model)


def test_refused_batches() -> None:
    refused(
        f"input 'data_0' of [{10**20}, 3, 224, 224] has more than 2147483647 elements, the most"
        " that is supported; at this image size the largest batch is 14266",
        "squeezenet",
        batch=10**20,
    )
    refused("has more than 2147483647 elements", "squeezenet", image_size=10**20)
    for batch in (2.0, True, "2"):
        refused(
            f"batch={batch!r}: expected a number of images", "squeezenet", TypeError, batch=batch
        )


ONE, BOTH = np.array([1, 1, 2, 2], "float32"), np.array([2, 3, 8, 8])


@pytest.mark.parametrize(
    ("message", "made"),
    [
        (
            "coordinate_transformation_mode='tf_crop_and_resize': only half_pixel, half",
            node("Resize", "", "one", coordinate_transformation_mode="tf_crop_and_resize"),
        ),
        ("mode='bicubic': only nearest, linear, cubic", node("Resize", "", "one", mode="bicubic")),
        (
            "keep_aspect_ratio_policy='not_larger': only 'stretch'",
            node("Resize", "", "", "both", keep_aspect_ratio_policy="not_larger"),
        ),
        ("index 4 of an axis of 3", node("GatherND", "far")),
        ("reduction='mul': only 'none' and 'add'", node("ScatterND", "near", "u", reduction="mul")),
        ("a border of [-2, -2] leaves nothing", node("Pad", "cut", mode="edge")),
        ("fmod=0 of floats", node("Mod", "x")),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_refused_settings(message: str, made: Any) -> None:
    weights = {
        "one": ONE, "both": BOTH, "far": np.array([[0, 4]]), "near": np.array([[0, 1]]),
        "u": draw(1, 4, 4), "cut": np.array([0, 0, -2, 0, 0, 0, -2, 0]),
    }  # fmt: skip
    given = {name: weights[name] for name in made.input if name in weights}
    refused(message, tiny([made], (2, 3, 4, 4), given))


@pytest.mark.usefixtures("registered")
def test_a_size_that_has_no_counterpart() -> None:
    """Baked sizes follow a new batch and image; what would be no whole size is refused."""
    made = tiny([node("Resize", "", "", "sizes")], (2, 3, 4, 4), {"sizes": np.array([2, 3, 5, 8])})
    graph = from_onnx(made, loss="mse", batch=5, image_size=(8, 6))
    assert graph.inputs[1].shape == (5, 3, 10, 12)
    refused("a size of 5 for 4 elements has no counterpart for 6", made, loss="mse", image_size=6)


def test_a_second_result_that_is_used() -> None:
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p", "i"], name="pool", kernel_shape=[2, 2]),
        helper.make_node("Cast", ["i"], ["y"], to=1),
    ]
    refused(
        "its operand 'i' is result 1 of MaxPool node 'pool', which is", tiny(nodes, (1, 2, 4, 4))
    )
    from_onnx(tiny([nodes[0], node("Relu")], (1, 2, 4, 4)), loss="mse")


def test_a_parameter_of_two_nodes_is_told() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["h"]), helper.make_node("Mul", ["h", "w"], ["y"]),
    ]  # fmt: skip
    graph = from_onnx(tiny(nodes, (1, 2), {"w": draw(2)}), loss="mse")
    assert graph.notes == ("'w' is one parameter of 2 nodes, and trained as one",)
