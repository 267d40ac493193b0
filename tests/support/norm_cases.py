"""Training batch normalization: a module of one call, and what PyTorch makes of it in float64."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import tvm
from tvm import relax

from relay_wgrad.dtypes import numpy_dtype, wide_of
from relay_wgrad.ops import activations

op = relax.op

ACTIVATIONS = {
    "": lambda z: z,
    "relu": torch.relu,
    "relu6": torch.nn.functional.relu6,
    "leaky_relu": lambda z: torch.nn.functional.leaky_relu(z, ALPHA),
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda z: torch.nn.functional.gelu(z, approximate="tanh"),
    "hardswish": torch.nn.functional.hardswish,
    "elu": lambda z: torch.nn.functional.elu(z, ALPHA),
}
ALPHA = 0.2
"""Of those that have one."""
# Relative norms of what is rounded once or twice to the dtype; sums are wider.
TOLERANCE = {"float64": 1e-11, "float32": 2e-5, "float16": 3e-3, "bfloat16": 2e-2}


@dataclass(frozen=True)
class Case:
    """One call; `statistics`: the loss depends on mean, rstd and running statistics too.

    `groups`: of an image's channels; 0: batch normalization.

    `symbolic`: the first size is known at the run only.
    """

    shape: tuple[int, ...]
    dtype: str = "float64"
    axis: int = 1
    activation: str = ""
    residual: bool = False
    running: bool = False
    unbiased: bool = True
    statistics: bool = False
    symbolic: bool = False
    epsilon: float = 1e-3
    momentum: float = 0.3
    groups: int = 0

    @property
    def wide(self) -> str:
        return wide_of(self.dtype)

    @property
    def names(self) -> list[str]:
        """The operands."""
        more = ["residual"] if self.residual else []
        return ["x", "gamma", "beta", *more, *(["mean0", "var0"] if self.running else [])]

    @property
    def channels(self) -> int:
        return self.shape[self.axis]

    @property
    def alpha(self) -> float:
        return ALPHA if activations.ACTIVATIONS[self.activation].parameter else 0.0

    def sizes(self, name: str) -> tuple[int, ...]:
        whole = name in ("x", "residual") or name == "weight0"
        if name in ("weight1", "weight2") and self.groups:
            return self.shape[0], self.groups
        return self.shape if whole else (self.channels,)

    def values(self, seed: int | None = None) -> dict[str, np.ndarray]:
        """Random operands, and the weights of a sum of the results, rounded to the dtypes."""
        seed = zlib.crc32(repr(self).encode()) if seed is None else seed
        rng = np.random.default_rng(seed)
        names = [*self.names, *(f"weight{i}" for i in range(5 if self.running else 3))]
        values = {}
        for name in names:
            value = rng.standard_normal(self.sizes(name)) + (name in ("gamma", "var0", "x"))
            value = np.abs(value) if name == "var0" else value
            tensor = name in ("x", "residual", "weight0")
            dtype = numpy_dtype(self.dtype if tensor else self.wide)
            values[name] = value.astype(dtype).astype(self.wide)
        return values


def settled(case: Case) -> dict[str, np.ndarray]:
    """Random operands of which no result is rounded to a kink that it is short of.

    There a derivative that is read of the rounded result is another one, as PyTorch's is too.
    """
    first = zlib.crc32(repr(case).encode())
    for seed in range(first, first + 1000):
        values = case.values(seed)
        exact = {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
        y = reference(case, exact)[1][0].numpy()
        rounded = y.astype(numpy_dtype(case.dtype)).astype("float64")
        if not np.any((rounded == 6.0) & (y < 6.0)):
            return values
    raise AssertionError(f"no operands of {case} keep away from the kink")


def module(case: Case, zeros: tuple[str, ...] = ()) -> tvm.IRModule:
    """`main(operands…, weights…) -> (loss, y, mean, rstd, …)`, all in the sums' dtype.

    `zeros`: weights that are no parameters, and whose results the loss does not depend on.
    """
    bb = relax.BlockBuilder()
    values = case.values()
    first: Any = tvm.tirx.Var("n", "int64") if case.symbolic else case.shape[0]

    def sizes(name: str) -> list[Any]:
        given = list(case.sizes(name))
        return [first, *given[1:]] if len(given) > 1 else given

    params = {n: relax.Var(n, relax.TensorType(sizes(n), case.wide)) for n in values}
    params = {n: p for n, p in params.items() if n not in zeros}
    half = case.dtype != case.wide
    with bb.function("main", list(params.values())):
        with bb.dataflow():
            args = []
            for name in case.names:
                tensor = name in ("x", "residual")
                cast = half and tensor
                arg = params[name]
                args.append(bb.emit(op.astype(arg, case.dtype)) if cast else arg)
            attrs = {"axis": case.axis, "epsilon": case.epsilon, "activation": case.activation,
                     "alpha": case.alpha}  # fmt: skip
            if case.groups:
                call = op.nn.group_norm_train(*args, groups=case.groups, **attrs)
            else:
                call = op.nn.batch_norm_train(
                    *args, momentum=case.momentum, unbiased=case.unbiased, **attrs
                )
            made = bb.emit(call)
            results = [bb.emit(relax.TupleGetItem(made, i)) for i in range(len(made.ty.fields))]
            if half:
                results[0] = bb.emit(op.astype(results[0], case.wide))
            loss = None
            for i, result in enumerate(results):
                if f"weight{i}" in params and (i == 0 or case.statistics):
                    term = bb.emit(op.sum(op.multiply(result, params[f"weight{i}"])))
                    loss = term if loss is None else bb.emit(op.add(loss, term))
            outputs = [bb.emit_output(v) for v in (loss, *results)]
        bb.emit_func_output(relax.Tuple(outputs))
    return bb.get()


def reference(case: Case, values: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """(loss, results) as PyTorch has them, of float64 tensors."""
    v = values
    if case.groups:
        return _of_groups(case, v)
    axes = [i for i in range(len(case.shape)) if i != case.axis]
    column = [case.channels if i == case.axis else 1 for i in range(len(case.shape))]

    def lift(vector: Any) -> Any:
        return vector.reshape(column)

    mean = v["x"].mean(axes)
    variance = ((v["x"] - lift(mean)) ** 2).mean(axes)
    rstd = (variance + case.epsilon) ** -0.5
    z = (v["x"] - lift(mean)) * lift(rstd) * lift(v["gamma"]) + lift(v["beta"])
    if case.residual:
        z = z + v["residual"]
    results = [ACTIVATIONS[case.activation](z), mean, rstd]
    if case.running:
        count = v["x"].numel() // case.channels
        factor = count / (count - 1) if case.unbiased else 1.0
        kept, share = 1 - case.momentum, case.momentum
        results.append(kept * v["mean0"] + share * mean)
        results.append(kept * v["var0"] + share * factor * variance)
    used = results if case.statistics else results[:1]
    loss = sum((r * v[f"weight{i}"]).sum() for i, r in enumerate(used))
    return loss, results


def _of_groups(case: Case, v: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """As PyTorch's own `group_norm`, whose statistics are not among its results."""
    x = v["x"].movedim(case.axis, 1)
    z = torch.nn.functional.group_norm(x, case.groups, v["gamma"], v["beta"], case.epsilon)
    z = z.movedim(1, case.axis)
    z = z + v["residual"] if case.residual else z
    rows = x.reshape(x.shape[0], case.groups, -1)
    rstd = (rows.var(2, unbiased=False) + case.epsilon) ** -0.5
    results = [ACTIVATIONS[case.activation](z), rows.mean(2), rstd]
    used = results if case.statistics else results[:1]
    return sum((r * v[f"weight{i}"]).sum() for i, r in enumerate(used)), results


def distance(got: Any, want: Any) -> float:
    got, want = (np.asarray(a, dtype="float64") for a in (got, want))
    return float(np.linalg.norm((got - want).ravel()) / max(np.linalg.norm(want.ravel()), 1e-30))
