"""Rules of `SimplifyExpr`: each gives what may stand for a call, or None.

A rule is asked for a call of its operator; `Known` has the types of all nodes so far, old and made.
Rules that change floats by rounding are Relay's own: constants that follow each other are computed
ahead, and a quotient by a root is a product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...ops.elementwise import BINARY, by
from ..ast import Call, Constant, Expr, Op
from ..make import call
from ..records import attributes_of, lookup
from ..types import TensorType, Type
from .user_hooks import filling

_INTEGERS = "bui"


class Known:
    """Types of nodes, also of those that rules make."""

    def __init__(self) -> None:
        self.types: dict[Expr, Type] = {}

    def of(self, node: Expr) -> Type | None:
        """A node's type."""
        if node in self.types:
            return self.types[node]
        ty = node.checked_type
        if isinstance(node, Constant):
            ty = TensorType(node.data.shape, str(node.data.dtype))
        elif ty is None and isinstance(node, Call) and isinstance(node.op, Op):
            args = [self.of(arg) for arg in node.args]
            if None not in args:
                ty = lookup(node.op.name).infer(args, node.attrs)  # type: ignore[arg-type]
        if ty is not None:
            self.types[node] = ty
        return ty

    def tensor(self, node: Expr) -> TensorType | None:
        """A tensor's type."""
        ty = self.of(node)
        return ty if isinstance(ty, TensorType) else None


Rule = Callable[[Call, Known], Expr | None]


def is_call(node: Expr, *names: str) -> bool:
    """Whether a node is a call of one of these operators."""
    return isinstance(node, Call) and isinstance(node.op, Op) and node.op.name in names


def _below(node: Call, *names: str) -> Call | None:
    """The first operand, if it is a call of one of these operators."""
    arg = node.args[0]
    return arg if isinstance(arg, Call) and is_call(arg, *names) else None


# ---- shapes --------------------------------------------------------------------------------------

_RESHAPES = ("reshape", "contrib_reverse_reshape")
_MOVES = ("transpose", "layout_transform")


def _reshape(node: Call, known: Known) -> Expr | None:
    """Of a reshape."""
    inner, ty = _below(node, *_RESHAPES), known.tensor(node)
    if inner is None or ty is None or not all(isinstance(size, int) for size in ty.shape):
        return None
    return call("reshape", inner.args[0], newshape=list(ty.shape))


def _axes(node: Call, known: Known) -> list[int] | None:
    """Where each axis of the result comes from; None if sizes change."""
    ty = known.tensor(node.args[0])
    if ty is None:
        return None
    if is_call(node, "transpose"):
        given, ndim = attributes_of(node)["axes"], len(ty.shape)
        return [a % ndim for a in given] if given is not None else list(range(ndim))[::-1]
    src, dst = attributes_of(node)["src_layout"], attributes_of(node)["dst_layout"]
    if not (src.isupper() and dst.isupper() and sorted(src) == sorted(dst)):
        return None
    return [src.index(letter) for letter in dst]


def _moved_twice(node: Call, known: Known) -> Expr | None:
    """Two changes of axes as one, of letters with blocks too."""
    inner = _below(node, *_MOVES)
    if inner is None:
        return None
    outer_axes, inner_axes = _axes(node, known), _axes(inner, known)
    if outer_axes is not None and inner_axes is not None:
        return call("transpose", inner.args[0], axes=[inner_axes[a] for a in outer_axes])
    layouts = _blocked(node, outer_axes, inner, inner_axes)
    if layouts is None:
        return None
    src, dst = layouts
    if src == dst:
        return inner.args[0]
    return call("layout_transform", inner.args[0], src_layout=src, dst_layout=dst)


