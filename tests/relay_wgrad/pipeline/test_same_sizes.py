"""Sizes of the run that the steps of one kernel share."""

from __future__ import annotations

import numpy as np
import pytest

from relay_wgrad import relay

pytestmark = pytest.mark.usefixtures("registered")


def test_three_tensors_of_one_size_are_one_kernel_and_are_compared() -> None:
    x, y, z = (relay.var(name, shape=(relay.Any(), 4)) for name in "xyz")
    run = relay.create_executor("vm").evaluate(relay.Function([x, y, z], x * y + z))
    rng = np.random.default_rng(3)

    def rows(*counts: int) -> list[np.ndarray]:
        return [rng.standard_normal((n, 4)).astype("float32") for n in counts]

    a, b, c = rows(3, 3, 3)
    np.testing.assert_allclose(run(a, b, c).numpy(), a * b + c, 1e-6)
    for counts in ((3, 2, 3), (3, 3, 2), (2, 3, 3), (3, 5, 3), (5, 3, 3), (3, 3, 5)):
        with pytest.raises(ValueError, match="shape"):
            run(*rows(*counts))
