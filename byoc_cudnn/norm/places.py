"""Normalizations that write their results into the tensor that these are joined in.

Each is given the joined tensor so far and gives it with channels of its own added; what is left for
the join are the operands of others.  The memory plan lays all of them at one place, since each is
the last to read the one before (`relay_wgrad.pipeline.overwrites`), and then nothing is copied.
Where it does not, what is there so far is: values never depend on the plan.

Who reads a result besides the join reads it in there, if its kernel can: a max pooling, another
join or sum.  For others the result is written a second time, by itself, which is half of what the
join took for it.  One that is needed after the joined tensor's end, and which readers take from
there for the sake of memory (`relay_wgrad.pipeline.joined`), stays an operand of the join.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax

from relay_wgrad.graph.def_use import Graph
from relay_wgrad.graph.rebuild import Writer, normal, rebuilt
from relay_wgrad.graph.walk import Block, blocks_of, variables_of
from relay_wgrad.ir import op_name
from relay_wgrad.layout_rules.in_layout import sizes_of
from relay_wgrad.pipeline.joined import taken_parts
from relay_wgrad.problem import DTYPE_BYTES

from ..codegen.lowering import Symbols
from ..joins.call import JoinsCall
from ..joins.lower import planned as joins
from ..pool.lower import BACKWARD, CAST, FORWARD, windows_of
from .call import NormCall, check
from .codegen import NORMS
from .gates import VECTOR

_CONCAT, _ADD, _SPLIT = "relax.concat", "relax.add", "relax.split"
_FORMS = (_CONCAT, _ADD, _SPLIT, CAST)  # what joins look through
LEAST = 64
"""Bytes of a row: memory gives and takes 32 or 64 at once."""


@dataclass
class _Placed:
    """A normalization's call, and where its result goes: `first` of so many channels.

    results : the variables of its y.  own : whether y is written by itself too.  step : its place
    among those that write into the joined tensor.
    """

    call: relax.Var
    record: NormCall
    results: list[relax.Var]
    join: relax.Var
    first: int
    width: int
    own: bool
    step: int = 0


def take_places(func: relax.Function, symbols: Symbols) -> tuple[relax.Function, dict[str, str]]:
    """The function whose normalizations write into joined tensors, and the symbols of their calls
    by the names of the calls' variables.

    func : as `lower_norms` has it, its joins, cuts and poolings still operators.
    symbols : of its calls; the new ones are added.
    """
    view = Graph(func)
    found = _found(view, {call.symbol: call for call in symbols.calls.values()})
    if not found:
        return func, {}
    writer = _Writing(view, found, symbols)
    return rebuilt(func, writer.block), writer.names


def _found(view: Graph, calls: Mapping[str, NormCall]) -> dict[relax.Var, list[_Placed]]:
    """Of each join the normalizations that write into it, in program order."""
    if not any(op_name(binding.value) == _CONCAT for binding in view.bindings):
        return {}
    sites = joins(view).sites  # what a kernel of ours joins or adds
    blocks = [b for b in blocks_of(view.func) if isinstance(b, relax.DataflowBlock)]
    kept = {view.resolved(part.operand) for block in blocks for part in taken_parts(block)}
    found: dict[relax.Var, list[_Placed]] = {}
    taken: set[relax.Var] = set()
    for binding in view.bindings:
        var = binding.var
        if op_name(binding.value) != _CONCAT or var not in sites or not _is_plain(view, var):
            continue
        fields = view.bound_to(binding.value.args[0]).fields
        here, first = [], 0
        for field in fields:
            width = int(field.ty.shape.values[-1])
            one = _one(view, calls, sites, kept, var, field, (first, width))
            if one is not None and one.call not in taken and _times(fields, one) == 1:
                taken.add(one.call)
                here.append(one)
            first += width
        here.sort(key=lambda one: view.index[one.call])
        for step, one in enumerate(here):
            one.step = step
        if sum(one.width for one in here) > _there(sites[var].call):
            found[var] = here
    return found


def _there(call: JoinsCall) -> int:
    """How many channels a join need not copy as it is, where it lies over one of its operands."""
    terms = [(piece.width, term.operand) for piece in call.pieces for term in piece.terms]
    over = {operand for _, operand in call.overwrites}
    return max((sum(n for n, o in terms if o == operand) for operand in over), default=0)


def _times(fields: Any, one: _Placed) -> int:
    return sum(any(field.same_as(name) for name in one.results) for field in fields)


def _is_plain(view: Graph, join: relax.Var) -> bool:
    """Whether a joined tensor is one of a plan's, which its users read as it is.

    One whose size only the run knows, or that a function gives, has no place of the plan's, and
    users that are joins themselves read what it is made of.
    """
    sizes = sizes_of(join.ty) or [None]
    users = [op_name(binding.value) for binding in view.users_of(join)]
    static = all(isinstance(size, int) for size in sizes)
    own = isinstance(join, relax.DataflowVar) and join not in view.results and len(users) > 0
    return static and own and not set(users) & set(_FORMS)


def _one(
    view: Graph, calls: Mapping[str, NormCall], sites: Mapping[relax.Var, Any], kept: set[Any],
    join: relax.Var, field: Any, place: tuple[int, int],
) -> _Placed | None:  # fmt: skip
    """The normalization that makes an operand of a join, if it may write it there.

    kept : operands that later readers take from what is joined.
    """
    result = view.resolved(field)
    item = view.value.get(result) if isinstance(result, relax.Var) else None
    if not isinstance(item, relax.TupleGetItem) or int(item.index) != 0:
        return None
    call = view.resolved(item.tuple_value)
    record = record_of(view, call, calls)
    if record is None or view.is_whole(call) or view.block[call] != view.block[join]:
        return None
    total, bytes_of = int(join.ty.shape.values[-1]), DTYPE_BYTES[record.dtype]
    packs = all(n * bytes_of % VECTOR == 0 for n in (*place, total))
    wanted = replace(record, symbol=NORMS.codegen, place=(place[0], total))
    if not packs or place[1] * bytes_of < LEAST or not check(wanted):
        return None
    results = _names(view, [var for index, var in view.fields_of(call) if index == 0])
    if not all(isinstance(name, relax.DataflowVar) for name in results):
        return None  # the function gives it, or another block reads it
    readers = [b for b in view.users_of(*results) if not isinstance(b.value, relax.Var)]
    readers = [b for b in readers if not b.var.same_as(join)]
    end, own = max(view.index[b.var] for b in view.users_of(join)), False
    late = False
    pools = {windows_of(b.value) for b in readers if op_name(b.value) == FORWARD} - {None}
    for binding in readers:
        if _is_dead(view, binding) or _windows_told(view, binding) in pools:
            continue
        after = view.index[binding.var] > end
        # Joins that come later would read what the joined tensor is made of.
        before = view.index[binding.var] < view.index[join]
        own = own or after or not (before and _reads_channels(binding, sites, pools))
        late = late or after
    if late and set(results) & kept:
        return None
    return _Placed(call, record, results, join, *place, own)


def record_of(view: Graph, call: Any, calls: Mapping[str, NormCall]) -> NormCall | None:
    """The record of a call of a generated function; None for something else."""
    value: Any = view.value.get(call) if isinstance(call, relax.Var) else None
    if op_name(value) != "relax.call_dps_packed":
        return None
    return calls.get(str(value.args[0].global_symbol))


def _names(view: Graph, variables: list[relax.Var]) -> list[relax.Var]:
    names = list(variables)
    for name in names:
        names += [b.var for b in view.users_of(name) if isinstance(b.value, relax.Var)]
    return names


def _is_dead(view: Graph, binding: Any) -> bool:
    var = binding.var
    return isinstance(var, relax.DataflowVar) and not view.uses.get(var)


def _windows_told(view: Graph, binding: Any) -> Any:
    """The windows of the pooling's gradient that alone reads it, which an index of the forward part
    will tell; None if it is something else."""
    while op_name(binding.value) == CAST:
        sole = view.sole_user(binding.var)
        if sole is None:
            return None
        binding = sole
    return windows_of(binding.value) if op_name(binding.value) == BACKWARD else None


def _reads_channels(binding: Any, sites: Mapping[relax.Var, Any], pools: set[Any]) -> bool:
    """Whether a reader takes channels of a wider tensor."""
    name = op_name(binding.value)
    if name == FORWARD:
        return windows_of(binding.value) in pools
    return name in (_CONCAT, _ADD) and binding.var in sites


class _Writing:
    """Writes the blocks of a function; `names` are the calls' new symbols."""

    def __init__(
        self, view: Graph, found: dict[relax.Var, list[_Placed]], symbols: Symbols
    ) -> None:
        self.view, self.found, self.symbols = view, found, symbols
        self.names: dict[str, str] = {}
        self.of_call = {one.call: one for here in found.values() for one in here}
        self.of_result = {name: one for one in self.of_call.values() for name in one.results}
        self.so_far: dict[relax.Var, relax.Var] = {}  # of a join what its tensor is now
        self.values: dict[relax.Var, Any] = {}
        self.pooled: dict[tuple[relax.Var, Any], relax.Var] = {}  # what a pooling of windows reads

    def block(self, block: Block) -> list[relax.Binding] | None:
        if not isinstance(block, relax.DataflowBlock):
            return None
        writer = Writer(block)
        for binding in block.bindings:
            var = binding.var
            if var in self.of_call:
                self._call(writer, binding, self.of_call[var])
            elif var in self.found:
                self._join(writer, binding)
            elif var in self.of_result:
                continue  # a name of what others get from here now
            else:
                self._reader(writer, binding)
        return writer.bindings

    def _call(self, writer: Writer, binding: Any, one: _Placed) -> None:
        value, join = binding.value, one.join
        before = self.so_far.get(join)
        place = (one.first, int(join.ty.shape.values[-1]))
        record = replace(one.record, place=place, onto=before is not None, own=one.own)
        symbol = self.symbols.of(record)
        self.names[str(binding.var.name)] = symbol
        args = [self.values.get(arg, arg) for arg in value.args[1].fields]
        types = list(value.ty.fields)
        results = [join.ty, *types[1:], *types[: int(one.own)]]
        given = [*args, before] if before is not None else args
        made = writer.emit(
            str(binding.var.name), normal(relax.call_dps_packed(symbol, given, results))
        )
        self.values[binding.var] = made
        self.so_far[join] = writer.emit(f"{join.name}_{one.step}", relax.TupleGetItem(made, 0))
        if one.own:
            name = str(one.results[0].name)
            whole = writer.emit(name, relax.TupleGetItem(made, len(results) - 1))
            self.values |= dict.fromkeys(one.results, whole)

    def _reader(self, writer: Writer, binding: Any) -> None:
        """Any other binding: what reads a result in its joined tensor does so in what is newest."""
        values = self.values
        for var in dict.fromkeys(variables_of(binding.value)):
            one = self.of_result.get(var)
            if one is not None and not one.own:
                values = values | {var: self._read(writer, binding, one)}
        writer.keep(binding, values)

    def _read(self, writer: Writer, binding: Any, one: _Placed) -> relax.Var:
        """For a pooling's gradient what its forward part has read: so it is known which that is."""
        if op_name(binding.value) == FORWARD:
            found = self._channels(writer, one)
            self.pooled[one.call, windows_of(binding.value)] = found
            return found
        told = _windows_told(self.view, binding)
        found = self.pooled.get((one.call, told))
        return self._channels(writer, one) if found is None else found

    def _channels(self, writer: Writer, one: _Placed) -> relax.Var:
        """A result's channels of what is joined so far."""
        return _parts(writer, self.so_far[one.join], [one])[one.first]

    def _join(self, writer: Writer, binding: Any) -> None:
        join, here = binding.var, self.found[binding.var]
        joined, fields = self.so_far[join], self.view.bound_to(binding.value.args[0]).fields
        self.so_far[join] = join
        if len(here) == len(fields):
            writer.bind(join, joined)
            return
        parts, first, new = _parts(writer, joined, here), 0, []
        for field in fields:
            new.append(parts.get(first, self.values.get(field, field)))
            first += int(field.ty.shape.values[-1])
        whole = relax.op.concat(new, int(binding.value.attrs.axis))
        writer.bind(join, normal(whole))


def _parts(writer: Writer, joined: relax.Var, ones: list[_Placed]) -> dict[int, relax.Var]:
    """Channels of a joined tensor, by the first of them."""
    total, axis = int(joined.ty.shape.values[-1]), len(joined.ty.shape.values) - 1
    ends = {one.first for one in ones} | {one.first + one.width for one in ones}
    places = sorted(ends - {0, total})
    cut = writer.emit(f"{joined.name}_cut", normal(relax.op.split(joined, places, axis)))
    begins = [0, *places]
    return {
        one.first: writer.emit(
            str(one.results[0].name), relax.TupleGetItem(cut, begins.index(one.first))
        )
        for one in ones
    }
