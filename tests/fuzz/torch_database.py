"""PyTorch's own operator database, each operator behind a convolution, under `torch.compile`.

A case is one sample of one operator, called as a function, as a method or in place; its tensors are
scaled by what a convolution gives, so that gradients go through both.

    f64 function 3 linalg.qr

It is right where output and every gradient are those of the backend "aot_eager"; whose graphs ours
gives to PyTorch is counted as refused, with the reason.  What PyTorch's own backend cannot do is
skipped.  Random operators are compared by shapes alone.
"""

from __future__ import annotations

import random
import sys
import warnings
from typing import Any

from .harness import REFUSED, Generator, main

DTYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16",
          "c128": "complex128", "i64": "int64", "bool": "bool"}  # fmt: skip
VARIANTS = ("function", "method", "inplace")
_BOUND = {"f64": 1e-7, "f32": 2e-3, "f16": 3e-2, "bf16": 2e-1}  # of others, as float64
_OURS = "relay_wgrad: PyTorch runs this: "  # how the warning of a graph that is given back begins


def _database() -> dict[str, Any]:
    """By name; `linalg.norm/subgradients_at_zero` is a variant of its."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    named = {"/".join(filter(None, (op.name, op.variant_test_name))): op for op in op_db}
    return {name: op for name, op in named.items() if "empty" not in name}  # anything is right


_names: list[str] = []


def case(seed: int, index: int) -> str:
    _names[:] = _names or sorted(_database())
    rng = random.Random(f"{seed}/{index}")
    # Each operator comes before one comes again.
    name = random.Random(f"{seed}/{index // len(_names)}").sample(_names, len(_names))[
        index % len(_names)
    ]
    dtype = "f64" if rng.random() < 0.6 else rng.choice([*DTYPES])
    variant = "function" if rng.random() < 0.7 else rng.choice(VARIANTS)
    return f"{dtype} {variant} {rng.randrange(100)} {name}"


def labels(line: str) -> dict[str, str]:
    dtype, variant, _, name = line.split(" ", 3)
    return {"dtype": dtype, "variant": variant, "op": name}


class _Sample:
    """One call of an operator behind a convolution, and what it gives by a backend."""

    def __init__(self, line: str) -> None:
        import torch

        dtype, variant, number, name = line.split(" ", 3)
        op = _database()[name]
        self.torch = torch
        kind = getattr(torch, DTYPES[dtype])
        if kind not in op.dtypes:
            kind = next((k for k in (torch.float64, torch.int64) if k in op.dtypes), None)
        self.function = {
            "function": op.op, "method": op.method_variant, "inplace": op.inplace_variant,
        }[variant]  # fmt: skip
        self.why = "no such dtype" if kind is None else ""
        if self.function is None:
            self.why = f"it has no {variant}"
        if self.why:
            return
        torch.manual_seed(int(number))
        samples = list(op.sample_inputs("cpu", kind, requires_grad=False))
        if not samples:
            self.why = "no samples"
            return
        self.sample = samples[int(number) % len(samples)]
        self.bound = _BOUND.get(dtype, _BOUND["f64"])
        wide = torch.float64 if dtype in ("f64", "c128", "i64", "bool") else torch.float32
        self.weight = torch.randn(3, 2, 3, 3, dtype=wide)
        self.x = torch.randn(2, 2, 5, 5, dtype=wide)

    def parts(self, tree: Any) -> list[Any]:
        """The tensors in it, alike in structure for alike calls."""
        torch = self.torch
        leaves = torch.utils._pytree.tree_leaves(tree)
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def call(self, weight: Any, *tensors: Any) -> tuple[Any, Any]:
        """(a loss, the operator's results)."""
        torch, pytree = self.torch, self.torch.utils._pytree
        y = torch.nn.functional.conv2d(self.x, weight)
        factor = 1 + 1e-2 * torch.tanh(y.mean())
        given = iter(tensors)

        def scaled(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            value = next(given)
            is_number = value.is_floating_point() or value.is_complex()
            return value * factor.to(value.dtype) if is_number else value.clone()

        s = self.sample
        args, kwargs = pytree.tree_map(scaled, ([s.input, *s.args], s.kwargs))
        result = self.function(*args, **kwargs)
        loss = y.square().mean()
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
                size = torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf
                loss = loss + torch.nan_to_num(size.to(loss.dtype), 0, 0, 0).square().sum()
        return loss, result

    def run(self, backend: str | None) -> list[Any]:
        """Loss, results, gradients."""
        torch = self.torch
        torch._dynamo.reset()
        s = self.sample
        tensors = [t.detach().clone() for t in self.parts(([s.input, *s.args], s.kwargs))]
        numbers = [t for t in tensors if t.is_floating_point() or t.is_complex()]
        wanted = [t.requires_grad_() for t in (self.weight.clone(), *numbers)]
        function = self.call if backend is None else torch.compile(self.call, backend=backend)
        torch.manual_seed(0)
        loss, result = function(wanted[0], *tensors)
        grads = torch.autograd.grad(loss, wanted, allow_unused=True) if loss.requires_grad else []
        return [loss.detach(), *(p.detach() for p in self.parts(result)), *grads]


def check(line: str) -> str | None:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import relay_wgrad

        relay_wgrad.register()
        torch._dynamo.config.cache_size_limit = 1000
        sample = _Sample(line)
        if sample.why:
            return f"{REFUSED}skipped: {sample.why}"
        try:
            expected = sample.run("aot_eager")
            other = sample.run(None)
        except Exception as error:  # of any kind
            return f"{REFUSED}skipped: PyTorch: {type(error).__name__}"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            made = sample.run("relay_wgrad")
        except Exception as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if len(made) != len(expected):
        return f"{len(made)} tensors for {len(expected)}"
    is_random = any(not _near(a, b, 1e-3) for a, b in zip(expected, other, strict=True))
    for i, (got, want) in enumerate(zip(made, expected, strict=True)):
        if (got is None) != (want is None):
            return f"tensor {i} is {got} for {want}"
        if want is None:
            continue
        if got.shape != want.shape or got.dtype != want.dtype:
            return f"tensor {i} is {got.dtype}{[*got.shape]} for {want.dtype}{[*want.shape]}"
        rounded = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}
        bound = max(sample.bound, _BOUND[rounded.get(want.dtype, "f64")])
        if not is_random and not _near(got, want, bound):
            return f"tensor {i} of {len(made)} is {_short(got)} for {_short(want)}"
    runs = [str(w.message).partition(_OURS)[2] for w in said if _OURS in str(w.message)]
    return f"{REFUSED}PyTorch runs it: {runs[0][:150]}" if runs else None


def _short(value: Any) -> str:
    return " ".join(str(value.flatten()[:4]).split())


def _near(a: Any, b: Any, bound: float) -> bool:
    """In relative norm, where both are finite; infinities and NaN in the same places."""
    if a is None or b is None:
        return a is b
    if a.shape != b.shape:
        return False
    if a.is_quantized or a.layout is not b.layout or str(a.layout) != "torch.strided":
        return True
    if not a.is_floating_point() and not a.is_complex():
        return bool((a == b).all())
    a, b = (v.cdouble() if v.is_complex() else v.double() for v in (a, b))
    finite = a.isfinite() & b.isfinite()
    if not bool((a.isfinite() == b.isfinite()).all()):
        return False
    a, b = (v.where(finite, v.new_zeros(())) for v in (a, b))
    return bool((a - b).norm() <= bound * (b.norm() + 1e-3))


GENERATOR = Generator(
    "torch_database", "PyTorch's operators behind a convolution under torch.compile, against"
    " aot_eager", case=case, labels=labels, check=check, recycle=60,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
