"""Gradients of activations and selections where they have ties and kinks, against autograd.

    python -m tests.fuzz.ties --minutes 60

A case is an expression of two parameters x and y, such as `add(x,relu(max2(x,neg(y))))`, whose
values are mostly on kinks: integers and halves with many zeros of both signs and many equal pairs;
for single ops infinities and NaN too.  It becomes a training graph by `from_torch`, or a Relax
function by `transform.grad` or stock `Gradient` under `register()`, compiled by our CPU pipeline or
by the stock one.  Selections come first, since they are exact in every dtype; what rounds is the
last op only, so that both sides choose the same branches.

`--tree DIR` with an old checkout finds what was wrong there: `--only op=relu,special=0`.
"""

from __future__ import annotations

import contextlib
import random
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.fuzz.harness import REFUSED, Generator, main

SHAPE = (3, 17)  # a row is longer than a vector, and has a rest
VALUES = (-6.0, -3.0, -2.0, -1.0, -0.5, -0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 2.0, 3.0, 6.0)
SPECIAL = (float("inf"), float("-inf"), float("nan"))
TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3}
LOOSE = {"hardsigmoid": 1e-7}  # PyTorch's float64 kernel has a float32 sixth as its slope


@dataclass(frozen=True)
class Op:
    """One op: how many operands, what it is in PyTorch and in Relax (None: not there)."""

    count: int
    torch: Callable[..., Any]
    relax: Callable[..., Any] | None = None
    exact: bool = True
    nan: bool = True
    """Whether PyTorch's own kernels agree on the gradient for NaN (vectors and rests do not in
    all), and ours have its forward value."""


def operations() -> dict[str, Op]:
    import numpy as np
    import torch
    import torch.nn.functional as F
    from tvm import relax

    op = relax.op

    def number(v: float, x: Any) -> Any:
        return relax.const(np.asarray(v, str(x.ty.dtype)), str(x.ty.dtype))

    def scalar(name: str, v: float) -> Callable[[Any], Any]:
        return lambda x: getattr(op, name)(x, number(v, x))

    def clip(x: Any) -> Any:
        return op.clip(x, relax.prim_value(-1.0), relax.prim_value(1.0))

    def slope(x: Any) -> Any:
        return relax.const(np.asarray([0.25], str(x.ty.dtype)), str(x.ty.dtype))

    def pooled(x: Any) -> Any:
        return F.max_pool2d(x.reshape(1, 1, *SHAPE), 3, 1, 1).reshape(SHAPE)

    def pooled_relax(x: Any) -> Any:
        return op.reshape(
            op.nn.max_pool2d(op.reshape(x, (1, 1, *SHAPE)), (3, 3), (1, 1), (1, 1)), SHAPE
        )

    linear = {
        "relu": Op(1, F.relu, op.nn.relu),
        "abs": Op(1, torch.abs, op.abs),
        "neg": Op(1, torch.neg, op.negative),
        "clip": Op(1, lambda x: torch.clamp(x, -1.0, 1.0), clip),
        "leaky": Op(1, lambda x: F.leaky_relu(x, 0.25), lambda x: op.nn.leakyrelu(x, 0.25)),
        "prelu": Op(1, lambda x: F.prelu(x, torch.full((1,), 0.25, dtype=x.dtype)),
                    lambda x: op.nn.prelu(x, slope(x), 0)),
        "sign": Op(1, torch.sign, op.sign, nan=False),
        "floor": Op(1, torch.floor, op.floor),
        "ceil": Op(1, torch.ceil, op.ceil),
        "relu6": Op(1, F.relu6, nan=False),
        "hardtanh": Op(1, F.hardtanh, nan=False),
        "lowest": Op(1, lambda x: torch.clamp(x, min=-1.0)),
        "highest": Op(1, lambda x: torch.clamp(x, max=1.0)),
        "threshold": Op(1, lambda x: F.threshold(x, 1.0, -2.0)),
        "softshrink": Op(1, lambda x: F.softshrink(x, 1.0), nan=False),
        "hardshrink": Op(1, lambda x: F.hardshrink(x, 1.0), nan=False),
        "rrelu": Op(1, lambda x: F.rrelu(x, 0.25, 0.75, training=False)),
        "add": Op(2, torch.add, op.add),
        "sub": Op(2, torch.sub, op.subtract),
        "max2": Op(2, torch.maximum, op.maximum),
        "min2": Op(2, torch.minimum, op.minimum),
        "other": Op(2, torch.max),
        "fmax": Op(2, torch.fmax),
        "fmin": Op(2, torch.fmin),
        "above": Op(2, lambda x, y: torch.where(x > y, x, y),
                    lambda x, y: op.where(op.greater(x, y), x, y)),
        "masked": Op(2, lambda x, y: x.masked_fill(y <= 0, 1.0),
                     lambda x, y: op.where(op.less_equal(y, number(0, y)), number(1, x), x)),
        "between": Op(2, lambda x, y: torch.clamp(x, min=y), nan=False),
        "amax": Op(1, lambda x: x.amax(1, keepdim=True).expand(*SHAPE),
                   lambda x: op.broadcast_to(op.max(x, 1, keepdims=True), SHAPE)),
        "amin": Op(1, lambda x: x.amin(0, keepdim=True).expand(*SHAPE),
                   lambda x: op.broadcast_to(op.min(x, 0, keepdims=True), SHAPE)),
        "maxdim": Op(1, lambda x: x.max(1, keepdim=True).values.expand(*SHAPE), nan=False),
        "mindim": Op(1, lambda x: x.min(0).values.expand(*SHAPE), nan=False),
        "maxall": Op(1, lambda x: x.max().expand(*SHAPE), nan=False),
        "pool": Op(1, pooled, pooled_relax),
    }  # fmt: skip
    rounding = {
        "hardsigmoid": Op(1, F.hardsigmoid),
        "hardswish": Op(1, F.hardswish, nan=False),
        "elu": Op(1, lambda x: F.elu(x, 0.5), nan=False),
        "celu": Op(1, lambda x: F.celu(x, 0.5), nan=False),
        "selu": Op(1, F.selu, op.nn.selu, nan=False),
        "softplus": Op(1, lambda x: F.softplus(x, 2.0, 6.0),
                       lambda x: op.nn.softplus(x, 2.0, 6.0)),
        "logsigmoid": Op(1, F.logsigmoid),
        "softsign": Op(1, F.softsign),
        "tanhshrink": Op(1, F.tanhshrink),
        "mish": Op(1, F.mish),
        "silu": Op(1, F.silu, op.nn.silu),
        "gelu": Op(1, F.gelu, op.nn.gelu),
        "gelutanh": Op(1, lambda x: F.gelu(x, approximate="tanh"), op.nn.gelu_tanh, nan=False),
        "sigmoid": Op(1, torch.sigmoid, op.sigmoid),
        "tanh": Op(1, torch.tanh, op.tanh),
        "exp": Op(1, torch.exp, op.exp),
        "sqrt": Op(1, torch.sqrt, op.sqrt),
        "rsqrt": Op(1, torch.rsqrt, op.rsqrt),
        "square": Op(1, torch.square, op.square),
        "pow0": Op(1, lambda x: x**0, scalar("power", 0.0)),
        "pow2": Op(1, lambda x: x**2, scalar("power", 2.0)),
        "mul": Op(2, torch.mul, op.multiply),
    }  # fmt: skip
    named = {name: Op(o.count, o.torch, o.relax, False, o.nan) for name, o in rounding.items()}
    return {**linear, **named}


