"""What CUTLASS takes and refuses, and the kernels that are made for what it takes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import byoc_cudnn
from byoc_cudnn.backends.cutlass.check import ARCHS, EPILOGUES, Options, check
from byoc_cudnn.backends.cutlass.hopper import GEMM, HOPPER, WGMMA
from byoc_cudnn.backends.cutlass.kernels import (
    ANALYTIC,
    FEW_CHANNELS,
    HOPPER_TILES,
    OPTIMIZED,
    SMALLEST_ASYNC,
    TAP_TILES,
    Kernel,
    access,
    candidates,
)
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.partition_cases import only, partitioned, problem_module

NHWC = "layout=NHWC/OHWI/NHWC"
F16 = f"{NHWC} dtype=f16/f16/f16"
SMALL = "n=2 c=64 h=14 w=14 k=64 r=3 s=3"


def problem(line: str) -> ConvProblem:
    return ConvProblem.parse(line)


# ---- refusals ------------------------------------------------------------------------------------

REFUSED = {
    "layout": (f"fprop {SMALL}", "layouts NCHW/OIHW/NCHW: CUTLASS has NHWC/OHWI/NHWC"),
    "float64": (f"fprop {SMALL} {NHWC} dtype=f64/f64/f64", "dtype float64: CUTLASS's kernels here"),
    "operands": (
        f"fprop {SMALL} {NHWC} dtype=f16/f32/f32",
        "dtypes float16 and float32 to float32: both operands must be of one dtype",
    ),
    "narrower result": (
        f"fprop {SMALL} {NHWC} dtype=f32/f32/f16", "dtypes float32 and float32 to float16",
    ),
    "other half": (f"fprop {SMALL} {NHWC} dtype=f16/f16/bf16", "to bfloat16: both operands"),
    "groups": (
        f"wgrad {SMALL} groups=16 {F16}",
        "groups=16 of 4 channels: a kernel for each group pays for up to 32 groups of 8 channels",
    ),
    "many groups": (
        f"wgrad n=2 c=1024 h=14 w=14 k=1024 r=3 s=3 groups=64 {F16}", "groups=64 of 16 channels:",
    ),
    "depthwise": (f"fprop {SMALL} groups=64 {F16}", "groups=64 of 1 channels:"),
    "dilation": (
        f"dgrad {SMALL} stride=2,1 dil=1,2 {F16}",
        "dgrad with strides=(2, 1), dilation=(1, 2): CUTLASS's strided dgrad has no dilation",
    ),
    "bytes": (
        f"fprop n=256 c=64 h=256 w=256 k=64 r=3 s=3 {F16}",
        "data has 2147483648 bytes; CUTLASS takes fewer than 2**31",
    ),
    "sums": (
        f"wgrad n=1 c=16384 h=3 w=3 k=8192 r=2 s=2 {F16}",
        "weight has 2147483648 bytes; CUTLASS takes fewer than 2**31",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    line, reason = REFUSED[name]
    decision = check(problem(line), "")
    assert not decision
    assert reason in decision.reason


TAKEN = {
    "one channel": f"fprop n=2 c=1 h=8 w=8 k=1 r=3 s=3 {F16}",
    "three channels": f"dgrad n=2 c=3 h=9 w=9 k=7 r=3 s=3 stride=2,2 {F16}",
    "asymmetric": f"wgrad {SMALL} pad=0,1,2,3 {F16}",
    "dilated": f"dgrad {SMALL} dil=2,3 {F16}",
    "strided": f"dgrad {SMALL} stride=3,2 {F16}",
    "wide result": f"wgrad {SMALL} {NHWC} dtype=f16/f32/f16",
    "a large kernel": f"fprop n=1 c=8 h=64 w=64 k=8 r=40 s=33 {F16}",
    "groups": f"dgrad {SMALL} groups=8 {F16}",
    "fewer bytes": f"fprop n=255 c=64 h=256 w=256 k=64 r=3 s=3 {F16}",
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_taken(name: str) -> None:
    assert check(problem(TAKEN[name]), "")


def test_epilogues() -> None:
    for kind, names in EPILOGUES.items():
        for name in names:
            assert check(problem(f"{kind.value} {SMALL} {F16}"), name)
    decision = check(problem(f"wgrad {SMALL} {F16}"), "bias")
    assert decision.reason == "no epilogue 'bias' for wgrad"
    assert "no epilogue 'mask' for fprop" in check(problem(f"fprop {SMALL} {F16}"), "mask").reason


def test_old_gpus_have_no_bfloat16() -> None:
    line = f"fprop {SMALL} {NHWC} dtype=bf16/bf16/bf16"
    assert check(problem(line), "")
    decision = check(problem(line), "", Options(arch=75))
    assert decision.reason == "bfloat16 for arch=75: tensor cores have it from 80 on"
    assert check(problem(f"fprop {SMALL} {F16}"), "", Options(arch=75))


@pytest.mark.usefixtures("registered")
def test_the_partition_knows_the_options() -> None:
    """A rule that depends on an option decides what the partition does."""
    mod = problem_module(problem(f"fprop {SMALL} {NHWC} dtype=bf16/bf16/bf16"))
    _, report = partitioned(mod, backends=("cutlass",), cutlass={"arch": 75})
    assert only(report).reason == "bfloat16 for arch=75: tensor cores have it from 80 on"
    _, report = partitioned(mod, backends=("cutlass",))
    assert only(report).backend == "cutlass"


@pytest.mark.usefixtures("registered")
def test_what_one_backend_refuses_the_other_takes() -> None:
    mod = problem_module(problem(f"wgrad {SMALL} groups=16 {F16}"))
    _, report = partitioned(mod, backends=("cutlass", "cudnn"))
    assert report.rows() == {"cudnn.wgrad": 1}


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("line", "adapted"),
    [
        (f"wgrad {SMALL} pad=0,1,2,3 {F16}", ""),  # as it is, where cuDNN needs a `pad`
        (f"wgrad {SMALL} {NHWC} dtype=f16/f32/f16", ""),  # and here a `cast`
        (f"dgrad {SMALL} dtype=f16/f16/f16", "layout"),
        (f"fprop {SMALL} layout=NHWC/HWIO/NHWC", "layout"),
    ],
)
def test_what_is_put_around(line: str, adapted: str) -> None:
    mod = problem_module(problem(line))
    _, report = byoc_cudnn.partition_for_cutlass(mod, strict=True)
    assert only(report).adapted == adapted


# ---- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"allow_tf32": 1}, TypeError, "cutlass: allow_tf32 must be bool, got 1"),
        ({"split_k": True}, TypeError, "cutlass: split_k must be int, got True"),
        ({"split_k": 0}, ValueError, "cutlass: split_k must be from 1 to 256, got 0"),
        ({"arch": 70}, ValueError, "cutlass: arch must be one of 75, 80, 86, 89, 90, got 70"),
        (
            {"arch": "sm_80"},
            TypeError,
            "cutlass: arch must be int, or a tuple of them, got 'sm_80'",
        ),
        (
            {"arch": (80, True)},
            TypeError,
            r"arch must be int, or a tuple of them, got \(80, True\)",
        ),
        ({"arch": (80, 91)}, ValueError, r"arch must be one of 75, 80, 86, 89, 90, got \(80, 91\)"),
        ({"arch": ()}, ValueError, r"arch must be one of 75, 80, 86, 89, 90, got \(\)"),
        ({"arch": (80, 86), "wgmma": True}, ValueError, r"needs arch=90, got arch=\(80, 86\)"),
        ({"wgmma": True}, ValueError, "cutlass: wgmma needs arch=90, got arch=80"),
    ],
)
def test_options(given: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        Options(**given)


def test_several_gpus() -> None:
    assert Options(arch=[90, 80, 80]).arch == (80, 90)  # type: ignore[arg-type]
    assert Options(arch=(86,)) == Options(arch=86)
    assert Options(arch=(75, 90), wgmma=True).archs == (75, 90)
    line = f"fprop {SMALL} {NHWC} dtype=bf16/bf16/bf16"
    refused = check(problem(line), "", Options(arch=(75, 90)))
    assert refused.reason == "bfloat16 for arch=75: tensor cores have it from 80 on"


# ---- kernels -------------------------------------------------------------------------------------


def kernel(line: str, epilogue: tuple[str, ...] = (), **options: Any) -> Kernel:
    return candidates(problem(line), epilogue, Options(**options))[0]


@pytest.mark.parametrize(
    ("channels", "size", "elements"),
    [(64, 2, 8), (12, 2, 4), (6, 2, 2), (3, 2, 1), (8, 4, 4), (6, 4, 2), (7, 4, 1), (1, 2, 1)],
)
def test_accesses(channels: int, size: int, elements: int) -> None:
    assert access(channels, size) == elements


def test_accesses_of_each_tensor() -> None:
    """In the order of the operands; a weight gradient's result is of float32 sums."""
    sizes = f"n=2 c=4 h=8 w=8 k=6 r=1 s=1 {F16}"
    assert kernel(f"fprop {sizes}").accesses == (4, 4, 2)
    assert kernel(f"dgrad {sizes}").accesses == (2, 4, 4)
    assert kernel(f"wgrad {sizes}").accesses == (2, 4, 4)
    wide = f"n=2 c=32 h=8 w=8 k=32 r=1 s=1 {NHWC} dtype=f16/f16/f32"
    assert kernel(f"fprop {wide}").accesses == (8, 8, 4)


