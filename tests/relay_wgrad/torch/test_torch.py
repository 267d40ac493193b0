"""The PyTorch functions against PyTorch's own: results, gradients of both orders, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import relay_wgrad.torch as rt
from relay_wgrad.problem import ConvKind, ConvProblem
from relay_wgrad.torch import cache, cuda_kernels, kernels, ops
from tests.support.torch.cases import Config, error, gradients, quick_kernels, random_config

F = torch.nn.functional
UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    with quick_kernels():
        yield


@pytest.mark.longer_cases("4", "5", "6", "7", "8", "9", "2", "3", "1")
@pytest.mark.parametrize("part", range(10))
def test_random_configurations(part: int) -> None:
    """Ten each, 100 in all: PyTorch's numbers; first and second order by finite differences.

    A transposed convolution has the kernels of the convolution that it transposes.
    """
    rng = np.random.default_rng(part)
    convolutions = [random_config(rng) for _ in range(5)]
    for seed, config in enumerate([*convolutions, *(c.transpose() for c in convolutions)]):
        operands = config.operands(seed)
        got = gradients(config.ours, operands, seed)
        want = gradients(config.theirs, operands, seed)
        assert max(map(error, got, want)) < 1e-12, config
        given = [t for t in operands if t is not None]

        def function(*tensors: Any, config: Config = config) -> torch.Tensor:
            return config.ours(*tensors, *[None] * (3 - len(tensors)))

        assert torch.autograd.gradcheck(function, given, fast_mode=True), config
        assert torch.autograd.gradgradcheck(function, given, fast_mode=True), config


TYPICAL = Config(False, (2, 6, 9, 11), (8, 3, 3, 3), (2, 1), (1, 2), (0, 0), (1, 2), 2, True)
TYPICAL_TRANSPOSED = Config(
    True, (2, 8, 5, 7), (8, 3, 3, 3), (2, 1), (1, 2), (1, 0), (1, 2), 2, True
)
BOTH = pytest.mark.parametrize("config", [TYPICAL, TYPICAL_TRANSPOSED], ids=["conv", "transpose"])


@pytest.mark.longer("finite differences along random ways stay")
@pytest.mark.share(2)
@BOTH
def test_the_whole_jacobian(config: Config) -> None:
    operands = config.operands(0)
    assert torch.autograd.gradcheck(config.ours, operands)
    assert torch.autograd.gradgradcheck(config.ours, operands, fast_mode=True)


@pytest.mark.share(3)  # a dtype each way
@BOTH
@pytest.mark.parametrize("dtype", UNIT, ids=str)
def test_dtypes(config: Config, dtype: torch.dtype) -> None:
    operands = config.operands(1, dtype)
    wide = [t.detach().double().requires_grad_() for t in operands]
    got, want = (gradients(*x, 1) for x in ((config.ours, operands), (config.theirs, wide)))
    assert all(t.dtype == dtype for t in got)
    # The result's rounding and, with a bias, that of the sum before it.
    assert max(map(error, got, want)) < max(3 * UNIT[dtype], 4e-7)


def _reference(config: Config, operands: list[Any], seed: int) -> list[torch.Tensor]:
    dense = [t.detach().clone().contiguous().requires_grad_() for t in operands]
    return gradients(config.theirs, dense, seed)


@pytest.mark.parametrize("c", [1, 3])
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("which", ["input", "weight", "neither"])
def test_memory_orders_are_pytorchs(c: int, k: int, size: int, which: str) -> None:
    """Of one channel, or one pixel, both orders are dense: strides say which is meant."""
    ours, theirs = rt.Conv2d(c, k, 1), torch.nn.Conv2d(c, k, 1)
    x, last = torch.randn(2, c, size, size), torch.channels_last
    if which == "weight":
        ours, theirs = ours.to(memory_format=last), theirs.to(memory_format=last)
    x = x.to(memory_format=last) if which == "input" else x
    assert ours(x).stride() == theirs(x).stride()


@pytest.mark.share(5)
@BOTH
@pytest.mark.parametrize("which", ["input", "weight", "both"])
def test_channels_last_is_kept(config: Config, which: str) -> None:
    x, w, b = (t.detach() for t in config.operands(2))
    if which != "weight":
        x = x.contiguous(memory_format=torch.channels_last)
    if which != "input":
        w = w.contiguous(memory_format=torch.channels_last)
    operands = [t.requires_grad_() for t in (x, w, b)]
    out = config.ours(*operands)
    assert out.is_contiguous(memory_format=torch.channels_last)
    got, want = gradients(config.ours, operands, 2), _reference(config, operands, 2)
    assert max(map(error, got, want)) < 1e-12
    assert got[1].is_contiguous(memory_format=torch.channels_last)


@BOTH
def test_views(config: Config) -> None:
    """Transposed, sliced, expanded, shifted by one element, lazily negated."""
    x, w, _ = (t.detach() for t in config.operands(3))
    n, c, h, width = x.shape
    last = torch.randn(n, h, width, 2 * c, dtype=x.dtype)
    cases = [
        torch.randn(n, c, width, h, dtype=x.dtype).mT,
        torch.randn(n, 2 * c, h, 2 * width, dtype=x.dtype)[:, ::2, :, 1::2],
        torch.randn(1, c, 1, width, dtype=x.dtype).expand(x.shape),
        torch.randn(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape),
        last.permute(0, 3, 1, 2)[:, c:],  # dense nowhere, channels last
        torch._neg_view(torch.randn(x.shape, dtype=x.dtype)),
    ]
    assert cases[-1].is_neg()
    for case in cases:
        operands = [case.requires_grad_(), w.mT.contiguous().mT.requires_grad_(), None]
        got, want = (gradients(f, operands, 3) for f in (config.ours, config.theirs))
        assert max(map(error, got, want)) < 1e-12
    assert config.ours(cases[4], w, None).is_contiguous(memory_format=torch.channels_last)


def test_views_with_one_channel_or_pixel() -> None:
    """Where both memory orders are the same, strides of sizes of 1 may be anything."""
    for shape in ((3, 1, 4, 5), (3, 6, 1, 1), (1, 1, 1, 1)):
        x = torch.randn(shape, dtype=torch.float64)
        x = x.as_strided(
            shape, [s if n > 1 else 77 for n, s in zip(shape, x.stride(), strict=True)]
        )
        w = torch.randn(4, shape[1], 1, 1, dtype=torch.float64)
        for weight in (w, w.contiguous(memory_format=torch.channels_last)):
            got, want = rt.convolution(x, weight, padding=1), F.conv2d(x, weight, padding=1)
            assert error(got, want) < 1e-12


@BOTH
def test_empty_batch(config: Config) -> None:
    x, w, b = config.operands(4)
    x = x.detach()[:0].requires_grad_()
    got, want = (gradients(f, [x, w, b], 4) for f in (config.ours, config.theirs))
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        assert not a.any()


@BOTH
def test_no_batch_axis(config: Config) -> None:
    x, w, b = config.operands(5)
    assert error(config.ours(x[0], w, b), config.theirs(x[0], w, b)) < 1e-12


def _kinds_that_ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    ran: list[str] = []
    run = kernels.run
    monkeypatch.setattr(kernels, "run", lambda kind, *a: ran.append(kind.value) or run(kind, *a))
    return ran


@BOTH
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1), (1, 2)])
def test_only_needed_gradients_are_computed(
    config: Config, wanted: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    operands = [t.detach() for t in config.operands(6)]
    for i in wanted:
        operands[i].requires_grad_()
    ran = _kinds_that_ran(monkeypatch)
    out = config.ours(*operands)
    ran.clear()
    out.sum().backward()
    kinds = ["fprop" if config.transposed else "dgrad", "wgrad"]
    assert ran == [kinds[i] for i in wanted if i < 2]
    assert [t.grad is not None for t in operands] == [i in wanted for i in range(3)]


@BOTH
def test_only_asked_gradients_are_computed(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.autograd.grad` and `backward(inputs=…)` name some of those that require gradients."""
    x, w, b = config.operands(6)
    inner = x * 1
    ran = _kinds_that_ran(monkeypatch)
    out = config.ours(inner, w, b)
    kinds = {"x": "fprop" if config.transposed else "dgrad", "w": "wgrad"}
    given = {"x": x, "w": w, "b": b, "inner": inner}
    for names, want in (
        ("x", "x"), ("w", "w"), ("b", ""), ("x w", "x w"), ("inner", "x"), ("inner w b", "x w"),
    ):  # fmt: skip
        wanted = [given[name] for name in names.split()]
        for ask in (torch.autograd.grad, torch.autograd.backward):
            if ask is torch.autograd.backward and "inner" in names:
                continue
            ran.clear()
            options = {"inputs": wanted, "retain_graph": True}
            found = ask(out.sum(), **options)
            assert ran == [kinds[name] for name in want.split()], (names, ask)
            assert found is None or all(g is not None for g in found)


