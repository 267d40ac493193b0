"""What a measurement depends on: the GPU, and the versions of what computed."""

from __future__ import annotations

import tvm

from relay_wgrad.backend_names import STOCK

from ..building.toolchain import Toolchain, find
from ..table import BACKENDS


def machine_name(device: tvm.runtime.Device) -> str:
    """What a record calls a GPU."""
    return f"{device.device_name} sm_{arch_of(device)}"


def arch_of(device: tvm.runtime.Device) -> int:
    """A GPU's architecture as a number: 90 of sm_90."""
    return int(str(device.compute_version).replace(".", ""))


def versions(toolchain: Toolchain | None = None) -> dict[str, str | None]:
    """Backend -> its version here, as records have it; None where it is not installed."""
    found = find() if toolchain is None else toolchain
    return {b.name: b.version(found) for b in BACKENDS.values()} | {STOCK: tvm.__version__}
