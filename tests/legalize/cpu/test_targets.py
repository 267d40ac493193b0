"""Kernels for the targets that people type, not the host's alone, wherever their tensors begin."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.target import Target, codegen

from legalize import cpu
from legalize.cpu import max_pool
from legalize.cpu.emitters.loops import alignment
from legalize.cpu.machine import changed_features, machine
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.children import run_code
from tests.support.problems import (
    poisoned,
    random_operands,
    relative_error,
    tolerance,
    torch_reference,
)

# LLVM 22 joins the neighbouring stores of each's copies and says of both what holds of one.
FAULTED = """
fprop n=1 c=1 h=34 w=3 k=5 r=5 s=1 pad=1,0,1,0 dil=2,2 dtype=f64/f64/f64
fprop n=1 c=1 h=12 w=7 k=12 r=1 s=4 pad=1,0,1,0 dil=2,2 dtype=f64/f64/f64
""".strip().splitlines()
KERNELS = (
    *FAULTED,
    "wgrad n=2 c=8 h=9 w=9 k=16 r=3 s=3 pad=1,1,1,1 dtype=f16/f32/bf16",
    "dgrad n=2 c=16 h=9 w=9 k=16 r=3 s=3 groups=16 layout=NHWC/HWIO/NHWC",
    "fprop n=1 c=64 h=28 w=28 k=64 r=3 s=3 pad=1,1,1,1",
)


# A tensor that a kernel is called with, or that it allocates; without `align` it is 64.
_MEMORY = re.compile(
    r"T\.(?:Buffer|alloc_buffer)\([^\n]*?\"(\w+)\""
    r"(?:, scope=\"\w+\")?(?:, align=(\d+))?\)"
)


def _claims(func: tirx.PrimFunc) -> list[tuple[str, int]]:
    """(dtype, alignment) of a kernel's memory."""
    return [(dtype, int(align or 64)) for dtype, align in _MEMORY.findall(func.script())]


@pytest.mark.parametrize("mcpu", [None, "x86-64-v4"])
@pytest.mark.parametrize("line", KERNELS)
def test_memory_is_said_to_be_aligned_to_its_elements(line: str, mcpu: str | None) -> None:
    target = Target({"kind": "llvm", "mcpu": mcpu} if mcpu else "llvm")
    claims = _claims(cpu.prim_func(ConvProblem.parse(line), target))
    assert len(claims) > 2
    assert [x for x in claims if x[1] != alignment(x[0])] == []


def test_max_pooling_says_no_more() -> None:
    window = max_pool.Window(1, 2, True, "float64", (6, 6), (3, 3), (2, 2), (2, 2), (1, 1), (0, 0))
    for made in (max_pool.first_maxima(window), max_pool.sums(window)):
        assert {*_claims(made)} <= {("float64", 8), ("uint8", 1)}


# Runs each kernel on operands that begin anywhere; what it gets is checked by the generator.
_CHILD = """
import sys
import numpy as np
import tvm, tvm_ffi
from tvm.target import Target, codegen
from legalize import cpu
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.problems import random_operands, relative_error, tolerance, torch_reference
rng = np.random.default_rng(0)

def moved(array, by):
    raw = np.empty(array.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64 + by
    view = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view

for line in sys.argv[2:]:
    problem, target = ConvProblem.parse(line), Target(sys.argv[1])
    func = cpu.prim_func(problem, target).with_attr("global_symbol", "main")
    kernel = tvm.compile(tvm.IRModule({"main": func}), target=target)["main"]
    operands = random_operands(problem, rng)
    want = torch_reference(problem, *operands)
    for by in (0, 8):
        out = moved(np.full(problem.shape(problem.roles[2]), np.nan), by)
        kernel(*(tvm_ffi.from_dlpack(moved(x, by)) for x in operands), tvm_ffi.from_dlpack(out))
        assert relative_error(out, want) <= tolerance(problem), (line, by)
"""


def test_a_target_without_a_cpu() -> None:
    done = run_code(_CHILD, "llvm", *FAULTED)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("level", [2, 3])
