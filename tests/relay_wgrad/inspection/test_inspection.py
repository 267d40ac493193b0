"""The report on a training step: groups, memory, and what the page holds."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from tvm import relax

from byoc_cudnn import partition
from byoc_cudnn.joins.lower import copies
from relay_wgrad.display import short
from relay_wgrad.facts import Lowered
from relay_wgrad.frontend import from_onnx, from_torch
from relay_wgrad.inspection import Inspection, inspect_step
from relay_wgrad.inspection.dataflow import dataflow
from relay_wgrad.inspection.groups import groups, is_anchor, names
from relay_wgrad.inspection.memory import memory
from relay_wgrad.ops.call_problem import family_def, problem_of
from relay_wgrad.training.step import ADJOINT, converted, step_module
from tests.support.training_models import residual_net

pytestmark = pytest.mark.usefixtures("registered")


def step(model: Any, layout: str = "NCHW", dtype: str | None = None, **options: Any) -> Any:
    """(graph, the module of its step)."""
    graph = from_onnx(model, **options)
    module = step_module(graph, dtype=dtype, checkpoint=graph.checkpoint, scaled=dtype == "float16")
    return graph, converted(module, layout)


def inspected(graph: Any, module: Any, **options: Any) -> Inspection:
    inputs = [spec.name for spec in graph.inputs]
    return inspect_step(module, facts={"model": graph.name}, inputs=inputs, **options)


STEPS = {
    "plain": {},
    "NHWC": {"layout": "NHWC"},
    "half": {"layout": "NHWC", "dtype": "float16"},
    "checkpoints": {"checkpoint": "auto", "image_size": 32},
}


@pytest.mark.parametrize("options", STEPS.values(), ids=STEPS)
def test_gradients_are_with_their_layers(options: dict[str, Any]) -> None:
    """Each convolution's gradients are in its layer; what is computed again is there too."""
    graph, module = step(residual_net(blocks=3), **options)
    func = module[ADJOINT]
    boxes = dataflow(func)
    found = groups(boxes, {spec.name for spec in graph.inputs})
    anchors = [i for i, node in enumerate(boxes.nodes) if is_anchor(node)]
    convs = [i for i in anchors if boxes.nodes[i].kind == "convolution"]
    calls = [b.value for block in func.body.blocks for b in block.bindings]
    problems = [problem_of(c) for c in calls if family_def(c) is not None]
    first = [p for p, i in zip(problems, convs, strict=True) if not found.backward[i]]
    assert len(found.anchor) == len(first) + 1 == 8
    seen: dict[int, list[str]] = {}
    for problem, i in zip(problems, convs, strict=True):
        assert short(problem) == short(first[found.layer[i]])
        if found.backward[i]:
            seen.setdefault(found.layer[i], []).append(problem.kind.value)
    for layer, kinds in seen.items():
        assert kinds.count("wgrad") == 1
        assert kinds.count("dgrad") == (layer > 0)
        assert "checkpoint" in options or "fprop" not in kinds
    # What depends on the loss's gradient goes through the layers backwards, each once.
    sources: dict[int, list[int]] = {}
    for a, b in boxes.edges:
        sources.setdefault(b, []).append(a)
    seed = next(i for i, n in enumerate(boxes.nodes) if n.name.endswith("_adjoint"))
    gradient = {seed}
    for i in range(seed, anchors[-1] + 1):
        if gradient.intersection(sources.get(i, ())):
            gradient.add(i)
    order = [found.layer[i] for i in sorted(gradient)]
    assert order == sorted(order, reverse=True)
    # A stem, three residual blocks of two convolutions, a classifier.
    assert found.block == [0, 1, 1, 2, 2, 3, 3, 4]
    layers, blocks = names(boxes, found)
    assert layers == ["stem", "b01", "b02", "b11", "b12", "b21", "b22", "fc"]
    assert blocks[0] == "stem"
    if "checkpoint" not in options:
        assert blocks == ["stem", "b01 … b02", "b11 … b12", "b21 … b22", "fc"]


