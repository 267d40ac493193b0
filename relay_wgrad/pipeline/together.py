"""Two calls of kernels as one call, of a kernel that has both results.

Which calls, and which kernels are good, is said by who derives of `Together`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.s_tir import SBlock
from tvm_ffi import structural_walk

from ..graph.rebuild import Writer, function_of, rebuilt, unused_name, with_type
from ..graph.walk import Block, functions_in
from ..ir import is_a, op_name
from ..keys import PRIMITIVE, SYMBOL
from .workspaces import places_of_results


class Together:
    """A module's calls of kernels, of which some two become one where the first of them stands.

    suffix : of the name of a kernel for both.
    """

    suffix = "_and_another"

    def __init__(self, mod: tvm.IRModule) -> None:
        self.mod = mod
        self.plain = set(places_of_results(mod))
        self.names = {str(var.name_hint) for var in mod.get_global_vars()}
        self.known: dict[Any, Any] = {}  # (both kernels, their operands' places) -> one for both

    def partners(
        self, call: relax.Call, at: int, calls: Mapping[int, relax.Call], place: dict[Any, int]
    ) -> Iterable[int]:
        """Places of calls before a call, at `at`, that it may become one with, the best first.

        calls : those before it, by their places.  place : of each of a block's variables.
        """
        raise NotImplementedError

    def may_be(self, first: tirx.PrimFunc, second: tirx.PrimFunc) -> bool:
        """Whether two kernels may be one."""
        raise NotImplementedError

    def kernel(self, both: tirx.PrimFunc) -> tirx.PrimFunc | None:
        """What a kernel that has the blocks of two is to be; None where they stay two."""
        raise NotImplementedError

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

    def one_result(self, value: Any) -> Any:
        """A call of a kernel with one result; None for another value."""
        if op_name(value) != "relax.call_tir":
            return None
        args = value.args[:]
        if len(args) != 2 or args[0] not in self.plain or not is_a(args[1], relax.Tuple):
            return None
        return value if is_a(value.ty, relax.TensorType) else None

    def _block(self, block: Block) -> list[relax.Binding] | None:
        if not isinstance(block, relax.DataflowBlock):
            return None
        bindings = block.bindings[:]
        place = {binding.var: i for i, binding in enumerate(bindings)}
        joined: dict[int, tuple[Any, relax.Call]] = {}  # of a first call: the second, and for both
        taken: set[int] = set()
        calls: dict[int, relax.Call] = {}
        for i, binding in enumerate(bindings):
            call = self.one_result(binding.value)
            if call is None:
                continue
            found = self.partners(call, i, calls, place)
            calls[i] = call
            for at in found:
                if at in taken:
                    continue
                both = self._both(bindings[at], binding, place, at)
                if both is not None:
                    joined[at] = binding.var, both
                    taken |= {at, i}
                    break
        return _written(block, bindings, joined) if joined else None

    def _both(self, first_one: Any, second_one: Any, place: dict[Any, int], at: int) -> Any:
        """The call that computes both, where the first stands; None where there is none."""
        first, second = map(self.one_result, (first_one.value, second_one.value))
        if first is None:
            return None
        given = first.args[1].fields[:]
        others = [arg for arg in second.args[1].fields[:] if not arg.same_as(first_one.var)]
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
        """One kernel for two, and its name; None where there is none."""
        kernels = {call.args[0]: self.mod[call.args[0]] for call in (first, second)}
        if not self.may_be(*(self.mod[call.args[0]] for call in (first, second))):
            return None
        params = [relax.Var(f"operand_{i}", arg.ty) for i, arg in enumerate(args)]
        writer = Writer(relax.DataflowBlock([]))
        fields = relax.Tuple([params[i] for i in order[0]])
        made = writer.emit("made", _call(first, fields))
        fields = relax.Tuple([made if i < 0 else params[i] for i in order[1]])
        total = writer.emit("total", _call(second, fields))
        result = writer.output("both", relax.Tuple([made, total]))
        block = relax.DataflowBlock(writer.bindings)
        name = unused_name(f"{first.args[0].name_hint}{self.suffix}", self.names)
        var = tvm.ir.GlobalVar(name)
        func = function_of(params, block, result, {PRIMITIVE: 1})
        caller = _caller(with_type(var, func.ty), params, result.ty)
        small = tvm.IRModule({**kernels, var: func, tvm.ir.GlobalVar("caller"): caller})
        fused = relax.transform.FuseTIR()(small)
        found = next(v for v in fused.get_global_vars() if isinstance(fused[v], tirx.PrimFunc))
        kernel = self.kernel(fused[found])
        if kernel is None:
            return None
        self.names.add(name)
        return with_type(tvm.ir.GlobalVar(name), kernel.ty), kernel


def has_sum(func: tirx.PrimFunc) -> bool:
    """Whether some block of a kernel adds up."""
    found: list[Any] = []
    structural_walk(func.body, (SBlock, lambda block: found.append(block.init is not None)))
    return any(found)


def _call(call: relax.Call, fields: relax.Tuple) -> relax.Call:
    return relax.Call(call.op, [call.args[0], fields], call.attrs, call.ty_args)


def _caller(var: Any, params: list[Any], ty: Any) -> relax.Function:
    own = [relax.Var(param.name, param.ty) for param in params]
    writer = Writer(relax.DataflowBlock([]))
    result = writer.output("results", with_type(relax.Call(var, own), ty))
    block = relax.DataflowBlock(writer.bindings)
    return function_of(own, block, result, {SYMBOL: "caller"})


def _written(
    block: relax.DataflowBlock, bindings: list[Any], joined: dict[int, tuple[Any, relax.Call]]
) -> list[relax.Binding]:
    writer = Writer(block)
    gone = {var for var, _ in joined.values()}
    for i, binding in enumerate(bindings):
        if i in joined:
            second, call = joined[i]
            both = writer.emit(f"{binding.var.name}_and_sum", call, binding.span)
            writer.bind(binding.var, relax.TupleGetItem(both, 0))
            writer.bind(second, relax.TupleGetItem(both, 1))
        elif binding.var not in gone:
            writer.bindings.append(binding)
    return writer.bindings
