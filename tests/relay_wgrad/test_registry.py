"""register() and unregister(): what they put into TVM, and that it can all be taken out again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import tvm
from tvm import relax
from tvm.ir import Op

import relay_wgrad
from legalize import rules as kernel_rules
from relay_wgrad import registry
from relay_wgrad.ops import ALL, FAMILY
from relay_wgrad.torch import TrainingStep
from tests.support.children import run_code
from tests.support.malformed import (
    NEW,
    OPS,
    STORED,
    VOLUMES,
    built,
    constructed,
    hand_made,
    operands,
    tensor,
)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Each test begins unregistered and leaves what it found."""
    before = relay_wgrad.is_registered()
    relay_wgrad.unregister()
    yield
    relay_wgrad.unregister()
    if before:
        relay_wgrad.register()


# Every rule that TVM keeps of the ops that this package touches, as text.
SNAPSHOT = """
import torch
import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import Op

KEYS = ("FInferType", "FPrimalGradient", "FLegalize", "FRelaxInferLayout", "FPurity",
        "TMixedPrecisionPolicy", "FInferMixedPrecision", "FNormalize", "FValidate",
        "FCallPacked", "TOpPattern")

def snapshot():
    out = {}
    for name in sorted(str(n) for n in Op.list_op_names()):
        if not name.startswith("relax."):
            continue
        op = Op.get(name)
        for key in KEYS:
            value = op.get_attr(key) if op.has_attr(key) else None
            # The same function object comes back in a new wrapper: its handle tells.
            handle = getattr(value, "__chandle__", None)
            out[name, key] = handle() if callable(handle) else repr(value)
    out["attributes"] = sorted(dir(relax.op.nn))
    out["functions"] = sorted(tvm_ffi.registry.list_global_func_names())
    out["op functions"] = [id(relax.op.nn.conv2d), id(relax.op.nn.conv2d_transpose)]
    return out
"""


def forked(code: str) -> str:
    """What a process prints that has imported all, and registered nothing."""
    done = run_code(SNAPSHOT + code)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def python(code: str) -> str:
    """What a fresh process prints; its failure is this test's."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SNAPSHOT + code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_import_changes_nothing() -> None:
    out = python(
        """
before = snapshot()
import relay_wgrad, legalize, byoc_cudnn
import relay_wgrad.registry, legalize.rules, legalize.composite
after = snapshot()
assert len(before) > 1000
assert before == after, [k for k in after if before.get(k) != after[k]]
assert not relay_wgrad.is_registered()
print("nothing")
"""
    )
    assert out.strip() == "nothing"


def test_unregister_restores_every_rule() -> None:
    """Also after a second round; only the new ops' names stay, since TVM forgets no op."""
    out = forked(
        """
import relay_wgrad
before = snapshot()
for _ in range(2):
    relay_wgrad.register()
    registered = snapshot()
    changed = {k for k in before if before[k] != registered.get(k)}
    assert ("relax.nn.conv2d", "FPrimalGradient") in changed, changed
    assert ("relax.nn.conv2d", "FInferType") in changed
    assert ("relax.nn.conv2d_transpose", "FLegalize") in changed
    relay_wgrad.unregister()
    after = snapshot()
    different = {k for k in before if before[k] != after.get(k)}
    assert not different, different
    new = {k[0] for k in after if k not in before}
    assert new == {
        f"relax.nn.{name}"
        for name in (
            "conv2d_backward_weight", "conv2d_backward_data",
            "conv3d_backward_weight", "conv3d_backward_data",
            "batch_norm_train", "batch_norm_train_backward",
            "group_norm_train", "group_norm_train_backward",
            "resample", "process_mean",
        )
    }, new
print("restored")
"""
    )
    assert out.strip() == "restored"


def rules() -> dict[tuple[str, str], Any]:
    return {
        (d.name, key): Op.get(d.name).get_attr(key)
        for d in ALL
        for key in d.rules
        if Op.get(d.name).has_attr(key)
    }


