"""What a name stands for while the text is read from left to right."""

from __future__ import annotations

from dataclasses import dataclass, field

from lark import Token

from ..ast import Expr, Var, children
from ..errors import Complaint
from ..iterative_walks import order


@dataclass
class _Frame:
    """One function: its graph variables, each with the `let`s that were open where it was bound.

    `first` is the place of its own first variable; `captured` that of the last one around it which
    it uses, -1 if it uses none.
    """

    first: int
    graph: dict[str, tuple[Expr, int, Var | None]] = field(default_factory=dict)
    captured: int = -1


class Scopes:
    """The variables in scope, innermost last; functions are frames, and may use what is around."""

    def __init__(self) -> None:
        self._frames: list[_Frame] = []
        self._names: dict[str, Var] = {}
        self._open: list[tuple[Var, Var | None]] = []  # and what the name stood for
        self._place: dict[Var, int] = {}  # in `_open`
        self._latest: dict[Expr, Var | None] = {}  # see `_needs`
        self.free: dict[str, Var] = {}  # what `free_var` names: visible in every function

    def enter(self, params: tuple[Var, ...]) -> None:
        """A function begins."""
        self._frames.append(_Frame(len(self._open)))
        for param in params:
            self.bind(param)

    def leave(self, params: int) -> Var | None:
        """It ends; the variable bound last among those around it that it uses."""
        self.close(params)
        captured = self._frames.pop().captured
        if captured < 0:
            return None
        self._capture(captured)
        return self._open[captured][0]

    def _capture(self, place: int) -> None:
        """A variable is used here: of what is around the function it is a captured one."""
        frame = self._frames[-1]
        if place < frame.first:
            frame.captured = max(frame.captured, place)

    def needs(self, function: Expr, captured: Var | None) -> None:
        """Notes what a function needs of its surroundings, as `leave` told."""
        self._latest[function] = captured

    def bind(self, var: Var) -> None:
        """`var` is visible from here on, before others of its name."""
        self._open.append((var, self._names.get(var.name)))
        self._place[var] = len(self._open) - 1
        self._names[var.name] = var

    def close(self, count: int) -> None:
        """The last `count` variables go out of scope."""
        for _ in range(count):
            var, hidden = self._open.pop()
            if hidden is None:
                del self._names[var.name]
            else:
                self._names[var.name] = hidden

    def made(self, let: Expr) -> None:
        """Notes where a scope of `let`s stands: what is open there is all that it can need."""
        self._latest[let] = self._open[-1][0] if self._open else None

    def local(self, token: Token) -> Var:
        """Raises Complaint for a name that isn't bound."""
        found = self._names.get(token[1:])
        free = self.free.get(token[1:])
        if found is None and free is not None:
            return free
        if found is None:
            raise Complaint(token.start_pos or 0, f"{token} is not bound here")
        self._capture(self._place[found])
        return found

    def bind_graph(self, token: Token, value: Expr) -> None:
        """`%n = value;`."""
        graph = self._frames[-1].graph
        if token in graph:
            raise Complaint(token.start_pos or 0, f"{token} is bound twice")
        graph[str(token)] = (value, len(self._open), self._open[-1][0] if self._open else None)

    def graph(self, token: Token) -> Expr:
        """Raises Complaint for a number that isn't bound, or whose value has no meaning here."""
        here = self._frames[-1]
        frame = next((f for f in reversed(self._frames) if token in f.graph), None)
        if frame is None:
            raise Complaint(token.start_pos or 0, f"{token} is not bound here")
        value, count, top = frame.graph[token]
        # What was open at its binding is still open, the common case: a stack, so its top tells.
        is_open = not count or (len(self._open) >= count and self._open[count - 1][0] is top)
        if not is_open or frame is not here:
            needed = self._needs(value)
            if needed is not None and not self._visible(needed):
                problem = f"{token} needs %{needed.name}, whose scope has ended"
                raise Complaint(token.start_pos or 0, problem)
            if needed is not None:
                self._capture(self._place[needed])
        return value

    def _visible(self, var: Var) -> bool:
        place = self._place[var]
        return place < len(self._open) and self._open[place][0] is var

    def _needs(self, root: Expr) -> Var | None:
        """The variable bound last among those that a value is computed from.

        Scopes are a stack: while that one is open, so are all others that were open with it.
        Remembered for each node, so all questions together take time linear in the program.
        """
        latest = self._latest

        def below(node: Expr) -> tuple[Expr, ...]:
            return () if node in latest else children(node)

        for node in order(root, below):
            if node not in latest:
                found = [var for child in below(node) if (var := latest[child]) is not None]
                last = max(found, key=self._order, default=None)
                latest[node] = node if node in self._place else last  # type: ignore[assignment]
        return latest[root]

    def _order(self, var: Var) -> int:
        return self._place[var]
