"""Programs of objects compute what TVM's do, each kernel is made once, and whatever the cache holds
is right or made anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import tirx as T
from tvm.target import Target

from legalize.cpu import host_target, prim_func
from relay_wgrad.building import objects, program, programs, versions
from relay_wgrad.building.disk_cache import DiskCache
from relay_wgrad.building.program import Program, build
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.problem import ConvProblem
from relay_wgrad.training.compiled import compile_module
from tests.support.fast import FAST
from tests.support.problems import poisoned, random_operands

pytestmark = pytest.mark.usefixtures("registered")
SIZE = 24


def module(constant: float = 0.5, tensor: float = 1.0, size: Any = SIZE) -> tvm.IRModule:
    """Two kernels, a product, a constant in the text, one beside it."""
    bb, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType([size, SIZE], "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            beside = np.arange(SIZE * SIZE, dtype="float32").reshape(SIZE, SIZE) * np.float32(
                tensor
            )
            y = bb.emit(relax.op.matmul(x, relax.const(beside)))
            y = bb.emit(relax.op.exp(relax.op.multiply(y, relax.const(1e-3, "float32"))))
            y = bb.emit(relax.op.sum(y, axis=[1], keepdims=True))
            y = bb.emit_output(relax.op.add(y, relax.const(constant, "float32")))
        bb.emit_func_output(y)
    return bb.get()


def kept(folder: Path) -> DiskCache:
    return DiskCache({"RELAY_WGRAD_CACHE": str(folder)})


def nobody(done: int, of: int, kept: int) -> None:
    """Is told of progress."""


def kernels(made: list[objects.Object]) -> list[str]:
    """Their symbols."""
    return sorted(symbol for each in made for symbol in each.seconds)


def compiled(made: list[objects.Object]) -> list[str]:
    """The symbols of those that were not kept."""
    return sorted(symbol for each in made for symbol, s in each.seconds.items() if s)


def run(executable: Any, rows: int = SIZE) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((rows, SIZE)).astype("float32")
    found: np.ndarray = relax.VirtualMachine(executable, tvm.cpu())["main"](
        tvm.runtime.tensor(x)
    ).numpy()
    return found


@pytest.mark.parametrize("target", [FAST, host_target()], ids=["level 0", "host"])
def test_it_computes_what_tvms_does(target: Target, tmp_path: Path) -> None:
    theirs = run(tvm.compile(module(), target=target, relax_pipeline=cpu_pipeline()))
    for _ in range(2):  # the second time from the cache
        executable, _, made = build(module(), target, cpu_pipeline(), kept(tmp_path))
        assert isinstance(executable, Program)
        np.testing.assert_allclose(run(executable), theirs, rtol=1e-6)
    assert made
    assert compiled(made) == [] != kernels(made)


@pytest.mark.parametrize("target", [FAST, host_target()], ids=["level 0", "host"])
def test_a_tensor_program_alone(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = ConvProblem.parse("fprop n=1 c=3 h=5 w=6 k=4 r=3 s=3 pad=1,1,1,1")
    made = tvm.IRModule({"first": prim_func(problem, target), "second": prim_func(problem, target)})
    a, b = (tvm.runtime.tensor(x) for x in random_operands(problem, np.random.default_rng(0)))
    found = []
    for _ in range(2):  # the second time from the cache
        functions = program.compiled_functions(made, target, kept(tmp_path))
        for name in ("first", "second"):
            found.append(tvm.runtime.tensor(poisoned(problem)))
            functions[name](a, b, found[-1])
        monkeypatch.setattr(objects, "lowered", None)
    want = tvm.compile(prim_func(problem, target), target=target)["main"]
    out = tvm.runtime.tensor(poisoned(problem))
    want(a, b, out)
    for each in found:
        np.testing.assert_array_equal(each.numpy(), out.numpy())


def test_symbolic_sizes(tmp_path: Path) -> None:
    """With kernels of the virtual machine's own, that compute sizes."""
    rows = tirx.Var("n", "int64")
    executable, _, _ = build(module(size=rows), FAST, cpu_pipeline(), kept(tmp_path))
    theirs = tvm.compile(module(size=rows), target=FAST, relax_pipeline=cpu_pipeline())
    for n in (1, 7):
        np.testing.assert_allclose(run(executable, n), run(theirs, n), rtol=1e-6)


