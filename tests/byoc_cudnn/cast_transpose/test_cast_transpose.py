"""Casts and transpositions of many tensors: what a permutation is, which go together."""

from __future__ import annotations

import ctypes
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from byoc_cudnn.cast_transpose import CAST_TRANSPOSES, CastTransposeCall, Transposition, check
from byoc_cudnn.cast_transpose.lower import lower_cast_transposes
from byoc_cudnn.cast_transpose.places import transposition
from byoc_cudnn.norm.lower import lower_norms
from relay_wgrad.dtypes import numpy_dtype
from relay_wgrad.frontend import from_onnx
from relay_wgrad.graph.walk import variables_of
from relay_wgrad.ir import op_name
from relay_wgrad.training.step import ADJOINT, converted, step_module
from tests.support import cuda_emulated
from tests.support.cast_transpose import chains, moved, placed, step
from tests.support.compiled import virtual_machine
from tests.support.cuda_emulated import aligned
from tests.support.training_models import residual_net

pytestmark = pytest.mark.usefixtures("registered")

FILLED = ((2, 3), (1, 1), (1, 1))
OIHW = [(8, 3, 3, 2), (4, 8, 1, 1), (5, 4, 1, 3), (6, 5, 2, 2)]


def test_every_permutation_that_is_a_transposition() -> None:
    known = 0
    for sizes in [(2, 3, 4, 5), (2, 1, 3, 1), (1, 3, 1, 4), (7, 1, 1, 1), (2, 3, 4)]:
        array = np.arange(np.prod(sizes)).reshape(sizes)
        for axes in itertools.permutations(range(len(sizes))):
            move = transposition(sizes, axes)
            if move is None:
                continue
            known += 1
            assert (placed(move, array) == array.transpose(axes).ravel()).all(), (sizes, axes)
    assert known > 40
    assert transposition((64, 32, 3, 3), (0, 2, 3, 1)) == Transposition(64, 32, 9)
    assert transposition((64, 32, 1, 1), (0, 2, 3, 1)) == Transposition(1, 1, 2048)
    assert transposition((2, 3, 4, 5), (1, 0, 2, 3)) is None


def test_what_there_is_no_kernel_for() -> None:
    assert check(CastTransposeCall("f", "float32", "float16", (Transposition(1, 2, 3),)))
    for call, reason in (
        (
            CastTransposeCall("f", "float64", "float32", (Transposition(1, 2, 3),)),
            "source 'float64'",
        ),
        (CastTransposeCall("f", "float32", "float16", ()), "no tensor"),
        (
            CastTransposeCall("f", "float32", "float16", (Transposition(1, 1 << 15, 1 << 15),)),
            "elements",
        ),
        (CastTransposeCall("f-", "float32", "float16", (Transposition(1, 2, 3),)), "no identifier"),
        (CastTransposeCall("f", "float32", "float16", (Transposition(5, 1, 1, FILLED),)), "fills"),
    ):
        assert reason in check(call).reason


@pytest.mark.share(2)
@pytest.mark.parametrize("scaled", [False, True])
def test_a_step_has_one_call_at_either_end(scaled: bool) -> None:
    before = step(OIHW, scaled)
    mod, entries = lower_cast_transposes(before, 90)
    relax.analysis.well_formed(mod)
    assert [e.op for e in entries] == ["cast_transpose", "cast_transpose"]
    (module,) = mod.attrs["external_mods"]
    assert CAST_TRANSPOSES.kernels_of(module.inspect_source()) == [
        (90, "relay_wgrad_cast_transpose_float16_float32"),
        (90, "relay_wgrad_cast_transpose_float32_float16"),
    ]  # fmt: skip
    names = [op_name(b.value) for b in mod["main"].body.blocks[0].bindings]
    assert not {"relax.astype", "relax.permute_dims"}.intersection(names)
    assert names.count("relax.call_dps_packed") == 2
    calls = {
        0: CastTransposeCall("", "float32", "float16", _transpositions(OIHW, (0, 2, 3, 1))),
        1: CastTransposeCall(
            "", "float16", "float32", _transpositions(OIHW, (0, 2, 3, 1), back=True), scaled
        ),
    }
    for i, entry in enumerate(entries):
        tvm_ffi.register_global_func(entry.symbol, _by_numpy(calls[i]), override=True)
    values = [np.random.default_rng(i).standard_normal(s, "float32") for i, s in enumerate(OIHW)]
    values.append(np.float32(7))
    got, want = (_run(m, values) for m in (mod.without_attr("external_mods"), before))
    for a, b in zip(got, want, strict=True):
        assert (a == b).all()


