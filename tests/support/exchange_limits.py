"""What pages say is refused of others' graphs and calls: rows of `tests.support.limits`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import torch
from jax import export, lax
from jax import numpy as jnp
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from tvm import relax
from tvm.script import relax as R

from relay_wgrad import conventions
from relay_wgrad.frontend import (
    from_aot,
    from_onnx_training,
    from_stablehlo,
    from_torch,
    function_to_onnx,
    gradient_to_onnx,
)  # fmt: skip
from relay_wgrad.problem import ConvProblem
from relay_wgrad.torch.compiler import convolutions_backend

ANYWHERE = "docs/howto/from_anywhere.md"
TRANSPOSED = "docs/explanation/transposed.md"
KERAS = Path(__file__).parents[1] / "fixtures" / "keras.json"
IMAGE = torch.ones(1, 2, 4, 4)


def _aot(function: Callable[..., Any], *given: torch.Tensor) -> Any:
    return from_aot(make_fx(function)(*given), list(given))


def _gradient(function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return _aot(torch.func.grad(lambda x: function(x).sum()), IMAGE)


def _second_order() -> None:
    weight, x = torch.ones(2, 2, 3, 3), IMAGE.clone().requires_grad_()
    compiled = torch.compile(lambda x: functional.conv2d(x, weight), backend=convolutions_backend)
    (first,) = torch.autograd.grad(compiled(x).square().sum(), x, create_graph=True)
    first.sum().backward()


def _jax(function: Callable[..., Any], *shape: int, dtype: str = "float32") -> Any:
    return from_stablehlo(jax.jit(function).lower(jnp.ones(shape or (3, 4), dtype)))


def _second_order_of_pooling() -> Any:
    window = (1, 2, 2, 1)

    def pooled(x: Any) -> Any:
        return (lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID") ** 3).sum()

    return _jax(jax.grad(lambda x: jax.grad(pooled)(x).sum()), 1, 4, 4, 2)


def _unknown_size() -> Any:
    (size,) = export.symbolic_shape("n,")
    return from_stablehlo(
        export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((size, 4), "float32"))
    )


def _onnx(op: str, inputs: Sequence[str], domain: str = "", **constants: Any) -> Any:
    """An ONNX Runtime training graph of one node."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 4))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    tensors = [onnx.numpy_helper.from_array(value, key) for key, value in constants.items()]
    node = helper.make_node(op, [*inputs, *constants], ["y"], domain=domain)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", [x], [y], tensors)
    return from_onnx_training(helper.make_model(graph, opset_imports=opsets))


def _written(call: Callable[..., relax.Expr], *shapes: tuple[int, int], dtype: str) -> Any:
    """The ONNX model of a Relax function of one call."""
    builder = relax.BlockBuilder()
    given = [relax.Var(f"x{i}", R.Tensor(shape, dtype)) for i, shape in enumerate(shapes)]
    with builder.function("main", given):
        builder.emit_func_output(builder.emit(call(*given)))
    return function_to_onnx(builder.get())


def _open_batch() -> Any:
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten())
    return gradient_to_onnx(from_torch(net, (IMAGE,), batch="N"))


def _even_kernel_in_tensorflow() -> Any:
    """Who computed the layers that TensorFlow refuses, where the fixture was made."""
    cases = [case for case in json.loads(KERAS.read_text(encoding="utf-8"))["cases"]
             if case["layer"] == "Conv2DTranspose"]  # fmt: skip
    by = {
        who for case in cases for who in case["by"] for given in [case["arguments"]]
        if (given["padding"], given["output_padding"]) == ("same", [0, 0])
        and max(given["strides"]) > 1 and not any(size % 2 for size in given["kernel_size"])
    }  # fmt: skip
    return f"by {by}" if by == {"jax"} else by


def _onnx_evaluator() -> Any:
    """Nine rows, of which the taps reach six."""
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
              for name, shape in (("x", (1, 1, 3, 3)), ("w", (1, 1, 2, 2)))]  # fmt: skip
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], output_shape=[9, 9])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(helper.make_graph([node], "g", inputs, [y]))
    ones = {value.name: np.ones([d.dim_value for d in value.type.tensor_type.shape.dim], "float32")
            for value in inputs}  # fmt: skip
    return ReferenceEvaluator(model).run(None, ones)


GROUPED = ConvProblem.parse("dgrad n=1 c=4 h=9 w=9 k=4 r=3 s=3 groups=2 stride=2,2")
DILATED = ConvProblem.parse("dgrad n=1 c=4 h=17 w=17 k=4 r=3 s=3 dil=2,2 stride=2,2")
NOT_TAKEN = "Not taken are `cdist`, `pdist`, `EmbeddingBag` and `masked_scatter`, and the backward"
STABLEHLO = "Custom calls, reductions of several tensors (`argmax`"

