"""What nvcc makes of kernels: that it takes them, that nothing spills, that blocks fit together."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from byoc_cudnn.backends.cuda_direct.check import check
from byoc_cudnn.backends.cuda_direct.depthwise import strip_of
from byoc_cudnn.backends.cuda_direct.depthwise_bands import Bands
from byoc_cudnn.backends.cuda_direct.kernels import Kernel, source_of
from byoc_cudnn.backends.cuda_direct.launch_time import REGISTERS
from byoc_cudnn.backends.cuda_direct.model import ranked
from byoc_cudnn.building import nvcc
from byoc_cudnn.building.toolchain import find
from byoc_cudnn.codegen.direct import missing
from relay_wgrad.problem import ConvKind, ConvProblem

pytestmark = pytest.mark.longer("nvcc, of 40 kernels")

# With an epilogue of fprop and dgrad.
LAYERS = (
    ("n=64 c=128 h=56 w=56 k=128 r=3 s=3 pad=1,1,1,1 groups=32", ("bias", "relu")),
    ("n=64 c=512 h=28 w=28 k=512 r=3 s=3 stride=2,2 pad=1,1,1,1 groups=32", ("residual",)),
    ("n=64 c=96 h=56 w=56 k=96 r=7 s=7 pad=3,3,3,3 groups=96", ("residual",)),
    ("n=64 c=320 h=64 w=64 k=4 r=3 s=3 pad=1,1,1,1", ("bias",)),
    ("n=64 c=32 h=56 w=56 k=32 r=3 s=3 pad=1,1,1,1", ("bias", "relu")),
    ("n=64 c=3 h=224 w=224 k=64 r=7 s=7 stride=2,2 pad=3,3,3,3", ("bias", "relu")),
)
# Bytes of a thread, so that two blocks fit.
LOCAL = {
    "few_result": 8, "first_image": 8, "grouped_image": 16, "bands_image": 24, "shares_image": 40,
}  # fmt: skip


# Depthwise, whose kernels are chosen by how many blocks run at once.
DEPTHWISE = (
    "n=64 c=144 h=56 w=56 k=144 r=3 s=3 pad=1,1,1,1 groups=144",
    "n=64 c=672 h=14 w=14 k=672 r=5 s=5 stride=2,2 pad=2,2,2,2 groups=672",
    "n=64 c=480 h=14 w=14 k=480 r=5 s=5 pad=2,2,2,2 groups=480",
)


@pytest.mark.parametrize("arch", [80, 90])
def test_registers_are_enough(arch: int, tmp_path: Path) -> None:
    kernels = [
        ranked(problem, epilogue if kind is not ConvKind.WGRAD else (), arch)[0].kernel
        for line, epilogue in LAYERS
        for kind in ConvKind
        for problem in [
            ConvProblem.parse(f"{kind.value} {line} layout=NHWC/OHWI/NHWC dtype=f16/f16/f16")
        ]
        if check(problem, "")  # there is no gradient of an image
    ]
    said = _compiled(kernels, arch, tmp_path)
    functions = re.findall(
        r"Function properties for (\S+)\n\s+(\d+) bytes stack frame, (\d+) bytes spill stores", said
    )
    assert len(functions) > len(kernels)
    for name, frame, stores in functions:
        allowed = max((b for part, b in LOCAL.items() if part in name), default=0)
        assert max(int(frame), int(stores)) <= allowed, name


def test_as_many_blocks_fit_as_the_model_thinks(tmp_path: Path) -> None:
    """Registers of a thread come by eight; few are spilled for it."""
    blocks: dict[Kernel, int] = {}  # threads that run at once
    for line in DEPTHWISE:
        for kind in ConvKind:
            text = f"{kind.value} {line} layout=NHWC/OHWI/NHWC dtype=f16/f16/f16"
            problem = ConvProblem.parse(text)
            kernel = ranked(problem, (), 90)[0].kernel
            if kernel.family == "depthwise_bands":
                bands = Bands(*kernel.numbers)
                blocks[kernel] = bands.threads * bands.fit
            else:
                strip = strip_of(problem, kernel.numbers)
                blocks[kernel] = strip.threads * strip.fit
    for i, (kernel, threads) in enumerate(blocks.items()):
        folder = tmp_path / str(i)
        folder.mkdir()
        said = _compiled([kernel], 90, folder)
        found = re.findall(
            r"Function properties for (\S+)\n.* (\d+) bytes spill stores.*\n.*Used (\d+) reg", said
        )
        found = [f for f in found if "added" not in f[0] and "sum_of" not in f[0]]
        assert len(found) == 1
        ((name, stores, registers),) = found
        assert -(-int(registers) // 8) * 8 * threads <= REGISTERS, name
        assert int(stores) <= 24, name


def _compiled(kernels: list[Kernel], arch: int, folder: Path) -> str:
    """What nvcc says; a test without it is skipped."""
    found = find()
    if text := missing(found):
        pytest.skip(text)
    source = folder / "kernels.cu"
    source.write_text(source_of(kernels), encoding="utf-8")
    command = [
        str(found.nvcc), *nvcc.options((arch,)), "-Xptxas", "-v", "-c", str(source), "-o",
        str(folder / "kernels.o"),
    ]  # fmt: skip
    return subprocess.run(command, check=True, capture_output=True, text=True).stderr
