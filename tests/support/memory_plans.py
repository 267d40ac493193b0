"""Random functions of memory, and a machine that sees who writes on whose."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from relay_wgrad.ir import op_name
from relay_wgrad.pipeline import cpu
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.pipeline.last_passes import with_arena
from relay_wgrad.pipeline.overwrites import Overwrites, overwrites_of
from relay_wgrad.pipeline.packing import ALIGNMENT
from relay_wgrad.pipeline.storages import is_moved, static_bytes
from tests.support.compiled import virtual_machine

ROWS = 4


def network(seed: int, ops: int = 14) -> tvm.IRModule:
    """Random operators on (rows, 64), of which results of several kinds are returned."""
    rng = random.Random(seed)
    x = relax.Var("x", relax.TensorType((ROWS, 64), "float32"))
    bb = relax.BlockBuilder()

    def one(y: Any, z: Any) -> list[Any]:
        rows = int(y.ty.shape.values[0])
        kind = rng.choice(("exp", "concat", "split", "sum", "reshape", "add"))
        if kind == "concat" and rows <= 64 * ROWS:
            return [bb.emit(relax.op.concat([y, z], 0))]
        if kind == "split" and rows % 2 == 0:
            parts = bb.emit(relax.op.split(y, 2, 0))
            return [bb.emit(relax.TupleGetItem(parts, i)) for i in range(2)]
        if kind == "sum":
            return [bb.emit(relax.op.sum(y, 0, keepdims=True))]
        if kind == "reshape":
            flat = bb.emit(relax.op.reshape(y, (rows * 64,)))
            return [bb.emit(relax.op.reshape(bb.emit(relax.op.negative(flat)), (rows, 64)))]
        if kind == "add" and y.ty.shape.values[0] == z.ty.shape.values[0]:
            return [bb.emit(relax.op.add(y, z))]
        return [bb.emit(relax.op.tanh(y))]

    with bb.function("main", [x]):
        with bb.dataflow():
            made = [bb.emit(relax.op.tanh(x))]
            for _ in range(ops):
                made += one(rng.choice(made[-4:]), rng.choice(made))
            out = [
                bb.emit_output(relax.op.reshape(made[-1], (-1,))),
                bb.emit_output(relax.op.concat([rng.choice(made), made[0]], 0)),
                bb.emit_output(rng.choice(made)),
            ]
        bb.emit_func_output(relax.Tuple([relax.Tuple(out[:1]), relax.Tuple([*out[1:], x])]))
    return bb.get()


def planned(module: tvm.IRModule) -> tvm.IRModule:
    """With TVM's static plan."""
    passes = [
        relax.transform.LegalizeOps(), Overwrites(), relax.transform.RewriteDataflowReshape(),
        relax.transform.ToNonDataflow(), relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(), relax.transform.StaticPlanBlockMemory(),
    ]  # fmt: skip
    with tvm.target.Target("llvm"):
        return tvm.transform.Sequential(passes)(module)


def bindings(func: relax.Function) -> list[Any]:
    return [b for block in func.body.blocks for b in block.bindings]


def storages(func: relax.Function) -> list[int]:
    sizes = [static_bytes(b.value) for b in bindings(func)]
    return [size for size in sizes if size is not None]


