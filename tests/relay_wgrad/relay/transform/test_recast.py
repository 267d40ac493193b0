"""Operators in another dtype."""

from __future__ import annotations

import pytest

from relay_wgrad import relay
from relay_wgrad.relay.transform import recast


def _two(ops: dict[int, str]) -> relay.Function:
    """Two convolutions, those of `ops` in int8 with results of that dtype."""
    out = relay.var("x", shape=(1, 8, 8, 8))
    params = [out]
    for layer in range(2):
        weight = relay.var(f"w{layer}", shape=(8, 8, 3, 3))
        params.append(weight)
        if layer in ops:
            low = relay.nn.conv2d(
                relay.cast(out, "int8"), relay.cast(weight, "int8"), padding=1, out_dtype=ops[layer]
            )
            out = relay.cast(low, "float32")
        else:
            out = relay.nn.conv2d(out, weight, padding=1)
    return relay.Function(params, out)


@pytest.mark.parametrize(
    ("skipped", "layers"), [(None, (0, 1)), ([0], (1,)), ([-1], (0,)), ([0, 1], ())]
)
def test_layers(skipped: list[int] | None, layers: tuple[int, ...]) -> None:
    got = recast(_two({}), "int8", "int32", skip_layers=skipped)
    assert relay.structural_equal(got, _two(dict.fromkeys(layers, "int32")))


def test_modules_and_tuples() -> None:
    x, y = relay.var("x", shape=(1, 4)), relay.var("y", shape=(1, 4))
    mod = relay.IRModule.from_expr(relay.concatenate([x, y], axis=1))
    made = recast(mod, "float16", "float16", ops=["concatenate"])
    assert "concatenate(%2, axis=1) /* ty=Tensor[(1, 8), float16] */" in made.astext()
    assert str(made["main"].ret_type) == "Tensor[(1, 8), float32]"
    parts = relay.Function([x], relay.split(x, 2, axis=1).astuple())
    assert recast(parts, "float16", "float16", ops=["split"]) is parts  # of several results: left