PROBES = [
    (ANYWHERE, "**Refused by name**: all else; complex numbers", "fft_r2c",
     lambda: _aot(lambda x: torch.fft.fft(x).abs(), IMAGE)),
    (ANYWHERE, "complex numbers; boolean masks as indices", "by a mask",
     lambda: _aot(lambda x: x[x > 0], IMAGE)),
    (ANYWHERE, NOT_TAKEN, "_cdist_forward", lambda: _aot(lambda x: torch.cdist(x, x), IMAGE)),
    (ANYWHERE, NOT_TAKEN, "_pdist_forward", lambda: _aot(torch.pdist, torch.ones(3, 4))),
    (ANYWHERE, NOT_TAKEN, "_embedding_bag",
     lambda: _aot(lambda x: functional.embedding_bag(torch.zeros(2, 2, dtype=torch.int64), x),
                  torch.ones(3, 4))),
    (ANYWHERE, NOT_TAKEN, "masked_scatter",
     lambda: _aot(lambda x: x.masked_scatter(x > 0, x), IMAGE)),
    (ANYWHERE, "the backward passes of `grid_sample`", "grid_sampler_2d_backward",
     lambda: _gradient(lambda x: functional.grid_sample(x, torch.zeros(1, 2, 2, 2),
                                                        align_corners=False))),
    (ANYWHERE, "and adaptive max pooling", "adaptive_max_pool2d",
     lambda: _gradient(lambda x: functional.adaptive_max_pool2d(x, 3))),
    (ANYWHERE, "Gradients of gradients are refused, by AOTAutograd", "double backward",
     _second_order),
    (ANYWHERE, STABLEHLO, "custom call", lambda: _jax(lambda x: jnp.linalg.qr(x)[0])),
    (ANYWHERE, "(`argmax`, max pooling's second derivatives)", "several tensors at once",
     _second_order_of_pooling),
    (ANYWHERE, STABLEHLO, "several tensors at once", lambda: _jax(lambda x: jnp.argmax(x, 1))),
    (ANYWHERE, ("loops, branches, sorts, random bits, complex numbers and unknown sizes are "
     "refused by name"), "stablehlo.while",
     lambda: _jax(lambda x: lax.while_loop(lambda y: y.sum() < 9, lambda y: y + 1, x))),
    (ANYWHERE, "loops, branches", "stablehlo.case",
     lambda: _jax(lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x))),
    (ANYWHERE, "branches, sorts", "stablehlo.sort", lambda: _jax(jnp.sort)),
    (ANYWHERE, "sorts, random bits", "stablehlo.shift_right_logical",
     lambda: _jax(lambda x: x + jax.random.uniform(jax.random.key(0), x.shape))),
    (ANYWHERE, "random bits, complex numbers", "complex<f32>", lambda: _jax(jnp.fft.fft)),
    (ANYWHERE, "complex numbers and unknown sizes", "tensor<?x4xf32>", _unknown_size),
    (ANYWHERE, "everything else is `from_onnx`'s list, or refused by name",
     "ONNX op com.microsoft::AdamOptimizer",
     lambda: _onnx("AdamOptimizer", ["x"], "com.microsoft")),
    (ANYWHERE, "Dropout in training is refused: its mask is drawn within the graph",
     "its mask is drawn within the graph",
     lambda: _onnx("Dropout", ["x"], ratio=np.float32(0.5), training=np.bool_(True))),
    (ANYWHERE, "**Refused by name**: operators without a row in", "there is no row for it",
     lambda: _written(relax.op.sort, (3, 4), dtype="float32")),
    (ANYWHERE, "sums of another dtype than their operands (mixed precision)",
     "one dtype for operands and result",
     lambda: _written(partial(relax.op.matmul, out_dtype="float32"), (3, 4), (4, 5),
                      dtype="float16")),
    (ANYWHERE, "open batches (`graph.of_batch(n)` is one of a number)", "its batch is open",
     _open_batch),
    (TRANSPOSED, "its TensorFlow backend refuses", "by {'jax'}", _even_kernel_in_tensorflow),
    (TRANSPOSED, "| ONNX 1.23's reference evaluator | refused", "calculated number of sliding",
     _onnx_evaluator),
    (TRANSPOSED, ("Keras has no groups in `Conv2DTranspose` and no strides together with dilation; "
     "JAX has no groups. Their writers refuse such problems"), "Keras has it for one group",
     lambda: conventions.keras.to_conv2d_transpose(GROUPED)),
    (TRANSPOSED, "no strides together with dilation", "no strides above 1 with dilation_rate",
     lambda: conventions.keras.to_conv2d_transpose(DILATED)),
    (TRANSPOSED, "JAX has no groups", "JAX has it for one group",
     lambda: conventions.jax.to_conv_transpose(GROUPED)),
]  # fmt: skip
