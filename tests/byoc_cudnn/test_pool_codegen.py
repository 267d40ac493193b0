"""The code of poolings: what is taken, what is generated, what the loaded library checks."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import numpy as np
import pytest
import tvm_ffi

from byoc_cudnn.building.compiled import library_command
from byoc_cudnn.building.toolchain import find
from byoc_cudnn.codegen.direct import missing
from byoc_cudnn.pool import POOLS, PoolCall, check, generate, kernels_of

CALL = PoolCall("f", "backward", "float16", (3, 3), (2, 2), (1, 1, 1, 1))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (replace(CALL, dtype="int8"), "dtype 'int8'; there are 'float16'"),
        (replace(CALL, direction="up"), "direction 'up'; there are 'forward'"),
        (replace(CALL, symbol="f-g"), "symbol 'f-g' is no identifier"),
        (replace(CALL, strides=(0, 1)), r"kernel (3, 3), strides (0, 1), padding (1, 1, 1, 1)"),
        (replace(CALL, kernel=(20, 20)), "a window of 20×20 pixels, at most 225"),
        (replace(CALL, slice=(8, 8)), "slice (8, 8): a first channel, and how many there are"),
        (replace(CALL, slice=(0, 8), index=True), "x is channels of another tensor, and backward"),
        (replace(CALL, padding=(3, 0, 0, 0)), "padding (3, 0, 0, 0) of windows (3, 3): some"),
    ],
)
def test_refusals(call: PoolCall, reason: str) -> None:
    assert check(call).reason.startswith(reason)
    with pytest.raises(ValueError, match=r"^.*: "):
        generate([call], 90)


def test_a_kernel_serves_all_paddings() -> None:
    source = generate([CALL, replace(CALL, symbol="g", padding=(0, 0, 1, 1), index=True)], 80)
    assert kernels_of(source) == [(80, "relay_wgrad_pool_backward_float16_3x3_2x2")]
    assert "padding=0,0,1,1 index" in source
    with pytest.raises(ValueError, match="is no kernel of max pooling"):
        POOLS.source_of("relay_wgrad_pool_backward_float16")


@pytest.mark.longer("compiles C++; of the libraries for convolutions stays")
def test_a_library_checks_its_calls(tmp_path_factory: pytest.TempPathFactory) -> None:
    if text := missing(find()):
        pytest.skip(text)
    folder = tmp_path_factory.mktemp("pool")
    path = folder / "pools.cc"
    path.write_text(generate([CALL], 90), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAY_WGRAD_CACHE", str(folder / "cache"))
        command = library_command(path, folder / "pools.so")
    subprocess.run(command, check=True)
    library = tvm_ffi.load_module(str(folder / "pools.so"))
    x = tvm_ffi.from_dlpack(np.zeros((1, 8, 8, 8), "float16"))
    with pytest.raises(TypeError, match="padding=1,1,1,1: expected 3 tensors, got 2 arguments"):
        library["f"](x, x)
    with pytest.raises(TypeError, match="x must be float16, got float32"):
        library["f"](x, tvm_ffi.from_dlpack(np.zeros((1, 8, 8, 8), "float32")), x)
    with pytest.raises(ValueError, match="x is not on the CUDA device"):
        library["f"](x, x, x)
    assert str(library["relay_wgrad_pool_plans"]()) == ""
