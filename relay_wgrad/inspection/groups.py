"""Which layer, and which block of layers, each op of a training step belongs to.

A layer is a convolution or matrix product with all that follows it up to the next one.  A block is
a run of layers between two places of the forward part where one tensor alone goes on: a residual
block, a fire module, a layer of a plain chain.  The backward part is the forward part's mirror: an
op of it belongs to the layer whose gradient comes next.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .dataflow import Dataflow, Node

_PRODUCTS = ("matmul",)
_THROUGH = ("permute_dims", "astype", "reshape", "layout_transform", "expand_dims", "squeeze")
_SEED = re.compile(r"_adjoint$")


@dataclass
class Groups:
    """`layer[i]` and `backward[i]` of each box; of layer l `anchor[l]` is the box it starts with,

    `weight[l]` the parameter that is its weight, -1 for none, and `block[l]` its block.
    `boundary` counts the calls of the forward part.
    """

    layer: list[int]
    backward: list[bool]
    anchor: list[int] = field(default_factory=list)
    weight: list[int] = field(default_factory=list)
    block: list[int] = field(default_factory=list)
    boundary: int = 0


def is_anchor(node: Node) -> bool:
    """Whether a layer, or its gradient, starts with this box."""
    return node.kind == "convolution" or node.label[0] in _PRODUCTS


class _Graph:
    def __init__(self, graph: Dataflow) -> None:
        self.nodes = graph.nodes
        self.sources: list[list[int]] = [[] for _ in graph.nodes]
        self.users: list[list[int]] = [[] for _ in graph.nodes]
        for a, b in graph.edges:
            self.sources[b].append(a)
            self.users[a].append(b)
        self.calls = [
            i for i, node in enumerate(graph.nodes) if node.kind not in ("parameter", "result")
        ]

    def origin(self, index: int) -> int:
        """What a tensor was before casts, transposes and reshapes."""
        while self.nodes[index].label[0] in _THROUGH and self.sources[index]:
            index = self.sources[index][0]
        return index


def groups(dataflow: Dataflow, inputs: set[str]) -> Groups:
    """The groups of a function that `relay_wgrad.training.step` made.

    `inputs` are the names of the parameters that are data or labels, as opposed to weights.
    """
    g = _Graph(dataflow)
    seeds = [at for at, i in enumerate(g.calls) if _SEED.search(g.nodes[i].name)]
    boundary = seeds[0] if seeds else len(g.calls)
    forward, backward = g.calls[:boundary], g.calls[boundary:]
    out = Groups([0] * len(g.nodes), [False] * len(g.nodes), boundary=boundary)
    depends = _depends(g, forward, inputs)
    out.anchor = [i for i in forward if is_anchor(g.nodes[i]) and depends[i]]
    starts = _starts(g, forward, out.anchor, depends)
    layer = 0
    for at, i in enumerate(forward):
        while layer + 1 < len(starts) and at >= starts[layer + 1]:
            layer += 1
        out.layer[i] = layer
    _mirror(g, backward, depends, out)
    _ends(g, out)
    out.block = _blocks(g, forward, depends, out)
    return out


def _depends(g: _Graph, forward: list[int], inputs: set[str]) -> list[bool]:
    depends = [node.kind == "parameter" and node.name in inputs for node in g.nodes]
    for i in forward:
        depends[i] = any(depends[s] for s in g.sources[i])
    return depends


def _starts(g: _Graph, forward: list[int], anchors: list[int], depends: list[bool]) -> list[int]:
    """Where each layer starts: what prepares its weight comes with it."""
    place = {i: at for at, i in enumerate(forward)}
    starts = []
    for anchor in anchors:
        at = place[anchor]
        while at and not depends[forward[at - 1]]:
            at -= 1
        starts.append(at)
    return starts


def _mirror(g: _Graph, backward: list[int], depends: list[bool], out: Groups) -> None:
    """The layers of the backward part: that of the next convolution's or product's gradient."""
    by_weight: dict[int, int] = {}
    by_data: dict[int, list[int]] = {}
    out.weight = [-1] * len(out.anchor)
    for number, anchor in enumerate(out.anchor):
        for source in map(g.origin, g.sources[anchor]):
            if g.nodes[source].kind == "parameter" and not depends[source]:
                by_weight.setdefault(source, number)
                out.weight[number] = source
            by_data.setdefault(source, []).append(number)
    by_gradient: dict[int, int] = {}
    gradient = _gradient(g, backward)
    anchors = [i for i in backward if is_anchor(g.nodes[i])]
    found: dict[int, int] = {}
    for i in anchors:
        sources = [g.origin(s) for s in g.sources[i]]
        weights = [by_weight[s] for s in sources if s in by_weight]
        if weights:
            found[i] = weights[0]
            for source in sources:
                if gradient[i]:
                    by_gradient.setdefault(source, weights[0])
                elif source not in by_weight:  # computed a second time
                    by_data.setdefault(source, []).append(weights[0])
    for i in anchors:
        if i in found:
            continue
        sources = [g.origin(s) for s in g.sources[i]]
        near = [by_gradient[s] for s in sources if s in by_gradient and s not in by_data]
        known = [number for s in sources for number in by_data.get(s, ())]
        both = [number for number in near if number in known]
        if both or known:
            found[i] = (both or known)[0]
    layer, after = 0, True
    trailing = []
    for i in reversed(backward):
        if i in found and gradient[i]:
            layer, after = found[i], False
        out.layer[i], out.backward[i] = layer, True
        if after:
            trailing.append(i)
    for i in reversed(trailing):  # gradients that are only converted or scaled on their way out
        made = [s for s in g.sources[i] if out.backward[s]]
        out.layer[i] = out.layer[made[0]] if made else out.layer[i]
    again = None  # what is computed a second time belongs where it did the first time
    for i in backward:
        if gradient[i]:
            again = None
        elif i in found:
            again = found[i]
        if again is not None:
            out.layer[i] = again


def _gradient(g: _Graph, backward: list[int]) -> list[bool]:
    """Of each box of the backward part: whether it depends on the loss's gradient."""
    out = [False] * len(g.nodes)
    for i in backward:
        out[i] = i == backward[0] or any(out[s] for s in g.sources[i])
    return out