@BOTH
def test_no_weight_gradients(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, b = config.operands(7)
    ran = _kinds_that_ran(monkeypatch)
    with rt.no_weight_gradients():
        config.ours(x, w, b).sum().backward()
        with rt.no_weight_gradients(False):  # an inner one cannot switch it back on
            config.ours(x, w, b).sum().backward()
    assert "wgrad" not in ran
    assert [t.grad is None for t in (x, w, b)] == [False, True, False]
    config.ours(x, w, b).sum().backward()
    assert w.grad is not None
    with pytest.raises(KeyError), rt.no_weight_gradients():
        raise KeyError
    assert ops._frozen == 0


@BOTH
def test_gradient_functions(config: Config) -> None:
    """The gradients as functions of their own, in the extensions' argument orders."""
    x, w, b = config.operands(8)
    out = config.theirs(x, w, b)
    v = torch.randn_like(out)
    dx, dw, db = torch.autograd.grad(out, (x, w, b), v)
    rest = (config.stride, config.padding, config.dilation, config.groups, False, True, True)
    if config.transposed:
        got = (
            rt.convolution_transpose_backward_input(v, w, *rest),
            rt.convolution_transpose_backward_weight(x, w.shape, v, *rest),
            rt.convolution_transpose_backward_bias(v),
        )
    else:
        got = (
            rt.convolution_backward_input(x.shape, w, v, *rest),
            rt.convolution_backward_weight(x, list(w.shape), v, *rest),
            rt.convolution_backward_bias(v),
        )
    assert max(map(error, got, (dx, dw, db))) < 1e-12
    for function, operands in ((got[0], w), (got[1], x)):  # and they have gradients
        assert torch.autograd.grad(function.sum(), operands)[0].any()


def test_output_padding_beyond_the_stride() -> None:
    """PyTorch allows it below the dilation; there are then rows that meet no tap."""
    for padding in (0, 1, 4):
        config = Config(
            True, (2, 3, 5, 5), (3, 2, 3, 3), (1, 1), (padding, padding), (2, 1), (3, 2), 1, True
        )
        x, w, b = config.operands(9)
        out = config.theirs(x, w, b)
        assert error(config.ours(x, w, b), out) < 1e-12
        v = torch.randn_like(out)
        dx, dw = torch.autograd.grad(out, (x, w), v)
        args = (config.stride, config.padding, config.dilation)
        got = rt.convolution_transpose_backward_input(v, w, *args, output_padding=(2, 1))
        assert error(got, dx) < 1e-12
        assert error(rt.convolution_transpose_backward_weight(x, w.shape, v, *args), dw) < 1e-12


def test_all_of_the_output_is_output_padding() -> None:
    """The result's one column is that of the output padding."""
    x, w = torch.randn(1, 2, 2, 1).double(), torch.randn(2, 1, 2, 2).double().requires_grad_()
    out = F.conv_transpose2d(x, w, None, (1, 2), 1, (0, 1), 1, (2, 1))
    v = torch.randn_like(out)
    got = rt.convolution_transpose_backward_weight(x, w.shape, v, (1, 2), 1, (2, 1))
    assert error(got, torch.autograd.grad(out, w, v)[0]) < 1e-12


def test_kernels_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "kept", cache.Cache())
    built = []
    cpu = kernels.cpu_kernel
    monkeypatch.setattr(kernels, "cpu_kernel", lambda p, *a: built.append(p.repro()) or cpu(p, *a))
    x, w, _ = TYPICAL.operands(0, torch.float32)
    for benchmark in (False, True, None):  # of no meaning on a CPU
        rt.convolution(x, w, None, 2, 1, 1, 2, benchmark).sum().backward()
    assert len(built) == len(set(built)) == 3
    rt.convolution(x, w, None, 1, 1, 1, 2)
    assert len(built) == 4


