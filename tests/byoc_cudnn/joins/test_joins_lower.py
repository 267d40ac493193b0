"""Joins, cuts and sums of a module become calls of generated functions; no GPU is needed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from byoc_cudnn.codegen.lowering import lower
from byoc_cudnn.joins.lower import lower_joins, planned
from relay_wgrad.ir import op_name
from tests.support.compiled import virtual_machine
from tests.support.joins import program, recorder
from tests.support.recorder import Recorder

pytestmark = pytest.mark.usefixtures("registered")


def lowered(mod: tvm.IRModule) -> tuple[tvm.IRModule, Recorder]:
    family = recorder()
    after, _ = lower(mod, family, planned, 90)  # type: ignore[arg-type]
    relax.analysis.well_formed(after)
    return after, family


def results(mod: tvm.IRModule, values: list[np.ndarray]) -> list[np.ndarray]:
    vm = virtual_machine(mod.without_attr("external_mods") if mod.attrs else mod)
    found = vm["main"](*map(tvm.runtime.tensor, values))
    return [t.numpy() for t in found]


def names(mod: tvm.IRModule) -> list[str]:
    return [op_name(b.value) for b in mod["main"].body.blocks[0].bindings]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("seed", range(6))
def test_random_programs_compute_what_they_did(dtype: str, seed: int) -> None:
    """Bit for bit: joins of joins, tensors with several readers, results that are parts."""
    rng, taken = random.Random(f"{dtype} {seed}"), 0
    for _ in range(3):
        before = program(rng, dtype)
        after, family = lowered(before)
        family.register()
        taken += len(family.calls)
        draw = np.random.default_rng(seed)
        values = [
            draw.standard_normal([int(n) for n in p.ty.shape.values]).astype(dtype)
            for p in before["main"].params
        ]
        for a, b in zip(results(after, values), results(before, values), strict=True):
            assert np.array_equal(a, b, equal_nan=True)
    assert taken > 3


@I.ir_module
class Block:
    """What comes back to a dense block: sums of cuts, one of which is needed twice."""

    @R.function
    def main(
        a: R.Tensor((2, 4, 4, 24), "float16"), b: R.Tensor((2, 4, 4, 16), "float16")
    ) -> R.Tuple(R.Tensor((2, 4, 4, 8), "float16"), R.Tensor((2, 4, 4, 8), "float16")):
        with R.dataflow():
            s = R.split(a, [8, 16], axis=3)
            t = R.split(b, [8], axis=3)
            u = R.add(s[0], t[0])
            v = R.add(s[1], t[1])
            w = R.sin(R.add(u, s[2]))
            R.output(v, w)
        return (v, w)


def test_gradients_of_several_joins_are_added_where_they_lie() -> None:
    after, family = lowered(Block)
    assert set(names(after)) == {"relax.call_dps_packed", "relax.sin"}
    assert [call.channels for call in family.calls] == [(24, 16), (24, 16)]
    terms = [[list(piece.terms) for piece in call.pieces] for call in family.calls]
    assert terms == [[[(0, 8), (1, 8)]], [[(0, 0), (1, 0), (0, 16)]]]


@I.ir_module
class Fields:
    @R.function
    def main(
        a: R.Tensor((2, 4, 4, 24), "float16"),
    ) -> R.Tuple(R.Tensor((2, 4, 4, 8), "float16"), R.Tensor((2, 4, 4, 8), "float16")):
        with R.dataflow():
            s = R.split(a, [8, 16], axis=3)
            x = R.sin(s[0])
            y = R.cos(s[2])
            R.output(x, y)
        return (x, y)


def test_fields_that_are_needed_come_from_one_call() -> None:
    after, family = lowered(Fields)
    (call,) = family.calls
    assert [[tuple(p) for p in pieces] for pieces in call.results] == [
        [(8, ((0, 0),))],
        [(8, ((0, 16),))],
    ]
    assert names(after).count("relax.call_dps_packed") == 1


def made(build: Any, dtype: str = "float16", shape: tuple[int, ...] = (2, 4, 4, 8)) -> tvm.IRModule:
    bb = relax.BlockBuilder()
    x, y = (relax.Var(n, relax.TensorType(shape, dtype)) for n in "xy")
    with bb.function("main", [x, y]):
        with bb.dataflow():
            out = bb.emit_output(build(bb, x, y))
        bb.emit_func_output(out)
    return bb.get()


def _op(name: str) -> Any:
    return getattr(relax.op, name)


@pytest.mark.parametrize(
    ("build", "dtype", "reason"),
    [
        (lambda bb, x, y: _op("concat")([x, y], 1), "float16", "along axis 1 of 4"),
        (lambda bb, x, y: relax.TupleGetItem(bb.emit(_op("split")(x, 2, 2)), 0), "float16",
         "along axis 2 of 4"),
        (lambda bb, x, y: _op("concat")([x, y], 3), "int32", "dtype 'int32'; there are"),
        (lambda bb, x, y: _op("concat")([x] * 41, 3), "float16", "41 pieces of 41 terms, at most"),
        (lambda bb, x, y: _op("sin")(bb.emit(_op("concat")([x, y], 3))), "float16",
         "TVM fuses it with what makes its operands or reads it"),
        (lambda bb, x, y: _op("concat")([bb.emit(_op("sin")(x)), y], 3), "float16",
         "TVM fuses it with what makes its operands or reads it"),
        (lambda bb, x, y: relax.TupleGetItem(
            bb.emit(_op("split")(bb.emit(_op("sin")(x)), 2, 3)), 0), "float16",
         "TVM fuses it with what makes its operand"),
    ],
)  # fmt: skip
def test_what_stays_has_a_reason(build: Any, dtype: str, reason: str) -> None:
    before = made(build, dtype)
    after, entries = lower_joins(before, 90)
    assert after["main"].same_as(before["main"])
    (entry,) = entries
    assert not entry.symbol
    assert entry.reason.startswith(reason)


def test_a_sum_alone_is_tvms() -> None:
    before = made(lambda bb, x, y: _op("add")(x, y))
    after, entries = lower_joins(before, 90)
    assert after["main"].same_as(before["main"])
    assert not entries


def test_rows_may_be_symbolic() -> None:
    n = tvm.tirx.Var("n", "int64")
    bb = relax.BlockBuilder()
    x, y = (relax.Var(k, relax.TensorType((n, 3, c), "float16")) for k, c in (("x", 5), ("y", 8)))
    with bb.function("main", [x, y]):
        with bb.dataflow():
            out = bb.emit_output(relax.op.concat([x, y], 2))
        bb.emit_func_output(out)
    _, family = lowered(bb.get())
    assert [call.channels for call in family.calls] == [(5, 8)]
    bb = relax.BlockBuilder()
    with bb.function("main", [z := relax.Var("z", relax.TensorType((3, n), "float16"))]):
        with bb.dataflow():
            out = bb.emit_output(relax.op.concat([z, z], 1))
        bb.emit_func_output(out)
    _, entries = lower_joins(bb.get(), 90)
    assert [entry.reason for entry in entries] == ["an operand that is no tensor of known channels"]
