"""What fusing saves: a CUTLASS dgrad with ReLU's mask or a residual, against the two kernels apart.

    python -m benchmarks.gpu_fusion [--wgmma] [--json FILE]

Apart, the element-wise kernel is PyTorch's fastest for it (one pass, one kernel).  Device events,
alternating rounds, medians; inputs take turns where they would stay in the cache.  Bytes saved are
one write and one read of the result.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.gpu_timing import L2_BYTES, canonical, in_turns
from byoc_cudnn.backends.cutlass.codegen import generate
from byoc_cudnn.building.compiled import library_command
from byoc_cudnn.codegen.regions import Region
from relay_wgrad import output
from relay_wgrad.problem import ConvProblem

LINE = "dgrad n={} c={} h={} w={} k={} r={} s={} pad={} layout=NHWC/OHWI/NHWC dtype=f16/f16/f16"
LAYERS = (
    (256, 64, 56, 56, 64, 3, 3, "1,1,1,1"),
    (256, 128, 28, 28, 128, 3, 3, "1,1,1,1"),
    (256, 512, 7, 7, 512, 3, 3, "1,1,1,1"),
    (256, 256, 56, 56, 64, 1, 1, "0,0,0,0"),
)
SECOND: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    # The mask passes where x is 0, threshold_backward does not; both move the same bytes.
    "mask": lambda y, x: torch.ops.aten.threshold_backward(y, x, 0),
    "residual": torch.add,
}


def build(
    regions: list[Region], folder: Path, generate: Callable[[list[Region], int], str] = generate
) -> Any:
    """The library of regions, for the GPU that is here."""
    import subprocess

    import tvm_ffi

    major, minor = torch.cuda.get_device_capability()
    source, library = (folder / f"{regions[0].symbol}{end}" for end in (".cc", ".so"))
    source.write_text(generate(regions, 10 * major + minor), encoding="utf-8")
    subprocess.run(library_command(source, library), check=True)
    return tvm_ffi.load_module(str(library))


def measure(problem: ConvProblem, epilogue: str, fused: Any, plain: Any) -> dict[str, Any]:
    generator = torch.Generator("cuda").manual_seed(0)

    def tensor(role: str) -> torch.Tensor:
        shape = problem.shape(role)
        return torch.randn(shape, device="cuda", dtype=torch.float16, generator=generator)

    sets = max(1, math.ceil(3 * L2_BYTES / problem.bytes))
    tensors = [
        (tensor("grad"), tensor("weight"), tensor("data"), *(tensor("data") for _ in range(2)))
        for _ in range(sets)
    ]
    one = [lambda t=t: fused(t[0], t[1], t[2], t[3]) for t in tensors]

    def apart(t: tuple[torch.Tensor, ...]) -> None:
        plain(t[0], t[1], t[4])
        SECOND[epilogue](canonical(t[4]), canonical(t[2]))

    two = [lambda t=t: apart(t) for t in tensors]
    alone = [lambda t=t: plain(t[0], t[1], t[4]) for t in tensors]
    candidates = {"fused": one, "apart": two, "dgrad": alone}
    middle = {f"{name}_us": s * 1e6 for name, s in in_turns(candidates, 20).items()}
    size = 2 * math.prod(problem.shape("data"))
    return {"problem": problem.repro(), "epilogue": epilogue, "bytes_saved": 2 * size, **middle}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_fusion", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--wgmma", action="store_true", help="with Hopper's own instructions")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    problems = [ConvProblem.parse(LINE.format(*layer)) for layer in LAYERS]
    options = {"arch": 90, "wgmma": True} if args.wgmma else {}
    regions = []
    for i, p in enumerate(problems):
        regions.append(Region(f"plain{i}", p, (), p.roles[:2], options))
        regions += [Region(f"{e}{i}", p, (e,), (*p.roles[:2], e), options) for e in SECOND]
    with tempfile.TemporaryDirectory() as folder:
        module = build(regions, Path(folder))
        rows = [
            measure(p, e, module[f"{e}{i}"], module[f"plain{i}"])
            for i, p in enumerate(problems)
            for e in SECOND
        ]
    table = Table(title=f"dgrad and what follows it, µs, {torch.cuda.get_device_name()}")
    for column in ("problem", "epilogue", "fused", "apart", "ratio", "dgrad alone", "MB saved"):
        table.add_column(column)
    for row in rows:
        table.add_row(
            " ".join(row["problem"].split()[1:8]), row["epilogue"], f"{row['fused_us']:.1f}",
            f"{row['apart_us']:.1f}", f"{row['fused_us'] / row['apart_us']:.3f}",
            f"{row['dgrad_us']:.1f}", f"{row['bytes_saved'] / 1e6:.0f}",
        )  # fmt: skip
    Console(width=130, highlight=False).print(table)
    if args.json:
        output.write_json(args.json, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
