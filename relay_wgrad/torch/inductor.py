"""Inductor with this package's convolutions, each pass where it is faster here.

Inductor's compiler gets the forward and the backward graph of AOTAutograd; in them each
convolution and each gradient of one becomes this package's operator if that is the choice by the
rule of `optimize` (`choosing`), measured for the sizes, types and memory orders of the graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..ambient import outside
from ..frontend.torch.retracing import number
from ..problem import ConvKind
from .arguments import OPERATORS
from .choosing import TOLERANCE, distance, times_of, why_not
from .kernels import DTYPES
from .reports import CompiledGraph, reported

aten = torch.ops.aten
_KINDS = (ConvKind.DGRAD, ConvKind.WGRAD)  # by their places among the backward op's results
_known: dict[Any, tuple[bool, str]] = {}  # what was measured -> whether ours won, and the times


def compile_rest(graph: torch.fx.GraphModule, example: Sequence[Any], name: str) -> Any:
    """What Inductor makes of Dynamo's graph, with our convolutions where they are faster."""
    from torch._functorch import config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    def inner(graph: torch.fx.GraphModule, example: Sequence[Any], **given: Any) -> Any:
        part = "backward" if given.get("is_backward") else "forward"
        rewrite(graph, reported(f"{name}, {part}, only convolutions"))
        return compile_fx_inner(graph, example, **given)

    # Its cache goes by Dynamo's graph: it would give what plain Inductor has made of a model, and
    # plain Inductor what was made here.
    with config.patch(enable_autograd_cache=False):
        return compile_fx(graph, example, inner_compile=inner)


def rewrite(graph: torch.fx.GraphModule, report: CompiledGraph) -> None:
    """Puts our operators where they win, in place."""
    for node in list(graph.graph.nodes):
        if node.target is aten.convolution.default:
            _consider(graph, node, node, ConvKind.FPROP, report)
        elif node.target is aten.convolution_backward.default:
            for user in list(node.users):
                if user.target is operator.getitem and user.args[1] < len(_KINDS):
                    _consider(graph, node, user, _KINDS[user.args[1]], report)
            read = {user.args[1] for user in node.users if user.users}
            mask = [bool(wanted) and i in read for i, wanted in enumerate(node.args[10])]
            node.args = (*node.args[:10], mask)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _consider(graph: Any, node: Any, result: Any, kind: ConvKind, report: CompiledGraph) -> None:
    name = OPERATORS[kind, 2][0]
    if reason := _not_ours(node):
        report.convolutions.append(f"{name} torch: {reason}")
        return
    operands, arguments = _ours(node, kind)
    overload = getattr(torch.ops.relay_wgrad, name).default
    order = _order(result.meta["val"])
    if order is None:
        report.convolutions.append(f"{name} torch: its result has another memory order")
        return
    wins, said = choice(node, kind, overload, operands, arguments, order)
    report.convolutions.append(f"{name} {'ours' if wins else 'torch'}: {said}")
    if not wins:
        return
    new = _called(node, overload, (*operands, *arguments))
    if _strides(new.meta["val"]) != _strides(result.meta["val"]):
        new = _called(node, aten.clone.default, (new,), memory_format=order)
    new.meta = {**result.meta, "val": new.meta["val"]}
    result.replace_all_uses_with(new)
    graph.graph.erase_node(result)


def _called(before: Any, overload: Any, args: Any, **given: Any) -> Any:
    """A node of the graph, with what it gives for the shapes of its operands."""
    with before.graph.inserting_before(before):
        new = before.graph.call_function(overload, args, given)
    with before.args[0].meta["val"].fake_mode:
        shapes = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
        new.meta = {"val": overload(*shapes, **given)}
    return new


def _strides(value: Any) -> list[int]:
    """Those by which something is reached."""
    pairs = zip(value.shape, value.stride(), strict=True)
    return [number(stride) for size, stride in pairs if number(size) > 1]


def _order(value: Any) -> torch.memory_format | None:
    """The memory order of four axes in which a tensor lies, or None: in none of the two.

    What follows in the graph was traced for it: parts by their places in memory, results' strides.
    """
    sizes = [number(size) for size in value.shape]
    for order in (torch.contiguous_format, torch.channels_last):
        if _strides(torch.empty(sizes, memory_format=order, device="meta")) == _strides(value):
            return order
    return None


def _tensors(node: Any) -> list[Any]:
    """The nodes of its operands, in order; others are of symbolic numbers."""
    nodes = [n for n in node.args if isinstance(n, torch.fx.Node)]
    return [n for n in nodes if isinstance(n.meta["val"], torch.Tensor)]


