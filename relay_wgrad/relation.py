"""Type relations: what is refused, and in which words; those of the convolution family.

With symbolic sizes a difference that does not simplify to a non-zero constant is trusted, and left
to the run (`conditions`).  Every message names the op, the rule and the values that break it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import relax, tirx
from tvm.sym import Analyzer

from .attrs import ConvAttrs
from .conditions import Conditions, RunSize, tvm_size
from .layouts import is_permutation, to_layout
from .problem import DTYPE_BYTES
from .ranks import OWN
from .rules import Rules, Size, Truth

MAY_BE_NONE = "NCOI"  # letters of sizes that may be 0 at the run


def as_size(expr: Any) -> Size:
    """An int where the size is known, else the symbolic expression."""
    return int(expr.value) if isinstance(expr, tirx.IntImm) else expr


def as_expr(size: Size) -> Any:
    """A size as an expression, of a number too."""
    return tirx.IntImm("int64", size) if isinstance(size, int) else size


class Checks(Rules):
    """What the relations of all operators say of one call.

    run : what is left to the run, if that is asked: then sizes are `RunSize`.
    """

    def __init__(
        self, op: str, run: Conditions | None = None, names: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(op, names)
        self.analyzer = Analyzer()
        self.run = run

    def sizes(self, shape: Any) -> tuple[Size, ...]:
        """The sizes of a tensor's shape as rules take them."""
        known = map(as_size, shape.values)
        return tuple(known if self.run is None else map(self.run.size, known))

    def simplify(self, expr: Size) -> Size:
        if isinstance(expr, (int, RunSize)):
            return expr
        return as_size(self.analyzer.simplify(expr))

    def equal(self, a: Size, b: Size) -> Truth:
        diff = self.simplify(a - b)
        if self.run is not None and isinstance(diff, RunSize):
            return self.run.equal(diff)
        return super().equal(a, b)

    def at_least(self, size: Size, low: int) -> Truth:
        if self.run is not None and isinstance(size, RunSize):
            return self.run.at_least(size, low)
        return super().at_least(size, low)

    def either(self, one: Truth, other: Truth) -> Truth:
        if any(truth is None or isinstance(truth, bool) for truth in (one, other)):
            return super().either(one, other)
        return tirx.Or(one, other)

    def must(self, holds: Truth, message: Callable[[], str]) -> None:
        if self.run is not None and not isinstance(holds, bool) and holds is not None:
            self.run.add(holds, f"{self.op}: {message()}")
        else:
            super().must(holds, message)

    def least_of(self, a: Size, b: Size) -> Size:
        """The smaller of two sizes."""
        if self.run is None or (isinstance(a, int) and isinstance(b, int)):
            return min(a, b)
        return self.run.size(tirx.min(tvm_size(a), tvm_size(b)))

    def long_enough(self, sizes: Sequence[Size], axis: int, least: int, rule: str) -> None:
        """So many elements along an axis."""
        size = sizes[axis]
        self.must(self.at_least(size, least), lambda: f"{rule}, got {size} of axis {axis}")

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

    def __init__(
        self,
        op: str,
        attrs: ConvAttrs,
        run: Conditions | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(op, run, names)
        self.attrs = attrs

    # ---- attributes --------------------------------------------------------------------------

    def check_attrs(self) -> None:
        """Values of the attributes by themselves."""
        a = self.attrs
        self.attributes(a)
        if a.kernel_size is not None:
            self.least("kernel_size", a.kernel_size, 1)
        if a.output_padding is not None:
            self.least("output_padding", a.output_padding, 0)
        if a.output_padding and any(
            o >= s for o, s in zip(a.output_padding, a.strides, strict=True)
        ):
            limitless = f"conv{a.rank}d_backward_data takes the result's size itself"
            raise self.error(
                "output_padding must be smaller than strides, got"
                f" output_padding={list(a.output_padding)}, strides={list(a.strides)}"
                + (f" ({limitless} and has no such limit)" if a.rank in OWN else "")
            )
        for name, value, canonical in (
            ("data_layout", a.data_layout, a.activation),
            ("grad_layout", a.grad_layout, a.activation),
            ("kernel_layout", a.kernel_layout, a.kernel),
        ):
            if not is_permutation(value, canonical):
                word = self.word(name)
                raise self.error(f"{word} must be a permutation of {canonical}, got {value!r}")

    # ---- operands ----------------------------------------------------------------------------

    def tensor(self, name: str, arg: Any, layout: str, canonical: str) -> tuple[Size, ...] | None:
        """The operand's canonical shape, or None where it is unknown."""
        name, ty = self.word(name), arg.ty
        if not isinstance(ty, relax.TensorType):
            raise TypeError(f"{self.op}: {name} must be a tensor, got {ty}")
        if ty.ndim not in (-1, len(canonical)):
            raise self.error(
                f"{name} with layout {layout} must have {len(canonical)} dimensions,"
                f" got {ty.ndim}: {ty}"
            )
        dtype = str(ty.dtype) if ty.dtype is not None else None
        # At the run it is about sizes alone, of upstream's convolutions of integers too.
        if self.run is None and dtype is not None and dtype not in DTYPE_BYTES:
            raise TypeError(
                f"{self.op}: {name} must be one of {', '.join(DTYPE_BYTES)}, got {dtype}"
            )
        if not isinstance(ty.shape, relax.ShapeExpr):
            return None
        why = name if self.run is not None else f"{name} {ty}"
        return to_layout(self._positive(ty.shape, layout, why), layout, canonical)

    def shape(self, name: str, arg: Any, layout: str) -> tuple[Size, ...] | None:
        """Canonical sizes of an argument that is a shape; None where they are unknown."""
        ty = arg.ty
        if not isinstance(ty, relax.ShapeType):
            raise TypeError(f"{self.op}: {name} must be a shape, got {ty}")
        if ty.ndim not in (-1, len(layout)):
            raise self.error(
                f"{name} must have the {len(layout)} sizes of {layout}, got {ty.ndim}: {ty}"
            )
        shape = arg if isinstance(arg, relax.ShapeExpr) else ty
        if shape.values is None:
            return None
        why = f"{name} {list(self.sizes(shape))}"
        return to_layout(self._positive(shape, layout, why), layout, self.attrs.activation)

    def _positive(self, shape: Any, layout: str, why: str) -> tuple[Size, ...]:
        """The sizes, none of which may be 0 where that is known; at the run no image or channel
        gives sums of nothing, which are 0, and pixels must be some."""
        sizes = self.sizes(shape)
        for letter, size in zip(layout, sizes, strict=True):
            if isinstance(size, int) or letter not in MAY_BE_NONE:
                self.positive(letter, size, why)
        return sizes

    # ---- the convolution itself ---------------------------------------------------------------

    def check_conv(
        self,
        data: Sequence[Size] | None,
        weight: Sequence[Size] | None,
        grad: Sequence[Size] | None,
    ) -> None:
        """All rules between the canonical shapes of data, weight and grad (None: unknown)."""
        taps = self.attrs.kernel_size or (None,) * self.attrs.rank
        self.fit(self.attrs, data, weight if weight is not None else (None, None, *taps), grad)

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
            return relax.TensorType(None, dtype, vdevice, ndim=len(layout))
        sizes = to_layout([tvm_size(self.simplify(v)) for v in shape], canonical, layout)
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