def test_a_group_is_a_convolution() -> None:
    """Its kernels are those of its channels; none is Hopper's own, which reads whole pixels."""
    whole = problem(f"wgrad n=2 c=96 h=14 w=14 k=56 r=3 s=3 groups=4 {F16}")
    one = problem(f"wgrad n=2 c=24 h=14 w=14 k=14 r=3 s=3 {F16}")
    options = Options(arch=90, wgmma=True)
    assert candidates(whole, (), options) == candidates(one, (), options)
    even = problem(f"wgrad n=2 c=96 h=14 w=14 k=64 r=3 s=3 groups=4 {F16}")
    assert all(k.algorithm not in HOPPER for k in candidates(even, (), options))


def test_three_channels_take_single_elements_and_a_short_pipeline() -> None:
    stem = f"n=2 c=3 h=32 w=32 k=64 r=7 s=7 stride=2,2 pad=3,3,3,3 {F16}"
    fprop = kernel(f"fprop {stem}")
    assert (fprop.algorithm, fprop.accesses, fprop.tile.stages) == (FEW_CHANNELS, (1, 1, 8), 2)
    dgrad = kernel(f"dgrad {stem}")
    assert (dgrad.accesses, dgrad.strided, dgrad.tile.stages) == ((8, 1, 1), True, 2)
    # An element of float32 is wide enough for an asynchronous copy.
    assert kernel(f"fprop {stem}".replace("f16", "f32")).tile.stages > 2


