"""`tune`: what each backend can do for each problem of a module, tried on the device that is here.

Each backend says what to try for a problem: of its kernels those that a model ranks highest, or
itself alone where it times its own plans.  All of them are built and timed, and what is fastest
goes into a `Record`, from which `partition(…, select="measured")` chooses.  Every candidate's
result is compared with the first one's: a kernel that disagrees is left out, with a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from relay_wgrad.backend_names import STOCK
from relay_wgrad.output import working_folder
from relay_wgrad.problem import ConvProblem

from ..building.compiled import library_command
from ..building.toolchain import Toolchain, find, preload, run_tool
from ..codegen.regions import Region
from ..codegen.templates import shared
from ..split.partition import regions_of
from ..table import backend_of
from .record import Record
from .timing import Candidate, Task, fastest, time_all
from .versions import arch_of, machine_name, versions

Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much
Stock = Callable[[ConvProblem], Callable[..., Any]]

CANDIDATES = 8  # of a backend for a problem
_SECONDS = 1800  # for the host's compiler


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
            task.candidates.append(Candidate(STOCK, known[STOCK] or "", {}, {}, ""))
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
            time_all(task, timer, target)
            for measured in fastest(task, machine):
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
) -> list[Task]:
    tasks: dict[tuple[ConvProblem, tuple[str, ...]], Task] = {}
    numbers = count()
    for name in backends:
        backend = backend_of(name)
        if backend.generate is None:
            raise ValueError(f"tune: {name} has no `generate`: its kernels cannot be built alone")
        made = backend.make_options(options.get(name))
        for region in _regions(what, name, made):
            key = (region.problem, region.epilogue)
            if key in tasks and any(c.backend == name for c in tasks[key].candidates):
                continue  # the same problem again
            task = tasks.setdefault(key, Task(region))
            task.candidates += [
                Candidate(name, known[name] or "", asdict(made), pins, f"t{next(numbers)}")
                for pins in backend.tried(region, arch, most)
            ]
    return list(tasks.values())


def _regions(what: Any, name: str, options: Any) -> list[Region]:
    """What a backend takes, of known sizes."""
    if isinstance(what, tvm.IRModule):
        found = regions_of(what, name, options)
    else:
        backend = backend_of(name).with_options(options)
        found = [Region.of("f", p, **asdict(options)) for p in what if backend.takes(p)]
    sizes = ((r, (r.problem.n, r.problem.h, r.problem.w)) for r in found)
    return [r for r, values in sizes if all(isinstance(v, int) for v in values)]


def _is_known(record: Record, task: Task, candidate: Candidate) -> bool:
    epilogue = "_".join(task.region.epilogue)
    found = record.find(
        candidate.backend, task.region.problem, epilogue, candidate.options,
        candidate.version,
    )  # fmt: skip
    return found is not None


# ---- building ------------------------------------------------------------------------------------


def _build_all(
    tasks: Sequence[Task], folder: Path, found: Toolchain, arch: int, say: Progress
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
