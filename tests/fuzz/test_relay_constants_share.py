"""The share of the generator of Relay's constants that every test run pays for."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fuzz import relay_constants
from tests.fuzz.harness import failures
from tests.fuzz.relay_numpy import TOLD, value

pytestmark = pytest.mark.usefixtures("registered")
SHARE = 12


def test_share() -> None:
    """Of operators in turn; those that could make gigabytes are the generator's."""
    wanted = (i for i in range(1000) if _is_cheap(relay_constants.case(5, i)))
    indices = [index for _, index in zip(range(SHARE), wanted, strict=False)]
    assert not failures(relay_constants.GENERATOR, indices, seed=5)


def _is_cheap(line: str) -> bool:
    return relay_constants.labels(line)["op"] in TOLD and not any(
        str(size) in line for size in relay_constants.FAR if abs(size) >= 10**4
    )


def test_a_wrong_value_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    line = (
        '{"op": "take", "args": [["int32", [2, 3], [1, 2, 3, 4, 5, 6]],'
        ' ["int64", [2], [4611686018427387904, -5]]], "attrs": {"axis": null, "mode": "wrap"}}'
    )
    assert not relay_constants.check(line)
    monkeypatch.setattr(relay_constants, "value", lambda *given: [value(*given)[0] + 1])
    assert relay_constants.check(line) == "folded: [5, 2] is not [6, 3]"


def test_values_of_numpy() -> None:
    """What NumPy itself says otherwise, or not at all."""
    a, b = np.array([-(2**31), 7, -7], "int32"), np.array([-1, 0, 2], "int32")
    for op, want in (
        ("divide", [-(2**31), 0, -3]), ("mod", [0, 0, -1]), ("trunc_divide", [-(2**31), 0, -3])
    ):  # fmt: skip
        assert value(op, [a, b], {})[0].tolist() == want
    assert value("left_shift", [a, b], {}) is None


@pytest.mark.parametrize(
    ("op", "dtype", "values"),
    [("argmax", "uint8", "0, 0"), ("argmax", "float32", "-Infinity"), ("argmin", "int8", "127")],
)
def test_extrema_that_a_search_begins_with(op: str, dtype: str, values: str) -> None:
    shape = [values.count(",") + 1]
    attrs = '{"axis": [0], "keepdims": false}'
    line = f'{{"op": "{op}", "args": [["{dtype}", {shape}, [{values}]]], "attrs": {attrs}}}'
    assert not relay_constants.check(line)
