"""`SpaceToDepth`: convolutions of few channels become such of stride 1 and many (`depth_blocks`).

The first layer of a network reads images of 3 channels, where a tensor core wants 8 halves at once.
On images whose blocks of pixels have become channels, 3 channels of 7x7 taps and stride 2 are 12,
filled up to 16, of 4x4 taps and stride 1, or 48 of 4x1 where the taps of a row are channels as well
(`depth_forms` says when).  The convolution and its weight gradient then have new
operands; those made of one image, or of one filter, are made once, but for whole windows of taps,
which have pixels several times: kept from a step's beginning to its end they would be its memory's
peak (EfficientNet-B0's in TF32, batch 128: 171 of 8,053 MiB, and 7,955 are left without).  Written
anew they cost 0.3 % of its time:

    y  = fprop(x, w)     ->   fprop(x', w')
    dw = wgrad(dy, x)    ->   from_depth(wgrad(dy, x'))

A result's window of pixels may be one row or column of blocks larger than it was, by taps that are
zero: a pixel that is not finite makes those results NaN too.  A whole row is no larger.

For the end of a training step's making: after the gradient and the change of layouts, before a
partition.  Layouts, dtypes and the names of results stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax

from ..argument_types import checked_bool
from ..attrs import ConvAttrs
from ..dtypes import MIXED
from ..graph.rebuild import Writer, rebuilt, with_span, without_unused
from ..graph.walk import bindings_of
from ..ir import is_taken, op_name
from ..layout_rules.table import permute_axes
from ..layouts import ACTIVATION, KERNEL, is_permutation, to_layout
from ..ops import FAMILY
from ..ops.algebra import DGRAD_NAME, WGRAD_NAME, fprop_call, get_op, wgrad_call
from ..problem import DTYPE_BYTES, ConvKind, ConvProblem
from ..relation import as_size
from .depth_blocks import FILTER, FORMS, GRADIENT, IMAGE, Blocks
from .depth_forms import AS_IT_IS, AUTO, Known, form_of
from .surface import ModulePass, check_relax_module, functions_of

FPROP_NAME = "relax.nn.conv2d"
FEW = 4
"""Channels that are few."""
MOST = 1024
"""New channels that are not too many: 16x16 blocks of 3 channels, as a vision transformer has."""

READ_AT_ONCE = 16  # bytes that a library's kernels read

DTYPES = MIXED
_TAKEN = {name: FAMILY[name] for name in (FPROP_NAME, WGRAD_NAME)}
_NO_PADDING = (0, 0, 0, 0)


@dataclass(frozen=True)
class DepthEntry:
    """One convolution or weight gradient.

    `function` and `node` : names of its function and variable, which stay.  `problem` and `became`
    : `ConvProblem.repro()` before and after; `became` is "" where it stays, and `reason` says why.
    """

    function: str
    node: str
    problem: str = ""
    became: str = ""
    reason: str = ""


@dataclass(frozen=True)
class _Settings:
    """What `space_to_depth` is asked for."""

    stride_one: bool
    form: str
    filled_to: int
    known: Known | None = None

    def __post_init__(self) -> None:
        if self.form not in (AUTO, *FORMS):
            raise ValueError(
                f"space_to_depth: form must be one of {', '.join((AUTO, *FORMS))},"
                f" got {self.form!r}"
            )
        least = max(DTYPE_BYTES[dtype] for dtype in DTYPES)
        if self.filled_to < least or self.filled_to & (self.filled_to - 1):
            raise ValueError(
                f"space_to_depth: filled_to must be a power of 2 from {least} bytes on,"
                f" got {self.filled_to}"
            )

    def blocks(self, problem: ConvProblem) -> Blocks | None:
        """The blocks of a convolution and of its weight gradient; None: they stay."""
        unit = self.filled_to // DTYPE_BYTES[problem.data_dtype]
        form = form_of(problem, unit, MOST, self.known) if self.form == AUTO else self.form
        return None if form == AS_IT_IS else Blocks.of(problem, unit, form)


def SpaceToDepth(  # noqa: N802
    functions: Collection[str] | None = None, *, stride_one: bool = True, form: str = AUTO,
    filled_to: int = READ_AT_ONCE, known: Known | None = None,
) -> tvm.transform.Pass:  # fmt: skip
    """The pass; `functions` by name, by default all; see `space_to_depth`."""
    settings = _Settings(stride_one, form, filled_to, known)
    return ModulePass("SpaceToDepth", lambda mod, _: _applied(mod, functions, settings)[0])


def space_to_depth(
    mod: tvm.IRModule, functions: Collection[str] | None = None, *, stride_one: bool = True,
    form: str = AUTO, filled_to: int = READ_AT_ONCE, known: Known | None = None,
) -> tuple[tvm.IRModule, list[DepthEntry]]:  # fmt: skip
    """The module with its convolutions of few channels on blocks, and an entry for each.

    Taken are `relax.nn.conv2d` and `relax.nn.conv2d_backward_weight` of at most 4 channels, one
    group, no dilation, float16, bfloat16 or float32, any layouts and padding, sizes known but for
    N, whose data needs no gradient (there is no `conv2d_backward_data` beside them).

    Parameters
    ----------
    mod : any module; functions that a backend has taken stay.
    functions : by name, by default all.
    stride_one : convolutions of stride 1 get more channels too, filled up with zeros.
    form : "blocks": blocks of pixels, as large as the stride, are channels; "rows": all taps of a
        row of the window are; "windows": all of its taps are, and the filter is 1x1; "auto": what
        is predicted to be the fastest on a GPU, in half precision.
    filled_to : channels are filled up with zeros to a multiple of so many bytes, a power of 2 from
        4, the largest element's.
    known : microseconds of fprop and wgrad by kernels that take a convolution as it is, None where
        none are known: with "auto" those stay that are predicted to be faster so.

    Raises
    ------
    TypeError : for what is no module, names that are none, and a `stride_one` that is neither True
        nor False.
    ValueError : for another `form` or `filled_to`, and functions that the module lacks.
    RuntimeError : before `relay_wgrad.register()`.
    """
    return _applied(mod, functions, _Settings(stride_one, form, filled_to, known))


def _applied(
    mod: tvm.IRModule, functions: Collection[str] | None, settings: _Settings
) -> tuple[tvm.IRModule, list[DepthEntry]]:
    check_relax_module("space_to_depth", mod)
    checked_bool("space_to_depth: stride_one", settings.stride_one)
    get_op(WGRAD_NAME)
    builder, entries = relax.BlockBuilder(mod), list[DepthEntry]()
    changed = False
    for name, func in sorted(functions_of("space_to_depth", mod, functions).items()):
        if not isinstance(func.body, relax.SeqExpr) or is_taken(func):
            continue
        work = _Function(name, func, builder, settings)
        made = rebuilt(func, work.bindings)
        entries += work.entries
        if any(entry.became for entry in work.entries):
            builder.update_func(mod.get_global_var(name), without_unused(made))
            changed = True
    return (builder.get() if changed else mod), entries


class _Function:
    """One function: the convolutions in its blocks, rewritten."""

    def __init__(
        self, name: str, func: relax.Function, builder: relax.BlockBuilder, settings: _Settings
    ) -> None:
        self.name, self.builder, self.settings = name, builder, settings
        self.entries: list[DepthEntry] = []
        self.value = {b.var: b.value for b in bindings_of(func)}
        # Of data gradients: the first and second operands.
        self.differentiated: tuple[set[Any], set[Any]] = set(), set()
        for value in self.value.values():
            if op_name(value) == DGRAD_NAME:
                for operand, roots in zip(value.args, self.differentiated, strict=False):
                    roots.add(self._root(operand))

    def _key(self, operand: Any) -> tuple[Any, ...]:
        """Equal for operands that are made alike of one variable, by casts and permutations."""
        value: Any = self.value.get(operand) if isinstance(operand, relax.Var) else None
        if isinstance(value, relax.Var):
            return self._key(value)
        if op_name(value) == "relax.astype":
            return (*self._key(value.args[0]), str(value.ty.dtype))
        if op_name(value) == "relax.permute_dims":
            return (*self._key(value.args[0]), permute_axes(value))
        return (operand,)

    def _root(self, operand: Any) -> Any:
        return self._key(operand)[0]

    def bindings(self, block: Any) -> list[relax.Binding]:
        """A block's new bindings."""
        work = _Block(self.builder, block, self._key)
        for binding in block.bindings:
            value = binding.value
            definition = _TAKEN.get(op_name(value))
            if definition is None or definition.kind is None or definition.read_attrs is None:
                work.writer.bindings.append(binding)
                continue
            kind, attrs = definition.kind, definition.read_attrs(value)
            problem, reason = _problem_of(kind, value, attrs)
            if problem is not None:
                reason = reason or self._refusal(problem, value)
            blocks = None
            if problem is not None and not reason:
                blocks = self.settings.blocks(problem)
            became = "" if problem is None or blocks is None else _became(problem, blocks).repro()
            node, text = str(binding.var.name), problem.repro() if problem is not None else ""
            self.entries.append(DepthEntry(self.name, node, text, became, reason))
            if blocks is None:
                work.writer.bindings.append(binding)
            else:
                work.write(binding, kind, attrs, blocks)
        return work.writer.bindings

    def _refusal(self, problem: ConvProblem, call: relax.Call) -> str:
        """Why a convolution stays, or ""."""
        p: Any = problem
        if p.c > FEW:
            return f"{p.c} channels: few are {FEW}"
        if p.groups != 1:
            return f"{p.groups} groups"
        if p.dilation != (1, 1):
            return f"dilation {p.dilation[0]}x{p.dilation[1]}"
        if p.strides == (1, 1) and not self.settings.stride_one:
            return "stride 1, which was not asked for"
        for dtype in (p.data_dtype, p.weight_dtype, p.grad_dtype):
            if dtype not in DTYPES:
                return f"{dtype}: only {', '.join(DTYPES)}"
        blocks = self.settings.blocks(problem)
        if blocks is None:
            return "by kernels that are expected to be faster as it is"
        if blocks.new_channels > MOST:
            return f"{blocks.new_channels} channels in blocks: at most {MOST}"
        is_whole = blocks.rows.whole or blocks.columns.whole
        if p.strides == (1, 1) and blocks.new_channels == p.c and not is_whole:
            return f"{p.c} channels of {p.data_dtype} are as many as a library reads at once"
        grads, weights = self.differentiated
        first, second = (self._root(operand) for operand in call.args)
        if second in weights if p.kind is ConvKind.FPROP else first in grads:
            return "its data needs a gradient"
        return ""


