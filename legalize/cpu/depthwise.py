"""fprop, dgrad and wgrad of depthwise convolutions: one input channel per group.

Filter k = c * M + m belongs to channel c; M is the multiplier.  Every product is elementwise over
c, so c fills the vectors, and what has filters is stored as [m][c].
"""

from __future__ import annotations

from tvm.tirx.script import builder as T

from relay_wgrad.problem import ConvKind, ConvProblem

from .affine import Axis, Tile, shapes
from .emit import (
    Expr,
    bind,
    both,
    ceildiv,
    digits,
    local,
    parallel,
    serial,
    vector,
    when,
    zero,
)
from .machine import Machine
from .memory import Image, Memory, Panels


def emit(problem: ConvProblem, m: Machine, memory: Memory) -> None:
    """The whole kernel: operands in, core, result out."""
    lanes = min(m.lanes(memory.accum), 1 << (problem.c - 1).bit_length())
    padded = -(-problem.c // lanes) * lanes
    weight, panels = memory.panels("O", problem.k // problem.c, problem.c, 1, padded)
    if problem.kind is ConvKind.WGRAD:
        _wgrad(problem, m, memory, weight, panels, lanes)
    else:
        _affine(problem, m, memory, weight, panels, lanes)


def _affine(
    problem: ConvProblem, m: Machine, memory: Memory, weight: Expr, panels: Panels, lanes: int
) -> None:
    dgrad = problem.kind is ConvKind.DGRAD
    operand, _, result = problem.roles
    multiplier = panels.groups
    size, out = problem.canonical_shape(operand), problem.canonical_shape(result)
    kernel = (problem.r, problem.s)
    axes = [
        Axis(
            dgrad, size[2 + i], out[2 + i], kernel[i],
            problem.strides[i], problem.dilation[i], problem.padding[i],
        )
        for i in (0, 1)
    ]  # fmt: skip
    rows, columns = axes
    (top, bottom), (left, right) = rows.border(), columns.border()
    ins, outs = (multiplier, 1) if dgrad else (1, multiplier)
    memory.move_weight(weight, panels, True, interleaved=multiplier > 1, reverse=dgrad)
    x = memory.operand(
        operand, ins, problem.c, border=(top, left, bottom, right), block=lanes,
        interleaved=ins > 1,
    )  # fmt: skip
    y = memory.result(outs, problem.c, block=lanes, interleaved=outs > 1)
    most = min(columns.count, m.registers - 4, 14)
    tile = Tile(1, ceildiv(columns.count, ceildiv(columns.count, most)), 1, lanes)
    sizes = (problem.n, rows.count, ceildiv(columns.count, tile.columns), outs)
    with parallel(*sizes, panels.block // lanes) as (n, a, b, filter_, chunk):
        b = bind(b * tile.columns)
        with serial(rows.phases * columns.phases) as phase:
            phases = digits(phase, (rows.phases, columns.phases))
            h, w = rows.taps(phases[0]), columns.taps(phases[1])
            for _, wide in shapes(axes, tile, a, b):
                acc = local("acc", wide * lanes, memory.accum)
                at = [vector(i * lanes, lanes) for i in range(wide)]
                for register in at:
                    T.buffer_store(acc, zero(memory.accum, lanes), [register])
                with serial(ins) as term, serial(h.count) as r, serial(w.count) as s:
                    position = a * rows.scale + h.offset + r * h.reach
                    column = b * columns.scale + w.offset + s * w.reach
                    image = bind(x.at(n, position, column, term) + chunk * lanes)
                    taps = panels.at(term + filter_, 0, h.first + r * h.step, w.first + s * w.step)
                    value = weight[vector(taps + chunk * lanes, lanes)]
                    for i, register in enumerate(at):
                        data = x.buffer[vector(image + i * columns.scale * x.w_step, lanes)]
                        T.buffer_store(acc, acc[register] + data * value, [register])
                for i, register in enumerate(at):
                    row, exists_row = rows.place(a, phases[0])
                    column, exists_column = columns.place(b + i, phases[1])
                    place = y.at(n, row, column, filter_) + chunk * lanes
                    with when(both(exists_row, exists_column)):
                        T.buffer_store(y.buffer, acc[register], [vector(place, lanes)])
    memory.finish(y, outs, problem.c, interleaved=outs > 1)


def _wgrad(
    problem: ConvProblem, m: Machine, memory: Memory, weight: Expr, panels: Panels, lanes: int
) -> None:
    accum, multiplier = memory.accum, panels.groups
    y = memory.operand("grad", multiplier, problem.c, block=lanes, interleaved=multiplier > 1)
    axes = [
        Axis(False, size, out, kernel, problem.strides[i], problem.dilation[i], problem.padding[i])
        for i, (size, out, kernel) in enumerate(
            [(problem.h, problem.p, problem.r), (problem.w, problem.q, problem.s)]
        )
    ]
    (top, bottom), (left, right) = (axis.border() for axis in axes)
    x = memory.operand("data", 1, problem.c, border=(top, left, bottom, right), block=lanes)
    # Taps in registers: all of them, or a row of them, or one.
    most = m.registers - 4
    tall = problem.r if problem.r * problem.s <= most else 1
    wide = problem.s if problem.s <= most else 1
    grid = (multiplier, panels.block // lanes, problem.r // tall, problem.s // wide)
    tasks = grid[0] * grid[1] * grid[2] * grid[3]
    lines = problem.n * problem.p
    splits = 1
    while (tasks * splits) % m.cores and tasks * splits < 4 * m.cores:
        splits += 1
    if isinstance(lines, int):
        splits = min(splits, lines)
    size = multiplier * panels.block_step
    parts = memory.scratch.new("parts", splits * size, accum) if splits > 1 else weight
    taps = [(i, j) for i in range(tall) for j in range(wide)]
    with parallel(splits, *grid) as (part, filter_, chunk, r, s):
        r, s = r * tall, s * wide
        acc = local("acc", len(taps) * lanes, accum)
        at = [vector(i * lanes, lanes) for i in range(len(taps))]
        for register in at:
            T.buffer_store(acc, zero(accum, lanes), [register])
        with serial((part + 1) * lines // splits, part * lines // splits) as line:
            n, p = bind(line // problem.p), bind(line % problem.p)
            grad = bind(y.at(n, p, 0, filter_) + chunk * lanes)
            data = bind(_position(problem, x, n, p, r, s) + chunk * lanes)
            with serial(problem.q) as q:
                value = y.buffer[vector(grad + q * y.w_step, lanes)]
                for (i, j), register in zip(taps, at, strict=True):
                    step = i * problem.dilation[0] * x.h_step + j * problem.dilation[1] * x.w_step
                    step = step + q * (problem.strides[1] * x.w_step)
                    term = x.buffer[vector(data + step, lanes)] * value
                    T.buffer_store(acc, acc[register] + term, [register])
        for (i, j), register in zip(taps, at, strict=True):
            place = part * size + panels.at(filter_, 0, r + i, s + j) + chunk * lanes
            T.buffer_store(parts, acc[register], [vector(place, lanes)])
    if splits > 1:
        sum_parts(parts, weight, size, splits, lanes, accum)
    memory.move_weight(weight, panels, False, interleaved=multiplier > 1)


def _position(problem: ConvProblem, x: Image, n: Expr, p: Expr, r: Expr, s: Expr) -> Expr:
    h = p * problem.strides[0] + r * problem.dilation[0] - problem.padding[0]
    return x.at(n, h, s * problem.dilation[1] - problem.padding[1], 0)


def sum_parts(parts: Expr, total: Expr, size: int, splits: int, lanes: int, accum: str) -> None:
    """Adds `splits` arrays of `size` elements, always in the same order."""
    with parallel(size // lanes) as (i,):
        acc = local("acc", lanes, accum)
        at = vector(0, lanes)
        T.buffer_store(acc, zero(accum, lanes), [at])
        with serial(splits) as part:
            term = parts[vector(part * size + i * lanes, lanes)]
            T.buffer_store(acc, acc[at] + term, [at])
        T.buffer_store(total, acc[at], [vector(i * lanes, lanes)])
