"""What the normalizations' generated functions compute: packed functions in PyTorch, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import tvm

from byoc_cudnn.norm import NormCall
from byoc_cudnn.norm.codegen import NORMS
from tests.support.recorder import Recorder

_ACT = {"": lambda z: z, "relu": torch.relu, "relu6": torch.nn.functional.relu6,
        "silu": torch.nn.functional.silu}  # fmt: skip


def recorder() -> Recorder:
    """In the place of `NORMS`."""
    return Recorder(NORMS, packed)


def packed(call: NormCall) -> Callable[..., None]:
    def run(*tensors: Any) -> None:
        count = len(call.operands)
        assert len(tensors) == count + len(call.results), (call, len(tensors))
        given = dict(zip(call.operands, (torch.tensor(t.numpy()) for t in tensors), strict=False))
        if call.within:
            first, wide = call.within
            assert given["x"].shape[-1] == wide
            given["x"] = given["x"][..., first : first + given["gamma"].shape[0]]
        compute = _gated if call.gated else _forward if call.forward else _backward
        made = compute(call, given)
        if call.place:
            made["own"], made["y"] = made["y"], _placed(call, made["y"], given, tensors[count])
        for name, out in zip(call.results, tensors[count:], strict=True):
            value = made[name].numpy().astype(out.dtype).reshape(out.shape)
            tvm.runtime.tensor(np.ascontiguousarray(value)).copyto(out)

    return run


def _placed(call: NormCall, y: Any, v: dict[str, Any], out: Any) -> Any:
    """The joined tensor: what it has so far, else what lies there, with a result at its place."""
    first, wide = call.place
    assert out.shape[-1] == wide
    whole = v["joined"] if call.onto else torch.full(tuple(out.shape), torch.nan)
    whole = whole.clone()
    whole[..., first : first + y.shape[-1]] = y
    return whole


def _forward(call: NormCall, v: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    z = None
    if call.total:
        v["x"] = made["total"] = v["x"] + v["more"]
    for end in ("", *(str(n + 2) for n in range(call.others))):
        x = v[f"x{end}"]
        rows = x.reshape(-1, x.shape[-1])
        mean, variance = rows.mean(0), rows.var(0, unbiased=False)
        rstd = (variance + call.epsilon) ** -0.5
        made |= {f"mean{end}": mean, f"rstd{end}": rstd}
        one = (x - mean) * rstd * v[f"gamma{end}"] + v[f"beta{end}"]
        z = one if z is None else z + one
        if call.running:
            factor = len(rows) / (len(rows) - 1) if call.unbiased else 1.0
            for name, new in (("mean", mean), ("var", variance * factor)):
                old = v[f"running_{name}{end}"]
                made[f"new_running_{name}{end}"] = old + call.momentum * (new - old)
    before = "residual" in v and not call.after
    z = z + v["residual"] if before else z
    made["y"] = _ACT[call.activation](z)
    made["y"] = made["y"] + v["residual"] if call.after else made["y"]
    if call.pooled:
        made["y"], made["index"] = _pooled(call, made["y"])
    if call.bits:
        passes = (z > 0) & (z < 6) if call.activation == "relu6" else z > 0
        made["mask"] = _bits(passes)
    return made


def _pooled(call: NormCall, y: Any) -> tuple[Any, Any]:
    """The maxima of windows, and which tap each is: the first."""
    r, s, down, across, top, left, bottom, right = call.pooled
    padded = torch.nn.functional.pad(y, (0, 0, left, right, top, bottom), value=-torch.inf)
    windows = padded.unfold(1, r, down).unfold(2, s, across).flatten(-2)
    index = torch.tensor(windows.numpy().argmax(-1))
    return windows.gather(-1, index[..., None])[..., 0], index.to(torch.uint8)


def _scattered(call: NormCall, dy: Any, index: Any, shape: Any) -> Any:
    """Each gradient at its window's maximum."""
    _, s, down, across, top, left, bottom, right = call.pooled
    n, h, w, c = shape
    out = torch.zeros((n, h + top + bottom, w + left + right, c))
    for at in np.ndindex(*dy.shape):
        row, column = divmod(int(index[at]), s)
        out[at[0], at[1] * down + row, at[2] * across + column, at[3]] += dy[at]
    return out[:, top : top + h, left : left + w]


