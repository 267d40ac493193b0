"""Memory of kernels between their parts: it comes from who calls them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from relay_wgrad.ops.conv_backward_weight import conv2d_backward_weight
from relay_wgrad.pipeline.cuda import cuda_pipeline
from relay_wgrad.pipeline.workspaces import Workspaces, with_workspaces
from relay_wgrad.torch.cuda_kernels import of_its_memory
from tests.support.cuda_source import pool_calls

CUDA = tvm.target.Target(
    {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024,
     "max_shared_memory_per_block": 49152, "thread_warp_size": 32}, host="llvm",
)  # fmt: skip


@I.ir_module(s_tir=True)
class Module:
    """Kernels of one result, of two, and of one that is its operand."""

    @T.prim_func(private=True, s_tir=True)
    def one(x: T.Buffer((4, 6), "float32"), y: T.Buffer((4,), "float32")):
        with T.sblock("root"):
            part = T.sblock_alloc_buffer((4, 2), "float32")
            for i, j in T.grid(4, 2):
                with T.sblock("part"):
                    a, b = T.axis.remap("SS", [i, j])
                    part[a, b] = x[a, b] + x[a, b + 2] + x[a, b + 4]
            for i in range(4):
                with T.sblock("whole"):
                    a = T.axis.spatial(4, i)
                    y[a] = part[a, 0] + part[a, 1]

    @T.prim_func(private=True, s_tir=True)
    def two(
        x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32"), z: T.Buffer((4,), "float32")
    ):
        with T.sblock("root"):
            twice = T.sblock_alloc_buffer((4,), "float32")
            for i in range(4):
                with T.sblock("twice"):
                    a = T.axis.spatial(4, i)
                    twice[a] = x[a] * T.float32(2)
            for i in range(4):
                with T.sblock("results"):
                    a = T.axis.spatial(4, i)
                    y[a] = twice[a] + T.float32(1)
                    z[a] = twice[a] - T.float32(1)

    @T.prim_func(private=True, s_tir=True)
    def over(x: T.Buffer((4,), "float32")):
        with T.sblock("root"):
            back = T.sblock_alloc_buffer((4,), "float32")
            for i in range(4):
                with T.sblock("back"):
                    a = T.axis.spatial(4, i)
                    back[a] = x[T.int64(3) - T.Cast("int64", a)]
            for i in range(4):
                with T.sblock("over"):
                    a = T.axis.spatial(4, i)
                    x[a] = back[a]

    @R.function
    def main(x: R.Tensor((4, 6), "float32")) -> R.Tuple(
        R.Tensor((4,), "float32"), R.Tensor((4,), "float32"), R.Tensor((4,), "float32")
    ):
        cls = Module
        with R.dataflow():
            y = R.call_tir(cls.one, (x,), out_ty=R.Tensor((4,), "float32"))
            pair = R.call_tir(
                cls.two, (y,), out_ty=[R.Tensor((4,), "float32"), R.Tensor((4,), "float32")]
            )
            up = pair[0]
            down = pair[1]
            last = R.call_tir_inplace(
                cls.over, (down,), inplace_indices=[0], out_ty=R.Tensor((4,), "float32")
            )
            out = (y, up, last)
            R.output(out)
        return out


def buffers(mod: tvm.IRModule) -> int:
    kernels = (f for _, f in mod.functions_items() if isinstance(f, tvm.tirx.PrimFunc))
    return sum(len(kernel.body.block.alloc_buffers) for kernel in kernels)


def test_results_are_the_same() -> None:
    after = Workspaces()(Module)
    assert (buffers(Module), buffers(after)) == (3, 0)
    relax.analysis.well_formed(after)  # raises
    given = np.random.default_rng(0).standard_normal((4, 6)).astype("float32")
    machine = relax.VirtualMachine(tvm.compile(after, target="llvm"), tvm.cpu())
    y, up, last = (t.numpy() for t in machine["main"](tvm.runtime.tensor(given)))
    want = given.sum(1)
    np.testing.assert_allclose(y, want, rtol=1e-5)
    np.testing.assert_allclose(up, 2 * want + 1, rtol=1e-5)
    np.testing.assert_allclose(last, (2 * want - 1)[::-1], rtol=1e-5)


def test_what_is_called_in_another_way_stays() -> None:
    mod = tvm.IRModule(dict(Module.functions_items()))
    mod["one"] = mod["one"].with_attr("global_symbol", "one")
    assert buffers(Workspaces()(mod)) == 1


@pytest.mark.parametrize("keep", [False, True])
def test_no_kernel_for_cuda_asks_tvms_pool(keep: bool, registered: None) -> None:
    """A long sum in parts, a mean for each channel, and a weight gradient."""
    x = relax.Var("x", relax.TensorType((8, 32, 32, 16), "float32"))
    y = relax.Var("y", relax.TensorType((8, 32, 32, 32), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, y]):
        with bb.dataflow():
            means = bb.emit(relax.op.mean(relax.op.multiply(x, x), [0, 1, 2]))
            gradient = bb.emit(
                conv2d_backward_weight(
                    y, x, 3, padding=1, grad_layout="NHWC", data_layout="NHWC", kernel_layout="OHWI"
                )
            )
            out = bb.emit_output(relax.Tuple([means, gradient]))
        bb.emit_func_output(out)
    made = tvm.compile(bb.get(), target=CUDA, relax_pipeline=cuda_pipeline(keep_memory=keep))
    assert pool_calls(made.mod) == 0


def test_a_kernel_of_pytorchs_has_pytorchs_memory() -> None:
    @T.prim_func(s_tir=True)
    def product(
        x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32"), z: T.Buffer((4,), "float32")
    ):
        with T.sblock("root"):
            kept = T.sblock_alloc_buffer((4,), "float32")
            for i in range(4):
                with T.sblock("kept"):
                    a = T.axis.spatial(4, i)
                    kept[a] = x[a] * y[a]
            for i in range(4):
                with T.sblock("result"):
                    a = T.axis.spatial(4, i)
                    z[a] = kept[a]

    assert len(with_workspaces(product, 3)[1]) == 1
    kernel = of_its_memory(product.with_attr("global_symbol", "main"), tvm.target.Target("llvm"))
    x, y, z = (torch.tensor([1.0, 2, 3, n]) for n in range(3))
    kernel(x, y, z)
    assert torch.equal(z, x * y)
