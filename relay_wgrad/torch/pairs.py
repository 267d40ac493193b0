"""The two graphs of a joint one, between which goes what the program of both hands on.

AOTAutograd saves for a backward pass what its forward graph gives behind its results, as many
tensors as the graphs say, of which it knows nothing else.  Here these are a carrier, a tensor of
the host's with all that nobody else has as an attribute; operands and results that the backward
pass reads, which autograd has to watch; and one tensor for hooks of saved tensors, which would not
keep an attribute: while there are some, all that is hidden lies in it.  So each call can have its
own program, and another number of tensors; and a pair that cannot be compiled as a whole is two
graphs that are compiled apart.
"""

from __future__ import annotations

import itertools
import math
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import library as torch_library
from torch._C._autograd import _top_saved_tensors_default_hooks

from ..frontend.torch.retracing import inputs_of
from .backward_part import keeps_graph
from .by_kind import ByKind
from .joint_program import JointProgram, Passed
from .programs import Choices
from .reports import CompiledGraph
from .step_node import Gradients

aten = torch.ops.aten
_library = torch_library.Library("relay_wgrad", "FRAGMENT")
_library.define("backward_of_pair(Tensor[] given, int number) -> Tensor[]")

ATTRIBUTE = "_relay_wgrad_pair"
"""Of a carrier; in `meta` of a pair's two graphs, which AOTAutograd may copy."""
ALIGNED = 64
"""Bytes at whose multiples tensors begin in the one for hooks."""

_pairs: weakref.WeakValueDictionary[int, Pair] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


class _Form(NamedTuple):
    """How what is hidden is read: by which program (None: by the two graphs), sizes that the
    backward graph takes, and the shapes and dtypes of the tensors."""

    program: JointProgram | None
    sizes: tuple[Any, ...]
    tensors: tuple[tuple[tuple[int, ...], torch.dtype], ...] = ()


class _Carried(NamedTuple):
    form: _Form
    hidden: Sequence[torch.Tensor]
    ends: bool  # whether its memory is another call's when it is given up
    stamp: object  # the forward pass's


