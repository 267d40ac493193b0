"""Training batch normalization by the mean and variance of all processes' batches.

For a forward function, before it is differentiated.  With r a process, all batches of n pixels,

    m_r = mean(x)    v_r = mean((x - m_r)^2)         a process's own
    m = mean of m_r over r
    v = mean of v_r + (m_r - m)^2 over r             by the law of total variance

Both are of one mean over the processes, and one in the backward pass: with d_r = m_r - c, for a c
that all have,

    d = mean of d_r    s = mean of v_r + d_r^2    m = c + d    v = s - d^2

c is the running mean, which is near m after some steps: v then loses nothing to the subtraction.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..graph.rebuild import Writer, bound, normal, with_bindings, without_unused
from ..graph.walk import dataflow_block
from ..layout_rules.in_layout import sizes_of
from ..ops.process_mean import process_mean
from ..ops.train_norm import dtype_of
from .norm_graph import Norm, Norms

R = relax.op


def sync_batch_norm(mod: tvm.IRModule, fn: str, processes: int) -> tuple[tvm.IRModule, int]:
    """The module with the normalizations of `fn` over so many processes, and their number.

    `fn` has one dataflow block.  Raises ValueError for a normalization of sizes that are not
    numbers, and one that is upstream's operator.
    """
    func = mod[fn]
    graph = Norms(func, ())
    # One with its own statistics for each image is no batch's.
    norms = [norm for norm in graph.norms() if norm.axis == 1 and not norm.groups]
    new: dict[relax.Var, list[relax.Binding]] = {}  # in place of a variable's binding
    for norm in norms:
        new |= _replaced(graph, norm, processes)
    bindings = [part for b in graph.bindings for part in new.get(b.var, [b])]
    out = mod.clone()
    out[fn] = without_unused(with_bindings(func, bindings))
    return out, len(norms)


def _replaced(graph: Norms, norm: Norm, processes: int) -> dict[relax.Var, list[relax.Binding]]:
    """What binds mean, variance and the new running variance of one normalization."""
    sizes = sizes_of(norm.x.ty) or []
    if norm.mean is None or norm.variance is None or not all(isinstance(n, int) for n in sizes):
        raise _refused(norm)
    flat = [user for user in graph.users_of(norm.variance) if user.var.ty.ndim == 1]
    if flat and norm.updates is None:
        raise _refused(norm)
    dtype, writer = dtype_of(norm.x), Writer(dataflow_block(graph.func))
    channels, column = [sizes[norm.axis]], list(norm.mean.ty.shape.values)

    def emit(name: str, value: Any) -> relax.Var:
        return writer.emit(f"{norm.y.name}_{name}", value)

    mean = emit("own_mean", graph.value[norm.mean])
    centred = emit("own_centred", R.subtract(norm.x, mean))
    axes = [axis for axis in range(len(sizes)) if axis != norm.axis]
    square = emit("own_square", R.multiply(centred, centred))
    variance = emit("own_variance", R.mean(square, axes))
    shift = relax.const(np.zeros(channels), dtype) if norm.running is None else norm.running[0]
    apart = emit("apart", R.subtract(emit("own_flat", R.reshape(mean, channels)), shift))
    second = emit("second", R.add(variance, emit("apart_square", R.multiply(apart, apart))))
    both = emit("own_moments", R.concat([apart, second], 0))
    shared = emit("moments", process_mean(both))
    parts = [
        emit(name, R.strided_slice(shared, [0], [begin], [begin + channels[0]]))
        for name, begin in (("mean_apart", 0), ("mean_second", channels[0]))
    ]
    flat_mean = emit("mean", R.add(shift, parts[0]))
    squared = emit("squared", R.multiply(parts[0], parts[0]))
    within = emit("difference", R.subtract(parts[1], squared))
    flat_variance = emit("variance", R.maximum(within, relax.const(0.0, dtype)))
    made = {
        norm.mean: [
            *writer.bindings, bound(graph.maker(norm.mean), normal(R.reshape(flat_mean, column)))
        ],
        norm.variance: [
            bound(graph.maker(norm.variance), normal(R.reshape(flat_variance, column)))
        ],
    }  # fmt: skip
    if norm.unbiased and norm.running is not None and norm.updates is not None:
        count = math.prod(sizes[axis] for axis in axes) * processes
        kept, share = 1 - norm.momentum, norm.momentum * count / (count - 1)
        last = Writer(dataflow_block(graph.func))
        old = last.emit("kept", R.multiply(norm.running[1], relax.const(kept, dtype)))
        batch = last.emit("share", R.multiply(flat_variance, relax.const(share, dtype)))
        made[norm.updates[1]] = [
            *last.bindings, bound(graph.maker(norm.updates[1]), normal(R.add(old, batch)))
        ]  # fmt: skip
    return made


def _refused(norm: Norm) -> ValueError:
    return ValueError(
        f"sync_batch_norm: {norm.y.name!r} is not as from_torch and from_onnx write a batch"
        f" normalization of a fixed batch: of {norm.x.ty}"
    )
