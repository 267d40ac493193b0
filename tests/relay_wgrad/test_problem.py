"""Shape arithmetic and layouts: known sizes, the one-line form, and what is refused."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from relay_wgrad.layouts import permutation, swap_io, to_layout
from relay_wgrad.problem import ConvKind, ConvProblem, transposed_size
from relay_wgrad.rules import out_size


@st.composite
def problems(draw: st.DrawFn) -> ConvProblem:
    groups = draw(st.integers(1, 3))
    pads = draw(st.tuples(*[st.integers(0, 3)] * 4))
    dilation = draw(st.tuples(*[st.integers(1, 3)] * 2))
    r, s = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    h = max(draw(st.integers(1, 12)), dilation[0] * (r - 1) + 1 - pads[0] - pads[2])
    w = max(draw(st.integers(1, 12)), dilation[1] * (s - 1) + 1 - pads[1] - pads[3])
    dtypes = st.sampled_from(["float16", "bfloat16", "float32", "float64"])
    return ConvProblem(
        draw(st.sampled_from(list(ConvKind))), draw(st.integers(1, 3)),
        groups * draw(st.integers(1, 3)), h, w, groups * draw(st.integers(1, 3)), r, s,
        strides=draw(st.tuples(*[st.integers(1, 3)] * 2)), padding=pads, dilation=dilation,
        groups=groups, data_layout=draw(st.sampled_from(["NCHW", "NHWC", "CHWN"])),
        kernel_layout=draw(st.sampled_from(["OIHW", "OHWI", "HWIO"])),
        grad_layout=draw(st.sampled_from(["NCHW", "NHWC"])),
        data_dtype=draw(dtypes), weight_dtype=draw(dtypes), grad_dtype=draw(dtypes),
    )  # fmt: skip


@given(problems())
def test_one_line_form_says_everything(problem: ConvProblem) -> None:
    again = ConvProblem.parse(problem.repro())
    assert again == problem
    assert hash(again) == hash(problem)
    assert all(
        getattr(again, name) == getattr(problem, name) for name in problem.__dataclass_fields__
    )


@given(problems())
def test_output_size_is_pytorchs(p: ConvProblem) -> None:
    top, left, bottom, right = p.padding
    x = torch.zeros(p.n, p.c, p.h + top + bottom, p.w + left + right)
    y = F.conv2d(
        x, torch.zeros(p.canonical_shape("weight")), stride=p.strides, dilation=p.dilation,
        groups=p.groups,
    )  # fmt: skip
    assert tuple(y.shape) == p.canonical_shape("grad")


@given(st.integers(1, 20), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.data())
def test_transposed_size_inverts(
    p: int, kernel: int, stride: int, dilation: int, d: st.DataObject
) -> None:
    extra = d.draw(st.integers(0, stride - 1))
    size = transposed_size(p, 0, kernel, stride, dilation, extra)
    assert out_size(size, 0, kernel, stride, dilation) == p


def test_known_costs() -> None:
    p = ConvProblem(ConvKind.WGRAD, 256, 64, 56, 56, 64, 3, 3, padding=(1, 1, 1, 1))
    assert p.flop == 2 * 256 * 56 * 56 * 64 * 64 * 9
    assert p.gemm == (64, 576, 256 * 56 * 56)
    assert p.bytes == 4 * (2 * 256 * 64 * 56 * 56 + 64 * 64 * 9)
    assert p.with_kind(ConvKind.DGRAD).gemm == (256 * 56 * 56, 64, 576)
    depthwise = ConvProblem(ConvKind.FPROP, 1, 8, 5, 5, 16, 3, 3, groups=8)
    assert depthwise.is_depthwise
    assert depthwise.gemm == (9, 2, 9)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "a problem starts with fprop, dgrad, wgrad"),
        ("conv n=1", "a problem starts with"),
        ("fprop n=1 c=1 h=1 w=1 k=1 r=1", "size 's' is missing"),
        ("fprop n=1 n=2", "repeated or malformed field 'n=2'"),
        ("fprop x=1", "unknown"),
        ("fprop n", "malformed field 'n'"),
        ("fprop n=1 c=1 h=1 w=1 k=1 r=1 s=a", "s='a': expected 1 integer"),
        ("fprop n=1 c=1 h=1 w=1 k=1 r=1 s=1 pad=1,1", "expected 4 integer"),
        ("fprop n=0 c=1 h=1 w=1 k=1 r=1 s=1", "n must be at least 1, got n=0"),
        ("fprop n=١ c=1 h=1 w=1 k=1 r=1 s=1", "n='١': expected 1 integer"),
        ("fprop n=1 c=3 h=1 w=1 k=2 r=1 s=1 groups=2", "groups must divide C, got C=3, groups=2"),
        ("fprop n=1 c=2 h=1 w=1 k=3 r=1 s=1 groups=2", "groups must divide K, got K=3, groups=2"),
        ("fprop n=1 c=1 h=1 w=1 k=1 r=1 s=1 stride=0,1", "strides must be at least 1"),
        ("fprop n=1 c=1 h=1 w=1 k=1 r=1 s=1 pad=0,0,-1,0", "padding must be at least 0"),
        ("fprop n=2147483648 c=1 h=1 w=1 k=1 r=1 s=1", r"n must be less than 2\*\*31, got n=2147"),
        ("fprop n=1 c=1 h=1 w=1 k=1 r=1 s=1 pad=0,2147483648,0,0", "padding must be less than 2"),
        ("fprop n=1 c=1 h=1 w=1 k=1 r=1 s=1 layout=a/b/c", "the letters NCHW, got 'a'"),
        ("fprop n=1 c=1 h=1 w=1 k=1 r=1 s=1 layout=NCHW/NCHW/NCHW", "the letters OIHW, got 'NC"),
        ("fprop n=1 c=1 h=1 w=1 k=1 r=2 s=1", "P must be positive, got P=0 from H=1, R=2"),
        ("fprop n=1 c=1 h=1 w=1 k=1 r=1 s=1 dtype=f32/f32", "expected data/weight/grad"),
        ("fprop n=1 c=1 h=1 w=1 k=1 r=1 s=1 dtype=f32/f32/i8", "expected data/weight/grad"),
    ],
)
def test_malformed_lines(line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ConvProblem.parse(line)


def test_permutations_compose_and_invert() -> None:
    for a, b in itertools.product(("NCHW", "NHWC", "CHWN"), repeat=2):
        there, back = permutation(a, b), permutation(b, a)
        assert [there[i] for i in back] == [0, 1, 2, 3]
        assert "".join(to_layout(a, a, b)) == b
    assert swap_io("OHWI") == "IHWO"
    assert swap_io(swap_io("HWIO")) == "HWIO"
    with pytest.raises(ValueError, match="'NCHW' and 'NHWX' do not have the same letters"):
        permutation("NCHW", "NHWX")
    with pytest.raises(ValueError, match="no tensor 'x'"):
        ConvProblem(ConvKind.FPROP, 1, 1, 1, 1, 1, 1, 1).canonical_shape("x")
