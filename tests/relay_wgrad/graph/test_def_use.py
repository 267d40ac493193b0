"""Definitions and uses of a function's variables."""

from __future__ import annotations

import time

import pytest
from tvm import relax

from relay_wgrad.graph.def_use import ELSEWHERE, Graph
from tests.support.graphs import branched


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Graph(branched())


def var(graph: Graph, name: str) -> relax.Var:
    (found,) = (v for v in [*graph.params, *graph.index] if str(v.name) == name)
    return found


def test_makers(graph: Graph) -> None:
    assert graph.maker(var(graph, "x")) is None
    assert graph.maker(relax.const(1.0)) is None
    for name in ("a", "f", "r"):
        assert graph.maker(var(graph, name)).var.same_as(var(graph, name))
    assert graph.call(var(graph, "f"), "relax.sin", "relax.exp") is not None
    assert graph.call(var(graph, "f"), "relax.sin") is None
    other, x = var(graph, "other"), var(graph, "x")
    assert graph.resolved(other).same_as(var(graph, "pair"))
    assert isinstance(graph.bound_to(other), relax.Tuple)
    assert graph.bound_to(x).same_as(x)


def test_what_a_result_is_made_of(graph: Graph) -> None:
    found = graph.needed_for([var(graph, "e")])
    assert {str(v.name) for v in found} == {"e", "d", "local", "a", "b", "x", "y"}
    stopped = graph.needed_for([var(graph, "e")], lambda v: str(v.name) != "d")
    assert {str(v.name) for v in stopped} == {"e", "d"}


def test_what_is_made_of_a_variable(graph: Graph) -> None:
    """Each variable is made of what it is needed for, and of nothing else."""
    every = [*graph.params, *graph.index]
    for one in every:
        made = {v for v in every if one in graph.needed_for([v]) and v is not one}
        assert graph.made_of([one]) == made, one
    a, p = var(graph, "a"), var(graph, "p")
    assert graph.made_of([a, p]) == graph.made_of([a]) | graph.made_of([p])


def test_users_are_bindings_each_once_and_uses_are_counted(graph: Graph) -> None:
    a, p = var(graph, "a"), var(graph, "p")
    assert [str(b.var.name) for b in graph.users_of(a)] == ["b", "d"]
    assert [(str(u.binding.var.name), u.argument) for u in graph.uses[a]] == [
        ("b", 0), ("b", 1), ("d", 0),
    ]  # fmt: skip
    assert [str(b.var.name) for b in graph.users_of(p)] == ["q", "pair"]
    assert [str(b.var.name) for b in graph.users_of(p, a)] == ["b", "d", "q", "pair"]
    assert graph.uses[var(graph, "local")][0].argument == -1


def test_what_a_branch_uses_is_used(graph: Graph) -> None:
    d = var(graph, "d")
    assert {str(b.var.name) for b in graph.users_of(d)} == {"e", "n"}
    assert graph.sole_user(d) is None
    assert graph.describe_uses(d) == [ELSEWHERE]
    assert {str(v.name) for v in graph.results} >= {"r", "b"}


def test_a_sole_user_stands_in_the_same_block(graph: Graph) -> None:
    m, k, p, e = (var(graph, name) for name in ("m", "k", "p", "e"))
    assert graph.users_of(m)
    assert graph.sole_user(m) is None  # p is in another block
    assert graph.describe_uses(m) == [ELSEWHERE]
    assert graph.sole_user(e) is None
    assert graph.sole_user(k) is None or k not in graph.results
    assert graph.sole_user(p) is None  # q, and pair
    q = var(graph, "q")
    assert str(graph.sole_user(q).var.name) == "pair"
    assert graph.only_use(q)
    assert not graph.only_use(p)


def test_once_and_alone_are_two() -> None:
    x = relax.Var("x", relax.TensorType((2,), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            a = bb.emit(relax.op.exp(x), "a")
            b = bb.emit(relax.op.multiply(a, a), "b")
            c = bb.emit(relax.op.exp(b), "c")
            d = bb.emit(relax.op.add(c, b), "d")
            out = bb.emit_output(relax.op.exp(d), "out")
        bb.emit_func_output(out)
    graph = Graph(bb.get()["main"])
    assert graph.sole_user(a).var.same_as(b)
    assert graph.sole_use(a) is None
    assert graph.sole_use(d).var.same_as(out)
    assert [v.var for v in graph.sole_pair(b)] == [c, d]
    assert graph.sole_pair(a) is None
    assert graph.sole_user(out) is None
    assert graph.describe_uses(b) == ["c", "d"]


def test_fields_through_other_names(graph: Graph) -> None:
    pair = var(graph, "pair")
    assert [(i, str(v.name)) for i, v in graph.fields_of(pair)] == [(0, "first"), (1, "second")]
    assert graph.is_whole(pair)  # it has another name
    assert not graph.is_whole(var(graph, "other"))
    assert graph.is_whole(var(graph, "b"))


def _chain(length: int) -> relax.Function:
    x = relax.Var("x", relax.TensorType((2,), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            y = x
            for _ in range(length):
                y = bb.emit(relax.op.add(y, x))
            out = bb.emit_output(y)
        bb.emit_func_output(out)
    return bb.get()["main"]


def test_time_grows_with_the_program_alone() -> None:
    def seconds(length: int) -> float:
        func, times = _chain(length), []
        for _ in range(3):
            start = time.process_time()
            graph = Graph(func)
            for v in graph.index:
                graph.sole_user(v)
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(1600) < 12 * seconds(400)
