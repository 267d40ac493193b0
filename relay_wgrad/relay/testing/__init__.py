"""Networks with Relay 0.19's names, shapes and initial values, for tests and measurements.

    mod, params = relay.testing.resnet.get_workload(num_layers=18, batch_size=1)

Each module has `get_workload(...)`, which gives a typed module and its parameters as TVM's arrays,
and `get_net(...)` (`mobile_net` in `mobilenet`), which gives the function without types.
"""

from __future__ import annotations

from ..ast import Expr
from ..infer import infer_expr
from . import (
    dcgan,
    densenet,
    inception_v3,
    init,
    layers,
    mlp,
    mobilenet,
    resnet,
    squeezenet,
    vgg,
)
from .init import create_workload

__all__ = [
    "create_workload",
    "dcgan",
    "densenet",
    "inception_v3",
    "init",
    "layers",
    "mlp",
    "mobilenet",
    "resnet",
    "run_infer_type",
    "squeezenet",
    "vgg",
]


def run_infer_type(expr: Expr) -> Expr:
    """The expression with the types of all nodes.

    Raises TypeError or ValueError for a violated type relation.
    """
    return infer_expr(expr)
