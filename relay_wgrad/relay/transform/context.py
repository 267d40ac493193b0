"""The context that passes run in: TVM's own, and beside it the options of Relay's passes.

TVM takes only options that its library knows, so Relay's are kept here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from typing import Any

import tvm
from tvm.ir.instrument import PassInstrument
from tvm.ir.transform import PassContext as TvmPassContext
from tvm.ir.transform import module_pass

from ..boxed_values import unboxed

__all__ = ["OPTIONS", "PassContext", "TvmPassContext", "option"]

# Relay's options that passes here read, and what they are if no context says.
OPTIONS: Mapping[str, Any] = {
    "relay.FuseOps.max_depth": 256,
    "relay.FuseOps.link_params": False,
    "relay.ToMixedPrecision.keep_orig_output_dtype": False,
}
# The instruments of the context that is entered, as Python's objects: TVM gives back its own.
_instruments: ContextVar[tuple[Any, ...]] = ContextVar("relay_pass_instruments", default=())
_current: ContextVar[Mapping[str, Any]] = ContextVar("relay_pass_options", default=OPTIONS)


class PassContext:
    """As TVM's, whose parameters it has; `with` enters TVM's own, and gives it.

    config : options by name, of Relay's passes (`OPTIONS`) and of TVM's.
    """

    def __init__(
        self,
        opt_level: int = 2,
        required_pass: Sequence[str] | None = None,
        disabled_pass: Sequence[str] | None = None,
        instruments: Sequence[Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        given = dict(config or {})
        own = {name: unboxed(given.pop(name)) for name in OPTIONS if name in given}
        self._options = {**OPTIONS, **own}
        self._tvm = TvmPassContext(opt_level, required_pass, disabled_pass, instruments, given)
        self._given = tuple(instruments or ())
        self._tokens: list[tuple[Token[Mapping[str, Any]], Token[tuple[Any, ...]]]] = []

    def __enter__(self) -> TvmPassContext:
        outer = TvmPassContext.current()
        try:
            out: TvmPassContext = self._tvm.__enter__()
        except BaseException:
            if not TvmPassContext.current().same_as(outer):
                self._tvm.__exit__(None, None, None)  # an instrument has refused
            raise
        self._tokens.append((_current.set(self._options), _instruments.set(self._given)))
        return out

    def __exit__(self, *error: object) -> None:
        options, instruments = self._tokens.pop()
        _current.reset(options)
        _instruments.reset(instruments)
        self._tvm.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._tvm, name)

    @staticmethod
    def current() -> Any:
        """The context that is entered, TVM's or one of these, or TVM's default."""
        return _Entered(TvmPassContext.current())


class _Entered:
    """TVM's context, whose instruments these passes ask as well."""

    def __init__(self, context: TvmPassContext) -> None:
        self._tvm = context

    def override_instruments(self, instruments: Sequence[Any] | None) -> None:
        """Takes others in place of the context's instruments; None for none."""
        _instruments.set(tuple(instruments or ()))
        self._tvm.override_instruments(list(instruments or ()))

    def __eq__(self, other: object) -> bool:
        return bool(self._tvm.same_as(getattr(other, "_tvm", other)))

    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tvm, name)


def instrumented(info: Any, mod: Any, run: Callable[[], Any]) -> Any:
    """`run()`, with the context's instruments asked before and after; `mod` where one says no."""
    instruments = _instruments.get()
    if not instruments:
        return run()
    if not all(isinstance(item, PassInstrument) for item in instruments):
        # TVM's own, which measures TVM's passes: one of that name runs this.
        made: list[Any] = []

        def within(module: tvm.IRModule, context: TvmPassContext) -> tvm.IRModule:
            made.append(run())
            return module

        module_pass(within, opt_level=info.opt_level, name=info.name)(tvm.IRModule())
        return made[0] if made else mod
    # One that does not say is for it: the base's method gives None.
    if not all(item.should_run(mod, info) is not False for item in instruments):
        return mod
    for item in instruments:
        item.run_before_pass(mod, info)
    out = run()
    for item in instruments:
        item.run_after_pass(out, info)
    return out


def option(name: str) -> Any:
    """The value of one of Relay's options."""
    return _current.get()[name]
