"""`tune`: what each backend can do for each problem of a module, tried on the device that is here.

Each backend says what to try for a problem: of its kernels those that a model ranks highest, or
itself alone where it times its own plans.  All of them are built and timed, and what is fastest
goes into a `Record`, from which `partition(…, select="measured")` chooses.  Every candidate's
result is compared with the first one's: a kernel that disagrees is left out, with a warning.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from relay_wgrad.dtypes import numpy_dtype
from relay_wgrad.keys import CODEGEN
from relay_wgrad.operands import poisoned
from relay_wgrad.output import working_folder
from relay_wgrad.problem import ConvProblem

from ..building.compiled import library_command
from ..building.toolchain import Toolchain, find, preload, run_tool
from ..codegen.regions import Region, read_region
from ..codegen.templates import shared
from ..fused import STEPS, operand_shape
from ..split.partition import partition_part
from ..table import STOCK, backend_of
from .record import Measurement, Record, without_pins
from .versions import arch_of, machine_name, versions

Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much
Stock = Callable[[ConvProblem], Callable[..., Any]]

CANDIDATES = 8  # of a backend for a problem
_ROUNDS, _MOST_CALLS, _ENOUGH_MS = 5, 40, 4.0
_SECONDS = 1800  # for the host's compiler
_CACHES = 3  # sets of operands together are that many times the L2 cache
_CLOSE = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-2}  # tf32 beside float32


@dataclass
class _Task:
    """A problem with its epilogue, and everything that may compute it."""

    region: Region
    candidates: list[_Candidate] = field(default_factory=list)


@dataclass
class _Candidate:
    backend: str
    version: str
    options: Mapping[str, Any]
    pins: Mapping[str, Any]
    symbol: str
    call: Callable[..., Any] | None = None
    ms: float = math.inf


def tune(
    what: tvm.IRModule | Sequence[ConvProblem],
    backends: Sequence[str] = ("cutlass", "cudnn"),
    *,
    stock: Stock | None = None,
    candidates: int = CANDIDATES,
    record: Record | None = None,
    device: int = 0,
    progress: Progress | None = None,
    **options: Mapping[str, Any],
) -> Record:
    """Times the backends on every convolution of a module, or on problems.

    Parameters
    ----------
    what : a module, as `partition` would be given it, whose matrix products are measured too, or
        problems with nothing after them.  Those of symbolic sizes are left out.
    backends : whose rows are tried.
    stock : makes the kernel that a convolution gets if it stays, a function of two operands and the
        result; None: that is not tried.
    candidates : at most that many of a backend for a problem; it chooses which.
    record : measurements that need not be made again; the new ones are added to it.
    device : CUDA's number of the GPU.
    progress : is called as things get done.
    options : for each backend, as `partition` takes them.

    Raises
    ------
    RuntimeError : without a GPU.
    ToolchainError : if something to build with is missing, naming it.
    TypeError, ValueError : as `partition` does; for a backend without `generate`, whose code
        generator is its own.
    """
    found = find().require()
    preload(found)
    target = tvm.cuda(device)
    if not target.exist:
        raise RuntimeError("tune: no CUDA device here; a record of another machine can be used")
    say = progress or (lambda *_: None)
    record = Record() if record is None else record
    record.machine = machine = machine_name(target)
    known = versions(found)
    tasks = _tasks(what, backends, options, known, arch_of(target), candidates)
    if stock is not None:
        for task in (t for t in tasks if not t.region.epilogue):
            task.candidates.append(_Candidate(STOCK, known[STOCK] or "", {}, {}, ""))
    for task in tasks:
        task.candidates = [c for c in task.candidates if not _is_known(record, task, c)]
    tasks = [task for task in tasks if task.candidates]
    if not tasks:
        say("timed", 0, 0)
        return record
    with working_folder() as folder:
        timer = _build_all(tasks, folder, found, arch_of(target), say)
        for number, task in enumerate(tasks):
            say(f"timing {task.region.problem}", number, len(tasks))
            if stock is not None and (last := task.candidates[-1]).backend == STOCK:
                last.call = stock(task.region.problem)
            _time(task, timer, target)
            for measured in _fastest(task, machine):
                record.add(measured)
        say("timed", len(tasks), len(tasks))
    return record


# ---- what is tried -------------------------------------------------------------------------------


def _tasks(
    what: Any,
    backends: Sequence[str],
    options: Mapping[str, Any],
    known: Mapping[str, str | None],
    arch: int,
    most: int,
) -> list[_Task]:
    tasks: dict[tuple[str, tuple[str, ...]], _Task] = {}
    numbers = count()
    for name in backends:
        backend = backend_of(name)
        if backend.generate is None:
            raise ValueError(f"tune: {name} has no `generate`: its kernels cannot be built alone")
        made = backend.make_options(options.get(name))
        for region in _regions(what, name, made):
            key = (region.problem.repro(), region.epilogue)
            if key in tasks and any(c.backend == name for c in tasks[key].candidates):
                continue  # the same problem again
            task = tasks.setdefault(key, _Task(region))
            task.candidates += [
                _Candidate(name, known[name] or "", asdict(made), pins, f"t{next(numbers)}")
                for pins in backend.tried(region, arch, most)
            ]
    return list(tasks.values())


def _regions(what: Any, name: str, options: Any) -> list[Region]:
    """What a backend takes, of known sizes."""
    if isinstance(what, tvm.IRModule):
        out, _ = partition_part(what, (name,), {name: options}, products=True)
        found = [
            read_region(func)
            for _, func in out.functions_items()
            if func.attrs is not None and CODEGEN in func.attrs
        ]
    else:
        backend = backend_of(name).under(options)
        found = [Region.of("f", p, **asdict(options)) for p in what if backend.takes(p)]
    sizes = ((r, (r.problem.n, r.problem.h, r.problem.w)) for r in found)
    return [r for r, values in sizes if all(isinstance(v, int) for v in values)]


def _is_known(record: Record, task: _Task, candidate: _Candidate) -> bool:
    epilogue = "_".join(task.region.epilogue)
    found = record.find(
        candidate.backend, task.region.problem.repro(), epilogue, candidate.options,
        candidate.version,
    )  # fmt: skip
    return found is not None


# ---- building ------------------------------------------------------------------------------------


def _build_all(
    tasks: Sequence[_Task], folder: Path, found: Toolchain, arch: int, say: Progress
) -> Any:
    """Gives every candidate of a library its function; returns the timer."""
    names = dict.fromkeys(c.backend for t in tasks for c in t.candidates if c.backend != STOCK)
    for name in names:
        backend = backend_of(name)
        assert backend.generate is not None
        pairs = [(t, c) for t in tasks for c in t.candidates if c.backend == name]
        regions = [
            replace(task.region, symbol=c.symbol, options={**c.options, **c.pins})
            for task, c in pairs
        ]
        text = backend.generate(regions, arch)
        what = f"building kernels of {name}"
        inputs = backend.inputs(text, found, partial(say, what))
        module = _library(text, folder, name, found, inputs)
        for _, candidate in pairs:
            candidate.call = module[candidate.symbol]
    return _library(shared("cuda_timer.cc"), folder, "timer", found, ())["relay_wgrad_time"]


def _library(text: str, folder: Path, name: str, found: Toolchain, inputs: Sequence[Path]) -> Any:
    source, library = folder / f"{name}.cc", folder / f"{name}.so"
    source.write_text(text, encoding="utf-8")
    run_tool(library_command(source, library, found, inputs), "tune: the compiler", _SECONDS)
    return tvm_ffi.load_module(str(library))


# ---- timing --------------------------------------------------------------------------------------


def _time(task: _Task, timer: Any, device: tvm.runtime.Device) -> None:
    """Fills in the candidates' times; those that fail or disagree keep an infinite one."""
    problem = task.region.problem
    cache = int(device.l2_cache_size_bytes or (64 << 20))
    wanted = max(1, min(16, math.ceil(_CACHES * cache / problem.bytes)))
    sets = [_operands(task.region, device, seed) for seed in range(wanted)]
    out, poison = sets[0][-1], poisoned(problem)
    first: np.ndarray | None = None
    for c in task.candidates:
        out.copyfrom(poison)
        try:
            assert c.call is not None
            c.call(*sets[0])
            device.sync()
            result = _sample(out.numpy())
            if first is None and np.isfinite(result).all():
                first = result
            _expect_close(result, first, problem)
            c.ms = float(timer(c.call, sets, 3, device.index))
        except (RuntimeError, ValueError) as error:
            warnings.warn(f"tune: {c.backend} {dict(c.pins)}: {error}", UserWarning, stacklevel=3)
    best = min((c.ms for c in task.candidates), default=math.inf)
    alive = [c for c in task.candidates if c.ms <= 2 * best]
    calls = max(3, min(_MOST_CALLS, math.ceil(_ENOUGH_MS / max(best, 1e-3))))
    times: dict[str, list[float]] = {c.symbol: [] for c in alive}
    for turn in range(_ROUNDS):
        for c in alive if turn % 2 == 0 else alive[::-1]:
            times[c.symbol].append(float(timer(c.call, sets, calls, device.index)))
    for c in alive:
        c.ms = statistics.median(times[c.symbol])


