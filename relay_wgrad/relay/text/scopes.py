"""What a name stands for while the text is read from left to right."""

from __future__ import annotations

from dataclasses import dataclass, field

from lark import Token

from ..ast import Constant, Expr, Function, Var, children
from ..errors import Complaint
from ..steps import order


@dataclass
class _Frame:
    """One function: its graph variables, each with the `let`s that were open where it was bound."""

    graph: dict[str, tuple[Expr, int, Var | None]] = field(default_factory=dict)


class Scopes:
    """The variables in scope, innermost last; functions are frames that nothing reaches out of."""

    def __init__(self) -> None:
        self._frames: list[_Frame] = []
        self._names: dict[str, tuple[Var, int]] = {}
        self._open: list[tuple[Var, tuple[Var, int] | None]] = []  # and what the name stood for
        self._place: dict[Var, int] = {}  # in `_open`
        self._latest: dict[Expr, Var | None] = {}  # see `_needs`
        self.free: dict[str, Var] = {}  # what `free_var` names: visible in every function

    def enter(self, params: tuple[Var, ...]) -> None:
        """A function begins."""
        self._frames.append(_Frame())
        for param in params:
            self.bind(param)

    def leave(self, params: int) -> None:
        """It ends."""
        self._frames.pop()
        self.close(params)

    def bind(self, var: Var) -> None:
        """`var` is visible from here on, before others of its name."""
        self._open.append((var, self._names.get(var.name)))
        self._place[var] = len(self._open) - 1
        self._names[var.name] = (var, len(self._frames))

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
        """Raises Complaint for a name that isn't bound, or belongs to a function around this."""
        found = self._names.get(token[1:])
        free = self.free.get(token[1:])
        if free is not None and (found is None or found[1] != len(self._frames)):
            return free
        if found is None:
            raise Complaint(token.start_pos or 0, f"{token} is not bound here")
        var, level = found
        if level != len(self._frames):
            raise _capture(token)
        return var

    def bind_graph(self, token: Token, value: Expr) -> None:
        """`%n = value;`."""
        graph = self._frames[-1].graph
        if token in graph:
            raise Complaint(token.start_pos or 0, f"{token} is bound twice")
        graph[str(token)] = (value, len(self._open), self._open[-1][0] if self._open else None)

    def graph(self, token: Token) -> Expr:
        """Raises Complaint for a number that isn't bound, or whose value has no meaning here."""
        found = self._frames[-1].graph.get(token)
        if found is None:
            return self._outer(token)
        value, count, top = found
        # What was open at its binding is still open, the common case: a stack, so its top tells.
        if count and not (len(self._open) >= count and self._open[count - 1][0] is top):
            needed = self._needs(value)
            if needed is not None and not self._visible(needed):
                problem = f"{token} needs %{needed.name}, whose scope has ended"
                raise Complaint(token.start_pos or 0, problem)
        return value

    def _outer(self, token: Token) -> Expr:
        for frame in reversed(self._frames[:-1]):
            if token in frame.graph:
                value = frame.graph[token][0]
                # These hold nothing of their surroundings.
                if isinstance(value, (Function, Constant)):
                    return value
                raise _capture(token)
        raise Complaint(token.start_pos or 0, f"{token} is not bound here")

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
            return () if isinstance(node, Function) or node in latest else children(node)

        for node in order(root, below):
            if node not in latest:
                found = [var for child in below(node) if (var := latest[child]) is not None]
                last = max(found, key=self._order, default=None)
                latest[node] = node if node in self._place else last  # type: ignore[assignment]
        return latest[root]

    def _order(self, var: Var) -> int:
        return self._place[var]


def _capture(token: Token) -> Complaint:
    problem = f"a function that captures {token} from around it: closures are not supported"
    return Complaint(token.start_pos or 0, problem, "closure")
