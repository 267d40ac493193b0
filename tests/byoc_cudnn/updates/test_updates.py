"""Updates of all parameters in a few launches: a kernel's values, and what becomes of a step."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import byoc_cudnn
from byoc_cudnn.building.toolchain import find
from byoc_cudnn.codegen.direct import missing
from byoc_cudnn.updates import UPDATES, UpdatesCall, check
from byoc_cudnn.updates.call import NUMBERS, TILE, numbers_of
from byoc_cudnn.updates.codegen import one_minus
from byoc_cudnn.updates.lower import lower_updates
from relay_wgrad.frontend import TrainingGraph, from_onnx
from relay_wgrad.training import trainer
from relay_wgrad.training.devices import place
from relay_wgrad.training.graph_replay import WARM
from relay_wgrad.training.optim import make_optimizer, optimizer_for
from relay_wgrad.training.step import ADJOINT, step_module
from relay_wgrad.training.trainer import Trainer
from relay_wgrad.training.update import Update, rates
from relay_wgrad.training.update_functions import UPDATE, described
from relay_wgrad.training.whole_step import FOUND, NOT_FINITE, WholeStep, with_update, with_watch
from tests.support.compiled import virtual_machine
from tests.support.cuda_emulated import aligned
from tests.support.cuda_stand_in import Repeating, runtime, stand_in
from tests.support.training_models import residual_net
from tests.support.updates import CASES, COUNTS, expected, library, operands, some_calls, symbols


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("updates")


@pytest.fixture(scope="module")
def made(folder: Path) -> tuple[dict[str, UpdatesCall], Any]:
    """A call for each case, a count, and the library that has them all."""
    calls = some_calls()
    source = UPDATES.generate(list(calls.values()), 90)
    return calls, library(folder, source)


@pytest.mark.longer("compiles every kernel by g++; numbers of updates are training's")
@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("many", (True, True)),
        *itertools.product(CASES, [(True, True), (False, True), (False, False)]),
    ],
)
def test_a_kernel_is_the_rule(made: Any, name: str, flags: tuple[bool, bool]) -> None:
    """Bit for bit, in place; at addresses without 16 bytes too, which the count's offset gives."""
    call = made[0][name]
    given = operands(call, np.random.default_rng(1), *flags)
    shifted = np.zeros(call.counts[-1] + 1, call.dtype)[1:]  # not at 16 bytes
    shifted[...] = given[0 if name == "many" else 5][: len(shifted)]
    given[0 if name == "many" else 5] = shifted
    want = expected(call, given, *flags)
    results = [np.zeros_like(a) for a in want[len(given) :]]
    made[1][call.symbol](*(tvm_ffi.from_dlpack(a) for a in (*given, *results)))
    for i, (got, exact) in enumerate(zip([*given, *results], want, strict=True)):
        np.testing.assert_array_equal(got, exact, err_msg=f"operand {i}")


def test_a_count_is_of_all_values_that_are_not_finite(made: Any) -> None:
    call, rng = made[0]["count"], np.random.default_rng(2)
    given = [aligned(rng.standard_normal(n).astype("float32")) for n in COUNTS]
    partial, found = np.full(call.blocks, -1, "int32"), np.array(-1.0)
    run = [tvm_ffi.from_dlpack(a) for a in (*given, partial, found)]
    made[1]["count"](*run)
    assert found == 0
    given[2][[0, TILE - 1, TILE, TILE + 2]] = [np.nan, np.inf, -np.inf, np.nan]
    given[0][:] = np.inf
    given[1][7] = np.finfo("float32").max
    made[1]["count"](*run)
    assert found == 9
    assert partial.tolist() == [5, 0, 2, 2, 0, 0, 0]


