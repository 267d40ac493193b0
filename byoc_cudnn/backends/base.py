"""What a backend is: one record.  `partition`, `build`, `tune` and the rest read it and no name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tvm.relax.dpl import DFPattern

from relay_wgrad.problem import ConvKind, ConvProblem

from .. import patterns as _patterns
from ..building.toolchain import Toolchain
from ..codegen.regions import Region
from ..decision import Decision
from ..fused import EPILOGUES
from ..patterns import Chain, check_epilogue

Check = Callable[[ConvProblem, str], Decision]
Bound = Callable[[Any], Check]
Wider = Callable[[ConvProblem, Any], "ConvProblem | None"]
Generate = Callable[[Sequence[Region], "int | None"], str]
Progress = Callable[[int, int], None]  # how many of how many are there
Inputs = Callable[[str, Toolchain, "Progress | None"], Sequence[Path]]
CheckPins = Callable[[Mapping[str, Any]], None]
Version = Callable[[Toolchain], "str | None"]
Tried = Callable[[Region, int, int], Sequence[Mapping[str, Any]]]
Alone = Callable[[ConvProblem, Any, int], Callable[..., Any]]


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


def rows_of(
    backend: str, epilogues: Mapping[ConvKind, Sequence[str]], accepts: Check
) -> tuple[Row, ...]:
    """The rows of a backend that takes these epilogues along, big to small for each kind.

    A small one before a big one that begins with it would hide that; of one length they stay in the
    order given.
    """
    return tuple(
        Row(backend, kind, epilogue, accepts)
        for kind, names in epilogues.items()
        for epilogue in sorted(names, key=lambda name: -len(EPILOGUES[name]))
    )


def not_wider(problem: ConvProblem, options: Any) -> ConvProblem | None:
    """Channels stay as they are."""
    return None


def no_inputs(source: str, toolchain: Toolchain, progress: Progress | None) -> Sequence[Path]:
    """No objects.  Raises ToolchainError for what is missing of the toolchain."""
    toolchain.require()
    return ()


def one_try(region: Region, arch: int, most: int) -> Sequence[Mapping[str, Any]]:
    """The backend as it is, with nothing to choose."""
    return ({},)


def any_pins(pins: Mapping[str, Any]) -> None:
    """The options' own checks are enough."""


def not_known(problem: ConvProblem) -> float | None:
    """No times."""
    return None


def no_version(toolchain: Toolchain) -> str | None:
    """None: a measurement of any version counts."""
    return None


@dataclass(frozen=True)
class Backend:
    """A library, or kernels of one's own: all that is known about it outside its folder.

    What decides where a convolution goes:

    name : its name in `partition`, in reports and in records.
    codegen : the name under which its code generator is registered (`relax.ext.<codegen>`).
    options : a frozen dataclass of what may be set.
    layouts : the triples (data, weight, grad) that it takes.
    accepts : decides on a problem with an epilogue.
    rows : what it takes, from big to small; the first that accepts a call gets it.
    bound : `accepts` under options, for a backend whose options change what it takes.
    helps : whether its option `faster` leaves it what it is known to do faster than the others, so
        that it can be asked before them.
    microseconds : expected of a problem's fprop and wgrad together, on the GPU that `helps` is
        known of, if both are known to be faster than the others'; else None.
    wider : the problem with more channels that it would rather solve under options, or None.

    What makes programs of it; a backend that registers a code generator of its own has none:

    generate : the C++ source of regions, for a GPU as nvcc numbers it, or None where none is known.
        The source exports each region's function under its symbol.  It may export one more,
        `plans`, which gives what was chosen so far as text, a line for each problem.
    inputs : the objects that a generated source is linked with, built where they are not there yet.
        Raises ToolchainError for what is missing.

    alone : a function of a problem's two operands and its result under options on a GPU, without a
        module; None: a library of `generate`'s source for the one problem is that.

    What measures it:

    pins : names of the options that a measurement chooses.
    check_pins : raises TypeError or ValueError for values of them, from a file, that no kernel has;
        they become source text.  The options' own checks come first.
    tried : what to try for a region on a GPU (its number) and at most how many: values of `pins`.
        What is expected to be fastest comes first.
    version : the library's and what else its times depend on; None where it is not installed.
    """

    name: str
    codegen: str
    options: type
    layouts: tuple[tuple[str, str, str], ...]
    accepts: Check
    rows: tuple[Row, ...]
    bound: Bound | None = None
    wider: Wider = not_wider
    generate: Generate | None = None
    inputs: Inputs = no_inputs
    pins: tuple[str, ...] = ()
    check_pins: CheckPins = any_pins
    tried: Tried = one_try
    version: Version = no_version
    helps: bool = False
    microseconds: Callable[[ConvProblem], float | None] = not_known
    alone: Alone | None = None

    @property
    def plans(self) -> str:
        """The function of a generated source that says what was chosen; it may be missing."""
        return plans_of(self.codegen)

    def with_options(self, options: Any) -> Backend:
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
        known = option_names(self.options)
        unknown = [str(key) for key in given if key not in known]
        if unknown:
            raise ValueError(
                f"{self.name}: unknown option {', '.join(unknown)}; there are {', '.join(known)}"
            )
        return self.options(**given)

    def check_pinned(self, pins: Mapping[str, Any]) -> None:
        """Raises TypeError or ValueError for what is no value of `pins`."""
        if set(pins) - set(self.pins):
            raise ValueError(f"{self.name} has no pins {sorted(pins)}")
        self.options(**pins)
        self.check_pins(pins)


def plans_of(codegen: str) -> str:
    """`Backend.plans`, for a backend's own code generation."""
    return f"{codegen}_plans"


def option_names(options: type) -> list[str]:
    """The names of a backend's options."""
    return [field.name for field in fields(options)]
