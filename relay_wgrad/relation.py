"""Type relations: what is refused, and in which words; those of the convolution family.

A rule is refused only when it is provably broken: with symbolic sizes, a difference that does not
simplify to a non-zero constant is trusted, as TVM does everywhere else.  Every message names the
op, the rule and the values that break it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx
from tvm.sym import Analyzer

from .attrs import ConvAttrs
from .layouts import ACTIVATION, KERNEL, is_permutation, to_layout
from .problem import DTYPE_BYTES, Size, out_size


def as_size(expr: Any) -> Size:
    """An int where the size is known, else the symbolic expression."""
    return int(expr.value) if isinstance(expr, tirx.IntImm) else expr


class Checks:
    """What the relations of all operators say of one call."""

    def __init__(self, op: str) -> None:
        self.op = op
        self.analyzer = Analyzer()

    def error(self, message: str) -> ValueError:
        return ValueError(f"{self.op}: {message}")

    def simplify(self, expr: Size) -> Size:
        return expr if isinstance(expr, int) else as_size(self.analyzer.simplify(expr))

    def differ(self, a: Size, b: Size) -> bool:
        """Whether two sizes are provably different."""
        diff = self.simplify(a - b)
        return isinstance(diff, int) and diff != 0

    def same(self, rule: str, a_name: str, a: Size, b_name: str, b: Size) -> None:
        if a is not None and b is not None and self.differ(a, b):
            raise self.error(f"{rule}, got {a_name}={a} and {b_name}={self.simplify(b)}")

    def at_least_one(self, name: str, size: Size, why: str) -> None:
        size = self.simplify(size)
        if isinstance(size, int) and size < 1:
            raise self.error(f"{name} must be positive, got {name}={size} from {why}")

    def arity(self, call: relax.Call, names: Sequence[str]) -> None:
        if len(call.args) != len(names):
            raise self.error(
                f"takes {len(names)} arguments ({', '.join(names)}), got {len(call.args)}"
            )

    def result_vdevice(self, operands: Sequence[relax.Expr]) -> Any:
        devices = [x.ty.vdevice for x in operands if x.ty.vdevice is not None]
        for other in devices[1:]:
            if other != devices[0]:
                raise self.error(f"operands must be on one device, got {devices[0]} and {other}")
        return devices[0] if devices else None


class Relation(Checks):
    """Checks of one call of the family; collects what the result type is made of."""

    def __init__(self, op: str, attrs: ConvAttrs) -> None:
        super().__init__(op)
        self.attrs = attrs

    def divides(self, name: str, size: Size) -> None:
        if size is None:
            return
        rest = self.simplify(size % self.attrs.groups)
        if isinstance(rest, int) and rest != 0:
            raise self.error(
                f"groups must divide {name}, got {name}={size}, groups={self.attrs.groups}"
            )

    # ---- attributes --------------------------------------------------------------------------

    def check_attrs(self) -> None:
        """Values of the attributes by themselves."""
        a = self.attrs
        for name, values, low in (
            ("strides", a.strides, 1),
            ("dilation", a.dilation, 1),
            ("padding", a.padding, 0),
            ("groups", (a.groups,), 1),
            ("kernel_size", a.kernel_size or (), 1),
            ("output_padding", a.output_padding or (), 0),
        ):
            if any(v < low for v in values):
                shown = list(values) if len(values) != 1 else values[0]
                raise self.error(f"{name} must be at least {low}, got {name}={shown}")
        if a.output_padding and any(
            o >= s for o, s in zip(a.output_padding, a.strides, strict=True)
        ):
            raise self.error(
                "output_padding must be smaller than strides, got"
                f" output_padding={list(a.output_padding)}, strides={list(a.strides)}"
                " (conv2d_backward_data takes the result's size itself and has no such limit)"
            )
        for name, value, canonical in (
            ("data_layout", a.data_layout, ACTIVATION),
            ("grad_layout", a.grad_layout, ACTIVATION),
            ("kernel_layout", a.kernel_layout, KERNEL),
        ):
            if not is_permutation(value, canonical):
                raise self.error(f"{name} must be a permutation of {canonical}, got {value!r}")

    # ---- operands ----------------------------------------------------------------------------

    def tensor(self, name: str, arg: Any, layout: str, canonical: str) -> tuple[Size, ...] | None:
        """The operand's canonical shape, or None where it is unknown."""
        ty = arg.ty
        if not isinstance(ty, relax.TensorType):
            raise TypeError(f"{self.op}: {name} must be a tensor, got {ty}")
        if ty.ndim not in (-1, 4):
            raise self.error(
                f"{name} with layout {layout} must have 4 dimensions, got {ty.ndim}: {ty}"
            )
        dtype = str(ty.dtype) if ty.dtype is not None else None
        if dtype is not None and dtype not in DTYPE_BYTES:
            raise TypeError(
                f"{self.op}: {name} must be one of {', '.join(DTYPE_BYTES)}, got {dtype}"
            )
        if not isinstance(ty.shape, relax.ShapeExpr):
            return None
        sizes = tuple(as_size(v) for v in ty.shape.values)
        for letter, size in zip(layout, sizes, strict=True):
            self.at_least_one(letter, size, f"{name} {ty}")
        return to_layout(sizes, layout, canonical)

    def shape(self, name: str, arg: Any, layout: str) -> tuple[Size, ...] | None:
        """Canonical sizes of an argument that is a shape; None where they are unknown."""
        ty = arg.ty
        if not isinstance(ty, relax.ShapeType):
            raise TypeError(f"{self.op}: {name} must be a shape, got {ty}")
        if ty.ndim not in (-1, 4):
            raise self.error(f"{name} must have the 4 sizes of {layout}, got {ty.ndim}: {ty}")
        values = arg.values if isinstance(arg, relax.ShapeExpr) else ty.values
        if values is None:
            return None
        sizes = tuple(as_size(v) for v in values)
        for letter, size in zip(layout, sizes, strict=True):
            self.at_least_one(letter, size, f"{name} {list(sizes)}")
        return to_layout(sizes, layout, ACTIVATION)

    # ---- the convolution itself ---------------------------------------------------------------

    def check_conv(
        self,
        data: Sequence[Size] | None,
        weight: Sequence[Size] | None,
        grad: Sequence[Size] | None,
    ) -> None:
        """All rules between the canonical shapes of data, weight and grad (None: unknown)."""
        a = self.attrs
        n, c, h, w = data if data is not None else (None,) * 4
        k, cg, r, s = weight if weight is not None else (None,) * 4
        if weight is None and a.kernel_size is not None:
            r, s = a.kernel_size
        gn, gk, p, q = grad if grad is not None else (None,) * 4
        self.same("grad and data must have the same batch N", "grad N", gn, "data N", n)
        self.same("grad and weight must have the same channels K", "grad K", gk, "weight K", k)
        self.divides("C", c)
        self.divides("K", k if k is not None else gk)
        if cg is not None:
            self.same(
                f"data's C must be weight's C/groups times groups (groups={a.groups})",
                "data C", c, "weight C/groups * groups", cg * a.groups,
            )  # fmt: skip
        top, left, bottom, right = a.padding
        axes = (
            ("P", h, r, p, top + bottom, a.strides[0], a.dilation[0], "H", "R"),
            ("Q", w, s, q, left + right, a.strides[1], a.dilation[1], "W", "S"),
        )
        for name, size, kernel, out, pad, stride, dilation, in_name, k_name in axes:
            if size is None or kernel is None:
                continue
            made = out_size(size, pad, kernel, stride, dilation)
            why = (
                f"{in_name}={size}, {k_name}={kernel}, padding {pad} in all,"
                f" stride {stride}, dilation {dilation}"
            )
            self.at_least_one(name, made, why)
            self.same(
                f"grad's {name} must be what the convolution makes of {why}",
                f"grad {name}", out, f"made {name}", made,
            )  # fmt: skip

    # ---- the result --------------------------------------------------------------------------

    def result(
        self,
        operands: Sequence[relax.Expr],
        shape: Sequence[Size] | None,
        layout: str,
        canonical: str,
    ) -> relax.TensorType:
        """The result's type from the operands' dtypes and its canonical shape."""
        dtype, vdevice = self.result_dtype(operands), self.result_vdevice(operands)
        if shape is None:
            return relax.TensorType(None, dtype, vdevice, ndim=4)
        sizes = to_layout([self.simplify(v) for v in shape], canonical, layout)
        return relax.TensorType(list(sizes), dtype, vdevice)

    def result_dtype(self, operands: Sequence[relax.Expr]) -> str | None:
        out = self.attrs.out_dtype
        if out is not None:
            if out not in DTYPE_BYTES:
                raise TypeError(
                    f"{self.op}: out_dtype must be one of {', '.join(DTYPE_BYTES)}, got {out}"
                )
            return out
        dtypes = [str(x.ty.dtype) if x.ty.dtype is not None else None for x in operands]
        known = [d for d in dtypes if d is not None]
        if len(set(known)) > 1:
            raise TypeError(
                f"{self.op}: operands of different dtypes need an out_dtype,"
                f" got {' and '.join(known)}"
            )
        return known[0] if len(known) == len(dtypes) else None
