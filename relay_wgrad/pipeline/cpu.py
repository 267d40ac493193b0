"""A Relax pipeline for CPUs that runs a training graph's other kernels on all cores.

Upstream's schedules nothing on a CPU: whatever is no convolution of ours runs in one thread, and a
sum over pixels walks through channel-last memory from line to line.  Here each block of loops that
nobody has scheduled becomes parallel over its results, and a sum over the outer axes of a tensor
keeps its innermost axis inside; a sum along that axis is a vector of partial sums, added up at the
end.  No order of terms depends on the number of threads, so results do not either.

Vectors are written as such, and sums are in registers.  LLVM left alone would have to find that no
two of a kernel's dozen tensors overlap, and gives up; what it then makes of a choice by a mask are
branches, which no processor predicts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, s_tir, tirx
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.target import Target
from tvm_ffi.structural import structural_walk

from ..graph.rebuild import with_changed_kernels
from ..graph.shared_tasks import threads_of
from ..keys import SCHEDULED
from .cpu_joins import asked_of_pieces, asked_once, asks_each, cut_into_pieces
from .empty_tensors import Nothing
from .fused_kernels import fused_kernels
from .half_scans import HalfScans
from .ieee import exact_floats
from .inlining import inlined
from .last_passes import with_arena
from .pragmas import without_unknown_pragmas
from .quick_schedule import QuickSchedule
from .reduction_init import first_values
from .remainders import without_remainders
from .reshapes import Reshapes, without_reshapes
from .shared_sizes import shared

# Scalar operations that are worth waking other threads for; elements of an inner loop, at least.
_WORTH, _INNER = 1 << 14, 32
# Sums that are in registers at a time, at most, and their bytes: half of the registers.
_SUMS, _SUM_BYTES = 64, 256
# Bytes of neighbours that a task walks along: a processor fetches ahead what lies in one piece, and
# so many sums stay in the level-1 cache beside what is read.
_ROW_BYTES = 2048
# Tasks of a sum, at most, and elements of one that has a part of the rows, at least.
_TASKS, _PART = 64, 1 << 12
# Elements of a vector as written, which LLVM cuts as the target wants; fewer are not worth it.
_LANES, _SHORT = 16, 4
_TILE = 32  # rows and columns that are transposed at a time, at most
# Types that TVM makes of others once it has written vectors.  Copies of one bfloat16, as of a
# maximum's first value, then keep their type where their tensor's has become uint16; rounding to
# fewer bits chooses by a condition, which must be a scalar; and a sum of bools is one of int8.
_NO_COPIES, _NO_VECTORS, _NO_SUMS = ("bfloat16",), ("float8", "float6", "float4"), ("bool",)
# Functions that TVM makes vectors of.  Of another (erf, a call of C) it makes a loop over numbers
# in the place of the statement: of a named value's, which what reads the name is not part of.
_OF_VECTORS = ("if_then_else", "reinterpret", "exp", "sigmoid", "tanh", "sqrt", "fabs")
_LOWERED = [
    s_tir.transform.LowerInitBlock(), s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
    s_tir.transform.ConvertBlocksToOpaque(), s_tir.transform.CompactBufferAllocation(),
]  # fmt: skip
"""The beginning of TVM's lowering, to where it needs the regions that loops read."""


