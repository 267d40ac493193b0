"""What `tests.fuzz.transforms` composes: functions beside PyTorch's, PyTorch's transforms, kernels.

A function is a pair, ours and PyTorch's, with operands that fit it; a transform makes of a function
of tensors another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

DENSE = ("jacrev", "jacfwd", "hessian")  # results, and batches below them, that multiply


# ---- functions -----------------------------------------------------------------------------------


def functions(f: dict[str, Any]) -> tuple[Any, Any, list[Any]]:
    """(ours, PyTorch's, operands)."""
    import torch

    import relay_wgrad.torch as rt

    F = torch.nn.functional
    stride, padding, dilation, groups = f["stride"], f["padding"], f["dilation"], f["groups"]
    extra = f["extra"]
    data, weight = (f["n"], f["c"], f["h"], f["w"]), (f["k"], f["c"] // groups, f["r"], f["s"])
    reach = [d * (t - 1) + 1 for d, t in zip(dilation, weight[2:], strict=True)]
    pixels = [
        (size + 2 * p - d) // s + 1
        for size, p, d, s in zip(data[2:], padding, reach, stride, strict=True)
    ]
    grad = (f["n"], f["k"], *pixels)
    wide = [
        (n - 1) * s - 2 * p + d + e
        for n, s, p, d, e in zip(pixels, stride, padding, reach, extra, strict=True)
    ]
    if min(wide) < 1:  # the transposed convolution would make nothing
        padding, wide = [0, 0], [a + 2 * p for a, p in zip(wide, padding, strict=True)]
        pixels = [(size - d) // s + 1 for size, d, s in zip(data[2:], reach, stride, strict=True)]
        if min(pixels) < 1:
            data = (*data[:2], *(n + 2 * p for n, p in zip(data[2:], f["padding"], strict=True)))
            pixels = [*grad[2:]]
        grad = (f["n"], f["k"], *pixels)
        wide = [
            (n - 1) * s + d + e for n, s, d, e in zip(pixels, stride, reach, extra, strict=True)
        ]
    large = (f["n"], f["c"], *wide)
    four = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    tail = (stride, padding, dilation, groups)
    grads: Any = torch.nn.grad
    module = {**four, "bias": bool(f["bias"]), "dtype": torch.float64}

    def call(made: Any) -> Any:
        names = ("weight", "bias")
        return lambda x, *p: torch.func.functional_call(
            made, dict(zip(names, p, strict=False)), (x,)
        )

    sizes = {
        "Conv2d": (f["c"], f["k"], weight[2:]), "ConvTranspose2d": (f["k"], f["c"], weight[2:]),
    }  # fmt: skip
    name = f["function"]
    bias = [(f["c"],) if "ranspose" in name else (f["k"],)] if f["bias"] else []
    rows: dict[str, tuple[Any, Any, list[Any]]] = {
        "convolution": (
            lambda x, w, b=None: rt.convolution(x, w, b, *tail),
            lambda x, w, b=None: F.conv2d(x, w, b, *tail), [data, weight, *bias],
        ),
        "backward_input": (
            lambda w, g: rt.convolution_backward_input(data, w, g, *tail),
            lambda w, g: grads.conv2d_input(data, w, g, *tail), [weight, grad],
        ),
        "backward_weight": (
            lambda x, g: rt.convolution_backward_weight(x, weight, g, *tail),
            lambda x, g: grads.conv2d_weight(x, weight, g, *tail), [data, grad],
        ),
        "transpose": (
            lambda x, w, b=None: rt.convolution_transpose(
                x, w, b, stride, padding, extra, dilation, groups
            ),
            lambda x, w, b=None: F.conv_transpose2d(
                x, w, b, stride, padding, extra, groups, dilation
            ), [grad, weight, *bias],
        ),
        "transpose_backward_input": (
            lambda g, w: rt.convolution_transpose_backward_input(g, w, *tail),
            lambda g, w: F.conv2d(g, w, None, *tail), [large, weight],
        ),
        "transpose_backward_weight": (
            lambda x, g: rt.convolution_transpose_backward_weight(x, weight, g, *tail),
            lambda x, g: grads.conv2d_weight(g, weight, x, *tail), [grad, large],
        ),
    }  # fmt: skip
    if name in sizes:
        if name == "ConvTranspose2d":
            module["output_padding"] = extra
        made = [getattr(place, name)(*sizes[name], **module) for place in (rt, torch.nn)]
        shapes = [grad if name == "ConvTranspose2d" else data, weight, *bias]
        rows[name] = (call(made[0]), call(made[1]), shapes)
    ours, theirs, shapes = rows[name]
    torch.manual_seed(f["seed"])
    operands = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    if f["last"]:
        operands = [
            t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t for t in operands
        ]
    return ours, theirs, operands


# ---- transforms ----------------------------------------------------------------------------------
#
# Each makes of a function of the operands, whose result is a tensor, another one.


def _scalar(f: Any) -> Any:
    return lambda *a: f(*a).sin().sum()


def _pair(f: Any) -> Any:
    """Two numbers: Jacobians of all would multiply."""
    import torch

    def call(*a: Any) -> Any:
        y = f(*a).flatten()
        return torch.stack([y.sin().sum(), y.square().sum()])

    return call


def _with(a: Sequence[Any], i: int, x: Any) -> list[Any]:
    return [*a[:i], x, *a[i + 1 :]]


def _at(f: Any, a: Sequence[Any], i: int) -> Any:
    """The function of operand i alone."""
    return lambda x: f(*_with(a, i, x))


def _transform(name: str, f: Any, i: int) -> Any:
    import torch
    from torch import func
    from torch.autograd import forward_ad
    from torch.autograd.functional import hessian, jacobian
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.checkpoint import checkpoint

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, a: Any = (), kwargs: Any = None) -> Any:
            return f(*a, **(kwargs or {}))

    def dual(*a: Any) -> Any:
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(t, t.cos()) if j >= i else t for j, t in enumerate(a)]
            tangent = forward_ad.unpack_dual(f(*duals)).tangent
            return torch.zeros(1, dtype=torch.float64) if tangent is None else tangent

    def within(context: Any) -> Any:
        def call(*a: Any) -> Any:
            with context():
                return f(*a)

        return call

    def double(*a: Any) -> Any:
        x = a[i].detach().requires_grad_()
        # PyTorch refuses a derivative of what does not depend on x at all.
        value = _scalar(f)(*_with(a, i, x)) + x.pow(3).sum()
        (first,) = torch.autograd.grad(value, x, create_graph=True)
        return torch.autograd.grad(first.sin().sum() + (x * x).sum(), x)[0]

    def backward(*a: Any) -> Any:
        leaves = [t.detach().requires_grad_() for t in a]
        (_scalar(f)(*leaves) + sum(t.square().sum() for t in leaves)).backward()
        return leaves[i].grad

    def functional(*a: Any) -> Any:
        if i == 0:
            return jacobian(_at(_pair(f), a, 0), a[0], vectorize=True, strategy="forward-mode")
        if i == 1:
            return jacobian(_at(_pair(f), a, 1), a[1], vectorize=True)
        strategy = "forward-mode"
        one = _at(_scalar(f), a, 1)
        return hessian(one, a[1], vectorize=True, outer_jacobian_strategy=strategy)

    rows: dict[str, Callable[..., Any]] = {
        "grad": lambda *a: func.grad(_at(_scalar(f), a, i))(a[i]),
        "vjp": lambda *a: (lambda y, pull: pull(y.cos())[0])(*func.vjp(_at(f, a, i), a[i])),
        "jvp": lambda *a: func.jvp(_at(f, a, i), (a[i],), (a[i].cos(),))[1],
        "jvpall": lambda *a: func.jvp(f, a, tuple(t.cos() for t in a))[1],
        "jacrev": lambda *a: func.jacrev(_at(_pair(f), a, i))(a[i]),
        "jacfwd": lambda *a: func.jacfwd(_at(_pair(f), a, i))(a[i]),
        "hessian": lambda *a: func.hessian(_at(_scalar(f), a, i))(a[i]),
        "vmap": lambda *a: func.vmap(_at(f, a, i), -1)(torch.stack([a[i], a[i].sin()], -1)),
        "vmapall": lambda *a: func.vmap(f)(*(torch.stack([t, t.sin()]) for t in a)),
        "linearize": lambda *a: func.linearize(_at(f, a, i), a[i])[1](a[i].cos()),
        "checkpoint": lambda *a: checkpoint(f, *a, use_reentrant=False),
        "make_fx": lambda *a: make_fx(f)(*a)(*a),
        "symbolic": lambda *a: make_fx(f, tracing_mode="symbolic")(*a)(*a),
        "dual": dual,
        # The function is linear in what it is halved in, so that nothing is a multiple of ours.
        "half": lambda *a: f(*_with(a, i, 0.5 * a[i])),
        "no_grad": within(torch.no_grad),
        "autocast_off": within(lambda: torch.autocast("cpu", enabled=False)),
        "mode": within(Mode),
        "double": double, "backward": backward, "functional": functional,
        "eager": lambda *a: torch.compile(f, backend="eager")(*a),
        "aot_eager": lambda *a: torch.compile(f, backend="aot_eager")(*a),
    }  # fmt: skip
    return rows[name]


def composed(f: Any, chain: str, operands: list[Any]) -> Any:
    for step in chain.split("."):
        name, i = step[:-1], int(step[-1]) % len(operands)
        if name in DENSE:  # by the operand with the fewest numbers
            i = min(range(len(operands)), key=lambda j: math.prod(operands[j].shape))
        f = _transform(name, f, i)
    return f


# ---- kernels of NumPy ----------------------------------------------------------------------------


def numpy_kernel(problem: Any, *_: Any) -> Any:
    """What `relay_wgrad.torch.kernels.cpu_kernel` makes, without compiling anything."""
    import numpy as np

    (sh, sw), (dh, dw), groups = problem.strides, problem.dilation, problem.groups
    top, left, bottom, right = problem.padding

    def run(*tensors: Any) -> None:
        arrays = {}
        for role, tensor in zip(problem.roles, tensors, strict=True):
            letters = "OIHW" if role == "weight" else "NCHW"
            order = [problem.layout(role).index(letter) for letter in letters]
            arrays[role] = tensor.detach().numpy().transpose(order)
        x, w, y = arrays["data"], arrays["weight"], arrays["grad"]
        n, _, h, width = x.shape
        p, q = y.shape[2:]
        padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
        if problem.roles[2] == "data":
            padded[:] = 0
        split = padded.reshape(n, groups, -1, *padded.shape[2:])
        v = y.reshape(n, groups, -1, p, q).copy()
        if problem.roles[2] == "grad":
            v[:] = 0
        for r in range(w.shape[2]):
            for s in range(w.shape[3]):
                rows = slice(r * dh, r * dh + (p - 1) * sh + 1, sh)
                part = split[..., rows, s * dw : s * dw + (q - 1) * sw + 1 : sw]
                tap = w[:, :, r, s].reshape(groups, -1, w.shape[1])
                if problem.roles[2] == "grad":
                    v += np.einsum("ngcpq,gkc->ngkpq", part, tap)
                elif problem.roles[2] == "data":
                    part += np.einsum("ngkpq,gkc->ngcpq", v, tap)
                else:
                    w[:, :, r, s] = np.einsum("ngkpq,ngcpq->gkc", v, part).reshape(-1, w.shape[1])
        if problem.roles[2] == "grad":
            y[:] = v.reshape(y.shape)
        elif problem.roles[2] == "data":
            x[:] = padded[:, :, top : top + h, left : left + width]

    return run
