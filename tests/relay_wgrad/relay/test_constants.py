"""Calls of constants: what has no value is refused with its place, and nothing ends the process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from relay_wgrad import relay
from relay_wgrad.pipeline.fold_constant import LARGEST, fold_constants
from relay_wgrad.relay import IRModule
from tests.support.children import run_code

T = relay.transform


def const(value: Any, dtype: str) -> relay.Constant:
    return relay.Constant(np.array(value).astype(dtype))


def folded(expr: Any) -> Any:
    mod = T.InferType()(IRModule.from_expr(relay.Function([], expr)))
    return T.FoldConstant()(mod)["main"].body


def ran(expr: Any, **arrays: Any) -> Any:
    lib = relay.build(IRModule.from_expr(expr), "llvm")
    module = relay.graph_executor.GraphModule(lib["default"](tvm.cpu()))
    module.run(**arrays)
    return module.get_output(0).numpy()


INT = ([7, -7, -(2**31), 5], [2, 2, 1, -1])
ZERO = const([0, 1], "int32")
ONE = const([1, 2], "int32")
X = const([1.0, 2.0, 3.0], "float32")
IMAGE = const(np.ones((1, 1, 2, 2)), "float32")
NONE = const(np.zeros((0, 2)), "float32")


@pytest.mark.parametrize(
    ("expr", "said"),
    [
        (relay.take(X, const([1_000_000_000], "int32"), mode="fast"), r"take: indices.*1000000000"),
        (relay.take(X, const([-1], "int64"), axis=0, mode="fast"), r"in \[0, 3\)"),
        (relay.divide(const(1, "int32"), const(0, "int32")), "divided by zero.*got 0"),
        (relay.divide(ONE, ZERO), "divide: an integer divided by zero.*got 0, 1"),
        (relay.floor_mod(ONE, ZERO), "floor_mod: an integer divided by zero"),
        (relay.left_shift(ONE, const(40, "int32")), "shifts by 0 to 31 bits have a value, got 40"),
        (relay.right_shift(ONE, const([-1, 0], "int32")), "right_shift: shifts by"),
        (relay.power(ONE, ONE), "power: only of floating types"),
        (relay.max(NONE, axis=0), r"max: no element to choose of \(0, 2\) along axis 0"),
        (relay.argmin(NONE), "argmin: no element"),
        (relay.take(NONE, const([0], "int32"), axis=0), "take: no elements to take of"),
        (
            relay.nn.nll_loss(
                const([[1.0, 2.0]], "float32"), const([10**9], "int32"), const([1, 1], "float32")
            ),
            "nn.nll_loss: targets must be in .0, 2.",
        ),
        (relay.repeat(X, 10**12, axis=0), "repeat: a result of 12,000,000,000,000 bytes"),
        (relay.broadcast_to(X, [2**31, 2**31, 3]), "broadcast_to: a result of"),
        (relay.nn.pad(X, [[0, 2**62]]), "nn.pad: a result of"),
        (relay.nn.upsampling(IMAGE, 2.0**31, 2), "TVM cannot compile nn.upsampling"),
        (relay.nn.upsampling(IMAGE, 1e8, 1, method="bilinear"), "nn.upsampling: .* takes a matrix"),
        (
            relay.add(const(True, "bool"), const(True, "bool")),
            "cannot compile add of bool, which it has no arithmetic of: cast it to int32",
        ),
    ],
)
def test_what_has_no_value_stays_and_is_refused_by_name(expr: Any, said: str) -> None:
    assert isinstance(folded(expr), relay.Call)
    with pytest.raises(ValueError, match=said):
        ran(expr)


def test_a_refusal_has_its_place() -> None:
    text = '#[version = "0.0.5"]\ndef @main(%x: int32) {\n  %0 = divide(1, 0);\n  add(%x, %0)\n}'
    mod = T.InferType()(relay.fromtext(text))
    with pytest.raises(ValueError, match=r"divided by zero.*from_string:3:8"):
        relay.build(T.FoldConstant()(mod), "llvm")


def test_a_value_that_is_asked_for_is_computed_first() -> None:
    """1 / (1 - 1) is no more a number than 1 / 0; what does not need it is folded."""
    one = const(1, "int32")
    out = folded(relay.Tuple([relay.divide(one, relay.subtract(one, one)), relay.add(one, one)]))
    assert isinstance(out.fields[0], relay.Call)
    assert out.fields[0].args[1].data == 0
    assert out.fields[1].data == 2
    index = relay.add(const([1], "int32"), const([1], "int32"))
    assert folded(relay.take(X, index, mode="fast")).data == [3.0]
    assert folded(relay.take(X, relay.take(index, const([0], "int32"), mode="fast"))).data == [3.0]


@pytest.mark.longer("a program of each; the generator's share stays")
def test_values() -> None:
    """Folded, and compiled as constants: one program each."""
    cases: list[tuple[Any, Any]] = [
        (relay.cast(const(200, "int32"), "int8"), -56),
        (relay.cast(const(-1, "int32"), "uint8"), 255),
        (relay.cast(const([200, -1], "int32"), "int8"), [-56, -1]),
        (relay.cast(const(1e6, "float32"), "float16"), np.inf),
        (relay.divide(const(1.0, "float32"), const(0.0, "float32")), np.inf),
        (relay.divide(X, const(0.0, "float32")), [np.inf] * 3),
        (relay.trunc_divide(const(-1.0, "float32"), const(0.0, "float32")), -np.inf),
        (relay.divide(const(*INT[:1], "int32"), const(INT[1], "int32")), [3, -3, -(2**31), -5]),
        (relay.divide(const([-(2**31)], "int32"), const([-1], "int32")), [-(2**31)]),
        (relay.mod(const([-(2**31), 7], "int32"), const([-1, -1], "int32")), [0, 0]),
        (relay.clip(const([1, 100], "int8"), -1e10, 50.0), [1, 50]),
        (relay.clip(const([1, 100], "int32"), float("-inf"), float("inf")), [1, 100]),
        (relay.take(X, const([200, 1], "uint8")), [3, 2]),
        (relay.take(X, const([-5, 7], "int64"), mode="wrap"), [2, 2]),
        (relay.take(X, const([2**62, -(2**62)], "int64"), mode="wrap"), [2, 3]),
        (relay.full(const(np.inf, "float16"), [2, 1]), [np.inf, np.inf]),
        (relay.full(const(np.nan, "float32"), []), np.nan),
        (relay.full_like(X, const(-np.inf, "float32")), [-np.inf] * 3),
        (relay.mean(const([1, 4], "int32")), 2),
        (relay.sum(NONE, axis=0), [0, 0]),
        (relay.prod(NONE, axis=0), [1, 1]),
        (relay.mean(NONE, axis=0), [np.nan, np.nan]),
        (relay.max(NONE, axis=1), []),
        (relay.nn.softmax(NONE), np.zeros((0, 2))),
        (relay.variance(const([1.0], "float32"), unbiased=True), np.nan),
    ]
    whole = relay.Tuple([expr for expr, _ in cases])
    lib = relay.build(IRModule.from_expr(whole), "llvm")
    module = relay.graph_executor.GraphModule(lib["default"](tvm.cpu()))
    module.run()
    for i, ((expr, want), out) in enumerate(zip(cases, folded(whole).fields, strict=True)):
        assert isinstance(out, relay.Constant), expr
        assert str(out.data.dtype) == T.InferTypeLocal(expr).dtype
        np.testing.assert_array_equal(out.data, np.reshape(want, out.data.shape))
        np.testing.assert_array_equal(module.get_output(i).numpy(), out.data)


@pytest.mark.longer("starts processes of TVM")
def test_arguments_of_the_run_end_no_process() -> None:
    """In a process of its own: each of these was a signal."""
    script = """
