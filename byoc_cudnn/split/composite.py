"""Composites: the functions that a partitioned module calls, and the way back.

Their form is that of `relax.transform.FuseOpsByPattern` with `annotate_codegen=True`: an outer
function for the code generator, and in it one local function that holds the ops.  Names are made up
here and never taken from the program, since they become symbols of generated source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from relay_wgrad.graph.rebuild import function_of, substitute, with_type
from relay_wgrad.graph.walk import bindings_of
from relay_wgrad.ir import op_name
from relay_wgrad.keys import CODEGEN, COMPOSITE, OPTIONS, PROBLEM, ROW, SYMBOL
from relay_wgrad.ops.algebra import DGRADS
from relay_wgrad.ops.call_problem import problem_of
from relay_wgrad.problem import ConvProblem
from relay_wgrad.relation import as_size

from ..backends.base import Backend, Row
from ..codegen.regions import Region, options_text
from ..patterns import Chain
from ..table import CODEGENS

_DGRADS = frozenset(DGRADS.values())


@dataclass(frozen=True)
class Taken:
    """A call that goes to a row, with what follows it, under options of the row's backend."""

    chain: Chain
    problem: ConvProblem
    backend: Backend
    row: Row
    options: Any

    @property
    def region(self) -> Region:
        """What `read_region` will find in the call's composite."""
        epilogue = tuple(match.step.name for match in self.chain.steps)
        return Region.of("f", self.problem, epilogue, **asdict(self.options))


class _Sizes:
    """A composite's own symbolic sizes: one variable for each different size of its operands.

    Any size will do, also one that is an expression in the program.  Variables are called after the
    problem's letters: the program's names stay outside.
    """

    def __init__(self, chain: Chain, problem: ConvProblem) -> None:
        self._found: list[tuple[Any, relax.Expr]] = []
        self._names: set[str] = set()
        self.types: list[relax.TensorType] = []
        for name, operand in chain.operands:
            ty = operand.ty
            letters = _letters(name, problem, len(ty.shape.values))
            dims = [
                self._own(size, letter)
                for size, letter in zip(ty.shape.values, letters, strict=True)
            ]
            self.types.append(relax.TensorType(dims, ty.dtype, ty.vdevice))

    def find(self, size: Any) -> Any:
        """The composite's name for a size; None for one that no operand has."""
        if isinstance(as_size(size), int):
            return size
        for known, own in self._found:
            if tvm_ffi.structural_equal(known, size):
                return own
        return None

    def _own(self, size: Any, letter: str) -> Any:
        own = self.find(size)
        if own is None:
            name, count = letter, 0
            while name in self._names:
                count += 1
                name = f"{letter}{count}"
            self._names.add(name)
            own = tvm.tirx.Var(name, "int64")
            self._found.append((size, own))
        return own


def _letters(name: str, problem: ConvProblem, count: int) -> str:
    """Letters for the axes of an operand."""
    if name == "weight":
        return problem.kernel_layout.translate(str.maketrans("OIHW", "kcrs"))
    if name == "grad":
        return problem.grad_layout.translate(str.maketrans("NCHW", "nkpq"))
    return problem.layout("data").lower() if name in ("data", "x") else "b" * count


def unbound_sizes(chain: Chain, problem: ConvProblem) -> list[str]:
    """Symbolic sizes of dgrad's result that no operand has: it can't be computed from them."""
    if not _has_shape(chain.conv):
        return []
    sizes = _Sizes(chain, problem)
    return [str(size) for size in chain.conv.ty.shape.values if sizes.find(size) is None]


def _has_shape(conv: relax.Call) -> bool:
    return str(conv.op.name) in _DGRADS


def build_composite(taken: Taken) -> relax.Function:
    """The inner function of a call whose chain has no `unbound_sizes`.

    Parameters are the operands in `Chain.operands`' order and by its names, also where two of them
    are one tensor of the program.
    """
    chain, problem = taken.chain, taken.problem
    sizes = _Sizes(chain, problem)
    params = [
        relax.Var(name, ty) for (name, _), ty in zip(chain.operands, sizes.types, strict=True)
    ]
    conv = chain.conv
    args: list[relax.Expr] = list(params[:2])
    if _has_shape(conv):
        # The shape may come as a variable; its sizes are known or there would be no problem.
        args.append(relax.ShapeExpr([sizes.find(size) for size in conv.ty.shape.values]))
    found = [step for step in chain.steps if step.step.operand]
    extra = list(zip(found, params[2:], strict=True))
    normalize = relax.BlockBuilder().normalize
    value: dict[relax.Var, relax.Var] = {}
    bindings = []
    whole = chain.all
    for i, binding in enumerate(whole):
        call = binding.value
        inside = args
        if i > 0:
            inside = [value.get(a, a) if isinstance(a, relax.Var) else a for a in call.args]
            for step, param in extra:
                if step.call.same_as(call):
                    inside[step.at] = param
        call = normalize(relax.Call(call.op, inside, call.attrs, call.ty_args, call.span))
        last = i == len(whole) - 1
        own = relax.Var("out", call.ty) if last else relax.DataflowVar(f"lv{i}", call.ty)
        value[binding.var] = own
        bindings.append(relax.VarBinding(own, call))
    func = function_of(params, relax.DataflowBlock(bindings), bindings[-1].var, {})
    return func.with_attrs(
        {
            COMPOSITE: f"{taken.backend.codegen}.{taken.row.name}",
            # Symbolic sizes have other names in here.
            PROBLEM: (problem if problem.is_static else problem_of(conv_in(func))).repro(),
            ROW: taken.row.name,
            OPTIONS: options_text(taken.options),
        }
    )


