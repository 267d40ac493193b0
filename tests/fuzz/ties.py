"""Gradients of activations and selections where they have ties and kinks, against autograd.

    python -m tests.fuzz.ties --minutes 60

A case is an expression of two parameters x and y, such as `add(x,relu(max2(x,neg(y))))`, whose
values are mostly on kinks: integers and halves with many zeros of both signs and many equal pairs;
for single ops infinities and NaN too.  It becomes a training graph by `from_torch`, or a Relax
function by `transform.grad` or stock `Gradient` under `register()`, compiled by our CPU pipeline or
by the stock one.  Of order 2 it is the gradient of a gradient, contracted with a direction, where
PyTorch's double backward is finite.  Selections come first, since they are exact in every dtype;
what rounds is the last op only, so that both sides choose the same branches.

`--tree DIR` with an old checkout finds what was wrong there: `--only op=relu,special=0`.
"""

from __future__ import annotations

import contextlib
import random
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tests.fuzz.harness import REFUSED, Generator, main
from tests.fuzz.ties_ops import (
    BINARY,
    LINEAR,
    ONLY_TORCH,
    REDUCED,
    ROUNDING,
    SHAPE,
    SPECIAL,
    VALUES,
    operations,
)
from tests.support.compiled import virtual_machine

TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3}
LOOSE = {"hardsigmoid": 1e-7}  # PyTorch's float64 kernel has a float32 sixth as its slope

ODD_TWICE = frozenset({"prelu"})  # PyTorch's second order takes another slope at 0 than its first

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

    kind = rng.choice(("single", "special", "chain", "residual", "second"))
    order = 1
    if kind == "second" and (front == "stock" or dtype == "float16"):
        kind = "chain"
    if kind == "second":
        order = 2
        linear, last = ([o for o in ops if o not in ODD_TWICE] for ops in (linear, last))
        text = tree(rng.randint(0, 2))
        op = rng.choice(last)
        text = f"{op}({text},{tree(1)})" if op in BINARY else f"{op}({text})"
        if rng.random() < 0.3:
            text = f"square({text})"
    elif kind in ("single", "special"):
        op = rng.choice([*linear, *last])
        text = f"{op}(x,y)" if op in BINARY else f"{op}(x)"
    else:
        text = tree(rng.randint(1, 4))
        if kind == "residual":
            text = f"relu(add(x,{text}))"
        if dtype != "float16" and rng.random() < 0.3:
            op = rng.choice([o for o in last if o not in ("sqrt", "rsqrt", *BINARY)])
            text = f"{op}({text})"
    return (
        f"front={front} dtype={dtype} pipeline={pipeline} special={int(kind == 'special')}"
        f" order={order}"
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
        "order": found.get("order", "1"),
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


def directions(line: str) -> tuple[Any, Any]:
    """By x and by y, with which the gradient is contracted for the second order."""
    import numpy as np

    rng = np.random.default_rng([1, int(fields(line)["seed"])])
    pool = np.array([-2.0, -1.0, 0.5, 1.0, 3.0])
    one, two = (rng.choice(pool, SHAPE).astype(fields(line)["dtype"]) for _ in "xy")
    return one, two


def reference(line: str) -> tuple[Any, list[Any]]:
    """(loss, gradients by x and y) of autograd; of order 2, of the contracted gradient."""
    import torch

    found, ops = fields(line), operations()
    x, y, weight = (torch.tensor(v) for v in values(line))
    x.requires_grad_(), y.requires_grad_()
    out = evaluate(found["expr"], {"x": x, "y": y}, lambda name, args: ops[name].torch(*args))
    loss = (out * weight).sum()
    second = found.get("order", "1") == "2"

    def gradients(result: Any, cotangent: Any) -> list[Any]:
        if not result.requires_grad:
            return [torch.zeros_like(x), torch.zeros_like(y)]
        grads = torch.autograd.grad(
            result, (x, y), cotangent, allow_unused=True, create_graph=second
        )
        return [torch.zeros_like(x) if g is None else g for g in grads]

    found_ = gradients(out, weight)
    if second:
        loss = sum(
            (g * torch.tensor(d)).sum() for g, d in zip(found_, directions(line), strict=True)
        )
        found_ = gradients(loss, None)
    return loss.detach().numpy(), [g.detach().numpy(force=True) for g in found_]


def by_torch(line: str) -> tuple[Any, list[str], list[Any]]:
    """(module with the gradient, by what, inputs) of a PyTorch module with parameters x, y."""
    import torch

    from relay_wgrad.frontend import from_torch
    from relay_wgrad.transform import grad

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
    if found.get("order", "1") == "2":
        module = grad(graph.module, wrt=wrt, order=2)
        return module, wrt, [given[name] for name in used] + _toward(line, wrt)
    return graph.gradient(wrt), wrt, [given[name] for name in used]


def _toward(line: str, wrt: list[str]) -> list[Any]:
    by = dict(zip("xy", directions(line), strict=True))
    return [by[name] for name in wrt]


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
    if found.get("order", "1") == "2":
        return grad(module, wrt=wrt, order=2), wrt, list(given) + _toward(line, wrt)
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

    import legalize.cpu
    from relay_wgrad.pipeline.cpu import cpu_pipeline

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
        second = found.get("order", "1") == "2"
        try:
            want_loss, want = reference(line)
        except RuntimeError as error:
            if second and "is not implemented" in str(error):
                return f"{REFUSED}PyTorch: {error}"
            raise
        target = legalize.cpu.host_target()
        pipeline = cpu_pipeline() if found["pipeline"] == "cpu" else "default"
        machine = virtual_machine(module, target, pipeline)
        result, gradients = machine[f"main_adjoint{'2' * second}"](
            *[tvm.runtime.tensor(v) for v in inputs]
        )
        loss = (result if hasattr(result, "numpy") else result[0]).numpy()
        got = {name: g.numpy() for name, g in zip(wrt, gradients, strict=True)}
        if not special and not second:
            scale = max(1.0, float(np.abs(want_loss)))
            limit = TOLERANCE[found["dtype"]] * (50 if found["dtype"] == "float16" else 1)
            near = abs(float(loss) - float(want_loss)) <= limit * scale * 10
            if not (near or (np.isnan(loss) and np.isnan(want_loss)) or loss == want_loss):
                return f"loss {loss} for {want_loss}"
        name = re.split(r"\W", found["expr"])[0]
        for leaf, right in zip(("x", "y"), want, strict=True):
            mine = got.get(leaf, np.zeros_like(right))
            # Of second order PyTorch has NaN where it defines none, as for a norm at 0.
            keep = np.isfinite(right) if second else np.ones(right.shape, bool)
            if special:
                x, y, _ = values(line)
                seen = np.isnan(x) | (np.isnan(y) if name in BINARY else False)
                # What upstream's kernels make of NaN before it comes to a gradient is theirs.
                kept = ops[name].nan and found["pipeline"] == "cpu"
                keep = ~np.isnan(right) & (~seen | kept)
                if name in REDUCED and found["front"] == "torch":
                    keep = np.ones(right.shape, bool)  # the front end's own, in any pipeline
                elif not kept and name in {*REDUCED, "pool"}:
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
