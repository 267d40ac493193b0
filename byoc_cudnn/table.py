"""The one table: every backend and every row that a call can go to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relay_wgrad.backend_names import STOCK
from relay_wgrad.problem import ConvKind

from . import fused
from .backends import GIVEN, base
from .backends.base import Backend, Check, Row, option_names, rows_of
from .codegen import external

BACKENDS: dict[str, Backend] = {backend.name: backend for backend in GIVEN}
ROWS: tuple[Row, ...] = tuple(row for backend in BACKENDS.values() for row in backend.rows)
CODEGENS: dict[str, Backend] = {backend.codegen: backend for backend in BACKENDS.values()}


_GIVEN = frozenset(BACKENDS)


@dataclass(frozen=True)
class NoOptions:
    """Of a backend that has none."""


def register_backend(
    name: str,
    accepts: Check,
    layouts: Sequence[tuple[str, str, str]],
    epilogues: Mapping[ConvKind, Sequence[str]],
    codegen: str | None = None,
    options: type = NoOptions,
    *,
    bound: base.Bound | None = None,
    wider: base.Wider = base.not_wider,
    generate: base.Generate | None = None,
    inputs: base.Inputs = base.no_inputs,
    pins: Sequence[str] = (),
    check_pins: base.CheckPins = base.any_pins,
    tried: base.Tried = base.one_try,
    version: base.Version = base.no_version,
) -> Backend:
    """Makes a backend of one's own known to `partition`; the same name again replaces it.

    With `generate`, `build` and `tune` know it too.

    Parameters
    ----------
    name : an identifier; it is the row's prefix in reports.
    accepts : a problem and an epilogue's name to a `Decision`, with the reason for a refusal.
    layouts : triples (data, weight, grad), to one of which operands are permuted if that helps.
    epilogues : for each kind what it takes along, names of `fused`; "" is the call alone.  The
        longest is asked first.
    codegen : its code generator is `relax.ext.<codegen>`, an identifier; by default the name.
    options : a frozen dataclass of what may be set for `partition`.
    bound, wider, generate, inputs, pins, check_pins, tried, version : of the record, `Backend`.

    Raises
    ------
    TypeError : for a name that is no string.
    ValueError : for a name or a generator that is no identifier or belongs to another backend, for
        an unknown epilogue, naming the known ones, and for pins that are no options.
    """
    codegen = name if codegen is None else codegen
    for what, value in (("name", name), ("codegen", codegen)):
        if not isinstance(value, str):
            raise TypeError(f"register_backend: {what} must be a string, got {value!r}")
        if not (value.isascii() and value.isidentifier()):
            raise ValueError(f"register_backend: {what} must be an identifier, got {value!r}")
    if name in _GIVEN:
        raise ValueError(f"register_backend: {name} is a backend of this package")
    if name == STOCK:
        raise ValueError(f"register_backend: {name} stands for TVM's own kernels")
    owner = CODEGENS.get(codegen)
    if owner is not None and owner.name != name:
        raise ValueError(f"register_backend: codegen {codegen} is that of {owner.name}")
    for of_kind in epilogues.values():
        for epilogue in of_kind:
            if epilogue not in fused.EPILOGUES:
                known = ", ".join(repr(e) for e in fused.EPILOGUES)
                raise ValueError(
                    f"register_backend: unknown epilogue {epilogue!r}; there are {known}"
                )
    known_options = option_names(options)
    if unknown := [pin for pin in pins if pin not in known_options]:
        raise ValueError(
            f"register_backend: pins {', '.join(unknown)} are no options; there are"
            f" {', '.join(known_options)}"
        )
    backend = Backend(
        name, codegen, options, tuple(layouts), accepts, rows_of(name, epilogues, accepts), bound,
        wider, generate, inputs, tuple(pins), check_pins, tried, version,
    )  # fmt: skip
    external.register(backend)
    before = BACKENDS.get(name)
    if before is not None:
        del CODEGENS[before.codegen]
    BACKENDS[name] = CODEGENS[codegen] = backend
    return backend


def backend_of(name: Any) -> Backend:
    """The backend of that name.

    Raises TypeError for what is no string, ValueError for an unknown name.
    """
    if not isinstance(name, str):
        raise TypeError(f"a backend is named by a string, got {name!r}")
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}; there are {', '.join(BACKENDS)}")
    return BACKENDS[name]


def patterns(backend: str) -> tuple[Row, ...]:
    """The rows of a backend, big to small.

    Raises TypeError for what is no string, ValueError for an unknown name.
    """
    return backend_of(backend).rows
