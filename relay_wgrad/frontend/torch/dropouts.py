"""Dropout of an exported program, switched off where it is on: all of PyTorch's kinds.

Before decompositions, after which those of maps, alpha dropout and that between recurrent layers
are random numbers like any others.
"""

from __future__ import annotations

from typing import Any

from .names import op_of
from .program_copy import copied

_ON, _RATE = ("train", False), ("dropout_p", 0.0)
_SWITCHES: dict[str, tuple[str, Any]] = {
    **{
        f"{kind}{place}.default": _ON
        for kind in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
        for place in ("", "_")
    },
    "native_dropout.default": _ON,
    "scaled_dot_product_attention.default": _RATE,
    **{
        f"{kind}.{given}": ("dropout", 0.0)
        for kind in ("gru", "lstm", "rnn_relu", "rnn_tanh") for given in ("input", "data")
    },
}  # fmt: skip
"""Operator -> the argument by which it is off, and its value then."""


def without_dropout(program: Any, theirs: bool) -> tuple[Any, list[str]]:
    """(the program without dropout, the names of the nodes that had it); `theirs` is copied."""
    names = [node.name for node in program.graph.nodes if _is_on(node)]
    if not names:
        return program, []
    program = copied(program) if theirs else program
    for node in program.graph.nodes:
        if _is_on(node):
            name, value = _SWITCHES[op_of(node)]
            place = _names(node).index(name)
            if place < len(node.args):
                node.args = (*node.args[:place], value, *node.args[place + 1 :])
            else:
                node.kwargs = {**node.kwargs, name: value}
    program.graph_module.recompile()
    return program, names


def _names(node: Any) -> list[str]:
    return [argument.name for argument in node.target._schema.arguments]


def _is_on(node: Any) -> bool:
    if op_of(node) not in _SWITCHES:
        return False
    declared = {a.name: a.default_value for a in node.target._schema.arguments}
    given = {**declared, **dict(zip(declared, node.args, strict=False)), **node.kwargs}
    rate = next(given[name] for name in ("p", "dropout_p", "dropout") if name in given)
    return bool(rate) and given.get("train", True) is not False and given.get("num_layers", 2) > 1
