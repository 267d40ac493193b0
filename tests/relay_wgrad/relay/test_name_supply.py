"""Names that are given out once."""

from __future__ import annotations

import pytest

from relay_wgrad import relay
from relay_wgrad.relay.name_supply import GlobalVarSupply, NameSupply


def test_names() -> None:
    names = NameSupply("pre")
    assert names.reserve_name("x") == "pre_x"
    assert names.fresh_name("x") == "pre_x_1"
    assert names.fresh_name("x", add_underscore=False) == "pre_x2"
    assert names.fresh_name("x", add_prefix=False) == "x"
    assert names.contains_name("x_1")
    assert not names.contains_name("x_1", add_prefix=False)


def test_global_variables() -> None:
    mod = relay.IRModule({"f": relay.Function([], relay.const(1))})
    supply = GlobalVarSupply(mod)
    assert supply.fresh_global("f", add_prefix=False).name == "f_1"
    assert supply.unique_global_for("f", add_prefix=False).name == "f"
    assert supply.unique_global_for("f").name == "tvmgen_default_f"
    with pytest.raises(ValueError, match="@f is taken"):
        supply.reserve_global(relay.GlobalVar("f"))
    supply.reserve_global(relay.GlobalVar("f"), allow_conflict=True)
