"""`draw`: what is in the boxes, where they stand, what is refused."""

from __future__ import annotations

import importlib
import itertools
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import relay_wgrad
from legalize.composite import Composite
from relay_wgrad import extras
from relay_wgrad.inspection import draw as module_draw
from relay_wgrad.inspection.dataflow import KINDS, Dataflow, dataflow
from relay_wgrad.inspection.draw import MOST_BOXES, Drawing, draw
from relay_wgrad.transform import ConvertLayout, grad, layout_changes
from tests.support.layout_cases import case

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def _registered() -> None:
    relay_wgrad.register()


@I.ir_module
class Strided:
    @R.function
    def main(
        x: R.Tensor((2, 4, 9, 8), "float32"), w: R.Tensor((6, 2, 3, 3), "float32")
    ) -> R.Tensor((), "float32"):
        with R.dataflow():
            y = R.nn.conv2d(x, w, strides=(2, 1), dilation=2, padding=2, groups=2)
            z = R.permute_dims(R.nn.max_pool2d(y, pool_size=(2, 2)), axes=[0, 2, 3, 1])
            loss = R.sum(R.reshape(z, R.shape([-1])))
            R.output(loss)
        return loss


def gradient() -> relax.Function:
    return grad(Strided, "main", wrt=["w"])["main_adjoint"]


def labels(graph: Dataflow, kind: str) -> list[tuple[str, ...]]:
    return [node.label for node in graph.nodes if node.kind == kind]


def test_boxes() -> None:
    graph = dataflow(gradient())
    assert labels(graph, "parameter") == [("x", "2×4×9×8"), ("w", "6×2×3×3")]
    assert labels(graph, "result") == [("loss", "result"), ("w_adjoint_out", "result")]
    assert labels(graph, "convolution") == [
        ("conv2d s2×1 d2 groups 2", "NCHW OIHW", "2×6×5×8"),
        ("conv2d_backward_weight s2×1 d2 groups 2", "NCHW OIHW", "6×2×3×3"),
    ]
    assert labels(graph, "layout change") == [
        ("permute_dims", "axes 0 2 3 1", "2×4×7×6"),
        ("permute_dims", "axes 0 3 1 2", "2×6×4×7"),
    ]
    assert {node.kind for node in graph.nodes} == set(KINDS)
    assert any(label[:2] == ("max_pool2d", "NCHW") for label in labels(graph, "other"))


def test_edges_follow_the_program() -> None:
    graph = dataflow(gradient())
    names = [node.name for node in graph.nodes]
    assert all(a < b for a, b in graph.edges)
    assert len(set(graph.edges)) == len(graph.edges)
    feeds = {(graph.nodes[a].label[0], graph.nodes[b].label[0]) for a, b in graph.edges}
    assert ("x", "conv2d s2×1 d2 groups 2") in feeds
    assert ("x", "conv2d_backward_weight s2×1 d2 groups 2") in feeds
    # Looked through: w_adjoint_out is another name of w_adjoint, and both are in a tuple.
    assert ("conv2d_backward_weight s2×1 d2 groups 2", "w_adjoint_out") in feeds
    assert names.count("w_adjoint_out") == 1


def test_layout_changes_are_those_of_the_report() -> None:
    for mod in (grad(Strided, "main", wrt=["w"]), ConvertLayout("NHWC")(case("concats"))):
        function = next(iter(mod.functions.values()))
        drawn = [n.name for n in dataflow(function).nodes if n.kind == "layout change"]
        assert drawn == [change.name for change in layout_changes(function)]