class _Block:
    """One block's new bindings; what is made of a variable is made once in it."""

    def __init__(
        self, builder: relax.BlockBuilder, block: Any, key: Callable[[Any], tuple[Any, ...]]
    ) -> None:
        self.builder, self.key = builder, key
        self.writer = Writer(block, normalize=builder.normalize)

    def write(
        self, binding: relax.Binding, kind: ConvKind, attrs: ConvAttrs, blocks: Blocks
    ) -> None:
        """The convolution on blocks in place of the binding's."""
        first, second = binding.value.args
        data = first if kind is ConvKind.FPROP else second
        anew = kind is ConvKind.WGRAD and blocks.rows.whole and blocks.columns.whole
        image = self._once(data, attrs.data_layout, blocks, IMAGE, blocks.image, anew)
        new = replace(attrs, strides=(1, 1), padding=_NO_PADDING)
        if kind is ConvKind.FPROP:
            weight = self._once(second, attrs.kernel_layout, blocks, FILTER, blocks.filter)
            self._bind(binding, with_span(fprop_call(image, weight, new), binding.value.span))
            return
        size = (blocks.rows.new_taps, blocks.columns.new_taps)
        call = wgrad_call(first, image, replace(new, kernel_size=size))
        call = with_span(call, binding.value.span)
        # Named for what a report tells of: the convolution.
        whole = self.writer.emit(f"{binding.var.name}_in_depth", call, binding.span)
        self._bind(binding, self._call(blocks.gradient, whole, attrs.kernel_layout, GRADIENT))

    def _once(
        self, operand: Any, layout: str, blocks: Blocks, name: str, rule: Callable[..., Any],
        anew: bool = False,
    ) -> relax.Var:  # fmt: skip
        key = (name, anew, self.key(operand), layout, blocks)
        to_depth = f"{getattr(operand, 'name', 'operand')}_to_depth"
        return self.writer.emit_once(
            key, lambda: to_depth, lambda: self._call(rule, operand, layout, name)
        )

    def _call(self, rule: Callable[..., Any], tensor: Any, layout: str, name: str) -> relax.Call:
        return self.builder.call_te(rule, tensor, layout, primfunc_name_hint=name)

    def _bind(self, binding: relax.Binding, value: relax.Expr) -> None:
        self.writer.bind(binding.var, value, binding.span)