def test_results_are_with_their_layers() -> None:
    """Parameters and gradients too, also where they are converted at the very end."""
    graph, module = step(residual_net(blocks=2), layout="NHWC")
    boxes = dataflow(module[ADJOINT])
    found = groups(boxes, {spec.name for spec in graph.inputs})
    layer = {n.name: found.layer[i] for i, n in enumerate(boxes.nodes) if n.kind == "parameter"}
    results = [i for i, node in enumerate(boxes.nodes) if node.kind == "result"]
    gradients = results[-len(graph.trainable) :]
    for name, i in zip(graph.trainable, gradients, strict=True):
        assert found.backward[i]
        assert found.layer[i] == layer[name], name
    assert not any(found.backward[i] for i in results[: len(graph.outputs)])


@pytest.mark.longer("whole networks; smaller ones stay")
def test_blocks_of_real_networks() -> None:
    expected = {"resnet50": (54, 18), "squeezenet": (26, 18), "vgg19": (19, 19)}
    for name, (layers, blocks) in expected.items():
        graph, module = step(name)
        found = groups(dataflow(module[ADJOINT]), {spec.name for spec in graph.inputs})
        assert (len(found.anchor), found.block[-1] + 1) == (layers, blocks)


def test_memory_by_hand() -> None:
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            a = bb.emit(relax.op.exp(x))  # 16 bytes, used last by d
            b = bb.emit(relax.op.reshape(a, (2, 2)))  # a's memory
            c = bb.emit(relax.op.astype(x, "float64"))  # 32 bytes, returned
            d = bb.emit(relax.op.negative(b))  # 16 bytes, never used
            same = bb.emit(c)
            out = bb.emit_output(same)
        bb.emit_func_output(out)
    del d
    alive = memory(bb.get()["main"], boundary=3)
    assert alive.parameters == 16
    assert alive.forward == [16, 16, 16, 16]
    assert alive.returned == [0, 0, 32, 32]
    assert alive.backward == [0, 0, 0, 16]
    assert alive.totals == [16, 16, 48, 64]
    assert alive.peak == 64


def test_checkpoints_lower_the_curve() -> None:
    peaks = []
    for checkpoint in (None, "auto"):
        graph, module = step(residual_net(blocks=6), image_size=32, checkpoint=checkpoint)
        peaks.append(inspected(graph, module).data["totals"]["peak_bytes"])
    assert peaks[1] < 0.7 * peaks[0]


@pytest.fixture(scope="module")
def report() -> Inspection:
    import relay_wgrad

    relay_wgrad.register()
    graph, module = step(residual_net(blocks=1), layout="NHWC", batch=2)
    count = len(inspected(graph, module).data["convolutions"])
    entries = [
        SimpleNamespace(backend="cudnn" if i else "", row="r" if i else "", adapted="", source="w",
                        reason="" if i else "</script><b>|x", tried=(("a", "b"),))
        for i in range(count)
    ]  # fmt: skip
    calls = [b.value for block in module[ADJOINT].body.blocks for b in block.bindings]
    measured = [
        Lowered("conv2d", problem_of(c).repro(), "cpu", "k", seconds=2e-3)
        for c in calls if family_def(c) is not None
    ]  # fmt: skip
    return inspected(graph, module, entries=entries, measured=measured, floor=lambda p: 1e-3)


