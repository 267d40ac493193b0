"""Checkpointing: which results of the forward part are kept, and which are computed again.

Stock `Gradient` honours `relax.grad.start_checkpoint` and `end_checkpoint`: what lies between them
is recomputed in the backward part from the region's input instead of being kept in memory.  Here
the regions are found and marked.

A tensor can bound a region when everything after it that depends on the data depends on it alone: a
cut vertex of the graph, such as the result of a residual block.  If tensors c1, c2, … bound the
regions, the backward part holds c1 … ci and all of region i at its worst moment, so

    peak = max over i of (size(c1) + … + size(ci) + size(everything between ci and ci+1))

is what the automatic choice minimizes, exactly: for a bound B, a pass over the cut vertices finds
the least that can be kept up to each of them with all earlier regions within B; B is bisected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from ..graph.def_use import Graph
from ..graph.rebuild import Writer, with_bindings
from ..graph.walk import bindings_of, dataflow_block
from ..ir import bytes_of
from .surface import check_relax_module


@dataclass(frozen=True)
class Cut:
    """A tensor that can bound a region: its variable, and where in the function it is made."""

    var: Any
    index: int  # of its binding; -1 for a parameter
    bytes: int


def _block(func: relax.Function, fn: str) -> Any:
    block = dataflow_block(func)
    if block is None:
        raise ValueError(f"checkpoint: {fn!r} must be a function of one dataflow block")
    return block


def _dependent(
    func: relax.Function, inputs: Sequence[str]
) -> tuple[set[Any], dict[Any, int], dict[Any, int]]:
    """(data, what of the loss depends on it -> its binding's index, -> its last use's index)."""
    block = _block(func, "main")
    data = {p for p in func.params if p.name in inputs}
    last: dict[Any, int] = {}
    made: dict[Any, int] = dict.fromkeys(data, -1)
    # What the loss, the result or its first field, depends on.
    result = func.body.body
    loss = result.fields[0] if isinstance(result, relax.Tuple) else result
    needed = Graph(func).needed_for([loss])
    for index, binding in enumerate(block.bindings):
        if binding.var not in needed:  # running statistics, say: nothing of them is recomputed
            continue
        used = [v for v in relax.analysis.free_vars(binding.value) if v in made]
        for var in used:
            last[var] = index
        if used:
            made[binding.var] = index
    return data, made, last


def cut_vertices(func: relax.Function, inputs: Sequence[str]) -> list[Cut]:
    """The tensors that can bound regions, in program order.

    Parameters
    ----------
    func : a function of one dataflow block.
    inputs : names of the parameters that are data; what depends on the others alone is always kept.
    """
    block = _block(func, "main")
    data, made, last = _dependent(func, inputs)
    cuts = []
    live = set(data)
    if len(data) == 1:
        (x,) = data
        cuts.append(Cut(x, -1, bytes_of(x.ty)))
    for index, binding in enumerate(block.bindings):
        var = binding.var
        if var not in made:
            continue
        live = {v for v in live if last.get(v, -1) > index}
        if last.get(var, -1) > index:
            live.add(var)
        if live == {var} and isinstance(var.ty, relax.TensorType):
            cuts.append(Cut(var, index, bytes_of(var.ty)))
    return cuts


def choose(func: relax.Function, cuts: Sequence[Cut], inputs: Sequence[str]) -> list[Cut]:
    """The cuts that minimize the peak of the module's docstring; they may be none."""
    if len(cuts) < 2:
        return []
    bindings = _block(func, "main").bindings
    _, made, _ = _dependent(func, inputs)
    sums = [0]
    for binding in bindings:
        whole = binding.var in made and not isinstance(binding.value, relax.TupleGetItem)
        sums.append(sums[-1] + (bytes_of(binding.var.ty) if whole else 0))
    total = sums[-1]

    def between(first: Cut, after: int) -> int:
        return sums[after] - sums[first.index + 1]

    def kept_within(bound: int) -> list[Cut] | None:
        least: list[int] = []  # what is kept up to and with each cut, or infinity
        back: list[int] = []
        for i, cut in enumerate(cuts):
            best, origin = (cut.bytes, -1) if i == 0 else (total + 1, -1)
            for j in range(i):
                if least[j] + between(cuts[j], cut.index) <= bound:
                    kept = least[j] + cut.bytes
                    if kept < best:
                        best, origin = kept, j
            least.append(best)
            back.append(origin)
        ends = [
            (least[j], j)
            for j in range(len(cuts))
            if least[j] + between(cuts[j], len(bindings)) <= bound
        ]
        if not ends:
            return None
        chosen, at = [], min(ends)[1]
        while at >= 0:
            chosen.append(cuts[at])
            at = back[at]
        return chosen[::-1]

    low, high = 0, total + cuts[0].bytes
    while high - low > max(total // 1000, 1):
        middle = (low + high) // 2
        low, high = (low, middle) if kept_within(middle) is not None else (middle, high)
    return kept_within(high) or []


def checkpoint(
    mod: tvm.IRModule,
    fn: str = "main",
    *,
    cuts: str | Sequence[str] = "auto",
    inputs: Sequence[str],
) -> tvm.IRModule:
    """Marks regions of `fn` to be recomputed in the backward part that `grad` makes of it.

    Parameters
    ----------
    mod : `fn` has one dataflow block.
    cuts : "auto", or the names of variables of `fn` that bound regions: each must be a cut vertex.
    inputs : names of the parameters that are data, as opposed to trained or constant ones.

    Returns
    -------
    tvm.IRModule : a new module, for `grad` only: stock TVM cannot compile the marks themselves.

    Raises
    ------
    ValueError : for a name that is no variable of `fn`, or one that does not bound a region because
        other values that depend on the data are used after it.
    """
    check_relax_module("checkpoint", mod)
    func = mod[fn]
    known = cut_vertices(func, inputs)
    if isinstance(cuts, str):
        if cuts != "auto":
            raise ValueError(f"checkpoint: cuts must be 'auto' or a list of names, got {cuts!r}")
        chosen = choose(func, known, inputs)
    else:
        by_name = {str(cut.var.name): cut for cut in known}
        names = {str(b.var.name) for b in _block(func, fn).bindings}
        for name in cuts:
            if name not in names:
                raise ValueError(f"checkpoint: {fn!r} has no variable {name!r}")
            if name not in by_name:
                raise ValueError(
                    f"checkpoint: {name!r} does not bound a region: other values that depend on"
                    " the data are used after it"
                )
        wanted = {*cuts} | {str(c.var.name) for c in known if c.index == -1}
        chosen = [cut for cut in known if str(cut.var.name) in wanted]
    out = mod.clone()
    if chosen:
        out[fn] = _marked(func, chosen)
    return out


def _marked(func: relax.Function, cuts: Sequence[Cut]) -> relax.Function:
    """`func` with each cut's tensor ending one region and starting the next."""
    writer, final = Writer(dataflow_block(func)), cuts[-1].index
    value: dict[relax.Var, relax.Var] = {}
    at = {cut.index: cut.var for cut in cuts}

    def mark(var: relax.Var, index: int) -> None:
        ended = var if index == -1 else writer.emit("ended", relax.op.grad.end_checkpoint(var))
        # The start is what has the tensor itself kept.  What follows the last cut is used in the
        # backward part at once: it hangs on the end alone, and so is kept too.
        started = writer.emit("started", relax.op.grad.start_checkpoint(ended))
        value[var] = ended if index == final else started

    if -1 in at:
        mark(at[-1], -1)
    for index, binding in enumerate(bindings_of(func)):
        writer.keep(binding, value)
        if index in at:
            mark(binding.var, index)
    return with_bindings(func, writer.bindings)
