"""Modes of PyTorch's in which a first call can come, each as what calls a function of a tensor."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

Call = Callable[[Any], Any]
Mode = Callable[[Call, Any], Any]


class Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _within(make: Callable[[], Any]) -> Mode:
    def called(function: Call, x: Any) -> Any:
        with make():
            return function(x)

    return called


@contextlib.contextmanager
def _set(read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


def _switch(read: Any, write: Any, value: Any) -> Mode:
    return _within(lambda: _set(read, write, value))


def _thread(function: Call, x: Any) -> Any:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(function(x))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _backward(function: Call, x: Any) -> Any:
    """In a hook of a backward pass."""
    found: list[Any] = []
    leaf = torch.ones(1, requires_grad=True)
    leaf.register_hook(lambda g: found.append(function(x)))
    (leaf * 2).sum().backward()
    return found[0]


def _function(function: Call, x: Any) -> Any:
    """In the forward pass of an autograd.Function, whose results nobody records."""
    found: list[Any] = []

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, given: Any) -> Any:
            found.append(function(x))
            return given.clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad

    Own.apply(torch.ones(1, requires_grad=True))
    return found[0]


def _dual(function: Call, x: Any) -> Any:
    with forward_ad.dual_level():
        return function(x)


def _tangent(function: Call, x: Any) -> Any:
    with forward_ad.dual_level():
        made = function(forward_ad.make_dual(x, torch.ones_like(x)))
        primal, tangent = forward_ad.unpack_dual(made)
        return primal if tangent is None else primal + tangent


def _of_one(x: Any) -> Any:
    return torch.ones((), dtype=x.dtype)


MODES: dict[str, Mode] = {
    "none": lambda f, x: f(x),
    "checkpoint": lambda f, x: checkpoint(f, x, use_reentrant=False),
    "reentrant": lambda f, x: checkpoint(f, x, use_reentrant=True),
    "save_on_cpu": _within(torch.autograd.graph.save_on_cpu),
    "saved_hooks": _within(
        lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: [t], lambda t: t[0])
    ),
    "no_saved_hooks": _within(lambda: torch.autograd.graph.disable_saved_tensors_hooks("none")),
    "allow_mutation": _within(torch.autograd.graph.allow_mutation_on_saved_tensors),
    "no_grad": _within(torch.no_grad),
    "inference": _within(torch.inference_mode),
    "autocast": _within(lambda: torch.autocast("cpu", torch.bfloat16)),
    "autocast_off": _within(lambda: torch.autocast("cpu", enabled=False)),
    "flops": _within(lambda: FlopCounterMode(display=False)),
    "function_mode": _within(Functions),
    "dispatch_mode": _within(Dispatch),
    "device": _within(lambda: torch.device("cpu")),
    "meta": _within(lambda: torch.device("meta")),
    "default_device": _switch(lambda: None, torch.set_default_device, "meta"),
    "default_dtype": _switch(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "deterministic": _switch(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "anomaly": _within(torch.autograd.detect_anomaly),
    "threads": _switch(torch.get_num_threads, torch.set_num_threads, 1),
    "matmul": _switch(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"
    ),
    "cached": _within(torch.nn.utils.parametrize.cached),
    "fork_rng": _within(torch.random.fork_rng),
    "profile": _within(torch.autograd.profiler.profile),
    "thread": _thread,
    "backward": _backward,
    "function": _function,
    "dual": _dual,
    "tangent": _tangent,
    "vmap": lambda f, x: torch.func.vmap(lambda one: f(x) * one)(_of_one(x)[None])[0],
    "vmap_x": lambda f, x: torch.func.vmap(f)(x[None])[0],
    "grad": lambda f, x: torch.func.grad(lambda one: (f(x) * one).sum())(_of_one(x)),
    "grad_x": lambda f, x: torch.func.grad(lambda y: f(y).square().sum())(x),
    "jvp": lambda f, x: torch.func.jvp(lambda one: f(x) * one, (_of_one(x),), (_of_one(x),))[0],
}
"""Name -> what calls a function with a tensor in it."""


def left() -> list[str]:
    """Modes that this thread is still in."""
    found = {
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "saved hooks": torch._C._autograd._top_saved_tensors_default_hooks(False) is not None,
        "grad mode": not torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "levels": torch._C._functorch.peek_interpreter_stack() is not None,
        "autocast": torch.is_autocast_enabled("cpu"),
        "default dtype": torch.get_default_dtype() != torch.float32,
        "parametrizations": torch.nn.utils.parametrize._cache_enabled != 0,
        "hooks of all modules": torch.nn.modules.module._has_any_global_hook(),
    }
    return [name for name, there in found.items() if there]
