"""One convolution as a function of tensors: by the backend that is fastest on the GPU that is here.

What a backend can do for the problem is measured once for a machine: times are kept in the user's
tuning record, and what was measured by the same versions is not measured again.
"""

from __future__ import annotations

import math
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import tvm
import tvm_ffi

from relay_wgrad.locks import lock
from relay_wgrad.output import working_folder
from relay_wgrad.problem import ConvProblem

from ..backends.base import Backend, option_names
from ..building.compilers import missing
from ..building.fixed_source import Standing
from ..building.link import shared_command
from ..building.toolchain import ToolchainError, find, preload, run_tool
from ..codegen.regions import Region
from ..codegen.templates import shared
from ..table import backend_of
from .missing_measurements import CANDIDATES
from .record import Measurement, Record, without_pins
from .timing import Candidate, Task, fastest, time_all
from .versions import arch_of, machine_name, versions

TIMER = Standing("timer-library", "the timer", lambda: shared("cuda_timer.cc"), missing)

SIZES = 8
"""Sizes of a layer that a process measures; further ones get what the nearest of them got."""
_SECONDS = 1800  # for the host's compiler

_lock = lock(threading.RLock)


@dataclass(frozen=True)
class Base:
    """What computes a problem if nothing is faster: a backend's name, its options, the function."""

    backend: str
    options: Mapping[str, Any]
    call: Callable[..., Any]


@dataclass(frozen=True)
class Chosen:
    """backend : whose `call` it is.  times : (backend, milliseconds) of all, the fastest first."""

    backend: str
    call: Callable[..., Any]
    times: tuple[tuple[str, float], ...] = ()


@dataclass
class _Other:
    """A backend that takes the problem, and what it tries."""

    backend: Backend
    made: Any
    version: str
    tried: Sequence[Mapping[str, Any]]
    found: Measurement | None = None

    @property
    def options(self) -> dict[str, Any]:
        return asdict(self.made)


def _record() -> Record:
    """The user's; an empty one, with a warning, where that cannot be used."""
    try:
        return Record.load(Record.default_path())
    except (ToolchainError, ValueError, OSError) as error:
        warnings.warn(f"no times are known: {error}", RuntimeWarning, stacklevel=2)
        return Record()


@dataclass
class Known:
    """The user's record; what was warned of; and the backends of problems that differ in sizes
    alone, by their bytes."""

    record: Record = field(default_factory=_record)
    warned: set[str] = field(default_factory=set)
    sizes: dict[Any, dict[int, str]] = field(default_factory=dict)


def choose(
    problem: ConvProblem, base: Base, backends: Mapping[str, Mapping[str, Any]], device: int
) -> Chosen:
    """The fastest of a base and of other backends' kernels for a problem.

    A backend whose kernels cannot be built or measured here is left out, with one warning.

    backends : names, each with options, of which a backend has those that it knows.
    device : CUDA's number of the GPU.

    Raises ValueError for an unknown backend.
    """
    with _lock:
        target = tvm.cuda(device)
        arch, machine = arch_of(target), machine_name(target)
        others = list(_others(problem, backends, arch))
        if not others:
            return Chosen(base.backend, base.call)
        try:
            return _fastest(problem, base, others, machine, arch, target)
        except (ToolchainError, RuntimeError, OSError) as error:
            _warn(f"{problem}: not measured, so it is {base.backend}'s: {error}")
            return Chosen(base.backend, base.call)