def test_algorithms() -> None:
    assert kernel(f"fprop {SMALL} {F16}").algorithm == OPTIMIZED
    for kind, expected in (("fprop", ANALYTIC), ("dgrad", ANALYTIC), ("wgrad", OPTIMIZED)):
        line = f"{kind} n=1 c=8 h=64 w=64 k=8 r=33 s=1 {F16}"
        assert kernel(line).algorithm == expected
        assert kernel(line.replace("r=33", "r=32")).algorithm == OPTIMIZED


def test_what_multiplies() -> None:
    line = f"fprop {SMALL} {NHWC}"
    assert kernel(line).math == "tf32"
    exact = kernel(line, allow_tf32=False)
    assert (exact.math, exact.accesses) == ("f32", (1, 1, 1))
    old = kernel(line, arch=75)
    assert (old.math, old.sm, old.tile.stages) == ("f32", 75, 2)
    assert kernel(f"fprop {SMALL} {F16}", arch=75).tile.stages == 2
    assert kernel(f"fprop {SMALL} {NHWC} dtype=bf16/bf16/bf16").math == "bf16"


POINT = "n=2 c=64 h=14 w=14 k=64 r=1 s=1"


@pytest.mark.parametrize(
    ("line", "epilogue", "algorithm"),
    [
        (f"fprop {SMALL} stride=2,8 dil=2,1 pad=1,0,2,3 {F16}", (), WGMMA),
        (f"dgrad {SMALL} dil=3,3 {F16}", ("mask",), WGMMA),
        (f"wgrad {SMALL} stride=2,1 {F16}", (), WGMMA),
        (f"fprop {SMALL} {NHWC} dtype=bf16/bf16/f32", (), WGMMA),
        (f"fprop {SMALL} {F16}", ("bias", "relu"), WGMMA),
        # A product of matrices; with strides or padding it is none.
        (f"fprop {POINT} {F16}", ("residual",), GEMM),
        (f"dgrad {POINT} {F16}", (), GEMM),
        (f"wgrad {POINT} {NHWC} dtype=bf16/f32/bf16", (), GEMM),
        (f"fprop {POINT} stride=2,2 {F16}", (), WGMMA),
        (f"wgrad {POINT} pad=0,0,0,1 {F16}", (), WGMMA),
        # Every phase of a strided dgrad has taps, or only the first.
        (f"dgrad {SMALL} stride=1,2 {F16}", (), WGMMA),
        (f"dgrad {SMALL} stride=3,3 {F16}", (), WGMMA),
        (f"dgrad {SMALL} stride=4,1 {F16}", (), None),
        (f"dgrad {POINT} stride=2,2 {F16}", (), WGMMA),
        (f"dgrad {POINT} stride=2,2 pad=2,2,2,2 {F16}", (), WGMMA),
        (f"dgrad {POINT} stride=2,2 pad=1,1,1,1 {F16}", (), None),
        (f"fprop {SMALL} {NHWC}", (), None),
        (f"fprop n=2 c=60 h=14 w=14 k=64 r=3 s=3 {F16}", (), None),
        (f"fprop n=2 c=64 h=14 w=14 k=60 r=1 s=1 {F16}", (), None),
        (f"fprop n=2 c=64 h=29 w=14 k=64 r=3 s=3 stride=9,1 {F16}", (), None),
        (f"fprop n=2 c=64 h=300 w=14 k=64 r=3 s=3 dil=64,1 {F16}", (), None),
    ],
)
def test_hopper(line: str, epilogue: tuple[str, ...], algorithm: str | None) -> None:
    """Hopper's own kernels are offered where asked for and possible, beside the others."""
    found = candidates(problem(line), epilogue, Options(arch=90, wgmma=True))
    own = [k for k in found if k.algorithm in HOPPER]
    assert {k.algorithm for k in own} == ({algorithm} if algorithm else set())
    several = line.startswith("wgrad") and "r=1 s=1" not in line
    tiles = HOPPER_TILES + (TAP_TILES if several else ())
    assert [k.tile for k in own] == (list(tiles) if algorithm else [])
    assert len(own) < len(found)
    for k in found:
        assert Kernel.parse(k.name) == k
        assert k.epilogue == epilogue
    for options in (Options(), Options(arch=90)):
        assert not any(k.algorithm in HOPPER for k in candidates(problem(line), epilogue, options))


