"""Operators of others that are called as this package's rows are: never taken for them.

A case takes a small program, puts an operator of the namespace `foreign` in the place of one of its
operators, of the same name, overload and signature, and brings the program in by one of the ways.
The operator computes something else: three times the numbers, or the other truth.  It is right
where the results are those of PyTorch, run as it is, or where an operator is refused by its name.

    compile forward 3 12: softplus
    onnx 17 5: Conv | Softmax

The ways: `compile` (torch.compile), `aot` (from_aot), `torch` (from_torch), `step` (TrainingStep),
`onnx` (from_onnx).  A `gradient` program has backward ops in it.
"""

from __future__ import annotations

import random
import re
import sys
import warnings
from typing import Any

from .harness import REFUSED, Generator, main
from .onnx_ops import OPSETS, rows

WAYS = ("compile", "aot", "torch", "step", "onnx")
FORMS = ("forward", "forward", "gradient")
NAMESPACE = "foreign"


def case(seed: int, index: int) -> str:
    rng = random.Random(f"{seed}/{index}")
    way = WAYS[index % len(WAYS)]
    if way == "onnx":
        opset = rng.choice(OPSETS)
        known = sorted(name for name, row in rows().items() if row.since <= opset)
        names = [rng.choice(known) for _ in range(rng.randint(1, 3))]
        return f"onnx {opset} {rng.randrange(1000)}: {' | '.join(names)}"
    from tests.support.torch.op_cases import TAKEN

    form = rng.choice(FORMS)
    return f"{way} {form} {rng.randrange(40)} {rng.randrange(1000)}: {rng.choice([*TAKEN])}"


def labels(line: str) -> dict[str, str]:
    head, _, body = line.partition(": ")
    return {"way": head.split()[0], "op": body.partition(" | ")[0]}


# ---- PyTorch -------------------------------------------------------------------------------------

_library: Any = None
_foreign: dict[Any, Any] = {}


def _other(value: Any) -> Any:
    """What a foreign operator gives for a result of the one of its name; of integers, places maybe,
    the same."""
    import torch

    if isinstance(value, (list, tuple)):
        return type(value)(_other(v) for v in value)
    if not isinstance(value, torch.Tensor):
        return value
    if value.dtype == torch.bool:
        return ~value
    return value * 3 if value.is_floating_point() else value.clone()


def foreign(target: Any) -> Any:
    """The operator of the same name, overload and signature in another namespace."""
    global _library
    import torch
    from torch import library as torch_library

    if target not in _foreign:
        _library = _library or torch_library.Library(NAMESPACE, "DEF")
        schema = re.sub(r"\([a-z]!?( -> \*)?\)", "", str(target._schema)).removeprefix("aten::")
        name = schema.partition("(")[0]
        _library.define(schema)

        def run(*args: Any, **kwargs: Any) -> Any:
            return _other(target(*args, **kwargs))

        _library.impl(name, run, "CompositeExplicitAutograd")
        torch_library.register_fake(f"{NAMESPACE}::{name}", run, lib=_library)
        packet, _, overload = name.partition(".")
        made = getattr(getattr(torch.ops, NAMESPACE), packet)
        _foreign[target] = getattr(made, overload or "default")
    return _foreign[target]


