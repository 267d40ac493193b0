"""What processes of `benchmarks cpu networks` import, once, by the server that forks."""

from __future__ import annotations

import importlib

import relay_wgrad
from benchmarks import network_aot, network_checks, network_onnx, network_stages
from benchmarks.network_zoo import torchvision_models

torchvision_models()
importlib.import_module("timm")
relay_wgrad.register()

MODES = {
    "table": network_stages.stages,
    "aot": network_aot.stages,
    "aot-check": network_aot.check,
    "onnx": network_onnx.stages,
    "onnx-check": network_onnx.check,
    "check": network_checks.check,
    "open-check": network_checks.check_open,
    "train": network_checks.train,
}
"""Mode -> what sends the facts of a network."""