def cpu_pipeline(
    progress: Callable[[str], None] = lambda part: None,
) -> Callable[..., tvm.IRModule]:
    """The pipeline, for `tvm.compile(mod, target, relax_pipeline=cpu_pipeline())`.

    It is upstream's with a fusion of our own (`fused_kernels`) and a schedule for what that leaves.
    A kernel that the schedule does not fit stays as upstream makes it.

    progress : is told of each of its parts before that begins.
    """
    from tvm.relax.backend.cpu_generic.pipeline import (
        dataflow_lower_passes,
        finalize_passes,
        library_dispatch_passes,
    )

    @tvm.transform.module_pass(opt_level=0, name="relay_wgrad.cpu_pipeline")
    def run(mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        target = Target.current(allow_none=False)
        parts = {
            "fusing": [
                Nothing(), HalfScans(), *library_dispatch_passes(target), *fused_kernels(),
                Reshapes(),  # so that what becomes a view is neither scheduled nor compiled
                relax.transform.DeadCodeElimination(),
            ],
            "scheduling": [
                parallel_kernels(), first_values(), exact_floats(), without_remainders(),
                without_unknown_pragmas(),
            ],
            "planning memory": [
                *without_reshapes(dataflow_lower_passes(target)),
                *with_arena(finalize_passes(target)),
            ],
        }  # fmt: skip
        for part, passes in parts.items():
            progress(part)
            mod = tvm.transform.Sequential(passes)(mod)
        return mod

    return run


def parallel_kernels() -> tvm.transform.Pass:
    """Schedules every kernel of a module that is not marked as scheduled."""

    @tvm.transform.module_pass(opt_level=0, name="relay_wgrad.parallel_kernels")
    def run(mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        cores = threads_of(Target.current(allow_none=False)) or 8

        def change(func: tirx.PrimFunc) -> tirx.PrimFunc:
            is_scheduled = func.attrs and func.attrs.get(SCHEDULED)
            return func if is_scheduled else scheduled(func, cores)

        return with_changed_kernels(mod, change)

    return run


def scheduled(func: tirx.PrimFunc, cores: int) -> tirx.PrimFunc:
    """The kernel with loops for so many cores, or as it was if its form is unknown."""
    try:
        # What fails is never shown.
        sch = QuickSchedule(asked_of_pieces(func), error_render_level="none")
        infos = normalize_prim_func(sch)
        if not infos:
            return func
        rest = inlined(sch, infos)
        if (same := _of_any_size(func, sch, rest, cores)) is not None:
            return same.with_attr(SCHEDULED, True)
        cut = False
        for info in rest:
            kinds = info.dom_kind()
            if len(sch.get_loops(info.block_rv)) == len(kinds) and set(kinds) <= {"S", "R"}:
                pieces = set(kinds) == {"S"} and cut_into_pieces(sch, info.block_rv)
                cut |= pieces
                _Block(sch, info.block_rv, kinds + "S" * pieces, cores, pieces).schedule()
        _check_regions(sch.mod)
    except (s_tir.ScheduleError, tvm.error.InternalError, AssertionError, ValueError):
        return func
    made = sch.mod["main"]
    return (asked_once(made) if cut else made).with_attr(SCHEDULED, True)


def _of_any_size(func: tirx.PrimFunc, sch: Any, rest: list[Any], cores: int) -> Any:
    """The kernel as others of other sizes are, if it is one element-wise block; else None."""
    if len(rest) != 1 or set(rest[0].dom_kind()) - {"S"}:
        return None
    block = sch.get(rest[0].block_rv)
    count = math.prod(_number(each.dom.extent) or 0 for each in block.iter_vars)
    return shared(func, block, count >= _WORTH and cores > 1) if count else None


def _check_regions(mod: tvm.IRModule) -> None:
    """Raises InternalError where TVM cannot tell what loops over symbolic sizes, joined to one,
    read of a tensor within the kernel, which it needs when it lowers that."""
    sizes = (size for param in mod["main"].params for size in getattr(param, "shape", ()))
    if not all(isinstance(size, tirx.IntImm) for size in sizes):
        tvm.transform.Sequential(_LOWERED)(mod)


class _Block:
    """One block of a kernel, and its loops: over the result's elements, and over terms of sums."""

    def __init__(
        self, sch: s_tir.Schedule, block: Any, kinds: str, cores: int, pieces: bool = False
    ) -> None:
        self.sch, self.block, self.cores, self.pieces = sch, block, cores, pieces
        loops = sch.get_loops(block)
        self.lengths = {loop: _number(sch.get(loop).extent) for loop in loops}
        self.spatial = [x for x, kind in zip(loops, kinds, strict=True) if kind == "S"]
        self.reduced = [x for x, kind in zip(loops, kinds, strict=True) if kind == "R"]
        held = sch.get(block)
        self.accesses = [*held.reads, *held.writes]
        self.dtypes, self.stores, self.functions = _contents(held)
        self.axes, self.terms = (
            [v.var for v in held.iter_vars if v.iter_type == kind]
            for kind in (tirx.IterVar.DataPar, tirx.IterVar.CommReduce)
        )

    def schedule(self) -> None:
        """Leaves the loops as they are where other threads are not worth waking."""
        known = [x for x in self.lengths.values() if x is not None]
        is_small = len(known) == len(self.lengths) and math.prod(known) < _WORTH
        if not self.spatial or is_small:
            return
        if not self.reduced:
            self._elements()
            return
        self.sch.reorder(*self.spatial, *self.reduced)
        inner, length = self._innermost(), self.lengths[self.spatial[-1]]
        if inner is not None and inner.same_as(self.axes[-1]) and length is not None:
            self._sum_of_rows(length)
        elif inner is not None and inner.same_as(self.terms[-1]) and all(
            self.lengths[x] is not None for x in self.reduced
        ):  # fmt: skip
            self._sums_of_rows()
        else:
            self._spread(self.spatial)

    def _spread(self, loops: list[Any]) -> Any:
        """The tasks: one loop in place of these, on all cores."""
        task = self._fused(loops)
        if self.cores > 1:
            self.sch.parallel(task)
        return task

    def _fused(self, loops: list[Any]) -> Any:
        return self.sch.fuse(*loops) if len(loops) > 1 else loops[0]

    def _innermost(self) -> Any:
        """What walks along the last axis of the largest tensor that is read, if it is one index."""

        def size(access: Any) -> int:
            return math.prod(int(x) for x in access.source.shape if isinstance(x, tirx.IntImm))

        largest = max(self.sch.get(self.block).reads, key=size, default=None)
        return largest.region[-1].min if largest is not None and largest.region else None

    def _is_in_order(self, first: int) -> bool:
        """Whether neighbours along the result's axes from `first` on, taken as one, are neighbours
        wherever they are read, or one element."""
        axes = self.axes[first:]
        lengths = [self.lengths[loop] for loop in self.spatial[first:]]

        def depends(index: Any) -> bool:
            return any(
                x.same_as(axis) for x in tirx.analysis.undefined_vars(index) for axis in axes
            )

        for access in self.accesses:
            indices = [piece.min for piece in access.region]
            outer, inner = indices[: -len(axes)], indices[-len(axes) :]
            shape = access.source.shape[-len(axes) :] if inner else []
            is_row = len(inner) == len(axes) and all(
                index.same_as(axis) and (i == 0 or _number(size) == lengths[i])
                for i, (index, axis, size) in enumerate(zip(inner, axes, shape, strict=True))
            )
            if len(axes) == 1 and inner:  # from anywhere on
                is_row = not depends(tvm.sym.Analyzer().simplify(inner[0] - axes[0]))
            if any(map(depends, outer)) or (any(map(depends, inner)) and not is_row):
                return False
        return True

    def _has_vectors(self) -> bool:
        """Whether TVM can compile vectors along the result's innermost axis."""
        if any(dtype.startswith(_NO_VECTORS) for dtype in self.dtypes):
            return False
        if len(self.stores) > 1 and not self.functions <= {f"tirx.{x}" for x in _OF_VECTORS}:
            return False
        params = self.sch.mod["main"].params
        for store in self.stores:
            dtype = str(store.buffer.dtype)
            if dtype == "bool" and not any(map(store.buffer.same_as, params)):
                return False  # TVM makes vectors of such memory, and of what they hold int8
            if asks_each(store.value, self.axes[-1], self.pieces):
                return False
            if self.reduced:
                if dtype in _NO_SUMS:
                    return False
            elif dtype in _NO_COPIES and not any(
                x.same_as(self.axes[-1]) for x in tirx.analysis.undefined_vars(store.value)
            ):
                return False
        return True

    # ---- elements ----------------------------------------------------------------------------

    def _elements(self) -> None:
        spatial, length = self.spatial, self.lengths[self.spatial[-1]]
        if self._transposed():
            return
        # Some inner loops stay, long enough for vectors.
        inner = len(spatial) - 1
        while inner > 1 and length is not None and length < _INNER and not self.pieces:
            inner -= 1
            shorter = self.lengths[spatial[inner]]
            length = None if shorter is None else length * shorter
        if inner == 0:  # one axis
            self._spread([self.sch.split(spatial[0], [None, _WORTH // 4])[0]])
            return
        if length is not None:
            is_in_order, width = self._is_in_order(inner), _vector(length, 2 * _LANES)
            row = self._fused(spatial[inner:])
            if is_in_order and width >= _SHORT and self._has_vectors():
                self.sch.vectorize(self.sch.split(row, [None, width])[1])
        # A task has all pieces of a row: which one it is at is counted, not divided.
        self._spread(spatial[: max(1, inner - self.pieces)])

    def _transposed(self) -> bool:
        """Whether it is a transposition of two long axes; then it goes tile by tile, so that both
        sides use whole cache lines."""
        inner = self._innermost()
        place = next((i for i, x in enumerate(self.axes) if x.same_as(inner)), None)
        if place in (None, len(self.axes) - 1) or len(self.accesses) != 2:
            return False
        pair = [self.spatial[place], self.spatial[-1]]
        sizes = [self.lengths[loop] or 0 for loop in pair]
        if min(sizes) < _INNER:
            return False
        pieces = (self._cut(loop, n, _TILE) for loop, n in zip(pair, sizes, strict=True))
        outer, tile, _ = zip(*pieces, strict=True)
        rest = [x for i, x in enumerate(self.spatial[:-1]) if i != place]
        self.sch.reorder(outer[0], *rest, outer[1], *tile)
        self._spread([outer[0], *rest])
        return True

    def _cut(self, loop: Any, length: int, most: int) -> tuple[Any, Any, int]:
        """(a loop over pieces, one inside of it, the latter's length: at most so much)"""
        width = next(x for x in range(max(1, most), 0, -1) if length % x == 0)
        outer, inner = self.sch.split(loop, [None, width])
        return outer, inner, width

    # ---- sums --------------------------------------------------------------------------------

    @property
    def _results(self) -> list[Any]:
        return [region.source for region in self.sch.get(self.block).writes]

    def _room(self, size: int) -> int:
        """Sums of a result, of those of this block, that fit in so many bytes."""
        return size * 8 // sum(tvm.DataType(str(x.dtype)).bits for x in self._results)

    @property
    def _widest(self) -> int:
        """Sums that registers have room for."""
        return min(_SUMS, self._room(_SUM_BYTES))

    def _sum_of_rows(self, length: int) -> None:
        """Tasks own neighbours along the innermost axis and walk over a part of the rows.

        The parts' sums are added up at the end.  With fewer neighbours to a task instead, each
        would read short pieces that are far apart.  The number of parts does not depend on the
        cores, so that results do not either.
        """
        sch, count = self.sch, len(self.spatial)
        known = [loop for loop in self.reduced if self.lengths[loop] is not None]
        parts = self._parts(length, math.prod(self.lengths[loop] or 1 for loop in known))
        if parts == 1:
            self._walk(length)
            return
        others = [loop for loop in self.reduced if self.lengths[loop] is None]
        sch.reorder(*others, *known)
        part, rows = sch.split(self._fused(known), [parts, None])
        sch.reorder(part, *others, rows)
        self.reduced = [part, *others, rows]
        try:
            sums = sch.rfactor(part, 0)
        except s_tir.ScheduleError:  # of two results that are no sums
            self._walk(length)
            return
        loops = sch.get_loops(sums)
        sch.reorder(loops[count], *loops[:count])
        _Block(sch, sums, "S" * (count + 1) + "R" * len(loops[count + 1 :]), self.cores)._walk(
            length
        )
        *spatial, part = sch.get_loops(self.block)
        sch.reorder(part, *spatial)
        sch.decompose_reduction(self.block, part)

    def _parts(self, length: int, rows: int) -> int:
        """Of so many rows, times an open number, for tasks enough, none of which is too small."""
        columns = self._columns(length)
        tasks = math.prod(self.lengths[loop] or 1 for loop in self.spatial) // columns
        is_open = any(self.lengths[loop] is None for loop in self.reduced)
        least = columns if is_open else _PART
        most = max(1, min(_TASKS // max(1, tasks), rows * columns // least))
        return max(x for x in range(1, most + 1) if rows % x == 0)

    def _columns(self, length: int) -> int:
        """Neighbours that a task walks along."""
        most = min(self._room(len(self._results) * _ROW_BYTES), length)
        return next(x for x in range(most, 0, -1) if length % x == 0)

    def _walk(self, length: int) -> None:
        """Each task walks over all rows."""
        outer, inner, width = self._cut(self.spatial[-1], length, self._columns(length))
        before = [*self.spatial[:-1], outer]
        self.sch.reorder(*before, *self.reduced, inner)
        task, lanes = self._spread(before), _vector(width, _LANES)
        if lanes < _SHORT or not self._is_in_order(len(self.axes) - 1) or not self._has_vectors():
            self.sch.decompose_reduction(self.block, self.reduced[0])
        elif lanes == _LANES and width <= self._widest:
            self._in_registers(task, inner)
        else:
            self._in_memory(inner, lanes)

    def _sums_of_rows(self) -> None:
        """A vector of partial sums for each result, added up at the end."""
        sch, reduced, count = self.sch, list(self.reduced), len(self.spatial)
        last = [reduced.pop()]
        length = self.lengths[last[0]] or 1
        while reduced and length < self._widest:
            last.insert(0, reduced.pop())
            length *= self.lengths[last[0]] or 1
        width = _vector(length, self._widest)
        if width < _SHORT or not self._has_vectors():
            self._spread(self.spatial)
            return
        _, columns = sch.split(self._fused(last), [None, width])
        # A sum of everything has a loop for its one result, but no axis.
        axes = len(sch.get(self.block).writes[0].source.shape)
        parts = sch.rfactor(columns, min(count, axes))
        loops = sch.get_loops(parts)
        task = self._spread(loops[:count])
        sch.reverse_compute_at(self.block, task)
        for i in range(len(self._results)):
            sch.set_scope(parts, i, "local")
        sch.vectorize(loops[-1])
        sch.vectorize(sch.get_loops(sch.decompose_reduction(parts, loops[count]))[-1])
        sch.unroll(sch.get_loops(self.block)[-1])

    def _in_memory(self, columns: Any, width: int) -> None:
        """Sums along `columns` are where they will be, and each row is added to all of them."""
        sch = self.sch
        if any(str(x.dtype) in _NO_COPIES for x in self._results):
            sch.decompose_reduction(self.block, self.reduced[0])
            return
        sch.vectorize(sch.split(columns, [None, width])[1])
        sch.vectorize(sch.get_loops(sch.decompose_reduction(self.block, self.reduced[0]))[-1])

    def _in_registers(self, task: Any, columns: Any) -> None:
        """Vectors of sums, which a task has along `columns`, are in registers while it walks over
        the rows."""
        sch = self.sch
        copies = [sch.cache_write(self.block, i, "local") for i in range(len(self._results))]
        for copy in copies:
            sch.reverse_compute_at(copy, task)

        def vectors(loop: Any) -> None:
            pieces, lanes = sch.split(loop, [None, _LANES])
            sch.unroll(pieces)
            sch.vectorize(lanes)

        for loop in (columns, *(sch.get_loops(copy)[-1] for copy in copies)):
            vectors(loop)
        *_, pieces, lanes = sch.get_loops(sch.decompose_reduction(self.block, self.reduced[0]))
        sch.unroll(pieces)
        sch.vectorize(lanes)


def _contents(block: Any) -> tuple[set[str], list[Any], set[str]]:
    """The dtypes of a block's expressions, its stores, and the functions that it calls."""
    dtypes: set[str] = set()
    functions: set[str] = set()
    stores: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.BufferStore):
            stores.append(node)
        elif (dtype := getattr(getattr(node, "ty", None), "dtype", None)) is not None:
            dtypes.add(str(dtype))
        if isinstance(node, tvm.ir.Call):
            functions.add(str(getattr(node.op, "name", "")))

    structural_walk(block.body, visit)
    return dtypes, stores, functions


def _number(size: Any) -> int | None:
    """A size that is known."""
    return int(size) if isinstance(size, (int, tirx.IntImm)) else None


def _vector(length: int, most: int) -> int:
    """Elements of a vector, of which a row of so many has a whole number."""
    fitting = [x for x in range(1, most + 1) if length % x == 0]
    return max(fitting, key=lambda x: (math.gcd(x, _LANES), x))
