"""Kernels of our own, built by g++ and run on the CPU: `cuda_emulated.h` has the device."""

from __future__ import annotations

import atexit
import ctypes
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byoc_cudnn.building.compiled import FAMILIES
from byoc_cudnn.building.toolchain import find
from byoc_cudnn.joins import JOINS, JoinsCall
from byoc_cudnn.joins.call import PIECES, TERMS
from byoc_cudnn.norm import NORMS, NormCall
from byoc_cudnn.norm.call import OTHERS
from byoc_cudnn.pool import POOLS, PoolCall
from relay_wgrad.dtypes import FLOATS, numpy_dtype

HEADER = Path(__file__).with_name("cuda_emulated.h")
DTYPES = {name: numpy_dtype(name) for name in FLOATS}
SMS = 4  # multiprocessors
_LAUNCH = """\
template <typename... P, typename... A>
cudaError_t launch(void (*kernel)(P...), dim3 grid, int threads, cudaStream_t, A... arguments) {
  emulated::run(grid, threads, 0, false, [&] { kernel(arguments...); });
  return cudaSuccess;
}
"""
_TOGETHER = """\
template <typename... P, typename... A>
cudaError_t launch_together(void (*kernel)(P...), const Together& z, int tensors, size_t sums,
                            cudaStream_t, A... arguments) {
  if (z.blocks == 0) return cudaErrorNotSupported;
  ++emulated::launched_together;
  const size_t bytes = size_t{16} * kMany * z.turns * tensors + sums;
  emulated::run(dim3(z.tiles * z.blocks), kMany, bytes, true, [&] { kernel(arguments...); });
  return cudaSuccess;
}
"""
# Pointers of `RelayWgradNormCall`, in order; of each of its other sides; and of a pooling's call.
_NORM = (
    "x", "dy", "dy2", "y", "residual", "gamma", "beta", "mean", "rstd", "running_mean",
    "running_var", "mask", "out", "dresidual", "first", "second", "new_mean", "new_var",
    "new_mask", "workspace",
)  # fmt: skip
_GATED = ("gate", "lift", "sums", "squeezed", "new_sums")  # around a gate
_ADDED = ("more", "skip", "total")
_OTHER = (
    "x", "gamma", "beta", "mean", "rstd", "running_mean", "running_var", "out", "first", "second",
    "new_mean", "new_var",
)  # fmt: skip
# What the results of a direction are called there.
_RESULTS = {
    "forward": {
        "y": "out", "mean": "first", "rstd": "second", "new_running_mean": "new_mean",
        "new_running_var": "new_var", "mask": "new_mask", "index": "new_mask",
    },
    "backward": {"dx": "out", "dgamma": "first", "dbeta": "second", "index": "mask"},
    "squeeze": {
        "mean": "first", "rstd": "second", "new_running_mean": "new_mean",
        "new_running_var": "new_var",
    },
    "excite": {"y": "out", "mask": "new_mask"},
    "gate_sums": {"dgate": "squeezed", "sums": "new_sums"},
    "gate_backward": {"dx": "out", "dgamma": "first", "dbeta": "second"},
}  # fmt: skip


class _Windows(ctypes.Structure):
    _fields_ = (
        *((n, ctypes.c_int64) for n in "nhwcpq"),
        *((n, ctypes.c_int) for n in ("top", "left")),
    )


class _Call(ctypes.Structure):
    """`RelayWgradNormCall` of norm_call.h."""

    _fields_ = (
        *((n, ctypes.c_int64) for n in ("images", "rows", "channels", "groups")),
        *((n, ctypes.c_double) for n in ("epsilon", "momentum", "alpha")),
        ("unbiased", ctypes.c_bool), ("multiprocessors", ctypes.c_int), ("together", ctypes.c_int),
        *((n, ctypes.c_void_p) for n in _NORM), ("workspace_bytes", ctypes.c_int64),
        ("others", ctypes.c_void_p * len(_OTHER) * OTHERS), ("windows", _Windows),
        *((n, ctypes.c_void_p) for n in _GATED),
        *((n, ctypes.c_int64) for n in ("fold", "dy_stride", "dy2_stride", "out_stride")),
        ("own", ctypes.c_void_p), ("x_stride", ctypes.c_int64),
        *((n, ctypes.c_void_p) for n in _ADDED),
    )  # fmt: skip


class _PoolCall(ctypes.Structure):
    """`RelayWgradPoolCall` of pool_call.h."""

    _fields_ = (
        *_Windows._fields_,
        *((n, ctypes.c_void_p) for n in ("x", "dy", "out", "index")),
        ("x_stride", ctypes.c_int64),
    )


class _Term(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p), ("stride", ctypes.c_int64))


class _Piece(ctypes.Structure):
    _fields_ = (
        ("to", ctypes.c_void_p), ("stride", ctypes.c_int64),
        *((n, ctypes.c_int) for n in ("width", "first", "terms", "vector", "end")),
    )  # fmt: skip


