"""Programs rewritten where a pattern matches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..ast import Expr, Function, IRModule, Op, as_node
from ..equal import structural_equal
from ..infer import infer_expr
from ..rewrite import rewrite as rebuild
from ..variables import free_vars
from .partition import Group, Grouper
from .pattern import DFPattern

_MOST = 100  # passes, as in Relay


class DFPatternCallback:
    """A rewriting: `self.pattern`, and `callback`, which gives what takes a match's place.

    `require_type`: types are inferred before matching.  `rewrite_once`: no second pass after one
    that changed something.
    """

    def __init__(self, require_type: bool = False, rewrite_once: bool = False) -> None:
        self.pattern: DFPattern | None = None
        self.require_type = require_type
        self.rewrite_once = rewrite_once

    def rewrite(self, expr: Any) -> Expr:
        """The expression rewritten with this alone."""
        return rewrite(self, expr)

    def callback(self, pre: Expr, post: Expr, node_map: Mapping[DFPattern, Sequence[Expr]]) -> Any:
        """What takes a match's place.

        `pre` is the match's last node; `post` the same over operands that have been rewritten;
        `node_map` has what each part of the pattern has matched, rewritten too.
        """
        raise NotImplementedError("a DFPatternCallback needs a callback")


def rewrite(
    callbacks: DFPatternCallback | Sequence[DFPatternCallback],
    expr: Any,
    mod: IRModule | None = None,
) -> Expr:
    """The expression rewritten until nothing changes any more, by each callback in turn.

    `mod` has the functions that the expression calls.  Matches are found as `partition` does.

    Raises
    ------
    TypeError : for what is no callback, no expression, or a callback that gives none.
    ValueError : for a callback without a pattern; after 100 passes that each changed something.
    """
    given = [callbacks] if isinstance(callbacks, DFPatternCallback) else list(callbacks)
    for callback in given:
        if not isinstance(callback, DFPatternCallback):
            raise TypeError(f"rewrite: expected a DFPatternCallback, got {callback!r}")
        if callback.pattern is None:
            raise ValueError(f"rewrite: {type(callback).__name__} has no pattern")
    post: Expr = as_node(expr, "rewrite: the expression")
    waiting = list(given)
    mine: dict[Expr, Expr] = {}  # free variables with types -> the expression's own
    passes = 0
    changed = True
    while changed:
        before = post
        for callback in list(waiting):
            if passes >= _MOST:
                raise ValueError(
                    f"rewrite: {_MOST} passes have each changed something: do the rewritings"
                    f" {', '.join(type(c).__name__ for c in given)} undo each other?"
                )
            passes += 1
            if callback.require_type:
                post = _typed(post, mod, mine)
            out = _once(callback, post, mod)
            if callback.rewrite_once and not _equal(out, post):
                waiting.remove(callback)
            post = out
        if mine:
            post = rebuild(post, lambda _, new: new, dict(mine))
        changed = not _equal(before, post)
    return post


def _equal(a: Expr, b: Expr) -> bool:
    return a is b or structural_equal(a, b)


def _typed(expr: Expr, mod: IRModule | None, mine: dict[Expr, Expr]) -> Expr:
    out = infer_expr(expr, mod)
    pairs = zip(free_vars(out), free_vars(expr), strict=True)
    mine.update({new: mine.get(old, old) for new, old in pairs if new is not old})
    return out


def _once(callback: DFPatternCallback, expr: Expr, mod: IRModule | None) -> Expr:
    assert callback.pattern is not None
    groups: Mapping[Expr, Group] = Grouper(expr, mod).groups(callback.pattern)
    if not groups:
        return expr
    new: dict[Expr, Expr] = {}

    def change(old: Expr, rebuilt: Expr) -> Any:
        if rebuilt is not old and not isinstance(rebuilt, (Op, Function)):
            # What is below may have another type now.
            rebuilt = replace(rebuilt, checked_type=None)
        group = groups.get(old)
        if group is None:
            return rebuilt
        new[old] = rebuilt
        matched = {p: [new.get(n, n) for n in nodes] for p, nodes in group.matched.items()}
        out = callback.callback(old, rebuilt, matched)
        return as_node(out, f"{type(callback).__name__}: what the callback gives")

    return rebuild(expr, change, new)