def test_hopper_takes_larger_tensors() -> None:
    """Of more than 2**31 bytes, but fewer pixels."""
    options = Options(arch=90, wgmma=True)
    large = f"{{}} n=256 c={{}} h=256 w=256 k={{}} r=3 s=3 pad=1,1,1,1 {F16}"
    for kind in ConvKind:
        p = problem(large.format(kind.value, 64, 64))
        assert "CUTLASS takes fewer than 2**31" in check(p, "").reason
        assert check(p, "", options)
        assert all(k.algorithm == WGMMA for k in candidates(p, (), options))
        for other in (Options(arch=(80, 90), wgmma=True), Options(arch=90)):
            assert not check(p, "", other)
        assert not check(problem(large.format(kind.value, 60, 64)), "", options)
    many = f"fprop n=32768 c=8 h=256 w=256 k=8 r=1 s=1 {F16}"  # 2**31 pixels
    assert not check(problem(many), "", options)
    assert check(problem(many.replace("32768", "32767")), "", options)


def test_hopper_tiles_keep_the_rules_of_their_template() -> None:
    tiles = HOPPER_TILES + TAP_TILES
    for t in tiles:
        # Two groups share a tile's rows, or each has a whole tile: its sums in registers.
        assert (t.warp_m, t.warp_n) in ((t.m, t.n), (t.m // 2, t.n))
        assert t.warp_m % 64 == 0
        assert t.warp_m * t.warp_n <= 128 * 128
        assert t.n <= 256
        # With barriers, in 227 KiB.
        assert t.stages * (t.m + t.n) * t.k * 2 + 1024 <= 227 << 10
        # A tap's columns are whole atoms of shared memory.
        assert t.n % (64 * t.taps) == 0
        assert t.cluster[1] == 1 or t.taps == 1
    assert len({(t.m, t.n, t.cluster, t.taps) for t in tiles}) == len(tiles)


LINES = st.builds(
    "{} n=2 c={} h=40 w=40 k={} r={} s=3 stride={},1 {} dtype={}".format,
    st.sampled_from([k.value for k in ConvKind]), st.integers(1, 40), st.integers(1, 40),
    st.sampled_from([1, 3, 33]), st.integers(1, 2), st.just(NHWC),
    st.sampled_from(["f16/f16/f16", "bf16/bf16/bf16", "f32/f32/f32"]),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(LINES, st.booleans(), st.sampled_from(ARCHS), st.integers(0, 9))
def test_kernels_keep_the_rules_of_their_templates(
    line: str, tf32: bool, arch: int, which: int
) -> None:
    p, options = problem(line), Options(allow_tf32=tf32, arch=arch)
    names = EPILOGUES[p.kind]
    epilogue = tuple(x for x in names[which % len(names)].split("_") if x)
    if not check(p, "_".join(epilogue), options):
        return
    for k in candidates(p, epilogue, options):
        assert Kernel.parse(k.name) == k
        assert k.name.isidentifier()
        t, bytes_ = k.tile, 2 if k.math in ("f16", "bf16") else 4
        channels = {ConvKind.FPROP: (p.c, p.c, p.k)}.get(p.kind, (p.k, p.c, p.c))
        assert all(c % a == 0 for c, a in zip(channels, k.accesses, strict=True))
        assert max(k.accesses[:2]) * bytes_ <= 16
        assert t.stages == 2 or min(k.accesses[:2]) * bytes_ >= SMALLEST_ASYNC
        assert t.m % t.warp_m == t.n % t.warp_n == 0
        assert t.threads <= 256
        assert k.shared_bytes <= (48 << 10 if k.sm == 75 else 99 << 10)
        assert k.strided == (p.kind is ConvKind.DGRAD and p.strides != (1, 1))


@pytest.mark.parametrize("name", ["", "f", "relay_wgrad_cutlass_fprop_f16", "x; system()"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ValueError, match="not the name of a CUTLASS kernel"):
        Kernel.parse(name)
    good = kernel(f"fprop {SMALL} {F16}").name
    with pytest.raises(ValueError, match="not the name of a CUTLASS kernel"):
        Kernel.parse(good + "\n")
