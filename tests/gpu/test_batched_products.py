"""Batched products by cuBLAS on a GPU: against float64, captured, on two streams, and in steps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from tvm import relax

import byoc_cudnn
from byoc_cudnn.report import BY_CUBLAS
from relay_wgrad.frontend import from_torch
from relay_wgrad.pipeline.cuda import cuda_pipeline
from relay_wgrad.training.capture import Captured
from relay_wgrad.training.cuda_tools import cuda_compiler, cuda_runtime
from relay_wgrad.training.step import ADJOINT, converted, step_module
from tests.support.batched_products import LIMITS, Attention, alone, apart
from tests.support.gpu.runner import choose_compiler

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]
op = relax.op
SYMBOL = "relay_wgrad_batched_products_"


@pytest.fixture(autouse=True, scope="module")
def _compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    choose_compiler()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAY_WGRAD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def product(
    a: tuple[int, ...], b: tuple[int, ...], dtype: str, turned: str = "", out: str | None = None
) -> tvm.IRModule:
    """A B of tensors that are given as their transposes where `turned` names them."""
    bb = relax.BlockBuilder()
    given = [relax.Var(name, relax.TensorType(s, dtype)) for name, s in (("a", a), ("b", b))]
    with bb.function("main", given):
        with bb.dataflow():
            made = []
            for var in given:
                *outer, rows, columns = range(var.ty.ndim)
                order = [*outer, columns, rows]
                made.append(bb.emit(op.permute_dims(var, order)) if var.name in turned else var)
            y = bb.emit_output(op.matmul(*made, out_dtype=out))
        bb.emit_func_output(y)
    return bb.get()


def machine(mod: tvm.IRModule, keep_memory: bool = False) -> Any:
    """The virtual machine, all of whose products are cuBLAS's."""
    with cuda_compiler():
        library = byoc_cudnn.build(mod, pipeline=cuda_pipeline(keep_memory=keep_memory))
        entries = [e for e in library.direct if e.op == "matmul"]
        assert entries
        assert all(e.symbol for e in entries), entries
        return library, library.virtual_machine()


def on_gpu(arrays: Any) -> list[Any]:
    return [tvm.runtime.tensor(np.asarray(a), tvm.cuda(0)) for a in arrays]


@pytest.mark.parametrize("dtype", LIMITS)
def test_random_products(dtype: str) -> None:
    """Odd sizes, transpositions, batches of axes, parts, one matrix for several; those that are
    nothing but a call, as functions of one module."""
    cases = alone(range(120), dtype)
    assert len(cases) > 30
    functions = {
        name: case.module()["main"].with_attr("global_symbol", name) for name, case in cases.items()
    }
    _, vm = machine(tvm.IRModule(functions))
    for name, case in cases.items():
        arrays = case.operands()
        got, again = (vm[name](*on_gpu(arrays)).numpy() for _ in range(2))
        assert apart(got, case.wanted(arrays)) < case.limit, name
        assert got.tobytes() == again.tobytes(), name


# Of attention in networks, and what has few results of long sums, many matrices, and odd rows.
LARGE = {
    "vit": ((8, 6, 197, 64), (8, 6, 197, 64), "b"),
    "vit weights": ((8, 6, 197, 197), (8, 6, 197, 64), ""),
    "vit gradient": ((8, 6, 197, 197), (8, 6, 197, 64), "a"),
    "windows": ((1024, 4, 49, 32), (1024, 4, 49, 32), "b"),
    "many": ((70000, 7, 9), (70000, 9, 5), ""),
    "long sums": ((2, 64, 8192), (2, 8192, 48), ""),
    "odd": ((3, 131, 67), (3, 67, 129), ""),
    "one": ((257, 300), (300, 129), ""),
}


@pytest.mark.parametrize("dtype", ["tf32", *LIMITS])
@pytest.mark.parametrize("name", LARGE)
def test_sizes_of_networks(name: str, dtype: str) -> None:
    a, b, turned = LARGE[name]
    kind = "float32" if dtype == "tf32" else dtype
    mod = product(a, b, kind, turned, "float32" if kind in ("float16", "bfloat16") else None)
    if dtype == "tf32":
        mod, _ = byoc_cudnn.partition_for_cudnn(mod, allow_tf32=True)
    library, vm = machine(mod)
    generator = torch.Generator("cuda").manual_seed(0)
    operands = [
        torch.randn(s, device="cuda", generator=generator, dtype=torch.float64).to(
            getattr(torch, kind)
        )
        for s in (a, b)
    ]
    got = torch.from_dlpack(vm["main"](*(tvm.runtime.from_dlpack(t) for t in operands)))
    x, y = (
        t.double().mT if name in turned else t.double()
        for name, t in zip("ab", operands, strict=True)
    )
    wanted = x @ y
    terms = x.shape[-1]
    error = float((got.double() - wanted).norm() / wanted.norm())
    # Of float32 sums each addition is rounded, on tensor cores towards zero.
    rounding = max(LIMITS[str(got.dtype).removeprefix("torch.")], 3e-7 * terms**0.5)
    assert error < {"tf32": 1e-3, "float64": 1e-13}.get(dtype, rounding)
    # Tensor cores, where rows are whole packs of 16 bytes; else that is cuBLAS's choice.
    if dtype == "tf32" and name == "long sums" and torch.cuda.get_device_capability() >= (8, 0):
        assert error > 1e-5
    assert any("cublas" in line for line in library.plans())