class _JoinsCall(ctypes.Structure):
    """`RelayWgradJoinsCall` of joins_call.h."""

    _fields_ = (
        ("rows", ctypes.c_int64),
        *((n, ctypes.c_int) for n in ("multiprocessors", "pieces", "tile", "height", "each")),
        ("piece", _Piece * PIECES), ("term", _Term * TERMS),
    )  # fmt: skip


def emulated(source: str) -> str:
    """A kernel's source for g++."""
    text = source.replace("#include <cuda_runtime_api.h>", f'#include "{HEADER}"')
    text = text.replace("#include <cooperative_groups.h>", "")
    template = "template <typename... Parameters, typename... Arguments>\n"
    for name, end, other in (
        ("launch", "// Whether accesses of 16 bytes fit.", _LAUNCH),
        ("launch_together", "}  // namespace", _TOGETHER),
    ):
        if (begin := text.find(f"{template}cudaError_t {name}(")) >= 0:
            text = text[:begin] + other + text[text.index(end, begin) :]
    text = text.replace(
        "extern __shared__ uint4 kept[];", "uint4* const kept = emulated::shared();"
    )
    to = r"  const auto to = static_cast<unsigned>\(__cvta.*?;\n\s*asm volatile\(.*?\);"
    copied = "  memcpy(kept + turn * kMany + threadIdx.x, from, 16);"
    text = re.sub(to, copied, text, flags=re.DOTALL)
    text = re.sub(r"asm volatile\(.*?\);", "", text, flags=re.DOTALL)
    return text.replace("cudaGetLastError();", "(void)0;")


@lru_cache(maxsize=1)
def includes() -> list[str]:
    """CUDA's headers and those that they need; skips where they are not."""
    found = find()
    places = [*found.cuda.includes, *Path("/usr/local").glob("cuda*/include")]
    if found.nvcc is not None:
        places.append(found.nvcc.parent.parent / "include")
    for name in ("cuda_fp16.h", "nv/target"):
        if not any((place / name).is_file() for place in places):
            pytest.skip(f"no {name} among CUDA's headers")
    return [word for place in places for word in ("-isystem", str(place))]


