"""What Keras computed (`tests/fixtures/keras.json`), its definition, and the conventions."""

from __future__ import annotations

import collections
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from relay_wgrad.conventions import Conversion, jax, keras
from relay_wgrad.layouts import ACTIVATION, KERNEL, to_layout
from relay_wgrad.problem import ConvKind
from tests.support.keras_cases import Array, Case, digest, load, name, operands, reference
from tests.support.problems import torch_reference

CASES = load()
READERS: dict[str, Any] = {
    "Conv2D": keras.conv2d,
    "Conv2DTranspose": keras.conv2d_transpose,
    "lax.conv_transpose": jax.conv_transpose,
}
RESULTS = ("y", "dx", "dw")


def conversion(case: Case) -> Conversion:
    return READERS[case["layer"]](**case["arguments"], dtype="float64")


def computed(found: Conversion, x: Array, w: Array, v: Array) -> dict[str, Array]:
    """The call and its two gradients in its own layouts, the arithmetic PyTorch's in float64."""
    p = replace(found.problem, kernel_layout=KERNEL)
    weight = found.to_oihw(w).copy()
    layout = p.layout(p.roles[2])
    sides = zip(found.around[:2], found.around[2:], strict=True)
    around = to_layout(((0, 0), (0, 0), *sides), ACTIVATION, layout)
    inside = tuple(slice(a, n - b) for (a, b), n in zip(around, v.shape, strict=True))
    plain = p.kind is ConvKind.FPROP
    by_input = ConvKind.DGRAD if plain else ConvKind.FPROP
    grad, data = (v[inside], x) if plain else (x, v[inside])
    dw = torch_reference(p.with_kind(ConvKind.WGRAD), grad, data)
    return {
        "y": np.pad(torch_reference(p, x, weight), around),
        "dx": torch_reference(p.with_kind(by_input), v[inside], weight),
        "dw": found.from_oihw(dw),
    }


def test_how_many_there_are() -> None:
    counts = collections.Counter(case["layer"] for case in CASES)
    assert counts["Conv2DTranspose"] >= 250
    assert counts["Conv2D"] >= 50
    assert counts["lax.conv_transpose"] >= 50
    both = [case for case in CASES if case["by"] == ["jax", "tensorflow"]]
    assert len(both) >= 150
    assert "jax" in set.intersection(*(set(case["by"]) for case in CASES))
    first = CASES[0]["arguments"]
    assert (first["input_shape"], first["filters"]) == ([2, 8, 8, 256], 128)
    assert CASES[0]["output_shape"] == [2, 16, 16, 128]


def test_operands_are_random() -> None:
    """A constant filter would hide a wrong layout: see docs/explanation/transposed.md."""
    for case in CASES[:20]:
        _, w, _ = operands(case, tuple(case["output_shape"]))
        assert w.size < 4 or len(np.unique(w)) > 1


@pytest.mark.parametrize("case", [c for c in CASES if c["layer"] in READERS], ids=name)
def test_conversion(case: Case) -> None:
    """Keras' own tensors, as they lie in memory, through the problem: the bits that Keras gave."""
    found = conversion(case)
    assert found.output_shape == tuple(case["output_shape"])
    x, w, v = operands(case, found.output_shape)
    assert (found.input_shape, found.weight_shape) == (x.shape, w.shape)
    made = computed(found, x, w, v)
    assert {key: digest(made[key]) for key in RESULTS} == {key: case[key] for key in RESULTS}


@pytest.mark.parametrize("case", [c for c in CASES if c["layer"].startswith("Conv")], ids=name)
def test_definition(case: Case) -> None:
    """The definition that the docs give is what Keras does."""
    made = reference(case)
    assert {key: digest(made[key]) for key in RESULTS} == {key: case[key] for key in RESULTS}


def test_a_constant_filter_hides_a_wrong_layout() -> None:
    """Keras' kernel of 2×2×128×256 taken for 2×2×256×128: seen with a random one only."""
    case = CASES[0]
    p = conversion(case).problem
    x, random, _ = operands(case, tuple(case["output_shape"]))
    for w, hidden in ((np.ones_like(random), True), (random, False)):
        misread = np.ascontiguousarray(w.reshape(2, 2, 256, 128).swapaxes(2, 3))
        right, wrong = (torch_reference(p, x, kernel) for kernel in (w, misread))
        assert (np.linalg.norm(wrong - right) < np.linalg.norm(right)) == hidden
        assert np.array_equal(wrong, right) == hidden


def test_kernels_lie_alike() -> None:
    """Both layers' kernels are HWIO of the forward convolution."""
    for layer in ("Conv2D", "Conv2DTranspose"):
        layouts = {conversion(c).problem.kernel_layout for c in CASES if c["layer"] == layer}
        assert layouts == {"HWIO"}
