"""Makes `tests/fixtures/keras.json`: what Keras computes, one hash for each result.

    python -m venv /somewhere && /somewhere/bin/pip install keras jax
    KERAS_BACKEND=jax /somewhere/bin/python -m tests.make_keras_fixture
    KERAS_BACKEND=tensorflow /elsewhere/bin/python -m tests.make_keras_fixture

Run from the repository's root.  Cases are drawn from a seed, so every run has the same ones; what
the file has already stays, and a backend must give the same hashes as those before it.  A case is
`by` all that computed it; where one refuses a case, its words are counted and shown.  Neither TVM
nor this package is needed.  XLA of jaxlib 0.10 aborts on case 215: go around it, `--cases :215` and
`--cases 216:`.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
from typing import Any

import numpy as np

from tests.keras_cases import PATH, Array, Case, digest, name, operands

LAYERS = {"Conv2DTranspose": 260, "Conv2D": 60, "lax.conv_transpose": 60}


def draw(rng: Any, layer: str) -> dict[str, Any]:
    """Arguments of one layer."""

    def pick(*values: Any) -> Any:
        return values[rng.randint(len(values))]

    kernel = [int(pick(1, 2, 3, 3, 4, 5)) for _ in range(2)]
    dilated = rng.rand() < 0.2
    strides = [1, 1] if dilated else [int(pick(1, 2, 2, 3, 4)) for _ in range(2)]
    # TensorFlow wants one rate for both axes.
    dilation = [int(pick(2, 3))] * 2 if dilated else [1, 1]
    n, c, k = int(pick(1, 2, 3)), int(rng.randint(1, 6)), int(rng.randint(1, 6))
    size = [int(rng.randint(1, 8)) for _ in range(2)]
    if layer == "lax.conv_transpose":
        turned = bool(rng.rand() < 0.7)
        padding = pick("SAME", "VALID", None, None)
        if padding is None:
            padding = [[int(p) for p in rng.randint(0, 6, 2)] for _ in range(2)]
        return {
            "lhs_shape": [n, *size, c],
            "rhs_shape": [*kernel, *([c, k] if turned else [k, c])],
            "strides": strides,
            "padding": padding,
            "rhs_dilation": dilation,
            "transpose_kernel": not turned,
        }
    groups = 1
    if layer == "Conv2D":
        groups = int(pick(1, 1, 2, 3))
        c, k = groups * int(rng.randint(1, 3)), groups * int(rng.randint(1, 3))
        size = [s + d * (r - 1) for s, r, d in zip(size, kernel, dilation)]  # noqa: B905
    data_format = pick("channels_last", "channels_last", "channels_first")
    arguments = {
        "input_shape": [n, *size, c] if data_format == "channels_last" else [n, c, *size],
        "filters": k,
        "kernel_size": kernel,
        "strides": strides,
        "padding": pick("same", "valid"),
        "data_format": data_format,
        "dilation_rate": dilation,
    }
    if layer == "Conv2D":
        return arguments | {"groups": groups}
    given = rng.rand() < 0.4
    return arguments | {
        "output_padding": [int(rng.randint(0, s)) for s in strides] if given else None
    }


def drawn() -> list[Case]:
    rng = np.random.RandomState(9)
    cases: list[Case] = [
        {
            "layer": "Conv2DTranspose",
            "arguments": {
                "input_shape": [2, 8, 8, 256], "filters": 128, "kernel_size": [2, 2],
                "strides": [2, 2], "padding": "same", "data_format": "channels_last",
                "dilation_rate": [1, 1], "output_padding": None,
            },
        }
    ]  # fmt: skip
    cases += [
        {"layer": layer, "arguments": draw(rng, layer)}
        for layer, count in LAYERS.items()
        for _ in range(count)
    ]
    for seed, case in enumerate(cases):
        case["seed"] = seed
    return cases


# ---- running ---------------------------------------------------------------------------------


def run(case: Case) -> dict[str, Array]:
    """{"y", "dx", "dw"} by the backend that KERAS_BACKEND names."""
    import keras

    arguments = dict(case["arguments"])
    if case["layer"] == "lax.conv_transpose":
        return _by_jax(case, _lax(arguments))
    shape = arguments.pop("input_shape")
    layer = getattr(keras.layers, case["layer"])(use_bias=False, dtype="float64", **arguments)
    layer.build(shape)
    if keras.backend.backend() == "jax":
        return _by_jax(case, lambda x, w: layer.stateless_call([w], [], x)[0])
    import tensorflow as tf

    output = tuple(layer.compute_output_shape(shape))
    x, w, v = operands(case, output)
    layer.set_weights([w])
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
        total = tf.reduce_sum(y * v)
    dx, dw = tape.gradient(total, [x, layer.kernel])
    return {"y": y.numpy(), "dx": dx.numpy(), "dw": dw.numpy()}


def _lax(arguments: Any) -> Any:
    import jax

    arguments.pop("lhs_shape")
    arguments.pop("rhs_shape")
    padding = arguments.pop("padding")
    if not isinstance(padding, str):
        padding = [tuple(side) for side in padding]
    return lambda x, w: jax.lax.conv_transpose(x, w, padding=padding, **arguments)


def _by_jax(case: Case, function: Any) -> dict[str, Array]:
    import jax

    a = case["arguments"]
    shapes = operands(case, ())[:2]
    output = jax.eval_shape(function, *(jax.ShapeDtypeStruct(s.shape, "float64") for s in shapes))
    if 0 in output.shape:
        raise ValueError(f"an empty result: {output.shape} of {a}")

    def all_three(x: Any, w: Any, v: Any) -> Any:
        y, pull = jax.vjp(function, x, w)
        return y, *pull(v)

    y, dx, dw = jax.jit(all_three)(*operands(case, output.shape))
    return {"y": np.asarray(y), "dx": np.asarray(dx), "dw": np.asarray(dw)}


def main() -> None:
    parser = argparse.ArgumentParser(description="What Keras computes, for the tests.")
    parser.add_argument("--cases", default=":", metavar="A:B", help="a range of them; else all")
    first, _, last = parser.parse_args().cases.partition(":")
    os.environ.setdefault("JAX_ENABLE_X64", "1")
    import keras

    backend = keras.backend.backend()
    file = json.loads(PATH.read_text()) if PATH.exists() else {"versions": {}, "cases": []}
    versions = file["versions"] | {
        "keras": keras.__version__,
        backend: __import__(backend).__version__,
    }
    known: dict[int, Case] = {case["seed"]: case for case in file["cases"]}
    refusals: collections.Counter[str] = collections.Counter()
    for case in drawn()[int(first or 0) : int(last) if last else None]:
        if case["layer"].startswith("lax") and backend != "jax":
            continue
        try:
            results = run(case)
        except Exception as error:
            refusals[str(error).strip().splitlines()[0][:100]] += 1
            continue
        found: Case = {
            "output_shape": list(results["y"].shape),
            **{key: digest(value) for key, value in results.items()},
        }
        before = known.get(case["seed"], found)
        if any(before[key] != value for key, value in found.items()):
            raise SystemExit(f"{name(case)}: {backend} differs from {before['by']}: {case}")
        by = {*before.get("by", []), backend}
        known[case["seed"]] = case | found | {"by": sorted(by)}
    lines = ",\n".join(json.dumps(known[seed]) for seed in sorted(known))
    PATH.write_text(f'{{"versions": {json.dumps(versions)}, "cases": [\n{lines}\n]}}\n')
    print(f"{len(known)} cases, {sum(backend in c['by'] for c in known.values())} by {backend}")
    for text, count in refusals.items():
        print(f"{count:4} not: {text}")


if __name__ == "__main__":
    main()
