"""Calls of training batch normalization in a Relax module become calls of generated functions.

`relax.nn.batch_norm_train` and its backward become `call_dps_packed` of a symbol, and the C++ that
exports the symbols is a module of the module's attributes, where TVM's own code generators put
theirs.  Where a backward call is told by y what an activation let through, and the forward call
that made y is here, bits go from one to the other instead.  A sum of two gradients, which is what
comes back to where a residual branches off, is added by the backward call itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import get_global_func, relax

from relay_wgrad import keys
from relay_wgrad.ir import op_name
from relay_wgrad.ops import batch_norm_train, batch_norm_train_backward
from relay_wgrad.ops.batch_norm import BACKWARD, FORWARD, dtype_of
from relay_wgrad.relation import as_size
from relay_wgrad.transform.raising.walk import variables_of, with_type
from relay_wgrad.transform.substitute import substitute

from .call import NormCall, check
from .codegen import NORMS

_EXTERNAL = "external_mods"
_VECTOR = 16  # bytes of a row for which a mask has a byte
Expr = Any


@dataclass(frozen=True)
class NormEntry:
    """A normalization of a module: its function and variable, and the function that computes it.

    `symbol` is "" where none does, for `reason`; then it is compiled as the operators that it is
    made of.
    """

    function: str
    node: str
    op: str
    symbol: str = ""
    reason: str = ""


def lower_norms(
    mod: tvm.IRModule, arch: int, *, bits: bool = True
) -> tuple[tvm.IRModule, tuple[NormEntry, ...]]:
    """The module with all normalizations that `check` takes as calls of generated functions.

    Parameters
    ----------
    mod : any module; functions of it that are a code generator's, or fused, stay.
    arch : the oldest GPU that runs it, as nvcc numbers it (90 of sm_90).
    bits : whether what passes an activation after a residual goes backward as bits.

    Returns
    -------
    (tvm.IRModule, tuple) : a new module, and an entry for each normalization in program order.
    """
    out, symbols, entries = mod.clone(), _Symbols(), []
    for var, func in sorted(mod.functions_items(), key=lambda item: str(item[0].name_hint)):
        if isinstance(func, relax.Function) and not _is_anothers(func):
            work = _Function(str(var.name_hint), func, symbols, bits)
            new = work.lowered()
            entries += work.entries
            if new is not func:
                out.update_func(var, new)
    if symbols.calls:
        source = NORMS.generate(list(symbols.calls.values()), arch)
        names = [*(call.symbol for call in symbols.calls.values()), NORMS.plans]
        made = get_global_func("runtime.CSourceModuleCreate")(source, "cc", names, [])
        present = mod.attrs[_EXTERNAL] if mod.attrs and _EXTERNAL in mod.attrs else []
        out = out.with_attr(_EXTERNAL, [*present, made])
    return out, tuple(entries)


def _is_anothers(func: relax.Function) -> bool:
    attrs = func.attrs
    taken = (keys.CODEGEN, keys.COMPOSITE, keys.PRIMITIVE)
    return attrs is not None and any(key in attrs for key in taken)


class _Symbols:
    """Of a module: one function for all calls that differ in sizes alone."""

    def __init__(self) -> None:
        self.calls: dict[NormCall, NormCall] = {}  # without its symbol -> with it

    def of(self, call: NormCall) -> str:
        known = replace(call, symbol="")
        if known not in self.calls:
            self.calls[known] = replace(call, symbol=f"{NORMS.codegen}_{len(self.calls)}")
        return self.calls[known].symbol


class _Function:
    """One function: which of its calls go, and what it is then."""

    def __init__(self, name: str, func: relax.Function, symbols: _Symbols, bits: bool) -> None:
        self.name, self.func, self.symbols, self.bits = name, func, symbols, bits
        self.entries: list[NormEntry] = []
        self.bindings = [b for block in func.body.blocks for b in block.bindings]
        self.value = {b.var: b.value for b in self.bindings}
        self.calls: dict[relax.Var, NormCall] = {}
        self.refused: dict[relax.Var, str] = {}
        self.masked: dict[relax.Var, relax.Var] = {}  # backward call -> the forward call of its y
        self.masks: dict[relax.Var, relax.Var] = {}  # forward call -> its mask, once it is there
        self.sums: dict[relax.Var, relax.Var] = {}  # backward call -> the sum that it does

    def lowered(self) -> relax.Function:
        """The function with calls of symbols; itself, where none goes."""
        found = [b for b in self.bindings if op_name(b.value) in (FORWARD, BACKWARD)]
        for binding in found:
            self._decide(binding.var, binding.value)
        if self.bits:
            self._pair()
        self._find_sums()
        for binding in found:
            var, op = binding.var, op_name(binding.value).rpartition(".")[2]
            symbol = ""
            if var in self.calls:
                symbol = self.symbols.of(self.calls[var])
                self.calls[var] = replace(self.calls[var], symbol=symbol)
            self.entries.append(
                NormEntry(self.name, str(var.name), op, symbol, self.refused.get(var, ""))
            )
        if not self.calls:
            return self.func
        changed: dict[relax.Var, Any] = {}
        blocks = []
        for block in self.func.body.blocks:
            bindings = [new for b in block.bindings for new in self._binding(b, changed)]
            blocks.append(type(block)(bindings))
        f = self.func
        body = with_type(relax.SeqExpr(blocks, f.body.body), f.body.ty)
        return relax.Function(f.params, body, f.ret_ty, f.is_pure, f.attrs, f.span)

    def _decide(self, var: relax.Var, value: relax.Call) -> None:
        call = _read(value)
        decision = check(replace(call, symbol=NORMS.codegen))
        if decision:
            self.calls[var] = call
        else:
            self.refused[var] = decision.reason

    # ---- bits ------------------------------------------------------------------------------------

    def _pair(self) -> None:
        """Backward calls whose y is a forward call's of the same activation, both going."""
        for var, call in self.calls.items():
            forward = self._source(self.value[var].args[6]) if call.stored else None
            if forward is None or not isinstance(forward, relax.Var):
                continue
            made = self.calls.get(forward)
            if made is not None and made.residual and made.activation == call.activation:
                self.masked[var] = forward
        whole = {
            v for b in self.bindings if not isinstance(b.value, relax.TupleGetItem)
            for v in variables_of(b.value)
        } | set(variables_of(self.func.body.body))  # fmt: skip
        for var, forward in list(self.masked.items()):
            # What is used as a tuple has to stay the tuple that it is.
            if forward in whole or not isinstance(forward, relax.DataflowVar):
                del self.masked[var]
        for var in {*self.masked, *self.masked.values()}:
            self.calls[var] = replace(self.calls[var], bits=True)

    def _find_sums(self) -> None:
        """Backward calls whose dy is a sum of two tensors, made for nothing else."""
        users = Counter(v for b in self.bindings for v in variables_of(b.value))
        for var, call in self.calls.items():
            dy = self.value[var].args[0] if call.stored else None
            total = self.value.get(dy) if isinstance(dy, relax.DataflowVar) else None
            if total is None or op_name(total) != "relax.add" or users[dy] != 1:
                continue
            if all(same_type(arg, dy) for arg in total.args):
                self.sums[var] = dy
                self.calls[var] = replace(call, summed=True)

    def _source(self, y: Expr) -> relax.Var | None:
        """The call of whose result `y` is the first field."""
        while isinstance(y, relax.Var) and isinstance(self.value.get(y), relax.Var):
            y = self.value[y]
        item = self.value.get(y) if isinstance(y, relax.Var) else None
        if isinstance(item, relax.TupleGetItem) and int(item.index) == 0:
            return item.tuple_value
        return None

    # ---- writing ---------------------------------------------------------------------------------

    def _binding(self, binding: Any, changed: dict[relax.Var, Any]) -> Sequence[Any]:
        var, value = binding.var, binding.value
        call = self.calls.get(var)
        if var in self.sums.values():
            return []
        if call is None:
            uses = any(v in changed for v in variables_of(value))
            if not uses or not isinstance(binding, relax.VarBinding):
                return [binding]
            return [relax.VarBinding(var, _normal(substitute(value, changed)))]
        args, types = [substitute(a, changed) for a in value.args], list(value.ty.fields)
        if var in self.masked:
            args[6] = self.masks[self.masked[var]]
        if var in self.sums:
            args[:1] = [substitute(a, changed) for a in self.value[self.sums[var]].args]
        masked = call.forward and call.bits
        types += [_mask_type(args[0].ty)] if masked else []
        made = _normal(relax.call_dps_packed(call.symbol, args, types))
        if not masked:
            return [relax.VarBinding(var, made)]
        new = relax.DataflowVar(var.name, made.ty)
        mask = relax.DataflowVar(f"{var.name}_mask", types[-1])
        changed[var], self.masks[var] = new, mask
        item = _normal(relax.TupleGetItem(new, len(types) - 1))
        return [relax.VarBinding(new, made), relax.VarBinding(mask, item)]


