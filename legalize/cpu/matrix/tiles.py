"""AMX's tiles: the instructions, and when a process may use them.

There are eight tiles of up to 16 rows of 64 bytes.  `product` adds to a tile of float32 sums, of a
row of `a` and a column of `b`:

    acc[m, n] += sum over j of a[m, 2j] b[j, 2n] + a[m, 2j + 1] b[j, 2n + 1]

so a row of `b` has a pair of terms for each of 16 sums (VNNI order).  Its time goes with the rows
of `a`.  Numbers that are not normal count as zeros, in operands and in results.

The state of tiles is 8 KiB of each thread, for which Linux is asked (arch_prctl, since 5.16): else
the first instruction ends the process.  A kernel asks itself, since it may be in a library that
another process loads; that takes 0.2 us.  A host that refuses has other kernels (`machine`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from ..emitters.loops import Expr, cast, head, int64, local, store_head, vector, view
from ..machine import TILES_REQUEST

ROWS, TERMS, SUMS = 16, 32, 16  # of a tile, at most: rows, terms of a row of `a`, sums of one
COUNT = 8
PAIR = 2 * SUMS  # elements of a row of `b`
REFUSED = "Linux refuses the state of AMX's tiles to this process (arch_prctl)"


class Tiles:
    """The instructions as LLVM's intrinsics.  Steps between rows are in elements of the buffer."""

    def permit(self) -> None:
        """Once in a kernel, in the thread that calls it."""
        answer = tirx.call_extern("int64", "syscall", *map(int64, TILES_REQUEST))
        with T.Assert(answer == int64(0), REFUSED):
            pass

    def configure(self, rows: Sequence[int], columns: Sequence[int]) -> None:
        """In a task, before anything else: of each tile its rows, and the bytes of one."""
        words = [0] * 16
        words[0] = 1  # the palette
        for i, (count, bytes_) in enumerate(zip(rows, columns, strict=True)):
            words[4 + i // 2] |= bytes_ << 16 * (i % 2)
            words[12 + i // 4] |= count << 8 * (i % 4)
        config = local("tile_config", 16, "int32")
        for i, word in enumerate(words):
            T.buffer_store(config, tirx.const(word, "int32"), [int64(i)])
        _call("ldtilecfg", tirx.address_of(config[int64(0)]))

    def release(self) -> None:
        _call("tilerelease")

    def zero(self, tile: int) -> None:
        _call("tilezero", _number(tile))

    def load(self, tile: int, buffer: Expr, at: Expr, step: Expr) -> None:
        _call("tileloadd64", _number(tile), *_place(buffer, at, step))

    def store(self, tile: int, buffer: Expr, at: Expr, step: Expr) -> None:
        _call("tilestored64", _number(tile), *_place(buffer, at, step))

    def product(self, acc: int, a: int, b: int) -> None:
        _call("tdpbf16ps", _number(acc), _number(a), _number(b))

    def rounded(self, low: Expr, high: Expr) -> Expr:
        """The bits of two vectors of sums as one of bfloat16, by AVX512_BF16."""
        name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
        value = tirx.call_llvm_intrin(f"bfloat16x{PAIR}", name, high, low)
        return tirx.reinterpret(f"uint16x{PAIR}", value)


def _number(tile: int) -> Expr:
    return tirx.const(tile, "int8")


def _place(buffer: Expr, at: Expr, step: Expr) -> tuple[Expr, Expr]:
    bytes_ = 4 if "32" in str(buffer.dtype) else 2
    return tirx.address_of(buffer[int64(at)]), int64(step * bytes_)


def _call(name: str, *args: Expr) -> None:
    T.evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *args))


TILES = Tiles()
"""What kernels are written with."""


def put(
    target: Expr, dtype: str, at: Expr, sums: Expr, start: Expr, count: int, converts: bool
) -> None:  # fmt: skip
    """Stores `count` of 32 sums, rounded to the result's dtype; `converts`: by AVX512_BF16."""
    if dtype == "float32":
        store_head(target, at, sums, start, SUMS, count)
    elif converts:
        low, high = (sums[vector(start + i, SUMS)] for i in (0, SUMS))
        bits = head(TILES.rounded(low, high), PAIR, count)
        T.buffer_store(view(target, "uint16"), bits, [vector(at, count)])
    else:
        for first in range(0, count, SUMS):
            some = min(SUMS, count - first)
            value = cast(head(sums[vector(start + first, SUMS)], SUMS, some), dtype, some)
            T.buffer_store(target, value, [vector(at + first, some)])
