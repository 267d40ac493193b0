"""Functions that use what is around them: which names and graph variables are in scope."""

from __future__ import annotations

import pytest

from relay_wgrad import relay
from tests.support.relay.texts import main


@pytest.mark.parametrize(
    "body",
    [
        "let %f = fn (%y) { add(%x, %y) }; %f(%x)",
        "%0 = f(%x); %1 = fn (%y) { add(%0, %y) }; %1(%x)",
        "fn (%y) { fn (%z) { add(%y, %z) } }",
        # A function that uses what is around a `let` is used after it.
        "%0 = fn (%y) { add(%x, %y) }; %1 = ( let %a = f(%x); %0(%a) ); %0(%1)",
        "let %a = f(%x); %0 = fn (%y) { fn (%z) { add(%a, %z) } }; %1 = %0(%a); %1(%x)",
    ],
)
def test_closures_come_back(body: str) -> None:
    mod = relay.fromtext(main(body))
    again = relay.fromtext(mod.astext())
    assert relay.structural_equal(again, mod)
    assert again.astext() == mod.astext()


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        # What the function has captured is not bound any more.
        ("%1 = ( let %a = f(%x); %0 = fn () { %a }; %0() ); %2 = g(%1); %0()", "%0 needs %a"),
        ("%1 = ( let %a = f(%x); %0 = fn () { fn () { %a } }; 1f ); %0()", "%0 needs %a"),
        ("%1 = ( let %a = f(%x); %0 = g(%a); 1f ); %2 = fn () { %0 }; %2()", "%0 needs %a"),
        ("fn (%y) { %z }", "%z is not bound here"),
        ("%1 = fn (%y) { %0 = f(%y); %0 }; %0", "%0 is not bound here"),
    ],
)
def test_scopes_end(body: str, problem: str) -> None:
    with pytest.raises(relay.RelayTextError, match=problem):
        relay.fromtext(main(body))
