"""Kernels for a CPU as object files: each by a digest of its loops, those that are new in parallel.

TVM lowers and compiles all kernels of a module in one thread, as one LLVM module, and its JIT makes
machine code of it when the program is loaded.  Here each kernel is a module of its own.  TVM's
passes and LLVM run without Python's lock, so threads are enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.ir import GlobalVar
from tvm.target import Target
from tvm_ffi.structural import structural_hash, structural_walk

from ..cores import usable_cores
from ..output import working_folder
from .disk_cache import DiskCache, key_of
from .versions import compilers

LOWERING = "2"  # of `lowering`, to be raised with it
ENTRY = "tirx.is_entry_func"
Told = Callable[[int, int, int], None]


@dataclass(frozen=True)
class Object:
    """An object file with one kernel, or with those that call each other.

    key : of what it was made of.  seconds : it took; 0.0 where it was kept.
    """

    names: tuple[str, ...]
    key: str
    content: bytes
    seconds: float


def objects(
    kernels: Mapping[GlobalVar, tirx.PrimFunc], target: Target, kept: DiskCache, told: Told
) -> list[Object]:
    """The kernels' objects, in an order that is the same for the same kernels.

    told : is given how many there are, of how many, and how many of these were kept, whenever there
        is one more.
    Raises what TVM raises for a kernel that it cannot compile.
    """
    units = _units(kernels)
    now = tvm.transform.PassContext.current()
    facts = ("kernel", LOWERING, *settings(target), *compilers())

    def one(unit: Sequence[GlobalVar]) -> Object:
        functions = {var: kernels[var] for var in unit}
        names = tuple(str(var.name_hint) for var in unit)
        key = key_of([*facts, *(text for f in functions.values() for text in text_of(f))])
        content, seconds = kept.get(key), 0.0
        if content is None:
            # A thread has its own pass context, and none of the instruments of its caller's.
            own = tvm.transform.PassContext(opt_level=now.opt_level, config=dict(now.config))
            with own, target:
                start = time.thread_time()
                content = content_of(compiled_library(tvm.IRModule(functions), target))
                seconds = time.thread_time() - start
            kept.put(key, content)
        return Object(names, key, content, seconds)

    with ThreadPoolExecutor(max(1, min(len(units), len(usable_cores())))) as pool:
        waiting, kept_ones = [pool.submit(one, unit) for unit in units], 0
        try:
            for done, one_more in enumerate(as_completed(waiting), 1):
                kept_ones += one_more.result().seconds == 0
                told(done, len(units), kept_ones)
            return [each.result() for each in waiting]
        except BaseException:  # Ctrl-C too: what has not begun is not begun
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def text_of(function: Any) -> tuple[str, str]:
    """A function's text, and a hash of what a text may round or leave out."""
    return function.script(), str(structural_hash(function))


def settings(target: Target) -> tuple[str, str, str]:
    """What decides how anything is compiled here: target and pass context, but its instruments."""
    now = tvm.transform.PassContext.current()
    return str(target), str(now.opt_level), repr(sorted(map(str, now.config.items())))


def compiled_library(module: tvm.IRModule, target: Target) -> Any:
    """LLVM's module of a module of kernels."""
    lowered = lowering(target)(tirx.transform.BindTarget(target.with_host(target))(module))
    # A module's only function would be its entry, under one name for all.
    alone = {var: func.without_attr(ENTRY) for var, func in lowered.functions_items()}
    return tvm.get_global_func("target.build.llvm")(tvm.IRModule(alone), target)


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


def _units(kernels: Mapping[GlobalVar, tirx.PrimFunc]) -> list[list[GlobalVar]]:
    """Each kernel alone, by name; where one calls another, all together."""
    others: list[GlobalVar] = []
    for function in kernels.values():
        structural_walk(function.body, (GlobalVar, others.append))
    ordered = sorted(kernels, key=lambda var: str(var.name_hint))
    return [ordered] if others else [[var] for var in ordered]
