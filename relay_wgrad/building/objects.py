"""Kernels for a CPU as object files: each by a digest of its loops, those that are new in parallel.

TVM lowers and compiles all kernels of a module in one thread, as one LLVM module, and its JIT makes
machine code of it when the program is loaded.  Here each kernel is a module of its own.  TVM's
passes and LLVM run without Python's lock, so threads are enough.

Neither a kernel's name in its program nor those of its variables are in its digest, and its symbol
is made of that: a training step, an evaluation and a step for another batch share what is equal.
"""

from __future__ import annotations

import keyword
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.ir import GlobalVar
from tvm.target import Target
from tvm_ffi.structural import structural_hash, structural_walk

from ..cores import usable_cores
from ..keys import SYMBOL
from ..output import working_folder
from .disk_cache import DiskCache, key_of
from .versions import compilers

DEBUG = "RELAY_WGRAD_DEBUG"  # 1 and more: each kernel is told of on standard error
LOWERING = "3"  # of `lowering`, to be raised with it
ENTRY = "tirx.is_entry_func"
# A word that may be a variable's name: no attribute, no argument's name, nothing that is called.
_WORD = re.compile(r'"(?:\\.|[^"\\])*"|(?<![\w.])[A-Za-z_]\w*(?![\w.(=])')
Told = Callable[[int, int, int], None]


@dataclass(frozen=True)
class Object:
    """An object file with one kernel, or with those that call each other.

    symbols : what the kernels are called in it, by their names in the program; equal ones have one.
    key : of what it was made of.  seconds : it took; 0.0 where it was kept.
    """

    symbols: Mapping[str, str]
    key: str
    content: bytes
    seconds: float

    def described(self) -> str:
        """A line of its kernels, and whether they were compiled or kept."""
        how = f"compiled in {self.seconds:.2f} s" if self.seconds else "from the cache"
        return f"{', '.join(self.symbols)}: {how}"


@dataclass(frozen=True)
class _Unit:
    """What becomes an object: its functions by their symbols, and whether they look at their
    arguments."""

    symbols: Mapping[str, str]
    key: str
    functions: Mapping[GlobalVar, tirx.PrimFunc]
    checks: bool


def objects(
    kernels: Mapping[GlobalVar, tirx.PrimFunc],
    target: Target,
    kept: DiskCache,
    told: Told,
    unchecked: Collection[str] = (),
) -> list[Object]:
    """The kernels' objects, in an order that is the same for the same kernels.

    told : is given how many there are, of how many, and how many of these were kept, whenever there
        is one more.
    unchecked : names of kernels whose arguments are known to be what they should be.
    Raises what TVM raises for a kernel that it cannot compile.
    """
    groups, debugs = _groups(kernels), re.match(r"[1-9]", os.environ.get(DEBUG, "")) is not None
    now = tvm.transform.PassContext.current()
    facts = ("kernel", LOWERING, *settings(target), *compilers())

    def unit_of(group: Sequence[GlobalVar]) -> _Unit:
        names = [str(var.name_hint) for var in group]
        checks = not set(names) <= set(unchecked)
        functions = {var: kernels[var] for var in group}
        if len(group) > 1:  # they call each other by their names
            texts = [text for f in functions.values() for text in text_of(f)]
            return _Unit({n: n for n in names}, key_of([*facts, *texts]), functions, checks=True)
        (function,) = functions.values()
        key = key_of([*facts, str(checks), *_nameless(function)])
        symbol = f"kernel_{key[:32]}"
        functions = {GlobalVar(symbol): function.with_attr(SYMBOL, symbol)}
        return _Unit({names[0]: symbol}, key, functions, checks)

    def made(unit: _Unit) -> Object:
        content, seconds = kept.get(unit.key), 0.0
        if content is None:
            # A thread has its own pass context, and none of the instruments of its caller's.
            own = tvm.transform.PassContext(opt_level=now.opt_level, config=dict(now.config))
            with own, target:
                start = time.thread_time()
                module = tvm.IRModule(dict(unit.functions))
                content = content_of(compiled_library(module, target, unit.checks))
                seconds = time.thread_time() - start
            kept.put(unit.key, content)
        return Object(unit.symbols, unit.key, content, seconds)

    with ThreadPoolExecutor(max(1, min(len(groups), len(usable_cores())))) as pool:
        kept_ones = 0
        try:
            units = _distinct(pool.map(unit_of, groups))
            waiting = [pool.submit(made, unit) for unit in units]
            for done, one_more in enumerate(as_completed(waiting), 1):
                kept_ones += one_more.result().seconds == 0
                if debugs:
                    print(one_more.result().described(), file=sys.stderr)
                told(done, len(units), kept_ones)
            return [each.result() for each in waiting]
        except BaseException:  # Ctrl-C too: what has not begun is not begun
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def symbols_of(made: Iterable[Object]) -> dict[str, str]:
    """What all their kernels are called in them, by their names in the program."""
    return {name: symbol for each in made for name, symbol in each.symbols.items()}


