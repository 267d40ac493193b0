"""The tuning record: how long each backend took for a problem on a machine, and with what.

A JSON file that may be shared: it holds numbers and names, and every name is checked when it is
read.  A measurement counts only for the same machine, problem, epilogue, options and versions.
"""

from __future__ import annotations

import fcntl
import json
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from relay_wgrad import output
from relay_wgrad.backend_names import STOCK
from relay_wgrad.problem import ConvProblem

from ..building.private_folder import private_folder
from ..fused import EPILOGUES
from ..table import BACKENDS

FORMAT, VERSION = "relay-wgrad tuning", 1
LONGEST = 1e9  # milliseconds: twelve days


@dataclass(frozen=True)
class Measurement:
    """The fastest of what was tried for one problem by one backend.

    machine : the GPU's name and generation; version : of the library and the compiler.
    problem : `ConvProblem.repro()`; epilogue : of `fused.EPILOGUES`.
    options : the backend's, without its `pins`; pins : the values of those.
    ms : milliseconds of a call.
    """

    machine: str
    backend: str
    version: str
    problem: str
    epilogue: str
    ms: float
    options: Mapping[str, Any] = field(default_factory=dict)
    pins: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, ...]:
        return (*self.place, self.version)

    @property
    def place(self) -> tuple[str, ...]:
        """The key but for the version."""
        options = json.dumps(dict(self.options), sort_keys=True)
        return self.machine, self.backend, self.problem, self.epilogue, options

    def check(self) -> Measurement:
        """Itself, its problem as `repro` has it.

        Raises TypeError or ValueError for what no measurement can be.
        """
        for name in ("machine", "backend", "version", "problem", "epilogue"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} must be a string, got {getattr(self, name)!r}")
        if type(self.ms) not in (int, float) or not 0 < self.ms < LONGEST:
            raise ValueError(f"ms must be positive and less than {LONGEST:g}, got {self.ms!r:.40}")
        if self.backend not in (*BACKENDS, STOCK):
            known = ", ".join((*BACKENDS, STOCK))
            raise _ElsewhereError(f"backend must be one of {known}, got {self.backend!r}")
        if self.epilogue not in EPILOGUES:
            raise ValueError(f"unknown epilogue {self.epilogue!r}")
        for name in ("options", "pins"):
            if not isinstance(getattr(self, name), Mapping):
                raise TypeError(f"{name} must be by name, got {getattr(self, name)!r}")
        if self.backend != STOCK:
            # What is pinned becomes source text: the backend says what it may be.
            BACKENDS[self.backend].check_pinned(self.pins)
        elif self.pins:
            raise ValueError(f"{self.backend} has no pins {sorted(self.pins)}")
        return replace(self, problem=ConvProblem.parse(self.problem).repro())


def without_pins(backend: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a backend that are part of a measurement's key."""
    pins = () if backend == STOCK else BACKENDS[backend].pins
    return {name: value for name, value in options.items() if name not in pins}


class _ElsewhereError(ValueError):
    """A measurement of a backend that is not registered in this process."""


class Record:
    """Measurements by key; of two with one key the later counts.

    machine : whose measurements `find` looks for; None: those of the only machine in it.
    """

    def __init__(
        self, measurements: Iterable[Measurement] = (), machine: str | None = None
    ) -> None:
        self.machine = machine
        self._known: dict[tuple[str, ...], Measurement] = {}
        self._elsewhere: list[dict[str, Any]] = []  # of a file, to be written back to it
        for measurement in measurements:
            self.add(measurement)

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Any:
        return iter(self._known.values())

    def add(self, measurement: Measurement) -> None:
        checked = measurement.check()
        self._known[checked.key] = checked

    def find(
        self,
        backend: str,
        problem: ConvProblem,
        epilogue: str,
        options: Mapping[str, Any],
        version: str | None = None,
    ) -> Measurement | None:
        """The measurement of a problem; of any version, the last, where `version` is None."""
        machine = self.machine or self._only_machine()
        if machine is None:
            return None
        kept = without_pins(backend, options)
        probe = Measurement(machine, backend, version or "", problem.repro(), epilogue, 1.0, kept)
        if version is not None:
            return self._known.get(probe.key)
        found = [m for m in self._known.values() if m.place == probe.place]
        return found[-1] if found else None

    def _only_machine(self) -> str | None:
        machines = {m.machine for m in self}
        return machines.pop() if len(machines) == 1 else None

    # ---- files -------------------------------------------------------------------------------

    @staticmethod
    def default_path() -> Path:
        """The user's own record.  Raises ToolchainError if its folder is not the user's alone."""
        return private_folder("tuning", os.environ) / "record-1.json"

    @staticmethod
    def load(path: str | Path, machine: str | None = None) -> Record:
        """The record in a file; an empty one where there is no file.

        Single measurements that are none, or whose backend is not registered here, are left aside
        with a warning; the latter stay in the file.
        Raises ValueError for a file that is no record of this version.
        """
        path = Path(path)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Record(machine=machine)
        except (ValueError, RecursionError) as error:  # of encoding, JSON, too many digits
            raise ValueError(f"tuning record {path}: no JSON: {error}") from error
        head = (found.get("format"), found.get("version")) if isinstance(found, dict) else None
        if head != (FORMAT, VERSION) or not isinstance(found.get("measurements"), list):
            raise ValueError(
                f"tuning record {path}: expected format {FORMAT!r}, version {VERSION},"
                f" got {head!s:.80}"
            )
        record, odd = Record(machine=machine), []
        for one in found["measurements"]:
            try:
                record.add(Measurement(**one))
            except _ElsewhereError as error:
                odd.append(str(error))
                record._elsewhere.append(one)
            except (TypeError, ValueError, AttributeError) as error:
                odd.append(str(error))
        if odd:
            warnings.warn(
                f"tuning record {path}: {len(odd)} measurements left aside, the first: {odd[0]}",
                UserWarning,
                stacklevel=2,
            )
        return record

    @staticmethod
    def check(path: str | Path) -> None:
        """Raises OSError where `save` would; makes the folder.  Before measuring, not after."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        output.check(path)

    def save(self, path: str | Path) -> None:
        """Adds the measurements to a file's, whole or not at all, also beside other processes."""
        path = Path(os.path.realpath(path))  # a writer by a link takes the same lock
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_name(path.name + ".lock"), "a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            there = Record.load(path)
            merged = {m.key: m for m in there} | self._known
            measurements = [*(asdict(m) for m in merged.values()), *there._elsewhere]
            known = {"format": FORMAT, "version": VERSION, "measurements": measurements}
            output.write_json(path, known)