def test_what_is_checked_of_a_call(made: Any) -> None:
    call, run = made[0]["momentum float32"], made[1]["f1"]
    given = operands(call, np.random.default_rng(3), True, True)
    tensors = [tvm_ffi.from_dlpack(a) for a in (*given, np.array(0, "int64"))]
    with pytest.raises(TypeError, match="momentum of 6 tensors float32: expected 27 tensors, got"):
        run(*tensors[1:])
    with pytest.raises(ValueError, match="a tensor has 4096 elements, expected 5"):
        run(tensors[1], *tensors[1:])
    with pytest.raises(TypeError, match="whether to update is of another type"):
        run(*tensors[:-4], tvm_ffi.from_dlpack(np.array(1, "int8")), *tensors[-3:])
    count = len(COUNTS)
    with pytest.raises(ValueError, match="a gradient is a tensor that is written over"):
        run(*tensors[:count], tensors[2 * count], *tensors[count + 1 :])
    with pytest.raises(ValueError, match="two tensors that are written over are one"):
        run(*tensors[: 2 * count], tensors[0], *tensors[2 * count + 1 :])
    before = given[0].copy()
    run(*tensors[:count], tensors[0], *tensors[count + 1 :])  # its own value as its gradient
    assert (given[0] != before).all()


def test_what_there_is_no_kernel_for() -> None:
    good = UpdatesCall("f", "sgd", "float32", (3,), (), numbers_of({}))
    assert check(good)
    for change, reason in (
        ({"rule": "lion"}, "rule 'lion'"), ({"dtype": "float16"}, "dtype 'float16'"),
        ({"counts": ()}, "no tensor"), ({"counts": (3, 0)}, "a tensor of 0 elements"),
        ({"statistics": (1 << 30,)}, "a tensor of"), ({"symbol": "f-"}, "no identifier"),
        ({"numbers": (float("nan"),) * len(NUMBERS)}, "not finite"),
        ({"undecayed": (1,)}, "places (1,) of 1 parameters"),
    ):  # fmt: skip
        assert reason in check(UpdatesCall(**{**vars(good), **change})).reason
    assert one_minus(0.9) == 0.1  # and not 1 - 0.9
    with pytest.raises(ValueError, match="is no kernel of updates"):
        UPDATES.source_of("relay_wgrad_updates_lion_float32")


def test_rules_that_are_told() -> None:
    from tvm.relax.training.optimizer import MomentumSGD

    assert described(make_optimizer("momentum", lr=0.1, weight_decay=0.2)) == {
        "rule": "momentum", "weight_decay": 0.2, "momentum": 0.9
    }  # fmt: skip
    assert described(make_optimizer("sgd", lr=0.5))["rule"] == "sgd"  # type: ignore[index]
    assert described(make_optimizer("adam", lr=0.5))["beta2"] == 0.999  # type: ignore[index]
    assert described(MomentumSGD(0.1, 0.9, nesterov=True)) is None
    assert described(MomentumSGD(0.1, 0.9, dampening=0.5)) is None


# ---- a step --------------------------------------------------------------------------------------


def graph() -> TrainingGraph:
    return from_onnx(residual_net(blocks=0, size=6), batch=2)


def functions(one: TrainingGraph, optimizer: str) -> tvm.IRModule:
    rule = optimizer_for(one, optimizer, 0.1)
    mod = with_update(step_module(one, scaled=True), one, rule, scaled=True, dynamic=True)
    return with_watch(mod, one)


@pytest.mark.longer
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_a_step_is_what_the_operators_give(optimizer: str, folder: Path, registered: None) -> None:
    """Also where it is not to update; parameters and state stay the tensors that they were."""
    one = graph()
    before = functions(one, optimizer)
    mod, entries = lower_updates(before, 90)
    relax.analysis.well_formed(mod)
    assert {e.function: e.symbol != "" for e in entries} == {
        UPDATE: True, FOUND: True, NOT_FINITE: True
    }  # fmt: skip
    rng = np.random.default_rng(0)
    types = before[ADJOINT].ret_ty.fields[0].fields
    outputs = [rng.standard_normal([int(n) for n in ty.shape.values]) for ty in types]
    outputs = [np.asarray(value, "float32") for value in outputs]
    (module,) = mod.attrs["external_mods"]
    built = library(folder, module.inspect_source(), optimizer)
    for name in symbols(module.inspect_source()):
        tvm_ffi.register_global_func(name, built[name], override=True)
    mod = mod.without_attr("external_mods")
    for m in (mod, before):
        del m[ADJOINT]
    machines = [virtual_machine(m) for m in (mod, before)]
    gradients = [rng.standard_normal(one.params[n].shape, "float32") for n in one.trainable]
    control = np.array([4.0, 0, 0, 0, 0, 0, 0])
    results = []
    for vm in machines:
        values = [tvm.runtime.tensor(v) for v in one.params.values()]
        state = [tvm.runtime.tensor(v) for v in optimizer_for(one, optimizer, 0.1).state]
        now: Any = tvm.runtime.tensor(control)
        kept: list[Any] = []
        for wrong in (False, True, False):
            given = [np.full_like(g, np.inf) if wrong else g for g in gradients]

            def function(name: str, vm: Any = vm, given: Any = given) -> Any:
                if name == ADJOINT:
                    return lambda *_: tuple(
                        [tvm.runtime.tensor(a) for a in part] for part in (outputs, given)
                    )
                return vm[name]

            step = WholeStep(function, one, scaled=True, dynamic=True)
            made, state, now = step([rates(one, Update(), 0.1, 0)], values, state, now)
            if vm is machines[0]:
                assert [t.data_ptr() for t in made] == [t.data_ptr() for t in values]
            values = made
            kept.append([a.numpy().copy() for a in (*made, *state, now)])
        found = vm[NOT_FINITE](values).numpy()
        results.append([*kept[0], *kept[1], *kept[2], found])
    for got, want in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-7)
    assert results[0][-1] == 0


