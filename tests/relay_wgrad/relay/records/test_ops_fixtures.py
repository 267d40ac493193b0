"""Type relations and builders against what real Relay printed and computed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tvm
from tvm import relax

from relay_wgrad.relay.records import REGISTRY, lookup, show
from relay_wgrad.relay.types import TensorType, TupleType, Type
from relay_wgrad.transform import grad
from tests.fixtures.relay.inputs import load
from tests.support.compiled import virtual_machine
from tests.support.fast import FAST
from tests.support.relay.programs import (
    PLAIN,
    Bound,
    Constant,
    Program,
    parse_program,
    program_names,
)


def typed_calls(program: Program) -> list[tuple[Bound, list[Type]]]:
    """Each call with its arguments' types, all as Relay printed them."""
    types: dict[str, Type] = dict(program.params)
    out = []
    for bound in program.body:
        ty = bound.ty
        if bound.op == "same" and ty is None:
            ty = types[bound.args[0]]
        elif bound.op == "field":
            whole = types[bound.args[0]]
            assert isinstance(whole, TupleType)
            ty = whole.fields[bound.args[1]]
        elif bound.op not in PLAIN:
            out.append((bound, [types[a] if isinstance(a, str) else a.ty for a in bound.args]))
        assert ty is not None, bound
        types[bound.name] = ty
    return out


@pytest.mark.parametrize("name", program_names())
def test_result_types_are_the_printed_ones(name: str) -> None:
    calls = typed_calls(parse_program(name))
    assert calls
    for bound, types in calls:
        inferred = lookup(bound.op).infer(types, bound.attrs)
        assert bound.ty is not None
        assert inferred == bound.ty, f"{bound}: {show(inferred)}, printed {show(bound.ty)}"


def test_all_calls_of_the_fixtures_are_covered() -> None:
    """No line of a program escapes the scanner: as many typed calls as the text has."""
    seen: Counter[str] = Counter()
    for name in program_names():
        seen.update(bound.op for bound, _ in typed_calls(parse_program(name)))
    assert set(seen) <= set(REGISTRY)
    assert (len(seen), seen.total()) == (36, 2961)


def build(program: Program, results: list[str]) -> tvm.IRModule:
    """The part of a program behind some names as one Relax function; a tuple of their values."""
    bb = relax.BlockBuilder()
    values: dict[str, relax.Expr] = {}
    types: dict[str, Type] = {}
    for name, ty in program.params.items():
        assert isinstance(ty, TensorType)
        var = relax.Var(name[1:], relax.TensorType(list(ty.shape), ty.dtype))
        values[name], types[name] = var, ty
    params = list(values.values())
    wanted = behind(program, results)
    with bb.function("main", params):
        with bb.dataflow():
            for bound in program.body:
                if bound.name in wanted:
                    values[bound.name], types[bound.name] = _built(bb, bound, values, types)
            result = bb.emit_output(relax.Tuple([values[name] for name in results]))
        bb.emit_func_output(result)
    return bb.get()


def _built(bb: relax.BlockBuilder, bound: Bound, values: dict, types: dict) -> tuple:
    args = bound.args
    if bound.op == "constant":
        return relax.const(args[0], args[1].dtype), args[1]
    if bound.op == "same":
        return values[args[0]], types[args[0]]
    if bound.op == "field":
        value = values[args[0]]
        field = value.fields[args[1]] if isinstance(value, relax.Tuple) else value[args[1]]
        return field, types[args[0]].fields[args[1]]
    if bound.op == "tuple":
        return (
            relax.Tuple([values[a] for a in args]),
            TupleType(tuple(types[a] for a in args)),
        )
    arg_types = [a.ty if isinstance(a, Constant) else types[a] for a in args]
    exprs = [_constant(bound, a) if isinstance(a, Constant) else values[a] for a in args]
    op = lookup(bound.op)
    out = op.infer(arg_types, bound.attrs)
    expr = op.build(bb, exprs, bound.attrs, arg_types, out)
    return expr if isinstance(expr, relax.Tuple) else bb.emit(expr), out


def _constant(bound: Bound, arg: Constant) -> relax.Expr:
    assert isinstance(arg.ty, TensorType)
    value = bound.attrs["shape"] if arg.value is None else arg.value
    return relax.const(np.asarray(value, arg.ty.dtype))


# But for the smallnet's, the gradients are those of the sum of a softmax, which is 1: what Relay
# computed is rounding noise, and compared with nothing.
NOISE = 1e-3

