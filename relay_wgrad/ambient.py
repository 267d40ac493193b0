"""What PyTorch computes is changed by modes of the calling thread; what is compiled must not be.

A program is made by its first call, wherever that is: in `torch.utils.checkpoint`, whose hooks
would see the tensors that a trace saves; under autocast, `inference_mode` or a `TorchDispatchMode`;
within `torch.func.vmap`.  Process-wide switches (deterministic algorithms, anomaly detection, the
default dtype) stay as they are: other threads go by them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from importlib import import_module
from typing import Any

_left = threading.local()  # the default devices that the outermost `outside` of a thread took away


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Within it this thread is in none of its caller's modes: what makes a program is done here.

    Without PyTorch nothing is done: then there is no mode.
    """
    try:
        torch: Any = import_module("torch")
    except ModuleNotFoundError:
        yield
        return
    levels = import_module("torch._functorch.pyfunctorch")
    with contextlib.ExitStack() as stack:
        for left in (
            levels.temporarily_clear_interpreter_stack(),
            _without_function_modes(torch),
            _without_dispatch_modes(torch),
            _without_saving(torch),
            _without_shared_parametrizations(),
            _without_trackers(),
            torch.inference_mode(False),
            torch.enable_grad(),
            *(
                torch.autocast(kind, enabled=False)
                for kind in ("cpu", "cuda")
                if torch.is_autocast_enabled(kind)
            ),
        ):
            stack.enter_context(left)
        yield


@contextlib.contextmanager
def default_device() -> Iterator[None]:
    """Within it tensors are made where they are by default outside of `outside`: of code that is a
    user's, and so means it."""
    with contextlib.ExitStack() as stack:
        for mode in getattr(_left, "devices", ()):
            stack.enter_context(import_module("torch").device(mode.device))
        yield


@contextlib.contextmanager
def _without_function_modes(torch: Any) -> Iterator[None]:
    overrides, devices = torch.overrides, import_module("torch.utils._device")
    modes = [overrides._pop_mode() for _ in range(overrides._len_torch_function_stack())]
    before = getattr(_left, "devices", ())
    _left.devices = (*before, *(m for m in modes if isinstance(m, devices.DeviceContext)))
    try:
        yield
    finally:
        _left.devices = before
        for mode in reversed(modes):
            overrides._push_mode(mode)


@contextlib.contextmanager
def _without_dispatch_modes(torch: Any) -> Iterator[None]:
    """Without `TorchDispatchMode`s of this thread.

    The stack of `torch.export`'s modes (PreDispatch) is one for the process; it is this thread's
    where this thread is the one that exports.
    """
    dispatch = import_module("torch.utils._python_dispatch")
    if torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PreDispatch):
        with dispatch._disable_current_modes():
            yield
        return
    modes = [dispatch._pop_mode() for _ in range(torch._C._len_torch_dispatch_stack())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            dispatch._push_mode(mode)


@contextlib.contextmanager
def _without_saving(torch: Any) -> Iterator[None]:
    """Without hooks of saved tensors, as of `checkpoint` and `save_on_cpu`."""
    autograd, hooks = torch._C._autograd, []
    while (pair := autograd._top_saved_tensors_default_hooks(False)) is not None:
        hooks.append(pair)
        autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pair in reversed(hooks):
            autograd._push_saved_tensors_default_hooks(*pair)


def hooks_of_all() -> bool:
    """Whether a user has hooks that PyTorch calls for each module there is."""
    module: Any = import_module("torch.nn.modules.module")
    return any(
        not isinstance(hook, _Elsewhere) for hooks in _of_all(module) for hook in hooks.values()
    )


def _of_all(module: Any) -> list[dict[Any, Any]]:
    return [
        module._global_forward_hooks, module._global_forward_pre_hooks,
        module._global_backward_hooks, module._global_backward_pre_hooks,
    ]  # fmt: skip


class _Elsewhere:
    """A hook that is not called in some threads; in one as often as it is named."""

    def __init__(self, hook: Any) -> None:
        self.hook, self.threads = hook, list[int]()

    def __call__(self, *args: Any) -> Any:
        return None if threading.get_ident() in self.threads else self.hook(*args)


_of_process = threading.Lock()  # held where what belongs to the process is changed
_lowered = _within = 0  # of `_without_shared_parametrizations`


@contextlib.contextmanager
def _without_trackers() -> Iterator[None]:
    """Without hooks of PyTorch's own for all modules, as of `FlopCounterMode`, in this thread."""
    thread = threading.get_ident()
    ours: list[tuple[dict[Any, Any], Any, _Elsewhere]] = []
    with _of_process:
        for held in _of_all(import_module("torch.nn.modules.module"))[:2]:
            for key, hook in list(held.items()):
                if str(getattr(hook, "__module__", "")).startswith("torch."):
                    hook = held[key] = _Elsewhere(hook)
                if isinstance(hook, _Elsewhere):
                    hook.threads.append(thread)
                    ours.append((held, key, hook))
    try:
        yield
    finally:
        with _of_process:
            for held, key, wrapped in ours:
                wrapped.threads.remove(thread)
                if not wrapped.threads and held.get(key) is wrapped:
                    held[key] = wrapped.hook


@contextlib.contextmanager
def _without_shared_parametrizations() -> Iterator[None]:
    """Within `parametrize.cached()` a traced weight would be what the next layer call gets.

    How deep one is in these is the process's: the first thread here lowers it to 0 and the last
    raises it by as much, so that a thread that enters or leaves one meanwhile does no harm.
    """
    global _lowered, _within
    parametrize: Any = import_module("torch.nn.utils.parametrize")
    with _of_process:
        _within, depth = _within + 1, parametrize._cache_enabled
        _lowered += depth
        parametrize._cache_enabled -= depth
    try:
        yield
    finally:
        with _of_process:
            _within -= 1
            if not _within:
                parametrize._cache_enabled += _lowered
                _lowered = 0