def _distinct(units: Iterable[_Unit]) -> list[_Unit]:
    """Of equal kernels one, with the names of all."""
    found: dict[str, _Unit] = {}
    for unit in units:
        same = found.get(unit.key)
        found[unit.key] = (
            unit if same is None else replace(same, symbols={**same.symbols, **unit.symbols})
        )
    return list(found.values())


def text_of(function: Any) -> tuple[str, str]:
    """A function's text, and a hash of what a text may round or leave out."""
    return function.script(), str(structural_hash(function))


def _nameless(function: tirx.PrimFunc) -> tuple[str, str]:
    """As `text_of`, whatever the function and its variables are called: a variable's name is its
    place among them."""
    places: dict[str, str] = {}

    def place(found: re.Match[str]) -> str:
        word = found[0]
        if word[0] == '"' or keyword.iskeyword(word):
            return word
        return places.setdefault(word, f"v{len(places)}")

    text, number = text_of(function.with_attr(SYMBOL, "kernel"))
    return _WORD.sub(place, text), number


def settings(target: Target) -> tuple[str, str, str]:
    """What decides how anything is compiled here: target and pass context, but its instruments."""
    now = tvm.transform.PassContext.current()
    return str(target), str(now.opt_level), repr(sorted(map(str, now.config.items())))


def compiled_library(module: tvm.IRModule, target: Target, checks: bool = True) -> Any:
    """LLVM's module of a module of kernels.

    checks : whether they look at each argument's type, shape and strides.  A third of what LLVM has
        to compile of a step's kernels is that, and what they say where it is wrong.
    """
    lowered = lowering(target)(tirx.transform.BindTarget(target.with_host(target))(module))
    if not checks and not any(map(_asserts, module.functions.values())):
        lowered = tirx.transform.SkipAssert()(lowered)
    # A module's only function would be its entry, under one name for all.
    alone = {var: func.without_attr(ENTRY) for var, func in lowered.functions_items()}
    return tvm.get_global_func("target.build.llvm")(tvm.IRModule(alone), target)


def _asserts(function: tirx.PrimFunc) -> bool:
    """Whether a kernel has conditions of its own (`relay_wgrad.conditions`)."""
    found: list[Any] = []
    structural_walk(function.body, (tirx.AssertStmt, found.append))
    return bool(found)


def content_of(library: Any) -> bytes:
    """The object file that LLVM makes of its module."""
    with working_folder() as folder:
        library.write_to_file(str(folder / "module.o"), "o")
        return (folder / "module.o").read_bytes()


def lowering(target: Target) -> Callable[[tvm.IRModule], tvm.IRModule]:
    """TVM's lowering of loops for a CPU: its own list without the passes that are of GPUs alone,
    and without those whose work LLVM does again: common subexpressions, conditions that do not
    change in a loop, forms of quotients and remainders, and simplification before the last.  What
    LLVM then makes is 1 % larger, and each of them rewrites all of a convolution's unrolled tile.

    With options for the lowering in the pass context it is TVM's own, whole.
    """
    config = tvm.transform.PassContext.current().config
    if any(str(name).startswith("tirx.") for name in config):
        passes, host, _ = tirx.get_default_tir_pipeline(target)
        return lambda module: host()(passes(module))
    loops, scalars = s_tir.transform, tirx.transform
    sequence: tvm.transform.Pass = tvm.transform.Sequential([
        loops.CanonicalizeLoop(), loops.LowerInitBlock(),
        loops.PlanAndUpdateBufferAllocationLocation(), loops.ConvertBlocksToOpaque(),
        loops.CompactBufferAllocation(), loops.LowerMatchBuffer(), loops.AnnotateIrregularLoop(),
         loops.LowerOpaqueBlock(), scalars.FlattenBuffer(),
        scalars.BF16ComputeLegalize(), scalars.NarrowDataType(32), loops.LoopPartition(),
        scalars.VectorizeLoop(True), scalars.StorageRewrite(), scalars.UnrollLoop(),
        scalars.StmtSimplify(), loops.RewriteUnsafeSelect(), scalars.FP8ComputeLegalize(),
        scalars.VerifyMemory(), scalars.SplitHostDevice(), scalars.MakePackedAPI(),
        scalars.FP8StorageLegalize(), scalars.BF16StorageLegalize(), scalars.LowerTVMBuiltin(),
        scalars.LowerIntrin(),
    ])  # fmt: skip
    return sequence


def _groups(kernels: Mapping[GlobalVar, tirx.PrimFunc]) -> list[list[GlobalVar]]:
    """Each kernel alone, by name; where one calls another, all together."""
    others: list[GlobalVar] = []
    for function in kernels.values():
        structural_walk(function.body, (GlobalVar, others.append))
    ordered = sorted(kernels, key=lambda var: str(var.name_hint))
    return [ordered] if others else [[var] for var in ordered]
