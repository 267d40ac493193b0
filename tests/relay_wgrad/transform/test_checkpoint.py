"""Checkpoint regions: where they may be, which are chosen, and that gradients do not change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from relay_wgrad.frontend import from_onnx
from relay_wgrad.training.step import step_module
from relay_wgrad.transform.checkpoint import checkpoint, choose, cut_vertices
from relay_wgrad.transform.grad import grad
from tests.support.compiled import virtual_machine
from tests.support.training_models import residual_net

pytestmark = pytest.mark.usefixtures("registered")


def chain(length: int, skip: bool = False) -> tvm.IRModule:
    """`length` times tanh; with `skip`, the first result is used again at the end."""
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    w = relax.Var("w", relax.TensorType((4, 4), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, w]):
        with bb.dataflow():
            first = y = bb.emit(relax.op.multiply(x, w), name_hint="t0")
            for i in range(1, length):
                y = bb.emit(relax.op.tanh(y), name_hint=f"t{i}")
            if skip:
                y = bb.emit(relax.op.add(y, first), name_hint="last")
            loss = bb.emit_output(relax.op.sum(y))
        bb.emit_func_output(loss)
    return bb.get()


def names(cuts: Any) -> list[str]:
    return [cut.var.name for cut in cuts]


def count(func: Any, op: str) -> int:
    values = [b.value for b in func.body.blocks[0].bindings]
    return sum(isinstance(v, relax.Call) and str(v.op.name) == op for v in values)


def test_cut_vertices() -> None:
    assert names(cut_vertices(chain(4)["main"], ["x"])) == ["x", "t0", "t1", "t2", "t3"]
    # While the first result is still wanted, nothing else stands alone.
    assert names(cut_vertices(chain(4, skip=True)["main"], ["x"])) == ["x", "t0", "last"]


def test_residual_blocks_are_cut_vertices() -> None:
    graph = from_onnx(residual_net(), checkpoint=["pool", "block0", "block1"])
    found = set(names(cut_vertices(graph.main, ["x"])))
    assert {graph.tensors[n] for n in ("pool", "block0", "block1", "block2")} <= found
    assert graph.tensors["b02_n"] not in found


def test_the_choice_is_about_the_root() -> None:
    func = chain(100)["main"]
    chosen = choose(func, cut_vertices(func, ["x"]), ["x"])
    # sqrt(2·100) tensors are kept when regions shrink by one as more of them is kept.
    assert 10 <= len(chosen) <= 18
    places = [cut.index for cut in chosen]
    lengths = np.diff([*places, 101])
    worst = max(i + n for i, n in enumerate(lengths))
    assert worst <= 18  # against 100 without


def test_choice_is_the_best_of_all_subsets() -> None:
    func = chain(8)["main"]
    cuts = cut_vertices(func, ["x"])
    end = len(func.body.blocks[0].bindings)

    def peak(subset: list[Any]) -> int:
        kept, worst = 0, 0
        for i, cut in enumerate(subset):
            kept += cut.bytes
            after = subset[i + 1].index if i + 1 < len(subset) else end
            sizes = [64 if j < 8 else 4 for j in range(cut.index + 1, after)]
            worst = max(worst, kept + sum(sizes))
        return worst

    best = min(
        peak([cuts[0], *[c for bit, c in enumerate(cuts[1:]) if mask >> bit & 1]])
        for mask in range(2 ** (len(cuts) - 1))
    )
    assert peak(choose(func, cuts, ["x"])) <= best + 4


def test_recomputed_in_the_backward_part() -> None:
    module = chain(9)
    plain = grad(module, "main", wrt=["w"])["main_adjoint"]
    marked = checkpoint(module, cuts=["t3", "t6"], inputs=["x"])
    again = grad(marked, "main", wrt=["w"])["main_adjoint"]
    assert count(plain, "relax.tanh") == 8
    # t1, t2 of the first region and t4, t5 of the second; what follows t6 is kept.
    assert count(again, "relax.tanh") == 8 + 4
    assert count(again, "relax.grad.start_checkpoint") == 0
    arrays = [np.random.default_rng(i).standard_normal((4, 4)).astype("float32") for i in range(2)]
    results = []
    for func in (plain, again):
        vm = virtual_machine(tvm.IRModule({"main_adjoint": func}))
        results.append(vm["main_adjoint"](*map(tvm.runtime.tensor, arrays))[1][0].numpy())
    np.testing.assert_array_equal(*results)


@pytest.mark.longer_cases("resnet50", "shufflenet", why="a smaller one stays")
@pytest.mark.parametrize("name", ["resnet50", "shufflenet", "squeezenet"])
def test_regions_of_bundled_networks(name: str) -> None:
    graph = from_onnx(name, batch=1, checkpoint="auto")
    inputs = [graph.inputs[0].name]
    cuts = cut_vertices(graph.main, inputs)
    assert len(cuts) > 20
    assert len(choose(graph.main, cuts, inputs)) >= 3
    marked = graph.checkpointed()["main"]
    assert count(marked, "relax.grad.start_checkpoint") >= 2


def test_step_with_named_tensors() -> None:
    graph = from_onnx(residual_net(), checkpoint=["block0", "block1"])
    kept = step_module(graph)["main_adjoint"]
    again = step_module(graph, checkpoint=graph.checkpoint)["main_adjoint"]
    assert count(kept, "relax.nn.conv2d") == 7
    # block2's convolutions follow the last bound; each recomputed region has some again.
    assert count(again, "relax.nn.conv2d") > 7
    mixed = step_module(graph, checkpoint=graph.checkpoint, dtype="float16")["main_adjoint"]
    assert count(mixed, "relax.nn.conv2d") == count(again, "relax.nn.conv2d")


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("all", "checkpoint='all': expected 'auto' or a list of node outputs"),
        (["blok0"], "checkpoint: residual has no computed tensor 'blok0'"),
        (["b01_r"], "does not bound a region: other values"),
    ],
)
def test_refused(at: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        from_onnx(residual_net(), checkpoint=at)
    assert message in str(caught.value)


def test_refused_variables() -> None:
    with pytest.raises(ValueError, match="'main' has no variable 'u'"):
        checkpoint(chain(3), cuts=["u"], inputs=["x"])
    with pytest.raises(ValueError, match="must be 'auto' or a list of names, got 'some'"):
        checkpoint(chain(3), cuts="some", inputs=["x"])