import numpy as np, tvm
from relay_wgrad import relay
def run(expr, *arrays):
    given = {f"p{i}": a for i, a in enumerate(arrays)}
    lib = relay.build(relay.IRModule.from_expr(expr), "llvm")
    module = relay.graph_executor.GraphModule(lib["default"](tvm.cpu()))
    module.run(**given)
    return module.get_output(0).numpy()
def var(i, *shape, dtype="int32"):
    return relay.var(f"p{i}", shape=shape, dtype=dtype)
a, b = np.array([7, -7, -2**31, 5], "int32"), np.array([0, 2, -1, -1], "int32")
for op, want in (
    (relay.divide, [0, -3, -2**31, -5]), (relay.trunc_divide, [0, -3, -2**31, -5]),
    (relay.floor_divide, [0, -4, -2**31, -5]), (relay.mod, [0, -1, 0, 0]),
    (relay.trunc_mod, [0, -1, 0, 0]), (relay.floor_mod, [0, 1, 0, 0]),
):
    got = run(op(var(0, 4), var(1, 4)), a, b)
    assert got.tolist() == want, (op, got)
x, far = np.array([1, 2, 3], "float32"), np.array([10**9, -10**9, 1], "int32")
got = run(relay.take(var(0, 3, dtype="float32"), var(1, 3), mode="fast"), x, far)
assert got.tolist() == [3, 1, 2], got
p, w = np.array([[1, 2], [3, 4]], "float32"), np.ones(2, "float32")
loss = relay.nn.nll_loss(
    var(0, 2, 2, dtype="float32"), var(1, 2), var(2, 2, dtype="float32"), "none", %d
)
assert np.isnan(run(loss, p, np.array([10**9, 1], "int32"), w)).tolist() == [True, False]
assert run(loss, p, np.array([%d, 1], "int32"), w).tolist() == [0, -4]
"""
    code = script % (-(10**9), -(10**9))
    done = run_code(code)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])


@pytest.mark.parametrize(
    ("expr", "said"),
    [
        (lambda: relay.nn.pad(X, [[3, 0]], pad_mode="reflect"), "'reflect' cannot pad an axis"),
        (lambda: relay.nn.pad(NONE, [[1, 0], [0, 0]], pad_mode="edge"), "'edge' cannot pad"),
        (lambda: relay.clip(X, float("nan"), 1.0), "a_min must be a number, got nan"),
        (lambda: relay.nn.upsampling(IMAGE, float("inf"), 2), "positive and finite, got inf"),
        (lambda: relay.nn.upsampling(IMAGE, float("nan"), 2), "positive and finite, got nan"),
        (lambda: relay.nn.upsampling(IMAGE, 2.0**62, 2), "nn.upsampling: a size must be"),
        (lambda: relay.split(NONE, 10**9).astuple(), "at most 10000 sections"),
    ],
)
def test_arguments_that_no_type_has(expr: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        T.InferTypeLocal(expr())


def test_a_pass_needs_no_memory_that_a_run_would_not() -> None:
    big = relay.repeat(X, 10**9, axis=0)
    assert isinstance(folded(big), relay.Call)
    with pytest.raises(ValueError, match="at most 2000 windows are written out"):
        ran(relay.nn.adaptive_avg_pool2d(IMAGE, (10**6, 3)))


def test_a_kernel_of_constants_with_a_huge_result_stays_a_call() -> None:
    """Else the compiler would compute it, and write it into the library."""
    row = relax.const(np.ones((1, 1024), "float32"))

    def calls(rows: int) -> int:
        bb = relax.BlockBuilder()
        with bb.function("main", []):
            with bb.dataflow():
                wide = bb.emit(relax.op.broadcast_to(row, (rows, 1024)))
                out = bb.emit_output(relax.op.add(wide, row))
            bb.emit_func_output(out)
        mod = relax.transform.LegalizeOps()(bb.get())
        mod = fold_constants()(mod)
        relax.analysis.well_formed(mod)
        return mod["main"].script().count("call_tir")

    assert calls(4) == 0
    assert calls(LARGEST // 4096 + 1) == 2


def test_a_result_of_nothing_is_read_back(tmp_path: Path) -> None:
    """As the program's only constant, which TVM would write and not read."""
    path = tmp_path / "lib.so"
    expr = relay.tile(const(np.zeros(0), "int8"), [255, 3])
    relay.build(IRModule.from_expr(expr), "llvm").export_library(path)
    module = relay.graph_executor.GraphModule(relay.load_module(path)["default"](tvm.cpu()))
    module.run()
    assert module.get_output(0).numpy().shape == (255, 0)


