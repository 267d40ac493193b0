"""Parameter updates in Relax: TVM's own SGD, momentum SGD and Adam, checked.

`make_optimizer(…).init(variables)` and then `.get_function()` give a Relax function from
((parameters…), (gradients…), (state…)) to ((new parameters…), (new state…)), and `.state` what to
start from.
"""

from __future__ import annotations

from typing import Any

from tvm.relax.training.optimizer import SGD, MomentumSGD
from tvm.relax.training.optimizer import Adam as _Adam

OPTIMIZERS = ("sgd", "adam")


class Adam(_Adam):
    """TVM's Adam.  TVM 0.27 itself fails in `init`: it hands NumPy its own type for the dtype."""

    dtype: Any

    def _set_params_and_dtype(self, params: Any) -> None:
        super()._set_params_and_dtype(params)
        self.dtype = str(getattr(self.dtype, "dtype", self.dtype))


def make_optimizer(
    name: str, *, lr: float, momentum: float = 0.0, weight_decay: float = 0.0
) -> SGD | MomentumSGD | Adam:
    """`sgd` (velocity = momentum·velocity + gradient) or `adam` (betas 0.9 and 0.999).

    Raises ValueError for another name, for a learning rate that is not positive, for a momentum
    outside 0…1, and for a momentum given to Adam.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer {name!r}: expected {' or '.join(OPTIMIZERS)}")
    if not lr > 0:
        raise ValueError(f"lr={lr}: expected a positive learning rate")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum={momentum}: expected a number from 0 to below 1")
    if name == "adam":
        if momentum:
            raise ValueError("adam has betas of its own: momentum is sgd's")
        return Adam(lr, weight_decay=weight_decay)
    if momentum:
        return MomentumSGD(lr, momentum, weight_decay=weight_decay)
    return SGD(lr, weight_decay=weight_decay)