def _program(form: str, name: str, place: int) -> tuple[Any, str]:
    """(a function of images whose graph calls a foreign operator, its name); None where none can
    be put into it."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    from tests.support.torch.op_cases import TAKEN

    function = TAKEN[name]

    def loss(y: Any) -> Any:
        return function(y).double().square().sum()

    traced = torch.func.grad(loss) if form == "gradient" else function
    images = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    graph = make_fx(traced, pre_dispatch=form == "forward")(images)
    nodes = [
        node for node in graph.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
        and node.target.namespace == "aten" and not node.target._schema.is_mutable
        and node.all_input_nodes and _changes(node.meta.get("val"))
    ]  # fmt: skip
    if not nodes:
        return None, ""
    node = nodes[place % len(nodes)]
    node.target = foreign(node.target)
    graph.recompile()
    return graph, str(node.target)


def _changes(value: Any) -> bool:
    import torch

    values = value if isinstance(value, (list, tuple)) else [value]
    return any(
        isinstance(v, torch.Tensor) and (v.is_floating_point() or v.dtype == torch.bool)
        for v in values
    )


def _module(graph: Any) -> Any:
    import torch

    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3, padding=1).double()

        def forward(self, x: Any) -> Any:
            y = self.conv(x)
            z = graph(y.detach())
            z = z[0] if isinstance(z, (list, tuple)) else z
            z = z.double()
            return (y * torch.where(z.isfinite(), z, 0.0).mean()).square().mean()

    return Named()


def _by_pytorch(line: str) -> str | None:
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    import relay_wgrad
    import relay_wgrad.torch as rt
    from relay_wgrad.frontend import from_aot, from_torch
    from tests.support.torch.aot import apart, ran

    relay_wgrad.register()
    head, _, name = line.partition(": ")
    way, form, place, seed = head.split()
    torch.manual_seed(int(seed))
    try:
        graph, called = _program(form, name, int(place))
        if graph is not None:
            module, x = _module(graph), torch.randn(2, 3, 6, 6, dtype=torch.float64)
            parameters = list(module.parameters())
            torch.manual_seed(1)
            want = [v.detach() for v in _gradients(module(x), parameters)]
            torch.manual_seed(1)
            if not all(map(torch.equal, _gradients(module(x), parameters), want)):
                return f"{REFUSED}skipped: PyTorch reads what nothing has written"
            if way == "aot":
                joint = make_fx(lambda x: _gradients(module(x), parameters))(x)
    except Exception as error:  # of any kind: PyTorch does not trace it, or does not run it
        return f"{REFUSED}skipped: {type(error).__name__}: {str(error)[:80]}"
    if graph is None:
        return f"{REFUSED}skipped: nothing to put another one for"
    try:
        if way == "aot":
            made = from_aot(joint, [x])
            far = apart(ran(made, [x]), joint(x))
            return None if far < 1e-8 else f"{called}: off by {far:.1g}"
        if way == "torch":
            from_torch(module, (x,), loss="own")
            node = next(n for n in graph.graph.nodes if str(n.target) == called)
            node.target = next(own for own, made in _foreign.items() if made is node.target)
            graph.recompile()
            torch.manual_seed(1)
            plain = _gradients(module(x), parameters)
            if all(map(torch.equal, plain, want)):
                return f"{REFUSED}skipped: no number depends on what {called} gives"
            return f"{called}: imported"
        if way == "step":
            run = rt.TrainingStep(module, x)
        else:
            torch._dynamo.reset()
            run = torch.compile(module, backend="relay_wgrad")
        torch.manual_seed(1)
        got = _gradients(run(x), parameters)
    except (ValueError, NotImplementedError) as error:
        said = " ".join(str(error).split())
        named = "PyTorch op " in said
        return f"{REFUSED}{said[:100]}" if named else f"{called}: refused by another name: {said}"
    for a, b in zip(got, want, strict=True):
        top = b.abs().max().clamp(min=1e-12)  # squares of 1e200 are none
        far = float(((a - b) / top).norm() / (b / top).norm().clamp(min=1e-12))
        if not far < 1e-8:
            return f"{called}: off by {far:.1g}"
    return None


def _gradients(loss: Any, parameters: list[Any]) -> list[Any]:
    import torch

    return [loss, *torch.autograd.grad(loss, parameters)]


# ---- ONNX ----------------------------------------------------------------------------------------


def _by_onnx(line: str) -> str | None:
    from onnx import helper

    import relay_wgrad
    from relay_wgrad.frontend import from_onnx
    from tests.fuzz.onnx_ops import written

    relay_wgrad.register()
    head, _, body = line.partition(": ")
    _, opset, seed = head.split()
    rng = random.Random(int(seed))
    words = f"f64 op{opset} ties=0 batch=fixed names=plain bn=eval drop=off {seed}: {body}"
    try:
        model = written(words).model()
    except LookupError as error:
        return f"{REFUSED}skipped: {error}"
    read = {result.name for result in model.graph.output}
    for node in reversed(model.graph.node):  # what no output needs is not imported
        if read.intersection(node.output):
            read |= {*node.input}
    node = rng.choice([node for node in model.graph.node if read.intersection(node.output)])
    node.domain = NAMESPACE
    model.opset_import.append(helper.make_opsetid(NAMESPACE, 1))
    try:
        from_onnx(model, loss="mse", weights="initial", dtype="float64", bn="eval", dropout="off")
    except ValueError as error:
        said = " ".join(str(error).split())
        return f"{REFUSED}{said[:100]}" if node.op_type in said else f"names nothing: {said}"
    return f"{NAMESPACE}::{node.op_type} was imported"


def check(line: str) -> str | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _by_onnx(line) if line.startswith("onnx ") else _by_pytorch(line)


GENERATOR = Generator(
    "names", "operators of others that are called as ours: PyTorch's numbers, or a refusal by name",
    case=case, labels=labels, check=check,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