def test_large_problems_run_in_parallel() -> None:
    """Above the limit under which one thread does all; f32, unaligned by one element."""
    x = torch.randn(2 * 32 * 28 * 28 + 1)[1:].view(2, 32, 28, 28).requires_grad_()
    w = torch.randn(48 * 32 * 9 + 1)[1:].view(48, 32, 3, 3).requires_grad_()
    config = Config(False, tuple(x.shape), tuple(w.shape), (1, 1), (1, 1), (0, 0), (1, 1), 1, False)
    got = gradients(config.ours, [x, w, None], 0)
    want = gradients(
        config.theirs, [t.detach().double().requires_grad_() for t in (x, w)] + [None], 0
    )
    assert max(map(error, got, want)) < 2e-6


@pytest.mark.share(5)
@pytest.mark.parametrize("kind", ConvKind)
@pytest.mark.parametrize("layouts", [("NCHW", "OIHW"), ("NHWC", "OHWI")])
def test_explicit_padding(kind: ConvKind, layouts: tuple[str, str]) -> None:
    """What cuDNN gets where padding is lopsided, here with CPU kernels."""
    data, weight = layouts
    problem = ConvProblem.parse(
        f"{kind.value} n=2 c=3 h=7 w=6 k=4 r=3 s=2 stride=2,1 pad=1,0,2,1"
        f" layout={data}/{weight}/{data} dtype=f64/f64/f64"
    )
    shapes = [problem.shape(role) for role in problem.roles]
    a, b = (torch.randn(shape, dtype=torch.float64) for shape in shapes[:2])
    got, want = (torch.full(shapes[2], torch.nan, dtype=torch.float64) for _ in range(2))
    inner = kernels.cpu_kernel(cuda_kernels._unpadded(problem), False)
    cuda_kernels._padded(problem, inner)(a, b, got)
    kernels.cpu_kernel(problem, False)(a, b, want)
    assert error(got, want) < 1e-12


