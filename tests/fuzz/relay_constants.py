"""Relay's operators on constants, extreme ones too: what is not refused by name is NumPy's value.

    python -m tests.fuzz.relay_constants --minutes 60

A case is one call, as JSON: {"op", "args": [[dtype, shape, values]], "attrs"}.  It is typed,
folded, built with its arguments as constants, and built and run with them as inputs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .harness import REFUSED, Generator, main

FLOATS, INTS = ("float32", "float64", "float16"), ("int32", "int64", "int8", "uint8")
_BINARY = {
    "divide": None, "floor_divide": np.floor_divide, "trunc_divide": None, "mod": None,
    "trunc_mod": None, "floor_mod": None, "add": np.add, "multiply": np.multiply,
    "left_shift": np.left_shift, "right_shift": np.right_shift, "power": np.power,
}  # fmt: skip
_REDUCE: dict[str, Callable[..., Any]] = {
    "sum": np.sum, "prod": np.prod, "mean": np.mean, "max": np.max, "min": np.min,
    "argmax": np.argmax, "argmin": np.argmin,
}  # fmt: skip
_OTHERS = (
    "take", "cast", "clip", "nn.pad", "strided_slice", "repeat", "tile", "broadcast_to", "full",
    "one_hot", "nn.nll_loss", "split", "reshape", "nn.softmax", "nn.upsampling", "nn.max_pool2d",
)  # fmt: skip
OPS = (*_BINARY, *_REDUCE, *_OTHERS)
_FAR = (0, 1, -1, 2, 3, 5, 40, 255, 10**4, 10**9, 2**31 - 1, -(2**31), 2**40, 2**62)


def _values(rng: np.random.Generator, dtype: str, count: int) -> list[Any]:
    if dtype.startswith("float"):
        pool = [0.0, -0.0, 1.0, -2.5, 7.0, 1e4, float("inf"), float("nan")]
    else:
        info = np.iinfo(dtype)
        pool = [0, 1, 2, 7, int(info.max), int(info.min), -1 if info.min else 3]
    return [pool[i] for i in rng.integers(len(pool), size=count)]


def case(seed: int, index: int) -> str:
    rng = np.random.default_rng((seed, index))
    op = OPS[index % len(OPS)]

    def pick(pool: Any) -> Any:
        return pool[int(rng.integers(len(pool)))]

    def tensor(dtype: str, shape: list[int]) -> list[Any]:
        return [dtype, shape, _values(rng, dtype, int(np.prod(shape)))]

    def far() -> int:
        return int(pick(_FAR))

    dtype = pick(FLOATS + INTS)
    shape = pick([[3], [], [2, 3], [0], [0, 2], [1]])
    args, attrs = [tensor(dtype, shape)], {}
    if op in _BINARY:
        args.append(tensor(dtype, pick([shape, []])))
    elif op in _REDUCE:
        attrs = {"axis": pick([None, [0], [-1], [far()]]), "keepdims": pick([True, False])}
    elif op == "take":
        indices = pick(INTS)
        args.append([indices, [2], np.array([far(), far()]).astype(indices).tolist()])
        attrs = {"axis": pick([None, 0, -1]), "mode": pick(["fast", "clip", "wrap"])}
    elif op == "cast":
        attrs = {"dtype": pick(FLOATS + INTS)}
    elif op == "clip":
        attrs = {"a_min": pick([-1e10, 0.0, float("-inf")]), "a_max": pick([1e10, 5.0, 300.0])}
    elif op == "nn.pad":
        mode = pick(["constant", "edge", "reflect"])
        args.append([dtype, [], [1]])
        attrs = {"pad_width": [[abs(far()), pick([0, 1])] for _ in shape], "pad_mode": mode}
    elif op == "strided_slice":
        attrs = {"begin": [far()], "end": [far()], "strides": [pick([1, -1, 2, far()])]}
    elif op == "repeat":
        attrs = {"repeats": far(), "axis": pick([0, -1, far()])}
    elif op in ("tile", "broadcast_to", "reshape"):
        attrs = {{"tile": "reps", "reshape": "newshape"}.get(op, "shape"): [far(), 3]}
    elif op == "full":
        args, attrs = [tensor(dtype, [])], {"shape": [far(), pick([1, far()])], "dtype": dtype}
    elif op == "one_hot":
        args = [["int32", [2], [pick([0, 1, -1, 10**9]), 1]], [dtype, [], [1]], [dtype, [], [0]]]
        attrs = {"depth": pick([3, far()]), "axis": pick([-1, 0]), "dtype": dtype}
    elif op == "nn.nll_loss":
        targets = ["int64", [2], [pick([0, 1, far()]), far()]]
        args = [["float32", [2, 2], [1.0, 2.0, 3.0, 4.0]], targets, ["float32", [2], [1.0, 2.0]]]
        attrs = {"reduction": "none", "ignore_index": pick([-100, 0, far()])}
    elif op == "split":
        attrs = {"indices_or_sections": pick([far(), [1, 2], [far()]]), "axis": 0}
    elif op == "nn.softmax":
        attrs = {"axis": pick([-1, 0, far()])}
    elif op in ("nn.upsampling", "nn.max_pool2d"):
        args = [tensor("float32", [1, 1, 2, 2])]
        attrs = {"scale_h": float(far()), "scale_w": 2.0}
        if op == "nn.max_pool2d":
            attrs = {"pool_size": [pick([1, 2, far()])] * 2, "padding": [pick([0, 1, far()])] * 2}
    return json.dumps({"op": op, "args": args, "attrs": attrs})


def labels(line: str) -> dict[str, str]:
    found = json.loads(line)
    return {"op": found["op"], "dtype": found["args"][0][0]}


def _reference(op: str, arrays: list[Any], attrs: dict[str, Any]) -> Any:
    """NumPy's value, None where it is not told here."""
    if op in ("add", "multiply"):
        return _BINARY[op](*arrays)  # type: ignore[misc]
    a = arrays[0]
    if op in ("divide", "floor_divide", "floor_mod") and a.dtype.kind != "f":
        if op == "floor_divide":
            return np.floor_divide(*arrays)
        if op == "floor_mod":
            return np.mod(*arrays)
        exact = [_truncated(int(x), int(y)) for x, y in np.broadcast(*arrays)]
        shape = np.broadcast(*arrays).shape
        return np.array(exact, object).reshape(shape).astype("int64").astype(a.dtype)
    if op == "divide":
        return np.divide(*arrays)
    if op == "cast" and a.dtype.kind != "f":
        return a.astype(attrs["dtype"])
    if op == "take" and a.size and a.ndim:
        mode = "clip" if attrs["mode"] == "fast" else attrs["mode"]
        return np.take(a, arrays[1].astype("int64"), attrs["axis"], mode=mode)
    return None