@pytest.mark.parametrize("as_parameter", [False, True])
def test_an_empty_constant_as_a_result_is_read_back(tmp_path: Path, as_parameter: bool) -> None:
    """Whether TVM reads one depends on what its memory is: these it did not."""
    path, empty = tmp_path / "lib.so", np.zeros((2, 0, 5), "uint8")
    name = relay.var("w", shape=empty.shape, dtype="uint8")
    first = name if as_parameter else const(empty, "uint8")
    result = relay.Tuple([first, relay.nn.relu(const(np.ones(5), "float32"))])
    mod = IRModule.from_expr(relay.Function([name] if as_parameter else [], result))
    params = {"w": empty} if as_parameter else {}
    relay.build(mod, "llvm", params=params).export_library(path)
    module = relay.graph_executor.GraphModule(relay.load_module(path)["default"](tvm.cpu()))
    module.run()
    assert module.get_output(0).numpy().shape == (2, 0, 5)
    assert module.get_output(1).numpy().tolist() == [1] * 5


@pytest.mark.longer("starts processes of TVM")
def test_memory_that_is_not_there_is_told_by_name(tmp_path: Path) -> None:
    """In a process of its own, with little address space left."""
    script = """
import resource, sys
import numpy as np, tvm
from relay_wgrad import relay
one = relay.Constant(np.array([7], "int8"))
scalar = relay.Constant(np.array(7, "int32"))
n = 10**9
y = relay.var("y", shape=(n, 3), dtype="int8")
def library(expr, params=()):
    return relay.build(relay.IRModule.from_expr(relay.Function(list(params), expr)), "llvm")
made = [
    (library(relay.broadcast_to(one, [n, 3])), {}, "run.*broadcast_to's: 3,000,000,000 bytes"),
    (library(relay.full(scalar, [n, 1], "int32")), {}, "run.*full's: 4,000,000,000 bytes"),
    (library(relay.negative(y), [y]), {"y": np.broadcast_to(np.int8(1), (n, 3))}, "input: .*%y"),
]
made[0][0].export_library(sys.argv[1])
made.append((relay.load_module(sys.argv[1]), {}, "run.*broadcast_to's: 3,000,000,000 bytes"))
import re
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**31,) * 2)
for lib, given, said in made:
    module = relay.graph_executor.GraphModule(lib["default"](tvm.cpu()))
    try:
        module.run(**given)
    except MemoryError as error:
        assert re.search(said, str(error)), (said, str(error))
    else:
        raise AssertionError(said)
"""
    done = run_code(script, str(tmp_path / "lib.so"))
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
