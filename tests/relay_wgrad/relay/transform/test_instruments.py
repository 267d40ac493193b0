"""Instruments of a context, `PrintIR`, kinds of passes, and other compilers' own passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm.ir.instrument import PassTimingInstrument, pass_instrument

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from tests.support.relay.texts import HEADER

TEXT = HEADER + "def @main(%x: Tensor[(2), float32]) { add(%x, add(1f, 2f)) }"


@pass_instrument
class Events:
    def __init__(self, skipped: str = "") -> None:
        self.seen: list[str] = []
        self.skipped = skipped

    def should_run(self, mod: Any, info: Any) -> bool:
        return bool(info.name != self.skipped)

    def run_before_pass(self, mod: Any, info: Any) -> None:
        if isinstance(mod, relay.IRModule):
            self.seen.append(f"before {info.name}")

    def run_after_pass(self, mod: Any, info: Any) -> None:
        if isinstance(mod, relay.IRModule):
            self.seen.append(f"after {info.name}")


def test_instruments_see_relays_passes() -> None:
    events = Events("ToANormalForm")
    mod = relay.fromtext(TEXT)
    with T.PassContext(instruments=[events]):
        typed = T.InferType()(mod)
        assert T.ToANormalForm()(typed) is typed  # it says no
    T.InferType()(mod)  # outside of the context
    assert events.seen == ["before InferType", "after InferType"]


def test_an_instrument_that_raises_ends_the_context() -> None:
    class Broken(Events):  # type: ignore[misc, valid-type]
        def run_before_pass(self, mod: Any, info: Any) -> None:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"), T.PassContext(instruments=[Broken()]):
        T.InferType()(relay.fromtext(TEXT))
    T.InferType()(relay.fromtext(TEXT))


def test_the_time_of_passes() -> None:
    timing = PassTimingInstrument()
    with T.PassContext(instruments=[timing]):
        mod = T.InferType()(relay.fromtext(TEXT))
        profile = timing.render()
    assert "InferType" in profile
    assert str(mod["main"].checked_type.ret_type) == "Tensor[(2), float32]"


def test_print_ir_and_kinds(capfd: pytest.CaptureFixture[str]) -> None:
    mod = relay.fromtext(TEXT)
    assert T.Sequential([T.PrintIR("here")])(mod) is mod
    assert "PrintIR(here)" in (said := capfd.readouterr().err)
    assert "add(1f, 2f)" in said

    @T.module_pass(opt_level=0)
    def nothing(mod: Any, context: Any) -> Any:
        return mod

    assert isinstance(nothing, T.ModulePass)
    assert not isinstance(nothing, T.FunctionPass)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_compilers_own_passes(keeps: bool) -> None:
    def optimize(mod: Any) -> Any:
        if keeps:
            return T.FoldConstant()(mod)
        return relay.IRModule.from_expr(relay.const(np.zeros(3, "float32")))

    name = "relay.ext.test_instruments.optimize"
    tvm.register_global_func(name, optimize, override=True)
    begin, end = (
        lambda x: relay.annotation.compiler_begin(x, "test_instruments"),
        lambda x: relay.annotation.compiler_end(x, "test_instruments"),
    )
    ones = relay.const(np.ones((2, 2), "float32"))
    x = relay.var("x", shape=(2, 2))
    out = relay.multiply(end(relay.add(begin(ones), begin(ones))), x)
    mod = T.InferType()(relay.IRModule.from_expr(relay.Function([x], out)))
    try:
        if not keeps:
            with pytest.raises(ValueError, match=f"{name} must give a Relay module"):
                T.PartitionGraph()(mod)
            return
        made = T.PartitionGraph()(mod)["tvmgen_default_test_instruments_main_0"]
    finally:
        tvm_ffi.registry.remove_global_func(name)
    assert (made.body.data.numpy() == 2).all()
    assert made.attrs["Compiler"] == "test_instruments"
