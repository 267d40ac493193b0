"""Max pooling and its gradient on a GPU: our kernels against PyTorch's, and memory's rate.

    python -m benchmarks.gpu_pool [--json FILE]

Channels last.  Bytes are those of reading x and writing y, or reading x and dy and writing dx.
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


def call_of(direction: str, mode: str, kernel: int, stride: int, padding: int) -> PoolCall:
    symbol = f"{direction}_{mode}_{kernel}_{stride}_{padding}"
    pair = (kernel, kernel), (stride, stride), (padding,) * 4
    return PoolCall(symbol, direction, DTYPES[mode], *pair)


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
    names = [call_of(d, mode, kernel, stride, padding).symbol for d in ("forward", "backward")]
    ours = [partial(functions[names[0]], x, y), partial(functions[names[1]], rows, x, dx)]
    backward = partial(torch.autograd.grad, want, seen, dy, retain_graph=True)
    for call in ours:
        call()
    right = backward()[0].permute(0, 2, 3, 1)
    wrong = float((dx.double() - right.double()).norm() / right.double().norm())
    size = x.element_size() * (x.numel() + y.numel())
    theirs = [partial(F.max_pool2d, seen, kernel, stride, padding), backward]
    times = [median([call]) for call in (*ours, *theirs)]
    return {
        "shape": shape, "mode": mode, "same": torch.equal(y, want.permute(0, 2, 3, 1)),
        "error": wrong, "forward_ms": 1e3 * times[0], "backward_ms": 1e3 * times[1],
        "torch_forward_ms": 1e3 * times[2], "torch_backward_ms": 1e3 * times[3],
        "forward_tbs": size / times[0] / 1e12,
        "backward_tbs": (size + x.nbytes) / times[1] / 1e12,
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
        for call in (call_of(d, mode, *shape[3:]) for d in ("forward", "backward"))
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
                parts = [
                    f"{d} {row[f'{d}_ms']:.3f} ({row[f'{d}_tbs']:.2f}) {row[f'torch_{d}_ms']:.3f}"
                    for d in ("forward", "backward")
                ]
                print(mode, shape, *parts, f"same {row['same']}, error {row['error']:.1e}")
    if args.json:
        output.write_json(args.json, {"copy": copy, "rows": rows})
    return 0 if all(row["same"] and row["error"] < 1e-2 for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
