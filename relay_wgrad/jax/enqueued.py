"""A function of TVM's as a call within XLA's programs: on XLA's stream, and nobody waits for it.

Its results are copied to where XLA wants them, so that what lives how long is XLA's to know.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import tvm_ffi

from .targets import FFI_PLATFORM, ending

_numbers = itertools.count()


def enqueued(
    function: Callable[..., Sequence[Any]], arguments: Sequence[jax.ShapeDtypeStruct],
    results: Sequence[jax.ShapeDtypeStruct], copy: Callable[[Any, Any], None], platform: str,
    donated: Collection[int] = (),
) -> Callable[..., list[Any]]:  # fmt: skip
    """A function of JAX's arrays, that `jax.jit` takes.

    function : of tensors; it gives tensors like `results`, which it may write over in its next
        call.  It runs for one caller at a time, and is kept until the process ends.
    copy : gives the current stream a copy, of (to, source).
    platform : "cpu" or "cuda".
    donated : numbers of arguments that the caller gives up: results like them take their places.

    Raises ModuleNotFoundError without jax-tvm-ffi.
    """
    import jax_tvm_ffi

    lock, count = threading.Lock(), len(results)
    name = f"relay_wgrad.whole.{next(_numbers)}"

    def called(*tensors: Any) -> None:
        given, places = tensors[: len(tensors) - count], tensors[len(tensors) - count :]
        with ending.call(), lock:
            for to, made in zip(places, function(*given), strict=True):
                copy(to, made)

    jax_tvm_ffi.register_ffi_target(
        name, tvm_ffi.convert(called), platform=FFI_PLATFORM[platform], pass_owned_tensor=True
    )
    aliases = _places(arguments, results, donated)
    call = jax.ffi.ffi_call(name, list(results), input_output_aliases=aliases)
    run = jax.jit(call, donate_argnums=tuple(aliases))
    return lambda *arrays: list(run(*arrays))


def _places(
    arguments: Sequence[jax.ShapeDtypeStruct], results: Sequence[jax.ShapeDtypeStruct],
    donated: Collection[int],
) -> dict[int, int]:  # fmt: skip
    """Donated arguments -> results that take their places: copied there once all is computed."""
    free, found = list(range(len(results))), dict[int, int]()
    for i in sorted(donated):
        like = (arguments[i].shape, arguments[i].dtype)
        for j in free:
            if (results[j].shape, results[j].dtype) == like:
                found[i] = j
                free.remove(j)
                break
    return found
