"""The benchmark of ONNX training graphs: its networks, and a row."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import errors, onnx_training
from tests.support.onnx.networks import names, step


@pytest.mark.longer
@pytest.mark.usefixtures("registered")
def test_a_row() -> None:
    """Each gradient that the graph names is recognised, and as PyTorch has it."""
    row = onnx_training.measure("CNN, small")
    assert row["asked"] == row["recognised"] == 3
    assert row["offloaded"] == row["convolutions"] == 5
    assert row["float64"] < 1e-12
    assert row["float32"] < 3e-6
    assert row["pytorch"] < 3e-6


def test_networks() -> None:
    """Every one is written, with more gradients the more layers it has; grouped ones are there."""
    assert len(names()) == 30
    asked = {name: onnx_training.asked(step(name)[0]) for name in names() if "small" in name}
    assert asked["CNN, small"] == 3
    assert min(asked.values()) == 3
    assert max(asked.values()) == 17
    nodes = step("MobileNet, small")[0].graph.node
    assert sum(node.op_type == "BatchNormalizationGrad" for node in nodes) == 7
    assert any(a.name == "group" and a.i == 12 for node in nodes for a in node.attribute)


def test_distances() -> None:
    """Of all together, and of the furthest one."""
    wanted = [np.array([3.0]), np.array([4.0]), np.zeros(1)]
    got = [wanted[0], wanted[1] + 1, np.full(1, 1e-9)]
    assert errors.distance(got, wanted) == pytest.approx(0.2)
    assert errors.furthest(got, wanted) == (pytest.approx(0.25), 1)
    assert errors.far_from(got[2], wanted[2], 5.0) == pytest.approx(2e-4)
    assert errors.furthest([np.array([np.nan])], [np.ones(1)])[1] == 0
