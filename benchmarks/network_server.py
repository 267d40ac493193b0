"""What the server of `benchmarks cpu networks` imports, once, before it forks."""

from __future__ import annotations

import importlib

import benchmarks.network_modes  # noqa: F401
import relay_wgrad
from benchmarks.network_zoo import torchvision_models

torchvision_models()
importlib.import_module("timm")
relay_wgrad.register()