def _bits(passes: Any) -> Any:
    return torch.tensor(np.packbits(_padded(passes.numpy()), axis=-1))


def _passes(mask: Any, like: Any) -> Any:
    """What `_bits` was told, 0 or 1 for each element of a tensor."""
    bits = np.unpackbits(mask.numpy()[..., None], axis=-1)[..., :4]
    bits = bits.reshape(*like.shape[:-1], -1)[..., : like.shape[-1]]
    return torch.tensor(bits.astype("float32"))


def _padded(passes: Any, each: int = 4) -> Any:
    """Bits of four channels in the upper half of a byte, as float32 has them in 16 bytes."""
    channels = passes.shape[-1]
    groups = -(-channels // each)
    out = np.zeros((*passes.shape[:-1], groups, 8), bool)
    for c in range(channels):
        out[..., c // each, c % each] = passes[..., c]
    return out


def _backward(call: NormCall, v: dict[str, Any]) -> dict[str, Any]:
    x, channels = v["x"], v["x"].shape[-1]
    for name, (first, wide) in zip(("dy", "dy2"), call.slices, strict=False):
        assert v[name].shape[-1] == wide
        v[name] = v[name][..., first : first + channels]
    dy = v["dy"] + v["dy2"] if call.summed else v["dy"]
    dy = _scattered(call, dy, v["index"], x.shape) if call.pooled else dy
    ends = ("", *(str(n + 2) for n in range(call.others)))
    if "mask" in v:
        g = dy * _passes(v["mask"], x)
    else:
        leaf = (x - v["mean"]) * v["rstd"] * v["gamma"] + v["beta"]
        leaf = v.get("y", leaf).clone().requires_grad_()
        (g,) = torch.autograd.grad(_ACT[call.activation](leaf), leaf, dy)
    made: dict[str, Any] = {"dresidual": g, "total": dy}
    axes = list(range(x.ndim - 1))
    for end in ends:
        xhat = (v[f"x{end}"] - v[f"mean{end}"]) * v[f"rstd{end}"]
        made[f"dbeta{end}"], made[f"dgamma{end}"] = g.sum(axes), (g * xhat).sum(axes)
        inner = g - g.mean(axes) - xhat * (g * xhat).mean(axes)
        made[f"dx{end}"] = inner * v[f"gamma{end}"] * v[f"rstd{end}"]
    made["dx"] = made["dx"] + v.get("skip", 0)
    return made


def _gated(call: NormCall, v: dict[str, Any]) -> dict[str, Any]:
    """Around a gate; sums of images as `norm_gated.h` has them."""
    if call.direction == "squeeze":
        made = _forward(call, v)
        return made | {"squeezed": made["y"].flatten(1, -2).mean(1)}
    z = (v["x"] - v["mean"]) * v["rstd"] * v["gamma"] + v["beta"]
    leaf = z.clone().requires_grad_()
    made_v = _ACT[call.activation](leaf)
    (p,) = torch.autograd.grad(made_v.sum(), leaf)
    made_v = made_v.detach()
    if call.direction == "excite":
        y = made_v * v["gate"] + v.get("residual", 0)
        made = {"y": torch.relu(y) if call.last else y}
        return made | ({"mask": _bits(y > 0)} if call.bits else {})
    over, apart = list(range(1, z.ndim - 1)), v["x"] - v["mean"]
    if call.direction == "gate_sums":
        dy = v["dy"] + v["dy2"] if call.summed else v["dy"]
        dy = dy * _passes(v["mask"], dy) if call.bits else dy
        dp = dy * p
        sums = [one.sum(over) for one in (dp, dp * apart, p, p * apart)]
        return {"dresidual": dy, "dgate": (dy * made_v).sum(over), "sums": torch.stack(sums)}
    gate, lift = (v[n].flatten(1) for n in ("gate", "lift"))
    dbeta, dgamma = (
        (gate * v["sums"][i] + lift * v["sums"][i + 2]).sum(0) * f
        for i, f in ((0, 1), (1, v["rstd"]))
    )
    xhat, m = apart * v["rstd"], z.numel() // z.shape[-1]
    inner = (v["dy"] * v["gate"] + v["lift"]) * p - dbeta / m - xhat * dgamma / m
    return {"dx": v["gamma"] * v["rstd"] * inner, "dgamma": dgamma, "dbeta": dbeta}
