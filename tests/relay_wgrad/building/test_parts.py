"""Parts of kernels compiled once and called: what comes out is what the statements give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.target import Target

from legalize.cpu import host_target, prim_func
from relay_wgrad.building import objects, parts
from relay_wgrad.building.disk_cache import DiskCache
from relay_wgrad.building.program import Program
from relay_wgrad.keys import SYMBOL
from relay_wgrad.problem import ConvProblem
from tests.support.problems import (
    poisoned,
    random_operands,
    relative_error,
    tolerance,
    torch_reference,
)

NARROW = Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2, "opt-level": 1})
LAYOUT = "layout=NCHW/OIHW/NCHW"
# Rows of pixels and of weights that are whole tiles and that are not; a border; channels left over.
PROBLEMS = (
    f"fprop n=2 c=16 h=4 w=8 k=32 r=3 s=3 pad=1,1,1,1 {LAYOUT}",
    f"dgrad n=2 c=20 h=7 w=5 k=24 r=3 s=3 stride=2,2 pad=1,1,1,1 {LAYOUT}",
    f"wgrad n=2 c=40 h=5 w=7 k=19 r=1 s=1 {LAYOUT}",
)
DTYPES = ("f32/f32/f32", "f64/f64/f64", "f16/f16/f16", "bf16/bf16/bf16")


def made(functions: dict[str, tirx.PrimFunc], target: Target, folder: Path) -> list[objects.Object]:
    module = tvm.IRModule({name: f.with_attr(SYMBOL, name) for name, f in functions.items()})
    kept = DiskCache({"RELAY_WGRAD_CACHE": str(folder)})
    return objects.objects(dict(module.functions_items()), target, kept, lambda *told: None)


def parts_in(found: list[objects.Object]) -> dict[str, float]:
    """Symbols of parts, and how long each took; 0.0: it was kept."""
    seconds = {symbol: s for each in found for symbol, s in each.seconds.items()}
    return {symbol: s for symbol, s in seconds.items() if symbol.startswith("part_")}


def result(function: Any, problem: ConvProblem) -> np.ndarray:
    """What a kernel gives, once that has been compared."""
    operands = random_operands(problem, np.random.default_rng(0))
    out = tvm.runtime.tensor(poisoned(problem))
    function(*map(tvm.runtime.tensor, operands), out)
    found: np.ndarray = out.numpy()
    assert relative_error(found, torch_reference(problem, *operands)) <= tolerance(problem)
    return found


@pytest.mark.parametrize(
    ("dtype", "target"), [(DTYPES[0], host_target()), *((dtype, NARROW) for dtype in DTYPES)],
    ids=["host", *DTYPES],
)  # fmt: skip
def test_calls_give_what_statements_do(dtype: str, target: Target, tmp_path: Path) -> None:
    """Bit for bit; one part for each direction, form and pair of dtypes."""
    problems = [ConvProblem.parse(f"{line} dtype={dtype}") for line in PROBLEMS]
    functions = {f"k{i}": prim_func(problem, target) for i, problem in enumerate(problems)}
    found = made(functions, target, tmp_path)
    assert 1 <= len(parts_in(found)) <= 4
    loaded, symbols = Program([each.content for each in found]).mod, objects.symbols_of(found)
    assert symbols.keys() == functions.keys()
    for problem, (name, function) in zip(problems, functions.items(), strict=True):
        alone = tvm.compile(tvm.IRModule({"main": function.with_attr(SYMBOL, "main")}), target)
        want = result(alone["main"], problem)
        np.testing.assert_array_equal(result(loaded[symbols[name]], problem), want)


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("taps", ["r=1 s=2", "r=2 s=1", "r=2 s=2"])
def test_a_part_that_no_loop_is_around(taps: str, dtype: str) -> None:
    """A weight of so few taps is one tile, whose loops TVM drops: what is left of the part stands
    alone, with pointers in it that TVM's plan of memory finds in no statement."""
    target = Target("llvm")
    line = f"dgrad n=2 c=3 h=5 w=5 k=1 {taps} stride=3,1 {LAYOUT} dtype={dtype}"
    problem = ConvProblem.parse(line)
    function = prim_func(problem, target).with_attr(SYMBOL, "main")
    result(tvm.compile(tvm.IRModule({"main": function}), target)["main"], problem)


def test_parts_are_kept_and_shared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another kernel's are there already, with none of the first's."""
    monkeypatch.setattr(objects, "EACH", 0)  # what may share an object does
    one = ConvProblem.parse(PROBLEMS[0])
    first = made({"a": prim_func(one, NARROW)}, NARROW, tmp_path)
    second = made({"b": prim_func(replace(one, n=3), NARROW)}, NARROW, tmp_path)
    assert parts_in(first).keys() == parts_in(second).keys()
    assert all(parts_in(first).values())
    assert not any(parts_in(second).values())
    defined = {symbol for each in second for symbol in each.defined}
    assert not defined & set(objects.symbols_of(first).values())


@pytest.mark.parametrize("gone", [False, True])
def test_an_object_brings_what_its_other_kernels_call(
    gone: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A program takes one kernel of an object that has another program's too, whose part is not
    its own; where that is kept no more the kernel is compiled anew."""
    problems = [ConvProblem.parse(f"{line} dtype={DTYPES[0]}") for line in PROBLEMS]
    functions = {f"k{i}": prim_func(problem, NARROW) for i, problem in enumerate(problems)}
    monkeypatch.setattr(objects, "EACH", 0)  # all kernels in one object
    folder = tmp_path / "all"
    first = made(functions, NARROW, folder)
    all_of = parts_in(first)
    own = {
        name: parts_in(made({name: functions[name]}, NARROW, tmp_path / name)) for name in functions
    }
    name = next(name for name, some in own.items() if some.keys() < all_of.keys())
    if gone:
        for key in {need for each in first for need in each.needs}:
            (file,) = folder.rglob(key)
            file.unlink()
    found = made({name: functions[name]}, NARROW, folder)
    is_kept = not any(second for each in found for second in each.seconds.values())
    assert is_kept != gone
    assert set(parts_in(found)) == set(own[name] if gone else all_of)
    loaded, symbols = Program([each.content for each in found]).mod, objects.symbols_of(found)
    result(loaded[symbols[name]], problems[int(name[1:])])


def test_a_part_of_other_statements_is_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And so are the kernels that call it: what was kept of a former version is not taken."""
    function = prim_func(ConvProblem.parse(PROBLEMS[0]), NARROW)
    before = made({"a": function}, NARROW, tmp_path)
    monkeypatch.setattr(parts, "KNOWN", {
        name: part.with_body(tirx.Evaluate(tirx.IntImm("int32", 0)))
        for name, part in parts.KNOWN.items()
    })  # fmt: skip
    after = made({"a": function}, NARROW, tmp_path)
    assert not parts_in(before).keys() & parts_in(after).keys()
    assert objects.symbols_of(before) != objects.symbols_of(after)


def test_parts_that_are_not_known_stay_statements(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a text that another process has written."""
    problem = ConvProblem.parse(PROBLEMS[0])
    function = prim_func(problem, NARROW)
    want = made({"a": function}, NARROW, tmp_path)
    monkeypatch.setattr(parts, "KNOWN", {})
    found = made({"a": function}, NARROW, tmp_path)
    assert not parts_in(found)
    results = [
        result(Program([e.content for e in each]).mod[objects.symbols_of(each)["a"]], problem)
        for each in (want, found)
    ]
    np.testing.assert_array_equal(*results)
