"""`RaiseConvBackward`: gradients of convolutions that a Relay program writes with other operators.

The proof is the Relax pass's (`transform.raising`): each scope of a function is
written as a Relax block, of which that pass says what would change.  Only this is translated: the
node that is a whole gradient becomes a call on the nodes that the gradient is taken of.

    conv2d_backward_weight(grad, data)         nn.conv2d_backward_weight(grad, data)
    conv2d_backward_data(grad, weight, shape)  nn.conv2d_transpose(grad, weight), with what a stride
                                               leaves over as its output_padding

All other nodes stay.  A `let` goes where only the old form needed its variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any

from tvm import relax
from tvm.sym import Analyzer

from ... import registry
from ...keys import COMPOSITE
from ...layouts import ACTIVATION, swap_io, to_layout
from ...ops.call_problem import problem_of
from ...problem import ConvKind, ConvProblem, transposed_size
from ...relation import as_size
from ...transform.raising.index import Barrier
from ...transform.raising.product import describe
from ...transform.raising.report import RaiseEntry, RaiseReport
from ...transform.raising.transform import changes_in, warn_of_groups
from ..ast import Call, Expr, Function, IRModule, Let, Op, Var, children, post_order
from ..infer import unified
from ..iterative_walks import order
from ..make import call as make_call
from ..records import lookup, show
from ..rewrite import rewrite
from .normal_forms import without_lets
from .relax_blocks import Block, relax_blocks, type_of
from .user_hooks import attributes, is_kernel

CONV2D = "nn.conv2d"


def raise_conv_backward(mod: IRModule) -> tuple[IRModule, RaiseReport]:
    """The module with its convolution gradients as operators, and what was found.  Needs types.

    A gradient is followed within one scope of a function.  Functions for a compiler, kernels and
    composites stay as they are.  Names in the report are those of `let`s, else of operators.
    Registers the package's operators with TVM if they are not.  Warns of Relay's composite for
    1 < groups < channels, which is no weight gradient.
    """
    registry.register()
    entries: list[RaiseEntry] = []
    functions = {}
    for name, function in mod.functions.items():
        made, found = _planned(name, function)
        functions[name] = _written(function, made) if made else function
        entries += found
    warn_of_groups(entries, stacklevel=5)
    return replace(mod, functions=functions), RaiseReport(entries)


def find_conv_backward(mod: IRModule) -> RaiseReport:
    """What `raise_conv_backward` would find in a module, which stays as it is.  Needs types."""
    registry.register()
    found = [_planned(name, function)[1] for name, function in mod.functions.items()]
    return RaiseReport([entry for entries in found for entry in entries])


def _planned(name: str, function: Function) -> tuple[dict[Expr, Call], list[RaiseEntry]]:
    """The calls that nodes of a function become, and what was found."""
    entries: list[RaiseEntry] = []
    made: dict[Expr, Call] = {}
    if not _is_taken(function):
        for block in relax_blocks(function, _is_conv2d, _is_taken):
            translation = _Translation(block)
            changes = changes_in(name, block.func, translation.accept, block.hidden)
            entries += changes.entries
            made |= translation.made
    return made, entries


def _is_conv2d(node: Expr) -> bool:
    return isinstance(node, Call) and isinstance(node.op, Op) and node.op.name == CONV2D


def _is_taken(function: Function) -> bool:
    return is_kernel(function) or bool(function.attrs.get(COMPOSITE))


# ---- calls ---------------------------------------------------------------------------------------


class _Translation:
    """The calls that a block's changes are in Relay: `made` has them by the nodes they replace."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.made: dict[Expr, Call] = {}

    def accept(self, convolution: relax.Var, var: relax.Var, call: relax.Call) -> None:
        """Takes a change, or raises Barrier with the reason why Relay can't say it."""
        node = self.block.nodes[var]
        problem = problem_of(call)
        wgrad = problem.kind is ConvKind.WGRAD
        name = "nn.conv2d_backward_weight" if wgrad else "nn.conv2d_transpose"
        attrs = _weight_attrs(problem) if wgrad else _data_attrs(problem, call)
        attrs["out_dtype"] = self._out_dtype(convolution, problem)
        made = make_call(name, *(self.block.source[arg] for arg in call.args[:2]), **attrs)
        try:
            got = lookup(name).infer([type_of(arg) for arg in made.args], made.attrs)
        except (TypeError, ValueError) as error:
            raise Barrier(str(error)) from None
        wanted = type_of(node)
        if unified(got, wanted) != wanted:
            raise Barrier(f"{name} would be {show(got)}, and {describe(var)} is {show(wanted)}")
        self.made[node] = replace(made, checked_type=wanted, span=node.span)

    def _out_dtype(self, convolution: relax.Var, problem: ConvProblem) -> str | None:
        """The result's, where the convolution says it too or the operands do not."""
        node = self.block.nodes[convolution]
        assert isinstance(node, Call)
        first, second, result = (problem.dtype(role) for role in problem.roles)
        said = attributes(node, CONV2D)["out_dtype"] is not None
        return result if said or {first, second} != {result} else None