@lru_cache(maxsize=1)
def _folder() -> Path:
    """Of this process, for what all of its kernels have."""
    folder = Path(tempfile.mkdtemp(prefix="cuda-emulated-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@lru_cache(maxsize=8)
def compiler(header: Path, *options: str) -> list[str]:
    """What builds kernels for a device, whose header is compiled once for all of them."""
    if not (found := find().compiler):
        pytest.skip("no C++ compiler")
    words = [*found, "-std=c++20", "-w", "-fPIC", "-U_FORTIFY_SOURCE", *options, *includes()]
    path = _folder() / f"{header.stem}{len(list(_folder().iterdir()))}.h"
    path.write_text(f'#include "{header}"\n', encoding="utf-8")
    subprocess.run([*words, "-x", "c++-header", str(path), "-o", f"{path}.gch"], check=True)
    return [*words, "-include", str(path)]


@lru_cache(maxsize=1)
def _device() -> tuple[list[str], Path]:
    """What builds kernels for fibers, and those, built."""
    # What g++ takes to optimize more is more than what the kernels take without.
    own = ("-Og", "-ffp-contract=off", "-DRW_NORM_MANY=128", "-D__grid_constant__=")
    command, device = compiler(HEADER, *own), _folder() / "cuda_fibers.o"
    source = HEADER.with_name("cuda_fibers.cc")
    subprocess.run([*command, "-c", str(source), "-o", str(device)], check=True)
    return command, device


def objects(units: Sequence[Path]) -> list[Path]:
    """Files of kernels' emulated sources as objects, several at a time, and the device's.

    What is there already stays.
    """
    command, device = _device()
    made = [unit.with_suffix(".o") for unit in units]
    running = [
        subprocess.Popen([*command, "-c", str(unit), "-o", str(out)])
        for unit, out in zip(units, made, strict=True)
        if not out.exists()
    ]
    codes = [process.wait() for process in running]
    assert not any(codes)
    return [*made, device]


def library(source: str, path: Path) -> Any:
    """A kernel's emulated source as a library at a path, loaded."""
    unit = path.with_suffix(".cc")
    unit.write_text(source, encoding="utf-8")
    link = [*find().compiler, "-shared", *map(str, objects([unit])), "-o", str(path)]
    subprocess.run(link, check=True)
    return ctypes.CDLL(str(path))


@lru_cache(maxsize=64)
def loaded(folder: Path, kernel: str) -> Any:
    """A kernel's library, loaded."""
    family = next(f for f in FAMILIES if kernel.startswith(f.codegen))
    return library(emulated(family.source_of(kernel)), folder / f"{kernel}.so")


def aligned(array: np.ndarray, offset: int = 0) -> np.ndarray:
    """A copy that lies at 64 bytes, as a device's tensors do, or so many further on."""
    block = np.zeros(array.nbytes + 64 + offset, np.uint8)
    begin = -block.ctypes.data % 64 + offset
    out = block[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


def norm(folder: Path, call: NormCall, given: dict[str, np.ndarray], together: bool) -> bool:
    """Runs a call on tensors by name, results among them; whether one launch did it."""
    own = loaded(folder, NORMS.kernel_of(call))
    x = given["x"]
    workspace = np.full(1 << 18, 255, np.uint8)
    names = {**dict.fromkeys((*_NORM, *_GATED, *_ADDED)), "workspace": workspace}
    others: list[dict[str, Any]] = [dict.fromkeys(_OTHER) for _ in range(OTHERS)]
    results = _RESULTS[call.direction]
    for name in (*call.operands, *call.results):
        if name in ("joined", "own"):  # the first is the host's
            continue
        numbered = name[-1].isdigit() and name != "dy2"
        side = others[int(name[-1]) - 2] if numbered else names
        plain = name[:-1] if numbered else name
        is_result = name in call.results or plain == "index"
        side[results.get(plain, plain) if is_result else plain] = given[name]
    x = given["y" if call.forward else "dx"] if call.within else x  # of its shape
    images, channels = x.shape[0] if call.grouped or call.gated else 1, x.shape[-1]
    groups = given["mean"].shape[1] if call.grouped else channels
    packed = _Call(
        images, x.size // channels // images, channels, groups, call.epsilon, call.momentum,
        call.alpha, call.unbiased, SMS,
        together, *(names[n] if names[n] is None else names[n].ctypes.data for n in _NORM),
        workspace.nbytes,
    )  # fmt: skip
    for i, other in enumerate(others):
        for k, name in enumerate(_OTHER):
            packed.others[i][k] = None if other[name] is None else other[name].ctypes.data
    for name in (*_GATED, *_ADDED):
        setattr(packed, name, None if names[name] is None else names[name].ctypes.data)
    if call.pooled:
        windows = given["y" if call.forward else "dy"].shape
        packed.windows = _Windows(*x.shape, windows[1], windows[2], *call.pooled[4:6])
    for name, (first, wide) in zip(("dy", "dy2"), call.slices, strict=False):
        setattr(packed, name, given[name].ctypes.data + first * x.itemsize)
        setattr(packed, f"{name}_stride", wide)
    if call.within:
        packed.x = given["x"].ctypes.data + call.within[0] * x.itemsize
        packed.x_stride = call.within[1]
    if call.place:
        packed.out = given["y"].ctypes.data + call.place[0] * x.itemsize
        packed.out_stride = call.place[1]
        packed.own = given["own"].ctypes.data if call.own else None
    before = own.times_together()
    assert getattr(own, NORMS.kernel_of(call))(ctypes.byref(packed), None) == 0
    return bool(own.times_together() > before)


def pool(folder: Path, call: PoolCall, given: dict[str, np.ndarray]) -> None:
    """Runs a call on tensors by name, results among them."""
    forward = call.direction == "forward"
    windows, image = given["y" if forward else "dy"].shape, given["x" if forward else "dx"].shape
    read = {**given, "out": given["y" if forward else "dx"]}
    pointers = [
        read[name].ctypes.data if name == "out" or name in (*call.operands, *call.results) else None
        for name in ("x", "dy", "out", "index")
    ]
    if call.slice:
        pointers[0] += call.slice[0] * given["x"].itemsize
    stride = given["x"].shape[3] if "x" in call.operands else image[3]
    packed = _PoolCall(
        *image[:3], windows[3], windows[1], windows[2], *call.padding[:2], *pointers, stride
    )
    kernel = POOLS.kernel_of(call)
    assert getattr(loaded(folder, kernel), kernel)(ctypes.byref(packed), None) == 0


def join(
    folder: Path, call: JoinsCall, given: Sequence[np.ndarray], results: Sequence[np.ndarray]
) -> None:
    """Runs a call on operands and results of (rows, channels)."""
    packed = _JoinsCall(rows=given[0].shape[0], multiprocessors=SMS)
    terms = 0
    for out, pieces in zip(results, call.results, strict=True):
        begin = 0
        for piece in pieces:
            to = out.ctypes.data + begin * out.itemsize
            packed.piece[packed.pieces] = _Piece(
                to, out.shape[1], piece.width, terms, len(piece.terms)
            )
            packed.pieces += 1
            for operand, first in piece.terms:
                tensor = given[operand]
                packed.term[terms] = _Term(
                    tensor.ctypes.data + first * tensor.itemsize, tensor.shape[1]
                )
                terms += 1
            begin += piece.width
    kernel = JOINS.kernel_of(call)
    assert getattr(loaded(folder, kernel), kernel)(ctypes.byref(packed), None) == 0