def _problem_of(
    kind: ConvKind, call: relax.Call, attrs: ConvAttrs
) -> tuple[ConvProblem | None, str]:
    """(the problem, with N as it may be, "") or (None, why there is none)."""
    first, second = call.args
    tensors = {"data": first, "weight": second} if kind is ConvKind.FPROP else {
        "grad": first, "data": second,
    }  # fmt: skip
    layouts = (
        (attrs.data_layout, ACTIVATION), (attrs.kernel_layout, KERNEL),
        (attrs.grad_layout, ACTIVATION),
    )  # fmt: skip
    if not all(is_permutation(layout, canonical) for layout, canonical in layouts):
        return None, f"layouts {', '.join(layout for layout, _ in layouts)}"
    types = [*(tensor.ty for tensor in tensors.values()), call.ty]
    if any(ty.dtype is None or not isinstance(ty.shape, relax.ShapeExpr) for ty in types):
        return None, "a shape that is not known"
    if any(ty.vdevice is not None for ty in types):
        return None, "tensors on virtual devices"
    sizes = {role: [as_size(n) for n in t.ty.shape.values] for role, t in tensors.items()}
    n, c, h, w = to_layout(sizes["data"], attrs.data_layout, ACTIVATION)
    if kind is ConvKind.FPROP:
        k, _, r, s = to_layout(sizes["weight"], attrs.kernel_layout, KERNEL)
    else:
        _, k, _, _ = to_layout(sizes["grad"], attrs.grad_layout, ACTIVATION)
        r, s = attrs.kernel_size or (0, 0)
    if not all(isinstance(size, int) for size in (c, h, w, k, r, s)):
        return None, "sizes other than N that are symbolic"
    dtypes = {role: str(tensor.ty.dtype) for role, tensor in tensors.items()}
    dtypes["grad" if kind is ConvKind.FPROP else "weight"] = str(call.ty.dtype)
    return ConvProblem(
        kind, n, c, h, w, k, r, s, attrs.strides, attrs.padding, attrs.dilation, attrs.groups,
        attrs.data_layout, attrs.kernel_layout, attrs.grad_layout,
        dtypes["data"], dtypes["weight"], dtypes["grad"],
    ), ""  # fmt: skip


def _became(problem: ConvProblem, blocks: Blocks) -> ConvProblem:
    rows, columns = blocks.rows, blocks.columns
    return replace(
        problem, c=blocks.new_channels, h=rows.length, w=columns.length, r=rows.new_taps,
        s=columns.new_taps, strides=(1, 1), padding=_NO_PADDING,
    )  # fmt: skip
