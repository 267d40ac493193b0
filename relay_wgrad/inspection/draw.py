"""`draw`: a Relax function's dataflow as a picture.

    from relay_wgrad.inspection.draw import draw
    draw(module["main_adjoint"], highlight="layout change").save("gradient.png")

Needs the extra `notebooks`: grandalf orders and places the boxes in layers (Sugiyama's method),
matplotlib paints them; neither wants a program such as Graphviz on the machine.
"""

from __future__ import annotations

import io
import itertools
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tvm import relax

from ..extras import extra_module
from .dataflow import KINDS, Dataflow, Node, dataflow

MOST_BOXES = 400
"""Boxes in a picture by default: beyond, nobody can read it, and placing them takes minutes."""


# ---- placing the boxes ---------------------------------------------------------------------------

# All lengths are points (1/72 inch).
_FONT, _LINE, _PAD_X, _PAD_Y = 7.5, 9.5, 6.0, 4.0
_GAP_X, _GAP_Y, _MARGIN = 12.0, 22.0, 10.0  # between boxes, between layers, around all
_GAP_LINES = 5.0  # between lines that pass a layer
_ROUNDS = 4  # of grandalf's sweeps against crossings; more change little


@dataclass
class _View:
    """What grandalf wants to know of a box, and where it puts it: `xy` is the middle."""

    w: float
    h: float
    xy: tuple[float, float] = (0.0, 0.0)


@dataclass
class _Placed:
    """Boxes as (x, y, width, height) of the middle, and each edge as the boxes that it passes.

    Where an edge passes a layer without a box of its own, it passes one of width 0.
    """

    boxes: list[tuple[float, float, float, float]]
    paths: list[list[tuple[float, float, float, float]]]
    width: float
    height: float


def _notebook_module(module: str) -> Any:
    return extra_module(module, f"draw: pictures need {module.partition('.')[0]}", "notebooks")


def _placed(graph: Dataflow, sizes: list[tuple[float, float]]) -> _Placed:
    """Each connected part in layers from top to bottom, the parts side by side."""
    graphs, layouts = _notebook_module("grandalf.graphs"), _notebook_module("grandalf.layouts")
    vertices = [graphs.Vertex(index) for index in range(len(graph.nodes))]
    for vertex, (w, h) in zip(vertices, sizes, strict=True):
        vertex.view = _View(w + _GAP_X - _GAP_LINES, h)
    edges = [graphs.Edge(vertices[a], vertices[b], data=(a, b)) for a, b in graph.edges]
    at: dict[Any, tuple[float, float, float, float]] = {}
    passed: dict[tuple[int, int], list[Any]] = {}
    width = height = 0.0
    for part in graphs.Graph(vertices, edges).C:
        layout = layouts.SugiyamaLayout(part)
        layout.xspace, layout.yspace, layout.dw, layout.dh = _GAP_LINES, _GAP_Y, 0.0, 0.0
        # A function has no cycle: no edge is to be turned.
        layout.init_all(inverted_edges=[], optimize=True)
        for _ in range(_ROUNDS):
            for _ in layout.ordering_step():
                pass
        layout.setxy()
        right = _spread(layout, at, width)
        for edge in part.E():
            by_rank = layout.ctrls.get(edge, {})
            passed[edge.data] = [by_rank[rank] for rank in sorted(by_rank)] or list(edge.v)
        width = right + 2 * _GAP_X
        height = max(height, max(y + h / 2 for _, y, _, h in at.values()))
    return _Placed(
        [at[vertex] for vertex in vertices],
        [[at[v] for v in passed[edge]] for edge in graph.edges],
        max(width - 2 * _GAP_X, 0.0),
        height,
    )


