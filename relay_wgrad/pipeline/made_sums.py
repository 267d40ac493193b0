"""A kernel that makes a tensor also sums it over pixels.

Gradients of activations and of gates are made element by element, and summed next: for a bias all
over again, for a gate of each image.  Apart the sum reads what was just written.  Here both are one
kernel of two results: a thread makes a part of the pixels of a pack of channels, and has their sums
in registers.  What the sum adds is the tensor as it is stored, rounded.

`MadeSums` joins such calls, where `MadeSum` has a schedule for both together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.s_tir import SBlock, Schedule, ScheduleError
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.target import Target
from tvm_ffi import structural_walk

from ..graph.rebuild import Writer, function_of, rebuilt, with_type
from ..graph.walk import Block, functions_in, variables_of
from ..ir import bytes_of, op_name
from ..keys import PRIMITIVE, SCHEDULED, SYMBOL
from .cuda_packs import lanes_of, packed_reads, read_in_packs, reads_along, vectorized
from .cuda_reduction import (
    LEAST,
    UNROLLED,
    WANTED,
    WANTED_OF_PACKS,
    ChannelSum,
    divisor,
    is_costly,
    split_at_sum,
)
from .targets import cuda_target
from .workspaces import places_of_results

SMALL = 1 << 20  # bytes of a tensor that is not worth it
_LEAST_UNDER_WAY = 2  # pixels whose loads a thread has under way at once, at least


class MadeSum(ChannelSum):
    """For element-wise blocks, of which one makes a result, and a sum over pixels that reads it."""

    def scheduled(self, sch: Schedule, infos: list[SBlockInfo]) -> Any:
        """The schedule, or None for another kind of function."""
        try:
            return self._scheduled(sch, infos)
        except ScheduleError:  # of loops that TVM's analysis does not see through
            return None

    def _scheduled(self, sch: Schedule, infos: list[SBlockInfo]) -> Any:
        found = split_at_sum(infos)
        if found is None:
            return None
        before, the_sum, after = found
        results = _results(sch, before)
        if len(results) != 1:
            return None
        (maker,) = results
        for info in before:
            if info is not maker:
                sch.compute_inline(info.block_rv)
        order = _order(sch, maker, the_sum)
        made = packed_reads(sch.get(maker.block_rv))
        if order is None or made is None:
            return None
        block, kept = sch.get(the_sum.block_rv), the_sum.dom_kind().count("S")
        stored = sch.get(maker.block_rv).writes[0].source
        added = reads_along(block, block.iter_vars[kept - 1].var)
        if added is None or stored not in added:
            return None
        others = [b for b in added if b != stored]
        large = _large([*made, *others], stored)
        lanes = lanes_of([stored, *large])
        sizes = [int(n) for n in order]
        images, pixels, channels = sizes[: kept - 1], sizes[kept - 1 : -1], sizes[-1]
        if lanes < 2 or channels % lanes or any(_last(b) % lanes for b in [*made, *others]):
            return None
        costly = is_costly(sch.get(maker.block_rv).body) or is_costly(block.body)
        axis, cut = parts_of(pixels, math.prod(images) * channels, lanes, costly)
        if math.prod(pixels[:axis]) * cut == 1:
            return None
        under_way = max(UNROLLED // max(1, len(large)), _LEAST_UNDER_WAY)
        return self._together(sch, maker.block_rv, the_sum.block_rv, [i.block_rv for i in after],
                              made, others, len(images), axis, cut, lanes, under_way)  # fmt: skip

    def _together(
        self, sch: Schedule, maker: Any, the_sum: Any, after: list[Any], made: list[Any],
        others: list[Any], images: int, axis: int, cut: int, lanes: int, under_way: int,
    ) -> Schedule:  # fmt: skip
        kept = images + 1
        loops = sch.get_loops(the_sum)
        channels = math.prod(int(sch.get(loop).extent) for loop in loops[:kept])
        pixels = list(loops[kept:])
        outer, rest = sch.split(pixels[axis], [cut, None])
        part = _fused(sch, [*pixels[:axis], outer])
        parts = int(sch.get(part).extent)
        first = sch.rfactor(part, 0)
        copies = read_in_packs(sch, maker, made)
        out = sch.cache_write(maker, 0, "local", [first])
        sums = sch.cache_write(first, 0, "local")
        *places, channel = sch.get_loops(maker)
        outer, rest = sch.split(places[images + axis], [cut, None])
        pack, lane = sch.split(channel, [None, lanes])
        ahead, behind = (
            [*places[: images + axis], outer, pack],
            [rest, *places[images + axis + 1 :]],
        )
        sch.reorder(*ahead, *behind, lane)
        length = int(sch.get(behind[-1]).extent)
        # Sums begin in the loop, by a choice: TVM cannot tell any more that it could be before it.
        together = divisor(length, min(length, under_way))
        if together == 1 and length < 2 * under_way:
            together = length
        _, inner = sch.split(behind[-1], [None, together])
        sch.reverse_compute_at(first, inner)
        copies += read_in_packs(sch, first, others)
        for copy in copies:
            sch.compute_at(copy, inner)
        sch.reverse_compute_at(out, inner)
        sch.reverse_compute_at(sums, pack)
        for copy in (*copies, out, sums):
            vectorized(sch, copy, lanes)
        sch.unroll(inner)
        for block in (maker, first):
            sch.unroll(sch.get_loops(block)[-1])
        self.spread(sch, _fused(sch, ahead))
        self.whole(sch, the_sum, parts, channels)
        for block in after:
            self.spread(sch, sch.fuse(*sch.get_loops(block)))
        return sch


def parts_of(
    pixels: Sequence[int], channels: int, lanes: int, costly: bool = False
) -> tuple[int, int]:
    """Where pixels are cut into parts: an axis, and into how many pieces, with all axes before it
    wholly: as near as can be to the number of threads that is wanted."""
    wanted = WANTED if costly else WANTED_OF_PACKS
    most = max(1, min(math.prod(pixels) // LEAST, wanted * lanes // channels))
    choices, before = [], 1
    for axis, size in enumerate(pixels):
        pieces = [d for d in range(1, size + 1) if size % d == 0]
        choices += [(abs(math.log(before * d / most)), axis, d) for d in pieces]
        before *= size
    return min(choices)[1:]


def _fused(sch: Schedule, loops: list[Any]) -> Any:
    return sch.fuse(*loops) if len(loops) > 1 else loops[0]


def _results(sch: Schedule, infos: list[SBlockInfo]) -> list[SBlockInfo]:
    """The blocks that write what is no tensor of the kernel's own."""
    (root,) = (sch.get(sch.get_sblock("root")),)
    own = set(root.alloc_buffers)
    return [i for i in infos if any(w.source not in own for w in sch.get(i.block_rv).writes)]


