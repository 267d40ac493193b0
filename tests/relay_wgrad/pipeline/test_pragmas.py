"""Marks that TVM's code generator for CPUs warns of."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from legalize.cpu import host_target
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.pipeline.pragmas import without_unknown_pragmas

pytestmark = pytest.mark.usefixtures("registered")


def sorting() -> tvm.IRModule:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 6), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit_output(relax.op.scatter_elements(x, relax.op.argsort(x, 1), x, 1, "add"))
        bb.emit_func_output(y)
    return bb.get()


def test_a_kernel_has_none_and_nothing_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    legalized = relax.transform.LegalizeOps()(sorting())
    assert "pragma_scope" in legalized.script()
    assert "pragma_scope" not in without_unknown_pragmas()(legalized).script()
    passes = tvm.transform.Sequential([relax.transform.LegalizeOps(), cpu_pipeline()])
    made = tvm.compile(sorting(), target=host_target(), relax_pipeline=passes)
    x = np.random.default_rng(0).random((4, 6), "float32")
    want = x + np.take_along_axis(x, np.argsort(np.argsort(x, 1), 1), 1)
    y = relax.VirtualMachine(made, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(y, want, rtol=1e-6)
    assert "Unknown pragma" not in capfd.readouterr().err
