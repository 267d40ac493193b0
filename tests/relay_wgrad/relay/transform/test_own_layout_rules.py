"""Users' rules of how layouts go on, in both passes of layouts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.testing import count_ops
from relay_wgrad.relay.transform.infer_layout_utils import InferCorrectLayoutOutput, layout
from tests.support.relay.evaluate import evaluate

X, W = relay.var("x", shape=(2, 4, 6, 5)), relay.var("w", shape=(4, 4, 3, 3))
MOD = T.InferType()(
    relay.IRModule.from_expr(relay.nn.softmax(relay.nn.conv2d(X, W, padding=1), axis=1))
)


def follows(attrs: Any, new: Any, old: Any, types: Any) -> InferCorrectLayoutOutput:
    """A softmax whose axis stays whole goes with its operand."""
    assert len(old) == len(types) == 1
    one = (new or old)[0]
    if not new or not one:
        return InferCorrectLayoutOutput([one], [one], attrs)
    axis = one.name.index(old[0].name[attrs.axis])
    return InferCorrectLayoutOutput([one], [one], {**attrs, "axis": axis})


@pytest.fixture
def rules() -> Iterator[None]:
    relay.op.register_infer_correct_layout("nn.softmax", follows)
    yield
    relay.op.get("nn.softmax").reset_attr("FInferCorrectLayout")
    relay.op.get("nn.conv2d").reset_attr("FTVMAlterOpLayout")


def in_nhwc(attrs: Any, inputs: Any, tinfos: Any, out: Any) -> Any:
    changes = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    return relay.nn.conv2d(*inputs, **{**attrs, **changes})


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize("name", ["convert", "alter"])
def test_a_softmax_follows(name: str) -> None:
    relay.op.register_alter_op_layout("nn.conv2d", in_nhwc)
    change = {
        "alter": T.AlterOpLayout(),
        "convert": T.ConvertLayout({"nn.conv2d": ["NHWC", "HWIO"]}),
    }
    got = change[name](MOD)
    body = got["main"].body
    assert (body.op.name, body.args[0].op.name) == ("layout_transform", "nn.softmax")
    assert body.args[0].attrs["axis"] == 3
    assert count_ops(got["main"])["layout_transform"] == 3
    rng = np.random.default_rng(0)
    inputs = {p.name: rng.normal(size=p.type_annotation.shape) for p in MOD["main"].params}
    want = evaluate(MOD["main"], inputs)
    np.testing.assert_allclose(evaluate(got["main"], inputs), want, rtol=1e-6)


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, r"nn.softmax: the registered layout rule must give an InferCorrect.*, got None"),
        (InferCorrectLayoutOutput([3], [3]), "gave 3, which is no layout"),
        (InferCorrectLayoutOutput(["N2"], ["N2"]), "'N2' is no layout"),
    ],
)
def test_wrong_rules(given: Any, message: str) -> None:
    relay.op.register_infer_correct_layout("nn.softmax", lambda *args: given)
    with pytest.raises((TypeError, ValueError), match=message):
        T.ConvertLayout({"nn.conv2d": ["NHWC", "HWIO"]})(MOD)


@pytest.mark.usefixtures("rules")
def test_a_layout_that_is_not_known() -> None:
    """The operator then has its operands in the old one."""
    none = layout("")
    relay.op.register_infer_correct_layout(
        "nn.softmax", lambda *args: InferCorrectLayoutOutput([none], [none], args[0])
    )
    got = T.ConvertLayout({"nn.conv2d": ["NHWC", "HWIO"]})(MOD)["main"].body
    assert (got.op.name, got.args[0].op.name) == ("nn.softmax", "layout_transform")
    assert not none
    assert layout("NCHW4c").name == "NCHW4c"
