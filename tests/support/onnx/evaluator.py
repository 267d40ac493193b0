"""ONNX's reference evaluator, with what of its own is wrong here put right.

Its ConvTranspose of groups takes the wrong weights.  Its MaxPool with strides of 1 counts places
from each channel's start instead of the tensor's, and takes no padding that differs by axis.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_conv_transpose import ConvTranspose as Upstream


class ConvTranspose(Upstream):
    """Of each group alone."""

    def _run(self, x: Any, w: Any, *others: Any, group: int = 1, **attributes: Any) -> Any:
        parts = zip(np.split(x, group, 1), np.split(w, group, 0), strict=True)
        made = [super(ConvTranspose, self)._run(*p, group=1, **attributes)[0] for p in parts]
        return (np.concatenate(made, 1),)


class MaxPool(OpRun):
    """Maxima, and the first one's place in the whole tensor, of any rank; `pads` are numbers."""

    def _run(
        self, x: Any, *, kernel_shape: Any, strides: Any = None, pads: Any = None,
        dilations: Any = None, auto_pad: str = "NOTSET", ceil_mode: int = 0, storage_order: int = 0,
    ) -> Any:  # fmt: skip
        assert (auto_pad, ceil_mode, storage_order) == ("NOTSET", 0, 0)
        rank = len(kernel_shape)
        strides, dilations = strides or [1] * rank, dilations or [1] * rank
        pads = pads or [0] * (2 * rank)
        places = np.arange(x.size).reshape(x.shape)
        around = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
        axes = tuple(range(2, 2 + rank))
        reach = [(k - 1) * d + 1 for k, d in zip(kernel_shape, dilations, strict=True)]
        cut = (..., *(slice(None, None, s) for s in strides), *(slice(None, None, d)
               for d in dilations))  # fmt: skip
        values, at = (
            sliding_window_view(np.pad(v, around, constant_values=fill), reach, axes)[cut]
            for v, fill in ((x, -np.inf), (places, -1))
        )
        shape = values.shape[: 2 + rank]
        values, at = values.reshape(*shape, -1), at.reshape(*shape, -1)
        first = values.argmax(-1)[..., None]
        made = [np.take_along_axis(v, first, -1)[..., 0] for v in (values, at)]
        return tuple(made[: len(self.onnx_node.output)])


def evaluate(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Results by name; what has a value in the model may be left out."""
    onnx.checker.check_model(model, full_check=True)
    held = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    inputs = {i.name: held[i.name] for i in model.graph.input if i.name in held} | inputs
    names = [output.name for output in model.graph.output]
    run = ReferenceEvaluator(model, new_ops=[ConvTranspose, MaxPool])
    return dict(zip(names, run.run(None, inputs), strict=True))
