"""Programs are found by what their modules are made of, before a pass runs; never a wrong one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relax
from tvm.target import Target

import relay_wgrad
from relay_wgrad.building import programs
from relay_wgrad.frontend import TrainingGraph, from_torch
from relay_wgrad.torch import TrainingStep
from relay_wgrad.training import Trainer, Update
from relay_wgrad.training.compiled import LOADING, compile_module
from relay_wgrad.training.evaluation import Evaluator
from relay_wgrad.training.optim import default_lr
from relay_wgrad.training.origins import Origin, options_of

FAST = Target({"kind": "llvm", "opt-level": 0})


@pytest.fixture(autouse=True)
def whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Whole programs are kept, in a folder of the test's."""
    monkeypatch.setenv(programs.SWITCH, "1")
    monkeypatch.setenv("RELAY_WGRAD_CACHE", str(tmp_path))
    return tmp_path / "built"


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    relay_wgrad.register()
    yield
    relay_wgrad.register()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5),
    )  # fmt: skip


X = torch.linspace(-1, 1, 2 * 3 * 6 * 6).reshape(2, 3, 6, 6)


def graph_of(**changes: Any) -> TrainingGraph:
    return replace(from_torch(network(), (X,)), **changes)


@tvm.instrument.pass_instrument
class Passes:
    """The passes that run."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def run_before_pass(self, _: Any, info: Any) -> None:
        self.names.append(str(info.name))


def passes_of(make: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What it makes, and the passes that ran for that."""
    seen, now = Passes(), tvm.transform.PassContext.current()
    with tvm.transform.PassContext(opt_level=now.opt_level, instruments=[seen]):
        made = make()
    return made, seen.names


def trained(graph: TrainingGraph | None = None, **options: Any) -> tuple[Trainer, list[str]]:
    said: list[str] = []
    return Trainer(graph or graph_of(), progress=said.append, **options), said


# ---- what is found -------------------------------------------------------------------------------


def test_a_second_trainer_runs_no_pass() -> None:
    graph = graph_of()
    (first, said), passes = passes_of(lambda: trained(graph, layout="NHWC"))
    assert "differentiating" in said
    assert passes
    (second, said), passes = passes_of(lambda: trained(graph, layout="NHWC"))
    assert (said, passes) == ([LOADING], [])
    assert second.layout_changes == first.layout_changes != (0, 0)
    assert second.compiled.planned_bytes == first.compiled.planned_bytes
    assert second.compiled.convolutions == first.compiled.convolutions
    batches = [graph.random_batch(seed) for seed in range(3)]
    assert [*second.train(batches)] == [*first.train(batches)]
    for name, value in first.params.items():
        assert (second.params[name].numpy() == value.numpy()).all(), name
    assert second.module.script() == first.module.script()  # made when it is asked for


def test_a_second_evaluator_runs_no_pass() -> None:
    graph = from_torch(network().eval(), (X,))
    data = [graph.random_batch(0)]
    first, passes = passes_of(lambda: Evaluator(graph))
    assert passes
    second, passes = passes_of(lambda: Evaluator(graph))
    assert passes == []
    args = [tvm.runtime.tensor(v) for v in graph.arguments(data[0])]
    made = [e.compiled.vm["main_adjoint"](*args)[0].numpy() for e in (first, second)]
    assert made[0] == made[1]


def gradients_of(step: Any, model: nn.Module) -> list[torch.Tensor]:
    torch.manual_seed(1)  # of dropout
    model.zero_grad()
    step(X).square().sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.share(3)
@pytest.mark.parametrize("pieces", [0, (1, 1)])
@pytest.mark.parametrize("mode", [True, False])
def test_a_second_step_runs_no_pass_after_the_import(mode: bool, pieces: Any) -> None:
    model = network().train(mode)
    _, imported = passes_of(lambda: from_torch(model, (X,), loss="none", dropout="mask"))
    first, passes = passes_of(lambda: TrainingStep(model, X, piece_bytes=pieces))
    assert len(passes) > len(imported)
    second, passes = passes_of(lambda: TrainingStep(model, X, piece_bytes=pieces))
    assert passes == imported
    made = [gradients_of(step, model) for step in (first, second)]
    assert len(made[0]) == len(made[1]) == 6
    assert all((a == b).all() for a, b in zip(*made, strict=True))
    wanted = network().train(mode)
    wanted.load_state_dict(model.state_dict())
    if not mode:  # dropout's masks are others than PyTorch's
        for got, want in zip(made[1], gradients_of(wanted, wanted), strict=True):
            torch.testing.assert_close(got, want)


# ---- what is not ---------------------------------------------------------------------------------


class DifferentiatingError(Exception):
    """Nothing was found; nothing more is to be made."""


def is_found(graph: TrainingGraph | None = None, **options: Any) -> bool:
    def stop(what: str) -> None:
        if what == "differentiating":
            raise DifferentiatingError

    try:
        Trainer(graph or graph_of(), progress=stop, **options)
    except DifferentiatingError:
        return False
    return True