def build_outer(inner: relax.Function, codegen: str, symbol: str) -> relax.Function:
    """The function that a code generator gets: it calls `inner` and does nothing else."""
    typed = inner if _is_static(inner) else relax.utils.copy_with_new_vars(inner)
    params = [relax.Var(p.name, p.ty) for p in typed.params]
    local = relax.Var("composite", inner.ty)
    call = with_type(relax.Call(local, params), typed.ret_ty)
    out = relax.Var("out", typed.ret_ty)
    block = relax.BindingBlock([relax.VarBinding(local, inner), relax.VarBinding(out, call)])
    return function_of(params, block, out, {CODEGEN: codegen, SYMBOL: symbol})


def _is_static(func: relax.Function) -> bool:
    return not relax.analysis.defined_symbolic_vars(func)


class Composites:
    """The composites of one module, each once however often it is called."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = set(taken)
        self._found: dict[int, list[tuple[relax.Function, tvm.ir.GlobalVar]]] = {}
        self.functions: dict[tvm.ir.GlobalVar, relax.Function] = {}

    def call(self, taken: Taken) -> relax.Call:
        """The call of a composite in the place of a chain's last op."""
        inner = build_composite(taken)
        equals = self._found.setdefault(tvm_ffi.structural_hash(inner), [])
        known = (var for other, var in equals if tvm_ffi.structural_equal(inner, other))
        if (var := next(known, None)) is None:
            var = self._add(inner, taken)
            equals.append((inner, var))
        call = relax.Call(var, [operand for _, operand in taken.chain.operands])
        return with_type(call, taken.chain.root.value.ty)

    def _add(self, inner: relax.Function, taken: Taken) -> tvm.ir.GlobalVar:
        codegen = taken.backend.codegen
        name, count = f"{codegen}_{taken.row.name}", 0
        symbol = name
        while symbol in self._taken:
            count += 1
            symbol = f"{name}_{count}"
        self._taken.add(symbol)
        outer = build_outer(inner, codegen, symbol)
        var = with_type(tvm.ir.GlobalVar(symbol), outer.ty)
        self.functions[var] = outer
        return var


def composite_in(func: Any) -> relax.Function | None:
    """The inner function of an outer one that this package made; None for anything else."""
    if not isinstance(func, relax.Function) or func.attrs is None:
        return None
    if str(func.attrs.get(CODEGEN, "")) not in CODEGENS:
        return None
    inner = bindings_of(func)[0].value
    return inner if isinstance(inner, relax.Function) and PROBLEM in inner.attrs else None


def called_composite(
    binding: relax.Binding, made: Mapping[tvm.ir.GlobalVar, relax.Function | None]
) -> relax.Function | None:
    """The composite that a binding calls."""
    value = binding.value
    if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
        return made.get(value.op)
    return None


def conv_in(inner: relax.Function) -> relax.Call:
    """The convolution of a composite."""
    return bindings_of(inner)[0].value


def inline(
    inner: relax.Function, root: relax.VarBinding, new_var: Callable[[str, Any], relax.Var]
) -> list[relax.VarBinding]:
    """The ops of a composite in the place of `root`, which calls it."""
    args = list(root.value.args)
    sizes = [
        pair
        for param, arg in zip(inner.params, args, strict=True)
        for pair in zip(param.ty.shape.values, arg.ty.shape.values, strict=True)
    ]
    value: dict[relax.Var, Any] = dict(zip(inner.params, args, strict=True))
    normalize = relax.BlockBuilder().normalize
    bindings = []
    body = bindings_of(inner)
    for i, binding in enumerate(body):
        call = substitute(binding.value, value)
        if _has_shape(call):
            # Types are inferred anew; this argument is the only other place of a size.
            shape = [_caller_size(size, sizes) for size in call.args[2].values]
            args = [*call.args[:2], relax.ShapeExpr(shape)]
            call = relax.Call(call.op, args, call.attrs, call.ty_args, call.span)
        call = normalize(call)
        last = i == len(body) - 1
        var = root.var if last else new_var(f"{root.var.name}_{short_name(binding.value)}", call.ty)
        value[binding.var] = var
        bindings.append(relax.VarBinding(var, call))
    return bindings


def _caller_size(size: Any, sizes: list[tuple[Any, Any]]) -> Any:
    """What a caller gives for a composite's size."""
    if isinstance(as_size(size), int):
        return size
    return next(given for own, given in sizes if size.same_as(own))


def short_name(call: relax.Call) -> str:
    """`conv2d` for `relax.nn.conv2d`."""
    return op_name(call).rpartition(".")[2] or "call"