BAD: dict[str, tuple[type[Exception], str, Any]] = {
    "groups": (ValueError, "groups must divide K, got K=5, groups=2",
               lambda x, w: rt.convolution(x, torch.randn(5, 2, 3, 3), groups=2)),
    "channels": (ValueError, "got 4 and 1 \\* 3",
                 lambda x, w: rt.convolution(x, torch.randn(5, 3, 3, 3))),
    "transposed channels": (ValueError, "weight's axis 0, got 4 and 6",
                            lambda x, w: rt.convolution_transpose(x, w)),
    "dtype": (TypeError, "one dtype, got torch.float32 and torch.float64",
              lambda x, w: rt.convolution(x, w.double())),
    "bias": (ValueError, "bias must have 6 elements, got 4",
             lambda x, w: rt.convolution(x, w, torch.randn(4))),
    "bias axes": (ValueError, "bias must have 1 axes", lambda x, w: rt.convolution(x, w, w)),
    "transposed bias": (ValueError, "convolution_transpose: bias must have 4 elements, got 6",
                        lambda x, w: rt.convolution_transpose(x[:, :3].repeat(1, 2, 1, 1), w,
                                                              torch.randn(6))),
    "stride": (ValueError, "stride must be at least 1, got \\(0, 1\\)",
               lambda x, w: rt.convolution(x, w, None, (0, 1))),
    "padding": (ValueError, "padding must be at least 0, got \\(-1, -1\\)",
                lambda x, w: rt.convolution(x, w, None, 1, -1)),
    "padding's name": (TypeError, "padding must be integers, got 'same'; relay_wgrad.torch.Conv2d",
                       lambda x, w: rt.convolution(x, w, padding="same")),
    "transposed padding's name": (TypeError, "padding must be integers, got 'same'$",
                                  lambda x, w: rt.convolution_transpose(x, w, padding="same")),
    "paddings": (ValueError, "padding must have 2 or 4 values, got \\(1, 1, 1\\)",
                 lambda x, w: rt.convolution(x, w, None, 1, (1, 1, 1))),
    "dilation": (TypeError, "dilation must be integers, got 1.5",
                 lambda x, w: rt.convolution(x, w, dilation=1.5)),
    "group type": (TypeError, "groups must be an integer, got '2'",
                   lambda x, w: rt.convolution(x, w, groups="2")),
    "kernel": (ValueError, "padded height must be at least the dilated kernel's, got 7 and 9",
               lambda x, w: rt.convolution(x, w, dilation=4)),
    "axes": (ValueError, "input must have 4 axes, got shape \\(4, 7\\)",
             lambda x, w: rt.convolution(x[0, :, 0], w)),
    "tensor": (TypeError, "input must be a tensor, got list", lambda x, w: rt.convolution([1], w)),
    "nested": (TypeError, "convolution: weight must be a dense tensor, got a nested one",
               lambda x, w: rt.convolution(x, torch.nested.nested_tensor([*w],
                                                                         layout=torch.jagged))),
    "integers": (TypeError, "dtype must be one of float16",
                 lambda x, w: rt.convolution(x.int(), w.int())),
    "complex": (TypeError, "got torch.complex64",
                lambda x, w: rt.convolution(x.cfloat(), w.cfloat())),
    "device": (ValueError, "one device, got cpu and meta",
               lambda x, w: rt.convolution(x, w.to("meta"))),
    "output padding": (ValueError, "output_padding must be less than stride or dilation, got 2",
                       lambda x, w: rt.convolution_transpose(x, w.transpose(0, 1), None, 2, 0, 2)),
    "input size": (ValueError, "grad_output must have shape \\(2, 6, 6, 6\\)",
                   lambda x, w: rt.convolution_backward_input((2, 4, 8, 8), w,
                                                              torch.randn(2, 6, 5, 5))),
    "size axes": (ValueError, "input_size must have 4 values, got \\(8, 8\\)",
                  lambda x, w: rt.convolution_backward_input((8, 8), w, x)),
    "weight size": (ValueError, "input \\(2, 4, 7, 7\\) and weight_size \\(6, 4, 3, 3\\)",
                    lambda x, w: rt.convolution_backward_weight(x, w.shape, x)),
    "transposed weight size": (ValueError, "grad_output must have shape \\(2, 5, 9, 9\\)",
                               lambda x, w: rt.convolution_transpose_backward_weight(
                                   x, (4, 5, 3, 3), torch.randn(2, 5, 10, 9))),
    "empty": (ValueError, "only the batch may be empty",
              lambda x, w: rt.convolution(x[:, :0], w[:, :0])),
    "no input": (ValueError, "no input gives",
                 lambda x, w: rt.convolution_transpose_backward_input(
                     torch.randn(1, 4, 7, 7), w, dilation=3, output_padding=2)),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_errors(name: str) -> None:
    kind, message, call = BAD[name]
    with pytest.raises(kind, match=message) as caught:
        call(torch.randn(2, 4, 7, 7), torch.randn(6, 4, 3, 3))
    assert str(caught.value).startswith("convolution")


def test_meta_tensors() -> None:
    x, w, b = (t.detach().to("meta") for t in TYPICAL.operands(0))
    assert TYPICAL.ours(x, w, b).shape == TYPICAL.theirs(x, w, b).shape


def test_autocast() -> None:
    x, w, b = TYPICAL.operands(10, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = TYPICAL.ours(x, w, b)
        assert out.dtype == TYPICAL.theirs(x, w, b).dtype == torch.bfloat16
        assert rt.convolution(x.double(), w.double(), groups=2).dtype == torch.float64
    assert all(g.dtype == torch.float32 for g in torch.autograd.grad(out.sum(), (x, w, b)))