def are_any(problem: ConvProblem, backends: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a backend that could be built here takes the problem, on some GPU."""
    return any(
        known_versions().get(name) is not None and backend_of(name).takes(problem)
        for name in backends
    )


def kernels(
    problem: ConvProblem, backends: Mapping[str, Mapping[str, Any]], device: int
) -> list[tuple[str, Callable[[], Any]]]:
    """What `choose` would build of a problem: (a kernel's name, which others may have in common;
    what builds it).  What cannot be built is left to `choose` to say.
    """
    target = tvm.cuda(device)
    arch = arch_of(target)
    with _lock:
        record = measurements().record
        record.machine = machine_name(target)
        return [
            (f"{other.backend.name} {dict(pins)}", partial(_built, other, problem, pins, arch))
            for other in _others(problem, backends, arch)
            for pins in _pins(record, problem, other)
        ]


def prefetch(
    problems: Iterable[ConvProblem], backends: Mapping[str, Mapping[str, Any]], device: int
) -> int:
    """Builds the `kernels` of problems, all at once and as many beside each other as there are
    cores; how many."""
    jobs = [
        job for problem in dict.fromkeys(problems) for job in kernels(problem, backends, device)
    ]
    # Many problems have a kernel in common: of each kernel one job first, which builds it.
    firsts = dict(reversed(jobs))
    others = [job for kernel, job in jobs if firsts[kernel] is not job]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        made = list(pool.map(lambda job: job(), firsts.values()))
        made += pool.map(lambda job: job(), others)
    return sum(call is not None for call in made)


def _pins(record: Record, problem: ConvProblem, other: _Other) -> Sequence[Mapping[str, Any]]:
    """What `choose` will want of a backend: what was measured, or all that is tried."""
    found = _find(record, problem, other)
    return other.tried if found is None else [found.pins]


def _find(record: Record, problem: ConvProblem, other: _Other) -> Measurement | None:
    return record.find(other.backend.name, problem, "", other.options, other.version)


def _others(
    problem: ConvProblem, backends: Mapping[str, Mapping[str, Any]], arch: int
) -> Iterator[_Other]:
    for name, given in backends.items():
        backend, version = backend_of(name), known_versions().get(name)
        if backend.generate is None or version is None or not backend.takes(problem):
            continue
        made = _options(backend, given, arch)
        if backend.with_options(made).takes(problem):
            region = Region.of("f", problem, **asdict(made))
            tried = [dict(pins) for pins in backend.tried(region, arch, CANDIDATES)]
            yield _Other(backend, made, version, tried)


def _options(backend: Backend, given: Mapping[str, Any], arch: int) -> Any:
    """Those of the given ones that the backend has, for the GPU where it names GPUs."""
    names = option_names(backend.options)
    known = {name: value for name, value in given.items() if name in names}
    if "arch" in names:
        try:
            return backend.options(**known, arch=arch)
        except ValueError:  # one that it does not know: older code runs too
            pass
    return backend.options(**known)


def _fastest(
    problem: ConvProblem, base: Base, others: list[_Other], machine: str, arch: int, target: Any
) -> Chosen:
    record, version = measurements().record, known_versions().get(base.backend) or ""
    record.machine = machine
    options = without_pins(base.backend, base.options)
    first = record.find(base.backend, problem, "", options, version)
    for other in others:
        other.found = _find(record, problem, other)
    calls: dict[tuple[str, str], Callable[..., Any]] = {}
    family = (replace(problem, n=0, h=0, w=0), base.backend, str(options))
    sizes = measurements().sizes.setdefault(family, {})
    if first is None or any(other.found is None for other in others):
        if len(sizes) >= SIZES:
            near = min(sizes, key=lambda size: abs(math.log(size / problem.bytes)))
            return _as_before(problem, base, others, sizes[near], arch)
        _measure(problem, base, others, (machine, version, arch, target), calls)
        first = record.find(base.backend, problem, "", options, version)
        for other in others:
            other.found = _find(record, problem, other)
    times = {o.backend.name: o.found.ms for o in others if o.found is not None}
    if first is not None:
        times[base.backend] = first.ms
    ordered = tuple(sorted(times.items(), key=lambda item: item[1]))
    best = ordered[0][0] if ordered else base.backend
    sizes[problem.bytes] = best
    for other in others:
        if other.backend.name == best and other.found is not None:
            pins = other.found.pins
            call = calls.get((best, str(dict(pins)))) or _built(other, problem, pins, arch)
            if call is not None:
                return Chosen(best, call, ordered)
    return Chosen(base.backend, base.call, ordered)


def _as_before(
    problem: ConvProblem, base: Base, others: list[_Other], backend: str, arch: int
) -> Chosen:
    """By the backend that another size got, and the kernel that it expects to be fastest."""
    for other in others:
        if other.backend.name == backend and (call := _built(other, problem, {}, arch)) is not None:
            return Chosen(backend, call)
    return Chosen(base.backend, base.call)


def _measure(
    problem: ConvProblem, base: Base, others: list[_Other], where: tuple[str, str, int, Any],
    calls: dict[tuple[str, str], Callable[..., Any]],
) -> None:  # fmt: skip
    """Times the base and all that the others try, and puts it into the record."""
    machine, version, arch, target = where
    task = Task(Region.of("f", problem))
    kept = without_pins(base.backend, base.options)
    pins: Mapping[str, Any] = {n: v for n, v in base.options.items() if n not in kept}
    task.candidates.append(Candidate(base.backend, version, base.options, pins, "f0", base.call))
    jobs = [(other, pins) for other in others for pins in other.tried]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        made = pool.map(lambda job: _built(job[0], problem, job[1], arch), jobs)
        for (other, pins), call in zip(jobs, made, strict=True):
            if call is not None:
                calls[other.backend.name, str(dict(pins))] = call
                name = f"f{len(task.candidates)}"
                task.candidates.append(
                    Candidate(other.backend.name, other.version, other.options, pins, name, call)
                )
    if len(task.candidates) > 1:
        time_all(task, TIMER.module()["relay_wgrad_time"], target)
        record = measurements().record
        for measurement in fastest(task, machine):
            record.add(measurement)
        try:
            record.save(Record.default_path())
        except (OSError, ValueError, ToolchainError) as error:
            _warn(f"times are measured anew in each process: {error}")


def _built(
    other: _Other, problem: ConvProblem, pins: Mapping[str, Any], arch: int
) -> Callable[..., Any] | None:
    made = other.backend.options(**{**other.options, **pins})
    try:
        if other.backend.alone is not None:
            return other.backend.alone(problem, made, arch)
        return _generated(other.backend, problem, made, arch)
    except (RuntimeError, ValueError, OSError) as error:  # such as a disk that is full
        _warn(f"{other.backend.name} is left out: {error}")
        return None


def _generated(backend: Backend, problem: ConvProblem, options: Any, arch: int) -> Any:
    """The function of a library that is generated for one problem."""
    assert backend.generate is not None
    found = find()
    preload(found)
    text = backend.generate([Region.of("f", problem, **asdict(options))], arch)
    inputs = backend.inputs(text, found, None)
    with working_folder() as folder:
        source, library = folder / "alone.cc", folder / "alone.so"
        source.write_text(text, encoding="utf-8")
        run_tool(shared_command(source, library, found, inputs), "the compiler", _SECONDS)
        return tvm_ffi.load_module(str(library))["f"]


@lru_cache(maxsize=1)
def known_versions() -> dict[str, str | None]:
    """Backends' versions here; None where one is not installed."""
    return versions()


@lru_cache(maxsize=1)
def measurements() -> Known:
    """What this process knows; `known.cache_clear` forgets it."""
    return Known()


def _warn(text: str) -> None:
    """Once in a process for each first line."""
    line, warned = text.splitlines()[0], measurements().warned
    if line not in warned:
        warned.add(line)
        warnings.warn(text, RuntimeWarning, stacklevel=3)
