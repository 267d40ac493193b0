"""`torch.compile(model, backend="relay_wgrad")`: both passes by this package, and reports of it.

Dynamo gives a graph of the model's code, AOTAutograd its forward and its backward graph, and each
is compiled when it is first called with tensors of new sizes (`from_aot`, then the pipeline of the
device), so that batches that change cost a compilation for each size and no graph break.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from ..frontend.gradient_graph import Result
from ..frontend.torch.retracing import decompositions, inputs_of, traced_strides
from ..registry import is_registered, register
from .by_kind import ByKind, told
from .by_place import as_views, without_copies
from .joint_function import as_function
from .norms import GROUPS, KEPT, whole_norms
from .on_stream import Turns, replayed, unshare
from .pairs import ATTRIBUTE, Pair, why_apart
from .pooling import divided_first, without_places
from .programs import Choices, choices, compiled_at, drawn, module_at, one_device
from .replayed import ALL, Written
from .reports import CompiledGraph, reported
from .tangents import lie_apart
from .upsampling import UPSAMPLING
from .whole import made_whole
from .writes import keep_what_was_read, without_writes

ONLY = ("", "convolutions")
PARTS = ("forward", "backward", "inference")
MODES = (None, "default", "reduce-overhead")
"""Of `torch.compile`: all repeat calls on CUDA as graphs."""


class Calls(NamedTuple):
    """How a graph is called: as CUDA graphs or not; as which part; how many of its results, the
    first ones, are given to a caller who may keep them; and what to report of it already."""

    graphs: bool
    part: str
    given: int = ALL.stop
    notes: tuple[str, ...] = ()


_count = itertools.count(1)


def backend(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """A backend of `torch.compile`, by its name "relay_wgrad" or as `backend=` itself.

    Forward and backward passes are compiled by this package, on the CPU or on CUDA, where tensors
    go both ways by DLPack on PyTorch's current stream.  Activations that lie channels last stay so.
    Random numbers are drawn by PyTorch's generator.  A graph with something that `from_aot` refuses
    or that cannot be compiled is run by PyTorch op by op, as its `aot_eager` does; a warning says
    so, and `compiled_graphs`.

    Parameters
    ----------
    graph, example_inputs : Dynamo's.
    options : {"only": "convolutions"}: convolutions and their gradients by this package's kernels
        where those are faster here, all else by Inductor.  "relay_wgrad_convolutions" is that too.
        {"graphs": False}: without it calls on CUDA become CUDA graphs after some that are not,
        which takes the time of starting kernels away, and keeps the memory of what is passed from
        forward to backward.
    mode : changes nothing, since "reduce-overhead" is what is done anyway.

    Raises
    ------
    ValueError : for another option or mode.
    """
    given = dict(options or {})
    only = given.pop("only", "")
    graphs = given.pop("graphs", not only)
    if given:
        unknown = ", ".join(given)
        raise ValueError(f"relay_wgrad: unknown option {unknown}: expected 'only' or 'graphs'")
    if not isinstance(graphs, bool):
        raise ValueError(f"relay_wgrad: graphs must be a bool, got {graphs!r}")
    if only not in ONLY:
        raise ValueError(f"relay_wgrad: only must be 'convolutions', got {only!r}")
    if mode not in MODES:
        raise ValueError(f"relay_wgrad: mode must be one of {MODES}, got {mode!r}")
    if only and mode == MODES[-1]:
        raise ValueError(f"relay_wgrad: only={only!r} takes no mode, got {mode!r}")
    if only and graphs:
        raise ValueError(f"relay_wgrad: only={only!r} takes no graphs, got graphs=True")
    if not is_registered():
        register()
    name = f"graph {next(_count)}"
    with lie_apart(graph.graph):
        if only:
            from .inductor import compile_rest

            return compile_rest(graph, example_inputs, name)
        return _whole(name, graphs, graph, example_inputs)


def _whole(
    name: str, graphs: bool, graph: torch.fx.GraphModule, example_inputs: Sequence[Any]
) -> Callable[..., Any]:
    """The graph with interpolation and norms of groups in one piece, where PyTorch traces that."""
    notes: tuple[str, ...] = ()
    writers = {**UPSAMPLING, **GROUPS}
    if any(node.target in writers for node in graph.graph.nodes):
        whole = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
        taken = writers if has_norms(example_inputs) else UPSAMPLING
        notes = tuple(made_whole(whole.graph, taken))
        whole.recompile()
        try:
            return _traced(name, graphs, whole, example_inputs, notes)
        except Exception as error:  # of any kind: a view of what PyTorch would have put in order
            why = " ".join(str(error).split())
            notes = (f"interpolation and norms of groups are taken apart: {why:.300}",)
    return _traced(name, graphs, graph, example_inputs, notes)


def _traced(
    name: str, graphs: bool, graph: Any, example_inputs: Sequence[Any], notes: tuple[str, ...]
) -> Callable[..., Any]:
    from torch._dynamo.backends.common import aot_autograd

    forward, backward, inference = (
        partial(compiled, f"{name}, {part}", Calls(graphs, part, notes=notes)) for part in PARTS
    )
    pairs: list[Pair] = []
    function: Callable[..., Any] = aot_autograd(
        keep_inference_input_mutations=True,  # else PyTorch writes each buffer by itself
        fw_compiler=forward, bw_compiler=backward, inference_compiler=inference,
        decompositions=_decompositions(),
        partition_fn=partial(_partition, name, graphs, notes, pairs),
    )(graph, example_inputs)  # fmt: skip
    return as_function(pairs[0], function, example_inputs) if len(pairs) == 1 else function


def convolutions_backend(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    """`backend` with `options={"only": "convolutions"}`."""
    return backend(graph, example_inputs, options={"only": "convolutions"})


def _decompositions() -> dict[Any, Any]:
    """Those of `from_aot`, but what the joint graph is searched for."""
    return {op: rule for op, rule in decompositions().items() if op not in KEPT}


def _partition(
    name: str, graphs: bool, notes: tuple[str, ...], pairs: list[Pair], joint: Any, inputs: Any,
    **given: Any,
) -> Any:  # fmt: skip
    """Of the joint graph the two: those of a pair that is compiled as a whole, which joins `pairs`,
    or else PyTorch's by the least that is kept between them."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    before = _copied(joint)
    try:
        return _rewritten(name, graphs, notes, pairs, joint, inputs, **given)
    except Exception as error:  # of any kind, and of graphs that nobody has thought of
        parts = min_cut_rematerialization_partition(before, inputs, **given)
        why = " ".join(f"{type(error).__name__}: {error}".split())
        return _apart(parts, f"{why:.300}")


