"""`relay.annotation`: where a region of another compiler begins and ends."""

from __future__ import annotations

from ..ast import Call, Expr
from ..make import call
from ..ops.annotation import BEGIN, END, STOP


def checkpoint(data: Expr) -> Call:
    """`data`, as what a gradient computes again rather than keeps; here that is the compiler's."""
    return call("annotation.checkpoint", data)


def compiler_begin(data: Expr, compiler: str) -> Call:
    """`data`, as an operand of a region that `compiler` compiles."""
    return call(BEGIN, data, compiler=compiler)


def compiler_end(data: Expr, compiler: str) -> Call:
    """`data`, as a result of a region that `compiler` compiles."""
    return call(END, data, compiler=compiler)


def stop_fusion(data: Expr) -> Call:
    """`data`, with which no operator after it is fused."""
    return call(STOP, data)