def _shared_attrs(p: ConvProblem) -> dict[str, Any]:
    return {
        "strides": p.strides, "padding": p.padding, "dilation": p.dilation, "groups": p.groups,
        "data_layout": p.grad_layout,
    }  # fmt: skip


def _weight_attrs(p: ConvProblem) -> dict[str, Any]:
    return _shared_attrs(p) | {
        "channels": p.k if isinstance(p.k, int) else None,
        "kernel_size": (p.r, p.s),
        # Relay's names for these two.
        "kernel_layout": p.data_layout,
        "out_layout": p.kernel_layout,
    }


def _data_attrs(p: ConvProblem, call: relax.Call) -> dict[str, Any]:
    sizes = to_layout([as_size(v) for v in call.args[0].ty.shape.values], p.grad_layout, ACTIVATION)
    extra = []
    for i, (name, have) in enumerate((("rows", p.h), ("columns", p.w))):
        pad, taps = p.padding[i] + p.padding[i + 2], (p.r, p.s)[i]
        made = transposed_size(sizes[i + 2], pad, taps, p.strides[i], p.dilation[i], 0)
        left = have - made
        left = left if isinstance(left, int) else as_size(Analyzer().simplify(left))
        if not isinstance(left, int):
            raise Barrier(f"only the run knows how many {name} the stride leaves: {left}")
        extra.append(left)
    return _shared_attrs(p) | {
        "output_padding": extra,
        "channels": p.c if p.groups > 1 else None,
        "kernel_layout": swap_io(p.kernel_layout),
        "out_layout": "" if p.data_layout == p.grad_layout else p.data_layout,
    }


# ---- the new function ----------------------------------------------------------------------------


def _written(function: Function, made: Mapping[Expr, Call]) -> Function:
    new: dict[Expr, Expr] = {}

    def change(old: Expr, node: Expr) -> Expr:
        if old not in made:
            return node
        return replace(made[old], args=tuple(new[arg] for arg in made[old].args))

    out = rewrite(function, change, new)
    assert isinstance(out, Function)
    # Each variable that was needed once and is no more.
    lets = {node.var for node in post_order(function) if isinstance(node, Let)}
    unused = lets - _needed(function, frozenset())
    gone = lets - unused - _needed(out, unused)
    return without_lets(out, gone.__contains__) if gone else out


def _needed(function: Function, roots: Set[Var]) -> set[Expr]:
    """What the result needs, or what a `let` of one of `roots` binds."""
    bound: dict[Expr, Expr] = {}

    def below(node: Expr) -> tuple[Expr, ...]:
        if isinstance(node, Let):
            bound[node.var] = node.value
            return (node.value, node.body) if node.var in roots else (node.body,)
        return (bound[node],) if node in bound else children(node)

    return set(order(function, below))