def _transpositions(shapes: Any, axes: Any, back: bool = False) -> tuple[Transposition, ...]:
    found = [transposition(shape, axes) for shape in shapes]
    return tuple(Transposition(m.blocks, m.columns, m.rows) if back else m for m in found if m)


def _by_numpy(call: CastTransposeCall) -> Any:
    def packed(*tensors: Any) -> None:
        arrays = [t.numpy() for t in tensors]
        count = len(call.tensors)
        scale = float(arrays[count].reshape(())) if call.scaled else 1.0
        results = tensors[count + call.scaled :]
        for result, value in zip(results, moved(call, arrays[:count], scale), strict=True):
            tvm.runtime.tensor(value.reshape(result.shape)).copyto(result)

    return packed


def _run(mod: tvm.IRModule, values: Any) -> list[np.ndarray]:
    vm = virtual_machine(mod)
    return [t.numpy() for t in vm["main"](*(tvm.runtime.tensor(v) for v in values))]


@pytest.mark.parametrize("blocks", [False, True])
def test_a_kernel_makes_its_operand_itself(blocks: bool) -> None:
    """An image in blocks of pixels is made of the image, by one kernel, as its filter is."""
    graph = from_onnx(residual_net(blocks=2))
    step = step_module(graph, dtype="float16", wide_weight_gradients=False)
    step = converted(step, "NHWC", blocks=blocks)
    mod, entries = lower_cast_transposes(step, 90)
    assert len(entries) >= 2
    bindings = mod[ADJOINT].body.blocks[0].bindings
    calls = [b.value for b in bindings if op_name(b.value) == "relax.call_dps_packed"]
    taken = {str(v.name) for call in calls for v in variables_of(call)}
    first = {graph.inputs[0].name, next(p.name for p in step[ADJOINT].params if "stem" in p.name)}
    assert len(taken & {str(p.name) for p in step[ADJOINT].params}) >= 4
    assert first & taken == (set() if blocks else first)


def test_a_scaled_step_leaves_no_cast_of_a_gradient() -> None:
    """With a loss scale, all gradients are cast, turned and divided by it in two launches."""
    graph = from_onnx(residual_net(blocks=2))
    mod = converted(step_module(graph, dtype="float16", scaled=True, raise_norms=True,
                                wide_weight_gradients=False), "NHWC")  # fmt: skip
    mod, entries = lower_cast_transposes(lower_norms(mod, 90)[0], 90)
    assert len(entries) == 3
    func = mod[ADJOINT]
    value = {b.var: b.value for b in func.body.blocks[0].bindings}
    made = [value[g] for g in func.body.body.fields[1].fields]
    alone = [v for v in made if not isinstance(v, relax.TupleGetItem)]
    assert len(made) == len(graph.trainable)
    assert len(alone) <= 1, alone


