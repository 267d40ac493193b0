"""Why `torch.export` refuses a module, in one line; and what it prints then, not at all."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
from collections.abc import Iterator
from threading import get_ident
from typing import Any

from .batch import violated

_VALUES = "a branch, a size or an index by a tensor's values is not known on import: choose by"
_LOGS = ("torch.export", "torch.export._trace", "torch.fx.experimental.symbolic_shapes",
         "torch._subclasses.fake_tensor")  # fmt: skip
_PLACE = re.compile(r'File "([^"]+)", line (\d+), in (\w+)')


def reason(error: Exception) -> str:
    """The first line that says something to who wrote the module."""
    text = str(error).strip()
    first = text.partition("\n")[0]
    if "Constraints violated" in first:
        return violated(error)
    if not hasattr(error, "cond"):
        return first
    # A condition on a symbol that stands for a value: which line of the module asked for it.
    places = _PLACE.findall(text)
    where = f" ({places[-1][0]}, line {places[-1][1]}, in {places[-1][2]})" if places else ""
    return f"{_VALUES} torch.where{where}"


class _Held(io.TextIOBase):
    """Standard error, of which one thread's part is held back."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._thread, self.text = stream, get_ident(), ""

    def write(self, text: str) -> int:
        if get_ident() != self._thread:
            return int(self._stream.write(text))
        self.text += text
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return int(self._stream.fileno())

    def isatty(self) -> bool:
        return bool(self._stream.isatty())


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Within, this thread's lines in PyTorch's logs of exporting go nowhere: an error says it."""
    thread = get_ident()

    def is_others(_: logging.LogRecord) -> bool:
        return get_ident() != thread

    loggers = [logging.getLogger(name) for name in _LOGS]
    for logger in loggers:
        logger.addFilter(is_others)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_others)


@contextlib.contextmanager
def without_graph() -> Iterator[None]:
    """Within, the graph that `torch.export` prints where it raises goes nowhere; what the module
    prints goes where it went, afterwards."""
    held = _Held(sys.stderr)
    try:
        with contextlib.redirect_stderr(held), unlogged():
            yield
    except Exception as error:
        held.text = held.text.replace(f"{getattr(error, 'partial_fx_graph', None)}\n", "")
        raise
    finally:
        if held.text:
            sys.stderr.write(held.text)
