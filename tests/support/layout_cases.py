"""Small networks whose gradients go through layout conversion, with seeded float64 values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from relay_wgrad.transform import grad
from tests.support.built import built
from tests.support.compiled import virtual_machine
from tests.support.fast import FAST

DTYPE = "float64"
op, nn = relax.op, relax.op.nn
Shapes = dict[str, tuple[Any, ...]]
Body = Callable[..., relax.Expr]


def module(shapes: Shapes, body: Body, name: str = "main") -> tvm.IRModule:
    """`body(emit, *variables)` gives the result of a function of one dataflow block."""
    params = [relax.Var(n, relax.TensorType(list(s), DTYPE)) for n, s in shapes.items()]
    return built(params, lambda emit: body(emit, *params), name)


def gradient(shapes: Shapes, body: Body, order: int = 1, **options: Any) -> tvm.IRModule:
    """The gradient alone of the squared sum of what `body` computes, as `main`."""

    def loss(emit: Any, *params: relax.Var) -> relax.Expr:
        out = emit(body(emit, *params))
        return emit(op.sum(emit(op.multiply(out, out))))

    mod = grad(module(shapes, loss), "main", order=order, **options)
    name = "main_adjoint" if order == 1 else f"main_adjoint{order}"
    return tvm.IRModule({"main": mod[name].with_attr("global_symbol", "main")})


def block_of(mod: tvm.IRModule, name: str = "main") -> list[relax.Binding]:
    return list(mod[name].body.blocks[0].bindings)


def calls(mod: tvm.IRModule, *names: str) -> list[relax.Call]:
    """The calls of ops with these short names, in order."""
    values = [b.value for b in block_of(mod)]
    return [
        v for v in values
        if isinstance(v, relax.Call) and str(v.op.name).rpartition(".")[2] in names
    ]  # fmt: skip


def values_for(func: relax.Function, seed: int = 0, **sizes: int) -> list[np.ndarray]:
    """Random arguments; `sizes` gives symbolic dimensions their values by name."""
    rng = np.random.default_rng(seed)
    out = []
    for param in func.params:
        shape = [sizes[d.name] if hasattr(d, "name") else int(d) for d in param.ty.shape.values]
        out.append(rng.standard_normal(shape))
    return out


def machine_of(mod: tvm.IRModule) -> relax.VirtualMachine:
    # Compiling takes longer than running: LLVM need not optimize.
    return virtual_machine(mod, FAST)


def run(
    mod: tvm.IRModule | relax.VirtualMachine, args: Sequence[np.ndarray], name: str = "main"
) -> list[np.ndarray]:
    machine = machine_of(mod) if isinstance(mod, tvm.IRModule) else mod
    result = machine[name](*[tvm.runtime.tensor(np.array(a, order="C")) for a in args])
    return flat(result)


def flat(result: Any) -> list[np.ndarray]:
    if hasattr(result, "numpy"):
        return [result.numpy()]
    return [leaf for item in result for leaf in flat(item)]


def assert_close(got: list[np.ndarray], want: list[np.ndarray], tolerance: float = 1e-10) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        scale = max(float(np.abs(b).max(initial=0.0)), 1e-300)
        assert float(np.abs(a - b).max(initial=0.0)) <= tolerance * scale


# ---- the networks ----------------------------------------------------------------------------


def conv_bias_relu_conv(emit: Any, x: Any, w: Any, b: Any, v: Any) -> Any:
    y = emit(nn.relu(emit(op.add(emit(nn.conv2d(x, w, padding=1)), b))))
    return nn.conv2d(y, v, strides=2)


def grouped_dilated(emit: Any, x: Any, w: Any, v: Any) -> Any:
    y = emit(nn.conv2d(x, w, padding=(2, 1, 2, 3), dilation=2, groups=2))
    return nn.conv2d(emit(op.tanh(y)), v, groups=6)


def transposed(emit: Any, x: Any, w: Any, v: Any) -> Any:
    y = emit(nn.conv2d_transpose(x, w, strides=(2, 2), output_padding=(1, 0), groups=2))
    return nn.conv2d(emit(nn.relu(y)), v)


def pools(emit: Any, x: Any, w: Any) -> Any:
    y = emit(nn.conv2d(x, w, padding=1))
    a = emit(nn.max_pool2d(y, (3, 3), (2, 2), (1, 1, 1, 1)))
    b = emit(nn.avg_pool2d(y, (2, 2), (2, 2)))
    return op.multiply(a, b)


def batch_norm(emit: Any, x: Any, w: Any, g: Any, v: Any) -> Any:
    y = emit(nn.conv2d(x, w, padding=1))
    mean = emit(op.mean(y, [0, 2, 3]))
    centred = emit(op.subtract(y, emit(op.reshape(mean, (1, 4, 1, 1)))))
    var = emit(op.mean(emit(op.multiply(centred, centred)), [0, 2, 3], keepdims=True))
    y = emit(op.divide(centred, emit(op.sqrt(emit(op.add(var, relax.const(1e-3, DTYPE)))))))
    y = emit(op.multiply(y, emit(op.expand_dims(g, [1, 2]))))
    return nn.conv2d(y, v)


def concats(emit: Any, x: Any, w: Any, v: Any) -> Any:
    a = emit(nn.conv2d(x, w, padding=1))
    y = emit(op.concat([x, a], axis=1))
    b = emit(nn.conv2d(y, v, padding=1))
    return op.concat([y, b, a], axis=1)


def residual_head(emit: Any, x: Any, w: Any, v: Any, fc: Any) -> Any:
    y = emit(nn.conv2d(x, w, padding=1))
    y = emit(op.add(emit(nn.relu(emit(nn.conv2d(y, v, padding=1)))), y))
    pooled = emit(op.reshape(emit(op.mean(y, [2, 3], keepdims=True)), (2, 4)))
    return op.matmul(pooled, emit(op.permute_dims(fc)))


def shuffle(emit: Any, x: Any, w: Any, v: Any) -> Any:
    y = emit(nn.conv2d(x, w, padding=1))
    y = emit(op.permute_dims(emit(op.reshape(y, (2, 2, 2, 5, 5))), [0, 2, 1, 3, 4]))
    return nn.conv2d(emit(op.reshape(y, (2, 4, 5, 5))), v)


def local_response(emit: Any, x: Any, w: Any, v: Any) -> Any:
    y = emit(nn.conv2d(x, w, padding=1))
    rows = emit(op.reshape(emit(op.multiply(y, y)), (2, 1, 4, 25)))
    mean = emit(nn.avg_pool2d(rows, (3, 1), (1, 1), (1, 0, 1, 0), count_include_pad=True))
    scale = emit(op.add(emit(op.reshape(mean, (2, 4, 5, 5))), relax.const(1.0, DTYPE)))
    return nn.conv2d(emit(op.divide(y, scale)), v)


def flattened(emit: Any, x: Any, w: Any, fc: Any) -> Any:
    y = emit(nn.relu(emit(nn.conv2d(x, w))))
    return op.matmul(emit(op.reshape(y, (2, 36))), fc)


def odd_broadcasts(emit: Any, x: Any, w: Any, row: Any, plane: Any, scalar: Any) -> Any:
    y = emit(op.add(emit(nn.conv2d(x, w, padding=1)), row))
    y = emit(op.multiply(emit(op.add(plane, scalar)), y))
    return op.strided_slice(emit(nn.pad(y, [0, 0, 1, 0, 0, 2, 0, 0])), [1, 3], [0, 1], [4, 4])


def chain(depth: int) -> tvm.IRModule:
    """`depth` convolutions with bias and ReLU and a residual every other one: a function `main`."""
    shapes: Shapes = {"x": (1, 8, 8, 8)}
    for i in range(depth):
        shapes |= {f"w{i}": (8, 8, 3, 3), f"b{i}": (1, 8, 1, 1)}

    def body(emit: Any, x: Any, *params: Any) -> Any:
        kept = y = x
        for i in range(depth):
            y = emit(op.add(emit(nn.conv2d(y, params[2 * i], padding=1)), params[2 * i + 1]))
            y = emit(nn.relu(y))
            if i % 2:
                kept = y = emit(op.add(y, kept))
        return op.sum(y)

    return module(shapes, body)


X = (2, 3, 5, 5)
CASES: dict[str, tuple[Body, Shapes]] = {
    "conv_bias_relu_conv": (
        conv_bias_relu_conv, {"x": X, "w": (4, 3, 3, 3), "b": (1, 4, 1, 1), "v": (2, 4, 3, 3)}
    ),
    "bias_of_rank_3": (
        conv_bias_relu_conv, {"x": X, "w": (4, 3, 3, 3), "b": (4, 1, 1), "v": (2, 4, 3, 3)}
    ),
    "grouped_dilated": (
        grouped_dilated, {"x": (2, 4, 6, 7), "w": (6, 2, 3, 3), "v": (6, 1, 2, 2)}
    ),
    "transposed": (transposed, {"x": (2, 4, 3, 3), "w": (4, 2, 3, 2), "v": (2, 4, 2, 2)}),
    "pools": (pools, {"x": (2, 3, 6, 6), "w": (4, 3, 3, 3)}),
    "batch_norm": (batch_norm, {"x": X, "w": (4, 3, 3, 3), "g": (4,), "v": (2, 4, 3, 3)}),
    "concats": (concats, {"x": X, "w": (4, 3, 3, 3), "v": (2, 7, 3, 3)}),
    "residual_head": (
        residual_head, {"x": X, "w": (4, 3, 3, 3), "v": (4, 4, 3, 3), "fc": (7, 4)}
    ),
    "shuffle": (shuffle, {"x": X, "w": (4, 3, 3, 3), "v": (2, 4, 1, 1)}),
    "local_response": (local_response, {"x": X, "w": (4, 3, 3, 3), "v": (2, 4, 1, 1)}),
    "flattened": (flattened, {"x": X, "w": (4, 3, 3, 3), "fc": (36, 3)}),
    "odd_broadcasts": (
        odd_broadcasts, {"x": X, "w": (4, 3, 3, 3), "row": (5,), "plane": (5, 5), "scalar": ()}
    ),
}  # fmt: skip


def case(name: str, order: int = 1) -> tvm.IRModule:
    body, shapes = CASES[name]
    return gradient(shapes, body, order)


def together(*mods: tvm.IRModule) -> tvm.IRModule:
    """Functions `f0`, `f1`, … of one module, so that they are compiled at once."""
    named = {f"f{i}": m["main"].with_attr("global_symbol", f"f{i}") for i, m in enumerate(mods)}
    return tvm.IRModule({k: relax.utils.copy_with_new_vars(f) for k, f in named.items()})