class Pair(ByKind[JointProgram]):
    """A joint graph, and the two that AOTAutograd is given in its place.

    joint : (primals…, tangents…) to (`count` results…, gradients…).
    forward, backward : what is run where the joint graph cannot be compiled, of the same joint
        graph: PyTorch's parts of it.
    apart : makes of one of them, and its report, what runs it.
    reports : of the two.
    """

    def __init__(
        self, joint: torch.fx.GraphModule, forward: torch.fx.GraphModule,
        backward: torch.fx.GraphModule, count: int, graphs: bool,
        reports: tuple[CompiledGraph, CompiledGraph],
        apart: Callable[[torch.fx.GraphModule, CompiledGraph, bool], Any],
    ) -> None:  # fmt: skip
        self._joint, self._count, self._graphs, self._reports = joint, count, graphs, reports
        said = inputs_of(forward.graph)
        super().__init__(said, reports[0])
        self.parts = forward, backward
        self._apart = apart(forward, reports[0], False), apart(backward, reports[1], True)
        self.primals = len(said)
        self.records: Any = None  # AOTAutograd's, of the forward graph
        kept = forward.graph.output_node().args[0]
        self._kept = _Kept(forward.graph, count)
        self.slots = _slots(joint, self.primals, self._kept, kept[:count])
        self.tangents = len(inputs_of(backward.graph)) - self._kept.count
        self._forms: list[_Form] = []
        self.number = next(_numbers)
        _pairs[self.number] = self
        self.forward_graph = self._forward_graph(forward)
        self.backward_graph = self._backward_graph(backward)
        self.results = [
            node.meta["val"] if isinstance(node, torch.fx.Node) else None
            for node in backward.graph.output_node().args[0]
        ]

    def __deepcopy__(self, memo: Any) -> Pair:
        return self  # of a graph that has it as an attribute

    def made(self, inputs: Sequence[Any], chosen: Choices) -> JointProgram:
        program = JointProgram(
            self._joint, inputs, self._count, self._graphs, chosen, self._reports
        )
        if program.watched > self.slots:
            raise ValueError(f"its backward pass reads {program.watched} operands and results")
        return program

    def refused(self, reason: str) -> None:
        for report in self._reports:
            report.sizes = 0
            report.notes.append(f"the two passes are compiled apart: {reason:.300}")

    def forward(self, *inputs: Any) -> list[Any]:
        """The forward graph's results, and what is saved."""
        results, carrier, packed, watched = self.passed(inputs)
        rest = [carrier] * (self.slots - len(watched))
        return [*results, carrier, *watched, *rest, packed]

    def passed(
        self, inputs: Sequence[Any]
    ) -> tuple[list[Any], torch.Tensor, torch.Tensor, Sequence[torch.Tensor]]:
        """(the forward graph's results, the carrier, the tensor for hooks, what is watched)."""
        program = self.program(inputs)
        if program is None:
            results = self._apart[0](*inputs)
            hidden, watched, sizes = self._kept.of(results)
            made = Passed(results[: self._count], hidden, watched)
        else:
            sizes = ()
            made = program.forward(inputs)
        return made.results, *self._carried(_Form(program, sizes), made), made.watched

    def _carried(self, form: _Form, made: Passed) -> tuple[torch.Tensor, torch.Tensor]:
        """(the carrier, the tensor for hooks)."""
        hidden, token = made.hidden, made.token
        if _top_saved_tensors_default_hooks(True) is None:
            carrier = torch.empty(1) if token is None else token
            setattr(carrier, ATTRIBUTE, _Carried(form, hidden, token is not None, made.stamp))
            return carrier, carrier
        form = form._replace(tensors=tuple((tuple(x.shape), x.dtype) for x in hidden))
        with self._lock:
            if form not in self._forms:
                self._forms.append(form)
            number = self._forms.index(form)
        # Its shape, which hooks keep, says the form.
        return torch.empty(0, number + 1), _packed(hidden)

    def backward(self, *given: Any) -> list[Any]:
        """The gradients, of what was saved and tangents."""
        carrier, *rest = given
        watched, packed = rest[: self.slots], rest[self.slots]
        found, _ = self.differentiated(carrier, watched, packed, rest[self.slots + 1 :])
        return list(found)

    def differentiated(
        self, carrier: torch.Tensor, watched: Sequence[torch.Tensor], packed: torch.Tensor,
        tangents: Sequence[torch.Tensor], in_blocks: bool = False,
    ) -> Gradients:  # fmt: skip
        """The gradients, None for operands without one, or what those of the others are cut out of.

        watched : may have more behind what `passed` gave.  in_blocks : as of `JointProgram`.
        """
        carried = getattr(carrier, ATTRIBUTE, None)
        if carried is None:
            if carrier.dim() != 2:
                raise RuntimeError(
                    "relay_wgrad: what was kept for this backward pass has been lost: a copy of it"
                    " came back, which saved-tensor hooks after the forward pass may make"
                )
            form = self._forms[carrier.shape[1] - 1]
            carried = _Carried(form, _unpacked(packed, form.tensors), False, None)
        program = carried.form.program
        if program is None:
            operands = self._kept.whole(carried.hidden, watched)
            results = self._apart[1](*carried.form.sizes, *operands, *tangents)
            return list(results), None
        ends = carried.ends and keeps_graph is not None and not keeps_graph()
        watched = watched[: program.watched]
        return program.backward(carried.hidden, watched, tangents, ends, carried.stamp, in_blocks)

    # ---- what AOTAutograd and compiled autograd see ----

    def _forward_graph(self, forward: torch.fx.GraphModule) -> torch.fx.GraphModule:
        graph = torch.fx.Graph()
        of: dict[Any, Any] = {}
        graph.graph_copy(forward.graph, of)
        before = forward.graph.output_node()
        results = [of.get(x, x) for x in before.args[0][: self._count]]
        # In an operand's memory, so that PyTorch gives none of it to the backward pass to keep.
        operand = next(
            x for x in graph.find_nodes(op="placeholder")
            if isinstance(x.meta.get("val"), torch.Tensor)
        )  # fmt: skip
        saved = graph.call_function(aten.as_strided.default, (operand, [0], [1]))
        value = operand.meta["val"]
        with value.fake_mode:
            saved.meta = {"val": aten.as_strided.default(value, [0], [1])}
        end = graph.output((*results, *[saved] * (self.slots + 2)))
        end.meta = {**before.meta}
        if "desc" in end.meta:
            said = [*end.meta["desc"]][: self._count]
            end.meta["desc"] = [*said, *[None] * (self.slots + 2)]
        self._saved = saved.meta["val"]
        made = torch.fx.GraphModule(forward, graph)
        made.meta[ATTRIBUTE] = self
        return made

    def _backward_graph(self, backward: torch.fx.GraphModule) -> torch.fx.GraphModule:
        graph = torch.fx.Graph()
        before = backward.graph.output_node()
        taken = []
        for i in range(self.slots + 2):
            node = graph.placeholder(f"saved_{i}")
            node.meta = {"val": self._saved}
            taken.append(node)
        for tangent in backward.graph.find_nodes(op="placeholder")[self._kept.count :]:
            node = graph.placeholder(tangent.name)
            node.meta = {**tangent.meta}
            taken.append(node)
        call = graph.call_function(
            torch.ops.relay_wgrad.backward_of_pair.default, (taken, self.number)
        )
        call.meta = {"val": [x.meta["val"] for x in before.args[0] if x is not None]}
        results: list[Any] = []
        for i, result in enumerate(x for x in before.args[0] if x is not None):
            part = graph.call_function(operator.getitem, (call, i))
            part.meta = {"val": result.meta["val"]}
            results.append(part)
        left = iter(results)
        end = graph.output(tuple(None if x is None else next(left) for x in before.args[0]))
        end.meta = {**before.meta}
        made = torch.fx.GraphModule(backward, graph)
        made.meta[ATTRIBUTE] = self
        return made


