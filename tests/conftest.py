"""Fixtures that all tests share.

TVM is imported in functions: xdist's own process, which the others wait for, reads this file and
runs no test.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import relay_wgrad
from tests.support import children, longer
from tests.support.stacks import shallow_stacks

GOLDEN = Path(__file__).parent / "golden"
# What tests compile for CPUs is kept beside what pytest keeps; as kernels alone, since tests put
# code in the place of the package's own, which a whole program's digest does not see.
os.environ.setdefault("RELAY_WGRAD_PROGRAMS", "0")
if not os.environ.get("RELAY_WGRAD_CACHE"):
    os.environ["RELAY_WGRAD_CACHE"] = str(GOLDEN.parents[1] / ".pytest_cache" / "relay-wgrad")

_UNOPTIMIZED = "--xla_backend_optimization_level=0"

# How long a case takes says how busy the machine is.
hypothesis.settings.register_profile("house", deadline=None)
hypothesis.settings.load_profile("house")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden anew, instead of comparing"
    )


def _is_daily(config: pytest.Config) -> bool:
    return "not longer" in config.option.markexpr


def pytest_configure(config: pytest.Config) -> None:
    """What XLA compiles for CPUs, mostly what is compared with, is not optimized on each day."""
    if _is_daily(config) and _UNOPTIMIZED not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_UNOPTIMIZED}".strip()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Tests for a GPU are not imported where none is asked for: each process would do so."""
    of_gpu = collection_path == GOLDEN.parent / "gpu"
    return True if of_gpu and "not gpu" in config.option.markexpr else None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Any:
    """What is imported and collected stays, so the collector of garbage looks at it in vain: an
    eighth of the time.
    """
    gc.disable()
    try:
        with shallow_stacks():  # two dozen scripts of TVM's are parsed as they are imported
            return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    whole = config.args in (["tests"], [str(GOLDEN.parent)]) and not config.option.collectonly
    longer.apply(config, items, GOLDEN.parent, whole)


_spent = pytest.StashKey[float]()  # of the session: a processor's seconds when it was looked last


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """A report has the processor's seconds of its phase, with those of child processes."""
    report, now = (yield), children.processor_seconds()
    report.processor = now - item.session.stash.get(_spent, now)
    item.session.stash[_spent] = now
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Seconds of a processor of tests and of rooms, where `--durations` is asked for.

    Of all processes together; unlike durations they hardly say what else the machine does.
    """
    if not terminalreporter.config.option.durations:
        return
    seconds, tests = defaultdict[str, float](float), Counter[str]()
    functions = Counter[str]()
    for report in (r for some in terminalreporter.stats.values() for r in some):
        if isinstance(report, pytest.TestReport):
            room = str(Path(report.nodeid.partition("::")[0]).parent)
            spent = getattr(report, "processor", 0.0)
            seconds[room] += spent
            functions[report.nodeid.partition("[")[0]] += spent
            tests[room] += report.when == "call"
    # Of these, all cases together: what a table of longer tests is made from.
    terminalreporter.section("a processor's seconds of the tests that take most")
    for function, spent in functions.most_common(40):
        terminalreporter.line(f"{spent:7.1f} {function}")
    terminalreporter.section("a processor's seconds in each room")
    for room, spent in sorted(seconds.items(), key=lambda item: -item[1]):
        terminalreporter.line(f"{spent:7.1f} {tests[room]:5} {room}")
    terminalreporter.line(f"{sum(seconds.values()):7.1f} {tests.total():5} all")


def pytest_collection_finish(session: pytest.Session) -> None:
    """What has been imported and collected stays: the collector need not look at it again.

    It looks at everything whenever a quarter more has come; a sixth of a test's time without this.
    """
    gc.collect()
    gc.freeze()
    session.stash[_spent] = children.processor_seconds()


# Where machine code is the subject, and so is compiled as for users on each day.
_CODE = (
    "tests/legalize/",
    "tests/relay_wgrad/building/",
    "tests/relay_wgrad/pipeline/test_cpu_pipeline.py",
    "tests/relay_wgrad/pipeline/test_ieee.py",
    "tests/relay_wgrad/pipeline/test_math_functions.py",
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """`make test` leaves LLVM's optimizations out where a test is of numbers; `make test-all`
    compiles all as for users.
    """
    from tests.support.fast import unoptimized_programs

    quick = _is_daily(item.config) and not item.nodeid.startswith(_CODE)
    with unoptimized_programs() if quick else nullcontext(), shallow_stacks():
        return (yield)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the file of that name in tests/golden; `--update-golden` writes it."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no {path}: run pytest with --update-golden, and read what it wrote"
        assert text == path.read_text(encoding="utf-8"), f"{path} differs (--update-golden)"

    return compare


_left = pytest.StashKey[bool]()  # of the session: the package's rules are there for the next test


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Takes back the rules that tests before have left, where this one does not ask for them."""
    if "registered" not in getattr(item, "fixturenames", ()):
        _take_back(item.session)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: Any, request: pytest.FixtureRequest) -> None:
    """A module's fixtures begin without the rules, and may leave their own for its tests."""
    if fixturedef.scope != "function":
        _take_back(request.session)


def pytest_sessionfinish(session: pytest.Session) -> None:
    _take_back(session)


def _take_back(session: pytest.Session) -> None:
    if session.stash.get(_left, False):
        relay_wgrad.unregister()
    session.stash[_left] = False


@pytest.fixture
def registered(request: pytest.FixtureRequest) -> Iterator[None]:
    """The package's rules in TVM for the length of one test; as it was before, after.

    Where the next test asks for them too they stay: to register takes longer than most tests.
    """
    stash = request.session.stash
    before = relay_wgrad.is_registered() and not stash.get(_left, False)
    relay_wgrad.register()
    yield
    # A test may itself have unregistered, or left its rules behind: put the state back.
    if before:
        relay_wgrad.register()
    stash[_left] = not before and relay_wgrad.is_registered()


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Nothing that `torch.compile` made before; warnings are put back after the test."""
    import torch

    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # of PyTorch, about itself
        yield


@pytest.fixture
def any_epilogue(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN's epilogues for every problem, for tests of how chains of ops are found and taken."""
    from byoc_cudnn import BACKENDS
    from byoc_cudnn.backends.base import rows_of
    from byoc_cudnn.backends.cudnn import check as cudnn

    def accepts(problem: Any, epilogue: str) -> Any:
        known = epilogue in cudnn.EPILOGUES[problem.kind]
        return cudnn.check(problem, "" if known else epilogue)

    rows = rows_of(cudnn.NAME, cudnn.EPILOGUES, accepts)
    backend = replace(BACKENDS[cudnn.NAME], accepts=accepts, rows=rows)
    monkeypatch.setitem(BACKENDS, cudnn.NAME, backend)
