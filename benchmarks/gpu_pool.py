"""Max pooling and its gradient on a GPU: our kernels against PyTorch's, and memory's rate.

    python -m benchmarks.gpu_pool [--json FILE]

Channels last.  Bytes are those of reading x and writing y, or reading x and dy and writing dx; with
an index, of a byte for each window, that is written and read, and x is not.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu_norm import copy_rate, load, median
from benchmarks.gpu_norm_shapes import DTYPES
from byoc_cudnn.pool import PoolCall, generate, inputs
from relay_wgrad import output

# images, side, channels, kernel, stride, padding: ResNet-50's stem, VGG-16's first, Inception's
SHAPES = (
    (256, 112, 64, 3, 2, 1), (64, 112, 64, 3, 2, 1), (64, 224, 64, 2, 2, 0), (64, 28, 256, 3, 1, 1),
)  # fmt: skip


def call_of(direction: str, mode: str, window: tuple[int, ...], index: bool) -> PoolCall:
    kernel, stride, padding = window
    symbol = f"{direction}_{mode}_{kernel}_{stride}_{padding}" + "_index" * index
    pair = (kernel, kernel), (stride, stride), (padding,) * 4
    return PoolCall(symbol, direction, DTYPES[mode], *pair, index)


def measure(functions: Any, mode: str, shape: tuple[int, ...]) -> dict[str, Any]:
    n, side, c, kernel, stride, padding = shape
    generator = torch.Generator("cuda").manual_seed(0)
    dtype = getattr(torch, DTYPES[mode])
    x = torch.randn((n, side, side, c), device="cuda", dtype=dtype, generator=generator)
    seen = x.permute(0, 3, 1, 2).requires_grad_()
    want = F.max_pool2d(seen, kernel, stride, padding)
    dy = torch.randn(want.shape, device="cuda", dtype=dtype, generator=generator)
    dy = dy.to(memory_format=torch.channels_last)
    rows = dy.permute(0, 2, 3, 1)
    y, dx = torch.full_like(rows, float("nan")), torch.full_like(x, float("nan"))
    index = torch.empty(rows.shape, device="cuda", dtype=torch.uint8)
    named = {
        (d, i): functions[call_of(d, mode, shape[3:], i).symbol]
        for d in ("forward", "backward")
        for i in (False, True)
    }
    ours = {
        "forward": partial(named["forward", False], x, y),
        "backward": partial(named["backward", False], rows, x, dx),
        "forward_index": partial(named["forward", True], x, y, index),
        "backward_index": partial(named["backward", True], rows, index, dx),
    }
    backward = partial(torch.autograd.grad, want, seen, dy, retain_graph=True)
    for call in ours.values():
        call()
    right = backward()[0].permute(0, 2, 3, 1)
    wrong = float((dx.double() - right.double()).norm() / right.double().norm())
    small = y.nbytes
    moved = {
        "forward": x.nbytes + small, "backward": 2 * x.nbytes + small,
        "forward_index": x.nbytes + small + index.nbytes,
        "backward_index": x.nbytes + small + index.nbytes,
    }  # fmt: skip
    theirs = {
        "torch_forward": partial(F.max_pool2d, seen, kernel, stride, padding),
        "torch_backward": backward,
    }
    times = {name: median([call]) for name, call in {**ours, **theirs}.items()}
    return {
        "shape": shape, "mode": mode, "same": torch.equal(y, want.permute(0, 2, 3, 1)),
        "error": wrong, "ms": {name: 1e3 * seconds for name, seconds in times.items()},
        "tbs": {name: moved[name] / times[name] / 1e12 for name in moved},
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modes", default="bf16,f32")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    modes = args.modes.split(",")
    calls = {
        call.symbol: call
        for mode in modes
        for shape in SHAPES
        for index in (False, True)
        for call in (call_of(d, mode, shape[3:], index) for d in ("forward", "backward"))
    }
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        functions = load(list(calls.values()), Path(folder), generate, inputs)
        copy = copy_rate()
        print(f"{torch.cuda.get_device_name()}, a copy {copy / 1e12:.2f} TB/s; ms (TB/s), PyTorch")
        for mode in modes:
            for shape in SHAPES:
                row = measure(functions, mode, shape)
                rows.append(row)
                parts = [f"{name} {ms:.3f} ({row['tbs'].get(name, 0):.2f})"
                         for name, ms in row["ms"].items()]  # fmt: skip
                print(mode, shape, *parts, f"same {row['same']}, error {row['error']:.1e}")
    if args.json:
        output.write_json(args.json, {"copy": copy, "rows": rows})
    return 0 if all(row["same"] and row["error"] < 1e-2 for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
