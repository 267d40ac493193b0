"""`tvm.testing`: its fixtures and marks, for one target, LLVM on the CPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm.testing as installed

from tests.upstream.axes import TARGET, Axis

from . import cpu


def _numpy(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)


def assert_allclose(
    actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 1e-7, verbose: bool = True
) -> None:
    """As upstream: of one shape, and near."""
    actual, desired = _numpy(actual), _numpy(desired)
    np.testing.assert_allclose(actual.shape, desired.shape)
    np.testing.assert_allclose(actual, desired, rtol=rtol, atol=atol, verbose=verbose)


def _member(axis: Axis, index: int) -> Any:
    @pytest.fixture
    def value(_self: Any = None) -> Any:  # of a class as well
        raise AssertionError("its tests are spread over the axis")

    value.axis, value.index = axis, index  # type: ignore[attr-defined]
    return value


def parameter(*values: Any, ids: Any = None, by_dict: dict[str, Any] | None = None) -> Any:
    """A fixture that takes each value in turn."""
    if by_dict:
        ids, values = list(by_dict), tuple(by_dict.values())
    rows = [value if hasattr(value, "marks") else (value,) for value in values]
    return _member(Axis(rows, ids and list(ids)), 0)


def parameters(*rows: tuple[Any, ...], ids: Any = None) -> list[Any]:
    """Fixtures that take their values together, a row at a time."""
    axis = Axis([tuple(row) for row in rows], ids and list(ids))
    return [_member(axis, index) for index in range(len(rows[0]))]


def fixture(func: Any = None, *, cache_return_value: bool = False) -> Any:
    """pytest's, of each test its own."""
    return pytest.fixture(func) if func else pytest.fixture


def enabled_targets() -> list[tuple[str, Any]]:
    """LLVM on the CPU."""
    return [(TARGET, cpu())]


def device_enabled(target: Any) -> bool:
    """Whether it is LLVM."""
    return str(target).split()[0] == TARGET


def _same(func: Any) -> Any:
    return func


uses_gpu = requires_llvm = slow = _same


def parametrize_targets(*targets: Any) -> Any:
    """LLVM of the targets; skipped where it is none of them."""
    if len(targets) == 1 and callable(targets[0]):
        return targets[0]
    if any(device_enabled(target) for target in targets):
        return _same
    return pytest.mark.skip(reason=f"for {targets[0]}")


def exclude_targets(*targets: str) -> Callable[[Any], Any]:
    """Skipped where LLVM is one of the targets."""
    return pytest.mark.skip(reason="not for LLVM") if TARGET in targets else _same


def known_failing_targets(*targets: str) -> Callable[[Any], Any]:
    """Expected to fail where LLVM is one of the targets."""
    return pytest.mark.xfail(reason="upstream: fails for LLVM") if TARGET in targets else _same


def requires_package(*names: str) -> Callable[[Any], Any]:
    """Skipped without these packages."""
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skip(reason=f"needs {', '.join(absent)}") if absent else _same


def main() -> None:
    """For files that are run as scripts."""


def __getattr__(name: str) -> Any:
    if name.startswith(("requires_", "skip_if_")):
        mark = pytest.mark.skip(reason=f"{name}: another device")
        return _same if name.startswith("skip_if_") else mark
    return getattr(installed, name)
