"""The one table: every backend and every row that a call can go to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from tvm.relax.dpl import DFPattern

from relay_wgrad.problem import ConvKind, ConvProblem

from . import patterns as _patterns
from .backends.cudnn import check as cudnn
from .backends.cutlass import check as cutlass
from .backends.cutlass.model import wider_channels
from .decision import Decision
from .patterns import Chain, check_epilogue

Check = Callable[[ConvProblem, str], Decision]


@dataclass(frozen=True)
class Row:
    """One thing a backend can do: a convolution of a kind with an epilogue."""

    backend: str
    kind: ConvKind
    epilogue: str
    accepts: Check

    @property
    def name(self) -> str:
        """`fprop`, `fprop_bias`, …: what composites are named after."""
        return f"{self.kind.value}_{self.epilogue}" if self.epilogue else self.kind.value

    @property
    def pattern(self) -> DFPattern:
        """TVM's pattern of the row's ops; needs `relay_wgrad.register()`."""
        return _patterns.pattern(self.kind, self.epilogue)

    def check(self, problem: ConvProblem, chain: Chain) -> Decision:
        """Whether the row takes the bindings that its pattern matched."""
        decision = self.accepts(problem, self.epilogue)
        return check_epilogue(chain, problem, self.epilogue) if decision else decision


@dataclass(frozen=True)
class Backend:
    """A library.

    `codegen` is the name under which its code generator is registered (`relax.ext.<codegen>`).
    `layouts` are the triples (data, weight, grad) that it takes.  `accepts` decides on a problem
    with an epilogue; `rows` go from big to small, and the first that accepts a call gets it.
    `bound` gives `accepts` under options, for a backend whose options change what it takes; `wider`
    the problem with more channels that it would rather solve, or None.
    """

    name: str
    codegen: str
    options: type
    layouts: tuple[tuple[str, str, str], ...]
    accepts: Check
    rows: tuple[Row, ...]
    bound: Callable[[Any], Check] | None = None
    wider: Callable[[ConvProblem, Any], ConvProblem | None] = lambda *_: None

    def under(self, options: Any) -> Backend:
        """The backend as it decides under options."""
        if self.bound is None:
            return self
        wider = self.wider
        accepts = self.bound(options)
        rows = tuple(replace(row, accepts=accepts) for row in self.rows)
        return replace(
            self, accepts=accepts, rows=rows, wider=lambda problem, _: wider(problem, options)
        )

    def rows_of(self, kind: ConvKind) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.kind is kind)

    def takes(self, problem: ConvProblem) -> Decision:
        """Whether it takes a problem as it stands, with nothing after it."""
        return self.accepts(problem, "")

    def make_options(self, given: Any) -> Any:
        """Options from a mapping, None (all defaults) or options.

        Raises TypeError for another type, ValueError for an unknown key.
        """
        if given is None:
            return self.options()
        if isinstance(given, self.options):
            return given
        if not isinstance(given, Mapping):
            raise TypeError(f"{self.name}: options must be a mapping, got {given!r}")
        known = [field.name for field in fields(self.options)]
        unknown = [str(key) for key in given if key not in known]
        if unknown:
            raise ValueError(
                f"{self.name}: unknown option {', '.join(unknown)}; there are {', '.join(known)}"
            )
        return self.options(**given)


def options_json(options: Any) -> str:
    """Options as composites carry them."""
    return json.dumps(asdict(options), sort_keys=True)


_WIDER = {cutlass.NAME: wider_channels}
BACKENDS: dict[str, Backend] = {
    backend.NAME: Backend(
        backend.NAME,
        backend.CODEGEN,
        backend.Options,
        backend.LAYOUTS,
        backend.check,
        tuple(
            Row(backend.NAME, kind, epilogue, backend.check)
            for kind, epilogues in backend.EPILOGUES.items()
            for epilogue in epilogues
        ),
        getattr(backend, "bound", None),
        _WIDER.get(backend.NAME, lambda *_: None),
    )
    for backend in (cudnn, cutlass)
}
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
) -> Backend:
    """Makes a backend of one's own known to `partition`; the same name again replaces it.

    Parameters
    ----------
    name : an identifier; it is the row's prefix in reports.
    accepts : a problem and an epilogue's name to a `Decision`, with the reason for a refusal.
    layouts : triples (data, weight, grad), to one of which operands are permuted if that helps.
    epilogues : for each kind what it takes along, big to small; "" is the call alone.
    codegen : its code generator is `relax.ext.<codegen>`, an identifier; by default the name.
    options : a frozen dataclass of what may be set for `partition`.

    Raises
    ------
    TypeError : for a name that is no string.
    ValueError : for a name or a generator that is no identifier or belongs to another backend, and
        for an unknown epilogue, naming the known ones.
    """
    codegen = name if codegen is None else codegen
    for what, value in (("name", name), ("codegen", codegen)):
        if not isinstance(value, str):
            raise TypeError(f"register_backend: {what} must be a string, got {value!r}")
        if not (value.isascii() and value.isidentifier()):
            raise ValueError(f"register_backend: {what} must be an identifier, got {value!r}")
    if name in _GIVEN:
        raise ValueError(f"register_backend: {name} is a backend of this package")
    owner = CODEGENS.get(codegen)
    if owner is not None and owner.name != name:
        raise ValueError(f"register_backend: codegen {codegen} is that of {owner.name}")
    for of_kind in epilogues.values():
        for epilogue in of_kind:
            if epilogue not in _patterns.EPILOGUES:
                known = ", ".join(repr(e) for e in _patterns.EPILOGUES)
                raise ValueError(
                    f"register_backend: unknown epilogue {epilogue!r}; there are {known}"
                )
    rows = tuple(Row(name, kind, e, accepts) for kind in epilogues for e in epilogues[kind])
    before = BACKENDS.get(name)
    if before is not None:
        del CODEGENS[before.codegen]
    backend = Backend(name, codegen, options, tuple(layouts), accepts, rows)
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
