"""`relay.create_executor`: tuples as arguments."""

from __future__ import annotations

import numpy as np
import pytest

from relay_wgrad import relay

pytestmark = pytest.mark.usefixtures("registered")


def test_a_tuple_of_tuples_is_an_argument() -> None:
    ty = relay.TensorType((2,), "float32")
    both = relay.var("both", type_annotation=relay.TupleType([relay.TupleType([ty, ty]), ty]))
    x = relay.var("x", shape=(2,))
    inner = relay.TupleGetItem(both, 0)
    parts = [relay.TupleGetItem(inner, 0), relay.TupleGetItem(inner, 1)]
    body = relay.subtract(parts[0] * parts[1], relay.TupleGetItem(both, 1)) + x
    run = relay.create_executor().evaluate(relay.Function([both, x], body))
    a, b, c, d = np.random.default_rng(5).standard_normal((4, 2)).astype("float32")
    np.testing.assert_allclose(run(((a, b), c), d).numpy(), a * b - c + d, 1e-6)
    with pytest.raises(TypeError, match="expected a tuple of 2 values"):
        run((a, b, c), d)
