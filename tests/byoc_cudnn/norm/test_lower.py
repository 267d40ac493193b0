"""Normalizations of a module become calls of generated functions; no GPU is needed."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tvm
from tvm import relax

import byoc_cudnn
from byoc_cudnn.norm.lower import lower_norms
from relay_wgrad.frontend import from_onnx
from relay_wgrad.training.step import ADJOINT, converted, step_module
from relay_wgrad.transform import grad
from tests.support.norm_cases import Case, module
from tests.support.training_models import residual_net

pytestmark = pytest.mark.usefixtures("registered")

TARGET = {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024,
          "max_shared_memory_per_block": 49152, "thread_warp_size": 32}  # fmt: skip


def lowered(case: Case, **options: Any) -> tuple[list[Any], tuple[Any, ...], str]:
    """(calls of symbols, entries, source) of a case and its gradient."""
    mod = module(case, ("weight1", "weight2"))
    mod = tvm.IRModule({ADJOINT: grad(mod, "main", wrt=case.names[:3])[ADJOINT]})
    out, entries = lower_norms(mod, 90, **options)
    relax.analysis.well_formed(out)
    values = [b.value for b in out[ADJOINT].body.blocks[0].bindings]
    packed = [v for v in values if getattr(getattr(v, "op", None), "name", "") ==
              "relax.call_dps_packed"]  # fmt: skip
    made = out.attrs["external_mods"] if out.attrs and "external_mods" in out.attrs else []
    return packed, entries, "".join(m.inspect_source() for m in made)


def test_bits_go_from_forward_to_backward() -> None:
    case = Case((2, 4, 4, 20), "float16", axis=3, activation="relu", residual=True)
    (forward, backward), entries, source = lowered(case)
    assert [str(t.dtype) for t in forward.ty.fields] == ["float16", "float32", "float32", "uint8"]
    assert [int(n) for n in forward.ty.fields[3].shape.values] == [2, 4, 4, 3]
    assert str(backward.args[1].fields[6].ty.dtype) == "uint8"
    assert {e.symbol for e in entries} == {c.args[0].global_symbol for c in (forward, backward)}
    assert [e.op for e in entries] == ["batch_norm_train", "batch_norm_train_backward"]
    for entry in entries:
        assert f"__tvm_ffi_{entry.symbol}(" in source
    assert source.count("TVM_FFI_DLL_EXPORT int __tvm_ffi_") == 2
    (forward, backward), _, _ = lowered(case, bits=False)
    assert len(forward.ty.fields) == 3
    assert str(backward.args[1].fields[6].ty.dtype) == "float16"


def test_sizes_that_only_the_run_knows_go_too() -> None:
    case = Case((2, 4, 4, 20), "float32", axis=3, activation="relu", residual=True, symbolic=True)
    (forward, backward), _, _ = lowered(case)
    assert str(forward.ty.fields[3].shape.values[0]) == "n"
    assert len(backward.ty.fields) == 4


def test_a_sum_of_gradients_is_the_kernels() -> None:
    """Of a residual that also goes on: what comes back is added by the normalization before it."""
    bb = relax.BlockBuilder()
    x, w = (relax.Var(n, relax.TensorType((2, 4, 4, 8), "float16")) for n in ("x", "w"))
    gamma, beta = (relax.Var(n, relax.TensorType((8,), "float32")) for n in ("gamma", "beta"))
    attrs = {"axis": 3, "activation": "relu"}
    with bb.function("main", [x, w, gamma, beta]):
        with bb.dataflow():
            one = bb.emit(relax.op.nn.batch_norm_train(x, gamma, beta, w, **attrs))
            y = bb.emit(relax.TupleGetItem(one, 0))
            two = bb.emit(relax.op.nn.batch_norm_train(y, gamma, beta, y, **attrs))
            z = bb.emit(relax.op.astype(bb.emit(relax.TupleGetItem(two, 0)), "float32"))
            out = bb.emit_output(relax.op.sum(z))
        bb.emit_func_output(out)
    mod = tvm.IRModule({ADJOINT: grad(bb.get(), "main", wrt=["x"])[ADJOINT]})
    out, entries = lower_norms(mod, 90)
    relax.analysis.well_formed(out)
    assert len(entries) == 4
    values = [b.value for b in out[ADJOINT].body.blocks[0].bindings]
    names = [str(getattr(getattr(v, "op", None), "name", "")) for v in values]
    assert "relax.add" not in names
    last = [v for v, name in zip(values, names, strict=True) if name.endswith("dps_packed")][-1]
    assert [str(a.ty.dtype) for a in last.args[1].fields[:3]] == ["float16"] * 3
    assert len(last.args[1].fields) == 8


def test_what_stays_has_a_reason() -> None:
    packed, entries, source = lowered(Case((2, 3, 4, 5), "float32"))
    assert packed == []
    assert source == ""
    assert len(entries) == 2
    assert all("channels on axis 1 of 4" in e.reason and not e.symbol for e in entries)


def test_a_training_step() -> None:
    """Each normalization of a network is one call forward and one backward, and no cast is left."""
    graph = from_onnx(residual_net(blocks=1))
    step = step_module(graph, dtype="bfloat16", raise_norms=True, wide_weight_gradients=False)
    mod, report = byoc_cudnn.partition_for_cudnn(converted(step, "NHWC"))
    assert report.offloaded == report.total
    library = byoc_cudnn.build(mod, TARGET)
    assert {entry.function for entry in library.direct} == {ADJOINT}
    norms = [entry for entry in library.direct if "norm" in entry.op]
    assert not [e for e in library.direct if "pool" in e.op]  # the stem's is a normalization's part
    assert len(norms) == len(graph.updates)  # two statistics of each; forward and backward
    assert all(entry.symbol for entry in norms)
    (source,) = [s for s in library.sources if "__tvm_ffi_relay_wgrad_norm_" in s]
    exported = set(re.findall(r"__tvm_ffi_(relay_wgrad_norm_\d+)\(", source))
    assert exported == {entry.symbol for entry in norms}
    plain = byoc_cudnn.build(mod, TARGET, direct=False)
    assert plain.direct == ()
    assert len(plain.sources) == 1


@pytest.mark.parametrize(
    ("shape", "axis", "groups", "by_row"),
    [
        ((6, 1, 24), 2, 1, True),
        ((6, 2, 24), 2, 1, False),  # two pixels
        ((6, 1, 24), 2, 2, False),
        ((6, 1, 8200), 2, 1, False),  # longer than a block has
        ((6, 24, 1), 1, 1, False),  # channels are not last
    ],
)
def test_rows_have_kernels_of_their_own(
    shape: tuple[int, ...], axis: int, groups: int, by_row: bool
) -> None:
    _, entries, source = lowered(Case(shape, "float16", axis=axis, groups=groups))
    assert source.count('{"layer_norm ') == 2 * by_row
    assert source.count('{"group_norm ') == (0 if by_row or axis == 1 else 2)
    assert [e.op for e in entries] == ["group_norm_train", "group_norm_train_backward"]
