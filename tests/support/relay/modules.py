"""Small Relay modules for tests of passes, and what TVM's kernels compute for a module."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.text import fromtext
from tests.support.fast import FAST
from tests.support.relay.texts import HEADER

VECTOR = "Tensor[(3), float32]"


def typed(text: str) -> relay.IRModule:
    return T.InferType()(fromtext(HEADER + text))


def equal(a: relay.IRModule, text: str) -> bool:
    return bool(relay.structural_equal(a, typed(text)))


def of_vectors(body: str) -> str:
    return f"def @main(%x: {VECTOR}, %y: {VECTOR}) {{ {body} }}"


def of_body(body: str, params: str) -> relay.IRModule:
    return T.InferType()(relay.fromtext(f"{HEADER}def @main({params}) {{ {body} }}"))


def outputs(mod: relay.IRModule, inputs: dict[str, Any]) -> list[np.ndarray]:
    executor = relay.graph_executor.GraphModule(relay.build(mod, FAST)["default"](tvm.cpu()))
    executor.run(**inputs)
    return [executor.get_output(i).numpy() for i in range(executor.get_num_outputs())]


def close(got: list[np.ndarray], want: list[np.ndarray]) -> bool:
    """Within 1e-4 of the norm, or both zero but for rounding."""
    return len(got) == len(want) and all(
        np.linalg.norm(g - w) <= max(1e-4 * np.linalg.norm(w), 5e-6)
        for g, w in zip(got, want, strict=True)
    )
