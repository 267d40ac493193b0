"""Matrix products as convolutions of one pixel, those that a backend takes, and their entries; what
a build gives to cuBLAS is left, and said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import tvm

from relay_wgrad.graph.walk import bindings_of, functions_in
from relay_wgrad.ir import is_closed, op_name
from relay_wgrad.problem import ConvProblem
from relay_wgrad.transform.raise_product import ProductEntry, raise_products

from ..backends.base import Backend
from ..batched_products.lower import MATMUL, products_of, with_tf32
from ..report import BY_CUBLAS, PRODUCT, Entry
from .offload import adapted_problem


def raised(
    mod: tvm.IRModule, backends: Sequence[Backend]
) -> tuple[tvm.IRModule, list[ProductEntry]]:
    """The module with each product that one of the backends takes as a convolution."""

    def refusal(problem: ConvProblem) -> str:
        decisions = [backend.takes(problem) for backend in backends]
        if any(decisions) or adapted_problem(problem, backends) is not None:
            return ""
        return decisions[-1].reason

    return raise_products(mod, refusal)


def told(mod: tvm.IRModule, options: Mapping[str, Any]) -> tvm.IRModule:
    """A module whose products' operands may be rounded to tf32 where all backends' may, which says
    so; one without products is itself."""
    if all(op_name(b.value) != MATMUL for _, func in functions_in(mod) for b in bindings_of(func)):
        return mod
    allowed = [o.allow_tf32 for o in options.values() if hasattr(o, "allow_tf32")]
    return with_tf32(mod, bool(allowed) and all(allowed))


def entries_of(
    products: Sequence[ProductEntry], entries: Sequence[Entry], mod: tvm.IRModule
) -> list[Entry]:
    """A report's entries: those of products say so, and those of products that stay come last.

    mod : the module with the products that stay.
    """
    nodes = {(p.function, p.convolution): p.node for p in products if p.convolution}
    found = []
    for entry in entries:
        node = nodes.get((entry.function, entry.node))
        found.append(entry if node is None else replace(entry, node=node, op=PRODUCT))
    later = _later(mod) if any(p.reason for p in products) else set()
    for p in products:
        if p.reason:
            reason = BY_CUBLAS if (p.function, p.node) in later else p.reason
            found.append(Entry(p.function, p.node, PRODUCT, "", reason=reason))
    return found


def _later(mod: tvm.IRModule) -> set[tuple[str, str]]:
    """The functions and variables of products that a build gives to cuBLAS."""
    return {
        (str(gv.name_hint), str(one.product.name))
        for gv, func in functions_in(mod)
        if not is_closed(func)
        for one in products_of(func)
        if not one.reason
    }
