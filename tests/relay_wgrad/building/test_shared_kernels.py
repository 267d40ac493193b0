"""Programs share the kernels that they have in common, whatever these are called there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import tirx
from tvm.script import tirx as T

import relay_wgrad.torch as rt
from relay_wgrad.building import objects
from relay_wgrad.building.disk_cache import DiskCache
from relay_wgrad.building.program import Program, compiled_functions
from relay_wgrad.frontend import TrainingGraph, from_torch
from relay_wgrad.training import Trainer
from relay_wgrad.training.evaluation import Evaluator
from tests.support.fast import FAST

pytestmark = pytest.mark.usefixtures("registered")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The kernels that have been compiled, in a cache of the test's."""
    monkeypatch.setenv("RELAY_WGRAD_CACHE", str(tmp_path))
    found: list[str] = []

    def counted(module: tvm.IRModule, *rest: Any, inner: Any = objects.lowered) -> Any:
        found.extend(str(var.name_hint) for var, _ in module.functions_items())
        return inner(module, *rest)

    monkeypatch.setattr(objects, "lowered", counted)
    return found


def kept(folder: Path) -> DiskCache:
    return DiskCache({"RELAY_WGRAD_CACHE": str(folder)})


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8 * 16, 5),
    )  # fmt: skip


def graph(training: bool) -> TrainingGraph:
    return from_torch(network().train(training), (torch.zeros(2, 3, 8, 8),))


def test_an_evaluator_takes_a_trainers_kernels(compiled: list[str]) -> None:
    """All but those of its normalization and of what is fused with it."""
    trainer = Trainer(graph(training=True), FAST)
    assert len(compiled) == len(set(compiled)) > 40
    compiled.clear()
    evaluator = Evaluator(graph(training=False), FAST)
    assert len(compiled) <= 3
    convolutions = {c.problem: c.kernel for c in evaluator.compiled.convolutions}
    assert len(convolutions) == 2
    for conv in trainer.compiled.convolutions:
        if conv.problem in convolutions:
            name = convolutions[conv.problem]
            symbols = evaluator.compiled.symbols[name], trainer.compiled.symbols[conv.kernel]
            assert symbols[0] == symbols[1]
            assert evaluator.compiled.kernel(name) is not None


@pytest.mark.longer("three programs; a trainer's and an evaluator's stay")
def test_another_batch_and_an_evaluation_of_one_step(compiled: list[str]) -> None:
    """Of another batch those that know the batch; of `eval` and `no_grad` what training has not."""
    step = rt.TrainingStep(network(), torch.zeros(4, 3, 8, 8))
    step(torch.zeros(4, 3, 8, 8)).sum().backward()
    first = len(compiled)
    compiled.clear()
    step(torch.zeros(2, 3, 8, 8)).sum().backward()
    assert len(compiled) < first
    compiled.clear()
    step.eval()
    with torch.no_grad():
        step(torch.zeros(2, 3, 8, 8))
    assert len(compiled) <= 3


def scaled(name: str, inner: str, factor: float) -> tirx.PrimFunc:
    """A kernel and its variable of these names."""
    x, y = (tirx.decl_buffer((4,), "float32", name=n) for n in (inner, f"{inner}_out"))
    i = tirx.Var("i", "int32")
    body = tirx.For(
        i, 0, 4, tirx.ForKind.SERIAL, tirx.BufferStore(y, x[i] * T.float32(factor), [i])
    )
    return tirx.PrimFunc([x, y], body).with_attr("global_symbol", name)


def test_equal_kernels_are_compiled_once(compiled: list[str], tmp_path: Path) -> None:
    """Names do not count, numbers do."""
    module = tvm.IRModule({
        "a": scaled("a", "x", 2.0), "b": scaled("b", "other", 2.0), "c": scaled("c", "x", 3.0),
    })  # fmt: skip
    functions = compiled_functions(module, FAST, kept(tmp_path))
    assert len(compiled) == 2
    x = tvm.runtime.tensor(np.arange(4, dtype="float32"))
    for name, factor in (("a", 2), ("b", 2), ("c", 3)):
        y = tvm.runtime.tensor(np.full(4, np.nan, "float32"))
        functions[name](x, y)
        np.testing.assert_array_equal(y.numpy(), factor * x.numpy())


def test_each_kernel_is_told_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(objects.DEBUG, "1")
    module = tvm.IRModule({"a": scaled("a", "x", 2.0), "b": scaled("b", "x", 2.0)})
    for how in (r"compiled in \d+\.\d\d s", "from the cache"):
        compiled_functions(module, FAST, kept(tmp_path))
        assert re.fullmatch(f"a, b: {how}\n", capsys.readouterr().err)