# A program that real Relay printed but did not run has the results of the one it was made from.
_MADE_FROM = ("_legalized", "_nhwc", "_gnf")


def outputs_of(name: str) -> list[np.ndarray] | None:
    base = name
    while True:
        outputs = load(base)[1]
        if outputs is not None:
            return outputs
        shorter = next((base.removesuffix(s) for s in _MADE_FROM if base.endswith(s)), None)
        if shorter is None:
            return None
        base = shorter


# The resnet's gradient in other forms is above noise only in its forward part, which is one.
_AGAIN = ("resnet8_cifar_grad_gnf", "resnet8_cifar_grad_nhwc")
RUN = [n for n in program_names() if n not in _AGAIN and outputs_of(n) is not None]


def results_above_noise(name: str) -> list[tuple[str, np.ndarray]]:
    """The names of a program's flattened results, with their values as Relay computed them."""
    program, outputs = parse_program(name), outputs_of(name)
    assert outputs is not None
    leaves = _leaves(program.body[-1], {b.name: b for b in program.body})
    pairs = zip(leaves, outputs, strict=True)
    return [(leaf, value) for leaf, value in pairs if np.abs(value).max() > NOISE]


def _leaves(last: Bound, bound: dict[str, Bound]) -> list[str]:
    if last.op == "same" and last.args[0] in bound:
        return _leaves(bound[last.args[0]], bound)
    if last.op != "tuple":
        return [last.name]
    return [leaf for a in last.args for leaf in (_leaves(bound[a], bound) if a in bound else [a])]


def behind(program: Program, results: list[str]) -> set[str]:
    """The names that results depend on."""
    bound = {b.name: b for b in program.body}
    todo, seen = list(results), set()
    while todo:
        name = todo.pop()
        if name in bound and name not in seen:
            seen.add(name)
            todo += [a for a in bound[name].args if isinstance(a, str)]
    return seen


@pytest.mark.longer_cases("resnet8", why="whole networks; smaller ones stay")
@pytest.mark.share(5)
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", RUN)
def test_results_are_those_of_real_relay(name: str) -> None:
    results = results_above_noise(name)
    module = build(parse_program(name), [leaf for leaf, _ in results])
    vm = virtual_machine(module, FAST)
    got = vm["main"](*(tvm.runtime.tensor(x) for x in load(name)[0].values()))
    assert len(got) == len(results)
    for ours, (_, theirs) in zip(got, results, strict=True):
        scale = float(np.abs(theirs).max())
        np.testing.assert_allclose(ours.numpy() / scale, theirs / scale, atol=1e-5)


def test_operators_checked_against_relay_are_behind_results_of_relay() -> None:
    seen = set()
    for name in RUN:
        program = parse_program(name)
        names = behind(program, [leaf for leaf, _ in results_above_noise(name)])
        seen |= {bound.op for bound in program.calls if bound.name in names}
    assert {name for name, op in REGISTRY.items() if op.checked == "relay"} == seen


def summed(name: str) -> tvm.IRModule:
    """A forward program that returns the sum of its result."""
    program = parse_program(name)
    forward = build(program, [program.body[-1].name])["main"]
    *bindings, result = forward.body.blocks[0].bindings
    bb = relax.BlockBuilder()
    with bb.function("main", list(forward.params)):
        with bb.dataflow():
            for binding in bindings:
                bb.emit_normalized(binding)
            total = bb.emit_output(relax.op.sum(result.value.fields[0]))
        bb.emit_func_output(total)
    return bb.get()


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", [n for n in program_names() if n.endswith("_fwd")])
def test_forward_programs_are_differentiated(name: str) -> None:
    module = grad(summed(name))
    assert len(module["main"].params) == len(parse_program(name).params)
    assert "main_adjoint" in {str(var.name_hint) for var in module.functions}


@pytest.mark.usefixtures("registered")
def test_the_gradient_of_the_smallnet_is_relays() -> None:
    module = grad(summed("smallnet_fwd"))
    vm = virtual_machine(module, FAST)
    _, partials = vm["main_adjoint"](*map(tvm.runtime.tensor, load("smallnet_fwd")[0].values()))
    expected = outputs_of("smallnet_grad")
    assert expected is not None
    assert len(partials) == len(expected) - 1
    for ours, theirs in zip(partials, expected[1:], strict=True):
        scale = float(np.abs(theirs).max())
        np.testing.assert_allclose(ours.numpy() / scale, theirs / scale, atol=1e-5)