def _operands(region: Region, device: tvm.runtime.Device, seed: int) -> list[Any]:
    p = region.problem
    result = p.roles[2]
    shapes = {role: (p.shape(role), p.dtype(role)) for role in p.roles}
    for step in (STEPS[name] for name in region.epilogue):
        shapes[step.operand] = (operand_shape(step, p), p.dtype(result))
    rng = np.random.default_rng(seed)
    return [
        tvm.runtime.tensor(_random(*shapes[name], rng), device)
        for name in (*region.operands, result)
    ]


def _sample(values: np.ndarray) -> np.ndarray:
    """Some hundred thousand of the values, in float64."""
    flat = values.reshape(-1)
    return flat[:: max(1, flat.size >> 18) | 1].astype("float64")  # an odd step meets all channels


def _random(shape: Sequence[int], dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Normal numbers; a million of them over and over: many are faster made, and no time tells."""
    some = rng.standard_normal(1 << 20).astype("float32").astype(numpy_dtype(dtype))
    return np.resize(some, tuple(shape))


def _expect_close(result: np.ndarray, first: np.ndarray | None, problem: ConvProblem) -> None:
    if not np.isfinite(result).all():
        raise ValueError(f"wrong, left out: not all of the result was written: {problem}")
    assert first is not None
    norm = float(np.linalg.norm(first))
    error = float(np.linalg.norm(result - first)) / (norm or 1.0)
    if not error <= _CLOSE[problem.dtype(problem.roles[0])]:
        raise ValueError(f"wrong, left out: differs by {error:.2g} from the first: {problem}")


def _fastest(task: _Task, machine: str) -> Iterable[Measurement]:
    """The best of each backend."""
    best: dict[str, _Candidate] = {}
    for c in task.candidates:
        if c.ms < math.inf and (c.backend not in best or c.ms < best[c.backend].ms):
            best[c.backend] = c
    for c in best.values():
        kept = without_pins(c.backend, c.options)
        yield Measurement(
            machine, c.backend, c.version, task.region.problem.repro(),
            "_".join(task.region.epilogue), c.ms, kept, c.pins,
        )  # fmt: skip
