"""Volumes of more than 2^31 elements by our own kernels, against cuDNN's on slabs of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import tvm

from byoc_cudnn.backends.cuda_direct import loaded
from byoc_cudnn.backends.cuda_direct.check import Options
from relay_wgrad.problem import ConvKind, ConvProblem

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]

# 2.2e9 elements, 4.4 GB, of the result and, but for one channel, of the data.
LINE = (
    "{} n=1 c={} d=560 h=352 w=352 k=32 t=3 r=3 s=3 pad=1,1,1,1,1,1 layout=NDHWC/ODHWI/NDHWC"
    " dtype=bf16/bf16/bf16"
)
SLAB = 56  # planes
NEEDED = 24 << 30
TOLERANCE = 1e-2  # of sums in bfloat16
CASES = [(kind, c) for kind in ConvKind for c in (1, 32) if (kind, c) != (ConvKind.DGRAD, 1)]


def made(problem: ConvProblem, role: str) -> torch.Tensor:
    x = torch.empty(problem.shape(role), device="cuda", dtype=torch.bfloat16)
    for plane in x[0] if role != "weight" else [x]:  # as float32 it would be twice as large
        plane.copy_(torch.randn(plane.shape, device="cuda"))
    return x


def theirs(p: ConvProblem, t: dict[str, torch.Tensor], first: int) -> torch.Tensor:
    """What a slab of planes makes: a result's planes, or what they add to the weight's gradient."""
    kind, last = p.kind, first + SLAB
    low, high = max(first - 1, 0), min(last + 1, p.d)
    ncdhw = {role: x.permute(0, 4, 1, 2, 3) for role, x in t.items()}
    depth = (1 if first == 0 else 0, 1 if last == p.d else 0)
    if kind is ConvKind.FPROP:
        x = torch.nn.functional.pad(ncdhw["data"][:, :, low:high], (0, 0, 0, 0, *depth))
        return torch.nn.functional.conv3d(x, ncdhw["weight"], padding=(0, 1, 1))
    if kind is ConvKind.DGRAD:
        y = torch.nn.functional.pad(ncdhw["grad"][:, :, low:high], (0, 0, 0, 0, *depth))
        w = ncdhw["weight"].flip(2, 3, 4).transpose(0, 1)
        return torch.nn.functional.conv3d(y, w, padding=(0, 1, 1))
    x = torch.nn.functional.pad(ncdhw["data"][:, :, low:high], (0, 0, 0, 0, *depth))
    return torch.ops.aten.convolution_backward(
        ncdhw["grad"][:, :, first:last], x, ncdhw["weight"], None, (1, 1, 1), (0, 1, 1), (1, 1, 1),
        False, (0, 0, 0), 1, (False, True, False),
    )[1]  # fmt: skip


@pytest.mark.parametrize(("kind", "c"), CASES, ids=lambda x: getattr(x, "value", str(x)))
def test_more_than_2_31_elements(kind: ConvKind, c: int) -> None:
    if torch.cuda.mem_get_info()[0] < NEEDED:
        pytest.skip("less memory free than it takes")
    torch.manual_seed(0)
    p = ConvProblem.parse(LINE.format(kind.value, c))
    first, second, result = p.roles
    t: dict[str, Any] = {role: made(p, role) for role in (first, second)}
    t[result] = torch.full(p.shape(result), float("nan"), device="cuda", dtype=torch.bfloat16)
    assert max(x.numel() for x in t.values()) > 2**31
    function = loaded.convolution(p, Options(arch=90), 90)
    function(*(tvm.runtime.from_dlpack(t[role]) for role in p.roles))
    torch.cuda.synchronize()
    slabs = range(0, p.d, SLAB)
    if kind is ConvKind.WGRAD:
        want = sum(theirs(p, t, z).float() for z in slabs).permute(0, 2, 3, 4, 1)
        assert (t[result].float() - want).norm() <= TOLERANCE * want.norm()
        return
    for z in (slabs[0], slabs[-2], slabs[-1]):
        want = theirs(p, t, z).permute(0, 2, 3, 4, 1)[0].float()
        got = t[result][0, z : z + SLAB].float()
        assert (got - want).norm() <= TOLERANCE * want.norm(), z
