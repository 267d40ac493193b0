"""Which results a kernel may write in the place of an operand.

A kernel may if each thread that writes an element of the result is the one that reads the same
element of the operand, and has read it before, and if nobody reads that element of it later: not
for another result, not in a later launch.  A sum over rows whose later pass reads them again may
not, nor may a window's.  That is one fact of a kernel: of a generated one an attribute, which is
read off its blocks while each element's expression still stands there; of functions of a library
of ours an attribute of the module, as the library's room has it (`with_symbols`).

Whether a call's operand can be given up is the plan's matter (`arena`, `kernel_order`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, s_tir, tirx
from tvm.ir import TensorLoad
from tvm_ffi import structural_equal, structural_walk

from .. import keys
from ..graph.walk import bindings_of, functions_in
from ..ir import op_name

Pair = tuple[int, int]
"""A result and an operand, as places among a kernel's arguments: its operands, then its results."""

# Of these nobody knows what else is read.
_POINTERS = (
    "tirx.address_of", "tirx.tvm_access_ptr", "tirx.call_extern", "tirx.call_pure_extern",
    "tirx.tvm_call_packed", "tirx.tvm_call_cpacked",
)  # fmt: skip


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.Overwrites")
class Overwrites:
    """Marks kernels that are called; to run once they are fused and before they are scheduled.

    None for a device: TVM tells its compiler that their buffers never overlap, whatever the kernel
    says.  In the steps of networks tried, no plan for a GPU gained by them.
    """

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module with the attribute on each kernel that may write over an operand."""
        target = tvm.target.Target.current(allow_none=True)
        if target is not None and str(target.kind.name) != "llvm":
            return mod
        called = {
            binding.value.args[0]
            for _, func in functions_in(mod)
            for binding in bindings_of(func)
            if op_name(binding.value) == "relax.call_tir"
        }
        out = mod.clone()
        for var in called:
            func = mod[var]
            if isinstance(func, tirx.PrimFunc) and (pairs := of_kernel(func)):
                out[var] = func.with_attr(keys.OVERWRITES, [list(pair) for pair in pairs])
        return out


def with_symbols(mod: tvm.IRModule, pairs: Mapping[str, Sequence[Pair]]) -> tvm.IRModule:
    """The module that says so of functions which are called by their symbols."""
    known = dict(mod.attrs[keys.OVERWRITES]) if mod.attrs and keys.OVERWRITES in mod.attrs else {}
    known |= {symbol: [list(pair) for pair in found] for symbol, found in pairs.items() if found}
    return mod.with_attr(keys.OVERWRITES, known) if known else mod


def overwrites_of(mod: tvm.IRModule, callee: Any) -> list[Pair]:
    """What a called kernel or function may write over, the best choice first."""
    found: Any = ()
    if isinstance(callee, tvm.ir.GlobalVar):
        attrs = mod[callee].attrs
        found = attrs[keys.OVERWRITES] if attrs and keys.OVERWRITES in attrs else ()
    elif isinstance(callee, relax.ExternFunc) and mod.attrs and keys.OVERWRITES in mod.attrs:
        found = mod.attrs[keys.OVERWRITES].get(str(callee.global_symbol), ())
    return [(int(result), int(operand)) for result, operand in found]


def matched(pairs: Iterable[Pair], may: Callable[[int, int], bool]) -> dict[int, int]:
    """Of a call's pairs those that are taken: operands by their results, each once at most."""
    taken: dict[int, int] = {}
    for result, operand in pairs:
        if result not in taken and operand not in taken.values() and may(result, operand):
            taken[result] = operand
    return taken


def of_kernel(func: tirx.PrimFunc) -> list[Pair]:
    """The pairs of a kernel that no schedule has changed yet.

    Of an operand: all that is computed of it, in as many steps as there are, is computed element by
    element, and one result is.  So no schedule, whatever it writes into what, reads another element
    of it than the one whose place it writes.
    """
    if func.attrs and keys.SCHEDULED in func.attrs:
        return []
    root = func.body
    if not isinstance(root, s_tir.SBlockRealize):
        return []
    blocks: list[Any] = []
    structural_walk(root.block.body, (s_tir.SBlock, blocks.append))
    writers = [_Writer(block) for block in blocks]
    loads: list[Any] = []
    structural_walk(root.block.body, (TensorLoad, loads.append))
    if len(loads) != sum(len(writer.loads) for writer in writers):
        return []  # blocks within blocks, or something that is no block's
    written = {writer.target for writer in writers}
    params = [param for param in func.params if hasattr(param, "shape")]
    places = {param: i for i, param in enumerate(func.params)}
    pairs = []
    for operand in params:
        result = None if operand in written else _only_result(operand, writers, places)
        if result is not None:
            pairs.append((places[result], places[operand]))
    return pairs


class _Writer:
    """A block: what it writes, and where it reads what.  `target` is None where that is unclear."""

    def __init__(self, block: Any) -> None:
        self.loads: list[Any] = []
        calls: list[Any] = []
        walks = [(TensorLoad, self.loads.append), (tvm.ir.Call, calls.append)]
        for part in (block.init, block.body):
            if part is not None:
                structural_walk(part, walks)
        self.target: Any = None
        self.is_pointwise = False
        store = block.body
        if not isinstance(store, tirx.BufferStore):
            return
        self.target, self.indices = store.buffer, list(store.indices)
        spatial = [each.var for each in block.iter_vars if each.iter_type == tirx.IterVar.DataPar]
        own = len(spatial) == len(block.iter_vars) == len(self.indices)
        plain = own and all(a.same_as(b) for a, b in zip(self.indices, spatial, strict=True))
        opaque = any(getattr(call.op, "name", "") in _POINTERS for call in calls)
        self.is_pointwise = plain and block.init is None and not opaque

    def reads_at_its_place(self, sources: set[Any]) -> bool:
        """Whether it is pointwise and reads each of these tensors at the index that it writes."""
        return self.is_pointwise and all(
            len(load.indices) == len(self.indices)
            and all(map(structural_equal, load.indices, self.indices))
            for load in self.loads
            if load.source in sources
        )


def _only_result(operand: Any, writers: Sequence[_Writer], places: Mapping[Any, int]) -> Any:
    """The one result that is computed of an operand element by element; None if there is none."""
    computed = {operand}
    for writer in writers:
        if not any(load.source in computed for load in writer.loads):
            continue
        target = writer.target
        if target is None or not writer.reads_at_its_place(computed) or not _alike(target, operand):
            return None
        computed.add(target)
    results = [source for source in computed if source in places and source is not operand]
    results = [source for source in results if not source.same_as(operand)]
    if len(results) != 1 or str(results[0].dtype) != str(operand.dtype):
        return None
    return results[0]


def _alike(a: Any, b: Any) -> bool:
    """Whether two tensors have one shape."""
    return len(a.shape) == len(b.shape) and all(map(structural_equal, a.shape, b.shape))
