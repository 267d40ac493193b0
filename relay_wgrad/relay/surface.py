"""The two surfaces apart: what Relay's passes and functions say of a Relax module."""

from __future__ import annotations

from typing import Any

import tvm

from .ast import IRModule

# What does the same for Relax modules.
_COUNTERPARTS = {
    "ConvertLayout": "relay_wgrad.transform.ConvertLayout",
    "DeadCodeElimination": "tvm.relax.transform.DeadCodeElimination",
    "EliminateCommonSubexpr": "tvm.relax.transform.EliminateCommonSubexpr",
    "FirstOrderGradient": "relay_wgrad.transform.grad",
    "FoldConstant": "tvm.relax.transform.FoldConstant",
    "Legalize": "tvm.relax.transform.LegalizeOps",
    "RaiseConvBackward": "relay_wgrad.transform.RaiseConvBackward",
    "build": "tvm.compile",
    "gradient": "relay_wgrad.transform.grad",
}
_ANY = "the passes of relay_wgrad.transform and tvm.relax.transform"


def check_relay_module(op: str, mod: Any) -> None:
    """TypeError for what is no Relay module; for a Relax one it says what to use."""
    if isinstance(mod, IRModule):
        return
    if isinstance(mod, tvm.IRModule):
        raise TypeError(f"{op}: this is a Relax module: use {_COUNTERPARTS.get(op, _ANY)}")
    raise TypeError(f"{op}: expected a Relay IRModule, got {type(mod).__name__}")


def reason(error: BaseException) -> str:
    """What an error of TVM's says, without its trace: the first line that has words."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line), type(error).__name__)[:300]
