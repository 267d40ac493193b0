"""What joins compute, in NumPy, bit for bit; random calls and random programs of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from byoc_cudnn.joins import JoinsCall
from byoc_cudnn.joins.call import Piece, Term
from byoc_cudnn.joins.codegen import JOINS
from relay_wgrad.dtypes import FLOATS, numpy_dtype
from tests.support.recorder import Recorder

op = relax.op
DTYPES = {name: numpy_dtype(name) for name in FLOATS}
WIDTHS = (1, 2, 3, 8, 13, 16, 26, 32, 104)


def expected(call: JoinsCall, tensors: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of a call: each sum is rounded."""
    wide = np.float64 if call.dtype == "float64" else np.float32
    rows = tensors[0].shape[:-1]
    found = []
    for pieces in call.results:
        parts = []
        for width, terms in pieces:
            total = np.zeros((*rows, width), DTYPES[call.dtype])
            for place, (operand, first) in enumerate(terms):
                part = tensors[operand][..., first : first + width]
                both = total.astype(wide) + part.astype(wide)
                total = part if place == 0 else both.astype(total.dtype)
            parts.append(total)
        found.append(np.concatenate(parts, axis=-1))
    return found


def random_call(
    rng: random.Random, dtype: str, symbol: str = "f", whole: bool = False
) -> JoinsCall:
    """Some results of some pieces of some operands; `whole` of multiples of 8 channels alone."""
    widths = [w for w in WIDTHS if w % 8 == 0] if whole else WIDTHS
    channels = tuple(rng.choice(widths) for _ in range(rng.randint(1, 5)))

    def term(width: int) -> Term | None:
        fits = [i for i, n in enumerate(channels) if n >= width]
        if not fits:
            return None
        operand = rng.choice(fits)
        most = channels[operand] - width
        first = rng.choice([0, most, rng.randint(0, most)])
        return Term(operand, first // 8 * 8 if whole else first)

    def piece() -> Piece:
        width = rng.choice(widths)
        terms = [term(width) for _ in range(rng.choice([0, 1, 1, 1, 2, 3, 9]))]
        return Piece(width, tuple(one for one in terms if one is not None))

    results = tuple(
        tuple(piece() for _ in range(rng.randint(1, 5))) for _ in range(rng.choice([1, 1, 2, 3]))
    )
    return JoinsCall(symbol, dtype, channels, results)


def recorder() -> Recorder:
    """In the place of `JOINS`."""
    return Recorder(JOINS, packed)


def packed(call: JoinsCall) -> Callable[..., None]:
    """The function of a call, on the CPU."""

    def run(*tensors: Any) -> None:
        count = len(call.channels)
        assert len(tensors) == count + len(call.results), call
        given = [t.numpy() for t in tensors[:count]]
        assert [a.shape[-1] for a in given] == list(call.channels)
        for out, value in zip(tensors[count:], expected(call, given), strict=True):
            assert out.shape == value.shape
            tvm.runtime.tensor(np.ascontiguousarray(value)).copyto(out)

    return run


def program(rng: random.Random, dtype: str, steps: int = 14) -> tvm.IRModule:
    """Joins, cuts, sums, zeros, detours by float32, other names, among sines and products, which
    are TVM's, and tuples as results; of two images of 3 × 2 pixels."""
    bb = relax.BlockBuilder()
    widths = [rng.choice(WIDTHS[:7]) for _ in range(3)]
    params = [
        relax.Var(f"x{i}", relax.TensorType((2, 3, 2, w), dtype)) for i, w in enumerate(widths)
    ]
    with bb.function("main", params):
        with bb.dataflow():
            known: list[Any] = [*params]
            for _ in range(steps):
                known += _step(rng, bb, known, dtype)
            used = rng.sample(known, 3)
            outs = [bb.emit_output(op.negative(used[0])), bb.emit_output(used[1])]
            outs.append(bb.emit_output(op.sin(used[2])))
            outs.append(bb.emit_output(known[-1]))
        bb.emit_func_output(relax.Tuple(outs))
    return bb.get()


def _width(x: Any) -> int:
    return int(x.ty.shape.values[-1])


def _step(rng: random.Random, bb: Any, known: list[Any], dtype: str) -> list[Any]:
    x = rng.choice(known[-8:])
    kind = rng.choice(["join", "join", "cut", "cut", "cut", "sum", "sum", "wide", "pad", "other"])
    alike = [y for y in known if _width(y) == _width(x)]
    y = rng.choice(alike)
    if kind == "join":
        return [bb.emit(op.concat([rng.choice(known[-6:]) for _ in range(rng.randint(2, 4))], 3))]
    if kind == "cut" and _width(x) > 1:
        places = rng.sample(range(1, _width(x)), min(rng.randint(1, 3), _width(x) - 1))
        split = bb.emit(op.split(x, sorted(places), 3))
        return [bb.emit(relax.TupleGetItem(split, i)) for i in range(len(places) + 1)]
    if kind == "sum":
        return [bb.emit(op.add(x, y))]
    if kind == "wide":
        a, b = (bb.emit(op.astype(one, "float32")) for one in (x, y))
        total = bb.emit(op.add(a, b)) if rng.random() < 0.7 else a
        return [bb.emit(op.astype(total, dtype))]
    if kind == "pad":  # the gradients of two cuts, added
        zeros = [bb.emit(op.zeros((2, 3, 2, _width(one)), dtype)) for one in (x, y)]
        first = bb.emit(op.concat([x, zeros[1]], 3))
        second = bb.emit(op.concat([zeros[0], y], 3))
        return [bb.emit(op.add(first, second))]
    if rng.random() < 0.3:
        return [bb.emit(x)]
    return [bb.emit(op.sin(x) if rng.random() < 0.5 else op.multiply(x, y))]