def _ends(g: _Graph, out: Groups) -> None:
    """Parameters belong to their first user, results to their maker."""
    for i, node in enumerate(g.nodes):
        if node.kind == "parameter" and g.users[i]:
            first = min(g.users[i])
            out.layer[i], out.backward[i] = out.layer[first], out.backward[first]
        elif node.kind == "result" and g.sources[i]:
            maker = g.sources[i][0]
            out.layer[i], out.backward[i] = out.layer[maker], out.backward[maker]


def _blocks(g: _Graph, forward: list[int], depends: list[bool], out: Groups) -> list[int]:
    """The block of each layer: a new one where a single tensor goes on before the layer starts."""
    ahead = set(forward)
    needed: set[int] = set()
    for i in reversed(forward):
        # Of the forward part's last box, the loss; running statistics lead to results alone.
        if i == forward[-1] or any(u in needed for u in g.users[i]):
            needed.add(i)
    last: dict[int, int] = {}
    for i in forward:
        if i in needed:
            for s in g.sources[i]:
                if depends[s]:
                    last[s] = i
    data = [i for i in last if i not in ahead and g.nodes[i].name != "labels"]
    live = set(data)
    block, number, cut = [], 0, False
    anchors = {anchor: layer for layer, anchor in enumerate(out.anchor)}
    for i in forward:
        if i in anchors:
            if cut and anchors[i]:
                number += 1
            block.append(number)
            cut = False
        if i not in needed or not depends[i]:
            continue
        live = {v for v in live if last.get(v, -1) > i} | ({i} if last.get(i, -1) > i else set())
        cut = cut or len(live) == 1
    return block


def names(dataflow: Dataflow, found: Groups) -> tuple[list[str], list[str]]:
    """(a name for each layer, for each block), from the names of their weights.

    A name without letters gets the op before it; a block's is what its layers' have in common, or
    the first and the last of them.
    """
    layers = [dataflow.nodes[i].name if i >= 0 else "" for i in found.weight]
    everywhere = _prefix([name for name in layers if name])
    layers = [n.removeprefix(everywhere).removeprefix("_") for n in layers]
    layers = [re.sub(r"_(w|weight|W)(_0)?$", "", n) for n in layers]
    ops = [dataflow.nodes[i].label[0] for i in found.anchor]
    layers = [
        n if re.search("[A-Za-z]", n) else f"{op} {n}".strip()
        for n, op in zip(layers, ops, strict=True)
    ]
    blocks: list[str] = []
    for number in range(max(found.block, default=-1) + 1):
        inside = [layers[n] for n, b in enumerate(found.block) if b == number]
        shared = inside[0] if len(inside) == 1 else _prefix(inside)
        several = f"{inside[0]} … {inside[-1]}"
        blocks.append(shared if len(inside) == 1 or re.search("[A-Za-z]{2}", shared) else several)
    return layers, blocks


def _prefix(given: list[str]) -> str:
    """The words, joined by underscores, that all names begin with; no name's last word."""
    same = []
    for words in zip(*(name.split("_")[:-1] for name in given), strict=False):
        if len({*words}) > 1:
            break
        same.append(words[0])
    return "_".join(same)
