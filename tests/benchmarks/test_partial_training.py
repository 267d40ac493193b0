"""The benchmark of training some parameters: its networks and its parts."""

from __future__ import annotations

import pytest
import torch

from benchmarks import partial_training, plain_networks


@pytest.mark.parametrize(
    ("name", "tensors", "numbers", "last"),
    [
        ("resnet50", 161, 25_557_032, "layer4.2.bn1.weight"),
        ("mobilenet_v2", 158, 3_504_872, "features.17.conv.1.1.weight"),
    ],
)
def test_networks_and_parts(name: str, tensors: int, numbers: int, last: str) -> None:
    """As many parameters as torchvision's, by the same names."""
    network = plain_networks.build(name)
    parameters = dict(network.named_parameters())
    assert (len(parameters), sum(p.numel() for p in parameters.values())) == (tensors, numbers)
    with torch.device("meta"):
        assert network.to("meta").eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)
    assert partial_training.PARTS["last"](network)[0] == last
    case = partial_training.Problem(name, "still", "ours", 1, 32, "float32", "cpu", 1)
    still, biases = case.network()
    norms = [m for m in still.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert not any(norm.training for norm in norms)
    assert len(biases) == len(norms) + 1
    assert len(partial_training.PARTS["norms"](still)) == 2 * len(norms)