def test_register_is_idempotent() -> None:
    relay_wgrad.register()
    first = rules()
    relay_wgrad.register()
    assert {k: repr(v) for k, v in rules().items()} == {k: repr(v) for k, v in first.items()}
    assert relay_wgrad.is_registered()
    # One unregister undoes any number of registers.
    relay_wgrad.unregister()
    assert not relay_wgrad.is_registered()
    assert stock_gradient_ops() == STOCK
    relay_wgrad.unregister()
    assert stock_gradient_ops() == STOCK


STOCK = ["relax.nn.conv2d_transpose", "relax.nn.conv2d"]


def stock_gradient_ops() -> list[str]:
    """The convolutions that TVM's Gradient adds to a convolution of one image."""
    bb = relax.BlockBuilder()
    x, w = tensor("data", (2, 4, 8, 8)), tensor("weight", (6, 4, 3, 3))
    with bb.function("main", [x, w]):
        with bb.dataflow():
            y = bb.emit(relax.op.nn.conv2d(x, w))
            loss = bb.emit_output(relax.op.sum(y))
        bb.emit_func_output(loss)
    mod = relax.transform.Gradient("main")(bb.get())
    values = [b.value for block in mod["main_adjoint"].body.blocks for b in block.bindings]
    names = [str(v.op.name) for v in values if isinstance(v, relax.Call)]
    return [name for name in names if "conv2d" in name][1:]  # the first is the convolution itself


def test_round_trips_of_behaviour() -> None:
    bad = {"dilation": [0, 0]}
    for _ in range(2):
        assert stock_gradient_ops() == STOCK
        # Upstream's relation accepts what ours refuses.
        built(operands("conv2d"), lambda a, b: constructed("conv2d", [a, b], bad))
        relay_wgrad.register()
        assert sorted(stock_gradient_ops()) == sorted(f"relax.nn.{op}" for op in NEW)
        with pytest.raises(ValueError, match="conv2d: dilation must be at least 1"):
            built(operands("conv2d"), lambda a, b: constructed("conv2d", [a, b], bad))
        relay_wgrad.unregister()


def test_upstreams_rule_is_reachable_in_either_state() -> None:
    name = "relax.nn.conv2d"
    plain = registry.upstream_rule(name, "FLegalize")
    relay_wgrad.register()
    assert registry.upstream_rule(name, "FLegalize").same_as(plain)
    assert not Op.get(name).get_attr("FLegalize").same_as(plain)
    assert registry.upstream_rule(f"relax.nn.{NEW[0]}", "FLegalize") is None


@pytest.mark.parametrize("op", NEW)
def test_after_unregister(op: str) -> None:
    relay_wgrad.register()
    assert getattr(relax.op.nn, op) is getattr(relay_wgrad, op)
    call = hand_made(op, operands(op), {})
    relay_wgrad.unregister()
    assert not hasattr(relax.op.nn, op)
    why = rf"relax.nn.{op} was unregistered: call relay_wgrad.register\(\) to use it again"
    with pytest.raises(RuntimeError, match=why):
        relax.BlockBuilder().normalize(call)
    relay_wgrad.register()
    assert relax.BlockBuilder().normalize(hand_made(op, operands(op), {})).ty.ndim == 4


@pytest.mark.longer("starts processes of TVM")
def test_never_registered() -> None:
    """A process that has only imported the package."""
    out = forked(
        """
import relay_wgrad
x = relax.Var("x", relax.TensorType((1, 1, 4, 4), "float32"))
for make in (
    lambda: relay_wgrad.conv2d_backward_weight(x, x, 1),
    lambda: relay_wgrad.conv2d_backward_data(x, x, (1, 1, 4, 4)),
):
    try:
        make()
    except RuntimeError as error:
        print(error)
"""
    )
    assert out.splitlines() == [
        f"relax.nn.{op} is not registered: call relay_wgrad.register() first" for op in NEW
    ]


