"""What the normalization's kernels could be: each pass alone, in variants, at memory's rate or not.

    python -m benchmarks.gpu_norm_tries [--tries FILE] [--dtype bf16] [--json FILE]

A variant is the macros of `byoc_cudnn/norm/templates`, as UNROLL=4,RESIDENT=2.  nvcc
builds them all at once, a library each; a table has TB/s for each pass and shape, and the best.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_norm import copy_rate, median
from benchmarks.gpu_norm_shapes import Case, Tensors
from byoc_cudnn.building.toolchain import find
from byoc_cudnn.codegen.templates import shared
from byoc_cudnn.norm import NORMS, workspace_bytes
from relay_wgrad import output

TYPES = {"bf16": "__nv_bfloat16", "f16": "__half", "f32": "float"}
# Arguments of a launch, after the kernel.
_ROWS = "grid_of(s), kThreads, stream"
_FEW = "few_grid(s), kFew * kParts, stream"
_APPLY = "x, more, gamma, beta, mean, rstd, out, new_mask, last"
_SUMS = "dy, more, x, y, mask, gamma, beta, mean, rstd, dres, partial, s"
_GRADIENT = "dy, x, gamma, beta, mean, rstd, one, two, out, last"
_WHOLE = "static_cast<cudaError_t>(-{}<T, Activation::kRelu, {}>(c, stream))"


def _launch(kernel: str, which: str, arguments: str) -> str:
    grid = _ROWS if arguments.endswith(" s") else _ROWS.replace("(s)", "(last)")
    return f"launch({kernel}<T, V, true, {which}>, {grid}, {arguments})"


# name of a pass -> tensors that it moves, its launch
PASSES = {
    "moments": (1, f"launch(moments<T, V, true>, {_ROWS}, x, partial, s)"),
    "statistics": (0, f"launch(statistics<A>, {_FEW}, sums, st, s)"),
    "normalized": (2, _launch("normalized", "Activation::kRelu, false, false", _APPLY)),
    "normalized_add": (3, _launch("normalized", "Activation::kRelu, true, true", _APPLY)),
    "sums": (2, _launch("gradient_sums", "Activation::kRelu, Mask::kComputed, false", _SUMS)),
    "sums_bits": (3, _launch("gradient_sums", "Activation::kRelu, Mask::kBits, false", _SUMS)),
    "sums_summed": (4, _launch("gradient_sums", "Activation::kRelu, Mask::kBits, true", _SUMS)),
    "sums_stored": (4, _launch("gradient_sums", "Activation::kRelu, Mask::kStored, false", _SUMS)),
    "gradient": (3, _launch("gradient", "Activation::kRelu, Mask::kComputed", _GRADIENT)),
    "gradient_plain": (3, _launch("gradient", "Activation::kNone, Mask::kNone", _GRADIENT)),
    "forward": (3, _WHOLE.format("forward", "false, false")),
    "forward_add": (4, _WHOLE.format("forward", "true, true")),
    "backward": (5, _WHOLE.format("backward", "Mask::kComputed, false")),
    "backward_add": (6, _WHOLE.format("backward", "Mask::kBits, false")),
}
SHAPES = (
    (256, 64, 112), (256, 256, 56), (256, 256, 14), (256, 512, 7), (64, 64, 56), (64, 128, 28),
    (64, 256, 14), (64, 1024, 14), (64, 512, 7), (64, 2048, 7), (8, 512, 7),
)  # fmt: skip
TRIES = [
    "UNROLL=8,RESIDENT=2,WRITERS=8", "UNROLL=8,RESIDENT=2,WRITERS=32",
    "UNROLL=8,RESIDENT=2,WRITERS=64", "UNROLL=4,RESIDENT=3,WRITERS=16",
    "MANY=1024,UNROLL=8", "MANY=256,UNROLL=8",
]  # fmt: skip
IDLE = 30_000  # clocks: launches alone take the host little


class Call(ctypes.Structure):
    """`RelayWgradNormCall` of norm_call.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "channels")),
        *((name, ctypes.c_double) for name in ("epsilon", "momentum")),
        ("unbiased", ctypes.c_bool), ("multiprocessors", ctypes.c_int),
        ("together", ctypes.c_int),
        *((name, ctypes.c_void_p) for name in (
            "x", "dy", "dy2", "y", "residual", "gamma", "beta", "mean", "rstd", "running_mean",
            "running_var", "mask", "out", "dresidual", "first", "second", "new_mean", "new_var",
            "new_mask", "workspace",
        )),
        ("workspace_bytes", ctypes.c_int64), ("other", ctypes.c_void_p * 19),
    )  # fmt: skip