def other_epsilon() -> nn.Module:
    model: Any = network()
    model[1].eps = 1.0000001e-5
    return model


OTHERS: dict[str, Callable[[], bool]] = {
    "the optimizer": lambda: is_found(optimizer="adam", lr=default_lr("sgd", graph_of())),
    "a rate": lambda: is_found(lr=0.013),
    "the update": lambda: is_found(update=Update(weight_decay=0.1)),
    "half precision": lambda: is_found(dtype="bfloat16"),
    "a loss scale": lambda: is_found(loss_scale=2.0),
    "a scale that follows": lambda: is_found(loss_scale="dynamic"),
    "checkpoints": lambda: is_found(checkpoint="auto"),
    "the layout": lambda: is_found(layout="NHWC"),
    "what is trained": lambda: is_found(graph_of().partial(freeze="0")),
    "a size": lambda: is_found(from_torch(network(), (X[:1],))),
    "a number in it": lambda: is_found(from_torch(other_epsilon(), (X,))),
    "the target": lambda: is_found(device=Target({"kind": "llvm", "opt-level": 1})),
}


def test_what_is_in_its_digest() -> None:
    trained()
    found = [what for what, is_there in OTHERS.items() if is_there()]
    assert found == []
    assert is_found()
    with tvm.transform.PassContext(opt_level=1):
        assert not is_found()
    relay_wgrad.unregister()
    with pytest.raises((DifferentiatingError, RuntimeError)):
        Trainer(graph_of(), progress=lambda what: pytest.fail(what) if what == LOADING else None)


@pytest.mark.share(2)
@pytest.mark.parametrize("rule", ["FPrimalGradient", "FInferType"])
def test_a_rule_of_someone_else(rule: str) -> None:
    """A digest cannot tell one function from another."""
    trained()
    op, name = tvm.ir.Op.get("relax.nn.relu"), "relax.nn.relu"
    before = op.get_attr(rule)
    try:
        tvm.ir.register_op_attr(name, rule, lambda *args: before(*args), 30)
        assert not is_found()
    finally:
        op.reset_attr(rule)
        tvm.ir.register_op_attr(name, rule, before, 10)
    assert is_found()


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    trained()
    monkeypatch.setenv(programs.SWITCH, "0")
    assert not is_found()
    monkeypatch.setenv(programs.SWITCH, "1")
    assert is_found()
    monkeypatch.setenv("RELAY_WGRAD_CACHE_MIB", "0")
    assert not is_found()


@pytest.mark.share(2)
@pytest.mark.parametrize("how", ["cut", "gone"])
def test_any_damaged_file_is_made_anew(how: str, whole: Path) -> None:
    wanted = trained()[0].loss(graph_of().random_batch(0))
    for path in sorted(whole.iterdir()):
        content = path.read_bytes()
        if b'"told"' not in content and b'"objects"' not in content:
            continue
        at = len(content) // 2
        path.write_bytes(content[:at])
        if how == "gone":
            path.unlink()
        again, said = trained()
        assert said != [LOADING]
        assert again.loss(graph_of().random_batch(0)) == wanted
        assert trained()[1] == [LOADING]


# ---- options -------------------------------------------------------------------------------------


@dataclass
class Said:
    number: int = 1


@dataclass
class Other:
    number: int = 1


VALUES = [
    None, True, 1, 1.0, "1", "None", [1], (1,), {"number": 1}, [[1]], [1, 1], ["list", 1], -0.0,
    0.0, 0.1, float(np.nextafter(0.1, 1)), float("nan"), Said(), Other(), Said(2), {"a": 1, "b": 2},
    {"b": 2, "a": 1}, {1: "a"}, {"1": "a"},
]  # fmt: skip


def module() -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        bb.emit_func_output(bb.emit(relax.op.nn.relu(x)))
    return bb.get()


def test_values_are_told_apart() -> None:
    mod = module()
    compiled = compile_module(mod, FAST, function="main")
    for number, value in enumerate(VALUES):
        assert Origin(mod, {"x": value}, FAST).found() is None, value
        Origin(mod, {"x": value}, FAST).keep(compiled, {"number": number})
    for number, value in enumerate(VALUES):
        found = Origin(mod, {"x": value}, FAST).found()
        assert found is not None, value
        assert found[1] == {"number": number}, value


@pytest.mark.parametrize("value", [object(), print, np.float32(1), {1, 2}, [lambda: None], Said])
def test_what_has_no_value_of_its_own_is_not_kept(value: Any) -> None:
    mod = module()
    Origin(mod, {"x": value}, FAST).keep(compile_module(mod, FAST, function="main"), {})
    assert Origin(mod, {"x": value}, FAST).found() is None


def test_of_a_graph_all_but_numbers_counts() -> None:
    graph = graph_of()
    said = options_of(graph)
    assert said["params"] == [*graph.params]
    assert {"trainable", "inputs", "outputs", "updates", "checkpoint", "tensors"} <= said.keys()
    for a, b in itertools.combinations(["trainable", "outputs"], 2):
        assert said[a] != said[b]
