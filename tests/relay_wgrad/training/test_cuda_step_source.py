"""A trainer's whole step is compiled for a GPU up to its source: no GPU is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import relax

import byoc_cudnn
from byoc_cudnn.building.link import Linker
from byoc_cudnn.building.toolchain import find
from byoc_cudnn.codegen.direct import missing
from relay_wgrad.frontend import from_onnx
from relay_wgrad.problem import ConvProblem
from relay_wgrad.training.libraries import backend_options, partitioned
from relay_wgrad.training.optim import OPTIMIZERS, is_decoupled, optimizer_for
from relay_wgrad.training.options import Options
from relay_wgrad.training.step import ADJOINT, step_module
from relay_wgrad.training.stored_layout import kept_in_layout
from relay_wgrad.training.update import Update
from relay_wgrad.training.update_functions import UPDATE
from relay_wgrad.training.whole_step import FOUND, NOT_FINITE, with_update, with_watch
from tests.support.cuda_source import cuda_source, read_back
from tests.support.training_models import residual_net

pytestmark = pytest.mark.usefixtures("registered")

TARGET = {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024,
          "max_shared_memory_per_block": 49152, "thread_warp_size": 32}  # fmt: skip


def whole(optimizer: str, update: Update | None = None, **options: Any) -> tvm.IRModule:
    graph = from_onnx(residual_net(blocks=1))
    step = step_module(graph, scaled=True, raise_norms=True, **options)
    step, axes = kept_in_layout(step, "NHWC", graph, blocks=True)
    assert set(axes) == {name for name in graph.trainable if graph.params[name].ndim == 4}
    rule = optimizer_for(graph, optimizer, 0.1, step[ADJOINT].params)
    how = {"update": update, "decoupled": is_decoupled(optimizer)}
    return with_watch(with_update(step, graph, rule, scaled=True, dynamic=True, **how), graph)


@pytest.mark.longer_cases("adam", "sgd")
@pytest.mark.parametrize(
    ("optimizer", "dtype"), [("momentum", "float16"), ("adam", "bfloat16"), ("sgd", None)]
)
def test_a_whole_step_becomes_device_code(
    optimizer: str, dtype: str | None, tmp_path: Path
) -> None:
    assert set(OPTIMIZERS) == {"momentum", "adam", "adamw", "sgd"}
    notes: list[str] = []
    module = whole(optimizer, dtype=dtype)
    module, convolutions = partitioned(module, ["cudnn"], Options(), notes)
    assert notes == []
    assert len(convolutions) == 3 * 3 - 1 + 3  # and the linear layer's three products
    assert {c.source.partition(".")[0] for c in convolutions} == {"cudnn"}
    for conv in convolutions:  # so that a profile finds their times
        assert conv.kernel.startswith(f"relay_wgrad_cudnn_{conv.problem.split()[0]}")
    library = byoc_cudnn.build(module, TARGET)
    (source,) = (text for text in library.sources if "cudnn" in text)
    assert all(f'"{op} n=' in source for op in ("fprop", "dgrad", "wgrad"))
    packed = Linker(find(), []).pack(library.executable.mod, True, "", str(tmp_path))
    content = Path(packed).read_bytes()
    assert b"__tvm_ffi__library_bin" in content
    assert b"RegisterSystemLibSymbol" not in content  # one for the process, overridden by the next
    code = cuda_source(library.executable.mod)
    assert code.count("__global__") > 40
    assert read_back(code) == []
    assert UPDATE in library.executable.stats()
    own = [entry for entry in library.direct if entry.op == "updates"]
    assert missing(find()) or {e.function for e in own if e.symbol} == {UPDATE, FOUND, NOT_FINITE}


@pytest.mark.longer_cases("acc")
@pytest.mark.parametrize(
    ("update", "in_place"),
    [
        (Update(weight_decay=0.1, clip_norm=1.0, clip_value=0.1), True),
        (Update(weight_decay=0.1, ema=0.9, accumulate=2), False),
    ],
    ids=["clipped", "accumulated"],
)
def test_an_update_becomes_device_code(update: Update, in_place: bool) -> None:
    module = whole("adamw", update)
    del module[ADJOINT]
    library = byoc_cudnn.build(module, TARGET)
    code = cuda_source(library.executable.mod)
    assert read_back(code) == []
    # No sum is one thread's.
    assert "__launch_bounds__(1)" not in code
    own = {entry.function for entry in library.direct if entry.op == "updates" and entry.symbol}
    if not missing(find()):
        assert (UPDATE in own) == in_place


def test_options_are_those_that_a_library_has() -> None:
    given = backend_options(["cudnn", "cutlass"], Options(tf32=False, benchmark=True))
    assert given["cudnn"] == {"allow_tf32": False, "deterministic": True, "benchmark": True}
    assert given["cutlass"] == {"allow_tf32": False, "deterministic": True}
    anyhow = backend_options(["cudnn"], Options(deterministic=False))
    assert anyhow["cudnn"] == {"allow_tf32": True, "deterministic": False, "benchmark": False}


def test_each_call_has_its_function(registered: None) -> None:
    """Whatever the functions are called, such as the two parts of a step."""
    bb = relax.BlockBuilder()
    for name, size in (("second", 8), ("first", 12)):
        x, w = (
            relax.Var(n, relax.TensorType(shape, "float32"))
            for n, shape in (("x", (2, 8, size, size)), ("w", (8, 8, 3, 3)))
        )
        with bb.function(name, [x, w]):
            with bb.dataflow():
                y = bb.emit_output(relax.op.nn.conv2d(x, w))
            bb.emit_func_output(y)
    notes: list[str] = []
    out, found = partitioned(bb.get(), ["cudnn"], Options(), notes)
    assert [ConvProblem.parse(str(one.problem)).h for one in found] == [12, 8]
    for name, one in zip(("first", "second"), found, strict=True):
        assert one.kernel in out[name].script()
    assert found[0].kernel != found[1].kernel
    assert not notes