def _copied(joint: Any) -> torch.fx.GraphModule:
    from torch.utils._pytree import arg_tree_leaves

    graph = torch.fx.Graph()
    end = graph.output(tuple(arg_tree_leaves(graph.graph_copy(joint.graph, {}))))
    end.meta = dict(joint.graph.output_node().meta)
    return torch.fx.GraphModule(joint, graph)


def _apart(parts: tuple[Any, Any], why: str) -> tuple[Any, Any]:
    for part in parts:
        part.meta[ATTRIBUTE] = f"the two passes are compiled apart: {why}"
    return parts


def _rewritten(
    name: str, graphs: bool, notes: tuple[str, ...], pairs: list[Pair], joint: Any, inputs: Any,
    **given: Any,
) -> Any:  # fmt: skip
    """`_partition`'s result; the joint graph is rewritten."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    without_places(joint.graph)
    without_copies(joint.graph)
    as_views(joint.graph)
    divided_first(joint.graph)
    if has_norms(inputs_of(joint.graph)):
        whole_norms(joint.graph)
    _without_running_statistics(joint.graph)
    joint.recompile()
    whole = _copied(joint)
    forward, backward = min_cut_rematerialization_partition(joint, inputs, **given)
    count = given["num_fwd_outputs"]
    keep_what_was_read(forward.graph, count)
    forward.recompile()
    why = why_apart(whole, inputs, forward, backward, count)
    if why:
        return _apart((forward, backward), why)
    reports = [_report(f"{name}, {part}", notes) for part in PARTS[:2]]

    def apart(graph: torch.fx.GraphModule, report: CompiledGraph, is_backward: bool) -> _Graph:
        return _Graph(graph, report, Calls(graphs, PARTS[is_backward], given=count))

    pair = Pair(whole, forward, backward, count, graphs, (reports[0], reports[1]), apart)
    pairs.append(pair)
    return pair.forward_graph, pair.backward_graph


def _report(name: str, notes: Sequence[str]) -> CompiledGraph:
    report = reported(name)
    report.notes.extend(notes)
    return report


def has_norms(values: Sequence[Any]) -> bool:
    """Whether there are kernels for whole normalizations where a graph's tensors are."""
    tensors = (v for v in values if isinstance(v, torch.Tensor))
    device = next((v.device for v in tensors), None)
    if device is None or device.type != "cuda":
        return False
    try:
        return bool(compiled_at(device, choices(device)).norms)
    except ValueError:  # the device cannot be used, which compiling for it says
        return False


