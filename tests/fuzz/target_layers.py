"""Batch normalization in training mode and max pooling, with gradients, for `tests.fuzz.targets`.

A problem is words of `key=value`; what is compiled is forward and backward pass together, by TVM's
own pipeline or `cpu_pipeline`, and compared with PyTorch in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from relay_wgrad.dtypes import numpy_dtype
from tests.support.pooling_cases import AXES
from tests.support.problems import UNIT, relative_error

DTYPES = ("float64", "float32", "float16")  # stock `Gradient` refuses bfloat16
Rng = np.random.Generator
CHANNELS = 4  # of the data: the gradient by a channel's only weight is rounding alone
FEWEST = 16  # values of a channel: the gradient of a normalization of two is rounding alone


def _choice(rng: Rng, values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


def _line(**facts: Any) -> str:
    return " ".join(f"{key}={value}" for key, value in facts.items())


def facts_of(line: str) -> dict[str, Any]:
    found: dict[str, Any] = dict(item.split("=") for item in line.split(" "))
    return {key: int(v) if v.lstrip("-").isdigit() else v for key, v in found.items()}


# ---- batch normalization ---------------------------------------------------------------------


def batchnorm_case(rng: Rng) -> str:
    n, c, h, w = (int(rng.integers(1, top)) for top in (9, 40, 24, 24))
    return _line(
        dtype=_choice(rng, DTYPES[:2]), layout=_choice(rng, ("NCHW", "NHWC")),
        n=max(n, -(-FEWEST // (h * w))), c=c, h=h, w=w, eps=_choice(rng, ("1e-5", "1e-3", "0.5")),
        momentum=_choice(rng, ("0.1", "0.9", "1")), shift=_choice(rng, (0, 0, 3)),
        cpu=int(rng.integers(2)), seed=int(rng.integers(2**31)),
    )  # fmt: skip


def batchnorm(line: str, target: Any) -> str | None:
    """A convolution, whose weights' gradient needs that of the data, and the layer."""
    from relay_wgrad.frontend import from_torch
    from relay_wgrad.training.step import converted, step_module

    f = facts_of(line)
    torch.manual_seed(f["seed"])
    dtype = getattr(torch, f["dtype"])
    norm = torch.nn.BatchNorm2d(f["c"], float(f["eps"]), float(f["momentum"]))
    module = torch.nn.Sequential(torch.nn.Conv2d(CHANNELS, f["c"], 1), norm)
    # What a bias adds the normalization takes away: its gradient is rounding alone.
    module[0].bias.requires_grad_(False).add_(f["shift"])
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    module = module.to(dtype)
    x, target_of = (torch.randn(f["n"], c, f["h"], f["w"], dtype=dtype) for c in (CHANNELS, f["c"]))
    graph = from_torch(module, (x,), loss="mse")
    step = converted(step_module(graph), f["layout"])
    arrays = [x.numpy(), target_of.numpy(), *graph.params.values()]
    got, partials = _run(step, arrays, target, f["cpu"])

    wide = module.double()
    y = wide(x.double())
    loss = torch.nn.functional.mse_loss(y, target_of.double())
    leaves = [p for p in wide.parameters() if p.requires_grad]
    wanted = torch.autograd.grad(loss, leaves)
    names = [f"{role}'s" for role in ("weight", "scale", "shift")]
    found = dict(zip(graph.outputs, got, strict=True))
    states = [v for name, v in found.items() if name.endswith("_new")]
    pairs = [("loss", found["loss"], loss), ("result", found["logits"], y)]
    pairs += zip(("mean", "variance"), states, (norm.running_mean, norm.running_var), strict=True)
    pairs += zip(names, partials, wanted, strict=True)
    # Sums of thousands of values around a mean of up to 3.
    return _first_wrong(pairs, 3e4 * UNIT[f["dtype"]])


# ---- max pooling -----------------------------------------------------------------------------


def maxpool_case(rng: Rng) -> str:
    facts: dict[str, Any] = {
        "dtype": _choice(rng, DTYPES), "layout": _choice(rng, ("NCHW", "NHWC")),
        "n": int(rng.integers(1, 4)), "c": int(rng.integers(1, 36)), "ceil": int(rng.integers(2)),
    }  # fmt: skip
    # PyTorch's `ceil_mode` leaves out a window that begins behind the image, TVM's does not.
    for size, window in (("h", "rtbud"), ("w", "slqve")):
        k, stride, dilation = (int(rng.integers(1, top)) for top in (5, 4, 3))
        reach = dilation * (k - 1)
        before, after = (int(rng.integers(0, reach + 1)) for _ in range(2))
        facts[size] = n = max(int(rng.integers(1, 40)), dilation, reach + 1 - before - after)
        while _last(n, reach, stride, before, after, facts["ceil"]) >= n and after + facts["ceil"]:
            after, facts["ceil"] = max(after - 1, 0), facts["ceil"] if after else 0
        facts |= dict(zip(window, (k, before, after, stride, dilation), strict=True))
    while any(  # the second axis may have taken `ceil` from the first, never the other way
        _last(facts[n], facts[d] * (facts[k] - 1), facts[s], facts[a], facts[b], facts["ceil"])
        >= facts[n]
        for n, k, a, b, s, d in ("hrtbud", "wslqve")
    ):
        facts["ceil"] = 0
    return _line(
        **facts, few=int(rng.integers(2)), cpu=int(rng.integers(2)), seed=int(rng.integers(2**31))
    )


