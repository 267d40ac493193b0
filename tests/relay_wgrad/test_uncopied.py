"""Copies and pickles of what holds TVM's functions: TVM's own ended the process."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from relay_wgrad.frontend import from_torch
from relay_wgrad.training import Trainer
from relay_wgrad.training.data import Data
from relay_wgrad.training.evaluation import Evaluator

BATCH = {"input": np.ones((2, 1, 3, 3), "float32"), "labels": np.array([0, 1])}


def graph_of() -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())
    return from_torch(net, (torch.ones(2, 1, 3, 3),))


@pytest.mark.usefixtures("registered")
def test_what_runs_is_not_copied() -> None:
    graph = graph_of()
    for made in (Trainer(graph, "cpu"), Evaluator(graph, "cpu")):
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=rf"a {type(made).__name__} can't .* graph"):
                copied(made)


@pytest.mark.usefixtures("registered")
def test_a_graph_is_copied_and_not_pickled() -> None:
    graph, data = graph_of(), Data(graph_of(), BATCH)
    for held in (graph, data):
        with pytest.raises(TypeError, match=r"a TrainingGraph can't be .* import that again"):
            pickle.dumps(held)
    loss = Trainer(graph, "cpu").step(BATCH)
    for made in (copy.copy(graph), copy.deepcopy(graph), copy.deepcopy(data).graph):
        assert Trainer(made, "cpu").step(BATCH) == loss
    other = copy.deepcopy(graph)
    next(iter(other.params.values())).fill(0)
    del other.module["main"]
    assert Trainer(graph, "cpu").step(BATCH) == loss
