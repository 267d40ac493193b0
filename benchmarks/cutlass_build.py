"""How long ResNet-50's gradient graph takes to build on CUTLASS: cold, and with the objects there.

    python -m benchmarks.cutlass_build [--model resnet50] [--dtype float16] [--json FILE]

Partition, code generation, nvcc for each kernel (in parallel), the host's compiler, the link of an
exported library.  It needs nvcc and no GPU.  The first build has an empty cache, the second the
first one's.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import byoc_cudnn
import relay_wgrad
from byoc_cudnn.codegen.linked import kernels_of
from relay_wgrad import output
from relay_wgrad.frontend import BUNDLED, from_onnx
from relay_wgrad.training.step import converted, step_module


def build(model: str, dtype: str, folder: Path) -> dict[str, Any]:
    begin = time.perf_counter()
    half = None if dtype == "float32" else dtype
    module = step_module(from_onnx(model, batch=32), dtype=half, scaled=half is not None)
    module = converted(module, "NHWC")
    graph = time.perf_counter()
    out, report = byoc_cudnn.partition_for_cutlass(module)
    split = time.perf_counter()
    library = byoc_cudnn.build(out, {"kind": "cuda", "arch": "sm_90"})
    compiled = time.perf_counter()
    library.export_library(folder / "step.so")
    end = time.perf_counter()
    kernels = {name for source in library.sources for name in kernels_of(source)}
    return {
        "model": model, "dtype": dtype, "offloaded": report.offloaded, "total": report.total,
        "kernels": len(kernels), "graph_s": graph - begin, "partition_s": split - graph,
        "tvm_s": compiled - split, "kernels_and_link_s": end - compiled,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cutlass_build", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--model", default="resnet50", choices=list(BUNDLED))
    parser.add_argument("--dtype", default="float16", choices=("float16", "bfloat16", "float32"))
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    relay_wgrad.register()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RELAY_WGRAD_CACHE"] = folder
        rows = {name: build(args.model, args.dtype, Path(folder)) for name in ("cold", "warm")}
    rows["cores"] = {"count": len(os.sched_getaffinity(0))}
    print(json.dumps(rows, indent=1))
    if args.json:
        output.write_json(args.json, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
