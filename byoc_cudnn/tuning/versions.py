"""What a measurement depends on: the GPU, and the versions of what computed."""

from __future__ import annotations

import tvm

from ..backends.cutlass.objects import find_cutlass, nvcc_version, release
from ..building.toolchain import Toolchain, find
from .record import STOCK


def machine_name(device: tvm.runtime.Device) -> str:
    """What a record calls a GPU."""
    return f"{device.device_name} sm_{arch_of(device)}"


def arch_of(device: tvm.runtime.Device) -> int:
    """A GPU's architecture as a number: 90 of sm_90."""
    return int(str(device.compute_version).replace(".", ""))


def versions(toolchain: Toolchain | None = None) -> dict[str, str | None]:
    """Backend -> its version here, as records have it; None where it is not installed."""
    found = find() if toolchain is None else toolchain
    cutlass = find_cutlass()
    nvcc = nvcc_version(found.nvcc) if found.nvcc is not None else None
    built = release(nvcc) if nvcc is not None else None
    return {
        "cudnn": found.cudnn.version_text if found.cudnn is not None else None,
        "cutlass": (
            f"{cutlass.text} nvcc {built[0]}.{built[1]}"
            if cutlass is not None and built is not None
            else None
        ),
        STOCK: tvm.__version__,
    }