class Machine:
    """Runs a function's calls on memory whose pages know who wrote them last.

    Every call reads its operands whole; one that finds another's pages raises AssertionError.

    mod : whose kernels may write a result on all of an operand, which nobody may read after.
    before : a machine that has run a function of the same memory; given : its results among others,
        as arguments.
    """

    def __init__(
        self,
        func: relax.Function,
        mod: tvm.IRModule,
        before: Machine | None = None,
        given: Sequence[Any] = (),
    ) -> None:
        self.mod = mod
        self.kept = None if before is None else before.kept  # what was made once
        self.written: dict[Any, int] = {} if before is None else dict(before.written)
        self.values: dict[Any, Any] = dict(zip(func.params, given, strict=False))
        first = max(self.written.values(), default=0) + 1
        for number, binding in enumerate(bindings(func), first):
            self.values[binding.var] = self.value(binding.value, number)
        self.results = self.value(func.body.body, 0)

    def value(self, expr: Any, number: int) -> Any:
        """A storage's pages, a tensor (pages, whether they are its own), or a tuple of values."""
        if isinstance(expr, relax.Var):
            return self.values.get(expr)
        if isinstance(expr, relax.Tuple):
            return tuple(self.value(field, number) for field in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return self.value(expr.tuple_value, number)[expr.index]
        name = op_name(expr)
        if (size := static_bytes(expr)) is not None:
            return np.zeros(-(-size // ALIGNMENT), np.int64)
        if name == "relax.memory.alloc_tensor":
            pages = self.values[expr.args[0]][int(expr.args[1]) // ALIGNMENT :]
            return pages[: self.pages(expr)], False
        if name == "relax.builtin.alloc_tensor":
            return np.zeros(self.pages(expr), np.int64), True
        if name == "relax.reshape" or is_moved(expr):
            return self.value(expr.args[0], number)
        if name == "relax.call_builtin_with_ctx":
            return self.kept
        args = [self.value(arg, number) for arg in expr.args]
        called = isinstance(expr, relax.Call)
        pairs = overwrites_of(self.mod, expr.op) if called else []
        self.call(args, number, [(args[result], args[operand]) for result, operand in pairs])
        return None

    @staticmethod
    def pages(call: Any) -> int:
        elements = int(np.prod([int(n) for n in call.ty.shape.values]))
        return -(-4 * elements // ALIGNMENT)

    def call(self, args: list[Any], number: int, pairs: list[Any]) -> None:
        tensors = [arg for arg in args if arg is not None]
        for tensor in tensors:  # of a pass of its own: a result may lie on no other operand
            if (by := self.written.get(id(tensor))) is not None:
                assert (tensor[0] == by).all()
        for tensor in tensors:
            if id(tensor) not in self.written:
                tensor[0][:] = self.written[id(tensor)] = number
        over = {id(b) for a, b in pairs if a is not None and b is not None and _is_one(a[0], b[0])}
        for tensor in tensors:
            if id(tensor) not in over:
                assert (tensor[0] == self.written[id(tensor)]).all()


def _is_one(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two views are of the same pages."""
    return a.ctypes.data == b.ctypes.data and a.shape == b.shape


def run(module: tvm.IRModule) -> list[Any]:
    """What two calls of the function compiled for this CPU give."""
    x = tvm.runtime.tensor(np.random.default_rng(0).standard_normal((ROWS, 64), "float32"))
    machine = virtual_machine(module, "llvm", cpu_pipeline())
    found = [machine["main"](x) for _ in range(2)]
    return [t.numpy() for (flat,), others in found for t in (flat, *others)]


def same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(map(np.array_equal, a, b))


@contextlib.contextmanager
def memory_is_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[Any, Any]]:
    """Within it machines of this CPU keep their memory, as those of a GPU do before a capture: what
    they have made once, by (machine, number).  What the CUDA runtime does stands in for it."""
    name, made, machines = "vm.builtin.cuda_graph.get_cached_alloc", {}, []
    if tvm.get_global_func(name, allow_missing=True) is not None:
        pytest.skip("the CUDA runtime has it, for its own devices")

    init: Any = relax.VirtualMachine.__init__

    def begin(machine: Any, *args: Any, **named: Any) -> None:
        machines.append(machine)  # another one's would be at its address else
        init(machine, *args, **named)

    def cached(context: Any, maker: Any, number: int) -> Any:
        key = (getattr(context, "value", context), number)
        if key not in made:
            made[key] = tvm.get_global_func("vm.builtin.invoke_closure")(context, maker)
        return made[key]

    monkeypatch.setattr(cpu, "with_arena", lambda passes: with_arena(passes, keep=True))
    monkeypatch.setattr(relax.VirtualMachine, "__init__", begin)
    tvm_ffi.register_global_func(name, cached)
    try:
        yield made
    finally:
        tvm_ffi.registry.remove_global_func(name)
