"""Which kernel a problem gets on a CPU, by name and with a reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tvm import relax, tirx
from tvm.target import Target

import legalize.cpu
import relay_wgrad
from legalize.cpu.choose import RULES, Rule
from legalize.cpu.machine import WINOGRAD, Machine
from relay_wgrad.facts import lowered_convolutions
from relay_wgrad.problem import ConvKind, ConvProblem

AVX512, AVX2 = (
    {"kind": "llvm", "mcpu": f"x86-64-{v}", "keys": ["cpu", WINOGRAD]} for v in ("v4", "v3")
)
TILES, PAIRS = ({"kind": "llvm", "mcpu": cpu} for cpu in ("sapphirerapids", "cooperlake"))
WIDE = {"data_layout": "NHWC", "kernel_layout": "OHWI", "grad_layout": "NHWC"}


def problem(kind: str, c: int, k: int, size: int, r: int, groups: int = 1) -> ConvProblem:
    return ConvProblem(
        kind=ConvKind(kind), n=8, c=c, h=size, w=size, k=k, r=r, s=r, groups=groups,
        padding=(r // 2,) * 4, **WIDE,
    )  # fmt: skip


def half(given: ConvProblem) -> ConvProblem:
    return replace(given, **{f"{x}_dtype": "bfloat16" for x in ("data", "weight", "grad")})


CASES = {
    "depthwise": (problem("fprop", 64, 64, 28, 3, 64), AVX512),
    "depthwise sums": (problem("wgrad", 64, 64, 28, 3, 64), AVX512),
    "depthwise lines": (problem("wgrad", 256, 256, 112, 3, 256), AVX2),
    "Winograd": (problem("fprop", 64, 64, 56, 3), AVX512),
    "Winograd wgrad": (problem("wgrad", 512, 512, 7, 3), AVX512),
    "Winograd wgrad in tasks": (problem("wgrad", 64, 64, 56, 3), AVX512),
    "Winograd weights": (problem("dgrad", 1024, 1024, 8, 3), AVX2),
    "packed wgrad": (problem("wgrad", 64, 128, 28, 5), AVX2),
    "direct wgrad": (problem("wgrad", 64, 128, 28, 5), AVX512),
    "wgrad of pixels": (ConvProblem.parse("wgrad n=8 c=64 h=56 w=56 k=256 r=1 s=1"), AVX512),
    "product of pixels": (
        ConvProblem.parse("dgrad n=8 c=64 h=56 w=56 k=256 r=1 s=1"),
        AVX512,
    ),
    "product of patches": (
        ConvProblem.parse("dgrad n=8 c=64 h=64 w=64 k=128 r=2 s=2 stride=2,2"),
        AVX512,
    ),
    "product": (problem("fprop", 64, 256, 56, 1), AVX512),
    "direct": (problem("dgrad", 64, 128, 28, 5), AVX512),
    "tiles": (half(problem("dgrad", 64, 128, 28, 5)), TILES),
    "tiles wgrad": (half(problem("wgrad", 64, 128, 28, 5)), TILES),
    "pairs": (half(problem("fprop", 64, 128, 28, 5)), PAIRS),
    "pairs wgrad": (half(problem("wgrad", 64, 128, 28, 5)), PAIRS),
}


VOLUME = ConvProblem.parse("fprop n=1 c=8 d=4 h=8 w=8 k=8 t=3 r=3 s=3 pad=1,1,1,1,1,1")


@pytest.mark.parametrize(("given", "target"), CASES.values(), ids=CASES)
def test_each_kernel_has_a_problem(
    given: ConvProblem, target: dict[str, str], request: pytest.FixtureRequest
) -> None:
    made = legalize.cpu.kernel(given, Target(target))
    assert made.name == request.node.callspec.id
    assert made.reason


@pytest.mark.parametrize("given", [CASES["direct"][0], VOLUME], ids=["2d", "3d"])
def test_one_choice_is_written_and_told(
    given: ConvProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is reported is what was written, not what a second choice says."""
    asked: list[ConvProblem] = []

    def choose(problem: ConvProblem, m: Machine) -> Rule:
        asked.append(problem)
        return RULES[-1]  # what takes any problem

    monkeypatch.setattr(legalize.cpu, "choose", choose)
    made = legalize.cpu.kernel(given, Target(AVX512))
    assert len(asked) == 1
    assert made.name.rpartition(", ")[2] == RULES[-1].name


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (problem("wgrad", 3, 16, 7, 1), "packed wgrad"),
        (problem("wgrad", 64, 64, 7, 1, groups=2), "direct wgrad"),
        (replace(problem("wgrad", 128, 256, 14, 3), strides=(2, 2)), "packed wgrad"),
        (replace(problem("wgrad", 64, 256, 14, 3), strides=(2, 2)), "direct wgrad"),
    ],
    ids=str,
)
def test_many_registers_take_panels_of_products(given: ConvProblem, name: str) -> None:
    """And of strided kernels with many channels."""
    made = legalize.cpu.kernel(given, Target(AVX512))
    assert made.name == name