def test_report(report: Inspection) -> None:
    data = json.loads(report.to_json())
    assert data == report.data
    totals = data["totals"]
    assert totals["kinds"] == {"fprop": 3, "dgrad": 2, "wgrad": 3}
    assert totals["backends"] == {"none": 1, "cudnn": 7}
    assert totals["seconds"] == pytest.approx(16e-3)
    assert totals["layout_changes"] == len(data["changes"]) > 0
    assert {c["share_of_floor"] for c in data["convolutions"]} == {0.5}
    kinds = {data["nodes"][c["node"]]["kind"] for c in data["changes"]}
    assert kinds == {"layout change"}
    memory = data["memory"]
    steps = len([n for n in data["nodes"] if n["kind"] not in ("parameter", "result")])
    assert len(memory["forward"]) == len(memory["backward"]) == len(memory["returned"]) == steps
    text = report.to_markdown()
    assert "| 1 | stem | fprop | 2×3×12×12 → 8 3×3 p1 | NHWC/OHWI/NHWC | float32 | cpu |" in text
    assert "&lt;/script>&lt;b>\\|x" in text
    assert text.count("\n| ") == 8 + 2 + len(data["changes"]) + 2


def test_a_cpus_times_are_those_of_its_kernels() -> None:
    """A library that a GPU would have stands apart from them; small numbers are numbers."""
    graph, module = step(residual_net(blocks=0, size=4), batch=1)
    bare = inspected(graph, module)
    problems = [c["problem"] for c in bare.data["convolutions"]]
    found = inspect_step(
        module, facts={"model": "m", "cpu": "znver5"}, inputs=["x"], floor=lambda p: 3e-8,
        measured=[Lowered("conv2d", p, "llvm direct", "k", seconds=2e-5) for p in problems],
        entries=[SimpleNamespace(backend="cudnn", row="fprop", adapted="", source="", reason="",
                                 tried=()) for _ in problems],
    )  # fmt: skip
    head, _, *rows = found.to_markdown().partition("## Convolutions\n\n")[2].splitlines()
    assert head.endswith("| dtype | kernel | on a GPU | ms | floor ms | % of floor |")
    assert rows[0].endswith("| float32 | llvm direct | cudnn.fprop | 0.020 | 3e-05 | 0 |")
    assert "- on a GPU: cudnn " in found.to_markdown()


def test_page_is_one_file(report: Inspection) -> None:
    html = report.to_html()
    assert html.count("</script>") == 2  # the data, the program: no name ends them
    assert "@data@" not in html
    # Nothing is loaded: an address is of SVG's name space alone.
    assert set(re.findall(r"https?://[^\"'\s]+", html)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"(src|href)=(?!\"data:,)", html)
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', html, re.S)
    assert found is not None
    data = json.loads(found[1])
    assert data["convolutions"] == report.data["convolutions"]
    assert [n[0] for n in data["nodes"]] == [n["name"] for n in report.data["nodes"]]


def test_tables_sort_by_numbers(report: Inspection) -> None:
    """A column sorts by its value: as a text 9.0 would come after 100.0.  Units are its text's."""
    html = report.to_html()
    values = re.findall(r"value: \(\w+\) => (.*?)(?:, (?:text|number|wide|bar):| \})", html)
    assert len(values) > 20
    assert not [value for value in values if "toFixed" in value or "Text(" in value]
    assert "bandwidthText(k.bytes / k.seconds)" in html


def test_a_volumes_report() -> None:
    """Its layouts have a depth, also where it is converted, and its convolutions three sizes."""
    net = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.ReLU(), nn.ConvTranspose3d(4, 2, 2, 2))
    x = torch.zeros(2, 1, 4, 6, 5)
    graph = from_torch(net, (x,), loss="mse")
    for layout, layouts in (("NCHW", "NCDHW/OIDHW/NCDHW"), ("NHWC", "NDHWC/ODHWI/NDHWC")):
        found = inspected(graph, converted(step_module(graph), layout))
        convolutions = found.data["convolutions"]
        assert {c["layout"] for c in convolutions} == {layouts}
        assert "2×1×4×6×5 → 4 3×3×3 p1" in found.to_markdown()
        # A voxel's 27 taps, added and multiplied, of 1 × 4 channels, 2 volumes of 120.
        assert convolutions[0]["flop"] == 2 * 27 * 4 * 2 * 120
        assert [c["kind"] for c in convolutions].count("wgrad") == 2


