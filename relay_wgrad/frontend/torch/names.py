"""How tables know the operators of PyTorch's graphs: by namespace, name and overload."""

from __future__ import annotations

from typing import Any


def op_of(node_or_target: Any) -> str:
    """`sin.default` of ATen's operator, `mylib::sin.default` of a user's, `_operator::getitem` of a
    function of Python's: the name alone says nothing.  "" of a node that calls none.

    Takes a node of an FX graph, or what one calls.
    """
    target = node_or_target
    if hasattr(target, "op") and hasattr(target, "users"):
        target = target.target if target.op == "call_function" else None
    name = getattr(target, "__name__", "")
    if not name:
        return ""
    namespace = getattr(target, "namespace", None) or getattr(target, "__module__", "")
    return str(name) if namespace == "aten" else f"{namespace}::{name}"