def test_a_third_layout_is_shown() -> None:
    x = relax.Var("x", relax.TensorType([3, 3, 5, 5], "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(
                relay_wgrad.conv2d_backward_weight(
                    x, x, (1, 1), grad_layout="CNHW", data_layout="NCHW"
                )
            )
        bb.emit_func_output(out)
    assert labels(dataflow(bb.get()["main"]), "convolution")[0][1] == "NCHW OIHW CNHW"


def test_tuples_calls_and_symbolic_sizes() -> None:
    n = tvm.tirx.Var("n", "int64") if hasattr(tvm, "tirx") else tvm.tir.Var("n", "int64")
    x = relax.Var("x", relax.TensorType([n, 4], "float32"))
    unused = relax.Var("unused", relax.TensorType(ndim=2, dtype="float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, unused]):
        with bb.dataflow():
            parts = bb.emit(relax.op.split(x, 2, axis=1))
            one, two = bb.emit(parts[0]), bb.emit(parts[1])
            pair = bb.emit(relax.Tuple([two, one]))
            swapped = bb.emit(relax.op.concat(pair, axis=1))
            out = bb.emit_output(relax.op.add(swapped, relax.const(1.0, "float32")))
        bb.emit_func_output(relax.Tuple([out, out]))
    graph = dataflow(bb.get()["main"])
    assert [node.label[0] for node in graph.nodes] == [
        "x", "unused", "split", "concat", "add", "gv", "gv",
    ]  # fmt: skip
    assert graph.edges == ((0, 2), (2, 3), (3, 4), (4, 5), (4, 6))
    assert graph.nodes[0].label == ("x", "n×4")
    assert graph.nodes[1].label == ("unused", "2 axes")
    assert graph.nodes[2].label[-1] == "2 tensors"
    assert draw(bb.get()["main"])._repr_png_().startswith(PNG)


def test_lowered_functions_show_their_kernels() -> None:
    mod = relax.transform.LegalizeOps()(Composite()(grad(Strided, "main", wrt=["w"])))
    graph = dataflow(mod["main_adjoint"])
    assert any(label[0].startswith("tile") for label in labels(graph, "other"))


def test_boxes_do_not_overlap() -> None:
    painter = module_draw._Painter(set())
    for mod in (case("concats"), ConvertLayout("NHWC")(case("pools")), case("batch_norm")):
        graph = dataflow(mod["main"])
        placed = module_draw._placed(graph, [painter.size(node) for node in graph.nodes])
        for (ax, ay, aw, ah), (bx, by, bw, bh) in itertools.combinations(placed.boxes, 2):
            assert abs(ax - bx) >= (aw + bw) / 2 or abs(ay - by) >= (ah + bh) / 2
        for x, y, w, h in placed.boxes:
            assert min(x - w / 2, y - h / 2) >= -1e-6
            assert x + w / 2 <= placed.width + 1e-6
            assert y + h / 2 <= placed.height + 1e-6
        for path, edge in zip(placed.paths, graph.edges, strict=True):
            assert (path[0], path[-1]) == tuple(placed.boxes[index] for index in edge)
            assert all(a[1] < b[1] for a, b in itertools.pairwise(path))  # downwards


def colours(drawing: Drawing) -> list[str]:
    from matplotlib.colors import to_hex
    from matplotlib.patches import FancyBboxPatch

    patches = drawing.figure.axes[0].patches
    return [to_hex(p.get_facecolor()) for p in patches if isinstance(p, FancyBboxPatch)]


def test_highlight() -> None:
    fill, line = module_draw._COLOURS["convolution"]
    plain, kind, name = (
        colours(draw(gradient(), highlight=h)) for h in ((), "convolution", ["w_adjoint"])
    )
    # Two convolutions, and the legend's box.
    assert (plain.count(fill), plain.count(line)) == (3, 0)
    assert (kind.count(fill), kind.count(line)) == (0, 3)
    assert (name.count(fill), name.count(line)) == (2, 1)


def test_several_side_by_side(tmp_path: Path) -> None:
    function = gradient()
    one, two = draw(function), draw({"a $1$": function, "b": function}, title="both")
    assert two.figure.get_figwidth() > 1.8 * one.figure.get_figwidth()
    written = {text.get_text() for text in two.figure.axes[0].texts}
    assert {"a $1$", "b", "both"} <= written
    for ending in ("png", "svg", "pdf"):
        two.save(tmp_path / f"x.{ending}")
        assert (tmp_path / f"x.{ending}").stat().st_size > 1000
    with pytest.raises(ValueError, match="nope"):
        two.save(tmp_path / "x.nope")


def test_the_same_picture_each_time() -> None:
    assert draw(gradient())._repr_png_() == draw(gradient())._repr_png_()


def chain(length: int) -> relax.Function:
    x = relax.Var("x", relax.TensorType([2, 3], "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            y: Any = x
            for _ in range(length):
                y = bb.emit(relax.op.nn.relu(y))
            out = bb.emit_output(y)
        bb.emit_func_output(out)
    return bb.get()["main"]


@pytest.mark.longer("programs long enough to tell linear time")
def test_the_limit() -> None:
    assert draw(chain(MOST_BOXES - 2))._repr_png_().startswith(PNG)
    with pytest.raises(ValueError, match=rf"{MOST_BOXES + 1} boxes, more than limit={MOST_BOXES}"):
        draw(chain(MOST_BOXES - 1))
    with pytest.raises(ValueError, match="b has 5 boxes, more than limit=4"):
        draw({"a": chain(1), "b": chain(3)}, limit=4)


@pytest.mark.parametrize(
    ("functions", "options", "error", "message"),
    [
        (Strided, {}, TypeError, "needs a Relax function, got IRModule"),
        (None, {}, TypeError, "needs a Relax function, got NoneType"),
        ({"a": 1}, {}, TypeError, "needs a Relax function, got int"),
        ({}, {}, ValueError, "no function to draw"),
        (Strided["main"], {"limit": 0}, ValueError, "limit must be at least 1, got 0"),
        (Strided["main"], {"limit": True}, TypeError, "limit must be an int, got True"),
        (Strided["main"], {"limit": 3.0}, TypeError, "limit must be an int, got 3.0"),
        (Strided["main"], {"highlight": "conv"}, ValueError, "'conv' is neither a variable nor"),
        (Strided["main"], {"highlight": [1]}, TypeError, "highlight must be names, got 1"),
        (Strided["main"], {"highlight": 1}, TypeError, "highlight must be names, got 1"),
        (Strided["main"], {"title": 1}, TypeError, "title must be a string, got 1"),
    ],
)
def test_refusals(functions: Any, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        draw(functions, **options)


@pytest.mark.parametrize("missing", ["matplotlib", "grandalf"])
def test_without_the_extra(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        if name.partition(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return importlib.import_module(name)

    monkeypatch.setattr(extras, "import_module", absent)
    with pytest.raises(ModuleNotFoundError, match=rf"{missing}: pip install relay-wgrad\[note"):
        draw(Strided["main"])
