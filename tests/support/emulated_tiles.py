"""AMX's tiles as loops over memory, for CPUs that have none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from legalize.cpu.emitters.loops import cast, int64, local, serial, splat
from legalize.cpu.matrix.tiles import COUNT, ROWS, SUMS, TERMS, Tiles


class Emulated(Tiles):
    """Each tile is a task's array of float32 numbers, full of NaN before it is loaded."""

    def permit(self) -> None:
        pass

    def configure(self, rows: Sequence[int], columns: Sequence[int]) -> None:
        self.rows, self.columns = rows, columns
        self.tiles = [local(f"tile{i}", ROWS * TERMS, "float32") for i in range(COUNT)]
        for tile in self.tiles:
            with serial(ROWS * TERMS) as i:
                T.buffer_store(tile, tirx.const(float("nan"), "float32"), [int64(i)])

    def release(self) -> None:
        pass

    def zero(self, tile: int) -> None:
        self._each(tile, 4, lambda m, n: self._put(tile, m, n, tirx.const(0, "float32")))

    def load(self, tile: int, buffer: Any, at: Any, step: Any) -> None:
        wide = str(buffer.dtype) == "float32"

        def read(m: Any, n: Any) -> None:
            value = buffer[int64(at + m * step + n)]
            if str(buffer.dtype) == "uint16":
                value = tirx.reinterpret("float32", value.astype("uint32") << 16)
            self._put(tile, m, n, cast(value, "float32", 1))

        self._each(tile, 4 if wide else 2, read)

    def store(self, tile: int, buffer: Any, at: Any, step: Any) -> None:
        self._each(tile, 4, lambda m, n: T.buffer_store(
            buffer, self._get(tile, m, n), [int64(at + m * step + n)]
        ))  # fmt: skip

    def product(self, acc: int, a: int, b: int) -> None:
        assert self.rows[acc] == self.rows[a]
        assert self.columns[acc] == self.columns[b]
        assert self.columns[a] == 4 * self.rows[b]
        with serial(self.rows[b]) as j:

            def add(m: Any, n: Any) -> None:
                terms = [self._get(a, m, 2 * j + i) * self._get(b, j, 2 * n + i) for i in (0, 1)]
                self._put(acc, m, n, self._get(acc, m, n) + terms[0] + terms[1])

            self._each(acc, 4, add)

    def rounded(self, low: Any, high: Any) -> Any:
        def bits(value: Any) -> Any:
            wide = tirx.reinterpret(f"uint32x{SUMS}", value)
            one, odd = (splat(tirx.const(x, "uint32"), SUMS) for x in (1, 0x7FFF))
            half = splat(tirx.const(16, "uint32"), SUMS)
            return ((wide + odd + ((wide >> half) & one)) >> half).astype(f"uint16x{SUMS}")

        return tirx.Shuffle([bits(low), bits(high)], list(range(2 * SUMS)))

    def _each(self, tile: int, bytes_: int, do: Any) -> None:
        with serial(self.rows[tile]) as m, serial(self.columns[tile] // bytes_) as n:
            do(m, n)

    def _get(self, tile: int, m: Any, n: Any) -> Any:
        return self.tiles[tile][int64(m * TERMS + n)]

    def _put(self, tile: int, m: Any, n: Any, value: Any) -> None:
        T.buffer_store(self.tiles[tile], value, [int64(m * TERMS + n)])
