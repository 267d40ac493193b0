"""The operators called by themselves: arguments that no function has checked."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

import relay_wgrad.torch  # noqa: F401 - defines the operators

X, W, B = torch.randn(2, 4, 6, 5), torch.randn(6, 2, 3, 3), torch.randn(6)
G = torch.randn(2, 6, 4, 3)
OPERANDS: dict[str, dict[str, Any]] = {
    "conv2d": {"data": X, "weight": W, "bias": B},
    "conv2d_backward_data": {"grad": G, "weight": W, "bias": B[:4], "size": [6, 5]},
    "conv2d_backward_weight": {"grad": G, "data": X, "size": [3, 3]},
}
TAIL: dict[str, Any] = {
    "stride": [1, 1], "padding": [0, 0, 0, 0], "dilation": [1, 1], "groups": 2,
    "benchmark": None, "deterministic": None, "allow_tf32": None,
}  # fmt: skip
BAD_NUMBERS: dict[str, list[Any]] = {
    "stride": [[0, 1], [-1, 1], [1], [1, 1, 1], [2**40, 1], []],
    "dilation": [[0, 1], [1, -2], []],
    "padding": [[-1, 0, 0, 0], [0, 0], [9, 9, 9, 2**40]],
    "groups": [0, -1, 3],
    "size": [[0, 3], [-1, 3], [3], [3, 3, 3], [99, 99], []],
}
BAD_TENSORS: dict[str, Any] = {
    "an axis less": lambda t: t[0], "an axis more": lambda t: t[None], "dtype": torch.Tensor.double,
    "integers": torch.Tensor.long, "device": lambda t: t.to("meta"), "empty": lambda t: t[..., :0],
    "another size": lambda t: t[:, :1] if t.dim() > 1 else t[:1],
    "a number": lambda t: torch.tensor(1.0), "sparse": torch.Tensor.to_sparse,
}  # fmt: skip


def bad(op: str) -> list[tuple[str, dict[str, Any]]]:
    """(what is wrong, arguments) of calls with one bad argument each."""
    good = {**OPERANDS[op], **TAIL}
    numbers = [(k, {**good, k: v}) for k, vs in BAD_NUMBERS.items() for v in vs if k in good]
    tensors = [
        (f"{k}: {name}", {**good, k: spoil(good[k])})
        for k in OPERANDS[op]
        if k != "size"
        for name, spoil in BAD_TENSORS.items()
    ]
    return numbers + tensors


MODES = ("eager", "recorded", "inference", "vmap", "meta", "fake")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", OPERANDS)
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_refused(op: str, mode: str) -> None:
    """Names the operator and what is wrong; whoever calls, and before a kernel is built."""
    name = next(iter(OPERANDS[op]))
    operator, fake = getattr(torch.ops.relay_wgrad, op), FakeTensorMode()
    for what, arguments in bad(op):
        if mode in ("meta", "fake") and ("device" in what or "sparse" in what):
            continue
        kwargs = dict(arguments)
        for key, value in kwargs.items():
            if isinstance(value, torch.Tensor) and mode == "meta":
                kwargs[key] = value.to("meta")
            elif isinstance(value, torch.Tensor) and mode == "fake":
                kwargs[key] = fake.from_tensor(value)
        if mode == "recorded" and kwargs[name].is_floating_point():
            kwargs[name] = kwargs[name].detach().requires_grad_()
        context: Any = {"inference": torch.inference_mode(), "fake": fake}.get(mode, nullcontext())
        call = batched(operator, name) if mode == "vmap" else operator
        with context, pytest.raises((ValueError, TypeError), match=f"^{op}: ") as caught:
            call(**kwargs)
        assert str(caught.value).count(" ") > 2, what


def batched(operator: Any, name: str) -> Any:
    """Over two copies of an operand."""

    def call(**kwargs: Any) -> Any:
        return torch.func.vmap(lambda t: operator(**{**kwargs, name: t}))(
            torch.stack([kwargs[name]] * 2)
        )

    return call


def test_shapes_that_do_not_fit() -> None:
    arguments = {**OPERANDS["conv2d_backward_data"], **TAIL, "grad": G[:, :, :3]}
    words = r"conv2d_backward_data: grad must have shape \(2, 6, 4, 3\) for data.* got \(2, 6, 3, 3"
    with pytest.raises(ValueError, match=words):
        torch.ops.relay_wgrad.conv2d_backward_data(**arguments)
