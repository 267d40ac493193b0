"""A function with other bindings: its types, attributes, spans and branches are kept."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, s_tir, tirx

from .walk import Block, bindings_of, branches_of, functions_in

Rewrite = Callable[[Block], "Sequence[relax.Binding] | None"]


def with_type(expr: relax.Expr, ty: Any) -> Any:
    """The expression with a type that is known."""
    relax.expr._update_type(expr, ty)
    return expr


def normal(value: relax.Expr) -> Any:
    """The expression with the type that it has by its operator."""
    return relax.BlockBuilder().normalize(value)


def with_span(call: relax.Call, span: Any) -> relax.Call:
    """A call that stands where another stood in the model's source."""
    return relax.Call(call.op, call.args, call.attrs, call.ty_args, span)


def function_of(
    params: Sequence[relax.Var], block: Block, result: relax.Expr, attrs: Mapping[str, Any]
) -> relax.Function:
    """A new function of one block."""
    body = with_type(relax.SeqExpr([block], result), result.ty)
    return relax.Function(list(params), body, result.ty, True).with_attrs(dict(attrs))


def rebuilt(func: relax.Function, rewrite: Rewrite) -> relax.Function:
    """The function with each block's bindings replaced by what `rewrite` gives for the block.

    None keeps a block, and a function all of whose blocks are kept is itself.  The branches of an
    `If` that is among a block's new bindings are rewritten too; local functions are values and stay
    as they are.  Variables that other blocks use must be bound as before, with their types.
    """
    body = _rebuilt(func.body, rewrite)
    same = body.same_as(func.body)
    return func if same else _function(func, func.params, body, func.ret_ty)


def with_blocks(
    func: relax.Function,
    blocks: Sequence[Block],
    *,
    params: Sequence[relax.Var] | None = None,
    result: relax.Expr | None = None,
) -> relax.Function:
    """The function with other blocks; with other parameters, and another result, where given."""
    given = func.params if params is None else params
    if result is None:
        body = relax.SeqExpr(blocks, func.body.body, func.body.span)
        return _function(func, given, with_type(body, func.body.ty), func.ret_ty)
    result = normal(result)
    body = with_type(relax.SeqExpr(blocks, result, func.body.span), result.ty)
    return _function(func, given, body, None)  # the constructor finds the type


def with_bindings(
    func: relax.Function,
    bindings: Sequence[relax.Binding],
    *,
    params: Sequence[relax.Var] | None = None,
    result: relax.Expr | None = None,
) -> relax.Function:
    """The function, which has one block, with other bindings in it; else as `with_blocks`."""
    (block,) = func.body.blocks
    return with_blocks(func, [like(block, bindings)], params=params, result=result)


def without_unused(func: relax.Function) -> relax.Function:
    """The function without what nothing needs.  Upstream's analysis says what that is, and drops
    spans where it writes the function itself.  Itself where all is needed."""
    left = relax.analysis.remove_all_unused(func)
    kept = {hash(binding.var) for binding in bindings_of(left)}  # addresses

    def used(block: Block) -> list[relax.Binding] | None:
        bindings = block.bindings[:]
        found = [b for b in bindings if hash(b.var) in kept]
        return None if len(found) == len(bindings) else found

    return rebuilt(func, used)


def with_first(func: relax.Function, bindings: Sequence[relax.Binding]) -> relax.Function:
    """The function with a block of these bindings before all others."""
    return with_blocks(func, [relax.BindingBlock(bindings), *func.body.blocks])


def with_params(func: relax.Function, params: Sequence[relax.Var]) -> relax.Function:
    """The function with other parameters; its body stays as it is."""
    return _function(func, params, func.body, func.ret_ty)


def with_attrs_of(func: relax.Function, source: relax.Function) -> relax.Function:
    """The function with all attributes of another that it was made of."""
    return func.with_attrs(dict(source.attrs.items())) if source.attrs else func


def like(block: Block, bindings: Sequence[relax.Binding]) -> Block:
    """A block of a block's kind with these bindings."""
    kind = relax.DataflowBlock if isinstance(block, relax.DataflowBlock) else relax.BindingBlock
    return kind(bindings, block.span)