def _spread(layout: Any, at: dict[Any, tuple[float, float, float, float]], start: float) -> float:
    """Writes the places of one part into `at`, from x = `start` on; its right end.

    Brandes and Köpf's coordinates, as published and as in grandalf, may let two boxes of a layer
    overlap: a box too near to its left neighbour moves to the right.
    """
    for layer in layout.layers:
        edge = -math.inf
        height = max(vertex.view.h for vertex in layer)
        for vertex in layer:
            view = vertex.view
            x, y = max(view.xy[0], edge + view.w / 2), view.xy[1]
            edge = x + view.w / 2 + _GAP_LINES
            # A line passes the whole layer upright; so it stays clear of boxes higher than others.
            box = (view.w - _GAP_X + _GAP_LINES, view.h) if view.w else (0.0, height)
            at[vertex] = (x, y, *box)
    own = [vertex for layer in layout.layers for vertex in layer]
    shift = start - min(x - w / 2 for x, _, w, _ in (at[vertex] for vertex in own))
    for vertex in own:
        x, y, w, h = at[vertex]
        at[vertex] = (x + shift, y, w, h)
    return max(x + w / 2 for x, _, w, _ in (at[vertex] for vertex in own))


# ---- painting ------------------------------------------------------------------------------------

# Kind -> (fill, line).  Told apart without colour vision too, and each by its own words anyway.
_COLOURS = {
    "convolution": ("#cfe3f8", "#15568f"),
    "layout change": ("#fbcfc6", "#b3301b"),
    "reshape": ("#fbe7b8", "#8a6200"),
    "parameter": ("#e4e6ea", "#4b5563"),
    "result": ("#dcefdc", "#2f6b34"),
    "other": ("#ffffff", "#9aa3af"),
}
_EDGE, _INK = "#8b95a3", "#1b2430"
_DPI, _PIXELS = 110.0, 2e7  # of a picture in a notebook's cell, and the most that it has


@dataclass(frozen=True)
class Drawing:
    """A picture: the last line of a notebook's cell shows it."""

    figure: Any

    def save(self, path: str | os.PathLike[str], dpi: float = 144.0) -> None:
        """Writes a file in the format that its name ends in: png, svg, pdf.

        Raises ValueError for another ending, OSError for a path that cannot be written.
        """
        self.figure.savefig(path, dpi=dpi)

    def _repr_png_(self) -> bytes:
        width, height = self.figure.get_size_inches()
        dpi = min(_DPI, math.sqrt(_PIXELS / (width * height)))
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=dpi)
        image = _notebook_module("PIL.Image")
        palette, small = image.new("P", (1, 1)), io.BytesIO()
        palette.putpalette([part for colour in _shades() for part in colour])
        picture = image.open(buffer).convert("RGB")
        picture.quantize(palette=palette, dither=image.Dither.NONE).save(
            small, "PNG", optimize=True
        )
        return small.getvalue()


def _shades() -> list[tuple[int, ...]]:
    """All colours of a picture, and their mixtures where one ends on another.

    As its palette these make a file half as large, with no colour of a box changed.
    """
    white = "#ffffff"
    pairs = [(_EDGE, white)]
    for fill, line in _COLOURS.values():
        pairs += [(_INK, fill), (line, white), (line, fill)]
    found: dict[tuple[int, ...], None] = {}
    for pair in pairs:
        one, other = ([int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in pair)
        for quarters in range(5):
            mixed = (a * quarters + b * (4 - quarters) for a, b in zip(one, other, strict=True))
            found[tuple(round(part / 4) for part in mixed)] = None
    return list(found)


def draw(
    functions: relax.Function | Mapping[str, relax.Function],
    highlight: str | Iterable[str] = (),
    *,
    title: str = "",
    limit: int = MOST_BOXES,
) -> Drawing:
    """The dataflow of a function, or of several side by side, from top to bottom.

    A box is a call: its op, with strides, dilation and groups where they are not the default; its
    layouts, where the op has such attributes; its shape.  Its colour is its kind, see `KINDS`.

    Parameters
    ----------
    functions : a Relax function, or title -> function.
    highlight : kinds, or names of variables, whose boxes are filled with their full colour.
    title : what stands above the picture.
    limit : the most boxes that a function may have.

    Raises
    ------
    TypeError : for what is no Relax function, and arguments of another type.
    ValueError : for no function, more boxes than `limit`, a `limit` below 1, and a name in
        `highlight` that is neither a kind nor a variable.
    ModuleNotFoundError : without the extra `notebooks`; it names what to install.
    """
    given = dict(functions) if isinstance(functions, Mapping) else {title: functions}
    if not given:
        raise ValueError("draw: no function to draw")
    if not isinstance(title, str):
        raise TypeError(f"draw: title must be a string, got {title!r}")
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"draw: limit must be an int, got {limit!r}")
    if limit < 1:
        raise ValueError(f"draw: limit must be at least 1, got {limit}")
    graphs = {name: dataflow(function) for name, function in given.items()}
    for name, graph in graphs.items():
        if len(graph.nodes) > limit:
            raise ValueError(
                f"draw: {name or 'the function'} has {len(graph.nodes)} boxes, more than"
                f" limit={limit}: draw a part of it, or give a larger limit"
            )
    bright = _highlighted(highlight, graphs.values())
    painter = _Painter(bright)
    return Drawing(painter.paint(graphs, title if isinstance(functions, Mapping) else ""))