def _order(sch: Schedule, maker: SBlockInfo, the_sum: SBlockInfo) -> list[Any] | None:
    """The lengths of a made tensor's axes, where a sum over some of them reads each element once:
    those that it keeps first, then those that it is over in its order, then the channel."""
    block, summed = sch.get(maker.block_rv), sch.get(the_sum.block_rv)
    stored = block.writes[0]
    region = [r for r in summed.reads if r.source == stored.source]
    if len(block.writes) != 1 or len(region) != 1 or not maker.is_injective():
        return None
    written, read = (
        [index.min for index in r.region if not isinstance(index.min, tirx.IntImm)]
        for r in (stored, region[0])
    )
    kinds = the_sum.dom_kind()
    variables = [v.var for v in summed.iter_vars]
    kept = [v for v, kind in zip(variables, kinds, strict=True) if kind == "S"]
    over = [v for v, kind in zip(variables, kinds, strict=True) if kind == "R"]
    wanted = [*kept[:-1], *over, kept[-1]]
    plain = [v.var for v in block.iter_vars]
    for found, names in ((written, plain), (read, wanted)):
        if len(found) != len(names):
            return None
        if not all(a.same_as(b) for a, b in zip(found, names, strict=True)):
            return None
    extents = [sch.get(loop).extent for loop in sch.get_loops(maker.block_rv)]
    return extents if all(isinstance(n, tirx.IntImm) for n in extents) else None


