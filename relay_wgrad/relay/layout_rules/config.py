"""Which convolutions `ConvertLayout` leaves as they are."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar, Token


class LayoutConfig:
    """`with LayoutConfig(skip_layers=[0]):` the first `nn.conv2d` keeps its layout.

    They are counted in the order in which they are computed, from 0, while the context is entered.

    Raises TypeError for what is no list of integers.
    """

    def __init__(self, skip_layers: Sequence[int] | None = None) -> None:
        self.skip_layers = list(skip_layers or ())
        for layer in self.skip_layers:
            if isinstance(layer, bool) or not isinstance(layer, int):
                raise TypeError(f"LayoutConfig: skip_layers must be integers, got {layer!r}")
        self._count = 0
        self._tokens: list[Token[LayoutConfig | None]] = []

    def __enter__(self) -> LayoutConfig:
        self._count = 0
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *error: object) -> None:
        _current.reset(self._tokens.pop())

    @staticmethod
    def skips() -> bool:
        """Whether the next convolution is one to leave; it is counted."""
        config = _current.get()
        if config is None:
            return False
        config._count += 1
        return config._count - 1 in config.skip_layers


_current: ContextVar[LayoutConfig | None] = ContextVar("relay_layout_config", default=None)