def test_training_before_register_says_so() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU())
    with pytest.raises(ValueError, match=r"gelu.* has no gradient: relay_wgrad.register\(\) comes"):
        TrainingStep(module, torch.zeros(2, 3))


@pytest.mark.longer("starts processes of TVM")
def test_a_rule_registered_above_ours_stays() -> None:
    """Of an op of upstream's and of a new one; and it survives another round."""
    out = forked(
        """
import relay_wgrad
import torch
import tvm
names = [("relax.nn.conv2d", "FPrimalGradient"), ("relax.nn.conv2d", "FLegalize"),
         ("relax.nn.conv2d_backward_data", "FPrimalGradient")]
def theirs(*args):
    raise NotImplementedError
def handle(name, key):
    return Op.get(name).get_attr(key).__chandle__()
before = snapshot()
relay_wgrad.register()
tvm.ir.register_op_attr(*names[0], theirs, 12)
tvm.ir.register_op_attr(*names[1], theirs, 99)
tvm.ir.register_op_attr(*names[2], theirs, 12)
want = [handle(*name) for name in names]
for _ in range(2):
    relay_wgrad.unregister()
    assert [handle(*name) for name in names] == want
    after = snapshot()
    different = {k for k in before if before[k] != after.get(k)}
    assert different == set(names[:2]), different
    relay_wgrad.register()
    assert all(handle(*name) != w for name, w in zip(names, want))
print("kept")
"""
    )
    assert out.strip() == "kept"


# ---- refusing to register ------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.26.0", "0.28.0", "0.28.dev0", "1.27.0", "garbage"])
def test_other_versions_of_tvm_are_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(tvm, "__version__", version)
    with pytest.raises(RuntimeError, match=rf"apache-tvm {version}: needs >=0.27,<0.28"):
        relay_wgrad.register()
    assert not relay_wgrad.is_registered()
    assert stock_gradient_ops() == STOCK


