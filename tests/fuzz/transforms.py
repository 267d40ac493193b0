"""The PyTorch functions under random compositions of PyTorch's transforms, in float64.

    python -m tests.fuzz.transforms --minutes 60

A case is a function of `relay_wgrad.torch`, a small problem and up to four transforms, the
innermost first: `transforms=grad1.jvp0.vmap2` is vmap, by operand 2, of the jvp by operand 0 of the
gradient by operand 1.  PyTorch's own functions under the same composition say what is right.  Ours
must give that, or NotImplementedError; zeros, another number or another error is a failure.
Compositions that PyTorch's own functions fail in are counted as refused.

Where `kernels=numpy` a few lines of NumPy take the kernels' place: transforms are attacked here,
and a kernel takes longer to build than a case to run.
"""

from __future__ import annotations

import math
import random
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from .harness import REFUSED, Generator, main

FUNCTIONS = (
    "convolution", "backward_input", "backward_weight", "transpose", "transpose_backward_input",
    "transpose_backward_weight", "Conv2d", "ConvTranspose2d",
)  # fmt: skip
# name -> weight.  Those that are only ever outermost begin with "=".
TRANSFORMS = {
    "grad": 4, "vjp": 3, "jvp": 5, "jvpall": 3, "jacrev": 2, "jacfwd": 3, "hessian": 3, "vmap": 4,
    "vmapall": 2, "linearize": 2, "checkpoint": 2, "make_fx": 2, "symbolic": 1, "dual": 3,
    "no_grad": 1, "autocast_off": 1, "mode": 1, "half": 1,
    "=double": 3, "=backward": 2, "=functional": 2, "=eager": 0.5, "=aot_eager": 0.7,
}  # fmt: skip
DENSE = ("jacrev", "jacfwd", "hessian")  # results, and batches below them, that multiply
MOST_DENSE = 2
SHAKE = 1e-15  # of operands: a result that this changes is known no better
TOLERANCE = 1e-9


# ---- cases ---------------------------------------------------------------------------------------


def case(seed: int, index: int) -> str:
    rng = random.Random(f"transforms {seed} {index}")
    inner = [name for name in TRANSFORMS if name[0] != "="]
    names = rng.choices(inner, [TRANSFORMS[name] for name in inner], k=rng.choice((1, 2, 2, 3, 3)))
    if rng.random() < 0.35:
        outer = [name for name in TRANSFORMS if name[0] == "="]
        names += rng.choices(outer, [TRANSFORMS[name] for name in outer])
    if sum(name in DENSE for name in names) > MOST_DENSE or names.count("hessian") > 1:
        names = [name for name in names if name not in DENSE]
    chain = ".".join(f"{name.lstrip('=')}{rng.randrange(3)}" for name in names or ["jvp"])
    groups = rng.choice((1, 1, 2))
    stride, dilation = (
        (rng.choice((1, 1, 2)), rng.choice((1, 2))), (rng.choice((1, 1, 2)), rng.choice((1, 1, 2)))
    )  # fmt: skip
    taps = rng.choice((1, 2, 2, 3)), rng.choice((1, 2))
    padding = [rng.choice((0, 0, 1)) for _ in range(2)]
    size = [
        max(dilation[i] * (taps[i] - 1) + 1 - 2 * padding[i], 1) + rng.choice((0, 1, 2))
        for i in (0, 1)
    ]
    facts = {
        "function": rng.choice(FUNCTIONS), "transforms": chain, "n": rng.choice((1, 1, 2)),
        "c": groups * rng.choice((1, 1, 2)), "k": groups * rng.choice((1, 2)), "groups": groups,
        "h": size[0], "w": size[1], "r": taps[0], "s": taps[1], "stride": _text(stride),
        "padding": _text(padding), "dilation": _text(dilation),
        "extra": _text([rng.randrange(s) for s in stride]), "bias": rng.choice((0, 1)),
        "last": rng.choice((0, 0, 1)), "kernels": rng.choice(("numpy",) * 7 + ("real",)),
        "seed": rng.randrange(1000),
    }  # fmt: skip
    return " ".join(f"{key}={value}" for key, value in facts.items())


