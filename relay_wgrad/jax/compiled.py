"""JAX's functions, gradients as JAX makes them, as programs that this package compiles."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import tvm

from .. import keys
from ..argument_types import checked_bool, checked_integer
from ..dtypes import numpy_dtype
from ..facts import Lowered
from ..frontend import GradientGraph, from_stablehlo
from ..registry import is_registered, register
from .records import portable


class Compiled:
    """A function of JAX, compiled for arguments like the examples: shapes, dtypes, tree.

    On a GPU a call is enqueued, as JAX's own are, and the program is kept until the process ends.

    graph : what it was read as; `graph.report` says what became of its convolutions.
    convolutions : each one's operator and problem, and whose kernel computes it.
    """

    def __init__(
        self, function: Callable[..., Any], example_args: Sequence[Any], device: str,
        backends: Sequence[str] | None = None, donate_argnums: int | Sequence[int] = (),
    ) -> None:  # fmt: skip
        from ..training.devices import place
        from ..training.options import Options
        from ..training.step import ADJOINT, converted

        if not is_registered():
            register()
        jax = import_module("jax")
        self._jax, self._lock = jax, threading.Lock()
        name = str(getattr(function, "__name__", "function"))
        donated = _donated(name, donate_argnums, example_args)
        # A function of its own: JAX keeps what it has lowered, for its own calls too.
        with portable():
            lowered = jax.jit(lambda *a: function(*a), keep_unused=True).lower(*example_args)
        self.graph: GradientGraph = from_stablehlo(lowered, name=name)
        _, self._tree = jax.tree_util.tree_flatten(tuple(example_args))
        self._out_tree = lowered.out_tree
        # What is a result as it stands, is not given up.
        stays = {value for kind, value in self.graph.outputs if kind.endswith("input")}
        self._donated = [i for i in donated if i not in stays]
        self._function: Any = None
        self.convolutions: list[Lowered] = []
        if backends is not None and device == "cpu":
            raise ValueError(f"{name}: backends are a GPU's, got {backends!r} for device 'cpu'")
        where = place(device, Options(select="measured", backends=backends))
        self._device = where.device
        self._enqueued: Any = None
        self._gpu: Any = None
        if any(result.kind == "result" for result in self.graph.outputs):
            module = self.graph.module.clone()
            main = module["main"]
            del module["main"]
            module[ADJOINT] = main.with_attr(keys.SYMBOL, ADJOINT)
            module = converted(module, where.layout, blocks=where.blocks)
            self._built = where.compile(module, lambda what: None)
            self._function = self._built.vm[ADJOINT]
            self.convolutions = self._built.convolutions
            if self._device.type == "cuda":
                self._enqueued = self._on_stream(jax.tree.leaves(lowered.out_info))

    def __call__(self, *args: Any) -> Any:
        """The function's result, of JAX arrays.

        Raises ValueError for arguments of another tree, shape or dtype than the examples', and
        TypeError within a trace of JAX's (`jit`, `grad`, `vmap`) on a CPU.
        """
        jax = self._jax
        flat, tree = jax.tree_util.tree_flatten(args)
        if tree != self._tree:
            raise ValueError(f"{self.graph.name}: arguments are {tree}, the examples {self._tree}")
        specs = [spec for spec in self.graph.inputs if spec is not None]
        for i, (x, spec) in enumerate(zip(flat, specs, strict=True)):
            shape = tuple(np.shape(x))
            dtype = str(jax.dtypes.canonicalize_dtype(jax.numpy.result_type(x)))
            if (shape, dtype) != (spec.shape, spec.dtype):
                raise ValueError(
                    f"{self.graph.name}: argument {i} is {dtype}{list(shape)}, the example"
                    f" {spec.dtype}{list(spec.shape)}"
                )
        if self._enqueued is None and any(isinstance(x, jax.core.Tracer) for x in flat):
            raise TypeError(
                f"{self.graph.name}: a compiled function runs outside of jax.jit, jax.grad and"
                " jax.vmap: within them use relay_wgrad.jax.optimize"
            )
        made: list[Any] = []
        if self._enqueued is not None:
            typed = [
                x if isinstance(x, jax.Array) else np.asarray(x, numpy_dtype(s.dtype))
                for x, s in zip(flat, specs, strict=True)
            ]
            made = self._enqueued(*jax.device_put(typed, self._gpu))
            self._give_up(flat)
        elif self._function is not None:
            given = [self._tensor(x, s.dtype) for x, s in zip(flat, specs, strict=True)]
            with self._lock:  # a virtual machine runs one function at a time
                found = self._function(*given)
                # A GPU's results and arguments are JAX's when this returns, whose streams do not
                # wait for this one's kernels.
                self._device.sync()
                made = [self._array(x) for x in found]
            self._give_up(flat)
        results = self.graph.results(flat, made)
        arrays = [jax.numpy.asarray(x) for x in results]
        return jax.tree_util.tree_unflatten(self._out_tree, arrays)

    def _give_up(self, flat: list[Any]) -> None:
        """Donated arrays: their memory is free once what has begun is done with it."""
        for i in self._donated:
            if isinstance(flat[i], self._jax.Array) and not flat[i].is_deleted():
                flat[i].delete()

    def _on_stream(self, like: list[Any]) -> Any:
        """The function within JAX's program of a GPU, so that a call waits for nothing.

        None where JAX has not this GPU, or has not the package for it, and of bools, which lie
        otherwise in tensors.
        """
        from ..training.capture import Lane
        from ..training.cuda_tools import cuda_runtime
        from .enqueued import enqueued

        computed = {
            value: info
            for info, (kind, value) in zip(like, self.graph.outputs, strict=True)
            if kind.endswith("result")
        }
        results = [computed[i] for i in range(len(computed))]
        arguments = [
            self._jax.ShapeDtypeStruct(spec.shape, numpy_dtype(spec.dtype))
            for spec in self.graph.inputs
            if spec is not None
        ]
        dtypes = [x.dtype for x in (*arguments, *results)]
        with suppress(RuntimeError):
            found = {gpu.local_hardware_id: gpu for gpu in self._jax.local_devices(backend="gpu")}
            self._gpu = found.get(int(self._device.index))
        if self._gpu is None or "bool" in map(str, dtypes) or find_spec("jax_tvm_ffi") is None:
            return None
        lane = Lane(cuda_runtime(), self._device)
        function, donated = self._function, self._donated
        return enqueued(function, arguments, results, lane.copy, "cuda", donated)

    def _tensor(self, x: Any, dtype: str) -> Any:
        """TVM's tensor of a value, without a copy where it is JAX's on the same device."""
        if isinstance(x, self._jax.Array) and dtype != "bool":
            found = tvm.runtime.from_dlpack(x.block_until_ready())
            if found.device == self._device:
                return found
        array = np.asarray(x, numpy_dtype(dtype), order="C")  # of no axes too
        return tvm.runtime.tensor(array, self._device)

    def _array(self, x: Any) -> Any:
        """JAX's array of a tensor."""
        if str(x.dtype) == "bool":
            return self._jax.numpy.asarray(x.numpy())
        return self._jax.dlpack.from_dlpack(x)