def _highlighted(highlight: str | Iterable[str], graphs: Iterable[Dataflow]) -> set[str]:
    if not isinstance(highlight, Iterable):
        raise TypeError(f"draw: highlight must be names, got {highlight!r}")
    names = [highlight] if isinstance(highlight, str) else list(highlight)
    known = {node.name for graph in graphs for node in graph.nodes} | set(KINDS)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"draw: highlight must be names, got {name!r}")
        if name not in known:
            raise ValueError(
                f"draw: highlight={name!r} is neither a variable nor a kind; kinds are"
                f" {', '.join(KINDS)}"
            )
    return set(names)


class _Painter:
    def __init__(self, bright: set[str]) -> None:
        self.bright = bright
        self.figure_module = _notebook_module("matplotlib.figure")
        self.patches = _notebook_module("matplotlib.patches")
        self.path = _notebook_module("matplotlib.path").Path
        self.measure = _notebook_module(
            "matplotlib.textpath"
        ).text_to_path.get_text_width_height_descent
        self.font = _notebook_module("matplotlib.font_manager").FontProperties

    def width(self, text: str, bold: bool = False, size: float = _FONT) -> float:
        weight = "bold" if bold else "normal"
        font = self.font(family="DejaVu Sans", weight=weight, size=size)
        return float(self.measure(text, font, False)[0]) if text else 0.0

    def size(self, node: Node) -> tuple[float, float]:
        widths = [self.width(line, bold=i == 0) for i, line in enumerate(node.label)]
        return max(widths) + 2 * _PAD_X, len(node.label) * _LINE + 2 * _PAD_Y

    def paint(self, graphs: Mapping[str, Dataflow], title: str) -> Any:
        placed = [_placed(graph, [self.size(n) for n in graph.nodes]) for graph in graphs.values()]
        kinds = [k for k in KINDS if any(n.kind == k for g in graphs.values() for n in g.nodes)]
        legend = sum(self.width(kind) + 26 for kind in kinds)
        widths = [
            max(p.width, self.width(name, bold=True, size=9))
            for p, name in zip(placed, graphs, strict=True)
        ]
        between = 3 * _GAP_X
        inner = max(sum(widths) + between * (len(widths) - 1), legend, self.width(title, True, 10))
        width = inner + 2 * _MARGIN
        top = _MARGIN + (20 if title else 0) + (18 if any(graphs) else 0)
        height = top + max(p.height for p in placed) + 34 + _MARGIN
        figure = self.figure_module.Figure(figsize=(width / 72, height / 72), facecolor="white")
        self.axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        self.axes.set(xlim=(0, width), ylim=(height, 0))
        self.axes.axis("off")
        if title:
            self.text(width / 2, _MARGIN + 6, title, 10, weight="bold")
        x = _MARGIN + (inner - sum(widths) - between * (len(widths) - 1)) / 2
        for (name, graph), place, w in zip(graphs.items(), placed, widths, strict=True):
            if name:
                self.text(x + w / 2, top - 12, name, 9, weight="bold")
            self.panel(graph, place, x + (w - place.width) / 2, top)
            x += w + between
        x = (width - legend) / 2
        for kind in kinds:
            self.box(x + 9, height - _MARGIN - 7, 14, 9, kind, kind in self.bright)
            self.text(x + 20, height - _MARGIN - 7, kind, _FONT, ha="left")
            x += self.width(kind) + 26
        return figure

    def text(self, x: float, y: float, text: str, size: float, **how: Any) -> None:
        how = {"ha": "center", "va": "center", "color": _INK, "family": "DejaVu Sans", **how}
        # A name may hold a dollar sign, and is no formula.
        self.axes.text(x, y, text, fontsize=size, parse_math=False, **how)

    def box(self, x: float, y: float, w: float, h: float, kind: str, bright: bool) -> None:
        fill, line = _COLOURS[kind]
        round_ends = kind in ("parameter", "result")
        style = f"round,pad=0,rounding_size={min(h / 2, 9) if round_ends else 2.5}"
        self.axes.add_patch(
            self.patches.FancyBboxPatch(
                (x - w / 2, y - h / 2), w, h, boxstyle=style, zorder=2,
                facecolor=line if bright else fill, edgecolor=line, linewidth=0.9,
            )
        )  # fmt: skip

    def panel(self, graph: Dataflow, placed: _Placed, left: float, top: float) -> None:
        ends = _ends(placed.paths)
        for path, (start, end) in zip(placed.paths, ends, strict=True):
            points = [(start + left, path[0][1] + path[0][3] / 2 + top)]
            for x, y, _, h in path[1:-1]:
                points += [(x + left, y - h / 2 + top), (x + left, y + h / 2 + top)]
            points.append((end + left, path[-1][1] - path[-1][3] / 2 + top))
            self.edge(points)
        for node, (x, y, w, h) in zip(graph.nodes, placed.boxes, strict=True):
            bright = node.kind in self.bright or node.name in self.bright
            self.box(x + left, y + top, w, h, node.kind, bright)
            for i, line in enumerate(node.label):
                at = y + top + (i - (len(node.label) - 1) / 2) * _LINE
                self.text(
                    x + left, at, line, _FONT, zorder=3,
                    weight="normal" if i else "bold", color="white" if bright else _INK,
                )  # fmt: skip

    def edge(self, points: list[tuple[float, float]]) -> None:
        """A line that leaves and enters every point vertically, with an arrow's head."""
        line, codes = [points[0]], [self.path.MOVETO]
        for (ax, ay), (bx, by) in itertools.pairwise(points):
            bend = (ay + by) / 2
            line += [(ax, bend), (bx, bend), (bx, by)]
            codes += [self.path.CURVE4] * 3
        self.axes.add_patch(
            self.patches.PathPatch(
                self.path(line, codes), fill=False, edgecolor=_EDGE, linewidth=0.9, zorder=1
            )
        )
        x, y = points[-1]
        head = [(x, y), (x - 2.4, y - 5), (x + 2.4, y - 5)]
        self.axes.add_patch(self.patches.Polygon(head, color=_EDGE, linewidth=0, zorder=1))


def _ends(
    paths: list[list[tuple[float, float, float, float]]],
) -> list[tuple[float, float]]:
    """Where each edge leaves its first box and enters its last: side by side, none crossing."""
    out = [[path[0][0], path[-1][0]] for path in paths]
    for end, box, beside in ((0, 0, 1), (1, -1, -2)):
        groups: dict[tuple[float, ...], list[int]] = {}
        for index, path in enumerate(paths):
            groups.setdefault(path[box], []).append(index)
        for (x, _, w, _), members in groups.items():
            members.sort(key=lambda index: paths[index][beside][0])
            step = min(12.0, 0.7 * w / len(members))
            for place, index in enumerate(members):
                out[index][end] = x + (place - (len(members) - 1) / 2) * step
    return [(start, end) for start, end in out]