_LINEAR = """
    relu abs neg clip leaky prelu sign floor ceil relu6 hardtanh lowest highest threshold
    softshrink hardshrink rrelu add sub max2 min2 other fmax fmin above masked between amax amin
    maxdim mindim maxall pool"""
_ROUNDING = """
    hardsigmoid hardswish elu celu selu softplus logsigmoid softsign tanhshrink mish silu gelu
    gelutanh sigmoid tanh exp sqrt rsqrt square pow0 pow2 mul"""
_BINARY = "add sub max2 min2 other fmax fmin above masked between mul"
_ONLY_TORCH = """
    relu6 hardtanh lowest highest threshold softshrink hardshrink rrelu other fmax fmin between
    maxdim mindim maxall hardsigmoid hardswish elu celu logsigmoid softsign tanhshrink mish"""
LINEAR, ROUNDING = _LINEAR.split(), _ROUNDING.split()
BINARY, ONLY_TORCH = frozenset(_BINARY.split()), frozenset(_ONLY_TORCH.split())
FRONTS = ("torch", "grad", "stock")
PIPELINES = ("cpu", "upstream")


def case(seed: int, index: int) -> str:
    rng = random.Random(f"{seed} {index}")
    front = rng.choice(FRONTS)
    dtypes = ("float64", "float64", "float32") + (() if front == "torch" else ("float16",))
    dtype = rng.choice(dtypes)
    pipeline = rng.choice(("cpu", "cpu", "upstream"))
    linear = [o for o in LINEAR if front == "torch" or o not in ONLY_TORCH]
    last = [o for o in ROUNDING if front == "torch" or o not in ONLY_TORCH]

    def tree(depth: int) -> str:
        if depth == 0:
            return rng.choice("xy")
        op = rng.choice(linear)
        first = tree(depth - 1)
        if op not in BINARY:
            return f"{op}({first})"
        second = first if rng.random() < 0.2 else tree(rng.randrange(depth))
        return f"{op}({first},{second})"

    kind = rng.choice(("single", "special", "chain", "residual"))
    if kind in ("single", "special"):
        op = rng.choice([*linear, *last])
        text = f"{op}(x,y)" if op in BINARY else f"{op}(x)"
    else:
        text = tree(rng.randint(1, 4))
        if kind == "residual":
            text = f"relu(add(x,{text}))"
        if dtype != "float16" and rng.random() < 0.3:
            op = rng.choice([o for o in last if o not in ("sqrt", "rsqrt", "mul")])
            text = f"{op}({text})"
    return (
        f"front={front} dtype={dtype} pipeline={pipeline} special={int(kind == 'special')}"
        f" seed={rng.randrange(10**6)} expr={text}"
    )