def _donated(name: str, numbers: int | Sequence[int], example_args: Sequence[Any]) -> list[int]:
    """The leaves of arguments of these numbers.  Raises ValueError for a number of none."""
    tree = import_module("jax").tree
    asked = (numbers,) if isinstance(numbers, int) else tuple(numbers)
    counts = [len(tree.leaves(x)) for x in example_args]
    for number in asked:
        checked_integer(f"{name}: donate_argnums", number, 0)
        if number >= len(counts):
            raise ValueError(f"{name}: donate_argnums are of {len(counts)} arguments, got {number}")
    firsts = [sum(counts[:i]) for i in range(len(counts))]
    return [first + i for n, first in enumerate(firsts) if n in asked for i in range(counts[n])]


def compiled(
    function: Callable[..., Any], example_args: Sequence[Any], *, device: str = "cpu",
    backends: Sequence[str] | None = None, donate_argnums: int | Sequence[int] = (),
) -> Compiled:  # fmt: skip
    """A function of JAX as a program that this package compiles.

    Parameters
    ----------
    function : of arrays and trees of them, that `jax.jit` takes.
    example_args : arguments, or `jax.ShapeDtypeStruct`s, of the shapes and dtypes that calls have.
    device : "cpu", or "cuda:N": there arrays go both ways by DLPack.
    backends : of a GPU's libraries those that are compared, by name; None: all that are here, of
        which CUTLASS has kernels that take half a minute of a core each, the first time.
    donate_argnums : arguments that a call gives up, as in `jax.jit`: their arrays are deleted, and
        on a GPU results of the same shapes and dtypes lie where they did.

    Raises
    ------
    ValueError : as `from_stablehlo` does, for a device that is not there, for no library's name,
        for libraries of a CPU, and for the number of no argument.
    ModuleNotFoundError : without JAX.
    """
    return Compiled(function, example_args, device, backends, donate_argnums)


def value_and_grad(
    function: Callable[..., Any],
    example_args: Sequence[Any],
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: bool = False,
    device: str = "cpu",
    backends: Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] = (),
) -> Compiled:
    """`jax.value_and_grad(function, argnums, has_aux)`, run by this package.

    JAX differentiates; the convolutions of what it writes become the family's operators
    (`from_stablehlo`), and the whole is compiled here.  See `compiled`.  Raises TypeError for a
    `has_aux` that is neither True nor False, too.
    """
    checked_bool("value_and_grad: has_aux", has_aux)
    jax = import_module("jax")
    numbers = argnums if isinstance(argnums, int) else tuple(argnums)
    differentiated = jax.value_and_grad(function, numbers, has_aux)
    return compiled(
        differentiated, example_args, device=device, backends=backends,
        donate_argnums=donate_argnums,
    )  # fmt: skip