def same_type(a: Expr, b: Expr) -> bool:
    """Whether two tensors are of one shape and dtype, as far as it is known."""
    if not all(isinstance(x.ty, relax.TensorType) and x.ty.shape is not None for x in (a, b)):
        return False
    shapes = [[as_size(n) for n in x.ty.shape.values] for x in (a, b)]
    return dtype_of(a) == dtype_of(b) and shapes[0] == shapes[1]


def _normal(value: Expr) -> Expr:
    return relax.BlockBuilder().normalize(value)


def _read(value: relax.Call) -> NormCall:
    """What a call computes, but for its symbol."""
    forward = op_name(value) == FORWARD
    home = batch_norm_train if forward else batch_norm_train_backward
    a, given = home.read(value), home.named(value)
    x = given["x"]
    last = x.ty.ndim > 0 and a.axis == x.ty.ndim - 1
    return NormCall(
        symbol="",
        direction="forward" if forward else "backward",
        dtype=dtype_of(x),
        activation=a.activation,
        residual="residual" in given or "y" in given,
        running="running_mean" in given,
        layout="NHWC" if last else f"channels on axis {a.axis} of {x.ty.ndim}",
        epsilon=a.epsilon,
        momentum=a.momentum,
        unbiased=a.unbiased,
    )


def _mask_type(x: relax.TensorType) -> relax.TensorType:
    """A byte for each 16 bytes of a row."""
    *rows, channels = x.shape.values
    each = _VECTOR // tvm.runtime.DataType(str(x.dtype)).itemsize
    return relax.TensorType([*rows, (channels + each - 1) // each], "uint8")