class _Kept:
    """What PyTorch's forward graph keeps for its backward graph, which takes sizes before tensors.

    count : how much that is.
    """

    def __init__(self, graph: torch.fx.Graph, count: int) -> None:
        nodes = graph.output_node().args[0]
        saved = [*enumerate(nodes)][count:]
        tensors = [(i, node) for i, node in saved if isinstance(node.meta["val"], torch.Tensor)]
        self._sizes = [i for i, node in saved if not isinstance(node.meta["val"], torch.Tensor)]
        theirs = {*nodes[:count], *graph.find_nodes(op="placeholder")}
        hidden = [at for at, (_, node) in enumerate(tensors) if node not in theirs]
        watched = [at for at, (_, node) in enumerate(tensors) if node in theirs]
        self._hidden, self._watched = (
            [tensors[at][0] for at in some] for some in (hidden, watched)
        )
        order = {at: i for i, at in enumerate((*hidden, *watched))}
        self._order = [order[at] for at in range(len(tensors))]
        self.count, self.watched = len(saved), len(watched)

    def of(self, results: Sequence[Any]) -> tuple[list[Any], list[Any], tuple[Any, ...]]:
        """(what is hidden, what is watched, sizes) of the forward graph's results."""
        hidden, watched = ([results[i] for i in some] for some in (self._hidden, self._watched))
        return hidden, watched, tuple(results[i] for i in self._sizes)

    def whole(self, hidden: Sequence[Any], watched: Sequence[Any]) -> list[Any]:
        """The tensors as the backward graph takes them."""
        every = [*hidden, *watched]
        return [every[i] for i in self._order]


