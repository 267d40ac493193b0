"""How even the CPU kernels' work is on many cores, and what a core reads: counted, nothing is run.

A kernel is written for so many cores of a CPU, and its loops are walked through, each task of a
parallel loop by its index.  `balance` is the instructions of the mean core over those of the
fullest: idle cores are what is missing to 1.  Instructions are vectors' arithmetic, loads and
stores; waiting for caches is not among them.  `read` is what the first core of each loop reads of
memory that others have written or may read, in whole lines of a cache, each once in a loop.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.target import Target
from tvm_ffi.structural import structural_walk

from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from legalize import cpu
from legalize.cpu.machine import WINOGRAD
from relay_wgrad.problem import ConvKind
from tests.support.layers import LAYOUTS, SUITES, suite

KINDS = tuple(kind.value for kind in ConvKind)
LINE = 64  # bytes
_PARALLEL = 1  # of `For.kind`
_OPERATORS: dict[Any, Any] = {
    tirx.Add: np.add, tirx.Sub: np.subtract, tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide, tirx.FloorMod: np.mod, tirx.Min: np.minimum,
    tirx.Max: np.maximum, tirx.EQ: np.equal, tirx.NE: np.not_equal, tirx.LT: np.less,
    tirx.LE: np.less_equal, tirx.GT: np.greater, tirx.GE: np.greater_equal,
    tirx.And: np.logical_and, tirx.Or: np.logical_or,
    # Towards zero.
    tirx.Div: lambda a, b: np.trunc(np.divide(a, b)).astype("int64"),
    tirx.Mod: np.fmod,
}  # fmt: skip
Values = dict[Any, Any]  # a variable -> its value in each of the states that are walked at once


class Walk:
    """A function's tasks.

    work : of each parallel loop, the instructions of its tasks, as often as it is run.
    serial : instructions outside of them.
    read : bytes that the first core reads.
    """

    def __init__(self, func: tirx.PrimFunc, cores: int, reads: bool) -> None:
        self.cores, self.reads = cores, reads
        self.work: list[Any] = []
        self.serial, self.read = 0.0, 0.0
        self._controls: dict[Any, set[Any]] = {}
        self._shared: set[Any] = set()  # buffers that are no task's own
        self._lines: dict[Any, Any] | None = None
        self._task: Any = None  # the number of each state's task
        self._sums: Any = None
        self._walk(func.body, {}, np.ones(1))

    @property
    def balance(self) -> float:
        """The mean core's work over the fullest one's: each has a run of tasks, as TVM cuts it."""
        total = fullest = self.serial
        for tasks in self.work:
            each = math.ceil(len(tasks) / self.cores)
            fullest += max(tasks[i : i + each].sum() for i in range(0, len(tasks), each))
            total += tasks.sum()
        return float(total / self.cores / fullest)

    @property
    def tasks(self) -> int:
        """Of the loop that has most to do."""
        return len(max(self.work, key=lambda tasks: float(tasks.sum()), default=[0]))

    def _walk(self, node: Any, values: Values, count: Any) -> None:
        """One statement in some states, each of which stands for `count` of them."""
        if isinstance(node, tirx.SeqStmt):
            values = dict(values)
            for each in node.seq:
                self._walk(each, values, count)
        elif isinstance(node, tirx.Bind):
            if str(node.value.ty) in ("int64", "int32", "bool"):
                values[node.var] = self._value(node.value, values)
            else:
                self._count(node.value, values, count)
        elif isinstance(node, tirx.For):
            self._loop(node, values, count)
        elif isinstance(node, tirx.IfThenElse):
            self._branch(node, values, count)
        elif isinstance(node, tirx.BufferStore):
            self._count(node.value, values, count)
        elif isinstance(node, tirx.DeclBuffer) and self._task is None:
            self._shared.add(node.buffer)
        elif isinstance(node, tirx.AttrStmt):
            self._walk(node.body, values, count)

    def _loop(self, node: tirx.For, values: Values, count: Any) -> None:
        first, extent = (self._value(x, values) for x in (node.min, node.extent))
        if int(node.kind) == _PARALLEL and self._task is None:
            extent, times = int(np.max(extent)), float(np.sum(count))
            own = math.ceil(extent / self.cores)
            numbers = np.arange(extent)
            values = {var: np.ravel(x)[0] for var, x in values.items()}
            self._task, self._sums = numbers, np.zeros(extent)
            lines: dict[Any, Any] = {}
            if self.reads:
                self._task, self._lines = numbers[:own], lines
                self._walk(node.body, {**values, node.loop_var: self._task}, np.ones(own))
                self.read += times * LINE * sum(int(found.sum()) for found in lines.values())
                self._lines, self._sums = None, np.zeros(extent)
            self._task = numbers
            self._walk(node.body, {**values, node.loop_var: numbers}, np.ones(extent))
            self.work.append(times * self._sums)
            self._task = None
            return
        if self._lines is None and node.loop_var not in self._controlled(node.body):
            # All turns take the same, so one stands for them.
            self._walk(node.body, {**values, node.loop_var: first}, count * np.maximum(extent, 0))
            return
        states = len(np.ravel(self._task)) if self._task is not None else 1
        turns = np.broadcast_to(np.maximum(extent, 0), (states,)).astype("int64")
        chosen = np.repeat(np.arange(states), turns)
        if not len(chosen):
            return
        number = np.arange(len(chosen)) - np.repeat(np.cumsum(turns) - turns, turns)
        inner = self._chosen(values, chosen)
        inner[node.loop_var] = number + (first if np.ndim(first) == 0 else first[chosen])
        if self._task is None:  # around parallel loops, one turn after the other
            for i in range(len(number)):
                self._walk(node.body, {v: _one(x, i) for v, x in inner.items()}, np.ones(1))
            return
        task, self._task = self._task, self._task[chosen]
        self._walk(node.body, inner, np.broadcast_to(count, (states,))[chosen])
        self._task = task

    def _branch(self, node: tirx.IfThenElse, values: Values, count: Any) -> None:
        holds = self._value(node.condition, values)
        for body, taken in ((node.then_case, holds), (node.else_case, np.logical_not(holds))):
            if body is None or not np.any(taken):
                continue
            if np.ndim(taken) == 0 or self._task is None:
                self._walk(body, dict(values), count)
                continue
            chosen = np.nonzero(taken)[0]
            task, self._task = self._task, self._task[chosen]
            inner = self._chosen(values, chosen)
            self._walk(body, inner, np.broadcast_to(count, (len(task),))[chosen])
            self._task = task

    @staticmethod
    def _chosen(values: Values, chosen: Any) -> Values:
        return {var: x if np.ndim(x) == 0 else x[chosen] for var, x in values.items()}

    def _count(self, value: Any, values: Values, count: Any) -> None:
        """The instructions of a value's vectors, and the lines of what it reads."""
        found: list[Any] = []
        structural_walk(value, [((tirx.Add, tirx.Sub, tirx.Mul, TensorLoad), found.append)])
        found = [x for x in found if "float" in str(x.ty)]
        # A sum with a product is one instruction.
        fused = sum(
            any(isinstance(x, tirx.Mul) for x in (node.a, node.b))
            for node in found
            if isinstance(node, (tirx.Add, tirx.Sub))
        )
        loads = [x for x in found if isinstance(x, TensorLoad)]
        instructions = max(1, len(found) - len(loads) - fused)
        if self._task is None:
            self.serial += float(np.sum(instructions * count))
            return
        weights = np.broadcast_to(instructions * count, np.shape(self._task))
        np.add.at(self._sums, self._task, weights)
        if self._lines is not None:
            for load in loads:
                self._mark(load, values)

    def _mark(self, load: Any, values: Values) -> None:
        buffer, (index,) = load.source, load.indices
        if buffer not in self._shared:
            return
        bytes_ = 2 if "16" in str(buffer.dtype) else 8 if "64" in str(buffer.dtype) else 4
        size = math.prod(int(x) for x in buffer.shape) * bytes_ // LINE + 1
        found = self._lines.setdefault(buffer, np.zeros(size, bool))  # type: ignore[union-attr]
        lanes, step = (int(index.lanes), index.stride) if isinstance(index, tirx.Ramp) else (1, 1)
        base = self._value(index.base if isinstance(index, tirx.Ramp) else index, values)
        step = int(self._value(step, values)) if isinstance(index, tirx.Ramp) else 1
        for lane in range(0, lanes, 1 if step > 1 else max(1, lanes - 1)):
            at = np.clip((base + lane * step) * bytes_ // LINE, 0, size - 1)
            found[at] = True

    def _controlled(self, node: Any) -> set[Any]:
        """The variables that loops' lengths and conditions within a statement depend on."""
        if node not in self._controls:
            names: dict[Any, set[Any]] = {}
            found: set[Any] = set()

            def free(value: Any) -> set[Any]:
                used: set[Any] = set()
                structural_walk(value, [(tirx.Var, lambda var: used.update(names.get(var, {var})))])
                return used

            def bind(each: Any) -> None:
                names[each.var] = free(each.value)

            def loop(each: Any) -> None:
                found.update(free(each.min), free(each.extent))

            def branch(each: Any) -> None:
                found.update(free(each.condition))

            structural_walk(node, [(tirx.Bind, bind)])
            structural_walk(node, [(tirx.For, loop), (tirx.IfThenElse, branch)])
            self._controls[node] = found
        return self._controls[node]

    def _value(self, node: Any, values: Values) -> Any:
        if isinstance(node, int):
            return node
        if isinstance(node, tirx.IntImm):
            return int(node.value)
        if isinstance(node, tirx.Var):
            return values[node]
        if isinstance(node, tirx.Cast):
            return self._value(node.value, values)
        if isinstance(node, tirx.Not):
            return np.logical_not(self._value(node.a, values))
        if isinstance(node, tirx.Select):
            parts = node.condition, node.true_value, node.false_value
            return np.where(*(self._value(x, values) for x in parts))
        if type(node) in _OPERATORS:
            return _OPERATORS[type(node)](*(self._value(x, values) for x in (node.a, node.b)))
        if node.op.name == "prim.if_then_else":
            return np.where(*(self._value(x, values) for x in node.args))
        raise ValueError(f"no number: {node}")


def _one(value: Any, i: int) -> Any:
    return value if np.ndim(value) == 0 else value[i]


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for name in args.suite:
        for layer in suite(name, args.batch, "f32", "NHWC", LAYOUTS):
            for problem in layer.problems(args.kinds):
                yield Case({"suite": name, "problem": problem.repro()}, (layer, problem))


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    keys = ["cpu", WINOGRAD] if args.winograd else ["cpu"]
    target = Target({"kind": "llvm", "mcpu": args.mcpu, "num-cores": args.cores, "keys": keys})

    def one(case: Case) -> Row:
        layer, problem = case.what
        made = cpu.with_tasks(problem, target)
        walk = Walk(made.func, args.cores, args.reads)
        return {
            "layer": layer.name, "kind": problem.kind.value, "kernel": made.name,
            "loops": len(walk.work), "tasks": walk.tasks, "balance": walk.balance,
            **({"read": walk.read, "whole": problem.bytes} if args.reads else {}),
        }  # fmt: skip

    return one


def summary(rows: Sequence[Row]) -> Iterator[str]:
    for kind in dict.fromkeys(row["kind"] for row in rows):
        found = [row["balance"] for row in rows if row["kind"] == kind]
        low = sum(each < 0.85 for each in found)
        yield f"{kind}: {low} of {len(found)} below 0.85, the least {min(found):.2f}"


BENCHMARK = Benchmark(
    cases, begin, suites=tuple(SUITES), summary=summary,
    options={
        "kinds": Option(KINDS, "", KINDS),
        "batch": Option(8, "images"),
        "cores": Option(16, "that share the work"),
        "mcpu": Option("x86-64-v4", "LLVM's name of a CPU"),
        "winograd": Option(False, "with Winograd's kernels, as `Trainer` has them"),
        "reads": Option(False, "count what a core reads, which takes some seconds a row"),
    },
    columns=(
        ("layer",), ("kind",), ("kernel",), ("loops", None, "d"), ("tasks", None, "d"),
        ("balance", None, ".2f"), ("read, KiB", "read", ".0f", 1 / 1024),
        ("of all tensors", lambda row: row["read"] / row["whole"], ".2f"), ("reason",),
    ),
)  # fmt: skip
