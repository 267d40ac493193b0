"""Asymmetric padding and foreign layouts: ops around a call, so that a library can take it.

Padding.  Let a convolution have padding t, b (before, after) along one axis of H pixels, stride s,
and e = dilation*(R-1) + 1 for its kernel's extent.  With m = min(t, b), pad the data itself by t-m
and b-m: H' = H + (t-m) + (b-m), and use the symmetric padding m.  Pixel h of the data is pixel
h + (t-m) of the padded one, so the tap that read h = p*s + r*dilation - t reads
p*s + r*dilation - m there: the same element, and the taps that fell on padding read zeros.  The
output keeps its size, as H' + 2m = H + t + b:

    P' = (H' + 2m - e) // s + 1 = (H + t + b - e) // s + 1 = P.

fprop and wgrad read the data, so they read the padded one.  dgrad makes its gradient.  It is the
transpose of fprop, and the transpose of padding is cropping: compute the H' pixels of the padded
data's gradient and take those from t-m to t-m+H.  That says nothing of (H + t + b - e) % s: the
remainder belongs to H, which is given, and H' has the same one.  For `conv2d_transpose`, whose size
follows from its attributes, H = (P-1)*s - t - b + e + o with the output padding o, and
H' = (P-1)*s - 2m + e + o has the same o.

Channels.  Where a library reads only wide vectors fast, channels of zeros are added: to C in the
data and the weight, to K in the gradient and the weight.  A sum over them gains zeros; a result
that has them is cropped.  `backends.cutlass.model.wider_channels` says where that pays.

Layouts.  A convolution does not care for the order of axes in memory, so operands are permuted
before it and its result after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tvm import relax

from relay_wgrad.attrs import ConvAttrs
from relay_wgrad.graph.rebuild import Names, Writer, rebuilt, with_span
from relay_wgrad.graph.walk import Block
from relay_wgrad.layouts import permutation, swap_io
from relay_wgrad.ops.algebra import TRANSPOSED, dgrad_call, fprop_call, wgrad_call
from relay_wgrad.ops.call_problem import family_def, problem_of
from relay_wgrad.problem import DTYPE_BYTES, ConvKind, ConvProblem, symmetric

from ..decision import Decision

Triple = tuple[str, str, str]
Accepts = Callable[[ConvProblem], Decision]
_ROLES = ("data", "weight", "grad")


def widened(problem: ConvProblem) -> ConvProblem:
    """The problem on operands cast to a wider result's dtype; itself where that is not wider.

    float16 and bfloat16 values are float32 values, and tf32's too: nothing is rounded.
    """
    first, second, result = problem.roles
    wide = problem.dtype(result)
    if DTYPE_BYTES[wide] <= max(DTYPE_BYTES[problem.dtype(role)] for role in (first, second)):
        return problem
    dtypes: Any = {f"{role}_dtype": wide for role in (first, second)}
    return replace(problem, **dtypes)


def in_layouts(problem: ConvProblem, layouts: Triple) -> ConvProblem:
    """The problem with (data, weight, grad) in these layouts."""
    return replace(
        problem, data_layout=layouts[0], kernel_layout=layouts[1], grad_layout=layouts[2]
    )


def nearest(problem: ConvProblem, layouts: Sequence[Triple]) -> list[Triple]:
    """Layouts of the problem's dimensions by what it costs to get there: bytes to move, or tensors
    where a size is symbolic."""

    def cost(triple: Triple) -> tuple[int, int]:
        changed = [
            role for role, new in zip(_ROLES, triple, strict=True) if problem.layout(role) != new
        ]
        moved = 0
        for role in changed:
            count = DTYPE_BYTES[problem.dtype(role)]
            for size in problem.canonical_shape(role):
                count *= size if isinstance(size, int) else 1
            moved += count
        return moved, len(changed)

    return sorted((x for x in layouts if len(x[0]) == problem.rank + 2), key=cost)


def adapted(
    problem: ConvProblem, layouts: Sequence[Triple], accepts: Accepts
) -> ConvProblem | None:
    """The accepted problem with the least around it; None if there is none.

    Layouts stay where they are if padding alone helps, padding stays if layouts alone help; and
    casts come last.
    """
    candidates = []
    for wide in (False, True):
        direct = widened(problem) if wide else problem
        evened = symmetric(direct)
        candidates += [direct, evened]
        for base in (direct, evened):
            candidates += [in_layouts(base, triple) for triple in nearest(base, layouts)]
    return next((candidate for candidate in candidates if accepts(candidate)), None)


def describe(old: ConvProblem, new: ConvProblem) -> str:
    """What adapting a problem puts around its call, as a report says it."""
    parts = []
    if (old.c, old.k) != (new.c, new.k):
        parts.append("channels")
    if old.padding != new.padding:
        parts.append("crop" if old.kind is ConvKind.DGRAD else "pad")
    if any(old.layout(role) != new.layout(role) for role in _ROLES):
        parts.append("layout")
    if any(old.dtype(role) != new.dtype(role) for role in _ROLES):
        parts.append("cast")
    return "+".join(parts)


@dataclass(frozen=True)
class Note:
    """A call's adaptation: the program's variable and problem, the problem that the call in its
    place solves, and what was put around."""

    var: relax.Var
    problem: ConvProblem
    solved: ConvProblem
    adapted: str = ""


def adapt_function(
    func: relax.Function, choose: Callable[[ConvProblem], ConvProblem | None]
) -> tuple[relax.Function, dict[relax.Var, Note]]:
    """A function in which `choose` has replaced problems, and notes of all calls whose problem can
    be read, by the variables that they have now.

    `choose` gives the problem to solve instead, as `adapted` finds it, or None to keep a call.
    """
    names, notes = Names(func), dict[relax.Var, Note]()

    def rewrite(block: Block) -> list[relax.Binding] | None:
        writer, changed = _Adapter(Writer(block), names), False
        for binding in block.bindings:
            old = _problem(binding)
            new = choose(old) if old is not None else None
            if old is not None and new is not None:
                var = writer.call(binding, old, new)
                notes[var] = Note(binding.var, old, new, describe(old, new))
                changed = True
                continue
            if old is not None:
                notes[binding.var] = Note(binding.var, old, old)
            writer.bindings.append(binding)
        return writer.bindings if changed else None

    return rebuilt(func, rewrite), notes


def _problem(binding: relax.Binding) -> ConvProblem | None:
    if not isinstance(binding, relax.VarBinding) or family_def(binding.value) is None:
        return None
    try:
        return problem_of(binding.value)
    except ValueError:
        return None  # the report gives the reason


class _Adapter:
    """One block with adapted calls.  A tensor that several calls want permuted is so once."""

    def __init__(self, writer: Writer, names: Names) -> None:
        self.bindings = writer.bindings
        self._writer, self._names = writer, names

    def _emit(self, name: str, value: relax.Expr) -> relax.Var:
        return self._writer.emit(self._names.unique(name), value)

    def _once(
        self, operand: relax.Expr, what: tuple[Any, ...], name: str, value: Callable[[], relax.Expr]
    ) -> relax.Expr:
        if not isinstance(operand, relax.Var):
            return self._emit(name, value())  # a constant: folded later
        own = partial(self._names.unique, f"{operand.name}_{name}")
        return self._writer.emit_once((operand, *what), own, value)

    def _permuted(self, operand: relax.Expr, src: str, dst: str) -> relax.Expr:
        if src == dst:
            return operand
        axes = permutation(src, dst)
        return self._once(
            operand, axes, dst.lower(), lambda: relax.op.permute_dims(operand, list(axes))
        )

    def _padded(
        self, operand: relax.Expr, layout: str, around: Mapping[str, tuple[int, int]]
    ) -> relax.Expr:
        width = [n for letter in layout for n in around.get(letter, (0, 0))]
        if not any(width):
            return operand
        return self._once(
            operand, ("pad", *width), "padded",
            lambda: relax.op.nn.pad(operand, width, "constant", 0.0),
        )  # fmt: skip

    def _cast(self, operand: relax.Expr, old: str, new: str) -> relax.Expr:
        if old == new:
            return operand
        return self._once(operand, (new,), new, lambda: relax.op.astype(operand, new))

    def call(self, binding: relax.VarBinding, old: ConvProblem, new: ConvProblem) -> relax.Var:
        """Writes the adapted call; returns its variable, which is the binding's own if it can be.

        The binding's variable keeps its type and gets the value that it had.
        """
        call = binding.value
        args: dict[str, relax.Expr] = {}
        for role, arg in zip(old.roles[:2], call.args[:2], strict=True):
            operand = self._permuted(arg, old.layout(role), new.layout(role))
            operand = self._padded(operand, new.layout(role), _around(role, old, new))
            args[role] = self._cast(operand, old.dtype(role), new.dtype(role))
        value: relax.Expr = with_span(_call(call, args, new), call.span)
        role = old.roles[2]
        after: list[tuple[str, Callable[[relax.Expr], relax.Expr]]] = []
        around = {letter: n for letter, n in _around(role, old, new).items() if any(n)}
        if around:
            after.append(("uncropped", lambda x: _cropped(x, old, new, around)))
        if old.layout(role) != new.layout(role):
            axes = list(permutation(new.layout(role), old.layout(role)))
            after.append((new.layout(role).lower(), lambda x: relax.op.permute_dims(x, axes)))
        made = None
        for name, op in after:
            var = self._emit(f"{binding.var.name}_{name}", value)
            made = var if made is None else made
            value = op(var)
        self._writer.bind(binding.var, value, binding.span)
        return binding.var if made is None else made


def _around(role: str, old: ConvProblem, new: ConvProblem) -> dict[str, tuple[int, int]]:
    """Letter of a tensor's layout -> how many zeros the new problem has before and after it."""
    rank = old.rank
    more = [a - b for a, b in zip(old.padding, new.padding, strict=True)]
    ends = zip("DHW"[-rank:], zip(more[:rank], more[rank:], strict=True), strict=True)
    c, k = (0, new.c - old.c), (0, new.k - old.k)
    return {
        "data": {"C": c, **dict(ends)},
        "weight": {"I": c, "O": k},
        "grad": {"C": k},
    }[role]