def source(dtype: str) -> str:
    functions = []
    for name, (_, text) in PASSES.items():
        functions.append(f"""\
extern "C" int run_{name}(const RelayWgradNormCall* call, cudaStream_t stream) {{
  using T = {TYPES[dtype]};
  using A = Sum<T>;
  constexpr int V = 16 / sizeof(T);
  const RelayWgradNormCall& c = *call;
  const Shape s = shape_of<V>(c, sizeof(A));
  const Shape last = writing(s, c);
  const auto *x = static_cast<const T*>(c.x), *dy = static_cast<const T*>(c.dy),
             *y = static_cast<const T*>(c.y), *more = static_cast<const T*>(c.residual);
  const auto *gamma = static_cast<const A*>(c.gamma), *beta = static_cast<const A*>(c.beta),
             *mean = static_cast<const A*>(c.mean), *rstd = static_cast<const A*>(c.rstd);
  auto *partial = static_cast<A*>(c.workspace), *first = static_cast<A*>(c.first),
       *second = static_cast<A*>(c.second);
  const A *sums = partial, *one = first, *two = second;
  const auto* mask = static_cast<const uint8_t*>(c.mask);
  auto* new_mask = static_cast<uint8_t*>(c.new_mask);
  auto *out = static_cast<T*>(c.out), *dres = static_cast<T*>(c.dresidual);
  const Statistics<A> st{{A(1e-5), A(0), true, nullptr, nullptr, first, second, nullptr, nullptr}};
  return static_cast<int>({text});
}}
""")
    headers = [
        NORMS.template(f"norm_{part}.h")
        for part in ("call", "device", "together", "forward", "backward")
    ]
    return "\n".join([
        headers[0], shared("device_packs.h"), *headers[1:], *functions
    ])  # fmt: skip


