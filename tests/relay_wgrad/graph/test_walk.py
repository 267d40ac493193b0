"""Blocks, bindings and variables, branches among them."""

from __future__ import annotations

from tvm import relax

from relay_wgrad.graph.walk import (
    bindings_of,
    blocks_of,
    bodies_of,
    dataflow_block,
    result_of,
    variables_of,
)
from tests.support.graphs import branched


def names(variables: object) -> list[str]:
    return [str(var.name) for var in variables]


def test_bindings_come_in_program_order_with_branches_after_their_block() -> None:
    func = branched()
    found = names(b.var for b in bindings_of(func))
    own = names(b.var for b in bindings_of(func, branches=False))
    assert own == [n for n in found if n in own]
    assert {"f", "h", "e", "n"} <= set(found) - set(own)
    assert found.index("d") < found.index("e") < found.index("f") < found.index("h")
    assert found.index("h") < found.index("n") < found.index("p")
    assert len(found) == sum(len(block.bindings) for block in blocks_of(func))


def test_bodies_are_the_functions_and_those_of_branches() -> None:
    bodies = bodies_of(branched())
    assert len(bodies) == 5
    assert isinstance(result_of(bodies[0]), relax.Tuple)


def test_a_use_counts_as_often_as_it_is_written() -> None:
    func = branched()
    value = {str(b.var.name): b.value for b in bindings_of(func)}
    assert names(variables_of(value["b"])) == ["a", "a"]
    assert names(variables_of(value["local"])) == ["b"]  # what it captures
    assert names(variables_of(value["d"])) == ["a", "local"]
    branches = [v for v in value.values() if isinstance(v, relax.If)]
    assert [names(variables_of(branch)) for branch in branches] == [["c"], ["c"]]


def test_one_dataflow_block() -> None:
    func = branched()
    assert dataflow_block(func) is None
    (first, *_), x = func.body.blocks, func.params[0]
    alone = relax.Function(func.params, relax.SeqExpr([first], x), x.ty)
    assert dataflow_block(alone).same_as(first)
    plain = relax.BindingBlock(first.bindings)
    alone = relax.Function(func.params, relax.SeqExpr([plain], x), x.ty)
    assert dataflow_block(alone) is None
    assert dataflow_block(None) is None


def test_what_a_local_function_captures_beside_other_variables() -> None:
    func = branched()
    value = {str(b.var.name): b for b in bindings_of(func)}
    pair = relax.Tuple([value["a"].var, value["local"].value, value["d"].var])
    found = variables_of(pair)
    assert isinstance(found, list)
    assert sorted(names(found)) == ["a", "b", "d"]