def _blocked(
    node: Call, outer: list[int] | None, inner: Call, first: list[int] | None
) -> tuple[str, str] | None:
    """The layouts of two changes together, of which one at least makes or unmakes blocks."""
    if outer is None and first is None:
        middle = attributes_of(inner)["dst_layout"], attributes_of(node)["src_layout"]
        ends = attributes_of(inner)["src_layout"], attributes_of(node)["dst_layout"]
        return ends if middle[0] == middle[1] else None
    if outer is None and first is not None:
        src = attributes_of(node)["src_layout"]
        if not src.isupper() or len(src) != len(first):
            return None
        start = "".join(src[first.index(i)] for i in range(len(src)))
        return start, attributes_of(node)["dst_layout"]
    assert outer is not None
    dst = attributes_of(inner)["dst_layout"]
    if not dst.isupper() or len(dst) != len(outer):
        return None
    return attributes_of(inner)["src_layout"], "".join(dst[a] for a in outer)


def _moved_nothing(node: Call, known: Known) -> Expr | None:
    if is_call(node, "layout_transform"):
        same = attributes_of(node)["src_layout"] == attributes_of(node)["dst_layout"]
    else:
        axes = _axes(node, known)
        same = axes is not None and axes == sorted(axes)
    return node.args[0] if same else None


# ---- casts ---------------------------------------------------------------------------------------


def _same_cast(node: Call, known: Known) -> Expr | None:
    before, after = known.tensor(node.args[0]), known.tensor(node)
    return node.args[0] if before is not None and before == after else None


def _cast_to(node: Call, known: Known) -> Expr | None:
    """A cast to a tensor's dtype, which is known though its sizes may not be."""
    like = known.tensor(node.args[1])
    return None if like is None else call("cast", node.args[0], dtype=like.dtype)


def _cast_twice(node: Call, known: Known) -> Expr | None:
    """What the first cast keeps exactly, the second may read itself."""
    inner = _below(node, "cast", "cast_like")
    if inner is None:
        return None
    types = [known.tensor(n) for n in (inner.args[0], inner, node)]
    if any(ty is None or "bfloat" in ty.dtype for ty in types):
        return None
    first, middle, last = (np.dtype(ty.dtype) for ty in types if ty is not None)
    exact = np.can_cast(first, middle, "safe")
    # An integer that is out of the last's range wraps around; a float that is has no meaning.
    rounds = first.kind in _INTEGERS and middle.kind == "f" and last.kind in _INTEGERS
    if not exact or (rounds and not np.can_cast(first, last, "safe")):
        return None
    return call("cast", inner.args[0], dtype=str(last))


def _range(dtype: str) -> tuple[float, float] | None:
    if "bfloat" in dtype:
        return None
    if dtype == "bool":
        return 0.0, 1.0
    info = np.iinfo(dtype) if np.dtype(dtype).kind in "ui" else np.finfo(dtype)
    return float(info.min), float(info.max)


def _clip(node: Call, known: Known) -> Expr | None:
    """To bounds that hold all integers of the type; a float may be infinite, and stays clipped."""
    ty = known.tensor(node)
    if ty is None or np.dtype("V" if "bfloat" in ty.dtype else ty.dtype).kind not in "ui":
        return None
    bounds = _range(ty.dtype)
    assert bounds is not None
    wide = attributes_of(node)["a_min"] <= bounds[0] and attributes_of(node)["a_max"] >= bounds[1]
    return node.args[0] if wide else None


def _cast_clipped(node: Call, known: Known) -> Expr | None:
    """Casts of what is clipped, without those whose type holds all that is left."""
    chain = [node]
    while isinstance(chain[-1].args[0], Call) and is_call(chain[-1].args[0], "cast"):
        chain.append(chain[-1].args[0])
    clip = chain[-1].args[0]
    if not isinstance(clip, Call) or not is_call(clip, "clip"):
        return None
    attrs, ty, last = attributes_of(clip), known.tensor(clip), known.tensor(node)
    if ty is None or last is None or "bfloat" in ty.dtype:
        return None
    kept: list[str] = []
    for cast in chain[::-1]:
        bounds = _range(attributes_of(cast)["dtype"])
        if bounds is None or np.dtype(attributes_of(cast)["dtype"]).kind not in "ui":
            return None
        if not (bounds[0] <= attrs["a_min"] and attrs["a_max"] <= bounds[1]):
            kept.append(attributes_of(cast)["dtype"])
    if (kept[-1] if kept else ty.dtype) != last.dtype:
        kept.append(last.dtype)
    if len(kept) == len(chain):
        return None
    out: Expr = clip
    for dtype in kept:
        out = call("cast", out, dtype=dtype)
    return out