def test_replays_are_calls() -> None:
    """Captured, with a call that cuts its sums; the memory of a graph is its own."""
    a, b = LARGE["long sums"][:2]
    library, vm = machine(product(a, b, "float16", out="float32"), keep_memory=True)
    other = library.virtual_machine()
    rng = np.random.default_rng(0)
    args = on_gpu(rng.standard_normal(s).astype("float16") for s in (a, b))

    captured = Captured(cuda_runtime(), vm, "main", args, tvm.cuda(0))
    for _ in range(3):
        wanted = other["main"](*args).numpy()
        result = captured.replay()
        tvm.cuda(0).sync()
        assert result.numpy().tobytes() == wanted.tobytes()
        for tensor in args:
            tensor.copyfrom(rng.standard_normal(tensor.shape).astype("float16"))


def test_two_streams_at_once() -> None:
    """Threads that each have a stream, whose calls need scratch memory, as often as not at once."""
    a, b = LARGE["long sums"][:2]
    library, _ = machine(product(a, b, "float16", out="float32"))
    generator = torch.Generator("cuda").manual_seed(0)
    pairs = [
        [torch.randn(s, device="cuda", generator=generator).half() for s in (a, b)]
        for _ in range(4)
    ]
    torch.cuda.synchronize()
    failures: list[Any] = []

    def work(x: torch.Tensor, y: torch.Tensor) -> None:
        try:
            vm, stream = library.virtual_machine(), torch.cuda.Stream()
            wanted = x.double() @ y.double()
            torch.cuda.synchronize()
            given = [tvm.runtime.from_dlpack(t) for t in (x, y)]
            with tvm_ffi.use_raw_stream(tvm.cuda(0), stream.cuda_stream):
                for _ in range(50):
                    made = vm["main"](*given)
                    stream.synchronize()
                    got = torch.from_dlpack(made).double()
                    assert float((got - wanted).norm() / wanted.norm()) < 3e-5  # 8192 terms
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16"])
def test_a_step_with_attention(dtype: str | None) -> None:
    """All products by cuBLAS, or by TVM's kernels, and PyTorch in float64.

    Of halves PyTorch's own distance by autocast is the measure: without a scale of the loss much of
    a float16 gradient here is less than its least normal number.
    """
    torch.manual_seed(0)
    model = Attention(heads=4, features=32, tokens=70).train()
    graph = from_torch(model, (torch.zeros(16, 70, 6),))
    made = step_module(graph, dtype=dtype, raise_norms=True, wide_weight_gradients=False)
    mod, report = byoc_cudnn.partition_for_cudnn(
        converted(made, "NHWC"), allow_tf32=False, products=True
    )
    assert set(report.reasons()) == {BY_CUBLAS}
    batch = graph.random_batch(0)
    arguments = graph.arguments(batch)
    labels = torch.tensor(batch["labels"])

    def gradients(module: Any, x: Any, half: str | None = None) -> Any:
        with torch.autocast("cpu", getattr(torch, half or "bfloat16"), enabled=half is not None):
            logits = module(x)
        torch.nn.functional.cross_entropy(logits.to(x.dtype), labels).backward()
        wanted = {n.replace(".", "_"): p.grad.numpy() for n, p in module.named_parameters()}
        return np.concatenate([wanted[n].ravel() for n in graph.trainable])

    double = Attention(heads=4, features=32, tokens=70).double()
    double.load_state_dict({n: t.double() for n, t in model.state_dict().items()})
    right = gradients(double, torch.tensor(batch["x"], dtype=torch.float64))
    theirs = apart(gradients(model, torch.tensor(batch["x"]), dtype), right) if dtype else 0.0
    errors = []
    for direct in (None, False):
        with cuda_compiler():
            library = byoc_cudnn.build(mod, direct=direct)
            vm = library.virtual_machine()
        assert any(SYMBOL in text for text in library.sources) == (direct is None)
        got = [g.numpy() for g in vm[ADJOINT](*on_gpu(arguments))[1]]
        errors.append(apart(np.concatenate([g.ravel() for g in got]), right))
    assert max(errors) < max(1e-5, 2 * theirs), (errors, theirs)
