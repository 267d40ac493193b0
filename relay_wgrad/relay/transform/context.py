"""The context that passes run in: TVM's own, and beside it the options of Relay's passes.

TVM takes only options that its library knows, so Relay's are kept here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from typing import Any

from tvm.ir.transform import PassContext as TvmPassContext

from ..boxes import plain

__all__ = ["OPTIONS", "PassContext", "TvmPassContext", "option"]

# Relay's options that passes here read, and what they are if no context says.
OPTIONS: Mapping[str, Any] = {
    "relay.FuseOps.max_depth": 256,
    "relay.FuseOps.link_params": False,
    "relay.ToMixedPrecision.keep_orig_output_dtype": False,
}
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
        own = {name: plain(given.pop(name)) for name in OPTIONS if name in given}
        self._options = {**OPTIONS, **own}
        self._tvm = TvmPassContext(opt_level, required_pass, disabled_pass, instruments, given)
        self._tokens: list[Token[Mapping[str, Any]]] = []

    def __enter__(self) -> TvmPassContext:
        out: TvmPassContext = self._tvm.__enter__()
        self._tokens.append(_current.set(self._options))
        return out

    def __exit__(self, *error: object) -> None:
        _current.reset(self._tokens.pop())
        self._tvm.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._tvm, name)

    @staticmethod
    def current() -> TvmPassContext:
        """TVM's context that is entered, or its default."""
        return TvmPassContext.current()


def option(name: str) -> Any:
    """The value of one of Relay's options."""
    return _current.get()[name]
