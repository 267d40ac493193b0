"""Casts and transpositions of many tensors, as NumPy does them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm
from tvm import relax

from byoc_cudnn.cast_transpose import CastTransposeCall
from relay_wgrad.dtypes import numpy_dtype

op = relax.op


def moved(
    call: CastTransposeCall, arrays: Sequence[np.ndarray], scale: float = 1.0
) -> list[np.ndarray]:
    """The results of a call, flat: each element is rounded once."""
    out = []
    for move, array in zip(call.tensors, arrays, strict=True):
        turned = array.reshape(move.blocks, move.rows, move.columns).swapaxes(1, 2)
        values = turned.astype("float32") * np.float32(scale)
        out.append(values.astype(numpy_dtype(call.result)).ravel())
    return out


def step(shapes: Sequence[tuple[int, ...]], scaled: bool, half: str = "float16") -> tvm.IRModule:
    """Weights are cast and turned; what is made of each is cast back, scaled and turned."""
    bb = relax.BlockBuilder()
    weights = [relax.Var(f"w{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    factor = relax.Var("factor", relax.TensorType((), "float32"))
    with bb.function("main", [*weights, factor]):
        with bb.dataflow():
            turned = [
                bb.emit(op.astype(bb.emit(op.permute_dims(w, [0, 2, 3, 1])), half)) for w in weights
            ]
            inverse = bb.emit(op.divide(relax.const(3.0), factor))
            outputs = []
            for value in [bb.emit(op.negative(t)) for t in turned]:
                back = bb.emit(op.astype(value, "float32"))
                back = bb.emit(op.multiply(back, inverse)) if scaled else back
                outputs.append(bb.emit_output(op.permute_dims(back, [0, 3, 1, 2])))
        bb.emit_func_output(relax.Tuple(outputs))
    return bb.get()
