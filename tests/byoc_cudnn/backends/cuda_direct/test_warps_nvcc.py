"""What nvcc makes of the kernels on tensor cores: that it takes them, and that nothing spills."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from byoc_cudnn.backends.cuda_direct.check import check
from byoc_cudnn.backends.cuda_direct.kernels import source_of
from byoc_cudnn.backends.cuda_direct.model import ranked
from byoc_cudnn.building import nvcc
from byoc_cudnn.building.toolchain import find
from byoc_cudnn.codegen.direct import missing
from relay_wgrad.problem import ConvKind, ConvProblem

# With an epilogue of fprop and dgrad.
LAYERS = (
    ("n=64 c=128 h=56 w=56 k=128 r=3 s=3 pad=1,1,1,1 groups=32", ("bias", "relu")),
    ("n=64 c=512 h=28 w=28 k=512 r=3 s=3 stride=2,2 pad=1,1,1,1 groups=32", ("residual",)),
    ("n=64 c=96 h=56 w=56 k=96 r=7 s=7 pad=3,3,3,3 groups=96", ("residual",)),
    ("n=64 c=320 h=64 w=64 k=4 r=3 s=3 pad=1,1,1,1", ("bias",)),
    ("n=64 c=3 h=224 w=224 k=64 r=7 s=7 stride=2,2 pad=3,3,3,3", ("bias", "relu")),
)
# Bytes of a thread, so that two blocks fit.
LOCAL = {"few_result": 8, "grouped_image": 16, "bands_image": 24}


@pytest.mark.parametrize("arch", [80, 90])
def test_registers_are_enough(arch: int, tmp_path: Path) -> None:
    found = find()
    if text := missing(found):
        pytest.skip(text)
    kernels = [
        ranked(problem, epilogue if kind is not ConvKind.WGRAD else (), arch)[0].kernel
        for line, epilogue in LAYERS
        for kind in ConvKind
        for problem in [
            ConvProblem.parse(f"{kind.value} {line} layout=NHWC/OHWI/NHWC dtype=f16/f16/f16")
        ]
        if check(problem, "")  # there is no gradient of an image
    ]
    source = tmp_path / "kernels.cu"
    source.write_text(source_of(kernels), encoding="utf-8")
    command = [
        str(found.nvcc), *nvcc.options((arch,)), "-Xptxas", "-v", "-c", str(source), "-o",
        str(tmp_path / "kernels.o"),
    ]  # fmt: skip
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    functions = re.findall(
        r"Function properties for (\S+)\n\s+(\d+) bytes stack frame, (\d+) bytes spill stores", said
    )
    assert len(functions) > len(kernels)
    for name, frame, stores in functions:
        allowed = max((b for part, b in LOCAL.items() if part in name), default=0)
        assert max(int(frame), int(stores)) <= allowed, name