def fields(line: str) -> dict[str, str]:
    return dict(item.split("=", 1) for item in line.split())


def labels(line: str) -> dict[str, str]:
    found = fields(line)
    return {
        "front": found["front"],
        "dtype": found["dtype"],
        "pipeline": found["pipeline"],
        "special": found["special"],
        "op": re.split(r"\W", found["expr"])[0],
    }


def evaluate(text: str, leaves: dict[str, Any], apply: Callable[[str, list[Any]], Any]) -> Any:
    """The value of an expression, `apply` giving an op's."""
    tokens = iter(re.findall(r"\w+|[(),]", text))

    def parse(token: str) -> tuple[Any, str]:
        following = next(tokens, "")
        if following != "(":
            return leaves[token], following
        args = []
        while following != ")":
            value, following = parse(next(tokens))
            args.append(value)
        return apply(token, args), next(tokens, "")

    return parse(next(tokens))[0]


def values(line: str) -> tuple[Any, Any, Any]:
    """(x, y, the cotangent) of a case."""
    import numpy as np

    found = fields(line)
    rng = np.random.default_rng(int(found["seed"]))
    pool = np.array(VALUES + (SPECIAL if found["special"] == "1" else ()))
    x = rng.choice(pool, SHAPE)
    y = np.where(rng.random(SHAPE) < 0.4, x, rng.choice(pool, SHAPE))
    weight = rng.choice(np.array([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0]), SHAPE)
    return tuple(v.astype(found["dtype"]) for v in (x, y, weight))  # type: ignore[return-value]


def reference(line: str) -> tuple[Any, list[Any]]:
    """(loss, gradients by x and y) of autograd."""
    import torch

    found, ops = fields(line), operations()
    x, y, weight = (torch.tensor(v) for v in values(line))
    x.requires_grad_(), y.requires_grad_()
    out = evaluate(found["expr"], {"x": x, "y": y}, lambda name, args: ops[name].torch(*args))
    loss = (out * weight).sum()
    grads = (
        torch.autograd.grad(out, (x, y), weight, allow_unused=True)
        if out.requires_grad
        else (None, None)
    )
    filled = [torch.zeros_like(x) if g is None else g for g in grads]
    return loss.detach().numpy(), [g.numpy() for g in filled]


def by_torch(line: str) -> tuple[Any, list[str], list[Any]]:
    """(module with the gradient, by what, inputs) of a PyTorch module with parameters x, y."""
    import torch

    from relay_wgrad.frontend import from_torch

    found, ops = fields(line), operations()
    x, y, weight = values(line)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x, self.y = (torch.nn.Parameter(torch.tensor(v)) for v in (x, y))

        def forward(self, weight: Any) -> Any:
            out = evaluate(
                found["expr"], {"x": self.x, "y": self.y},
                lambda name, args: ops[name].torch(*args),
            )  # fmt: skip
            return (out * weight).sum()

    graph = from_torch(Net(), (torch.tensor(weight),), loss="own")
    given = {"weight": weight, "x": x, "y": y}
    used = [p.name for p in graph.main.params]
    wrt = [name for name in ("x", "y") if name in used]
    return graph.gradient(wrt), wrt, [given[name] for name in used]


