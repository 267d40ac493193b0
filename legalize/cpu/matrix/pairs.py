"""AVX512_BF16: products of pairs of bfloat16 numbers, with sums in float32 registers.

    sum[n] += a[0] b[n][0] + a[1] b[n][1]

for 16 sums at a time: twice the products of float32's multiply-add.  Numbers that are not normal
count as zeros.  LLVM's intrinsic takes vectors of its own bfloat16, which TVM makes float32 of
before it writes LLVM's code; so a function of LLVM's text comes between, which takes bits and
becomes part of what calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import StringImm
from tvm.tirx.script import builder as T

from ..emitters.loops import Expr, splat, vector
from .tiles import SUMS

_NAME = "relay_wgrad_bfloat16_pairs"
_DOT = "<16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>"
_TEXT = f"""
declare {_DOT}, <32 x bfloat>, <32 x bfloat>)

define <16 x float> @{_NAME}(<16 x float> %sum, <16 x i32> %a, <16 x i32> %b) alwaysinline {{
  %x = bitcast <16 x i32> %a to <32 x bfloat>
  %y = bitcast <16 x i32> %b to <32 x bfloat>
  %r = call {_DOT} %sum, <32 x bfloat> %x, <32 x bfloat> %y)
  ret <16 x float> %r
}}
"""


def imported() -> Any:
    """The scope in a kernel within which `outer` is written."""
    return T.attr(tirx.const(0, "int32"), "pragma_import_llvm", StringImm(_TEXT))


def outer(sums: Expr, values: Sequence[Expr], terms: Sequence[Expr]) -> None:
    """Adds the outer product of pairs and vectors of pairs: a row of sums for each value."""
    for i, value in enumerate(values):
        for v, term in enumerate(terms):
            at = vector((i * len(terms) + v) * SUMS, SUMS)
            dot = tirx.call_pure_extern(
                f"float32x{SUMS}", _NAME, sums[at], splat(value, SUMS), term
            )
            T.buffer_store(sums, dot, [at])