def test_a_store_of_one_element_is_of_16_bits(level: int) -> None:
    """LLVM 22, for AVX-512, wrote 32 bits at the end of 9 or 13 taps: over the next filter's."""
    target = Target({"kind": "llvm", "mcpu": "icelake-server", "num-cores": 1, "opt-level": level})
    for taps in ("r=3 s=3", "r=13 s=1"):
        problem = ConvProblem.parse(
            f"wgrad n=1 c=1 h=14 w=14 k=11 {taps} layout=NHWC/OHWI/NHWC dtype=f64/bf16/f64"
        )
        library = tvm.compile(cpu.prim_func(problem, target), target=target)
        if "avx512bw" in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
            a, b = random_operands(problem, np.random.default_rng(0))
            out = tvm.runtime.tensor(poisoned(problem))
            library["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
            want = torch_reference(problem, a, b)
            assert relative_error(out.numpy(), want) <= tolerance(problem)


def test_instructions_that_a_virtual_machine_disables() -> None:
    """A Zen 4 that shows AVX2 only."""
    model = codegen.llvm_get_cpu_features(Target({"kind": "llvm", "mcpu": "znver4"}))
    masked = {name: not name.startswith(("avx512", "gfni")) for name in model}
    disabled = changed_features("znver4", {**masked, "amx-tile": False})
    assert disabled == sorted(f"-{name}" for name, kept in masked.items() if not kept)
    assert changed_features("znver4", {}) == []
    target = Target({"kind": "llvm", "mcpu": "znver4", "num-cores": 1, "mattr": disabled})
    assert (machine(target).vector_bytes, machine(target).registers) == (32, 16)
    problem = ConvProblem.parse("wgrad n=1 c=32 h=14 w=14 k=32 r=3 s=3 layout=NHWC/OHWI/NHWC")
    for at in (target, Target({"kind": "llvm", "mcpu": "znver4", "num-cores": 1})):
        code = tvm.compile(cpu.prim_func(problem, at), target=at).mod.inspect_source("asm")
        assert ("zmm" in code) == (at is not target)


def test_a_virtual_machine_that_shows_an_older_model() -> None:
    """A Sapphire Rapids that says it is a Rocket Lake."""
    model = codegen.llvm_get_cpu_features(Target({"kind": "llvm", "mcpu": "rocketlake"}))
    real = codegen.llvm_get_cpu_features(Target({"kind": "llvm", "mcpu": "sapphirerapids"}))
    present = {name: name in real for name in {*model, *real}}
    changed = changed_features("rocketlake", present)
    assert changed[-2:] == ["+amx-bf16", "+avx512bf16"]
    assert all(x.startswith("-") for x in changed[:-2])
    target = Target({"kind": "llvm", "mcpu": "rocketlake", "num-cores": 1, "mattr": changed})
    assert machine(target).has_bfloat16
    assert {"amx-tile", "amx-bf16"} <= {*map(str, codegen.llvm_get_cpu_features(target))}
    assert changed_features("sapphirerapids", present) == []


NEON = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1", "num-cores": 4}


@pytest.mark.parametrize("kind", ConvKind, ids=lambda kind: kind.value)
@pytest.mark.parametrize("groups", [1, 32], ids=["dense", "depthwise"])
def test_arm_is_compiled_for(kind: ConvKind, groups: int) -> None:
    """With vectors of 4; nothing of it has run."""
    target = Target(NEON)
    assert (machine(target).vector_bytes, machine(target).registers) == (16, 32)
    for dtype in ("f32", "bf16"):
        problem = ConvProblem.parse(
            f"{kind.value} n=2 c=32 h=9 w=9 k=32 r=3 s=3 pad=1,1,1,1 groups={groups}"
            f" layout=NHWC/HWIO/NHWC dtype={dtype}/{dtype}/{dtype}"
        )
        code = tvm.compile(cpu.prim_func(problem, target), target=target).mod.inspect_source("asm")
        assert re.search(r"fmla\tv\d+\.4s", code)


def test_this_host_has_what_its_target_says() -> None:
    has = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    features = codegen.llvm_get_cpu_features(cpu.host_target())
    assert "sse2" in features
    assert [name for name in features if not has.get(name, True)] == []
