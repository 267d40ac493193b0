"""FLegalize of `relax.nn.process_mean`: a call of what PyTorch's process group runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from relay_wgrad.opdef import OpDef
from relay_wgrad.ops.process_mean import RUNS


def rule(definition: OpDef, upstream: Any) -> Callable[..., Any]:
    """The FLegalize rule."""

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        name = RUNS[int(call.attrs["transposed"])]
        return relax.op.call_dps_packed(name, (call.args[0],), call.ty)

    return legalize