def build(folder: Path, text: str, variant: str) -> Path | str:
    """A library, or why there is none."""
    name = variant.replace("=", "").replace(",", "_")
    path = folder / f"{name}.so"
    unit = folder / f"{name}.cu"
    unit.write_text(text, encoding="utf-8")
    major, minor = torch.cuda.get_device_capability()
    macros = [f"-DRW_NORM_{word}" for word in variant.split(",") if word]
    nvcc = str(find().nvcc)
    done = subprocess.run(
        [nvcc, "-std=c++17", "-O3", "-w", "-shared", "-Xcompiler", "-fPIC", "-cudart", "shared",
         f"-arch=sm_{10 * major + minor}", "-Xptxas", "-v", *macros, str(unit), "-o", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    (folder / f"{name}.log").write_text(done.stderr, encoding="utf-8")
    return path if done.returncode == 0 else done.stderr[-600:]


def spills(log: Path) -> int:
    """Bytes of registers stored elsewhere, all kernels together."""
    words = log.read_text(encoding="utf-8").split()
    return sum(int(words[i - 3]) for i, w in enumerate(words) if w == "stores," and i >= 3)


def run(library: Any, name: str, call: Call, stream: int) -> None:
    status = getattr(library, f"run_{name}")(ctypes.byref(call), ctypes.c_void_p(stream))
    if status:
        raise RuntimeError(f"{name}: error {status}")


def call_of(t: Tensors, workspace: torch.Tensor, forward: bool, together: bool) -> Call:
    device = torch.cuda.get_device_properties(0)
    a = {name: value.data_ptr() for name, value in vars(t).items() if torch.is_tensor(value)}
    return Call(
        t.case.rows, t.case.channels, 1e-5, 0.1, True, device.multi_processor_count, together,
        a["x"], a["dy"], a["residual"], a["y"], a["residual"], a["gamma"], a["beta"], a["mean"],
        a["rstd"], None, None, a["mask"], a["y"] if forward else a["dx"], a["dresidual"], *(
            (a["mean"], a["rstd"]) if forward else (a["dgamma"], a["dbeta"])
        ), None, None, a["mask"], workspace.data_ptr(), workspace.numel(),
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=Path, help="a file with a variant a line")
    parser.add_argument("--dtype", default="bf16", choices=TYPES)
    parser.add_argument("--budget", type=float, default=90)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    begin = time.perf_counter()
    tries = args.tries.read_text().split() if args.tries else TRIES
    found: list[dict[str, Any]] = []
    copy = copy_rate()
    print(f"{torch.cuda.get_device_name()}, a copy {copy / 1e12:.3f} TB/s")
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(os.cpu_count()) as pool:
        folder = Path(name)
        built = dict(zip(tries, pool.map(partial(build, folder, source(args.dtype)), tries),
                         strict=True))  # fmt: skip
        print(f"built {len(tries)} in {time.perf_counter() - begin:.0f} s")
        stream = torch.cuda.current_stream().cuda_stream
        libraries = {v: ctypes.CDLL(str(p)) for v, p in built.items() if isinstance(p, Path)}
        for variant, why in built.items():
            if isinstance(why, str):
                print(f"{variant}: {why}")
        workspace = torch.empty(4 * workspace_bytes(2048, "float32"), dtype=torch.uint8,
                                device="cuda")  # fmt: skip
        whole = ("forward", "forward_add", "backward", "backward_add")
        runs = PASSES | {f"{name}_together": PASSES[name] for name in whole}
        for batch, channels, side in SHAPES:
            case = Case(1, batch, channels, side, "add relu", args.dtype)
            sets = [Tensors(case, i) for i in range(max(1, (120 << 20) // case.tensor_bytes))]
            for variant, library in libraries.items():
                if time.perf_counter() - begin > args.budget:
                    print(f"not measured: {variant} {batch}×{side}²×{channels}")
                    continue
                for which, (passes, _) in runs.items():
                    kernel = which.removesuffix("_together")
                    forward = which in ("moments", "statistics") or which.startswith(
                        ("normalized", "forward")
                    )
                    calls = [
                        partial(run, library, kernel, one, stream)
                        for one in (call_of(t, workspace, forward, kernel != which) for t in sets)
                    ]
                    seconds = median(calls, IDLE)
                    found.append({
                        "shape": f"{batch}×{side}²×{channels}", "variant": variant,
                        "spills": spills(folder / f"{Path(built[variant]).stem}.log"),
                        "pass": which, "us": seconds * 1e6,
                        "tbs": passes * case.tensor_bytes / seconds / 1e12,
                    })  # fmt: skip
            del sets
    report(found)
    if args.json:
        output.write_json(args.json, {"copy": copy, "rows": found})
    return 0


def report(found: list[dict[str, Any]]) -> None:
    for shape in dict.fromkeys(row["shape"] for row in found):
        print(f"\n{shape}: µs, best five of each pass")
        for which in dict.fromkeys(row["pass"] for row in found):
            rows = [r for r in found if r["shape"] == shape and r["pass"] == which]
            rows.sort(key=lambda r: r["us"])
            best = "  ".join(f"{r['us']:.1f} {r['variant']}" for r in rows[:5])
            if rows:
                print(
                    f"  {which:15s} {rows[0]['tbs']:.2f} TB/s  {best}  worst {rows[-1]['us']:.1f}"
                )
    print("\nall shapes, whole directions, µs")
    for which in dict.fromkeys(row["pass"] for row in found):
        sums: dict[str, float] = {}
        for row in found:
            if row["pass"] == which:
                sums[row["variant"]] = sums.get(row["variant"], 0) + row["us"]
        for variant, total in sorted(sums.items(), key=lambda item: item[1])[:8]:
            print(f"  {which:15s} {total:8.1f} {variant}")


if __name__ == "__main__":
    raise SystemExit(main())
