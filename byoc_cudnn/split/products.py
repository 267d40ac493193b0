"""Matrix products as convolutions of one pixel, those that a backend takes, and their entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import tvm

from relay_wgrad.problem import ConvProblem
from relay_wgrad.transform.raise_product import ProductEntry, raise_products

from ..backends.base import Backend
from ..report import PRODUCT, Entry
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


def entries_of(products: Sequence[ProductEntry], entries: Sequence[Entry]) -> list[Entry]:
    """A report's entries: those of products say so, and those of products that stay come last."""
    nodes = {(p.function, p.convolution): p.node for p in products if p.convolution}
    found = []
    for entry in entries:
        node = nodes.get((entry.function, entry.node))
        found.append(entry if node is None else replace(entry, node=node, op=PRODUCT))
    stay = [Entry(p.function, p.node, PRODUCT, "", reason=p.reason) for p in products if p.reason]
    return found + stay
