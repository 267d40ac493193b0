"""`inspect_step`: everything that a report shows of a training step, as plain data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import tvm
from tvm import relax

from .. import __version__
from ..display import short
from ..facts import Lowered
from ..graph.walk import bindings_of
from ..ir import bytes_of
from ..ops.call_problem import family_def, problem_of
from ..problem import ConvProblem
from ..training.step import ADJOINT
from ..transform import layout_changes
from . import groups as grouping
from .dataflow import Dataflow, dataflow
from .memory import memory
from .page import page
from .text import markdown


@dataclass(frozen=True)
class Inspection:
    """What is known of a training step: `data` is made of what JSON has.

    `facts` : what was inspected, by name; `totals` : counts and sums; `blocks` : their names;
    `layers` : name and block of each; `nodes` : the boxes of the graph, parameters first, then the
    calls in program order, then results, with the layer and the part that each belongs to;
    `edges` : pairs of indices into them; `convolutions` : one entry for each, with its problem,
    layout, backend, reason, and its time where it was measured; `changes` : every change of
    layout with its reason; `copies` : what a GPU copies along channels: the tensor's name, what is
    done, bytes, and why TVM does it where it does; `memory` : bytes alive at each call; `kernels`,
    of a step that was timed on a GPU: name, calls, seconds and bytes of each; `compiled`, of one
    that was compiled for a CPU: name and processor seconds of each kernel, and whether it was kept
    from before.
    """

    data: dict[str, Any]

    def add_compiled(self, seconds: Mapping[str, float]) -> None:
        """Adds what each kernel took to compile, by its name: seconds of a processor, 0 where it
        was kept.  The longest come first."""
        longest = sorted(seconds.items(), key=lambda item: -item[1])
        self.data["compiled"] = [
            {"name": name, "seconds": took, "kept": not took} for name, took in longest
        ]
        kept = sum(not took for took in seconds.values())
        self.data["totals"]["compiling"] = (
            f"{len(seconds)} kernels, {kept} of them kept from before;"
            f" {sum(seconds.values()):.2f} s of processor time"
        )

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(self.data, indent=1)

    def to_markdown(self) -> str:
        """Totals, and tables of convolutions and layout changes."""
        return markdown(self.data)

    def to_html(self) -> str:
        """One page that needs nothing else: picture, tables, memory."""
        return page(self.data)


def inspect_step(
    module: tvm.IRModule,
    *,
    facts: Mapping[str, Any],
    inputs: Sequence[str],
    entries: Sequence[Any] = (),
    measured: Sequence[Lowered] = (),
    floor: Callable[[ConvProblem], float] | None = None,
    copies: Sequence[Any] = (),
) -> Inspection:
    """What a training step is made of.

    Parameters
    ----------
    module : as `relay_wgrad.training.step` makes it, with `main_adjoint`.
    facts : what to say of it at the top: the model's name, the batch, ….
    inputs : names of the parameters that are data, labels or masks.
    entries : of `byoc_cudnn`'s report on the same module: one for each convolution, in order.
    measured : what its convolutions were lowered to, with seconds, in order.
    floor : the seconds that a problem takes at least.
    copies : of `byoc_cudnn.joins.lower.copies`.

    Raises
    ------
    ValueError : where `entries` or `measured` are not of this module.
    """
    func = module[ADJOINT]
    graph = dataflow(func)
    found = grouping.groups(graph, set(inputs))
    layers, blocks = grouping.names(graph, found)
    bindings = bindings_of(func, branches=False)
    # Boxes are parameters, then these in program order, then results.
    made = [b.var for b in bindings if isinstance(b.value, (relax.Call, relax.If))]
    sizes = [bytes_of(var.ty) for var in (*func.params, *made)]
    calls = [b.value for b in bindings if family_def(b.value) is not None]
    places = [i for i, node in enumerate(graph.nodes) if node.kind == "convolution"]
    for name, given in (("entries", entries), ("measured", measured)):
        if given and len(given) != len(calls):
            raise ValueError(
                f"inspect: {len(given)} {name}, but the step has {len(calls)} convolutions"
            )
    convolutions = [
        _convolution(problem_of(call), place, entries[i : i + 1], measured[i : i + 1], floor)
        for i, (call, place) in enumerate(zip(calls, places, strict=True))
    ]
    changes = _changes(func, graph)
    alive = memory(func, found.boundary)
    data = {
        "format": "relay-wgrad inspection 1",
        "version": __version__,
        "facts": dict(facts),
        "totals": _totals(convolutions, changes, alive, found),
        "blocks": blocks,
        "layers": [
            {"name": name, "block": block} for name, block in zip(layers, found.block, strict=True)
        ],
        "nodes": [
            {
                "name": node.name, "kind": node.kind, "label": list(node.label),
                "bytes": sizes[i] if i < len(sizes) else 0, "layer": found.layer[i],
                "backward": found.backward[i],
            }
            for i, node in enumerate(graph.nodes)
        ],
        "edges": [list(edge) for edge in graph.edges],
        "convolutions": convolutions,
        "changes": changes,
        "copies": [asdict(copy) for copy in copies],
        "memory": {"boundary": found.boundary, **asdict(alive)},
    }  # fmt: skip
    return Inspection(data)


def _convolution(
    problem: ConvProblem,
    place: int,
    entry: Sequence[Any],
    lowered: Sequence[Lowered],
    floor: Callable[[ConvProblem], float] | None,
) -> dict[str, Any]:
    out: dict[str, Any] = {
        "node": place,
        "kind": problem.kind.value,
        "problem": problem.repro(),
        "short": short(problem),
        "layout": f"{problem.data_layout}/{problem.kernel_layout}/{problem.grad_layout}",
        "dtype": problem.data_dtype,
        "flop": problem.flop,
        "bytes": problem.bytes,
    }
    for e in entry:
        out.update(backend=e.backend, row=e.row, adapted=e.adapted, reason=e.reason,
                   source=e.source, tried=[list(t) for t in e.tried])  # fmt: skip
    for conv in lowered:
        if ConvProblem.parse(conv.problem) != problem:
            raise ValueError(f"inspect: measured {conv.problem}, but the step has {problem}")
        out.update(kernel=conv.source, kernel_reason=conv.reason, seconds=conv.seconds)
    if floor is not None:
        out["floor_seconds"] = floor(problem)
        if out.get("seconds"):
            out["share_of_floor"] = out["floor_seconds"] / out["seconds"]
    return out


def _changes(func: Any, graph: Dataflow) -> list[dict[str, Any]]:
    places = [i for i, node in enumerate(graph.nodes) if node.kind == "layout change"]
    return [
        {
            "node": place, "name": c.name, "reason": c.reason, "moves": c.moves,
            "shape": [str(size) for size in c.shape], "avoidable": not c.allowed,
        }
        for place, c in zip(places, layout_changes(func), strict=True)
    ]  # fmt: skip


def _totals(
    convolutions: list[dict[str, Any]],
    changes: list[dict[str, Any]],
    alive: Any,
    found: grouping.Groups,
) -> dict[str, Any]:
    out: dict[str, Any] = {
        "convolutions": len(convolutions),
        "kinds": dict(Counter(c["kind"] for c in convolutions)),
        "flop": sum(c["flop"] for c in convolutions),
        "layout_changes": len(changes),
        "layout_changes_that_move": sum(c["moves"] for c in changes),
        "reasons_of_changes": dict(Counter(c["reason"] for c in changes)),
        "peak_bytes": alive.peak,
        "parameter_bytes": alive.parameters,
        "layers": len(found.anchor),
    }
    if convolutions and "backend" in convolutions[0]:
        out["backends"] = dict(Counter(c["backend"] or "none" for c in convolutions))
    times = [c["seconds"] for c in convolutions if c.get("seconds")]
    if times:
        out["seconds"] = sum(times)
        out["floor_seconds"] = sum(c.get("floor_seconds", 0.0) for c in convolutions)
    return out
