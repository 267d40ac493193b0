"""The PyTorch functions under random compositions of PyTorch's transforms, in float64.

    python -m tests.fuzz.transforms --minutes 60

A case is a function of `relay_wgrad.torch`, a small problem and up to four transforms, the
innermost first: `transforms=grad1.jvp0.vmap2` is vmap, by operand 2, of the jvp by operand 0 of the
gradient by operand 1.  PyTorch's own functions under the same composition say what is right.  Ours
must give that, or NotImplementedError; zeros, another number or another error is a failure.
Compositions that PyTorch's own functions fail in are counted as refused; so are those that PyTorch
traces with symbolic sizes by luck: its own functions fail in them with other sizes.

Where `kernels=numpy` a few lines of NumPy take the kernels' place: transforms are attacked here,
and a kernel takes longer to build than a case to run.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from .harness import REFUSED, Generator, main
from .transform_parts import DENSE, composed, functions, numpy_kernel

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
MOST_DENSE = 2
SHAKE = 1e-15  # of operands: a result that this changes is known no better
TOLERANCE = 1e-9
# What PyTorch's tracers say of symbolic sizes that they cannot follow.
UNTRACED = (
    "is not tracked with proxy", "on tensor with symbolic sizes/strides",
    "found at least two devices, meta and cpu",
)  # fmt: skip


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


# ---- the comparison ------------------------------------------------------------------------------


def check(line: str) -> str | None:
    import torch

    from relay_wgrad.torch import kernels

    facts = _parse(line)
    ours, theirs, operands = functions(facts)
    chain = facts["transforms"]
    torch._dynamo.reset()
    _leave_levels()
    name = "cpu_kernel" if hasattr(kernels, "cpu_kernel") else "_cpu"  # of an older tree
    real = getattr(kernels, name)
    if facts["kernels"] == "numpy":
        setattr(kernels, name, numpy_kernel)
        _forget()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                want = composed(theirs, chain, operands)(*operands)
            except Exception as error:
                return f"{REFUSED}PyTorch's own: {type(error).__name__} in {_kinds(chain)}"
            if type(want) is not torch.Tensor:
                return f"{REFUSED}PyTorch's own: a {type(want).__name__} from {_kinds(chain)}"
            if want.device.type != "cpu":  # a trace that kept a tensor without numbers
                return f"{REFUSED}PyTorch's own: on {want.device.type} from {_kinds(chain)}"
            try:
                got = composed(ours, chain, operands)(*operands)
            except NotImplementedError as error:
                return f"{REFUSED}{_first_line(error)}"
            except RuntimeError as error:
                if any(said in str(error) for said in UNTRACED) and _is_untraced(facts, operands):
                    return f"{REFUSED}PyTorch's own, with other sizes: no trace of {_kinds(chain)}"
                raise
            wrong = _difference(got.detach(), want.detach())
            if wrong and wrong.startswith("off"):  # is the sum of many powers known any better?
                _leave_levels()
                shaken = [x * (1 + SHAKE) if type(x) is torch.Tensor else x for x in operands]
                other = composed(theirs, chain, shaken)(*shaken)
                if (got - want).norm() <= 10 * (other - want).norm():
                    wrong = None
    finally:
        setattr(kernels, name, real)
        if facts["kernels"] == "numpy":
            _forget()
    return wrong


def _is_untraced(facts: dict[str, Any], operands: list[Any]) -> bool:
    """Whether PyTorch's own function, with other sizes, is not traced either.

    Sizes of 1 are no symbols, and sizes that are alike are one: such traces pass by luck.
    """
    _leave_levels()
    more = {"n": 2, "c": facts["c"], "k": 2 * facts["k"], "h": 4, "w": 5, "r": 1, "s": 2}
    _, theirs, others = functions({**facts, **{key: facts[key] + n for key, n in more.items()}})
    try:
        return bool(composed(theirs, facts["transforms"], operands)(*others).device.type != "cpu")
    except Exception:
        return True


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
    from relay_wgrad.torch import cache

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