def test_volumes_are_packed_for_their_own_channels() -> None:
    """Not for those of columns, which are copies of the same."""
    line = "wgrad n=1 c={} d=8 h=8 w=8 k=128 t=3 r=3 s=3 stride=2,2,2 pad=1,1,1,1,1,1"
    names = [
        legalize.cpu.kernel(ConvProblem.parse(line.format(c)), Target(AVX512)).name
        for c in (64, 128)
    ]
    assert names == ["depth as taps, direct wgrad", "depth as channels, packed wgrad"]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("fprop n=1 c=32 d=8 h=24 w=24 k=32", "depth as taps, Winograd"),
        ("dgrad n=1 c=32 d=8 h=24 w=24 k=32", "depth as taps, Winograd"),
        ("wgrad n=1 c=64 d=8 h=24 w=24 k=64", "depth as taps, Winograd wgrad"),
        ("fprop n=1 c=512 d=4 h=8 w=8 k=512", "depth as taps, Winograd weights"),
        ("fprop n=1 c=32 d=8 h=24 w=24 k=8", "depth as taps, direct"),
        ("fprop n=1 c=32 d=8 h=24 w=24 k=32 stride=2,1,1", "depth as channels, Winograd"),
        ("fprop n=1 c=32 d=8 h=24 w=24 k=32 stride=1,2,2", "depth as taps, direct"),
        ("fprop n=1 c=32 d=8 h=24 w=24 k=32 groups=2", "depth as taps, direct"),
        ("fprop n=1 c=32 d=8 h=24 w=24 k=32 dtype=f64/f64/f64", "depth as taps, direct"),
    ],
)
def test_volumes_by_winograd(line: str, name: str) -> None:
    """Where it is allowed and pays; a step in depth alone leaves images whose channels are all."""
    given = ConvProblem.parse(f"{line} t=3 r=3 s=3 pad=1,1,1,1,1,1")
    assert legalize.cpu.kernel(given, Target(AVX512)).name == name
    direct = Target({**AVX512, "keys": ["cpu"]})
    assert "Winograd" not in legalize.cpu.kernel(given, direct).name


def test_all_are_tried() -> None:
    assert sorted(CASES) == sorted(rule.name for rule in RULES)


@pytest.mark.parametrize("target", [{"kind": "llvm", "mcpu": "x86-64-v4"}, "llvm"], ids=str)
def test_direct_sums_unless_the_target_says(target: Any) -> None:
    """Relay's and Relax's users compare with direct sums, to 1e-5 of each number."""
    assert legalize.cpu.kernel(CASES["Winograd"][0], Target(target)).name == "direct"


KINDS = {
    "llvm": legalize.cpu.host_target(allow_winograd=True),
    "cuda": Target({"kind": "cuda", "arch": "sm_90"}),
}


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("height", [56, tirx.Var("h", "int64")], ids=["static", "symbolic"])
def test_a_module_says_what_it_got(kind: str, height: Any) -> None:
    """Kernels carry their choice and its reason, for reports."""
    shapes = {"x": (8, height, 56, 64), "w": (64, 3, 3, 64)}
    x, w = (relax.Var(name, relax.TensorType(s, "float32")) for name, s in shapes.items())
    bb = relax.BlockBuilder()
    with bb.function("main", [x, w]):
        with bb.dataflow():
            call = relay_wgrad.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="OHWI")
            out = bb.emit_output(bb.emit(call))
        bb.emit_func_output(out)
    with KINDS[kind]:
        (found,) = lowered_convolutions(relax.transform.LegalizeOps()(bb.get()), "main")
    if height == 56:
        names = {"llvm": "Winograd", "cuda": "product"}
        assert found.source == f"{kind} {names[kind]}"
        assert found.reason
    else:
        assert (found.source, found.reason) == ("generic", "sizes are symbolic")