def test_reshapes_go_along() -> None:
    """A bias has one before its cast, a product's weight between its turning and its cast; what is
    a reshape alone stays one."""
    builder = relax.BlockBuilder()
    shapes = [(7,), (12,), (6, 5, 3, 3), (9, 4, 1, 1), *[(8, 2)] * 4]
    params = [relax.Var(f"p{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    emit, op = builder.emit, relax.op
    with builder.function("main", params):
        with builder.dataflow():
            made = [
                emit(op.astype(emit(op.reshape(params[0], (1, 1, 1, 7))), "float16")),
                emit(op.reshape(emit(op.astype(params[1], "float16")), (3, 4))),
            ]
            for p, rows in ((params[2], (6, 45)), (params[3], (9, 4))):
                turned = emit(op.reshape(emit(op.permute_dims(p, [0, 2, 3, 1])), rows))
                made.append(emit(op.astype(turned, "float16")))
            # As many as a launch for all would be worth a call.
            made += [emit(op.reshape(p, (16,))) for p in params[4:]]
            out = [builder.emit_output(op.add(m, m)) for m in made]
        builder.emit_func_output(relax.Tuple(out))
    before = builder.get()
    mod, entries = lower_cast_transposes(before, 90)
    relax.analysis.well_formed(mod)
    (entry,) = entries
    names = [op_name(b.value) for b in mod["main"].body.blocks[0].bindings]
    assert names.count("relax.reshape") == 4
    assert not {"relax.astype", "relax.permute_dims"}.intersection(names)
    moves = (Transposition(1, 1, 7), Transposition(1, 1, 12), Transposition(6, 5, 9),
             Transposition(1, 1, 36))  # fmt: skip
    call = CastTransposeCall("", "float32", "float16", moves)
    tvm_ffi.register_global_func(entry.symbol, _by_numpy(call), override=True)
    values = [np.random.default_rng(i).standard_normal(s, "float32") for i, s in enumerate(shapes)]
    got, want = (_run(m, values) for m in (mod.without_attr("external_mods"), before))
    for a, b in zip(got, want, strict=True):
        assert np.array_equal(a, b)


def test_results_that_are_reshapes_are_copied_together() -> None:
    """As gradients of biases are; what is returned is no view of something else."""
    builder = relax.BlockBuilder()
    emit, op = builder.emit, relax.op
    shapes = [(3, n) for n in (5, 8, 13, 21)]
    params = [relax.Var(f"p{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    with builder.function("main", params):
        with builder.dataflow():
            sums = [emit(op.sum(p, [0], keepdims=True)) for p in params]
            out = [
                builder.emit_output(op.reshape(t, (n,)))
                for t, (_, n) in zip(sums, shapes, strict=True)
            ]
        builder.emit_func_output(relax.Tuple(out))
    before = builder.get()
    mod, (entry,) = lower_cast_transposes(before, 90)
    relax.analysis.well_formed(mod)
    names = [op_name(b.value) for b in mod["main"].body.blocks[0].bindings]
    assert "relax.reshape" not in names
    call = CastTransposeCall(
        "", "float32", "float32", tuple(Transposition(1, 1, n) for _, n in shapes)
    )
    tvm_ffi.register_global_func(entry.symbol, _by_numpy(call), override=True)
    values = [np.random.default_rng(i).standard_normal(s, "float32") for i, s in enumerate(shapes)]
    got, want = (_run(m, values) for m in (mod.without_attr("external_mods"), before))
    for a, b in zip(got, want, strict=True):
        assert np.array_equal(a, b)


@pytest.mark.share(4)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("to_float", [False, True])
def test_chains_at_random(seed: int, to_float: bool) -> None:
    """Whatever goes together has the bits that each chain has alone."""
    before, made = chains(seed, to_float)
    mod, entries = lower_cast_transposes(before, 90)
    relax.analysis.well_formed(mod)
    (module,) = mod.attrs["external_mods"]
    calls = calls_of(module.inspect_source(), "float16" if to_float else "float32", to_float)
    for entry in entries:
        call = calls[entry.symbol]
        tvm_ffi.register_global_func(entry.symbol, _by_numpy(call), override=True)
    assert sum(len(call.tensors) for call in calls.values()) >= 6
    assert any(call.filled for call in calls.values())
    rng = np.random.default_rng(seed)
    source = "float16" if to_float else "float32"
    values = [rng.standard_normal(chain.sizes).astype(source) for chain in made]
    got, want = (
        _run(m, [*values, np.float32(3)]) for m in (mod.without_attr("external_mods"), before)
    )
    for chain, a, b in zip(made, got, want, strict=True):
        assert np.array_equal(a, b), str(chain)


def calls_of(source: str, dtype: str, scaled: bool) -> dict[str, CastTransposeCall]:
    """The calls that a generated source exports, by its rows of numbers."""
    row = r'^    \{"[^"]*", \w+, "\w+",\n.*\n.*\n     (\{\{.*\}\})\},$'
    rows = re.findall(row, source, re.MULTILINE)
    tensors = []
    for text in rows:
        numbers = [tuple(map(int, one.split(","))) for one in re.findall(r"\{([\d, ]+)\}", text)]
        tensors.append(
            tuple(
                Transposition(n[0], n[1], n[2], ((n[3], n[4]), (n[5], n[6]), (n[7], n[8])))
                for n in numbers
            )
        )
    symbols = re.findall(r"__tvm_ffi_(\w+)\(void.*\n  return call\(kRows\[(\d+)\]", source)
    result = "float32" if dtype == "float16" else "float16"
    return {
        symbol: CastTransposeCall(symbol, dtype, result, tensors[int(at)], scaled)
        for symbol, at in symbols
    }


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("source", ctypes.c_void_p), ("result", ctypes.c_void_p),
        ("sizes", ctypes.c_int64 * 3), ("fills", ctypes.c_int64 * 6),
    )  # fmt: skip


class _Call(ctypes.Structure):
    _fields_ = (
        ("tensors", ctypes.POINTER(_Tensor)), ("count", ctypes.c_int64),
        ("scale", ctypes.c_void_p),
    )  # fmt: skip


MOVES = (
    Transposition(16, 13, 9, ((8, 12), (13, 16), (1, 1))), Transposition(1, 1, 26, FILLED[::-1]),
    Transposition(32, 9, 32, ((32, 26), (1, 1), (16, 13))), Transposition(5, 7, 3),
    Transposition(1, 1, 2100), Transposition(48, 1, 64, ((24, 26), (1, 1), (64, 50))),
)  # fmt: skip


# What a block has of a tensor: some blocks, whole packs or not; of one some rows, some columns,
# some of both; 16 bytes of either side at once, or one element.
TURNED = ((40, 5, 9), (3, 5, 9), (2, 300, 9), (1, 226, 27), (2, 9, 328), (1, 9, 230), (1, 96, 104),
          (1, 67, 65), (2, 1, 300), (1, 33, 64))  # fmt: skip


@pytest.mark.parametrize(("source", "result"), [("float32", "bfloat16"), ("float16", "float32")])
def test_tiles(tmp_path: Path, source: str, result: str) -> None:
    moves = tuple(Transposition(*sizes) for sizes in TURNED)
    call = CastTransposeCall("f", source, result, moves, False)
    rng, kind = np.random.default_rng(1), np.dtype(numpy_dtype(source))
    sources = [
        aligned(rng.standard_normal(m.sizes).astype(kind), kind.itemsize * (i == 1))
        for i, m in enumerate(moves)
    ]
    for move, got, want in zip(
        moves, kernels_results(tmp_path, call, sources), moved(call, sources), strict=True
    ):
        assert np.array_equal(got.ravel().view("uint8"), want.view("uint8")), move


@pytest.mark.longer_cases("None", "3.0-False", why="256 threads emulated for each tile")
@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("scale", [None, 3.0])
def test_kernel(tmp_path: Path, filled: bool, scale: float | None) -> None:
    """On an emulated device, of more tensors than a launch's table holds, NaN among them."""
    moves = tuple(move for move in MOVES if filled or not move.fills) * 12
    call = CastTransposeCall("f", "float32", "float16", moves, scale is not None)
    assert call.filled is filled
    rng = np.random.default_rng(0)
    sources = [aligned(rng.standard_normal(m.sizes).astype("float32")) for m in moves]
    sources[0].flat[1] = np.nan
    results = kernels_results(tmp_path, call, sources, scale)
    want = moved(call, sources, 1.0 if scale is None else scale)
    for move, a, b in zip(moves, results, want, strict=True):
        assert np.array_equal(a.ravel(), b, equal_nan=True), move


def kernels_results(
    folder: Path, call: CastTransposeCall, sources: list[np.ndarray], scale: float | None = None
) -> list[np.ndarray]:
    moves = call.tensors
    results = [aligned(np.full(m.results, 7, numpy_dtype(call.result))) for m in moves]
    table = (_Tensor * len(moves))()
    for i, move in enumerate(moves):
        table[i].source, table[i].result = sources[i].ctypes.data, results[i].ctypes.data
        table[i].sizes[:] = move.sizes
        table[i].fills[:] = [n for pair in move.fills or ((1, 1),) * 3 for n in pair]
    kept = ctypes.c_float(scale or 0)
    factor = None if scale is None else ctypes.addressof(kept)
    name = CAST_TRANSPOSES.kernel_of(call)
    own = cuda_emulated.loaded(folder, name)
    assert getattr(own, name)(ctypes.byref(_Call(table, len(moves), factor)), None) == 0
    return results