def _last(n: int, reach: int, stride: int, before: int, after: int, ceil: int) -> int:
    """Where the last window begins."""
    return (n + before + after + ceil * (stride - 1) - reach - 1) // stride * stride - before


def maxpool(line: str, target: Any) -> str | None:
    from tvm import relax

    f = facts_of(line)
    rng = np.random.default_rng(f["seed"])
    window, strides, dilation = ((f[a], f[b]) for a, b in ("rs", "uv", "de"))
    padding = (f["t"], f["l"], f["b"], f["q"])
    order = AXES[f["layout"]]
    shape = (f["n"], f["c"], f["h"], f["w"])
    # Few values: equal maxima, whose first takes the gradient.
    x = rng.integers(-2, 3, shape) if f["few"] else rng.standard_normal(shape)
    data = torch.from_numpy(x.astype(numpy_dtype(f["dtype"])).astype("float64")).requires_grad_()
    more = [f["ceil"] * (s - 1) for s in strides]
    around = (f["l"], f["q"] + more[1], f["t"], f["b"] + more[0])
    y = torch.nn.functional.max_pool2d(
        torch.nn.functional.pad(data, around, value=-np.inf), window, strides, 0, dilation
    )
    cotangent = rng.standard_normal(y.shape).astype(numpy_dtype(f["dtype"]))
    wide = torch.from_numpy(cotangent.astype("float64"))
    (wanted,) = torch.autograd.grad((y * wide).sum(), data)
    values = [
        np.ascontiguousarray(v.transpose(order))
        for v in (x.astype(numpy_dtype(f["dtype"])), cotangent)
    ]

    def build(args: list[Any], emit: Callable[[Any], Any]) -> list[Any]:
        y = emit(
            relax.op.nn.max_pool2d(
                args[0], window, strides, padding, dilation, bool(f["ceil"]), layout=f["layout"]
            )
        )
        return [relax.op.sum(relax.op.multiply(y, args[1])), y]

    got, partials = _run(_differentiated(build, values, f["dtype"]), values, target, f["cpu"])
    pairs = [("result", got[1], y.permute(order)), ("data's", partials[0], wanted.permute(order))]
    return _first_wrong(pairs, 8 * UNIT[f["dtype"]])


def _differentiated(build: Callable[..., list[Any]], values: list[Any], dtype: str) -> Any:
    """The module of a function whose first output is the loss, with its gradient by the first
    value."""
    from tvm import relax

    from relay_wgrad.transform import grad

    args = [relax.Var(f"a{i}", relax.TensorType(v.shape, dtype)) for i, v in enumerate(values)]
    bb = relax.BlockBuilder()
    with bb.function("main", args):
        with bb.dataflow():
            outputs = [bb.emit_output(e) for e in build(args, bb.emit)]
        bb.emit_func_output(relax.Tuple(outputs))
    return grad(bb.get(), wrt=args[:1])


# ---- both ------------------------------------------------------------------------------------


def _run(module: Any, values: Sequence[Any], target: Any, ours: int) -> tuple[list[Any], list[Any]]:
    """(outputs, gradients) of the module's `main_adjoint`."""
    import tvm
    from tvm import relax

    from relay_wgrad.pipeline.cpu import cpu_pipeline

    pipeline = {"relax_pipeline": cpu_pipeline()} if ours else {}
    machine = relax.VirtualMachine(tvm.compile(module, target=target, **pipeline), tvm.cpu())
    found, partials = machine["main_adjoint"](*(tvm.runtime.tensor(v) for v in values))
    return [o.numpy() for o in found], [p.numpy() for p in partials]


def _first_wrong(pairs: list[tuple[str, Any, Any]], limit: float) -> str | None:
    for name, got, want in pairs:
        expected = want.detach().numpy()
        if got.shape != expected.shape:
            return f"{name}: shape {got.shape}, PyTorch's {expected.shape}"
        if not (error := relative_error(got, expected)) <= limit:
            return f"{name}: relative error {error:.3g}, tolerance {limit:.3g}"
    return None


LAYERS = {"batchnorm": (batchnorm_case, batchnorm), "maxpool": (maxpool_case, maxpool)}