@pytest.mark.parametrize("version", ["0.27.0", "0.27.0.post1", "0.27.1+cu130"])
def test_patch_releases_are_accepted(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(tvm, "__version__", version)
    relay_wgrad.register()
    assert relay_wgrad.is_registered()


def test_missing_hook_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = tvm.get_global_func

    def without_gradient(name: str, *args: Any, **kwargs: Any) -> Any:
        return None if name == "relax.transform.Gradient" else real(name, *args, **kwargs)

    monkeypatch.setattr(tvm, "get_global_func", without_gradient)
    why = "global function relax.transform.Gradient is missing"
    with pytest.raises(RuntimeError, match=why):
        relay_wgrad.register()
    assert not relay_wgrad.is_registered()


@pytest.mark.parametrize("op", NEW)
def test_a_name_that_is_taken_is_refused(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    def someone_elses() -> None:
        """A later TVM's own operator."""

    monkeypatch.setattr(relax.op.nn, op, someone_elses, raising=False)
    with pytest.raises(RuntimeError, match=f"relax.nn.{op} exists already and is not ours"):
        relay_wgrad.register()
    assert getattr(relax.op.nn, op) is someone_elses
    assert stock_gradient_ops() == STOCK


@pytest.mark.longer("starts processes of TVM")
def test_an_op_that_is_taken_is_refused() -> None:
    out = python(
        """
import tvm.ir._ffi_api as ir_api
ir_api.RegisterOp("relax.nn.conv2d_backward_data", "someone else's")
import relay_wgrad
before = snapshot()
try:
    relay_wgrad.register()
except RuntimeError as error:
    print(error)
assert snapshot() == before
"""
    )
    assert "relax.nn.conv2d_backward_data exists already and is not ours" in out


def test_a_failure_half_way_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = kernel_rules.legalize_rule, []

    def fails_later(definition: Any, upstream: Any) -> Any:
        seen.append(definition.name)
        if len(seen) == 3:
            raise KeyError("half way")
        return real(definition, upstream)

    monkeypatch.setattr(kernel_rules, "legalize_rule", fails_later)
    with pytest.raises(KeyError, match="half way"):
        relay_wgrad.register()
    assert len(seen) == 3
    assert not relay_wgrad.is_registered()
    assert stock_gradient_ops() == STOCK
    monkeypatch.undo()
    relay_wgrad.register()
    assert sorted(stock_gradient_ops()) == sorted(f"relax.nn.{op}" for op in NEW)


# ---- what is registered --------------------------------------------------------------------------


def test_every_op_of_the_family_has_every_rule_or_a_reason() -> None:
    relay_wgrad.register()
    assert set(FAMILY) == {f"relax.nn.{op}" for op in (*OPS, *VOLUMES)}
    keys = ("FInferType", "FPrimalGradient", "FLegalize", "FPurity", "TMixedPrecisionPolicy")
    for name, definition in FAMILY.items():
        op = Op.get(name)
        for key in (*keys, "FInferMixedPrecision"):
            assert op.get_attr(key) is not None or definition.missing.get(key), (name, key)
            if key in definition.missing:
                assert definition.missing[key].strip()


OTHER = {
    "strides": [2, 3],
    "padding": [1, 2, 0, 3],
    "dilation": [2, 1],
    "groups": 2,
    "data_layout": "NHWC",
    "grad_layout": "CHWN",
    "kernel_layout": "HWIO",
    "out_dtype": "float64",
    "kernel_size": [3, 2],
}


@pytest.mark.parametrize("dtype", [None, "float16"])
@pytest.mark.parametrize("op", NEW)
def test_text_round_trip(op: str, dtype: str | None) -> None:
    """Every attribute at another value than its default, and at its default."""
    relay_wgrad.register()
    # H=11, pad 1+0, R=3 dilated by 2, stride 2: P=4.  W=10, pad 2+3, S=2, stride 3: Q=5.
    shapes = {"data": (2, 11, 10, 4), "grad": (6, 4, 5, 2), "weight": (3, 2, 2, 6)}
    for attrs, sizes in ((OTHER | {"out_dtype": dtype}, shapes), ({}, None)):
        given = {k: v for k, v in attrs.items() if k in STORED[op]}
        mod = one_call(op, given, sizes)
        again = tvm.script.from_source(mod.script())
        tvm.ir.assert_structural_equal(again, mod)
        assert again.script() == mod.script()
        (call,) = [b.value for b in again["main"].body.blocks[0].bindings]
        stored = {k: list(v) if hasattr(v, "__len__") and not isinstance(v, str) else v
                  for k, v in call.attrs.items()}  # fmt: skip
        assert stored == {**STORED[op], **given}


def one_call(op: str, attrs: dict[str, Any], shapes: dict[str, Any] | None) -> tvm.IRModule:
    bb = relax.BlockBuilder()
    variables = operands(op, shapes)
    with bb.function("main", variables):
        with bb.dataflow():
            shape = None if shapes is None else shapes["data"]
            out = bb.emit_output(constructed(op, list(variables), attrs, shape))
        bb.emit_func_output(out)
    return bb.get()


def test_symbolic_text_round_trip() -> None:
    relay_wgrad.register()
    text = """
@I.ir_module
class Module:
    @R.function
    def main(g: R.Tensor(("n", 6, "h - 2", 6), "float32"), w: R.Tensor((6, 4, 3, 3), "float32"),
             like: R.Tensor(("n", 4, "h", 8), "float32")) -> R.Tensor(("n", 4, "h", 8), "float32"):
        n = T.int64()
        h = T.int64()
        with R.dataflow():
            dx = R.nn.conv2d_backward_data(g, w, R.shape([n, 4, h, 8]))
            R.output(dx)
        return dx
"""
    mod = tvm.script.from_source(text)
    tvm.ir.assert_structural_equal(tvm.script.from_source(mod.script()), mod)
