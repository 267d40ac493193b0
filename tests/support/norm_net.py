"""Networks with normalizations, written as operators, and their steps, run on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.training.step import ADJOINT
from relay_wgrad.transform import grad
from tests.support.compiled import virtual_machine

op = relax.op
LAYOUTS = {"data_layout": "NHWC", "kernel_layout": "OHWI"}


class Net:
    """Builds a step's forward part, of images (2, 6, 4) and 16 channels in float32."""

    def __init__(self) -> None:
        self.bb, self.params = relax.BlockBuilder(), list[Any]()
        self.x = self.param("x", 2, 6, 4, 16)
        self.numbers = 0

    def param(self, name: str, *shape: int) -> Any:
        self.params.append(relax.Var(name, relax.TensorType(shape, "float32")))
        return self.params[-1]

    def conv(self, x: Any, filters: int = 16) -> Any:
        self.numbers += 1
        weight = self.param(f"w{self.numbers}", filters, 1, 1, int(x.ty.shape.values[-1]))
        return self.bb.emit(op.nn.conv2d(x, weight, **LAYOUTS))

    def norm(self, x: Any, activation: str = "relu", residual: Any = None) -> Any:
        self.numbers += 1
        width = int(x.ty.shape.values[-1])
        given = [self.param(f"{name}{self.numbers}", width) for name in ("gamma", "beta")]
        given += [] if residual is None else [residual]
        made = self.bb.emit(op.nn.batch_norm_train(x, *given, axis=3, activation=activation))
        return self.bb.emit(relax.TupleGetItem(made, 0))

    def pool(self, x: Any) -> Any:
        window = {"pool_size": (2, 2), "strides": (2, 2), "layout": "NHWC"}
        return self.bb.emit(op.nn.max_pool2d(x, **window))

    def join(self, *parts: Any) -> Any:
        return self.bb.emit(op.concat(list(parts), 3))

    def total(self, *parts: Any) -> Any:
        # So large that memory counts there alone: else what is joined is read from there later.
        large = self.param("large", 1024, 1024)
        sums = [op.sum(self.bb.emit(op.multiply(p, p))) for p in (*parts, large)]
        found = sums[0]
        for one in sums[1:]:
            found = op.add(found, one)
        return self.bb.emit_output(found)


def step(build: Callable[[Net], Any]) -> tvm.IRModule:
    net = Net()
    with net.bb.function("main"):
        with net.bb.dataflow():
            loss = build(net)
        net.bb.emit_func_output(loss, net.params)
    wrt = [str(param.name) for param in net.params]
    return tvm.IRModule({ADJOINT: grad(net.bb.get(), "main", wrt=wrt)[ADJOINT]})


def run(mod: tvm.IRModule, pipeline: Any = None) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    values = [
        rng.standard_normal([int(n) for n in p.ty.shape.values], "float32")
        * np.float32(1e-4 if str(p.name) == "large" else 1)
        for p in mod[ADJOINT].params
    ]
    vm = virtual_machine(mod, pipeline=pipeline or cpu_pipeline())
    for _ in range(2):  # the second finds what the first left
        found = vm[ADJOINT](*map(tvm.runtime.tensor, values))
    found = [found[0], *found[1]] if isinstance(found, tvm.ir.Array) else [found]
    return [t.numpy() for t in found]
