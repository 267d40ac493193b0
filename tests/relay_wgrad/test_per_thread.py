"""While registered threads write Relax functions side by side, and Ctrl-C ends what TVM does."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import tvm
from tvm import relax, te, topi

import relay_wgrad


@pytest.mark.usefixtures("registered")
def test_the_builder_that_began_first_ends_first() -> None:
    """TVM has one stack of builders for the process, and asserts that its end is itself."""
    began, ended = [threading.Event() for _ in range(2)], threading.Event()
    found: dict[int, Any] = {}

    def write(index: int) -> None:
        x = relax.Var("x", relax.TensorType((2,), "float32"))
        builder = relax.BlockBuilder()
        try:
            began[0].wait(20 * index)
            with builder.function("main", [x]):
                began[index].set()
                (ended if index else began[1]).wait(20)
                builder.emit_func_output(builder.emit(relax.op.add(x, x)))
            found[index] = builder.get()["main"]
        except Exception as error:
            found[index] = error
        ended.set()

    threads = [threading.Thread(target=write, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [type(found[i]) for i in range(2)] == [relax.Function] * 2, found


@pytest.mark.usefixtures("registered")
def test_the_tag_of_one_thread_is_no_other_ones() -> None:
    """TVM's tag is the process's: a kernel made meanwhile had it, and a tagged one was refused."""
    x, found = te.placeholder((2,), name="x"), list[Any]()

    def other() -> None:
        try:
            found.extend(made.op.tag for made in (topi.exp(x), te.compute((2,), lambda i: x[i])))
        except ValueError as error:
            found.append(error)

    thread = threading.Thread(target=other)
    with te.tag_scope("mine"):
        thread.start()
        thread.join(60)
        mine = te.compute((2,), lambda i: x[i]).op.tag
        with pytest.raises(ValueError, match="nested"):
            topi.exp(x)
    assert found == ["elemwise", ""]
    assert mine == "mine"


def test_unregister_gives_both_back(registered: None) -> None:
    relay_wgrad.unregister()
    assert relax.BlockBuilder._stack == []
    assert isinstance(te.tag.TagScope, type)
    relay_wgrad.register()
    assert relax.BlockBuilder.current() is None


def test_ctrl_c_within_a_pass_stays_one(registered: None) -> None:
    """TVM makes a RuntimeError without text of it."""

    @tvm.transform.module_pass(opt_level=0)
    def interrupted(mod: tvm.IRModule, context: object) -> tvm.IRModule:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted(tvm.IRModule())
