"""ATen ops that PyTorch itself makes of others, which have rows: an allow-list.

Autograd differentiates an op by a formula of its own; what is on the list has been compared with
it (`tests/support/torch/composed_cases.py`).  Left out are ops whose parts have another gradient
where PyTorch's formula chooses one, as `sinc` at 0.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from .names import op_of

_NAMES = """
    adaptive_max_pool1d.default adaptive_max_pool2d.default affine_grid_generator.default
    all.default all.dim aminmax.default any.default any.dim any.dims bucketize.Tensor
    channel_shuffle.default cosine_embedding_loss.default cosine_similarity.default deg2rad.default
    diag.default diag_embed.default eye.default floor_divide.default frac.default gru.input
    kl_div.default kron.default lerp.Scalar lerp.Tensor linalg_cross.default linspace.default
    logaddexp.default logit.default logsumexp.default lstm.input margin_ranking_loss.default
    meshgrid.default meshgrid.indexing norm.ScalarOpt_dim one_hot.default outer.default
    pairwise_distance.default poisson_nll_loss.default rad2deg.default rnn_relu.input rnn_tanh.input
    rot90.default sgn.default soft_margin_loss.default take_along_dim.default
    tensordot.default tril.default triplet_margin_loss.default triu.default true_divide.Tensor"""
COMPOSED = frozenset(_NAMES.split())
"""Overloads that are decomposed."""
_RECURRENT = ("gru.input", "lstm.input", "rnn_relu.input", "rnn_tanh.input")


def decompositions(torch: Any, graph: Any) -> dict[Any, Any]:
    """PyTorch's decompositions for a graph that has ops of the list; else an empty dictionary."""
    names = {*map(op_of, graph.nodes)}
    if not names & COMPOSED:
        return {}
    table: dict[Any, Any] = dict(import_module("torch._decomp").decomposition_table)
    known = import_module("torch.export").default_decompositions()
    table.update((overload, known[overload]) for overload in known)
    return {
        overload: _layer_by_layer(torch, rule) if name in _RECURRENT else rule
        for overload, rule in table.items()
        if (name := op_of(overload)) in COMPOSED
    }


def _layer_by_layer(torch: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch's rule of a recurrent op, one layer at a time where there is dropout between layers.

    The rule itself leaves that dropout out: `_rnn_helper` of PyTorch 2.13 sets its rate to 0 in
    every layer (`num_layers < i - 1`), without a word.
    """

    def made(
        x: Any, hidden: Any, params: Any, biases: bool, layers: int, rate: float, train: bool,
        both_ways: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        if not (rate and train and layers > 1):
            return rule(x, hidden, params, biases, layers, 0.0, train, both_ways, batch_first)
        ways, count, ends = 2 if both_ways else 1, len(params) // layers, []
        x = x.transpose(0, 1) if batch_first else x
        for i in range(layers):
            if i:
                x = torch.dropout(x, rate, train)
            of_layer = slice(ways * i, ways * (i + 1))
            # An LSTM has two states, in a list.
            paired = isinstance(hidden, (list, tuple))
            start = [h[of_layer] for h in hidden] if paired else hidden[of_layer]
            own = params[count * i : count * (i + 1)]
            x, *end = rule(x, start, own, biases, 1, 0.0, train, both_ways, False)
            ends.append(end)
        return (
            x.transpose(0, 1) if batch_first else x,
            *(torch.cat(states, 0) for states in zip(*ends, strict=True)),
        )

    return made
