"""Kernels do not look at tensors that are known, and what a caller gives is looked at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from relay_wgrad.building.arguments import with_looks
from relay_wgrad.building.disk_cache import DiskCache
from relay_wgrad.building.program import build
from relay_wgrad.pipeline.cpu import cpu_pipeline
from tests.support.fast import FAST

pytestmark = pytest.mark.usefixtures("registered")

MATRIX = relax.TensorType([4, 4], "float32")


def built(module: tvm.IRModule, folder: Path) -> tuple[Any, list[str]]:
    """The module's machine, and the kernels with words for wrong arguments."""
    kept = DiskCache({"RELAY_WGRAD_CACHE": str(folder)})
    program, _, made = build(module, FAST, cpu_pipeline(), kept)
    looks = [name for each in made if b"expected" in each.content for name in each.symbols]
    return relax.VirtualMachine(program, tvm.cpu()), looks


def of_a_parameter() -> tvm.IRModule:
    bb, x = relax.BlockBuilder(), relax.Var("x", MATRIX)
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit_output(relax.op.sum(x, axis=[1]))
        bb.emit_func_output(y)
    return bb.get()


def of_an_item() -> tvm.IRModule:
    bb = relax.BlockBuilder()
    pair = relax.Var("pair", relax.TupleType([relax.TensorType([3], "int64"), MATRIX]))
    with bb.function("main", [pair]):
        with bb.dataflow():
            y = bb.emit_output(relax.op.sum(relax.TupleGetItem(pair, 1), axis=[1]))
        bb.emit_func_output(y)
    return bb.get()


def of_a_view() -> tvm.IRModule:
    bb, x = relax.BlockBuilder(), relax.Var("x", MATRIX)
    with bb.function("main", [x]):
        with bb.dataflow():
            view = bb.emit(relax.op.reshape(x, [2, 8]))
            y = bb.emit(relax.op.sum(view, axis=[1]))
            y = bb.emit_output(relax.op.concat([y, y]))
        bb.emit_func_output(y)
    return bb.get()


def sums(rows: torch.Tensor, module: Any) -> np.ndarray:
    if module is of_a_view:
        return np.tile(rows.reshape(2, 8).sum(1).numpy(), 2)
    return rows.sum(1).numpy()


WRONG = {
    "a transposed view": lambda rows: rows.t(),
    "columns of a wider one": lambda rows: torch.zeros(4, 6)[:, :4],
    "another dtype": lambda rows: rows.double(),
    "another size": lambda rows: torch.zeros(4, 5),
    "another number of dimensions": lambda rows: torch.zeros(16),
}


@pytest.mark.parametrize("module", [of_a_parameter, of_an_item, of_a_view])
def test_what_a_caller_gives_is_looked_at(module: Any, tmp_path: Path) -> None:
    """By the looks alone, before any kernel of the function's own has run."""
    vm, looks = built(module(), tmp_path)
    assert looks
    assert all(name.startswith("look_") for name in looks)

    def run(tensor: torch.Tensor) -> np.ndarray:
        given: Any = tvm_ffi.from_dlpack(tensor)
        first = tvm_ffi.from_dlpack(torch.zeros(3, dtype=torch.int64))
        return vm["main"]((first, given) if module is of_an_item else given).numpy()

    rows = torch.arange(16.0).reshape(4, 4)
    np.testing.assert_array_equal(run(rows), sums(rows, module))
    for wrong in WRONG.values():
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            run(wrong(rows))


@I.ir_module(s_tir=True)
class Stranger:
    """Kernels of results of functions from elsewhere, and one of a tensor of another type."""

    @T.prim_func(s_tir=True)
    def half(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        for i in range(4):
            y[i] = x[i] * T.float32(0.5)

    @T.prim_func(s_tir=True)
    def wide(x: T.Buffer((8,), "float32"), y: T.Buffer((4,), "float32")):
        for i in range(4):
            y[i] = x[i + 4]

    @R.function(pure=False)
    def of_another(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        cls = Stranger
        y = R.call_packed("test.view", x, ty_args=(R.Tensor((4,), "float32"),))
        return R.call_tir(cls.half, (y,), out_ty=R.Tensor((4,), "float32"))


def test_a_kernel_of_another_functions_result_looks(tmp_path: Path) -> None:
    """A view with strides comes from there, and is refused."""
    tvm_ffi.register_global_func("test.view", lambda x: x, override=True)
    _, looks = built(Stranger, tmp_path)
    assert "half" in looks


@pytest.mark.parametrize(
    ("sizes", "dtype", "result", "known"),
    [((8,), "float32", (4,), True), ((4,), "float32", (4,), False), ((8,), "int32", (4,), False),
     ((2, 4), "float32", (4,), False), (("n",), "float32", (4,), True),
     (("n",), "float32", ("m",), True), (("n",), "float32", ("n",), False),
     (("n", "m"), "float32", (4,), False)],
)  # fmt: skip
def test_a_kernel_looks_at_what_is_of_another_type(
    sizes: tuple[int | str, ...], dtype: str, result: tuple[int | str, ...], known: bool
) -> None:
    """A pass may have left a call with a kernel of another type; a kernel may learn its sizes, of
    several tensors the same ones."""
    bb, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType([8], "float32"))
    kernel = bb.add_func(Stranger["wide"], "wide")
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit_output(relax.call_tir(kernel, [x], relax.TensorType([4], "float32")))
        bb.emit_func_output(y)
    with FAST:
        module = cpu_pipeline()(bb.get())
    learnt = {name: tirx.Var(name, "int64") for name in ("n", "m")}
    params = [
        tirx.decl_buffer([learnt.get(str(n), n) for n in shape], of, name=name, data_alignment=4)
        for name, shape, of in (("x", sizes, dtype), ("y", result, "float32"))
    ]
    nothing = tirx.PrimFunc(params, tirx.Evaluate(tirx.IntImm("int32", 0)))
    module.update_func(module.get_global_var("wide"), nothing)
    module, names = with_looks(module)
    assert ("wide" in names) == known
    assert any(str(var.name_hint).startswith("look_") for var in module.get_global_vars()) == known
