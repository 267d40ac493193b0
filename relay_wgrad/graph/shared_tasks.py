"""Parallel loops whose threads take each other's tasks, on the stock wheel.

TVM gives each thread of a parallel loop an equal run of its tasks, and the loop ends with the
slowest: where two of a virtual machine's processors are siblings of one core, or cores are of two
kinds, or another program has one, that thread has half the speed of others.  Here each thread
begins with the same run, whose neighbours share its cache, and takes from others' runs when it is
through.  Which thread computes a task changes nothing in what it writes.

Of convolutions on 16 processors of a Xeon, of which many were siblings, 0.7 to 0.8 of the time were
left.  TVM has no atomic operation for CPUs, but imports LLVM's code into a module.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir import PointerType, PrimType, StringImm
from tvm.target import Target
from tvm_ffi.structural import structural_map

MANY = 4  # threads from which on it is worth some 10 ms of a loop's compilation
_TAKE = "relay_wgrad_take"
_CODE = f"""
define linkonce_odr hidden i64 @{_TAKE}(ptr %next) alwaysinline nounwind {{
  %old = atomicrmw add ptr %next, i64 1 monotonic
  ret i64 %old
}}
"""
_GRAINS = 64  # of a thread's run, at most: what ends last is a small part of the whole
_LINE = 8  # numbers of 64 bits from a thread's counter to the next: no two share a cache line
_POINTER = PointerType(PrimType("int64"), "local")


def threads_of(target: Target) -> int:
    """That share a loop, as far as the target says; 0 where it does not."""
    return int(target.attrs.get("num-cores", 0))


def shared_tasks(target: Target) -> tvm.transform.Pass:
    """A pass over a CPU's kernels between blocks and flat memory."""
    threads = threads_of(target)

    @tirx.transform.prim_func_pass(opt_level=0, name="relay_wgrad.shared_tasks")
    def run(func: tirx.PrimFunc, mod: tvm.IRModule, context: Any) -> tirx.PrimFunc:
        return with_shared_tasks(func, threads)

    return run


def with_shared_tasks(func: tirx.PrimFunc, threads: int) -> tirx.PrimFunc:
    """The kernel, lowered to loops, for so many threads; for fewer than `MANY` as it is.

    Loops of no more tasks than threads stay.
    """
    if threads < MANY:
        return func

    def change(loop: Any) -> Any:
        is_parallel = int(loop.kind) == tirx.ForKind.PARALLEL
        few = isinstance(loop.extent, tirx.IntImm) and int(loop.extent) <= threads
        counts = isinstance(loop.min, tirx.IntImm) and int(loop.min) == 0 and not loop.annotations
        return _shared(loop, threads) if is_parallel and counts and not few else loop

    body = structural_map(func.body, (tirx.For, change))
    return func if body.same_as(func.body) else func.with_body(body)


def _shared(loop: Any, threads: int) -> tirx.Stmt:
    """A parallel loop from 0 on, in grains of neighbouring tasks; `next` has for each thread's run
    the first grain not yet taken."""
    tasks = loop.extent.astype("int64")
    grains = _number(_GRAINS * threads)
    size = tirx.max(tirx.floordiv(tasks + (grains - _number(1)), grains), _number(1))
    size = tvm.sym.Analyzer().simplify(size)
    total = tirx.floordiv(tasks + size - _number(1), size)
    next_, is_next = _array("next", threads * _LINE)
    taken, is_taken = _array("taken", 1)
    zero, one = _number(0), _number(1)
    thread, step, each, run, end, grain = (
        tirx.Var(name, "int64") for name in ("thread", "step", "each", "run", "end", "grain")
    )

    def begin(of: Any) -> Any:
        return tirx.floordiv(of * total, _number(threads))

    cell = tirx.address_of(next_[run * _LINE])
    take = tirx.BufferStore(taken, tirx.call_extern("int64", _TAKE, cell), [zero])
    # TVM narrows indices, and divides without a sign, where it knows a number's bounds.
    number = tirx.Bind(grain, tirx.max(tirx.min(taken[zero], total - one), zero))
    # TVM 0.27 makes loops begin at 0 (`CanonicalizeLoop`) and leaves a variable in the beginning of
    # a loop inside as it was: so this one does, and names the task.
    task = tirx.Var("task", "int64")
    of_task = tirx.Bind(loop.loop_var, (grain * size + task).astype(str(loop.loop_var.ty.dtype)))
    count = tirx.min(size, tasks - grain * size)
    own = tirx.For(task, zero, count, tirx.ForKind.SERIAL, tirx.SeqStmt([of_task, loop.body]))
    takes = tirx.While(taken[zero] < end, tirx.SeqStmt([number, own, take]))
    # No line is taken from its core for nothing.
    some = tirx.IfThenElse(next_[run * _LINE] < end, tirx.SeqStmt([*is_taken, take, takes]), None)
    of_run = [
        tirx.Bind(run, tirx.floormod(thread + step, _number(threads))),
        tirx.Bind(end, begin(run + one)),
        some,
    ]
    runs = tirx.For(step, zero, _number(threads), tirx.ForKind.SERIAL, tirx.SeqStmt(of_run))
    all_ = tirx.For(thread, zero, _number(threads), tirx.ForKind.PARALLEL, runs)
    set_ = tirx.BufferStore(next_, begin(each), [each * _LINE])
    ready = tirx.For(each, zero, _number(threads), tirx.ForKind.SERIAL, set_)
    code = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", StringImm(_CODE), all_)
    return tirx.SeqStmt([*is_next, ready, code])


def _number(value: int) -> Any:
    return tirx.const(value, "int64")


def _array(name: str, count: int) -> tuple[Any, list[tirx.Stmt]]:
    """(some numbers on the stack, the statements that make them)"""
    memory = tirx.Var(f"{name}_memory", _POINTER)
    array = tirx.decl_buffer((count,), "int64", name, data=memory, scope="local")
    words = tirx.call_intrin(_POINTER, "tirx.tvm_stack_alloca", "shape", count)
    return array, [tirx.Bind(memory, words), tirx.DeclBuffer(array, data=memory)]
