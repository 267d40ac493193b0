"""Relay's operators on constants, extreme ones too: what is not refused by name is NumPy's value.

    python -m tests.fuzz.relay_constants --minutes 60

A case is one call, as JSON: {"op", "args": [[dtype, shape, values]], "attrs"}.  It is typed,
folded, built with its arguments as constants, and built and run with them as inputs.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from .harness import REFUSED, Generator, main
from .relay_numpy import value

FLOATS, INTS = ("float32", "float64", "float16"), ("int32", "int64", "int8", "uint8")
_BINARY = (
    "divide", "floor_divide", "trunc_divide", "mod", "trunc_mod", "floor_mod", "add", "multiply",
    "left_shift", "right_shift", "power",
)  # fmt: skip
_REDUCE = ("sum", "prod", "mean", "max", "min", "argmax", "argmin")
_OTHERS = (
    "take", "cast", "clip", "nn.pad", "strided_slice", "repeat", "tile", "broadcast_to", "full",
    "one_hot", "nn.nll_loss", "split", "reshape", "nn.softmax", "nn.upsampling", "nn.max_pool2d",
)  # fmt: skip
OPS = (*_BINARY, *_REDUCE, *_OTHERS)
_COMPARED = 2**24  # bytes of results whose values are looked at
FAR = (0, 1, -1, 2, 3, 5, 40, 255, 10**4, 10**9, 2**31 - 1, -(2**31), 2**40, 2**62)


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

    def far(*near: int) -> int:
        return int(pick(near if near and pick([True, False]) else FAR))

    dtype = pick(FLOATS + INTS)
    shape = pick([[3], [], [2, 3], [0], [0, 2], [1]])
    args, attrs = [tensor(dtype, shape)], {}
    if op in _BINARY:
        args.append(tensor(dtype, pick([shape, []])))
        if op.endswith("_shift") and pick([True, True, False]):
            args[1][2] = [pick([0, 1, 7]) for _ in args[1][2]]
    elif op in _REDUCE:
        attrs = {"axis": pick([None, [0], [-1], [far(0, 1)]]), "keepdims": pick([True, False])}
    elif op == "take":
        indices = pick(INTS)
        args.append([indices, [2], np.array([far(0, 1), far(2, -1)]).astype(indices).tolist()])
        attrs = {"axis": pick([None, 0, -1]), "mode": pick(["fast", "clip", "wrap"])}
    elif op == "cast":
        attrs = {"dtype": pick(FLOATS + INTS)}
    elif op == "clip":
        attrs = {"a_min": pick([-1e10, 0.0, float("-inf")]), "a_max": pick([1e10, 5.0, 300.0])}
    elif op == "nn.pad":
        mode = pick(["constant", "edge", "reflect"])
        args.append([dtype, [], [1]])
        attrs = {"pad_width": [[abs(far(0, 1)), pick([0, 1])] for _ in shape], "pad_mode": mode}
    elif op == "strided_slice":
        attrs = {"begin": [far(0, 1)], "end": [far(2, 3)], "strides": [pick([1, -1, 2, far()])]}
    elif op == "repeat":
        attrs = {"repeats": far(1, 2, 3), "axis": pick([0, -1, far(0)])}
    elif op in ("tile", "broadcast_to", "reshape"):
        attrs = {{"tile": "reps", "reshape": "newshape"}.get(op, "shape"): [far(1, 2), 3]}
    elif op == "full":
        args, attrs = (
            [tensor(dtype, [])],
            {"shape": [far(1, 2, 3), pick([1, far(2)])], "dtype": dtype},
        )
    elif op == "one_hot":
        args = [["int32", [2], [pick([0, 1, -1, 10**9]), 1]], [dtype, [], [1]], [dtype, [], [0]]]
        attrs = {"depth": pick([3, far()]), "axis": pick([-1, 0]), "dtype": dtype}
    elif op == "nn.nll_loss":
        targets = ["int64", [2], [pick([0, 1, far()]), far()]]
        args = [["float32", [2, 2], [1.0, 2.0, 3.0, 4.0]], targets, ["float32", [2], [1.0, 2.0]]]
        attrs = {"reduction": "none", "ignore_index": pick([-100, 0, far()])}
    elif op == "split":
        attrs = {"indices_or_sections": pick([far(1, 2, 3), [1], [1, 2], [far()]]), "axis": 0}
    elif op == "nn.softmax":
        attrs = {"axis": pick([-1, 0, far(0, -1)])}
        args = [tensor(pick([dtype, *FLOATS]), pick([[3], [2, 3]]))]
    elif op in ("nn.upsampling", "nn.max_pool2d"):
        args = [tensor("float32", [1, 1, 2, 2])]
        attrs = {"scale_h": float(far(1, 2, 3)), "scale_w": 2.0}
        if op == "nn.max_pool2d":
            attrs = {"pool_size": [pick([1, 2, far()])] * 2, "padding": [pick([0, 1, far()])] * 2}
    return json.dumps({"op": op, "args": args, "attrs": attrs})


def labels(line: str) -> dict[str, str]:
    found = json.loads(line)
    return {"op": found["op"], "dtype": found["args"][0][0]}


def check(line: str) -> str | None:
    import tvm

    from relay_wgrad import relay
    from relay_wgrad.relay.records.empty import bytes_of

    found = json.loads(line)
    op, attrs = found["op"], found["attrs"]
    with np.errstate(all="ignore"):
        arrays = [np.array(v, d).reshape(s) for d, s, v in found["args"]]
    constants: list[Any] = [relay.Constant(array) for array in arrays]
    variables: list[Any] = [
        relay.var(f"p{i}", shape=array.shape, dtype=str(array.dtype))
        for i, array in enumerate(arrays)
    ]

    def module(args: list[Any], params: list[Any]) -> Any:
        call = relay.Call(relay.op.get(op), args, attrs)
        return relay.IRModule.from_expr(relay.Function(params, call))

    def run(mod: Any, given: dict[str, Any]) -> list[Any]:
        made = relay.graph_executor.GraphModule(relay.build(mod, "llvm")["default"](tvm.cpu()))
        made.run(**given)
        return [made.get_output(i) for i in range(made.get_num_outputs())]

    known = module(constants, [])
    try:
        typed = relay.transform.InferType()(known)
    except (TypeError, ValueError) as error:
        return REFUSED + op if op in str(error) else f"{op} is not named: {error}"
    ty = typed["main"].body.checked_type
    types = list(ty.fields) if isinstance(ty, relay.TupleType) else [ty]
    # NumPy counts the elements of nothing by 2^62, too.
    longest = max((int(size) for t in types for size in t.shape), default=0)
    is_small = sum(map(bytes_of, types)) <= _COMPARED and longest < 2**40
    said = ""
    results: dict[str, list[Any]] = {}
    body = relay.transform.FoldConstant()(typed)["main"].body
    leaves = list(body.fields) if isinstance(body, relay.Tuple) else [body]
    if all(isinstance(leaf, relay.Constant) for leaf in leaves):
        results["folded"] = [np.asarray(leaf.data) for leaf in leaves]
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
    want = value(op, arrays, attrs) if results and is_small else None
    for name, parts in results.items():
        if len(parts) != len(types) or (want is not None and len(want) != len(types)):
            return f"{name}: {len(parts)} results of type {ty}"
        for i, (part, one) in enumerate(zip(parts, types, strict=True)):
            if tuple(map(int, part.shape)) != tuple(one.shape) or str(part.dtype) != one.dtype:
                return f"{name}: {part.dtype}{tuple(part.shape)} is not of type {one}"
            if want is not None and not _equal(_array(part), want[i]):
                return f"{name}: {_array(part).tolist()} is not {np.asarray(want[i]).tolist()}"
    return said


def _array(tensor: Any) -> Any:
    return tensor if isinstance(tensor, np.ndarray) else tensor.numpy()


def _equal(got: Any, want: Any) -> bool:
    if got.shape != np.shape(want):
        return False
    if got.dtype.kind != "f":
        return bool(np.array_equal(got, want))
    return bool(
        np.allclose(
            got, want, rtol=1e-2, atol=0 if got.dtype == "float64" else 1e-7, equal_nan=True
        )
    )


GENERATOR = Generator(
    "relay_constants",
    "Relay's operators on constants and at the run, against NumPy",
    case=case,
    labels=labels,
    check=check,
    timeout=120,
    memory=6 << 30,
)

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
