"""Random expressions of floating-point numbers, fused into one kernel, against NumPy.

TVM's simplifier takes them for real numbers; `relay_wgrad.pipeline.ieee` hides what it would take
too far.  Leaves are x, y and numbers that are sums of few powers of two, NaN, infinities or zeros
of either sign, so that what NumPy computes is exact and any other value is wrong; only the sign of
a zero is not told (x + 0 is x, also for -0).

    float32 cpu 17: where(lt(x,sub(y,y)),mul(x,0),neg(x))
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.compiled import virtual_machine

from .harness import Generator, main
from .ties import evaluate

VALUES = (np.nan, np.inf, -np.inf, 0.0, -0.0, 0.25, 0.5, 1.0, 2.0, -0.5, -1.0, -3.0, 1024.0)
NUMBERS = {"0": 0.0, "m0": -0.0, "1": 1.0, "m1": -1.0, "2": 2.0, "half": 0.5, "big": 2.0**14}
# name -> (operands, NumPy's, Relax' name); the second operand of a quotient is a leaf.
NUMERIC: dict[str, tuple[int, Callable[..., Any], str]] = {
    "add": (2, np.add, "add"),
    "sub": (2, np.subtract, "subtract"),
    "mul": (2, np.multiply, "multiply"),
    "max": (2, np.maximum, "maximum"),
    "min": (2, np.minimum, "minimum"),
    "neg": (1, np.negative, "negative"),
    "abs": (1, np.abs, "abs"),
}
TRUTHS: dict[str, tuple[int, Callable[..., Any], str]] = {
    "lt": (2, np.less, "less"),
    "le": (2, np.less_equal, "less_equal"),
    "gt": (2, np.greater, "greater"),
    "ge": (2, np.greater_equal, "greater_equal"),
    "eq": (2, np.equal, "equal"),
    "ne": (2, np.not_equal, "not_equal"),
}
LOGIC: dict[str, tuple[int, Callable[..., Any], str]] = {
    "and": (2, np.logical_and, "logical_and"),
    "or": (2, np.logical_or, "logical_or"),
    "not": (1, np.logical_not, "logical_not"),
}
_ALL = {**NUMERIC, **TRUTHS, **LOGIC}
_SIZE = 64


def case(seed: int, index: int) -> str:
    rng = random.Random(f"{seed} {index}")

    def leaf() -> str:
        return rng.choice(("x", "x", "y", "y", *NUMBERS))

    def truth(depth: int) -> str:
        if depth > 1 and rng.random() < 0.4:
            name = rng.choice(list(LOGIC))
            return f"{name}({','.join(truth(depth - 1) for _ in range(LOGIC[name][0]))})"
        return f"{rng.choice(list(TRUTHS))}({tree(depth - 1)},{tree(depth - 1)})"

    def tree(depth: int) -> str:
        if depth <= 0 or rng.random() < 0.1:
            return leaf()
        kind = rng.random()
        if kind < 0.15:
            return f"where({truth(depth)},{tree(depth - 1)},{tree(depth - 1)})"
        if kind < 0.25:
            return f"div({tree(depth - 1)},{rng.choice(('x', '2', 'half', '0', 'm0'))})"
        name = rng.choice(list(NUMERIC))
        first = tree(depth - 1)
        # Equal operands are what a simplifier looks for.
        rest = [first if rng.random() < 0.3 else tree(depth - 1)] * (NUMERIC[name][0] - 1)
        return f"{name}({','.join([first, *rest])})"

    dtype, pipeline = rng.choice(("float32", "float64")), rng.choice(("cpu", "cpu", "relay"))
    return f"{dtype} {pipeline} {rng.randrange(10**6)}: add({tree(rng.randint(1, 4))},mul(x,0))"


def labels(line: str) -> dict[str, str]:
    dtype, pipeline, _ = line.partition(":")[0].split()
    return {"dtype": dtype, "pipeline": pipeline, "op": re.findall(r"\w+", line)[4]}


def _values(line: str) -> tuple[Any, Any]:
    dtype, _, seed = line.partition(":")[0].split()
    rng = np.random.default_rng(int(seed))
    x, y = (rng.choice(np.array(VALUES), _SIZE).astype(dtype) for _ in "xy")
    return x, y


def _reference(expression: str, x: Any, y: Any) -> tuple[Any, bool]:
    """NumPy's value in float64, and whether float32 has it exactly too."""

    def apply(name: str, args: list[Any]) -> Any:
        if name == "where":
            return np.where(*args)
        return np.divide(*args) if name == "div" else _ALL[name][1](*args)

    with np.errstate(all="ignore"):
        wide, narrow = (
            evaluate(
                expression,
                {"x": x.astype(t), "y": y.astype(t), **{k: t(v) for k, v in NUMBERS.items()}},
                apply,
            )
            for t in (np.float64, np.float32)
        )
        wide, narrow = np.broadcast_to(wide, x.shape), np.broadcast_to(narrow, x.shape)
        return wide, bool(np.array_equal(wide, narrow.astype("float64"), equal_nan=True))


def check(line: str) -> str | None:
    import tvm
    from tvm import relax

    import legalize.cpu
    import relay_wgrad
    from relay_wgrad import relay
    from relay_wgrad.pipeline.cpu import cpu_pipeline

    head, _, expression = line.partition(": ")
    dtype, pipeline, _ = head.split()
    x, y = _values(line)
    want, exact = _reference(expression, x, y)
    if not exact:
        return None  # rounding, of which contracted products have less
    relay_wgrad.register()
    if pipeline == "relay":
        given = {n: relay.var(n, shape=(_SIZE,), dtype=dtype) for n in "xy"}
        leaves = {**given, **{k: relay.const(v, dtype) for k, v in NUMBERS.items()}}
        body = evaluate(expression, leaves, lambda name, args: _relay(relay, name, args))
        module = relay.IRModule.from_expr(relay.Function(list(given.values()), body))
        library = relay.build(module, legalize.cpu.host_target())
        run = relay.graph_executor.GraphModule(library["default"](tvm.cpu()))
        run.run(x=x, y=y)
        got = run.get_output(0).numpy()
    else:
        params = {n: relax.Var(n, relax.TensorType((_SIZE,), dtype)) for n in "xy"}
        builder = relax.BlockBuilder()

        def apply(name: str, args: list[Any]) -> Any:
            function = {"where": "where", "div": "divide"}.get(name) or _ALL[name][2]
            return builder.emit(getattr(relax.op, function)(*args))

        with builder.function("main", list(params.values())):
            with builder.dataflow():
                leaves = {**params, **{k: relax.const(v, dtype) for k, v in NUMBERS.items()}}
                out = builder.emit_output(evaluate(expression, leaves, apply))
            builder.emit_func_output(out)
        machine = virtual_machine(builder.get(), legalize.cpu.host_target(), cpu_pipeline())
        got = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(y)).numpy()
    bad = ~((got == want) | (np.isnan(got) & np.isnan(want)))
    if not bad.any():
        return None
    at = int(np.argmax(bad))
    return f"at x = {x[at]}, y = {y[at]}: {got[at]} for {want[at]}"


def _relay(relay: Any, name: str, args: list[Any]) -> Any:
    if name == "where":
        return relay.where(*args)
    function = {"div": "divide", "neg": "negative"}.get(name) or _ALL[name][2]
    return getattr(relay, function)(*args)


GENERATOR = Generator(
    "arithmetic",
    "fused expressions of floating-point numbers, against NumPy's exact values",
    case=case,
    labels=labels,
    check=check,
    timeout=120.0,
)

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