def test_objects_that_have_a_kernel_in_common(
    compiled: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two processes leave them that compile at once: one is taken, and the rest made anew."""
    monkeypatch.setattr(objects, "EACH", 0)  # so that kernels share an object
    factors = {"a": 2.0, "b": 3.0, "c": 4.0}
    all_of_them = {name: scaled(name, "x", factor) for name, factor in factors.items()}
    both = [tmp_path / "one", tmp_path / "other"]
    for folder, names in zip(both, ("ab", "bc"), strict=True):
        compiled_functions(tvm.IRModule({n: all_of_them[n] for n in names}), FAST, kept(folder))
    for path in (both[0] / "built").iterdir():
        shutil.copy(path, both[1] / "built")
    compiled.clear()
    functions = compiled_functions(tvm.IRModule(all_of_them), FAST, kept(both[1]))
    assert len(compiled) == 1
    x = tvm.runtime.tensor(np.arange(4, dtype="float32"))
    for name, factor in factors.items():
        y = tvm.runtime.tensor(np.full(4, np.nan, "float32"))
        functions[name](x, y)
        np.testing.assert_array_equal(y.numpy(), factor * x.numpy())


def var(name: str) -> tvm.ir.GlobalVar:
    return tvm.ir.GlobalVar(name)


def ahead_with(*begun: tirx.PrimFunc, cache: DiskCache) -> objects.Ahead:
    """All of these, begun."""
    ahead = objects.Ahead(FAST, cache)
    for function in begun:
        ahead.begin(function)
    ahead.begin_rest()
    return ahead


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is somebody to work ahead."""
    monkeypatch.setattr(objects, "usable_cores", lambda: {0, 1})


@pytest.mark.usefixtures("two_cores")
def test_what_was_begun_ahead_is_taken(compiled: list[str], tmp_path: Path) -> None:
    """Under another name too; what nobody wants is in the way of nothing."""
    cache = kept(tmp_path)
    begun = [scaled("a", "x", 2.0), scaled("lost", "x", 5.0), scaled("same", "x", 2.0)]
    wanted = {var("b"): scaled("b", "y", 2.0), var("c"): scaled("c", "x", 3.0)}
    with ahead_with(*begun, cache=cache) as ahead:
        ahead.wait()
        assert len(compiled) == 2
        made = objects.objects(wanted, FAST, cache, lambda *_: None, {"b", "c"}, ahead)
    assert len(compiled) == 3
    symbols = objects.symbols_of(made)
    assert set(symbols) == {"b", "c"}
    assert all(each.seconds[symbol] > 0 for each in made for symbol in each.symbols.values())
    compiled.clear()
    with ahead_with(*begun, cache=cache) as ahead:
        again = objects.objects(wanted, FAST, cache, lambda *_: None, {"b", "c"}, ahead)
    assert compiled == []
    assert objects.symbols_of(again) == symbols


@pytest.mark.usefixtures("two_cores")
def test_what_was_kept_with_others_is_taken_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is begun ahead is a part of an object that was kept, and all want another part of it."""
    monkeypatch.setattr(objects, "EACH", 0)  # so that kernels share an object
    cache = kept(tmp_path)
    both = {var("a"): scaled("a", "x", 2.0), var("b"): scaled("b", "x", 3.0)}
    first = objects.objects(both, FAST, cache, lambda *_: None, {"a", "b"})
    wanted = both | {var("c"): scaled("c", "x", 4.0)}
    with ahead_with(scaled("a", "x", 2.0), cache=cache) as ahead:
        ahead.wait()
        made = objects.objects(wanted, FAST, cache, lambda *_: None, {"a", "b", "c"}, ahead)
    defined = [symbol for each in made for symbol in each.defined]
    assert len(first) == 1
    assert len(defined) == len(set(defined)) == 3
    functions = Program([each.content for each in made]).mod
    assert all(functions[symbol] for symbol in objects.symbols_of(made).values())


@pytest.mark.usefixtures("two_cores")
def test_what_fails_ahead_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise tvm.error.InternalError("no kernel")

    monkeypatch.setattr(objects, "lowered", refused)
    begun = {var("a"): scaled("a", "x", 2.0)}
    with ahead_with(*begun.values(), cache=kept(tmp_path)) as ahead:
        ahead.wait()
        with pytest.raises(tvm.error.InternalError, match="no kernel"):
            objects.objects(begun, FAST, kept(tmp_path), lambda *_: None, {"a"}, ahead)


@pytest.mark.usefixtures("two_cores")
def test_a_few_begin_before_the_rest_is_there(compiled: list[str], tmp_path: Path) -> None:
    few = [scaled("a", "x", float(factor)) for factor in range(2, 2 + objects._AHEAD)]
    with objects.Ahead(FAST, kept(tmp_path)) as ahead:
        for function in few[:-1]:
            ahead.begin(function)
        ahead.begin(few[0])  # which is begun
        ahead.wait()
        assert compiled == []
        ahead.begin(few[-1])
        ahead.wait()
        assert len(compiled) == len(few)