def substitute(expr: Any, value: Mapping[relax.Var, Any]) -> Any:
    """`expr` with each variable replaced by its `value`, where it has one.

    What has none of them is itself; types of the rest come anew, those of branches and of local
    functions are kept.
    """
    if isinstance(expr, relax.Var):
        return value.get(expr, expr)
    if isinstance(expr, relax.Tuple):
        fields = [substitute(field, value) for field in expr.fields]
        return expr if _same(fields, expr.fields) else relax.Tuple(fields, expr.span)
    if isinstance(expr, relax.TupleGetItem):
        whole = substitute(expr.tuple_value, value)
        same = whole.same_as(expr.tuple_value)
        return expr if same else relax.TupleGetItem(whole, expr.index, expr.span)
    if isinstance(expr, relax.Call):
        op, args = substitute(expr.op, value), [substitute(arg, value) for arg in expr.args]
        same = op.same_as(expr.op) and _same(args, expr.args)
        return expr if same else relax.Call(op, args, expr.attrs, expr.ty_args, expr.span)
    if isinstance(expr, relax.If):
        parts = [substitute(part, value) for part in (expr.cond, *branches_of(expr))]
        return with_type(relax.If(*parts, expr.span), expr.ty)
    if isinstance(expr, relax.SeqExpr):
        blocks = [
            like(block, [bound(b, substitute(b.value, value)) for b in block.bindings])
            for block in expr.blocks
        ]
        made = relax.SeqExpr(blocks, substitute(expr.body, value), expr.span)
        return with_type(made, expr.ty)
    if isinstance(expr, relax.Function):
        return _function(expr, expr.params, substitute(expr.body, value), expr.ret_ty)
    return expr


def bound(binding: relax.Binding, value: relax.Expr) -> relax.Binding:
    """A binding's variable bound to another value, in the same way."""
    if value.same_as(binding.value):
        return binding
    if isinstance(binding, relax.MatchCast):
        return relax.MatchCast(binding.var, value, binding.ty, binding.span)
    return relax.VarBinding(binding.var, value, binding.span)


class Names:
    """Names of variables that a function does not have yet."""

    def __init__(self, func: relax.Function) -> None:
        variables = [*func.params, *(binding.var for binding in bindings_of(func))]
        self._taken = {str(var.name) for var in variables}

    def unique(self, name: str) -> str:
        """The name, or one that begins with it, which nothing has."""
        found, count = name, 0
        while found in self._taken:
            count += 1
            found = f"{name}_{count}"
        self._taken.add(found)
        return found


class Writer:
    """New bindings in the place of a block's, each value with its type; a call's operands are
    variables, as in a program in normal form.

    normalize : gives a value its type; a module's builder, where values are calls of functions
        that it adds.
    """

    def __init__(
        self, block: Block, bindings: Iterable[relax.Binding] = (),
        normalize: Callable[[relax.Expr], Any] | None = None,
    ) -> None:  # fmt: skip
        self.bindings: list[relax.Binding] = list(bindings)
        self._block, self._made = block, dict[Any, relax.Var]()
        self._normalize = normalize or relax.BlockBuilder().normalize

    def emit(self, name: str, value: relax.Expr, span: Any = None) -> relax.Var:
        """A new variable for a value."""
        return self._emit(variable_of(self._block), name, value, span)

    def output(self, name: str, value: relax.Expr, span: Any = None) -> relax.Var:
        """A new variable that a function may return."""
        return self._emit(relax.Var, name, value, span)

    def keep(self, binding: relax.Binding, values: Mapping[relax.Var, Any]) -> None:
        """A binding as it was, but for variables that have another value now."""
        value = substitute(binding.value, values)
        same = value.same_as(binding.value)
        self.bindings.append(binding if same else bound(binding, self._normalize(value)))

    def emit_once(
        self, key: Any, name: Callable[[], str], value: Callable[[], relax.Expr]
    ) -> relax.Var:
        """The variable of what is emitted the first time that its key is asked for."""
        if key not in self._made:
            self._made[key] = self.emit(name(), value())
        return self._made[key]

    def bind(self, var: relax.Var, value: relax.Expr, span: Any = None) -> None:
        """Another value for a variable of the function."""
        self.bindings.append(relax.VarBinding(var, self._normalize(value), span))

    def _emit(self, kind: type[relax.Var], name: str, value: relax.Expr, span: Any) -> relax.Var:
        value = self._normalize(value)
        var = kind(name, value.ty, span)
        self.bindings.append(relax.VarBinding(var, value, span))
        return var


def variable_of(block: Block) -> type[relax.Var]:
    """The class of what only a block has: dataflow variables, if it is a dataflow block."""
    return relax.DataflowVar if isinstance(block, relax.DataflowBlock) else relax.Var


def _rebuilt(body: relax.Expr, rewrite: Rewrite) -> relax.Expr:
    if not isinstance(body, relax.SeqExpr):
        return body
    blocks = [_rebuilt_block(block, rewrite) for block in body.blocks]
    if _same(blocks, body.blocks):
        return body
    return with_type(relax.SeqExpr(blocks, body.body, body.span), body.ty)


def _rebuilt_block(block: Block, rewrite: Rewrite) -> Block:
    given = rewrite(block)
    if given is None and isinstance(block, relax.DataflowBlock):  # no `If` can stand in one
        return block
    old = block.bindings[:] if given is None else given
    if isinstance(block, relax.DataflowBlock):
        return like(block, old)
    new = [_with_branches(binding, rewrite) for binding in old]
    return block if given is None and _same(new, old) else like(block, new)


