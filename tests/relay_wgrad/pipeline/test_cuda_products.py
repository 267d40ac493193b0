"""Matrix products of all types are scheduled for CUDA, and the compiler lives.

In a child process: what TVM's dlight did with them was a segmentation fault.
"""

from __future__ import annotations

from tests.support.children import run_code

CODE = """
import sys
import tvm
from tvm import relax, tirx
from tvm.relax.backend.cuda.pipeline import get_default_pipeline
import relay_wgrad
from relay_wgrad.pipeline.cuda import cuda_pipeline

R = relax.op
target = tvm.target.Target({
    "kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152, "thread_warp_size": 32,
})

def module(dtype, rows, einsum, gradient):
    bb = relax.BlockBuilder()
    shapes = {"x": (rows, 512), "w": (1000, 512), "b": (1000,)}
    x, w, b = (relax.Var(n, relax.TensorType(s, dtype)) for n, s in shapes.items())
    with bb.function("main", [x, w, b]):
        with bb.dataflow():
            if einsum:
                y = bb.emit(R.einsum((x, w), "ij,kj->ik"))
            elif dtype == "int8":
                y = bb.emit(R.matmul(x, bb.emit(R.permute_dims(w)), out_dtype="int32"))
            else:
                y = bb.emit(R.nn.relu(bb.emit(R.linear(x, w, b))))
            if gradient:
                y = R.sum(R.astype(y, "float32"))
            out = bb.emit_output(y)
        bb.emit_func_output(out)
    mod = bb.get()
    return relax.transform.Gradient("main")(mod) if gradient else mod

def run(pipeline, *case):
    with target:
        made = pipeline(module(*case))
    kernels = [f for f in made.functions.values() if isinstance(f, tirx.PrimFunc)]
    texts = [f.script() for f in kernels]
    assert all("threadIdx.x" in text and "blockIdx.x" in text for text in texts), case
    return texts

# What nobody has legalized: the rule is kept away.
for dtype in ("float16", "int8"):
    run(cuda_pipeline(), dtype, 256, False, False)
# These are made of text when the module is imported, which takes minutes.
assert "tvm.s_tir.tensor_intrin.cuda" not in sys.modules
relay_wgrad.register()
cases = [("float16", n, False, False) for n in (1, 3, 32, 256, 1000)]
cases += [("bfloat16", 256, False, False), ("float16", 256, True, False)]
cases += [("float16", 256, False, True), ("float32", 256, False, True)]
x, y = (relax.Var(n, relax.TensorType((8, 96, 80), "float16")) for n in "xy")
batches = relax.BlockBuilder()
with batches.function("main", [x, y]):
    turned = batches.emit(R.permute_dims(y, [0, 2, 1]))
    batches.emit_func_output(batches.emit(R.matmul(x, turned)))
with target:
    made = cuda_pipeline()(batches.get())
assert 'scope="shared"' in "".join(
    f.script() for f in made.functions.values() if isinstance(f, tirx.PrimFunc)
)
# A vector for each image, of pixels that are not divided by a block's threads.
for pixels in (49, 64, 196):
    x, y = (relax.Var(n, relax.TensorType(s, "float16"))
            for n, s in (("x", (4, 1, pixels, 384)), ("y", (4, 1, 384, 1))))
    vectors = relax.BlockBuilder()
    with vectors.function("main", [x, y]):
        vectors.emit_func_output(vectors.emit(R.matmul(x, y)))
    with target:
        made = cuda_pipeline()(vectors.get())
    kernels = [f.script() for f in made.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert kernels and all("blockIdx.x" in text for text in kernels), pixels
for pipeline in (cuda_pipeline(), get_default_pipeline(target)):
    for case in cases:
        texts = run(pipeline, *case)
        if case[1] >= 32:  # tiles of a product are in shared memory
            assert any('scope="shared"' in text for text in texts), case
print("compiled")
"""


def test_products() -> None:
    done = run_code(CODE, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "compiled" in done.stdout