def _numbers(given: Any) -> Any:
    """Arguments with numbers for what is symbolic, by its example; None is for a tensor."""

    def known(n: Any) -> Any:
        value = n.meta["val"]
        return None if isinstance(value, torch.Tensor) else number(value)

    return torch.fx.node.map_arg(given, known)


def _not_ours(node: Any) -> str:
    """Why a convolution or its gradients are none of our operators', or ""."""
    at = 3 if node.target is aten.convolution.default else 4
    values = [n.meta["val"] for n in _tensors(node)]
    if node.args[at + 3]:
        return "transposed"
    if any(v.dim() != 4 for v in values if v.dim() > 1):  # a bias has one
        return "not of images"
    if values[0].dtype not in DTYPES:
        return f"of {values[0].dtype}"
    sizes = [number(s) for v in values for s in (*v.shape, *v.stride())]
    if not all(isinstance(s, int) for s in sizes):
        return "of sizes that depend on data"
    return ""


def _ours(node: Any, kind: ConvKind) -> tuple[list[Any], list[Any]]:
    """(the tensors, what our operator takes after the first two); symbolic sizes are nodes."""
    at = 3 if kind is ConvKind.FPROP else 4
    # One number in a list stands for both axes.
    stride, padding, dilation = (
        list(given) * (2 if len(given) == 1 else 1) for given in node.args[at : at + 3]
    )
    first, second = node.args[:2]
    like = None
    if kind is ConvKind.DGRAD:
        like, second = node.args[1], node.args[2]
    elif kind is ConvKind.WGRAD:
        like = node.args[2]
    geometry = [stride, [*padding, *padding], dilation, node.args[at + 5]]
    is_gpu = first.meta["val"].device.type == "cuda"
    options = [True if is_gpu else None, None, None]  # benchmark: kernels that were measured
    bias = [] if kind is ConvKind.WGRAD else [node.args[2] if kind is ConvKind.FPROP else None]
    size = [] if like is None else [[_size(node, like, axis) for axis in (2, 3)]]
    return [first, second], [*bias, *size, *geometry, *options]


def _size(node: Any, of: Any, axis: int) -> Any:
    """A tensor's size: a number, or a node before another one that takes it at each call."""
    size = of.meta["val"].shape[axis]
    if isinstance(size, int):
        return size
    return _called(node, aten.sym_size.int, (of, axis))


def choice(
    node: Any, kind: ConvKind, overload: Any, operands: list[Any], arguments: list[Any],
    order: torch.memory_format,
) -> tuple[bool, str]:  # fmt: skip
    """(whether ours is faster, the times or why there are none), once for each kind of call."""
    from torch._guards import tracing

    places = _tensors(node)
    values = [n.meta["val"] for n in places]
    shapes = [
        (tuple(map(number, v.shape)), tuple(map(number, v.stride())), v.dtype, v.device)
        for v in values
    ]
    key = (kind, *shapes, str(_numbers(node.args)), order, torch.backends.cudnn.allow_tf32)
    if key in _known:
        return _known[key]
    with outside(), tracing(None), torch.no_grad():
        # A generator of its own: dropout draws what it would have drawn.
        real = {
            n: torch.empty_strided(s, t, dtype=d, device=v).normal_(
                generator=torch.Generator(v).manual_seed(i)
            )
            for i, (n, (s, t, d, v)) in enumerate(zip(places, shapes, strict=True))
        }

        def taken(given: Any) -> Any:
            return torch.fx.node.map_arg(
                given, lambda n: real[n] if n in real else number(n.meta["val"])
            )

        theirs = list(node.args)
        if kind is not ConvKind.FPROP:
            theirs[10] = [kind is ConvKind.DGRAD, kind is ConvKind.WGRAD, False]

        def ours() -> Any:
            made = overload(*taken(tuple(operands)), *taken(tuple(arguments)))
            return made.contiguous(memory_format=order)

        calls: dict[str, Callable[[], Any]] = {
            "ours": ours,
            "theirs": lambda: node.target(*taken(tuple(theirs))),
        }
        try:
            a, b = calls["ours"](), calls["theirs"]()
        except Exception as error:  # of any kind: PyTorch's can run it all the same
            found = (False, f"{type(error).__name__}: {str(error)[:80]}")
        else:
            b = b if kind is ConvKind.FPROP else b[_KINDS.index(kind)]
            far = distance(a, b)
            took = times_of(calls, a)
            reason = why_not(took["ours"], took["theirs"])
            said = f"{took['ours'].ms:.3f} ms, torch {took['theirs'].ms:.3f}"
            found = (not reason, f"{said}: {reason}".removesuffix(": "))
            if not far <= TOLERANCE[a.dtype]:
                found = (False, f"results differ by {far:.1e}")
    _known[key] = found
    return found