def _with_branches(binding: relax.Binding, rewrite: Rewrite) -> relax.Binding:
    value = binding.value
    branches = branches_of(value)
    new = [_rebuilt(branch, rewrite) for branch in branches]
    if _same(new, branches):
        return binding
    return bound(binding, with_type(relax.If(value.cond, *new, value.span), value.ty))


def _function(
    func: relax.Function, params: Sequence[relax.Var], body: relax.Expr, ret_ty: Any
) -> relax.Function:
    return relax.Function(list(params), body, ret_ty, func.is_pure, func.attrs, func.span)


def _same(new: Sequence[Any], old: Sequence[Any]) -> bool:
    return len(new) == len(old) and all(map(_are_one, new, old))


def _are_one(a: Any, b: Any) -> bool:
    return a is b or bool(a.same_as(b))


# ---- kernels -------------------------------------------------------------------------------------

_OF_A_BLOCK = (
    "iter_vars", "reads", "writes", "name_hint", "body", "init", "alloc_buffers", "match_buffers",
    "annotations", "span",
)  # fmt: skip


def with_fields(block: s_tir.SBlock, **changed: Any) -> s_tir.SBlock:
    """A kernel's block with some of its fields changed."""
    return s_tir.SBlock(*(changed.get(name, getattr(block, name)) for name in _OF_A_BLOCK))


# ---- modules -------------------------------------------------------------------------------------


def unused_name(name: str, taken: Container[str]) -> str:
    """The name, or one that begins with it, which no function has."""
    return name if name not in taken else unused_name(f"{name}_", taken)


def with_functions(
    mod: tvm.IRModule, change: Callable[[tvm.ir.GlobalVar, relax.Function], relax.Function]
) -> tvm.IRModule:
    """The module with what `change` makes of each Relax function; itself where all are the same."""
    return _with_changed(mod, [(var, func, change(var, func)) for var, func in functions_in(mod)])


def with_changed_kernels(
    mod: tvm.IRModule, change: Callable[[tirx.PrimFunc], tirx.PrimFunc]
) -> tvm.IRModule:
    """The module with what `change` makes of each kernel; itself where all are the same."""
    kernels = [(var, f) for var, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    return _with_changed(mod, [(var, func, change(func)) for var, func in kernels])


def kernel_pass(name: str, change: Callable[[tirx.PrimFunc], tirx.PrimFunc]) -> tvm.transform.Pass:
    """A pass by `with_changed_kernels`."""

    @tvm.transform.module_pass(opt_level=0, name=f"relay_wgrad.{name}")
    def run(mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        return with_changed_kernels(mod, change)

    return run


def _with_changed(mod: tvm.IRModule, made: Sequence[tuple[Any, Any, Any]]) -> tvm.IRModule:
    """made : (variable, function, the one in its place)."""
    out = mod
    for var, func, other in made:
        if not other.same_as(func):
            out = mod.clone() if out is mod else out
            out.update_func(var, other)
    return out


def with_kernels(
    mod: tvm.IRModule,
    made: Mapping[tvm.ir.GlobalVar, Sequence[Any]],
    rewrite: Callable[[Block, Mapping[tvm.ir.GlobalVar, Sequence[tvm.ir.GlobalVar]]], Any],
) -> tvm.IRModule:
    """The module with other kernels in the place of some; itself where there are none.

    One has its old name, several have that and their numbers.
    rewrite : gives a block's bindings, told the new kernels' variables.
    """
    if not made:
        return mod
    functions = {var: func for var, func in mod.functions_items() if var not in made}
    names = {str(var.name_hint) for var in mod.get_global_vars()}
    new: dict[tvm.ir.GlobalVar, list[tvm.ir.GlobalVar]] = {var: [] for var in made}
    for var, kernels in made.items():
        for i, kernel in enumerate(kernels):
            name = str(var.name_hint)
            if len(kernels) > 1:
                name = f"{name}_{i}"
                while name in names:
                    name += "_"
                names.add(name)
            new[var].append(with_type(tvm.ir.GlobalVar(name), kernel.ty))
            functions[new[var][-1]] = kernel
    for var, func in functions.items():
        if isinstance(func, relax.Function):
            functions[var] = rebuilt(func, lambda block: rewrite(block, new))
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def rewritten(mod: tvm.IRModule, rewriter: relax.PyExprMutator) -> tvm.IRModule:
    """The module of a mutator with each of its Relax functions visited."""
    for var, func in functions_in(mod):
        rewriter.builder_.update_func(var, rewriter.visit_expr(func))
    return rewriter.builder_.get()