def _large(buffers: list[Any], stored: Any) -> list[Any]:
    """What is as large as the result; a vector comes from a cache."""
    count = math.prod(map(int, stored.shape))
    return [b for b in buffers if 8 * math.prod(map(int, b.shape)) > count]


def _last(buffer: Any) -> int:
    return int(buffer.shape[-1])


# ---- calls ---------------------------------------------------------------------------------------


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.MadeSums")
class MadeSums:
    """For fused kernels on CUDA, before they are ordered and scheduled."""

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module with calls that make a tensor and sum it."""
        target = cuda_target()
        return mod if target is None else _Joined(mod, target).module()


class _Joined:
    def __init__(self, mod: tvm.IRModule, target: Target) -> None:
        self.mod, self.target = mod, target
        self.plain = set(places_of_results(mod))
        self.names = {str(var.name_hint) for var in mod.get_global_vars()}
        self.known: dict[Any, Any] = {}  # (both kernels, their operands' places) -> one for both

    def module(self) -> tvm.IRModule:
        """The module with such calls, and what they call."""
        out = self.mod.clone()
        for var, func in functions_in(self.mod):
            new = rebuilt(func, self._block)
            if not new.same_as(func):
                out.update_func(var, new)
        for var, kernel in filter(None, self.known.values()):
            out.update_func(var, kernel)
        return out

    def _block(self, block: Block) -> list[relax.Binding] | None:
        if not isinstance(block, relax.DataflowBlock):
            return None
        bindings = list(block.bindings)
        place = {binding.var: i for i, binding in enumerate(bindings)}
        joined: dict[int, tuple[Any, relax.Call]] = {}  # of a maker: its sum and the call
        for binding in bindings:
            call = self._kernel(binding.value)
            if call is None or not isinstance(binding.var, relax.DataflowVar | relax.Var):
                continue
            for made in dict.fromkeys(variables_of(call.args[1])):
                at = place.get(made)
                if at is None or at in joined or bytes_of(made.ty) < SMALL:
                    continue
                both = self._both(bindings[at], binding, place, at)
                if both is not None:
                    joined[at] = binding.var, both
                    break
        return _written(block, bindings, joined) if joined else None

    def _kernel(self, value: Any) -> Any:
        """A call of a kernel with one result; None for another value."""
        if op_name(value) != "relax.call_tir" or value.args[0] not in self.plain:
            return None
        known = isinstance(value.ty, relax.TensorType) and len(value.args) == 2
        return value if known and isinstance(value.args[1], relax.Tuple) else None

    def _both(self, maker: Any, summer: Any, place: dict[Any, int], at: int) -> Any:
        """The call that computes both, where the maker stands; None where there is none."""
        first, second = self._kernel(maker.value), self._kernel(summer.value)
        if first is None:
            return None
        given = list(first.args[1].fields)
        others = [arg for arg in second.args[1].fields if not arg.same_as(maker.var)]
        if not all(isinstance(arg, relax.Var) for arg in (*given, *others)):
            return None
        if any(place.get(arg, -1) >= at for arg in others):
            return None
        args = list(dict.fromkeys([*given, *others]))
        places = {arg: i for i, arg in enumerate(args)}
        order = (
            tuple(places[arg] for arg in given),
            tuple(places.get(arg, -1) for arg in second.args[1].fields),
        )
        key = first.args[0], second.args[0], order
        if key not in self.known:
            self.known[key] = self._made(first, second, args, order)
        if self.known[key] is None:
            return None
        whole = relax.TupleType([first.ty, second.ty])
        call = relax.Call(first.op, [self.known[key][0], relax.Tuple(args)], first.attrs, [whole])
        return with_type(call, whole)

    def _made(
        self, first: relax.Call, second: relax.Call, args: list[Any], order: tuple[Any, Any]
    ) -> tuple[Any, Any] | None:
        """One kernel for two, and its name; None where `MadeSum` has no schedule for it."""
        kernels = {call.args[0]: self.mod[call.args[0]] for call in (first, second)}
        if not _may_be(*kernels.values()):
            return None
        params = [relax.Var(f"operand_{i}", arg.ty) for i, arg in enumerate(args)]
        writer = Writer(relax.DataflowBlock([]))
        fields = relax.Tuple([params[i] for i in order[0]])
        made = writer.emit("made", _call(first, fields))
        fields = relax.Tuple([made if i < 0 else params[i] for i in order[1]])
        total = writer.emit("total", _call(second, fields))
        result = writer.output("both", relax.Tuple([made, total]))
        block = relax.DataflowBlock(writer.bindings)
        name = self._name(str(first.args[0].name_hint))
        var = tvm.ir.GlobalVar(name)
        func = function_of(params, block, result, {PRIMITIVE: 1})
        caller = _caller(with_type(var, func.ty), params, result.ty)
        small = tvm.IRModule({**kernels, var: func, tvm.ir.GlobalVar("caller"): caller})
        fused = relax.transform.FuseTIR()(small)
        found = next(v for v in fused.get_global_vars() if isinstance(fused[v], tirx.PrimFunc))
        kernel = fused[found]
        if MadeSum().apply(kernel, self.target, False) is None:
            return None
        self.names.add(name)
        return with_type(tvm.ir.GlobalVar(name), kernel.ty), kernel

    def _name(self, maker: str) -> str:
        name = f"{maker}_and_sum"
        while name in self.names:
            name += "_"
        return name


def _call(call: relax.Call, fields: relax.Tuple) -> relax.Call:
    return relax.Call(call.op, [call.args[0], fields], call.attrs, call.ty_args)


def _caller(var: Any, params: list[Any], ty: Any) -> relax.Function:
    own = [relax.Var(param.name, param.ty) for param in params]
    writer = Writer(relax.DataflowBlock([]))
    result = writer.output("results", with_type(relax.Call(var, own), ty))
    block = relax.DataflowBlock(writer.bindings)
    return function_of(own, block, result, {SYMBOL: "caller"})


def _may_be(maker: Any, summer: Any) -> bool:
    """Whether two kernels may be one: none is scheduled, the second alone has a sum, and the first
    is more than another shape of its operand, which is a view and no kernel."""
    if any(func.attrs and SCHEDULED in func.attrs for func in (maker, summer)):
        return False
    return not _sums(maker) and _sums(summer) and not relax.analysis.has_reshape_pattern(maker)


def _sums(func: Any) -> bool:
    """Whether some block of a kernel adds up."""
    found: list[Any] = []
    structural_walk(func.body, (SBlock, lambda block: found.append(block.init is not None)))
    return any(found)


def _written(
    block: relax.DataflowBlock, bindings: list[Any], joined: dict[int, tuple[Any, relax.Call]]
) -> list[relax.Binding]:
    writer = Writer(block)
    gone = {var for var, _ in joined.values()}
    for i, binding in enumerate(bindings):
        if i in joined:
            total, call = joined[i]
            both = writer.emit(f"{binding.var.name}_and_sum", call, binding.span)
            writer.bind(binding.var, relax.TupleGetItem(both, 0))
            writer.bind(total, relax.TupleGetItem(both, 1))
        elif binding.var not in gone:
            writer.bindings.append(binding)
    return writer.bindings
