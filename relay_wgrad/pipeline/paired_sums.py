"""Two sums over the same tensors are one kernel on a CPU, which reads them once.

A normalization's gradient adds up g and g xhat, of the same two or three tensors, each as a kernel
that makes g for itself.  What such a kernel waits for is memory: together they take as long as one.
The results are those that they have apart, but for the order of their terms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import tvm
from tvm import relax, s_tir, tirx
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm_ffi import structural_equal, structural_map

from ..graph.walk import variables_of
from ..ir import bytes_of
from ..keys import SCHEDULED
from .inlining import inlined
from .quick_schedule import QuickSchedule
from .targets import llvm_target
from .together import Together, has_sum

SMALL = 1 << 16  # bytes of a tensor that is not worth it
_DTYPES = ("float32", "float64")


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.PairedSums")
class PairedSums:
    """For fused kernels on a CPU, before they are ordered and scheduled."""

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module with calls that have two sums."""
        return mod if llvm_target() is None else _Paired(mod).module()


class _Paired(Together):
    """Calls that are sums of one type, and that read something large both."""

    suffix = "_and_sum"

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.sums: dict[Any, bool] = {}  # of kernels
        # Of a tensor the sums that read it, with their places.
        self.readers: dict[Any, list[tuple[int, relax.Call]]] = {}

    def partners(
        self, call: relax.Call, at: int, calls: Mapping[int, relax.Call], place: dict[Any, int]
    ) -> Iterable[int]:
        """Those that read the most of what the call reads."""
        if not self._is_sum(call):
            return []
        shared: Counter[int] = Counter()
        for var in dict.fromkeys(variables_of(call.args[1])):
            readers, size = self.readers.setdefault(var, []), bytes_of(var.ty)
            shared.update({i: size for i, other in readers if calls.get(i) is other})
            readers.append((at, call))
        found = (i for i in shared if shared[i] >= SMALL and structural_equal(calls[i].ty, call.ty))
        return sorted(found, key=lambda i: (-shared[i], i))

    def _is_sum(self, call: relax.Call) -> bool:
        var = call.args[0]
        if var not in self.sums:
            func = self.mod[var]
            known = str(call.ty.dtype) in _DTYPES and not (func.attrs and SCHEDULED in func.attrs)
            self.sums[var] = known and has_sum(func)
        return self.sums[var]

    def may_be(self, first: tirx.PrimFunc, second: tirx.PrimFunc) -> bool:
        """Nothing more is known before they are one."""
        return True

    def kernel(self, both: tirx.PrimFunc) -> tirx.PrimFunc | None:
        """With one block for both sums."""
        return paired(both)


def paired(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """A kernel of two sums over the same axes, and of what they add up, with one block for both;
    None for another one."""
    try:
        sch = QuickSchedule(func, error_render_level="none")
        inlined(sch, normalize_prim_func(sch) or [])
    except (s_tir.ScheduleError, tvm.error.InternalError, AssertionError, ValueError):
        return None
    root = sch.mod["main"].body
    nests = list(root.block.body.seq) if isinstance(root.block.body, tirx.SeqStmt) else []
    if len(nests) != 2 or root.block.alloc_buffers:
        return None
    first, second = map(_Sum.read, nests)
    other = second.renamed(first) if first is not None and second is not None else None
    if first is None or other is None:
        return None
    made: Any = s_tir.SBlockRealize(first.values, True, _both(first.block, other))
    for loop in reversed(first.loops):
        made = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, made)
    whole = s_tir.SBlock([], [], [], root.block.name_hint, made)
    return func.with_body(s_tir.SBlockRealize([], True, whole))


class _Sum(NamedTuple):
    """Loops, the values of a block's axes, and the block, which adds to one tensor."""

    loops: list[Any]
    values: list[Any]
    block: Any

    @classmethod
    def read(cls, stmt: Any) -> _Sum | None:
        """None of anything else."""
        loops = []
        while isinstance(stmt, tirx.For):
            loops.append(stmt)
            stmt = stmt.body
        if not isinstance(stmt, s_tir.SBlockRealize) or stmt.block.init is None:
            return None
        block, (init, body) = stmt.block, (stmt.block.init, stmt.block.body)
        if not all(isinstance(part, tirx.BufferStore) for part in (init, body)):
            return None
        is_sum = isinstance(body.value, tirx.Add) and _is_zero(init.value)
        own = is_sum and structural_equal(body.value.a, body.buffer[tuple(body.indices)])
        return cls(loops, list(stmt.iter_values), block) if own else None

    def renamed(self, other: _Sum) -> Any:
        """The block with the variables of another one's axes; None where they are not the same, or
        the tensors that both read are not read in the same places, or the other's sum is read."""
        axes, others = self.block.iter_vars, other.block.iter_vars
        if len(self.loops) != len(other.loops) or len(axes) != len(others):
            return None
        own = {a.loop_var: b.loop_var for a, b in zip(self.loops, other.loops, strict=True)}
        own |= {a.var: b.var for a, b in zip(axes, others, strict=True)}

        def renamed(node: Any) -> Any:
            return structural_map(node, (tirx.Var, lambda var: own.get(var, var)))

        same = [
            *((a.extent, b.extent) for a, b in zip(self.loops, other.loops, strict=True)),
            *zip(map(renamed, self.values), other.values, strict=True),
            *zip(map(renamed, self.block.body.indices), other.block.body.indices, strict=True),
        ]
        kinds = all(a.iter_type == b.iter_type for a, b in zip(axes, others, strict=True))
        if not kinds or not all(structural_equal(a, b) for a, b in same):
            return None
        init, body = self.block.init, self.block.body
        regions = [list(map(renamed, some)) for some in (self.block.reads, self.block.writes)]
        known = {region.source: region for region in (*other.block.reads, *other.block.writes)}
        if not all(structural_equal(r, known.get(r.source, r)) for r in regions[0]):
            return None
        if other.block.body.buffer in {region.source for region in regions[0]}:
            return None
        stores = [
            tirx.BufferStore(s.buffer, renamed(s.value), other.block.body.indices)
            for s in (body, init)
        ]
        return s_tir.SBlock(others, *regions, self.block.name_hint, *stores)


def _is_zero(value: Any) -> bool:
    return isinstance(value, tirx.FloatImm) and float(value.value) == 0


def _both(first: Any, second: Any) -> Any:
    """A block that adds to both tensors.  Both values are there before either is stored: that is
    the form in which TVM knows a sum of pairs, of which parts can be added apart."""
    values = [tirx.Var(f"sum_{i}", block.body.value.ty) for i, block in enumerate((first, second))]
    binds = [tirx.Bind(v, b.body.value) for v, b in zip(values, (first, second), strict=True)]
    stores = [
        tirx.BufferStore(b.body.buffer, v, b.body.indices)
        for v, b in zip(values, (first, second), strict=True)
    ]
    reads = list(first.reads)
    reads += [r for r in second.reads if not any(structural_equal(r, known) for known in reads)]
    return s_tir.SBlock(
        first.iter_vars, reads, [*first.writes, *second.writes], first.name_hint,
        tirx.SeqStmt([*binds, *stores]), tirx.SeqStmt([first.init, second.init]),
    )  # fmt: skip
