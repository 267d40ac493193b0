"""`relay.segment_sum`, which is written with other operators."""

from __future__ import annotations

import numpy as np
import pytest

from relay_wgrad import relay


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("shape", [(5,), (5, 3, 2)])
def test_rows_are_added_by_segment(shape: tuple[int, ...]) -> None:
    """Rows beyond the ids belong to no segment, as in Relay."""
    rows = np.random.default_rng(2).standard_normal(shape).astype("float32")
    ids = np.array([2, 0, 2, 3], "int32")
    x, i = relay.var("x", shape=shape), relay.var("i", shape=(4,), dtype="int32")
    function = relay.Function([x, i], relay.segment_sum(x, i, 5))
    got = relay.create_executor().evaluate(function)(rows, ids).numpy()
    want = np.zeros((5, *shape[1:]), "float32")
    np.add.at(want, ids, rows[:4])
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_the_count_is_that_of_constant_ids_or_of_the_run() -> None:
    x, ids = relay.var("x", shape=(3, 2)), np.array([0, 4, 1], "int32")
    out = relay.testing.run_infer_type(relay.segment_sum(x, relay.const(ids)))
    assert out.checked_type == relay.TensorType((5, 2), "float32")
    made = relay.segment_sum(x, relay.var("i", shape=(3,), dtype="int32"))
    assert relay.testing.run_infer_type(made).checked_type.shape[0] is relay.types.ANY