def _without_running_statistics(graph: torch.fx.Graph) -> None:
    """In training the backward op of a norm reads none of its operands 3 and 4, which it would keep
    and which another thread's forward pass may change."""
    aten = torch.ops.aten
    for node in graph.nodes:
        if node.target is aten.native_batch_norm_backward.default and node.args[7] is True:
            node.args = (*node.args[:3], None, None, *node.args[5:])


def compiled(
    name: str, calls: Calls, graph: torch.fx.GraphModule, example: Sequence[Any]
) -> Callable[..., Any]:
    from torch._functorch.aot_autograd import make_boxed_func

    pair = graph.meta.get(ATTRIBUTE)
    context = torch._guards.TracingContext.try_get()
    if isinstance(pair, Pair):
        if calls.part == "forward" and context is not None:
            pair.records = context.fw_metadata
        return make_boxed_func(pair.forward if calls.part == "forward" else pair.backward)
    # A forward pass's results are the caller's, and then what its backward pass reads.
    if calls.part == "forward" and context is not None and context.fw_metadata is not None:
        calls = calls._replace(given=context.fw_metadata.num_forward)
    notes = [*calls.notes, *([] if pair is None else [pair])]
    return make_boxed_func(_Graph(graph, _report(name, notes), calls))


class _Graph(ByKind["_Program"]):
    """One graph of AOTAutograd, with a program for each kind of call."""

    def __init__(self, graph: torch.fx.GraphModule, report: CompiledGraph, calls: Calls) -> None:
        self._said = inputs_of(graph.graph)
        super().__init__(self._said, report)
        self.graph, self._calls = graph, calls

    def __call__(self, *inputs: Any) -> Any:
        program = self.program(inputs)
        return self._by_pytorch(inputs) if program is None else program(inputs)

    def made(self, inputs: Sequence[Any], chosen: Choices) -> _Program:
        return _Program(self.graph, inputs, self.report, chosen, self._calls)

    def refused(self, reason: str) -> None:
        told(self.report, reason)

    def _by_pytorch(self, inputs: Sequence[Any]) -> Any:
        """The results op by op; gradients share no memory with what the forward pass has kept."""
        given = self._as_traced(inputs)
        results = self.graph(*given)
        if self._calls.part != "backward":
            return results
        theirs = {storage_of(x) for x in given if isinstance(x, torch.Tensor)}
        return [
            x.clone() if isinstance(x, torch.Tensor) and storage_of(x) in theirs else x
            for x in results
        ]

    def _as_traced(self, inputs: Sequence[Any]) -> list[Any]:
        """Inputs that lie as the graph's views want them, for PyTorch: what our forward passes give
        lies otherwise where axes are exchanged."""
        made = []
        for x, said in zip(inputs, self._said, strict=True):
            strides = traced_strides(x.shape, said) if isinstance(x, torch.Tensor) else None
            if strides is None:
                x = _overlapping(x, said)
            elif any(
                n > 1 and now != then
                for n, now, then in zip(x.shape, x.stride(), strides, strict=True)
            ):
                x = torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)
            made.append(x)
        return made


def storage_of(x: torch.Tensor) -> int:
    """The address of a tensor's memory."""
    return x.untyped_storage().data_ptr()


def _overlapping(x: Any, said: Any) -> Any:
    """A tensor whose elements share places as a view's do, of `unfold` or `expand`."""
    if not isinstance(x, torch.Tensor) or getattr(said, "layout", None) is not torch.strided:
        return x
    sizes, strides = list(x.shape), list(said.stride())
    known = all(isinstance(n, int) for n in strides) and sizes == list(said.shape)
    if not known or strides == list(x.stride()) or not x.numel():
        return x
    places = torch.zeros((), dtype=torch.int64, device=x.device)
    for size, stride in zip(sizes, strides, strict=True):
        places = places[..., None] + torch.arange(size, device=x.device) * stride
    flat = x.new_empty(int(places.max()) + 1)
    flat[places.flatten()] = x.flatten()
    return flat.as_strided(sizes, strides)