# ---- numbers -------------------------------------------------------------------------------------

_FOLD: Mapping[str, Callable[..., Any]] = {"add": np.add, "multiply": np.multiply}


def _with_constant(node: Expr, name: str) -> tuple[Expr, Constant] | None:
    """What a constant is added to, or multiplied with."""
    if not isinstance(node, Call) or not is_call(node, name):
        return None
    for x, c in (node.args, node.args[::-1]):
        if isinstance(c, Constant) and not isinstance(x, Constant):
            return x, c
    return None


def _folded(name: str, a: Constant, b: Constant) -> Constant | None:
    if a.data.dtype != b.data.dtype or "bfloat" in str(a.data.dtype):
        return None
    with np.errstate(all="ignore"):
        return Constant(np.asarray(_FOLD[name](a.data, b.data)).astype(a.data.dtype))


def _constants_together(node: Call, known: Known) -> Expr | None:
    """(x + a) + b, (x * a) * b."""
    assert isinstance(node.op, Op)
    outer = _with_constant(node, node.op.name)
    inner = outer and _with_constant(outer[0], node.op.name)
    if not outer or not inner:
        return None
    both = _folded(node.op.name, inner[1], outer[1])
    return both and Call(node.op, (inner[0], both))


def _multiply_first(node: Call, known: Known) -> Expr | None:
    """(x + a) * b."""
    outer = _with_constant(node, "multiply")
    inner = outer and _with_constant(outer[0], "add")
    if not outer or not inner:
        return None
    both = _folded("multiply", inner[1], outer[1])
    return both and call("add", call("multiply", inner[0], outer[1]), both)


def _twice(node: Call, known: Known) -> Expr | None:
    """x + x."""
    ty = known.tensor(node)
    if node.args[0] is not node.args[1] or ty is None or "bfloat" in ty.dtype or ty.dtype == "bool":
        return None
    return call("multiply", node.args[0], Constant(np.array(2, ty.dtype)))


def _by_root(node: Call, known: Known) -> Expr | None:
    root = node.args[1]
    if not isinstance(root, Call) or not is_call(root, "sqrt"):
        return None
    return call("multiply", node.args[0], call("rsqrt", root.args[0]))


def _filled(node: Call, known: Known) -> Expr | None:
    """An operand that is one number everywhere as that number, where it lends no size.

    Comparisons stay: Relay asks that the other operand has the result's type.
    """
    ty = known.tensor(node)
    for index in (0, 1):
        full, other = node.args[index], known.tensor(node.args[1 - index])
        mine = known.tensor(full)
        if ty is None or mine is None or other != ty:
            continue
        if not isinstance(full, Call) or "bfloat" in mine.dtype:
            continue
        if (number := filling(full)) is not None:
            value: Expr = Constant(np.array(number, mine.dtype))
        elif is_call(full, "full", "full_like") and _is_number(full.args[-1], mine.dtype):
            value = full.args[-1]
        else:
            continue
        args = (value, node.args[1]) if index == 0 else (node.args[0], value)
        return Call(node.op, args, node.attrs)
    return None


def _is_number(node: Expr, dtype: str) -> bool:
    return isinstance(node, Constant) and node.data.ndim == 0 and str(node.data.dtype) == dtype


RULES: dict[str, list[Rule]] = {
    "reshape": [_reshape],
    "contrib_reverse_reshape": [_reshape],
    "transpose": [_moved_twice, _moved_nothing],
    "layout_transform": [_moved_twice, _moved_nothing],
    "cast": [_same_cast, _cast_twice, _cast_clipped],
    "cast_like": [_cast_to],
    "clip": [_clip],
    "add": [_twice, _constants_together],
    "multiply": [_constants_together, _multiply_first],
    "divide": [_by_root],
}
for _name, _record in by("relay", BINARY).items():
    if _record.gives != "bool" and "f" in _record.takes:
        RULES.setdefault(_name, []).append(_filled)
