"""`jax.lax`'s convolutions by this package's kernels, inside `jax.jit`: any that `lax` takes.

One that is a member of the family becomes the primitive, in whatever layout; everything else is
`lax`'s, and `recorded` tells why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any


def conv_general_dilated(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:
    """`jax.lax.conv_general_dilated` by this package's kernels, and so are its derivatives.

    Arguments, shapes and errors are `lax`'s.  Of other dtypes than float16, bfloat16, float32 and
    float64 and of more than three axes of pixels it is `lax`'s own (`recorded`).

    Raises ModuleNotFoundError without JAX.
    """
    from jax import lax

    return _replaced(
        partial(
            lax.conv_general_dilated, window_strides=window_strides, padding=padding,
            lhs_dilation=lhs_dilation, rhs_dilation=rhs_dilation,
            dimension_numbers=dimension_numbers, feature_group_count=feature_group_count,
            batch_group_count=batch_group_count, precision=precision,
            preferred_element_type=preferred_element_type,
            **_newer(out_sharding=(out_sharding, None)),
        ),
        lhs, rhs,
    )  # fmt: skip


def conv(
    lhs: Any, rhs: Any, window_strides: Sequence[int], padding: str, precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:  # fmt: skip
    """`jax.lax.conv`: as `conv_general_dilated`, of lhs (N, C, …) and rhs (K, C, …)."""
    return conv_general_dilated(
        lhs, rhs, window_strides, padding, precision=precision,
        preferred_element_type=preferred_element_type,
    )  # fmt: skip


def conv_transpose(
    lhs: Any, rhs: Any, strides: Sequence[int], padding: str | Sequence[tuple[int, int]],
    rhs_dilation: Sequence[int] | None = None, dimension_numbers: Any = None,
    transpose_kernel: bool = False, precision: Any = None, preferred_element_type: Any = None,
    use_consistent_padding: bool = False,
) -> Any:  # fmt: skip
    """`jax.lax.conv_transpose`, a dgrad of the family: see `conv_general_dilated`."""
    from jax import lax

    return _replaced(
        partial(
            lax.conv_transpose, strides=strides, padding=padding, rhs_dilation=rhs_dilation,
            dimension_numbers=dimension_numbers, transpose_kernel=transpose_kernel,
            precision=precision, preferred_element_type=preferred_element_type,
            **_newer(use_consistent_padding=(use_consistent_padding, False)),
        ),
        lhs, rhs,
    )  # fmt: skip


def _newer(**given: tuple[Any, Any]) -> dict[str, Any]:
    """Arguments that older releases of JAX lack, each with its default, where they are given."""
    return {name: value for name, (value, default) in given.items() if value is not default}


def optimize(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with this package's convolutions in the places of `lax`'s, wherever they are.

    It is traced when it is called, and behaves as the function does: within `jax.jit`, under
    `jax.grad`, `jax.vmap`, and on what these have made (`optimize(jax.grad(loss))`), where the
    gradients that JAX writes are read as the family's dgrad and wgrad.  Loops, branches and bodies
    of `shard_map` within are rewritten too; the derivative rules of `custom_vjp` are not.
    `recorded` tells what became of each convolution.

    function : any callable: also a flax or equinox module, or a method of one.

    Raises TypeError for what cannot be called, and ModuleNotFoundError without JAX when it is.
    """
    if not callable(function):
        raise TypeError(f"optimize: function must be callable, got {type(function).__name__}")

    @wraps(function, updated=())  # a module's attributes are its own
    def called(*args: Any, **kwargs: Any) -> Any:
        from .objects import with_objects

        return with_objects(_replaced, function, *args, **kwargs)

    return called


def _replaced(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    from .replacing import replaced

    return replaced(function, *args, **kwargs)


def set_measured(*platforms: str) -> tuple[str, ...]:
    """See `choice.set_measured`."""
    from . import choice

    return choice.set_measured(*platforms)