def _truncated(x: int, y: int) -> int:
    if y == 0:
        return 0
    whole = abs(x) // abs(y)
    wrapped = whole if (x < 0) == (y < 0) else -whole
    return wrapped if wrapped < 2**63 else wrapped - 2**64


def check(line: str) -> str | None:
    import tvm

    from relay_wgrad import relay

    found = json.loads(line)
    op, attrs = found["op"], found["attrs"]
    with np.errstate(all="ignore"):
        arrays = [np.array(v, d).reshape(s) for d, s, v in found["args"]]
        want = _reference(op, arrays, attrs)
    constants: list[Any] = [relay.Constant(array) for array in arrays]
    variables: list[Any] = [
        relay.var(f"p{i}", shape=array.shape, dtype=str(array.dtype))
        for i, array in enumerate(arrays)
    ]

    def module(args: list[Any], params: list[Any]) -> Any:
        call = relay.Call(relay.op.get(op), args, attrs)
        return relay.IRModule.from_expr(relay.Function(params, call))

    def run(mod: Any, given: dict[str, Any]) -> Any:
        made = relay.graph_executor.GraphModule(relay.build(mod, "llvm")["default"](tvm.cpu()))
        made.run(**given)
        return made.get_output(0).numpy()

    said = ""
    results = {}
    known = module(constants, [])
    try:
        typed = relay.transform.InferType()(known)
    except (TypeError, ValueError) as error:
        return REFUSED + op if op in str(error) else f"{op} is not named: {error}"
    body = relay.transform.FoldConstant()(typed)["main"].body
    if isinstance(body, relay.Constant):
        results["folded"] = np.asarray(body.data)
    given = {f"p{i}": array for i, array in enumerate(arrays)}
    for name, mod, inputs in (
        ("constants", known, {}), ("inputs", module(variables, variables), given)
    ):  # fmt: skip
        try:
            results[name] = run(mod, inputs)
        except (TypeError, ValueError, MemoryError) as error:
            if op not in str(error):
                return f"{name}: {op} is not named: {type(error).__name__}: {error}"
            said = REFUSED + op
    ty = typed["main"].body.checked_type
    for name, got in results.items():
        if hasattr(ty, "shape") and (got.shape != tuple(ty.shape) or str(got.dtype) != ty.dtype):
            return f"{name}: {got.dtype}{got.shape} is not of type {ty}"
        if want is not None and not np.array_equal(got, want, equal_nan=got.dtype.kind == "f"):
            close = got.dtype.kind == "f" and np.allclose(got, want, rtol=1e-2, equal_nan=True)
            if not close:
                return f"{name}: {got.tolist()} is not {np.asarray(want).tolist()}"
    return said


GENERATOR = Generator(
    "relay_constants",
    "Relay's operators on constants and at the run, against NumPy",
    case=case,
    labels=labels,
    check=check,
    timeout=120,
    memory=12 << 30,
)

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
