"""Reshapes are views, whatever other kernels a module has, and no kernel is left that they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.target import Target

from relay_wgrad.building.disk_cache import DiskCache
from relay_wgrad.building.program import build
from relay_wgrad.keys import OP_PATTERN, SCHEDULED
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.pipeline.reshapes import Reshapes

TARGET = Target({"kind": "llvm", "num-cores": 4})
R = relax.op


def flat() -> tirx.PrimFunc:
    """A kernel of one operand without blocks: x + 1 of four elements."""
    x, y = (tirx.decl_buffer([4], "float32", name=name) for name in ("x", "y"))
    i = tirx.Var("i", "int64")
    store = tirx.BufferStore(y, x[i] + tirx.const(1.0, "float32"), [i])
    zero, four = (tirx.IntImm("int64", n) for n in (0, 4))
    loop = tirx.For(i, zero, four, tirx.ForKind.SERIAL, store)
    return tirx.PrimFunc([x, y], loop).with_attrs({OP_PATTERN: 8, SCHEDULED: True})


def module(kernel: tirx.PrimFunc | None, before: str) -> tvm.IRModule:
    """A tensor of 2x2, one kernel's result reshaped for a product; maybe another kernel beside."""
    bb = relax.BlockBuilder()
    x, w = (relax.Var(name, relax.TensorType([2, 2], "float32")) for name in "xw")
    with bb.function("main", [x, w]):
        with bb.dataflow():
            made = bb.emit(getattr(R, before)(x, *([x] if before == "add" else [])))
            turned = bb.emit(R.reshape(R.reshape(R.matmul(made, w), [4]), [1, 4]))
            product = bb.emit(R.matmul(turned, R.reshape(w, [4, 1])))
            out: Any = [product]
            if kernel is not None:
                var = bb.add_func(kernel, "flat")
                whole = bb.emit(R.reshape(R.matmul(x, x), [4]))
                ty = relax.TensorType([4], "float32")
                out.append(bb.emit(relax.call_tir(var, [whole], ty)))
            outputs = bb.emit_output(relax.Tuple(out))
        bb.emit_func_output(outputs)
    return bb.get()


def copies(mod: tvm.IRModule) -> list[str]:
    names = [str(var.name_hint) for var in mod.get_global_vars()]
    return [name for name in names if "reshape" in name]


@pytest.mark.parametrize("kernel", [None, flat()], ids=("alone", "beside loops"))
@pytest.mark.parametrize("before", ["exp", "add"])  # an element-wise kernel of known sizes, of any
def test_reshapes_are_views(kernel: tirx.PrimFunc | None, before: str, registered: None) -> None:
    mod = module(kernel, before)
    with TARGET:
        made = cpu_pipeline()(mod)
    assert not copies(made)
    assert made["main"].script().count("vm.builtin.reshape") == (3 if kernel else 2)
    x, w = np.random.default_rng(0).standard_normal((2, 2, 2)).astype("float32")
    program = build(mod, TARGET, cpu_pipeline(), DiskCache())[0]
    vm = relax.VirtualMachine(program, tvm.cpu())
    product, *rest = (each.numpy() for each in vm["main"](*map(tvm.runtime.tensor, (x, w))))
    own = np.exp(x) if before == "exp" else x + x
    np.testing.assert_allclose(product, (own @ w).reshape(1, 4) @ w.reshape(4, 1), rtol=1e-5)
    for each in rest:
        np.testing.assert_allclose(each, (x @ x).reshape(4) + 1, rtol=1e-5)


def test_a_kernel_without_blocks_is_as_it_was(registered: None) -> None:
    kernel = flat()
    made = Reshapes()(relax.transform.LegalizeOps()(module(kernel, "exp")))
    assert made["main"].script().count("R.reshape(") == 4
    tvm.ir.assert_structural_equal(made["flat"].body, kernel.body)
