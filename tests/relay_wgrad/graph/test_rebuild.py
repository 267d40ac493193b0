"""Functions with other bindings keep all else: types, attributes, spans, branches."""

from __future__ import annotations

from typing import Any

import pytest
import tvm_ffi
from tvm import relax

from relay_wgrad.graph.rebuild import (
    Names,
    Writer,
    like,
    rebuilt,
    substitute,
    with_attrs_of,
    with_bindings,
    with_first,
    with_params,
)
from relay_wgrad.graph.walk import bindings_of, blocks_of
from tests.support.graphs import branched, spanned


def _small() -> relax.Function:
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x], attrs={"kept": 3}):
        with bb.dataflow():
            a = bb.emit(relax.op.exp(x), "a")
            out = bb.emit_output(relax.op.sin(a), "out")
        bb.emit_func_output(out)
    return bb.get()["main"]


def test_a_function_whose_blocks_are_kept_is_itself() -> None:
    func = branched()
    assert rebuilt(func, lambda block: None) is func


def test_all_is_as_it_was_but_for_the_bindings() -> None:
    func, seen = branched(), []

    def rewrite(block: Any) -> list[relax.Binding]:
        seen.append(block)
        return list(block.bindings)

    made = rebuilt(func, rewrite)
    assert len(seen) == len(list(blocks_of(func)))
    assert not made.same_as(func)
    assert tvm_ffi.structural_equal(made, func)
    assert tvm_ffi.structural_equal(made.body.ty, func.body.ty)
    old, new = (
        [b.value for b in bindings_of(f) if isinstance(b.value, relax.If)] for f in (func, made)
    )
    assert len(old) == 2
    assert all(tvm_ffi.structural_equal(a.ty, b.ty) for a, b in zip(old, new, strict=True))


def test_a_block_in_a_branch_is_replaced_alone() -> None:
    func = branched()

    def rewrite(block: Any) -> list[relax.Binding] | None:
        if not any(str(b.var.name) == "f" for b in block.bindings):
            return None
        writer = Writer(block)
        for binding in block.bindings:
            value = binding.value
            if str(binding.var.name) == "f":
                value = relax.op.exp(writer.emit("extra", relax.op.negative(value.args[0])))
            writer.bind(binding.var, value)
        return writer.bindings

    made = rebuilt(func, rewrite)
    names = [str(b.var.name) for b in bindings_of(made)]
    assert names.count("extra") == 1
    assert names.index("extra") + 1 == names.index("f")
    relax.analysis.well_formed(made)  # raises
    extra = next(b.var for b in bindings_of(made) if str(b.var.name) == "extra")
    assert not isinstance(extra, relax.DataflowVar)  # a branch's block is no dataflow block
    first, again = func.body.blocks[0], made.body.blocks[0]
    assert first.same_as(again)


def test_spans_and_attributes_are_kept() -> None:
    func, span = spanned(_small())
    for made in (
        rebuilt(func, lambda block: list(block.bindings)),
        with_bindings(func, bindings_of(func)),
        with_params(func, func.params),
    ):
        assert made.span == span
        assert made.body.span == span
        assert made.body.blocks[0].span == span
        assert int(made.attrs["kept"]) == 3
        assert all(b.span == span and b.value.span == span for b in bindings_of(made))
        assert tvm_ffi.structural_equal(made.body.ty, func.body.ty)
    first = with_first(func, [relax.VarBinding(relax.Var("s", relax.ShapeType([1])),
                                               relax.ShapeExpr([1]))])  # fmt: skip
    assert [type(block) for block in first.body.blocks] == [relax.BindingBlock, relax.DataflowBlock]
    assert first.span == span
    bare = relax.Function(func.params, func.body, func.ret_ty)
    assert int(with_attrs_of(bare, func).attrs["kept"]) == 3


def test_another_result_gives_the_function_its_type() -> None:
    func = _small()
    out = bindings_of(func)[-1].var
    more = relax.Var("more", relax.TensorType((), "float32"))
    made = with_bindings(
        func, bindings_of(func), params=[*func.params, more], result=relax.Tuple([out, more])
    )
    assert isinstance(made.ret_ty, relax.TupleType)
    assert tvm_ffi.structural_equal(made.body.ty, made.ret_ty)
    assert len(made.params) == 2
    relax.analysis.well_formed(made)  # raises


def test_a_substitution_reaches_branches_and_local_functions() -> None:
    func = branched()
    found = {str(b.var.name): b.var for b in bindings_of(func)}
    new = relax.Var("new", found["d"].ty)
    for binding in bindings_of(func, branches=False):
        made = substitute(binding.value, {found["d"]: new, found["b"]: new})
        free = relax.analysis.free_vars(made)
        assert found["d"] not in free
        assert found["b"] not in free
        if isinstance(binding.value, (relax.If, relax.Function)):
            assert new in free
            assert tvm_ffi.structural_equal(made.ty, binding.value.ty)
    call = next(b.value for b in bindings_of(func) if str(b.var.name) == "d")
    assert substitute(call, {}) is call
    assert substitute(call, {found["local"]: new}).op.same_as(new)


def test_a_call_that_is_substituted_keeps_its_span() -> None:
    func, span = spanned(_small())
    first, last = bindings_of(func)
    made = substitute(last.value, {first.var: func.params[0]})
    assert made.span == span
    assert made.args[0].same_as(func.params[0])


def test_names_are_of_no_other_variable() -> None:
    names = Names(branched())
    assert [names.unique(n) for n in ("fresh", "fresh", "f", "x")] == [
        "fresh", "fresh_1", "f_1", "x_1",
    ]  # fmt: skip


@pytest.mark.parametrize("dataflow", [True, False])
def test_a_writer_makes_variables_of_its_blocks_kind(dataflow: bool) -> None:
    block = _small().body.blocks[0]
    if not dataflow:
        block = relax.BindingBlock(block.bindings)
    writer, x = Writer(block), _small().params[0]
    one = writer.emit_once("key", lambda: "one", lambda: relax.op.exp(x))
    assert writer.emit_once("key", lambda: "two", lambda: relax.op.sin(x)).same_as(one)
    assert isinstance(one, relax.DataflowVar) == dataflow
    assert isinstance(like(block, writer.bindings), relax.DataflowBlock) == dataflow
    assert [str(b.var.name) for b in writer.bindings] == ["one"]