def _text(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


def _parse(line: str) -> dict[str, Any]:
    facts: dict[str, Any] = dict(item.split("=") for item in line.split())
    for key, value in facts.items():
        numbers = value.split(",")
        if all(number.isdigit() for number in numbers):
            facts[key] = [*map(int, numbers)] if len(numbers) > 1 else int(value)
    return facts


def labels(line: str) -> dict[str, str]:
    facts = _parse(line)
    chain = facts["transforms"].split(".")
    return {
        "function": facts["function"], "kernels": facts["kernels"], "depth": str(len(chain)),
        "innermost": chain[0].rstrip("012"), "outermost": chain[-1].rstrip("012"),
    }  # fmt: skip


# ---- functions -----------------------------------------------------------------------------------


def _functions(f: dict[str, Any]) -> tuple[Any, Any, list[Any]]:
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


def _composed(f: Any, chain: str, operands: list[Any]) -> Any:
    for step in chain.split("."):
        name, i = step[:-1], int(step[-1]) % len(operands)
        if name in DENSE:  # by the operand with the fewest numbers
            i = min(range(len(operands)), key=lambda j: math.prod(operands[j].shape))
        f = _transform(name, f, i)
    return f


# ---- kernels of NumPy ----------------------------------------------------------------------------


def numpy_kernel(problem: Any, *_: Any) -> Any:
    """What `relay_wgrad.torch.kernels._cpu` makes, without compiling anything."""
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


# ---- the comparison ------------------------------------------------------------------------------


def check(line: str) -> str | None:
    import torch

    from relay_wgrad.torch import kernels

    facts = _parse(line)
    ours, theirs, operands = _functions(facts)
    chain = facts["transforms"]
    torch._dynamo.reset()
    _leave_levels()
    real = kernels._cpu
    if facts["kernels"] == "numpy":
        kernels._cpu = numpy_kernel
        _forget()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                want = _composed(theirs, chain, operands)(*operands)
            except Exception as error:
                return f"{REFUSED}PyTorch's own: {type(error).__name__} in {_kinds(chain)}"
            if type(want) is not torch.Tensor:
                return f"{REFUSED}PyTorch's own: a {type(want).__name__} from {_kinds(chain)}"
            try:
                got = _composed(ours, chain, operands)(*operands)
            except NotImplementedError as error:
                return f"{REFUSED}{_first_line(error)}"
            wrong = _difference(got.detach(), want.detach())
            if wrong and got.shape == want.shape:  # is the sum of many powers known any better?
                _leave_levels()
                shaken = [x * (1 + SHAKE) if type(x) is torch.Tensor else x for x in operands]
                other = _composed(theirs, chain, shaken)(*shaken)
                if (got - want).norm() <= 10 * (other - want).norm():
                    wrong = None
    finally:
        kernels._cpu = real
        if facts["kernels"] == "numpy":
            _forget()
    return wrong


def _leave_levels() -> None:
    """Those that an error in PyTorch's own functions left open: all later cases would fail too."""
    import torch
    from torch._functorch import eager_transforms, pyfunctorch
    from torch.autograd import forward_ad

    while torch._C._functorch.peek_interpreter_stack() is not None:
        pyfunctorch.pop_dynamic_layer_stack()
    while forward_ad._current_level >= 0:
        forward_ad.exit_dual_level()
    eager_transforms.JVP_NESTING = 0
    torch._C._set_fwd_grad_enabled(True)
    torch.set_grad_enabled(True)


def _forget() -> None:
    """Kernels that are another's."""
    from relay_wgrad.torch import kernels

    try:
        from relay_wgrad.torch import cache
    except ImportError:  # of an older checkout
        kernels._kernels.clear()  # type: ignore[attr-defined]
        kernels._plans.clear()  # type: ignore[attr-defined]
    else:
        cache.kept.clear()


def _kinds(chain: str) -> str:
    return ".".join(step[:-1] for step in chain.split("."))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _difference(got: Any, want: Any) -> str | None:
    if got.shape != want.shape:
        return f"shape {tuple(got.shape)}, PyTorch's {tuple(want.shape)}"
    if got.dtype != want.dtype:
        return f"dtype {got.dtype}, PyTorch's {want.dtype}"
    scale = float(want.norm())
    error = float((got - want).norm())
    if not error <= TOLERANCE * max(scale, 1e-3):
        zeros = " (zeros)" if scale and not got.any() else ""
        return f"off by {error / scale if scale else error:.1e} of {scale:.3g}{zeros}"
    return None


GENERATOR = Generator(
    "transforms", "relay_wgrad.torch under PyTorch's transforms, against PyTorch's functions",
    case=case, labels=labels, check=check, timeout=120, recycle=150,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
