"""What times candidates: on which stream they run, and which of them are left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi

from byoc_cudnn.codegen.regions import Region
from byoc_cudnn.tuning.timing import Candidate, Task, time_all
from relay_wgrad.problem import ConvProblem

PROBLEM = ConvProblem.parse(
    "wgrad n=2 c=3 h=4 w=5 k=3 r=1 s=1 stride=1,1 pad=0,0,0,0 groups=3"
    " layout=NCHW/OIHW/NCHW dtype=f32/f32/f32"
)
OTHER = 0x5EED  # a stream of somebody's


def summed(grad: Any, data: Any, out: Any) -> None:
    value = (grad.numpy() * data.numpy()).sum((0, 2, 3))
    out.copyfrom(value.reshape(out.shape))


def candidates(*calls: Callable[..., Any]) -> Task:
    made = [Candidate(f"b{i}", "1", {}, {}, f"f{i}", call) for i, call in enumerate(calls)]
    return Task(Region.of("f", PROBLEM), made)


def test_candidates_run_on_the_stream_that_is_waited_for() -> None:
    device, streams = tvm.cpu(0), set[int]()

    def call(*tensors: Any) -> None:
        streams.add(tvm_ffi.get_raw_stream(device))
        summed(*tensors)

    def timer(call: Any, sets: Any, calls: int, index: int) -> float:
        call(*sets[0])
        return 1.0

    task = candidates(call)
    with tvm_ffi.use_raw_stream(device, OTHER):
        time_all(task, timer, device)
        assert tvm_ffi.get_raw_stream(device) == OTHER  # as it was
    assert streams == {0}
    assert task.candidates[0].ms == 1.0


def test_what_writes_less_or_something_else_is_left_out() -> None:
    def half(grad: Any, data: Any, out: Any) -> None:
        kept = out.numpy()
        summed(grad, data, out)
        out.copyfrom(np.concatenate([out.numpy()[:1], kept[1:]]))

    def other(grad: Any, data: Any, out: Any) -> None:
        summed(grad, data, out)
        out.copyfrom(out.numpy() * 1.1)

    task = candidates(summed, half, other)
    with pytest.warns(UserWarning, match="left out") as found:
        time_all(task, lambda *_: 1.0, tvm.cpu(0))
    assert [c.ms for c in task.candidates] == [1.0, np.inf, np.inf]
    words = [str(w.message).partition("left out: ")[2] for w in found]
    assert [w.split(":")[0].split(" from")[0] for w in words] == [
        "not all of the result was written", "differs by 0.1",
    ]  # fmt: skip
