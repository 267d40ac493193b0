"""Element-wise kernels that learn their sizes: right at any, one for all, and none of others."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.target import Target

from relay_wgrad.building.disk_cache import DiskCache
from relay_wgrad.building.objects import symbols_of
from relay_wgrad.building.program import build
from relay_wgrad.pipeline.cpu import cpu_pipeline, parallel_kernels
from relay_wgrad.pipeline.fused_kernels import fused_kernels

pytestmark = pytest.mark.usefixtures("registered")

R = relax.op
TARGET = Target({"kind": "llvm", "num-cores": 4})
# Vectors, pieces of tasks, and where tasks begin: at, below and above each.
SHAPES: list[tuple[int, ...]] = [
    (1,), (1, 1, 1, 1), (3,), (16,), (17, 1), (64, 3, 7, 7), (4095,), (4097,), (1 << 14,),
    (5, 3277), (1, 20, 1, 1001), (129, 1, 127, 2),
]  # fmt: skip


def module(
    functions: dict[str, tuple[Sequence[tuple[Sequence[int], str]], Callable[..., Any]]],
) -> tvm.IRModule:
    """A function for each name, of operands of these types."""
    bb = relax.BlockBuilder()
    for name, (types, body) in functions.items():
        params = [relax.Var(f"{name}{i}", relax.TensorType(*t)) for i, t in enumerate(types)]
        with bb.function(name, params):
            with bb.dataflow():
                out = bb.emit_output(body(*params))
            bb.emit_func_output(out)
    return bb.get()


def masked(x: Any, y: Any, rate: Any, mask: Any) -> Any:
    """As an update that a step may leave out."""
    return R.where(mask, R.subtract(x, R.multiply(rate, y)), x)


def update(shape: Sequence[int]) -> tuple[Sequence[tuple[Sequence[int], str]], Any]:
    whole, one = (shape, "float32"), ([], "float32")
    return [whole, whole, one, ([], "bool")], masked


def learn_sizes(mod: tvm.IRModule) -> list[bool]:
    """Of the kernels of a module whether they do."""
    with TARGET:
        made = tvm.transform.Sequential([*fused_kernels(), parallel_kernels()])(mod)
    return [
        any(isinstance(n, tirx.Var) for param in f.params for n in param.shape)
        for _, f in made.functions_items() if isinstance(f, tirx.PrimFunc)
    ]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_update_is_right_at_any_size(shape: tuple[int, ...]) -> None:
    mod = module({"main": update(shape)})
    assert learn_sizes(mod) == [math.prod(shape) > 1]
    program = build(mod, TARGET, cpu_pipeline(), DiskCache())[0]
    vm, rng = relax.VirtualMachine(program, tvm.cpu()), np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype("float32") for _ in range(2))
    for mask in (True, False):
        given = [x, y, np.float32(0.25), np.bool_(mask)]
        got = vm["main"](*(tvm.runtime.tensor(np.asarray(each)) for each in given)).numpy()
        np.testing.assert_array_equal(got, x - np.float32(0.25) * y if mask else x)


def test_kernels_that_differ_in_sizes_are_one(tmp_path: Path) -> None:
    """Of one number of dimensions, and of one number of threads."""
    shapes = {"a": (64, 32, 3, 3), "b": (1, 2048, 8, 1), "c": (16, 8, 1, 1), "d": (1, 5, 1, 7)}
    mod = module({name: update(shape) for name, shape in shapes.items()})
    kept = DiskCache({"RELAY_WGRAD_CACHE": str(tmp_path)})
    symbols = symbols_of(build(mod, TARGET, cpu_pipeline(), kept)[2])
    own = {n: s for n, s in symbols.items() if not n.startswith("look_")}
    assert len(own) == 4
    assert sorted(list(own.values()).count(symbol) for symbol in set(own.values())) == [2, 2]


OTHERS: dict[str, tuple[Sequence[tuple[Sequence[int], str]], Callable[..., Any]]] = {
    "its place": ([((6, 7), "float32")], lambda x: R.triu(x, 1)),
    "another order": (
        [((6, 6), "float32"), ((6, 6), "float32")],
        lambda x, y: R.add(R.permute_dims(x, [1, 0]), y),
    ),
    "a part": ([((4, 9), "float32")], lambda x: R.negative(R.strided_slice(x, [1], [0], [5]))),
    "one for each row": (
        [((64, 32), "float32"), ((64, 1), "float32")], lambda x, y: R.multiply(x, y)
    ),
    "the same sizes elsewhere": (
        [((5, 5), "float32"), ((5,), "float32")], lambda x, y: R.subtract(x, y)
    ),
    "a function": ([((50,), "float32")], lambda x: R.add(R.exp(x), x)),
    "half precision": ([((50,), "float16")], lambda x: R.add(x, x)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_needs_to_know_its_sizes_does(name: str) -> None:
    mod = module({"main": OTHERS[name]})
    assert learn_sizes(mod) == [False]
    values = [
        np.random.default_rng(i).standard_normal(shape).astype(dtype)
        for i, (shape, dtype) in enumerate(OTHERS[name][0])
    ]
    got, want = (
        relax.VirtualMachine(build(mod, TARGET, passes, DiskCache())[0], tvm.cpu())["main"](
            *map(tvm.runtime.tensor, values)
        ).numpy()
        for passes in (cpu_pipeline(), relax.get_pipeline("default"))
    )
    np.testing.assert_allclose(got, want, rtol=1e-6)


_PAIRS: dict[str, tuple[Any, Any]] = {
    "add": (R.add, np.add), "subtract": (R.subtract, np.subtract),
    "multiply": (R.multiply, np.multiply), "maximum": (R.maximum, np.maximum),
    "less": (lambda a, b: R.where(R.less(a, b), a, b), lambda a, b: np.where(a < b, a, b)),
}  # fmt: skip
_ALONE: dict[str, tuple[Any, Any]] = {
    "abs": (R.abs, np.abs), "negative": (R.negative, np.negative),
    "root": (lambda a: R.sqrt(R.abs(a)), lambda a: np.sqrt(np.abs(a))),
    "positive": (R.nn.relu, lambda a: np.maximum(a, 0)),
}  # fmt: skip


@pytest.mark.share(3)
@pytest.mark.parametrize("seed", range(12))
def test_expressions(seed: int) -> None:
    """Of tensors of all elements and of one, however many dimensions these have."""
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    shape = draw.choice(SHAPES[2:])
    ones: list[tuple[int, ...]] = [(), (1,), (1,) * len(shape)]
    shapes = [shape, *(draw.choice([shape, *ones]) for _ in range(draw.randrange(1, 4)))]
    values = [rng.standard_normal(s) for s in shapes]

    def body(*params: Any) -> Any:
        both = list(zip(params, values, strict=True))
        made = both[0]
        for other in [*both[1:], *draw.choices(both, k=1)]:
            (op, same), (alone, also) = (
                draw.choice(list(table.values())) for table in (_PAIRS, _ALONE)
            )
            made = op(made[0], other[0]), same(made[1], other[1])
            if draw.random() < 0.5:
                made = alone(made[0]), also(made[1])
        wanted.append(made[1])
        return made[0]

    wanted: list[Any] = []
    mod = module({"main": ([(s, "float64") for s in shapes], body)})
    assert all(learn_sizes(mod))
    vm = relax.VirtualMachine(build(mod, TARGET, cpu_pipeline(), DiskCache())[0], tvm.cpu())
    got = vm["main"](*map(tvm.runtime.tensor, values)).numpy()
    assert np.linalg.norm(got - wanted[0]) <= 1e-14 * np.linalg.norm(wanted[0])
