"""`ChangeBatch`: a program for another number of images."""

from __future__ import annotations

import numpy as np
import pytest

from relay_wgrad import relay
from relay_wgrad.relay.transform import ChangeBatch


@pytest.mark.longer("a whole network")
@pytest.mark.usefixtures("registered")
def test_the_images_are_as_before() -> None:
    net, params = relay.testing.synthetic.get_workload()
    data = net["main"].params[0]
    many = ChangeBatch({data: 0}, batch_size=3)(net)
    assert many["main"].checked_type.ret_type.shape == (3, 3, 24, 12)
    images = np.random.default_rng(4).standard_normal((3, 3, 24, 12)).astype("float32")
    run = relay.create_executor(mod=many, params=params).evaluate()
    one = relay.create_executor(mod=net, params=params).evaluate()
    want = np.concatenate([one(images[i : i + 1]).numpy() for i in range(3)])
    np.testing.assert_allclose(run(images).numpy(), want, 1e-5)


def test_what_has_no_such_axis_is_refused() -> None:
    x = relay.var("x", shape=(2, 3))
    with pytest.raises(ValueError, match="has no axis 2"):
        ChangeBatch({x: 2})
    with pytest.raises(TypeError, match="must be stated as a tensor"):
        ChangeBatch({relay.var("y"): 0})