def by_relax(line: str) -> tuple[Any, list[str], list[Any]]:
    """The same of a Relax function."""
    from tvm import relax

    from relay_wgrad.transform import grad

    found, ops = fields(line), operations()
    given = values(line)
    params = [relax.Var(n, relax.TensorType(SHAPE, found["dtype"])) for n in ("x", "y", "weight")]
    builder = relax.BlockBuilder()

    def apply(name: str, args: list[Any]) -> Any:
        build = ops[name].relax
        assert build is not None, name
        return builder.emit(build(*args))

    with builder.function("main", params):
        with builder.dataflow():
            out = evaluate(found["expr"], {"x": params[0], "y": params[1]}, apply)
            # A cotangent of the dtype's own: a sum of half precision is another matter.
            loss = builder.emit_output(relax.op.sum(relax.op.multiply(out, params[2])))
        builder.emit_func_output(loss)
    module = builder.get()
    wrt = [n for n in ("x", "y") if re.search(rf"\b{n}\b", found["expr"])]
    if found["front"] == "grad":
        return grad(module, wrt=wrt), wrt, list(given)
    by = [p for p in module["main"].params if p.name in wrt]
    return relax.transform.Gradient("main", require_grads=by)(module), wrt, list(given)


@contextlib.contextmanager
def registered() -> Iterator[None]:
    import relay_wgrad

    before = relay_wgrad.is_registered()
    relay_wgrad.register()
    try:
        yield
    finally:
        if not before:
            relay_wgrad.unregister()


def check(line: str) -> str | None:
    """Compiled gradients against autograd's, element by element where there is NaN."""
    import numpy as np
    import tvm
    from tvm import relax

    import legalize.cpu
    from relay_wgrad.transform.cpu_pipeline import cpu_pipeline

    found, ops = fields(line), operations()
    special = found["special"] == "1"
    with registered(), np.errstate(all="ignore"):
        try:
            module, wrt, inputs = (by_torch if found["front"] == "torch" else by_relax)(line)
        except (ValueError, tvm.error.InternalError) as error:
            # What has no rule is refused in our words, or by the stock pass in its own.
            reason = str(error).strip().splitlines()[-1]
            known = re.search("not supported|no gradient|has not been registered for", reason)
            return f"{REFUSED}{reason}" if known else reason
        target = legalize.cpu.host_target()
        pipeline = cpu_pipeline() if found["pipeline"] == "cpu" else "default"
        executable = tvm.compile(module, target=target, relax_pipeline=pipeline)
        machine = relax.VirtualMachine(executable, tvm.cpu())
        result, gradients = machine["main_adjoint"](*[tvm.runtime.tensor(v) for v in inputs])
        loss = (result if hasattr(result, "numpy") else result[0]).numpy()
        want_loss, want = reference(line)
        got = {name: g.numpy() for name, g in zip(wrt, gradients, strict=True)}
        if not special:
            scale = max(1.0, float(np.abs(want_loss)))
            limit = TOLERANCE[found["dtype"]] * (50 if found["dtype"] == "float16" else 1)
            near = abs(float(loss) - float(want_loss)) <= limit * scale * 10
            if not (near or (np.isnan(loss) and np.isnan(want_loss)) or loss == want_loss):
                return f"loss {loss} for {want_loss}"
        name = re.split(r"\W", found["expr"])[0]
        for leaf, right in zip(("x", "y"), want, strict=True):
            mine = got.get(leaf, np.zeros_like(right))
            keep = np.ones(right.shape, bool)
            if special:
                x, y, _ = values(line)
                seen = np.isnan(x) | (np.isnan(y) if name in BINARY else False)
                # What upstream's kernels make of NaN before it comes to a gradient is theirs.
                kept = ops[name].nan and found["pipeline"] == "cpu"
                keep = ~np.isnan(right) & (~seen | kept)
                if not kept and name in ("amax", "amin", "maxdim", "mindim", "maxall", "pool"):
                    continue
            one, other = mine[keep].astype("float64"), right[keep].astype("float64")
            finite = np.isfinite(other)
            same = np.array_equal(one[~finite], other[~finite], equal_nan=True)
            distance = float(np.linalg.norm(one[finite] - other[finite]))
            size = max(1.0, float(np.linalg.norm(other[finite])))
            limit = max(TOLERANCE[found["dtype"]], LOOSE.get(name, 0.0)) * size
            if not (same and distance <= limit):
                bad = ~(np.abs(one - other) <= limit) & ~((one == other) | np.isnan(one + other))
                at = np.argwhere(keep)[bad]
                where = tuple(int(i) for i in at[0]) if len(at) else ()
                operands = [float(v[where]) for v in values(line)] if where else []
                return (
                    f"gradient by {leaf} is {distance / size:.2g} off; at {where}, where"
                    f" x, y, cotangent are {operands}: {mine[where]} for {right[where]}"
                )
    return None


GENERATOR = Generator(
    "ties",
    "gradients of activations and selections at ties and kinks, against autograd",
    case=case, labels=labels, check=check, timeout=180.0,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
