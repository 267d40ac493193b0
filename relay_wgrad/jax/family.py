"""A convolution of `lax`'s as the member of the family that it is, in its own layouts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType

from ..frontend.stablehlo.roles import Convolution, Reading, readings
from ..layouts import ACTIVATIONS
from ..problem import DTYPE_BYTES, SIZE_BOUND
from .primitive import convolution
from .records import Options, told
from .sharding import alike

_PRECISIONS = [p.name for p in (lax.Precision.DEFAULT, lax.Precision.HIGH, lax.Precision.HIGHEST)]


def of_equation(lhs: Any, rhs: Any, out: Any, params: dict[str, Any], known: Sequence[bool]) -> Any:
    """The result of `lax`'s primitive of these parameters, or None where it stays `lax`'s.

    out : what the result is like: shape and dtype.
    known : whether lhs and rhs are arguments of the program.
    """
    conv = _read(lhs, rhs, out, params)
    if reason := _reason(conv, params):
        told("", reason)
        return None
    if any(0 in shape for shape in conv.shapes):
        return _zeros(out, lhs, rhs)
    lifted = conv.lifted()
    best = max(readings(lifted), key=lambda r: r.likely(known) - 2.0 * r.cost(), default=None)
    if best is None:  # no element of lhs meets a tap
        return _zeros(out, lhs, rhs)
    sizes = (*best.problem.canonical_shape("data"), *best.problem.canonical_shape("weight"))
    if max(sizes) >= SIZE_BOUND:
        told("", "a size is 2**31 or more")
        return None
    told(best.problem.repro())
    return _computed(lifted, best, lhs, rhs, _options(params)).reshape(out.shape)


def _zeros(out: Any, *operands: Any) -> Any:
    """The result of sums without a term."""
    told("zeros")
    made = jnp.zeros(out.shape, out.dtype)
    for x in operands:
        made, _ = alike(made, x)
    return made


def _options(params: dict[str, Any]) -> Options:
    precision = params["precision"]
    asked = precision if isinstance(precision, tuple) else (precision,)
    names = {lax.Precision.DEFAULT.name if p is None else p.name for p in asked}
    return Options(max(names, key=_PRECISIONS.index))


def _read(lhs: Any, rhs: Any, out: Any, params: dict[str, Any]) -> Convolution:
    numbers = params["dimension_numbers"]

    def letters(spec: Sequence[int], first: str, second: str) -> str:
        at = {spec[0]: first, spec[1]: second} | {a: str(i) for i, a in enumerate(spec[2:])}
        return "".join(at[axis] for axis in range(len(spec)))

    rank = len(params["window_strides"])
    return Convolution(
        (lhs.shape, rhs.shape, out.shape),
        (
            letters(numbers.lhs_spec, "b", "f"), letters(numbers.rhs_spec, "o", "f"),
            letters(numbers.out_spec, "b", "o"),
        ),
        _ints(params["window_strides"]), _ints(low for low, _ in params["padding"]),
        _ints(params["lhs_dilation"]), _ints(params["rhs_dilation"]), (False,) * rank,
        params["feature_group_count"], params["batch_group_count"],
        (str(lhs.dtype), str(rhs.dtype), str(out.dtype)),
    )  # fmt: skip


def _ints(values: Iterable[Any]) -> tuple[Any, ...]:
    """NumPy's integers, which `lax` takes, are none to TVM; symbolic ones stay."""
    return tuple(int(x) if isinstance(x, np.integer) else x for x in values)


def _reason(conv: Convolution, params: dict[str, Any]) -> str:
    """Why a convolution stays `lax`'s, or ""."""
    if wrong := [dtype for dtype in conv.dtypes if dtype not in DTYPE_BYTES]:
        return f"of {wrong[0]}"
    if len({*conv.dtypes}) > 1:
        return f"of {conv.dtypes[0]} and {conv.dtypes[1]}, summed as {conv.dtypes[2]}"
    if conv.rank > max(ACTIVATIONS):
        return f"of {conv.rank} axes of pixels"
    if any(not isinstance(size, int) for shape in conv.shapes for size in shape):
        return "of symbolic sizes"
    if _is_shared_out(params.get("out_sharding")):
        return "out_sharding is given"
    if min((1, *conv.stride, *conv.lhs_dilation, *conv.rhs_dilation)) < 1:
        return "a stride or a dilation is below 1, which XLA refuses"
    if find_spec("jax_tvm_ffi") is None:
        return "the package jax-tvm-ffi is not installed: pip install 'relay-wgrad[jax]'"
    return ""


def _is_shared_out(sharding: Any) -> bool:
    """Whether the result's axes are; within `shard_map` JAX writes a sharding that shares none."""
    if sharding is None:
        return False
    is_manual = all(kind is AxisType.Manual for kind in sharding.mesh.axis_types)
    return not is_manual or any(axes is not None for axes in sharding.spec)


def _computed(conv: Convolution, reading: Reading, lhs: Any, rhs: Any, options: Options) -> Any:
    p, tensors = reading.problem, {}
    cropped = any(map(any, reading.crop))
    for i, (x, role) in enumerate(zip((lhs, rhs), reading.roles, strict=False)):
        x = x.reshape(conv.shapes[i])
        if i == 0 and reading.spread:
            inner = dict(zip(map(str, range(conv.rank)), conv.lhs_dilation, strict=True))
            x = lax.pad(
                x, jnp.zeros((), x.dtype), [(0, 0, inner.get(a, 1) - 1) for a in conv.numbers[0]]
            )
        numbers, move = conv.numbers[i], reading.moves[i]
        if move is not None:
            x = _regrouped(x, numbers, move, p.groups)
        if reading.flips[i]:
            x = lax.rev(x, [numbers.index(str(axis)) for axis in reading.flips[i]])
        if role == "data" and cropped:
            low, high = reading.crops(numbers)
            ends = zip(x.shape, high, strict=True)
            x = lax.slice(x, low, [size - after for size, after in ends])
        tensors[role] = x
    made = convolution(tensors[p.roles[0]], tensors[p.roles[1]], p, options)
    numbers, move = conv.numbers[2], reading.moves[2]
    if reading.roles[2] == "data" and cropped:
        low, high = reading.crops(numbers)
        made = jnp.pad(made, list(zip(low, high, strict=True)))
    if reading.flips[2]:
        made = lax.rev(made, [numbers.index(str(axis)) for axis in reading.flips[2]])
    return made if move is None else _regrouped(made, numbers, (move[1], move[0]), p.groups)


def _regrouped(x: Any, numbers: str, move: tuple[str, str], groups: int) -> Any:
    """The groups, which lead in one axis, as what leads in another."""
    here, there = (numbers.index(letter) for letter in move)
    shape = list(x.shape)
    apart = x.reshape(*shape[:here], groups, shape[here] // groups, *shape[here + 1 :])
    shape[here] //= groups
    shape[there] *= groups
    return jnp.moveaxis(apart, here, there).reshape(shape)
