"""Random small ONNX graphs through `from_onnx`: PyTorch's loss, gradients and running statistics.

A case is a chain of up to four ops of `from_onnx`'s list; attributes, forms of the opset, operands
left out, constants as initializers or nodes come from its seed.  One description writes the graph
and PyTorch's function (`tests.support.onnx.writer`).

    f64 op17 ties=0 batch=open names=plain bn=train drop=mask 321: Conv | Relu | ReduceMax

One in twelve has an op that is not on the list, one in twenty an attribute (`stray=`) that its last
op does not have in this opset, though maybe in another: it must be refused by that name.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from .harness import REFUSED, Generator, main

DTYPES = {"f64": "float64", "f32": "float32"}
OPSETS = (9, 10, 11, 12, 13, 14, 15, 17, 18, 20, 21, 23, 24)
_BOUND = {"f64": 1e-8, "f32": 2e-3}
# Of the largest gradient: a bias before batch normalization has none but rounding.
_FLOOR = {"f64": 1e-6, "f32": 1e-2}
_NOISE = 1e-5  # gradients of a program may all be rounding of numbers near 1
# Attributes that many ops have had, in some opset, and one that none has.
STRAYS = ("axes", "axis", "spatial", "consumed_inputs", "to", "ratio", "mode", "colour")
# What a chain may come to that no graph of a user's has.
_KNOWN = ("batch statistics of",)


def rows() -> dict[str, Any]:
    from tests.support.onnx.curve_cases import CURVES
    from tests.support.onnx.index_cases import INDEXING
    from tests.support.onnx.layer_cases import LAYERS
    from tests.support.onnx.mixing_cases import MIXING
    from tests.support.onnx.op_cases import ELEMENTWISE
    from tests.support.onnx.shape_cases import MOVING, REDUCTIONS

    return {**ELEMENTWISE, **REDUCTIONS, **MOVING, **INDEXING, **MIXING, **LAYERS, **CURVES}


_OPEN = "; the batch is open here"


def case(seed: int, index: int) -> str:
    from tests.support.onnx.layer_cases import STRANGERS

    rng = random.Random(f"{seed}/{index}")
    table = rows()
    opset = rng.choice(OPSETS)
    known = [name for name, row in table.items() if row.since <= opset]
    ties = rng.random() < 0.3
    count = rng.randint(1, 4)
    steps = []
    for i in range(count):
        last = i == count - 1
        steps.append(rng.choice([n for n in known if last or not ties or table[n].exact]))
    if not ties and rng.random() < 1 / 12:
        steps[rng.randrange(count)] = rng.choice(STRANGERS)
    settings = {
        "ties": str(int(ties)), "batch": rng.choice(("fixed", "open", "any")),
        "names": rng.choice(("plain", "plain", "alike")), "bn": rng.choice(("train", "eval")),
        "drop": rng.choice(("mask", "off")),
    }  # fmt: skip
    dtype = "f64" if rng.random() < 0.8 else "f32"
    if rng.random() < 1 / 20:
        settings["stray"] = rng.choice(STRAYS)
    words = " ".join(f"{k}={v}" for k, v in settings.items())
    return f"{dtype} op{opset} {words} {rng.randrange(10**6)}: {' | '.join(steps)}"


def parsed(line: str) -> tuple[dict[str, str], list[str]]:
    head, _, body = line.partition(": ")
    dtype, opset, *settings, seed = head.split()
    fields = dict(item.split("=", 1) for item in settings)
    return {"dtype": dtype, "opset": opset[2:], "seed": seed, **fields}, body.split(" | ")


def labels(line: str) -> dict[str, str]:
    fields, steps = parsed(line)
    return {**{k: v for k, v in fields.items() if k != "seed"}, "op": steps[-1]}


def written(line: str) -> Any:
    """The graph and its PyTorch function."""
    from tests.support.onnx.writer import Writer

    fields, steps = parsed(line)
    w = Writer(
        int(fields["seed"]), dtype=DTYPES[fields["dtype"]], opset=int(fields["opset"]),
        ties=fields["ties"] == "1", collide=fields["names"] == "alike",
        symbolic=fields["batch"] != "fixed",
        options={"bn": fields["bn"], "dropout": fields["drop"]},
    )  # fmt: skip
    scale = w.weight(4, 1, 1)
    w.emit("Mul", w.value, scale)  # so that each case has a parameter
    w.then(lambda x, p: x * p[scale])
    table = rows()
    for name in steps:
        if name not in table:
            w.emit(name, w.value)
            continue
        if len(w.shape) == 0:
            w.emit("Reshape", w.value, w.ints([1]))
            w.then(lambda x, p: x.reshape(1))
        if max(w.shape, default=1) > 4000:
            raise LookupError("too large")
        w.then(table[name].write(w))
    return w


def check(line: str) -> str | None:
    import numpy as np
    import torch

    import relay_wgrad
    from relay_wgrad.frontend import from_onnx
    from tests.support.onnx.models import call

    relay_wgrad.register()
    fields, steps = parsed(line)
    kind, dtype = fields["dtype"], DTYPES[fields["dtype"]]
    w = written(line)
    strangers = [name for name in steps if name not in rows()]
    model = w.model()
    stray = fields.get("stray", "")
    if stray and not _added(model, stray, int(fields["opset"])):
        stray = ""
    try:
        graph = from_onnx(
            model, loss="mse", weights="initial", dtype=dtype, bn=fields["bn"],
            dropout=fields["drop"], batch=w.given[0] if fields["batch"] == "open" else None,
        )  # fmt: skip
        data = graph.inputs[0].name
        adjoint = graph.gradient([data, *graph.trainable])
    except ValueError as error:
        said = str(error)
        promised = [f"ONNX op {name} (" for name in strangers] or list(_KNOWN)
        promised += [f"attribute '{stray}' is none of"] if stray else []
        promised += [_OPEN] if fields["batch"] == "any" else []
        named = any(word in said for word in promised)
        return f"{REFUSED if named else 'refused, but it is on the list: '}{said[:300]}"
    if strangers:
        return f"{strangers[0]} was taken without a word"
    if stray:
        return f"the attribute {stray} was taken without a word"
    if missing := w.trained - {graph.onnx_names[n] for n in graph.trainable}:
        return f"{sorted(missing)} are no parameters"
    if wrong := w.states & {graph.onnx_names[n] for n in graph.trainable}:
        return f"{sorted(wrong)} are trained"
    batch = graph.random_batch(int(fields["seed"]), w.given[0] if graph.is_open else None)
    x = w.draw(*w.given)
    if not w.ties:
        x = w.numbers.standard_normal(w.given).astype(dtype)
    batch[data] = x
    outputs, gradients = call(adjoint, "main_adjoint", graph.arguments(batch))
    leaf = torch.tensor(x.astype("float64"), requires_grad=True)
    leaves: dict[str, Any] = {
        n: torch.tensor(a.astype("float64"), requires_grad=n not in w.states)
        for n, a in w.leaves.items()
    }
    free = {n: v for n, v in leaves.items() if v.requires_grad}
    drawn = [batch[s.name] for s in graph.inputs if s.kind in ("mask", "random")]
    leaves["draws"] = [torch.tensor(d.astype("float64")) for d in drawn]
    leaves["updates"] = {}
    out = w.torch(leaf, leaves)
    loss = ((out - torch.tensor(batch["target"].astype("float64"))) ** 2).mean()
    if outputs[1].numpy().shape != tuple(out.shape):
        return f"a result of {outputs[1].numpy().shape} for {tuple(out.shape)}"
    bound = _BOUND[kind]
    with np.errstate(all="ignore"):
        for what, got, value in (("result", outputs[1], out), ("loss", outputs[0], loss)):
            if not near(got.numpy(), value.detach().numpy(), bound):
                return f"{what} {_shown(got.numpy())} for {_shown(value.detach().numpy())}"
        for name, got in zip(graph.outputs[2:], list(outputs)[2:], strict=True):
            want = leaves["updates"][graph.onnx_names[graph.updates[name]]].detach().numpy()
            if not near(got.numpy(), want, bound):
                return f"{name} {_shown(got.numpy())} for {_shown(want)}"
        wanted = torch.autograd.grad(loss, [leaf, *free.values()], allow_unused=True)
        expected = {
            name: np.zeros(v.shape) if g is None else g.numpy()
            for (name, v), g in zip([(data, leaf), *free.items()], wanted, strict=True)
        }
        finite = [np.abs(g[np.isfinite(g)]).max(initial=0.0) for g in expected.values()]
        floor = max(max(finite) * _FLOOR[kind], _NOISE)
        for name, got in zip([data, *graph.trainable], gradients, strict=True):
            want = expected[graph.onnx_names.get(name, name)]
            if not near(got.numpy(), want, bound, floor):
                error = float(np.linalg.norm(got.numpy() - want)) / max(np.linalg.norm(want), 1e-30)
                return (
                    f"gradient of {name} off by {error:.2g}: {_shown(got.numpy())} for"
                    f" {_shown(want)}"
                )
    return None


def _added(model: Any, name: str, opset: int) -> bool:
    """Gives the last node an attribute, if ONNX does not know it there."""
    import onnx

    from relay_wgrad.frontend.onnx.schema import of_op

    node = model.graph.node[-1]
    if name in of_op(node.op_type, opset).attributes:
        return False
    node.attribute.append(onnx.helper.make_attribute(name, 1))
    return True


def _shown(values: Any) -> str:
    return str(values.ravel()[:6])


def near(got: Any, want: Any, bound: float, floor: float = 0.0) -> bool:
    """Whether two arrays agree in the relative norm, and element by element where not finite."""
    import numpy as np

    finite = np.isfinite(got) & np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return False
    far = np.linalg.norm(np.where(finite, got - want, 0))
    return bool(far <= bound * max(np.linalg.norm(np.where(finite, want, 0)), floor, 1e-9))


GENERATOR = Generator(
    "onnx_ops", "from_onnx's loss and gradients against PyTorch's, or a refusal by name",
    case=case, labels=labels, check=check,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
