"""Networks with Relay 0.19's names, shapes and initial values, for tests and measurements.

    mod, params = relay.testing.resnet.get_workload(num_layers=18, batch_size=1)

Each module has `get_workload(...)`, which gives a typed module and its parameters as TVM's arrays,
and `get_net(...)` (`mobile_net` in `mobilenet`), which gives the function without types.
"""

from __future__ import annotations

from ..transform import gradient
from . import (
    dcgan,
    densenet,
    dqn,
    inception_v3,
    init,
    layers,
    lstm,
    mlp,
    mobilenet,
    resnet,
    squeezenet,
    synthetic,
    temp_op_attr,
    vgg,
)
from .checks import _np_randn_from_type as _np_randn_from_type
from .checks import check_grad, count_ops, enabled_targets, rand, run_infer_type, run_opt_pass
from .init import create_workload

__all__ = [
    "check_grad",
    "count_ops",
    "create_workload",
    "dcgan",
    "densenet",
    "dqn",
    "enabled_targets",
    "gradient",
    "inception_v3",
    "init",
    "layers",
    "lstm",
    "mlp",
    "mobilenet",
    "rand",
    "resnet",
    "run_infer_type",
    "run_opt_pass",
    "squeezenet",
    "synthetic",
    "temp_op_attr",
    "vgg",
]
