"""Our own kernels without a module: the library that calls them, and kernels loaded by address."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from byoc_cudnn.backends.cuda_direct import loaded
from byoc_cudnn.backends.cuda_direct.check import Options
from byoc_cudnn.backends.cuda_direct.loaded import CONVOLUTION, arguments
from byoc_cudnn.backends.cuda_direct.model import choose
from byoc_cudnn.building import loaded_objects
from byoc_cudnn.building.compilers import missing
from byoc_cudnn.building.toolchain import find
from relay_wgrad.problem import ConvKind, ConvProblem

PROBLEM = ConvProblem.parse(
    "wgrad n=2 c=16 h=9 w=8 k=16 r=3 s=3 stride=2,1 pad=1,0,2,1 groups=16"
    " layout=NHWC/OHWI/NHWC dtype=f16/f16/f16"
)


@pytest.fixture(scope="module")
def library() -> Any:
    if text := missing(find()):
        pytest.skip(text)
    return loaded.LIBRARY.module()


def given(problem: ConvProblem, address: int = 4096) -> list[Any]:
    return list(arguments(problem, choose(problem, (), Options(), 90), address))


TABLE: list[tuple[int, Any, str]] = [
    (1, "conv", "cuda_direct: kind must be one of fprop, dgrad, wgrad, got conv"),
    (
        2,
        "NHWC/OIHW/NHWC",
        "layouts must be one of NHWC/OHWI/NHWC, NCHW/OIHW/NCHW, NDHWC/ODHWI/NDHWC, got NHWC/OIHW",
    ),
    (3, ("float64",) * 3, "dtype must be one of float16, bfloat16, float32, got float64"),
    (4, (0, 1), "strides must be at least 1 and less than 2147483648, got 0"),
    (5, (0, 0), "padding must have 4 values, got 2"),
    (7, 0, "groups must be at least 1 and less than 2147483648, got 0"),
    (8, 0, "alignment must be at least 1"),
    (10, 0, "no kernel for wgrad n=2"),
]


@pytest.mark.longer("compiles C++; of cuDNN's library stays")
@pytest.mark.parametrize(("place", "value", "message"), TABLE)
def test_attributes_are_checked(place: int, value: Any, message: str, library: Any) -> None:
    arguments_ = given(PROBLEM)
    arguments_[place] = value
    with pytest.raises(ValueError, match=message):
        library[CONVOLUTION](*arguments_)


@pytest.mark.parametrize("kind", ConvKind)
@pytest.mark.parametrize("layouts", [("NCHW", "OIHW"), ("NHWC", "OHWI")])
def test_calls_are_checked(kind: ConvKind, layouts: tuple[str, str], library: Any) -> None:
    """Each tensor is read as what it is; then it is found that none is on a device."""
    data, weight = layouts
    problem = replace(PROBLEM, kind=kind, data_layout=data, kernel_layout=weight, grad_layout=data)
    function = library[CONVOLUTION](*given(problem))
    tensors = [torch.zeros(problem.shape(r), dtype=torch.float16) for r in problem.roles]
    with pytest.raises(ValueError, match=rf"^{problem.repro()}: data is not on the CUDA device"):
        function(*tensors)
    place = problem.roles.index("data")
    tensors[place] = tensors[place].double()
    with pytest.raises(TypeError, match="data has another dtype"):
        function(*tensors)
    assert loaded.plans() == []


@pytest.mark.longer("a kernel by nvcc")
def test_a_kernel_by_its_address(library: Any) -> None:
    """It is built and linked once, beside its object."""
    first = loaded.convolution(PROBLEM, Options(arch=90), 90)
    kernel = choose(PROBLEM, (), Options(arch=90), 90)
    address = loaded.address(kernel, 90)
    assert address
    assert loaded.address(kernel, 90) == address
    tensors = [torch.zeros(PROBLEM.shape(r), dtype=torch.float16) for r in PROBLEM.roles]
    with pytest.raises(ValueError, match="is not on the CUDA device"):
        first(*tensors)
    with pytest.raises(ValueError, match="relay_wgrad_none is no kernel for wgrad n=2"):
        loaded.convolution(PROBLEM, Options(arch=90, kernel="relay_wgrad_none"), 90)


def test_an_address_is_whole(tmp_path: Path) -> None:
    """Libraries lie above 4 GiB: an address read as an int would be another one."""
    found = find()
    if text := missing(found):
        pytest.skip(text)
    source, made = tmp_path / "f.cc", tmp_path / "f.o"
    source.write_text(
        'extern "C" __attribute__((visibility("default"))) int given() { return 4711; }\n'
    )
    subprocess.run([*found.compiler, "-c", "-fPIC", source, "-o", made], check=True)
    library = loaded_objects.linked(made, "given", found)
    address = loaded_objects.entry(library)
    assert address > 1 << 32
    assert ctypes.CFUNCTYPE(ctypes.c_int)(address)() == 4711
