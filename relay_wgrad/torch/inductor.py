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

from ..frontend.torch.aot import number
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
    operands, arguments = _ours(node, kind)
    values = [v.meta["val"] for v in operands]
    name = OPERATORS[kind, 2][0]
    if arguments is None or values[0].dtype not in DTYPES or any(v.dim() != 4 for v in values):
        report.convolutions.append(f"{name} torch: transposed, not of images, or of symbolic sizes")
        return
    overload = getattr(torch.ops.relay_wgrad, name).default
    wins, said = choice(node, kind, overload, operands, arguments)
    report.convolutions.append(f"{name} {'ours' if wins else 'torch'}: {said}")
    if not wins:
        return
    with graph.graph.inserting_before(node):
        new = graph.graph.call_function(overload, (*operands, *arguments))
    fake = values[0].fake_mode
    with fake:
        shapes = torch.fx.node.map_arg(new.args, lambda n: n.meta["val"])
        new.meta = {**result.meta, "val": overload(*shapes)}
    result.replace_all_uses_with(new)
    graph.graph.erase_node(result)


def _ours(node: Any, kind: ConvKind) -> tuple[list[Any], list[Any] | None]:
    """(the tensors, what our operator takes after the first two); None where it is of no use."""
    at = 3 if kind is ConvKind.FPROP else 4
    stride, padding, dilation, transposed, _, groups = node.args[at : at + 6]
    first, second = node.args[:2]
    like = None
    if kind is ConvKind.DGRAD:
        like, second = node.args[1], node.args[2]
    elif kind is ConvKind.WGRAD:
        like = node.args[2]
    pixels = [] if like is None else list(like.meta["val"].shape[2:])
    if (
        transposed
        or len(stride) != 2
        or len(padding) != 2
        or not all(isinstance(size, int) for size in pixels)
    ):
        return [first, second], None
    geometry = [list(stride), [*padding, *padding], list(dilation), groups]
    is_gpu = first.meta["val"].device.type == "cuda"
    options = [True if is_gpu else None, None, None]  # benchmark: kernels that were measured
    bias = [] if kind is ConvKind.WGRAD else [node.args[2] if kind is ConvKind.FPROP else None]
    size = [] if like is None else [pixels]
    return [first, second], [*bias, *size, *geometry, *options]


def choice(
    node: Any, kind: ConvKind, overload: Any, operands: list[Any], arguments: list[Any]
) -> tuple[bool, str]:
    """(whether ours is faster, the times or why there are none), once for each kind of call."""
    from torch._guards import tracing
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    places = [n for n in node.args if isinstance(n, torch.fx.Node)]
    values = [n.meta["val"] for n in places]
    shapes = [
        (tuple(map(number, v.shape)), tuple(map(number, v.stride())), v.dtype, v.device)
        for v in values
    ]
    key = (kind, *shapes, str(node.args[len(places) :]), torch.backends.cudnn.allow_tf32)
    if key in _known:
        return _known[key]
    with unset_fake_temporarily(), tracing(None), torch.no_grad():
        real = {
            n: torch.empty_strided(s, t, dtype=d, device=v).normal_()
            for n, (s, t, d, v) in zip(places, shapes, strict=True)
        }

        def taken(given: Any) -> Any:
            return torch.fx.node.map_arg(given, lambda n: real[n])

        theirs = list(node.args)
        if kind is not ConvKind.FPROP:
            theirs[10] = [kind is ConvKind.DGRAD, kind is ConvKind.WGRAD, False]
        calls: dict[str, Callable[[], Any]] = {
            "ours": lambda: overload(*taken(tuple(operands)), *taken(tuple(arguments))),
            "theirs": lambda: node.target(*taken(tuple(theirs))),
        }
        try:
            a, b = calls["ours"](), calls["theirs"]()
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
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
