"""A loop whose counter is divided by a power of two becomes a loop over quotients and one over
remainders, for the sake of LLVM.

LLVM's loop vectorizer (22.1, in TVM 0.27's wheel) reads `b[j % 4 * 4 + i % 4]` for eight `i` as
eight neighbours, where the loop has another address such as `i % 4 * 144`: the second turn of
`i % 4` then has the numbers behind the first's.  Each alone is right.  A pixel shuffle by four with
a bias is such a kernel, and half of its result was another channel's, or what memory held.

The two loops have no such address, and divide nothing.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlockRealize
from tvm_ffi import structural_map, structural_walk

from .. import keys
from ..graph.rebuild import kernel_pass

_REMAINDERS = (tirx.FloorMod, tirx.Mod)
_MOST = 64  # lanes of a vector, at most: of a larger mask none has two turns


def without_remainders() -> tvm.transform.Pass:
    """A pass over a CPU's kernels after they are scheduled.

    Those of convolutions, which write their vectors themselves, stay.
    """

    def change(func: tirx.PrimFunc) -> tirx.PrimFunc:
        is_convolution = func.attrs and func.attrs.get(keys.SOURCE)
        return func if is_convolution else split_by_masks(func)

    return kernel_pass("without_remainders", change)


def split_by_masks(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel; itself where no serial loop has remainders of its counter by powers of two."""
    found: list[Any] = []
    _collect(func.body, found)
    if not any(map(_mask, found)):
        return func
    body = structural_map(func.body, (tirx.For, _split))
    return func if body.same_as(func.body) else func.with_body(body)


def _mask(node: Any) -> int:
    """The divisor of a remainder if it is a power of two that matters, else 0."""
    divisor = int(node.b) if isinstance(node.b, tirx.IntImm) else 0
    return divisor if 1 < divisor <= _MOST and divisor & (divisor - 1) == 0 else 0


def _split(loop: Any) -> Any:
    """A loop in two; itself where nothing in it takes a remainder of what its counter is in."""
    if int(loop.kind) != tirx.ForKind.SERIAL or loop.annotations or not _counts(loop):
        return loop
    divisor = max(map(_mask, _remainders(loop)), default=0)
    if not divisor:
        return loop
    var, extent = loop.loop_var, loop.extent
    dtype = str(var.ty.dtype)
    if isinstance(extent, tirx.IntImm) and int(extent) <= divisor:
        return _unrolled(loop)
    outer, inner = (tirx.Var(f"{var.name}_{part}", dtype) for part in ("quotient", "remainder"))
    zero, count = tirx.const(0, dtype), tirx.const(divisor, dtype)
    place, analyzer = outer * count + inner, tvm.sym.Analyzer()
    body = structural_map(loop.body, (tirx.Var, lambda v: place if v.same_as(var) else v))
    if not analyzer.can_prove_equal(tirx.floormod(extent, count), 0):
        body = tirx.IfThenElse(place < extent, body, None)
    pieces = analyzer.simplify(tirx.floordiv(extent + (count - 1), count))
    serial = tirx.ForKind.SERIAL
    # Of smaller powers of two there may be remainders within.
    turn = _split(tirx.For(inner, zero, count, serial, body))
    return tirx.For(outer, zero, pieces, serial, turn)


def _unrolled(loop: Any) -> Any:
    """An innermost loop where a remainder begins elsewhere than it: a number in each copy."""
    loops: list[Any] = []
    structural_walk(loop.body, (tirx.For, loops.append))
    if loops:
        return loop
    zero = tirx.const(0, str(loop.loop_var.ty.dtype))
    return tirx.For(loop.loop_var, zero, loop.extent, tirx.ForKind.UNROLLED, loop.body)


def _counts(loop: Any) -> bool:
    """Whether a loop goes from 0 by ones."""
    ends = ((loop.min, 0), (loop.step, 1))
    return all(x is None or (isinstance(x, tirx.IntImm) and int(x) == n) for x, n in ends)


def _remainders(loop: Any) -> list[Any]:
    """Those by powers of two that the counter is in, as numbers of a turn's counter are known."""
    var, values, analyzer = loop.loop_var, dict[Any, Any](), tvm.sym.Analyzer()
    if isinstance(loop.extent, tirx.IntImm):
        analyzer.bind(var, tvm.ir.Range.from_min_extent(loop.min, loop.extent))

    def enter(realize: Any) -> None:
        pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
        values.update((axis.var, value) for axis, value in pairs)

    structural_walk(loop.body, (SBlockRealize, enter))
    taken: list[Any] = []

    def remainder(node: Any) -> None:
        counted = structural_map(node, (tirx.Var, lambda v: values.get(v, v)))
        if _mask(node) and _reads(counted, var):
            _collect(analyzer.simplify(counted), taken)

    for kind in _REMAINDERS:
        structural_walk(loop.body, (kind, remainder))
    return [node for node in taken if _mask(node) and _reads(node, var)]


def _collect(value: Any, found: list[Any]) -> None:
    for kind in _REMAINDERS:
        structural_walk(value, (kind, found.append))


def _reads(value: Any, name: Any) -> bool:
    return any(v.same_as(name) for v in tirx.analysis.undefined_vars(value))