@pytest.mark.longer
def test_a_trainer_updates_in_place(
    folder: Path, registered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a GPU does, and as one graph: the results of the CPU, in the tensors that there were."""

    def compiled(mod: tvm.IRModule, progress: Any) -> Any:
        mod, _ = lower_updates(mod, 90)
        (module,) = mod.attrs["external_mods"]
        built = library(folder, module.inspect_source(), "trainer")
        for name in symbols(module.inspect_source()):
            tvm_ffi.register_global_func(name, built[name], override=True)
        return place("cpu").compile(mod.without_attr("external_mods"), progress)

    one, work = graph(), Repeating()
    options: dict[str, Any] = {"lr": 0.02, "dtype": "float16", "loss_scale": "dynamic"}
    on_cpu = Trainer(one, **options)
    where = replace(stand_in(runtime(folder), work), compile=compiled)
    monkeypatch.setattr(trainer, "place", lambda device, options: where)
    ahead = Trainer(one, "cuda", **options)
    on_cpu.loss_scale = ahead.loss_scale = 2.0**18  # float16 overflows, until it does not
    given = [one.random_batch(seed) for seed in range(8)]
    places = [t.data_ptr() for t in ahead.params.values()]
    want = [on_cpu.step(batch) for batch in given]
    np.testing.assert_allclose(list(ahead.train(given)), want, rtol=1e-4)
    assert work.calls == {"done": WARM + 1, "captured": 1, "launches": 8 - WARM}
    assert ahead.skipped == on_cpu.skipped
    assert 0 < ahead.skipped < 8
    assert [t.data_ptr() for t in ahead.params.values()] == places
    pairs = [*zip(ahead.params.values(), on_cpu.params.values(), strict=True)]
    for got, exact in (*pairs, *zip(ahead.state, on_cpu.state, strict=True)):
        np.testing.assert_allclose(got.numpy(), exact.numpy(), rtol=1e-4, atol=1e-6)


def test_other_networks_keep_the_operators(registered: None) -> None:
    """What no kernel is for is told, and stays."""
    one = graph()
    before = functions(one, "sgd")
    func = before[UPDATE]
    before[UPDATE] = func.with_attr("relay_wgrad.update", '{"rule": "lion"}')
    mod, entries = lower_updates(before, 90)
    (told,) = (e for e in entries if e.function == UPDATE)
    assert (told.symbol, told.op) == ("", "updates")
    assert told.reason.startswith("rule 'lion'")
    tvm.ir.assert_structural_equal(mod[UPDATE], before[UPDATE])


@pytest.mark.longer("by nvcc")
def test_kernels_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With nvcc; a module of our own compilation has them in its list."""
    if text := missing(find()):
        pytest.skip(text)
    monkeypatch.setenv("RELAY_WGRAD_CACHE", str(tmp_path))
    calls = [UpdatesCall("f", rule, "float32", (3,), (), (1.0,) * 7) for rule in ("count", "adam")]
    assert len(UPDATES.inputs(UPDATES.generate(calls, 90))) == 2
    assert byoc_cudnn.building.compiled._owners()[UPDATES.plans] == UPDATES.inputs
