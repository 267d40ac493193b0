"""How tables know ONNX's operators."""

from __future__ import annotations

import onnx

_OWN = ("", "ai.onnx")


def op_of(node: onnx.NodeProto) -> str:
    """`Sin` of ONNX's own domain, `mylib::Sin` of another: a name alone says nothing."""
    return node.op_type if node.domain in _OWN else f"{node.domain}::{node.op_type}"
