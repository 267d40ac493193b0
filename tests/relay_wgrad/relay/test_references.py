"""References: types and text."""

from __future__ import annotations

import pytest

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from tests.support.relay.texts import HEADER, main

TEXT = """def @main(%x: float32) -> ref(float32) {
  %0 = ref(%x);
  let %v = ref_write(%0, 1f);
  let %y = ref_read(%0);
  %1 = add(%y, %x);
  ref(%1)
}
"""


def test_the_text_comes_back_typed_and_untyped() -> None:
    mod = relay.fromtext(HEADER + TEXT)
    assert mod.astext() == HEADER + TEXT
    typed = T.InferType()(mod)
    assert str(typed["main"].checked_type) == "fn (float32) -> ref(float32)"
    again = relay.fromtext(typed.astext())
    assert again.astext() == typed.astext()
    assert relay.structural_equal(again, typed)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("ref_read(%x)", "what is read or written is float32"),
        ("ref_write(ref(%x), 1)", "what is written is int32"),
    ],
)
def test_ill_typed(body: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        T.InferType()(relay.fromtext(main(body, "%x: float32")))


def test_nodes() -> None:
    x = relay.var("x", "float32")
    ref = relay.RefCreate(x)
    write = relay.RefWrite(ref, x)
    assert relay.analysis.free_vars(write) == [x]
    assert relay.structural_equal(relay.RefRead(ref), relay.RefRead(relay.RefCreate(x)))
    assert not relay.structural_equal(relay.RefRead(ref), ref)
    assert relay.ExprMutator().visit(write) is write
    assert relay.RefType is relay.RelayRefType