class _Program:
    """A graph compiled for tensors of some sizes, memory orders and one device."""

    def __init__(
        self, graph: Any, inputs: Sequence[Any], report: CompiledGraph, chosen: Choices,
        calls: Calls,
    ) -> None:  # fmt: skip
        from ..frontend import from_aot
        from ..training.capture import refusal
        from ..training.step import ADJOINT

        self.device, self.report = one_device(inputs), report
        graph, self._writes = without_writes(graph)
        made = from_aot(graph, inputs, name=report.name, channels_last=True)
        if calls.part == "backward":  # gradients are the caller's, what is kept is not
            copies = ("copy of input" if k == "input" else k for k, _ in made.outputs)
            outputs = (Result(k, v) for k, (_, v) in zip(copies, made.outputs, strict=True))
            made = replace(made, outputs=tuple(outputs))
        self.made, self._same = made, dict[int, tuple[torch.Tensor, torch.Tensor]]()
        report.sizes += 1
        self._function: Any = None
        self._own, self._stands = set[int](), None
        self._turned = [i for i, is_last in enumerate(made.last[1]) if is_last]
        self._turns = Turns(self.device)
        if not any(result.kind == "result" for result in made.outputs):
            return
        where = compiled_at(self.device, chosen)
        module = module_at(where, made)
        why = refusal(module, [ADJOINT]) if calls.graphs else ""
        if why:
            report.notes.append(f"its calls are not one CUDA graph: {why}")
        built = where.compile(module, lambda what: None)
        self._built = built
        # Of the results the first are the caller's, the last are written into operands at once;
        # those between the backward pass reads, which has all of them or none.
        places = [v if kind == "result" else None for kind, v in made.outputs]
        end = len(places) - len(self._writes.copied)
        own = {v for v in places[: min(calls.given, end)] if v is not None}
        own |= {v for kind, v in made.outputs if kind == "copy of result"}
        kept = [v for v in places[calls.given : end] if v is not None and v not in own]
        self._own, self._stands = own, kept[0] if kept else None
        written = self._written(places[end:])
        self._counted = [] if written is None else self._writes.counted
        self._function = replayed(
            built.vm[ADJOINT], where, self.device, report.notes.append,
            last=made.last[0], graphs=calls.graphs and not why, late=int(calls.part == "backward"),
            own=own, token=True, stands=self._stands, written=written,
        )  # fmt: skip
        report.convolutions = [f"{c.op} {c.source}" for c in built.convolutions]

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        made: list[torch.Tensor] = []
        if self._function is not None:
            numbers = [drawn(spec, self.device) for spec in self.made.drawn]
            given = self.made.arguments(inputs, numbers)
            if self._counted:
                given += [inputs[i] for i in self._counted]
            with self._turns:
                made, read, _, token, written, *_ = self._function(given)
                self.report.captured = self._function.is_graph
                if token is None:
                    unshare(made, read)
                for i in self._turned:
                    made[i] = self._as_asked(i, made[i], token is not None)
                found = self.made.results(inputs, made, copy=torch.clone)
                return self._writes.done(inputs, found, written)
        return self._writes.done(inputs, self.made.results(inputs, made, copy=torch.clone))

    def _written(self, sources: Sequence[int | None]) -> Written | None:
        """What the function's calls may write themselves, of results at these places; None where
        one is no result of it, lies otherwise than the operand, or comes with it as it was."""
        writes, made = self._writes, self.made
        at = {i: place for place, i in enumerate(made.read)}
        targets = [at.get(i, -1) for i in writes.copied]
        found = [i for i in sources if i is not None]
        passed = {v for kind, v in made.outputs if kind.endswith("input")}
        given, gives = ({i for i, is_last in enumerate(some) if is_last} for some in made.last)
        if (
            -1 in targets
            or len(found) < len(targets)
            or given & {*targets}
            or gives & {*found}
            or passed & {*writes.copied, *writes.counted}
            or {*writes.steps} - {1}
        ):
            return None
        first = len(at) + len(made.drawn)
        return Written(found, targets, range(first, first + len(writes.counted)))

    def _as_asked(self, i: int, x: torch.Tensor, again: bool) -> torch.Tensor:
        """A result whose channels are last as it lies in the graph, and no view, which AOTAutograd
        would keep another tensor of; `again`: the same one where its memory is."""
        # Whoever holds the tensor that stands for the others has what all of them hold.
        if not again or i in self._own or i == self._stands:
            return x.movedim(-1, 1).data
        before = self._same.get(i)
        if before is None or before[0] is not x:
            before = self._same[i] = (x, x.movedim(-1, 1).data)
        return before[1]
