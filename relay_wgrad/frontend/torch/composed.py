"""ATen ops that PyTorch itself makes of others, which have rows: an allow-list.

Autograd differentiates an op by a formula of its own; what is on the list has been compared with
it (`tests/support/torch/curve_cases.py`).  Left out are ops whose parts have another gradient
where PyTorch's formula chooses one, as `sinc` at 0.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .names import op_of

_NAMES = """
    adaptive_max_pool1d.default adaptive_max_pool2d.default affine_grid_generator.default
    all.default all.dim aminmax.default any.default any.dim any.dims bucketize.Tensor
    channel_shuffle.default cosine_embedding_loss.default cosine_similarity.default
    deg2rad.default diag.default diag_embed.default diff.default eye.default floor_divide.default
    frac.default kl_div.default kron.default lerp.Scalar lerp.Tensor linalg_cross.default
    linspace.default logaddexp.default logit.default logsumexp.default margin_ranking_loss.default
    meshgrid.default meshgrid.indexing norm.ScalarOpt_dim one_hot.default outer.default
    pairwise_distance.default poisson_nll_loss.default rad2deg.default rot90.default sgn.default
    soft_margin_loss.default take_along_dim.default tensordot.default tril.default
    triplet_margin_loss.default triu.default true_divide.Tensor"""
COMPOSED = frozenset(_NAMES.split())
"""Overloads that are decomposed."""


def decompositions(graph: Any) -> dict[Any, Any]:
    """PyTorch's decompositions for a graph that has ops of the list; else an empty dictionary."""
    names = {*map(op_of, graph.nodes)}
    if not names & COMPOSED:
        return {}
    table: dict[Any, Any] = dict(import_module("torch._decomp").decomposition_table)
    known = import_module("torch.export").default_decompositions()
    table.update((overload, known[overload]) for overload in known)
    return {overload: rule for overload, rule in table.items() if op_of(overload) in COMPOSED}
