"""One block of memory for functions that are called one after another."""

from __future__ import annotations

import random
from typing import Any

import pytest
import tvm
from tvm import relax

from relay_wgrad.facts import Link, chain_attrs, chain_link
from relay_wgrad.pipeline.arena import lifetimes
from relay_wgrad.pipeline.chains import SUFFIX, Chains
from tests.support.memory_plans import ROWS, Machine, planned, storages

TYPE = relax.TensorType((ROWS, 64), "float32")
FUNCTIONS = 4


def links(rng: random.Random) -> list[Link]:
    """Each function takes some of the results of those before, and one argument from elsewhere."""
    found = [Link(0, [None])]
    for place in range(1, FUNCTIONS):
        results = [(before, i) for before in range(place) for i in range(3)]
        found.append(Link(place, [*rng.sample(results, 2), None]))
    return found


def module(seed: int) -> tvm.IRModule:
    """A chain of functions of random operators, each with three results."""
    rng, bb = random.Random(seed), relax.BlockBuilder()
    for place, link in enumerate(links(rng)):
        params = [relax.Var(f"p{i}", TYPE) for i in range(len(link.takes))]
        with bb.function(f"f{place}", params, attrs={"global_symbol": f"f{place}"}):
            with bb.dataflow():
                made = [bb.emit(relax.op.exp(param)) for param in params]
                for _ in range(8):
                    one, other = rng.choice(made[-3:]), rng.choice(made)
                    made.append(bb.emit(rng.choice((relax.op.add, relax.op.multiply))(one, other)))
                out = [bb.emit_output(relax.op.tanh(rng.choice(made[-4:]))) for _ in range(3)]
            bb.emit_func_output(relax.Tuple(out))
    found = bb.get()
    rng = random.Random(seed)
    for place, link in enumerate(links(rng)):
        found[f"f{place}"] = found[f"f{place}"].with_attrs(chain_attrs(link))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_nobody_writes_over_what_is_read_later(seed: int) -> None:
    """Nor over results before a caller has had them."""
    before = planned(module(seed))
    after = Chains()(before)
    relax.analysis.well_formed(after)  # raises
    machine: Any = Machine(after[f"chain{SUFFIX}"], after)
    machine.kept = machine.results
    results: list[Any] = []
    for place in range(FUNCTIONS):
        link = chain_link(before[f"f{place}"])
        assert link is not None
        given = [None if take is None else results[take[0]][take[1]] for take in link.takes]
        machine = Machine(after[f"f{place}{SUFFIX}"], after, machine, given)
        for tensor in machine.results:
            assert (tensor[0] == machine.written[id(tensor)]).all()
        results.append(machine.results)
        tvm.ir.assert_structural_equal(after[f"f{place}"], before[f"f{place}"])
    assert not any(storages(after[f"f{place}{SUFFIX}"]) for place in range(FUNCTIONS))
    alone = [
        tensor.size
        for place in range(FUNCTIONS)
        for tensor in lifetimes(before[f"f{place}"], results=True)
    ]
    (size,) = storages(after[f"chain{SUFFIX}"])
    assert size < sum(alone)


def test_a_result_that_is_an_argument_has_no_chain() -> None:
    x = relax.Var("x", TYPE)
    bb = relax.BlockBuilder()
    with bb.function("f0", [x], attrs=chain_attrs(Link(0, [None]))):
        with bb.dataflow():
            y = bb.emit_output(relax.op.tanh(x))
        bb.emit_func_output(relax.Tuple([y, x]))
    before = planned(bb.get())
    tvm.ir.assert_structural_equal(Chains()(before), before)


def test_other_functions_stay() -> None:
    before = planned(module(0))
    for place in range(FUNCTIONS):
        before[f"f{place}"] = before[f"f{place}"].without_attr("relay_wgrad.chain")
    tvm.ir.assert_structural_equal(Chains()(before), before)


def test_links_are_read_as_they_were_written() -> None:
    link = Link(2, [(0, 1), None, (1, 0)])
    func = module(0)["f0"].with_attrs(chain_attrs(link))
    assert chain_link(func) == link
    assert chain_link(module(0)["f0"].without_attr("relay_wgrad.chain")) is None
