"""Reductions in half precision, on both surfaces, against float64.

Their sums are long: in the operands' own type they would stagnate.  The same rows run in
`tests/gpu/test_half.py` on a GPU.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from .harness import Generator, main

LENGTHS = (7, 300, 4096, 70_000, 100_352, 262_144)
# What a gradient is made of is rounded as often as a half-precision graph has operations.
GRADIENT = 4.0


def case(seed: int, index: int) -> str:
    from tests.support.half_cases import FILLS, RELAX, ROUNDOFF
    from tests.support.half_relay_cases import RELAY

    rng = np.random.default_rng((seed, index))
    every = [("relax", row) for row in RELAX] + [("relay", row) for row in RELAY]
    surface, row = every[index % len(every)]  # all in turn
    modes = ["value", *(["gradient"] if row.grad else [])]
    pipelines = row.pipelines if surface == "relax" else ("ours",)
    fields = {
        "surface": surface, "op": row.key, "mode": str(rng.choice(modes)),
        "dtype": str(rng.choice(list(ROUNDOFF))), "n": int(rng.choice(LENGTHS)),
        "fill": str(rng.choice(FILLS)), "pipeline": str(rng.choice(pipelines)),
        "seed": int(rng.integers(1 << 16)),
    }  # fmt: skip
    return " ".join(f"{key}={value}" for key, value in fields.items())


def labels(line: str) -> dict[str, str]:
    fields = dict(item.split("=", 1) for item in line.split())
    op = f"{fields.pop('surface')}.{fields.pop('op')}"
    return {"op": op, **{k: v for k, v in fields.items() if k != "seed"}}


def check(line: str, target: Any = None) -> str | None:
    """`target`: a GPU's; the CPU by default."""
    from tests.support.half_cases import RELAX, as_torch, error, named, operands
    from tests.support.half_relay_cases import RELAY

    f = dict(item.split("=", 1) for item in line.split())
    row = named(RELAX if f["surface"] == "relax" else RELAY, f["op"])
    n, dtype, seed = int(f["n"]), f["dtype"], int(f["seed"])
    given = operands(row.specs(n), dtype, f["fill"], seed)
    tensors = [as_torch(x) for x in given]
    want = row.want(tensors, n)
    cotangent = None
    if f["mode"] == "gradient":
        rng = np.random.default_rng(seed + 1)
        least = 0 if f["fill"] == "ones" else -8  # sums of them as large as sums can be
        cotangent = rng.integers(least, 9, tuple(want.shape)).astype("float32") / 8
        (want * torch.tensor(cotangent.astype("float64"))).sum().backward()
    compute = _relax if f["surface"] == "relax" else _relay
    try:
        got = compute(row, given, n, dtype, f["pipeline"], cotangent, target)
    except TypeError as refusal:  # upstream's type relation of group_norm
        if dtype == "bfloat16" and "data must be float" in str(refusal):
            return "refused: " + str(refusal)[-60:]
        raise
    if cotangent is None:
        wanted, allowed = [want], row.roundings
    else:
        # What is differentiable here and there.
        free = [x for i, x in enumerate(tensors) if x.requires_grad and _free(row, i)]
        wanted, allowed = [x.grad for x in free], row.roundings * GRADIENT
    worst = max(
        error(g, w.detach().numpy(), dtype)
        for g, w in zip(got, wanted, strict=True)
        if w is not None
    )
    return None if worst <= allowed else f"an error of {worst:.3g} roundings, allowed {allowed:g}"


def _device(target: Any) -> tuple[Any, Any]:
    import tvm

    import legalize.cpu

    if target is None:
        return legalize.cpu.host_target(), tvm.cpu()
    return target, tvm.cuda(0)


def _relax(
    row: Any, given: list[np.ndarray], n: int, dtype: str, pipeline: str, cotangent: Any,
    target: Any,
) -> list[np.ndarray]:  # fmt: skip
    import tvm
    from tvm import relax

    import relay_wgrad
    from relay_wgrad.pipeline.cpu import cpu_pipeline
    from relay_wgrad.pipeline.cuda import cuda_pipeline
    from relay_wgrad.transform import grad

    relay_wgrad.register()
    floats = [i for i, x in enumerate(given) if x.dtype.kind not in "iu"]
    if cotangent is not None:  # parameters are float32, as bfloat16's must be
        given = [x.astype("float32") if i in floats else x for i, x in enumerate(given)]
        given = [*given, cotangent]
    bb = relax.BlockBuilder()
    params = [
        relax.Var(f"x{i}", relax.TensorType(x.shape, str(x.dtype))) for i, x in enumerate(given)
    ]
    with bb.function("main", params):
        with bb.dataflow():
            args = list(params)
            if cotangent is not None:
                args = [
                    bb.emit(relax.op.astype(x, dtype)) if i in floats else x
                    for i, x in enumerate(params[:-1])
                ]
            out = bb.emit(row.call(relax.op, args, n))
            if cotangent is not None:
                wide = bb.emit(relax.op.astype(out, "float32"))
                out = bb.emit(relax.op.sum(relax.op.multiply(wide, params[-1])))
            out = bb.emit_output(out)
        bb.emit_func_output(out)
    mod, name = bb.get(), "main"
    if cotangent is not None:
        mod, name = grad(mod, wrt=[f"x{i}" for i in floats if _free(row, i)]), "main_adjoint"
    target, device = _device(target)
    ours = cpu_pipeline if str(target.kind.name) == "llvm" else cuda_pipeline
    how = ours() if pipeline == "ours" else "default"
    vm = relax.VirtualMachine(tvm.compile(mod, target=target, relax_pipeline=how), device)
    result = vm[name](*[tvm.runtime.tensor(x, device) for x in given])
    if cotangent is None:
        return [result.numpy()]
    return [x.numpy().astype("float64") for x in result[1]]


def _free(row: Any, index: int) -> bool:
    """Whether there is a gradient by this operand."""
    return row.name != "nn.nll_loss" or index == 0


def _relay(
    row: Any, given: list[np.ndarray], n: int, dtype: str, pipeline: str, cotangent: Any,
    target: Any,
) -> list[np.ndarray]:  # fmt: skip
    from relay_wgrad import relay
    from relay_wgrad.relay import IRModule
    from relay_wgrad.relay.graph_executor import GraphModule

    if cotangent is not None:
        given = [*given, cotangent]
    params = [relay.var(f"x{i}", shape=x.shape, dtype=str(x.dtype)) for i, x in enumerate(given)]
    count = len(params) - (cotangent is not None)
    body = row.call(relay, params[:count], n)
    if cotangent is not None:
        body = relay.sum(relay.cast(body, "float32") * params[-1])
    mod = IRModule.from_expr(relay.Function(params, body))
    if cotangent is not None:
        passes = [relay.transform.InferType(), relay.transform.FirstOrderGradient()]
        mod = relay.transform.Sequential(passes)(mod)
    target, device = _device(target)
    executor = GraphModule(relay.build(mod, target=target)["default"](device))
    executor.run(**{f"x{i}": x for i, x in enumerate(given)})
    if cotangent is None:
        return [executor.get_output(0).numpy()]
    floats = [i for i, x in enumerate(given[:-1]) if x.dtype.kind not in "iu" and _free(row, i)]
    return [executor.get_output(1 + i).numpy().astype("float64") for i in floats]


GENERATOR = Generator(
    "half", "reductions in half precision against float64", case=case, labels=labels, check=check
)

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