def why_apart(
    joint: torch.fx.GraphModule, given: Any, forward: torch.fx.GraphModule,
    backward: torch.fx.GraphModule, count: int,
) -> str:  # fmt: skip
    """Why PyTorch's two graphs are compiled apart, or "": what they do that a joint graph does not
    say, or would not do.

    given : what AOTAutograd calls a joint graph's inputs, a pair of lists.
    """
    from torch._functorch import config

    if not isinstance(given, tuple):
        return "it is a part of another graph"
    nodes = [node for node in joint.graph.nodes if node.op == "call_function"]
    tangents = list(joint.graph.find_nodes(op="placeholder"))[len(given[0]) :]
    if len(tangents) != len(given[1]) or not all("tangents" in str(n.target) for n in tangents):
        return "it takes more than operands and their gradients"
    if any(isinstance(node.target, torch._ops.HigherOrderOperator) for node in nodes):
        return "it has graphs within it"
    if any(node.meta.get("recompute") is not None for node in nodes):
        return "activations are to be recomputed (torch.utils.checkpoint)"
    if getattr(config, "activation_memory_budget", 1.0) != 1.0:
        return "torch._functorch.config.activation_memory_budget is set"
    hooks = _top_saved_tensors_default_hooks(True)
    if hooks is not None and any(isinstance(hook, torch.fx.GraphModule) for hook in hooks):
        return "saved-tensor hooks are graphs"
    saved = forward.graph.output_node().args[0][count:]
    if any(node.meta.get("saved_tensor_with_no_vc_check") for node in saved):
        return "tensors are kept without autograd's eye on them"
    if not all(
        isinstance(node.meta["val"], (torch.Tensor, *torch.types.py_sym_types)) for node in saved
    ):
        return "objects are kept that are no tensors"
    ops = [
        node.target
        for node in backward.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
    ]
    if any(torch.Tag.nondeterministic_seeded in op.tags for op in ops):
        return "its backward pass draws random numbers"
    if any(op._schema.is_mutable for op in ops):
        return "its backward pass writes into operands"
    return ""


def _slots(joint: torch.fx.GraphModule, primals: int, kept: _Kept, results: Sequence[Any]) -> int:
    """How many operands and results the backward pass of a program may read."""
    places = joint.graph.find_nodes(op="placeholder")
    late = {*places[primals:]}
    read: set[Any] = set()
    for node in joint.graph.nodes:
        if node not in late and not late.isdisjoint(node.all_input_nodes):
            late.add(node)
    late.discard(joint.graph.output_node())
    gradients = joint.graph.output_node().args[0][len(results) :]
    stack = [*late, *(x for x in gradients if isinstance(x, torch.fx.Node))]
    while stack:
        node = stack.pop()
        if node not in read:
            read.add(node)
            stack += node.all_input_nodes
    operands = sum(1 for x in places[:primals] if x in read and _is_tensor(x))
    return max(operands + sum(1 for x in results if _is_tensor(x)), kept.watched)


def _is_tensor(node: Any) -> bool:
    return isinstance(node, torch.fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)


def _packed(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """All of them in one, of bytes."""
    if not tensors:
        return torch.empty(0, dtype=torch.uint8)
    parts = []
    for x in tensors:
        flat = x.detach().contiguous().flatten().view(torch.uint8)
        parts += [flat, flat.new_empty(-flat.numel() % ALIGNED)]
    return torch.cat(parts)


def _unpacked(
    packed: torch.Tensor, said: Sequence[tuple[tuple[int, ...], torch.dtype]]
) -> list[torch.Tensor]:
    """Those of which these are the shapes and dtypes."""
    found, start = [], 0
    for shape, dtype in said:
        size = math.prod(shape) * dtype.itemsize
        found.append(packed[start : start + size].view(dtype).view(shape))
        start += size + -size % ALIGNED
    return found


def _backward_of_pair(given: list[torch.Tensor], number: int) -> list[torch.Tensor]:
    found = _pairs[number].backward(*given)
    return [x for x in found if x is not None]


def _fake_backward_of_pair(given: list[torch.Tensor], number: int) -> list[torch.Tensor]:
    made = []
    for x in _pairs[number].results:
        if x is None:
            continue
        if not all(isinstance(n, int) for n in (*x.shape, *x.stride())):
            raise RuntimeError(
                "relay_wgrad: compiled autograd around a backward pass of sizes that vary: compile"
                " the forward pass under it as well"
            )
        made.append(torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device))
    return made


_library.impl("backward_of_pair", _backward_of_pair, "CompositeExplicitAutograd")
torch_library.register_fake("relay_wgrad::backward_of_pair", _fake_backward_of_pair, lib=_library)