def test_what_compiling_took() -> None:
    """The longest first, in all three forms; a kernel from the cache is said to be."""
    graph, module = step(residual_net(blocks=0, size=4), batch=1)
    found = inspected(graph, module)
    assert "## Compiling" not in found.to_markdown()
    found.add_compiled({"add": 0.25, "sum</script>": 0.0, "conv2d": 1.5})
    assert json.loads(found.to_json())["compiled"] == [
        {"name": "conv2d", "seconds": 1.5, "kept": False},
        {"name": "add", "seconds": 0.25, "kept": False},
        {"name": "sum</script>", "seconds": 0.0, "kept": True},
    ]
    said = "3 kernels, 1 of them kept from before; 1.75 s of processor time"
    table = ["| conv2d | 1.500 |", "| add | 0.250 |", "| sum&lt;/script> | kept |"]
    lines = ["## Compiling", "", said, "", "| kernel | s |", "| --- | --- |", *table, ""]
    assert "\n".join(lines) in found.to_markdown()
    html = found.to_html()
    assert html.count("</script>") == 2
    shown = re.search(r'<script id="data" type="application/json">(.*?)</script>', html, re.S)
    assert shown is not None
    data = json.loads(shown[1])
    assert (data["compiled"], data["totals"]["compiling"]) == (found.data["compiled"], said)
    # What the page's program fills with these is there to be filled.
    wanted = re.findall(r'el\("([\w-]+)"\)', html)
    assert {"compiled-part", "compiled-text", "compiled"} <= set(wanted)
    assert set(wanted) <= set(re.findall(r'id="([\w-]+)"', html))


def test_copies_along_channels() -> None:
    """A join and the cut of its gradient; of what is left to TVM, beside channels that are moved,
    the reason."""

    class Shuffled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Conv2d(n, 8, 1) for n in (8, 8, 16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.cat([self.a(x), self.b(x)], 1)
            z = self.c(y).reshape(2, 2, 4, 4, 4).transpose(1, 2).reshape(2, 8, 4, 4)
            return torch.cat([z, x], 1).mean((2, 3))

    graph = from_torch(Shuffled(), (torch.zeros(2, 8, 4, 4),))
    module = converted(step_module(graph), "NHWC")
    split, _ = partition(module, ("cudnn",))
    found = copies(split[ADJOINT])
    assert [(c.what, c.bytes, c.reason) for c in found] == [
        ("join of 2 parts", 2 * 2 * 4 * 4 * 16 * 4, ""),
        ("join", 2 * 2 * 4 * 4 * 16 * 4, "TVM fuses it with what makes its operands or reads it"),
        ("cut", 2 * 2 * 4 * 4 * 16 * 4, "along axis 1 of 4; kernels are for the last"),
        ("cut", 2 * 2 * 4 * 4 * 16 * 4, ""),
    ]
    report = inspected(graph, module, copies=found)
    assert [copy["name"] for copy in report.data["copies"]] == [copy.name for copy in found]
    text = report.to_markdown()
    assert "## Copies along channels, on a GPU" in text
    assert f"| {found[1].name} | join | 0.0041 | {found[1].reason} |" in text


def test_what_is_not_of_this_module() -> None:
    graph, module = step(residual_net(blocks=1))
    with pytest.raises(ValueError, match="1 entries, but the step has 8 convolutions"):
        inspected(graph, module, entries=[None])
    problem = "wgrad n=1 c=1 h=1 w=1 k=1 r=1 s=1"
    with pytest.raises(ValueError, match=r"measured wgrad n=1 .*, but the step has fprop"):
        inspected(graph, module, measured=[Lowered("x", problem, "", "k")] * 8)


def test_a_step_without_convolutions() -> None:
    from tests.support.onnx.models import draw, node, tiny

    model = tiny([node("Gemm", "w")], (4, 3), {"w": draw(3, 5)})
    graph, module = step(model)
    found = inspected(graph, module)
    assert found.data["totals"]["convolutions"] == 0
    assert "none" in found.to_markdown()
    assert found.to_html().startswith("<!doctype html>")