def _cropped(
    result: relax.Expr, old: ConvProblem, new: ConvProblem, around: Mapping[str, tuple[int, int]]
) -> relax.Expr:
    """The result without what the new problem has around it: as the module says."""
    role = old.roles[2]
    sizes = dict(zip(old.layout(role), old.shape(role), strict=True))
    layout = new.layout(role)
    axes = [layout.index(letter) for letter in around]
    begin = [before for before, _ in around.values()]
    end = [before + sizes[letter] for letter, (before, _) in around.items()]
    return relax.op.strided_slice(result, axes, begin, end)


def _call(call: relax.Call, args: dict[str, relax.Expr], new: ConvProblem) -> relax.Call:
    """A call of the same op that solves another problem."""
    definition = family_def(call)
    assert definition is not None
    assert definition.read_attrs is not None
    attrs: ConvAttrs = replace(
        definition.read_attrs(call),
        padding=new.padding,
        data_layout=new.data_layout,
        kernel_layout=new.kernel_layout,
        grad_layout=new.grad_layout,
    )
    if new.kind is ConvKind.FPROP:
        return fprop_call(args["data"], args["weight"], attrs)
    if new.kind is ConvKind.WGRAD:
        return wgrad_call(args["grad"], args["data"], attrs)
    if attrs.output_padding is None:
        return dgrad_call(args["grad"], args["weight"], relax.ShapeExpr(new.shape("data")), attrs)
    # A transposed convolution names layouts and the weight's letters from its own side.
    return TRANSPOSED[attrs.rank](
        args["grad"], args["weight"], attrs.strides, attrs.padding, attrs.output_padding,
        attrs.dilation, attrs.groups, attrs.grad_layout, swap_io(attrs.kernel_layout),
        attrs.data_layout, attrs.out_dtype,
    )  # fmt: skip


__all__ = [
    "Note", "adapt_function", "adapted", "describe", "in_layouts",
    "nearest", "widened",
]  # fmt: skip
