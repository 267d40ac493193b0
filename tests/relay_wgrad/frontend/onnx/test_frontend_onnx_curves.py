"""Inverse functions, products, orders, grids and recurrent layers of ONNX, beside PyTorch's."""

from __future__ import annotations

import pytest

from relay_wgrad.frontend import from_onnx
from tests.fuzz.onnx_ops import GENERATOR
from tests.support.onnx.curve_cases import CURVES
from tests.support.onnx.models import draw, node, tiny

pytestmark = pytest.mark.usefixtures("registered")


@pytest.mark.longer_cases("AffineGrid", "GridSample")
@pytest.mark.share(3)
@pytest.mark.parametrize("name", CURVES)
def test_row(name: str) -> None:
    """Value and every gradient in float64."""
    for seed in (1, 2):
        opset = max(CURVES[name].since, 21 if seed == 1 else 13)
        line = f"f64 op{opset} ties=0 batch=fixed names=plain bn=eval drop=off {seed}: {name}"
        assert GENERATOR.answer(line) == {"status": "passed", "message": ""}, line


W, R = draw(1, 8, 5), draw(1, 8, 2)
REFUSED = {
    "layout": (node("LSTM", "w", "r", hidden_size=2, layout=1), "layout=1 is not supported"),
    "clip": (node("LSTM", "w", "r", hidden_size=2, clip=1.0), "clip=1.0 is not supported"),
    "size": (node("LSTM", "w", "r", hidden_size=3), "hidden_size=3 contradicts the weight's 2"),
    "activation": (
        node("LSTM", "w", "r", hidden_size=2, activations=["Relu", "Tanh", "Tanh"]),
        r"activations \['Relu', 'Tanh', 'Tanh'\] are not supported",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    proto, message = REFUSED[case]
    with pytest.raises(ValueError, match=f"LSTM node .*{message}"):
        from_onnx(tiny([proto], (3, 2, 5), {"w": W, "r": R}), loss="mse")
