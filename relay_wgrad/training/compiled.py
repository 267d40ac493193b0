"""A step's module compiled for a device, and what became of its convolutions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.target import Target

from legalize.cpu.machine import machine

from ..building import programs
from ..building.disk_cache import DiskCache
from ..building.objects import Ahead, symbols_of
from ..building.program import build
from ..building.programs import key_of_program
from ..facts import Lowered, chain_link, lowered_convolutions
from ..garbage import older_objects_stay
from ..graph.walk import functions_in
from ..keys import SCHEDULED
from ..pipeline.chains import SUFFIX
from ..pipeline.cpu import cpu_pipeline
from ..pipeline.fused_kernels import legalize_ops
from ..pipeline.storages import lengths_are_known
from ..registry import is_registered
from .step import ADJOINT, PlannedMemory

Progress = Callable[[str], None]
Cut = Callable[[tvm.IRModule], tvm.IRModule]


LOADING = "loading what was compiled before"
"""What progress is told where a program was kept."""


def silent(what: str) -> None:
    """No progress."""


@dataclass
class Compiled:
    """A compiled module and what became of its convolutions, in program order.

    symbols : what kernels are called in the program, by their names in the module; without one it
        is the name.
    compile_seconds : of processor time for each kernel, by its name; 0.0 where it was kept.
    """

    vm: relax.VirtualMachine
    executable: Any
    convolutions: list[Lowered]
    seconds: dict[str, float] = field(default_factory=dict)
    planned_bytes: int = 0  # for intermediate results, by the static memory plan
    scatter: float = 1.0  # of the times of `Trainer.profile`: `relay_wgrad.timing.scatter`
    plans: Callable[[], list[str]] = list  # what a library chose so far for each problem
    was_kept: bool = False  # compiled before, and loaded
    symbols: Mapping[str, str] = field(default_factory=dict)
    compile_seconds: Mapping[str, float] = field(default_factory=dict)
    direct: Sequence[Any] = ()  # `byoc_cudnn.build`'s entries: what goes to kernels of our own
    key: str | None = None  # under which the program is kept

    def symbol(self, name: str) -> str:
        """What a kernel of the module is called in the program."""
        return self.symbols.get(name, name)

    def joined(self, names: Sequence[str]) -> list[Any]:
        """Functions of a chain by their names, as they share memory (`pipeline.chains`); None for
        each where they do not."""
        joined = [name + SUFFIX for name in names]
        has = self.vm.module.implements_function
        return [self.vm[name] if all(map(has, joined)) else None for name in joined]

    def kernel(self, name: str) -> Any:
        """A kernel of the compiled module: a function of its operands and its result."""
        for module in self.executable.mod.imports:
            with contextlib.suppress(AttributeError):
                return module[self.symbol(name)]
        raise KeyError(f"no kernel {name!r} in the compiled module")


def compile_module(
    mod: tvm.IRModule,
    target: Target,
    *,
    function: str = ADJOINT,
    progress: Progress = silent,
) -> Compiled:
    """Compiles, and records what every convolution was lowered to.

    For a CPU what was compiled before, here or in another process, is taken as it was kept.
    """
    start, is_cpu, kept, key = time.perf_counter(), target.kind.name == "llvm", DiskCache(), None
    if is_cpu:
        key = key_of_program(mod, target, [function, *facts_of(target)])
    if key is not None and (found := loaded(kept, key)) is not None:
        progress(LOADING)
        return found
    progress("generating kernels")
    with older_objects_stay(), planned_memory() as plan, Ahead(target, kept) as ahead:

        def begin(kernel: tirx.PrimFunc) -> None:
            if is_cpu and _is_finished(kernel):
                ahead.begin(kernel)

        with target:
            mod = legalize_ops(begin)(mod)
        convolutions = [
            found for name in _chain(mod, function) for found in lowered_convolutions(mod, name)
        ]  # fmt: skip
        legalized = time.perf_counter()
        if is_cpu:  # upstream's pipeline leaves on one core what is no convolution
            ahead.begin_rest()
            executable, code, made = build(
                mod, target, cpu_pipeline(progress), kept,
                lambda *told: progress(
                    "compiling: kernel {} of {}, {} from the cache".format(*told)
                ), ahead,
            )  # fmt: skip
        else:
            progress("compiling")
            executable, code, made = tvm.compile(mod, target, relax_pipeline="default"), b"", []
    planned = plan.bytes.get(function, 0)
    symbols = symbols_of(made)
    if key is not None and code:
        known = {
            "convolutions": [asdict(each) for each in convolutions], "planned_bytes": planned,
            "symbols": symbols,
        }  # fmt: skip
        programs.put(kept, key, code, made, known)
    vm = relax.VirtualMachine(executable, tvm.cpu())
    seconds = {"legalize": legalized - start, "build": time.perf_counter() - legalized}
    return Compiled(
        vm, executable, convolutions, seconds, planned, symbols=symbols,
        compile_seconds={
            name: each.seconds[symbol] for each in made for name, symbol in each.symbols.items()
        },
        key=key if code else None,
    )  # fmt: skip


def facts_of(target: Target) -> list[str]:
    """What a program for a CPU depends on beside its module, the target and versions."""
    return [str(is_registered()), repr(machine(target))]


def loaded(kept: DiskCache, key: str) -> Compiled | None:
    """The program that is kept under a key."""
    start, found = time.perf_counter(), programs.get(kept, key)
    if found is None:
        return None
    program, known = found
    return Compiled(
        relax.VirtualMachine(program, tvm.cpu()), program,
        [Lowered(**each) for each in known["convolutions"]],
        {"legalize": 0.0, "build": time.perf_counter() - start}, known["planned_bytes"],
        was_kept=True, symbols=known["symbols"],
        compile_seconds=dict.fromkeys(known["symbols"], 0.0), key=key,
    )  # fmt: skip


def _is_finished(kernel: tirx.PrimFunc) -> bool:
    """Whether no pass changes a kernel any more, and its sizes are known: a convolution's."""
    return SCHEDULED in (kernel.attrs or {}) and all(
        hasattr(p, "shape") and lengths_are_known(p.shape) for p in kernel.params
    )


def _chain(mod: tvm.IRModule, function: str) -> list[str]:
    """The functions of the chain that a function is in, in their order, or it alone."""
    links = {str(var.name_hint): chain_link(func) for var, func in functions_in(mod)}
    found = sorted((link.place, name) for name, link in links.items() if link is not None)
    return [name for _, name in found] if links[function] is not None else [function]


@contextlib.contextmanager
def planned_memory() -> Iterator[PlannedMemory]:
    """Within it, the plan of what is compiled is noted; the pass context is else as it was."""
    now, plan = tvm.transform.PassContext.current(), PlannedMemory()
    with tvm.transform.PassContext(
        opt_level=now.opt_level, config=dict(now.config), instruments=[*now.instruments, plan]
    ):
        yield plan