def test_it_is_exported(tmp_path: Path) -> None:
    """To a library that TVM loads without this package."""
    executable, _, _ = build(module(), FAST, cpu_pipeline(), kept(tmp_path))
    path = tmp_path / "made.so"
    executable.export_library(path)
    np.save(tmp_path / "wanted.npy", run(executable))
    script = (
        "import numpy as np, sys, tvm\n"
        "from tvm import relax\n"
        f"vm = relax.VirtualMachine(tvm.runtime.load_module({str(path)!r}), tvm.cpu())\n"
        f"x = np.random.default_rng(0).standard_normal(({SIZE}, {SIZE})).astype('float32')\n"
        f"wanted = np.load({str(tmp_path / 'wanted.npy')!r})\n"
        "assert (vm['main'](tvm.runtime.tensor(x)).numpy() == wanted).all()\n"
        "assert not {'relay_wgrad', 'tvm_ffi_orcjit'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_for_another_machine(tmp_path: Path) -> None:
    """Objects that this one cannot run are made, and not loaded."""
    target = Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
    executable, code, made = build(module(), target, cpu_pipeline(), kept(tmp_path))
    machine = {content[18:20] for content in (code, *(each.content for each in made))}
    assert machine == {b"\xb7\x00"}  # ELF's number of AArch64
    assert isinstance(executable, Program)


def test_kernels_that_call_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are one object."""

    @I.ir_module(check_well_formed=False)
    class Two:
        @T.prim_func(private=True)
        def twice(x: T.float32) -> T.float32:
            return x * T.float32(2)

        @T.prim_func
        def main(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")) -> None:
            for i in range(4):
                b[i] = Two.twice(a[i]) + T.float32(1)

    def library_of(functions: Any, target: Target) -> str:
        return " ".join(sorted(str(var.name_hint) for var in functions))

    monkeypatch.setattr(objects, "library_of", library_of)
    monkeypatch.setattr(objects, "content_of", str.encode)
    made = objects.objects(dict(Two.functions_items()), FAST, kept(tmp_path), nobody)
    assert [(each.symbols, each.content) for each in made] == [
        ({"main": "main", "twice": "twice"}, b"main twice")
    ]


def test_each_kernel_is_made_once(tmp_path: Path) -> None:
    """Another network makes those that it has not in common."""
    cache = kept(tmp_path)
    _, _, first = build(module(0.5), FAST, cpu_pipeline(), cache)
    _, _, second = build(module(0.25), FAST, cpu_pipeline(), cache)
    assert 0 < len(compiled(second)) < len(kernels(second)) == len(kernels(first))
    _, _, other = build(module(0.5), host_target(), cpu_pipeline(), cache)
    assert compiled(other) == kernels(other)
    for options in ({"config": {"tirx.disable_vectorize": True}}, {"opt_level": 1}):
        with tvm.transform.PassContext(**options):
            _, _, other = build(module(0.5), FAST, cpu_pipeline(), cache)
        assert compiled(other) == kernels(other)


def test_what_tvm_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of one kernel is raised, and what has not begun is not begun."""
    begun: list[str] = []

    def refused(compiling: tvm.IRModule, target: Target, checks: bool) -> Any:
        begun.append("")
        raise tvm.error.InternalError("no kernel")

    monkeypatch.setattr(objects, "lowered", refused)
    kernels = {tvm.ir.GlobalVar(f"k{i}"): tirx.PrimFunc([], tirx.Evaluate(i)) for i in range(200)}
    with pytest.raises(tvm.error.InternalError, match="no kernel"):
        objects.objects(kernels, FAST, kept(tmp_path), nobody)
    assert len(begun) < len(kernels)


def test_without_a_loader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(program, "loads", lambda: False)
    executable, code, made = build(module(), FAST, cpu_pipeline(), kept(tmp_path))
    assert (code, made) == (b"", [])
    assert run(executable).shape == (SIZE, 1)


# ---- whole programs ------------------------------------------------------------------------------


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Whole programs are kept, in a folder of the test's."""
    monkeypatch.setenv(programs.SWITCH, "1")
    monkeypatch.setenv("RELAY_WGRAD_CACHE", str(tmp_path))
    return tmp_path / "built"


def told(**options: Any) -> tuple[Any, list[str]]:
    said: list[str] = []
    given = {"mod": module(), "target": FAST, "function": "main", **options}
    return compile_module(**given, progress=said.append), said


LOADED = ["loading what was compiled before"]


def test_a_second_one_is_loaded(whole: Path) -> None:
    first, said = told()
    assert "compiling: kernel 1 of" in " ".join(said)
    second, said = told()
    assert said == LOADED
    assert (run(first.executable) == run(second.executable)).all()
    assert second.convolutions == first.convolutions
    assert second.planned_bytes == first.planned_bytes > 0


CHANGES: dict[str, Callable[[], dict[str, Any]]] = {
    "the last bit of a constant": lambda: {
        "mod": module(float(np.nextafter(np.float32(0.5), np.float32(1))))
    },
    "a tensor's numbers": lambda: {"mod": module(tensor=1.0000001)},
    "a size": lambda: {"mod": module(size=SIZE + 1)},
    "the target": lambda: {"target": Target({"kind": "llvm", "opt-level": 1})},
    "a key of the target": lambda: {
        "target": Target({"kind": "llvm", "opt-level": 0, "keys": ["cpu", "winograd"]})
    },
    "the function": lambda: {"mod": renamed(), "function": "other"},
}


def renamed() -> tvm.IRModule:
    return tvm.IRModule({"other": module()["main"].with_attr("global_symbol", "other")})


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_in_its_digest(what: str, whole: Path) -> None:
    told()
    _, said = told(**CHANGES[what]())
    assert said != LOADED


def test_the_pass_context_is_in_its_digest(whole: Path) -> None:
    told()
    for options in ({"opt_level": 1}, {"config": {"tirx.disable_vectorize": True}}):
        with tvm.transform.PassContext(**options):
            assert told()[1] != LOADED


@pytest.mark.parametrize("what", ["compilers", "sources"])
def test_versions_are_in_its_digest(
    what: str, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another TVM, or another file of this project's."""
    told()
    monkeypatch.setattr(programs, what, lambda: (*getattr(versions, what)(), "newer"))
    assert told()[1] != LOADED


def test_rules_are_in_its_digest(whole: Path) -> None:
    import relay_wgrad

    told()
    relay_wgrad.unregister()
    assert told()[1] != LOADED


def test_files_of_the_project_are_told_apart() -> None:
    named = {text.split()[0] for text in versions.sources()}
    assert {"relay_wgrad/building/objects.py", "legalize/rules.py", "byoc_cudnn/table.py"} <= named
    assert any("libtvm" in text for text in versions.compilers())


@pytest.mark.parametrize("how", ["a bit", "cut", "gone"])
def test_any_damaged_file_is_made_anew(how: str, whole: Path) -> None:
    wanted = run(told()[0].executable)
    files = sorted(whole.iterdir())
    assert len(files) > 3
    for path in files:
        content = path.read_bytes() if path.exists() else b""
        if how == "gone" or not content:
            path.unlink(missing_ok=True)
        else:
            at = len(content) // 2
            changed = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
            path.write_bytes(changed if how == "a bit" else content[:at])
        for name in whole.iterdir():  # all but the whole program's: kernels are looked up
            if b'"objects"' in name.read_bytes():
                name.unlink()
        found, said = told()
        assert said != LOADED
        assert (run(found.executable) == wanted).all()
        assert told()[1] == LOADED


def test_the_switch(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told()
    monkeypatch.setenv(programs.SWITCH, "0")
    assert told()[1] != LOADED
    monkeypatch.setenv(programs.SWITCH, "yes")
    with pytest.raises(ValueError, match=r"RELAY_WGRAD_PROGRAMS must be 0 or 1, got 'yes'"):
        told()
    monkeypatch.setenv(programs.SWITCH, "")
    monkeypatch.setenv("RELAY_WGRAD_CACHE_MIB", "0")
    assert told()[1] != LOADED


_CHILD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
import tvm, relay_wgrad
relay_wgrad.register()
from tests.relay_wgrad.building import test_program as tests
if len(sys.argv) > 1:
    from relay_wgrad.building import objects
    def slow(*args, inner=objects.lowered):
        print("one\\n", end="", flush=True)  # in one piece: several threads may
        import time
        time.sleep(float(sys.argv[1]))
        return inner(*args)
    objects.lowered = slow
compiled, said = tests.told()
print(said[-1], float(tests.run(compiled.executable).sum()))
"""


def child(*args: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


@pytest.mark.longer("four processes that import TVM")
def test_processes_that_are_killed_and_two_at_once(whole: Path) -> None:
    """A second process neither transforms nor compiles, whatever became of others before it."""
    killed = child("0.2")
    assert killed.stdout is not None
    assert killed.stdout.readline() == "one\n"
    killed.kill()
    killed.communicate()
    both = [child(), child()]
    texts = [one.communicate()[0].splitlines()[-1] for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert len({text.split()[-1] for text in texts}) == 1
    last = child("0")
    text, errors = last.communicate()
    assert text.startswith(LOADED[0]), (text, errors)  # so nothing was compiled: no line before it
    assert text.split()[-1] == texts[0].split()[-1]


@pytest.mark.longer("a process that imports TVM")
def test_an_interrupt_ends_it_at_once(whole: Path) -> None:
    compiling = child("1.0")
    assert compiling.stdout is not None
    assert compiling.stdout.readline() == "one\n"
    begun = time.perf_counter()
    compiling.send_signal(signal.SIGINT)
    _, errors = compiling.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert time.perf_counter() - begun < 10  # two kernels under way, and the end of Python
