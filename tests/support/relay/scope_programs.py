"""Random programs of branches, functions and variables that share values, and what they compute."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from relay_wgrad import relay
from relay_wgrad.relay import transform as T

SCALAR = relay.scalar_type("float64")


def program(seed: int, functions: int = 3) -> relay.IRModule:
    """Scalars of float64; @main takes two, and calls up to `functions` others, some `Inline`."""
    rng = random.Random(seed)
    names: list[str] = []
    table: dict[str, relay.Function] = {}
    for i in range(rng.randint(0, functions)):
        function = _function(rng, names, 4)
        if rng.random() < 0.6:
            function = function.with_attr("Inline", 1)
        if rng.random() < 0.2:
            function = function.with_attr("Compiler", "some")
        names.append(f"f{i}")
        table[names[-1]] = function
    table["main"] = _function(rng, names, 8)
    return T.InferType()(relay.IRModule(table))


def _function(rng: random.Random, names: list[str], steps: int) -> relay.Function:
    params = [relay.Var(name, SCALAR) for name in "xy"]
    body = _body(rng, list(params), names, steps, 2)
    return relay.Function(params, body, SCALAR)


def _body(rng: random.Random, known: list[Any], names: list[str], steps: int, depth: int) -> Any:
    known = list(known)
    lets: list[tuple[Any, Any]] = []
    for _ in range(rng.randint(1, steps)):
        value = _value(rng, known, names, steps, depth)
        if rng.random() < 0.3:
            lets.append((relay.Var(f"v{rng.randint(0, 9)}"), value))
            value = lets[-1][0]
        known.append(value)
    out = known[-1]
    # Outside of what a `let` binds nothing may use it.
    for var, value in reversed(lets):
        out = relay.Let(var, value, out)
    return out


def _value(rng: random.Random, known: list[Any], names: list[str], steps: int, depth: int) -> Any:
    def some() -> Any:
        return rng.choice(known[-6:])

    kind = rng.random()
    if depth and kind < 0.2:
        branches = [_body(rng, known, names, steps - 1, depth - 1) for _ in range(2)]
        return relay.If(relay.less(some(), some()), *branches)
    if depth and kind < 0.35:
        params = [relay.Var("p", SCALAR)]
        body = _body(rng, [*known, *params], names, steps - 1, depth - 1)
        return relay.Call(relay.Function(params, body), [some()])
    if names and kind < 0.5:
        return relay.Call(relay.GlobalVar(rng.choice(names)), [some(), some()])
    if kind < 0.6:
        fields = relay.Tuple([some(), some()])
        return relay.TupleGetItem(fields, rng.randint(0, 1))
    if kind < 0.7:
        return relay.add(some(), relay.const(float(rng.randint(-3, 3)), "float64"))
    return rng.choice([relay.add, relay.subtract, relay.maximum, relay.minimum])(some(), some())


_OPS: Mapping[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "maximum": max,
    "minimum": min,
    "less": lambda a, b: a < b,
}


def run(mod: relay.IRModule, *args: float) -> Any:
    """What @main gives, without a compiler."""
    return _call(mod, mod["main"], {}, args)


def _call(mod: relay.IRModule, function: Any, env: dict[Any, Any], args: Any) -> Any:
    inner = {**env, **dict(zip(function.params, args, strict=True))}
    return _run(mod, function.body, inner, {})


def _run(mod: relay.IRModule, node: Any, env: dict[Any, Any], known: dict[Any, Any]) -> Any:
    if node in env:
        return env[node]
    if node not in known:
        known[node] = _computed(mod, node, env, known)
    return known[node]


def _computed(mod: relay.IRModule, node: Any, env: dict[Any, Any], known: dict[Any, Any]) -> Any:
    if isinstance(node, relay.Constant):
        return node.data.item()
    if isinstance(node, relay.GlobalVar):
        return lambda *args: _call(mod, mod[node], {}, args)
    if isinstance(node, relay.Function):
        return lambda *args: _call(mod, node, dict(env), args)
    if isinstance(node, relay.Let):
        if isinstance(node.value, relay.Function):  # which may call itself
            env[node.var] = lambda *args: _call(mod, node.value, dict(env), args)
        else:
            env[node.var] = _run(mod, node.value, env, known)
        return _run(mod, node.body, env, known)
    if isinstance(node, relay.If):
        # A branch of its own: what it computes first need not be computed for the other.
        branch = node.true_branch if _run(mod, node.cond, env, known) else node.false_branch
        return _run(mod, branch, env, known)
    if isinstance(node, relay.Tuple):
        return tuple(_run(mod, field, env, known) for field in node.fields)
    if isinstance(node, relay.TupleGetItem):
        return _run(mod, node.tuple_value, env, known)[node.index]
    args = [_run(mod, arg, env, known) for arg in node.args]
    if isinstance(node.op, relay.Op):
        return _OPS[node.op.name](*args)
    return _run(mod, node.op, env, known)(*args)
