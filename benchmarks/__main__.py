"""The benchmarks: `python -m benchmarks` lists them, `python -m benchmarks gpu steps …` runs one.

`cpu` is also what measures the compiler, for a GPU too, and needs none.  Options of all are
`benchmarks.runner`'s: --json FILE, --resume, --time-budget MINUTES, --dry.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

BENCHMARKS: dict[str, dict[str, str]] = {
    "gpu": {
        "convolutions": "gpu_convolutions",
        "norms": "gpu_norm",
        "steps": "gpu_steps",
        "trainer": "gpu_trainer",
        "parallel": "gpu_parallel",
        "networks": "network_steps",
        "digits": "digits_curves",
        "host": "step_host",
        "jax": "jax_inside",
        "images": "image_reading",
    },
    "cpu": {
        "convolutions": "cpu_convolutions",
        "tasks": "cpu_tasks",
        "step": "cpu_step",
        "digits": "digits_curves",
        "first": "cpu_compile",
        "commands": "commands",
        "host": "step_host",
        "images": "image_reading",
        "networks": "networks",
        "training": "network_steps",
        "onnx": "onnx_training",
        "jax": "jax_networks",
        "jax-inside": "jax_inside",
        "cuda-steps": "compile_steps",
    },
}
"""Device -> name -> the module of this folder whose `BENCHMARK` it is."""


def about(module: str) -> str:
    """What a benchmark's module says of it, without importing it."""
    path = Path(__file__).with_name(f"{module}.py")
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def main(words: Sequence[str]) -> int:
    device, name = (*words, "", "")[:2]
    module = BENCHMARKS.get(device, {}).get(name)
    if module is None:
        table = Table("benchmark", "what it measures", box=None, pad_edge=False)
        for key, names in BENCHMARKS.items():
            for each, file in names.items():
                table.add_row(f"{key} {each}", about(file).split("\n")[0])
        Console(highlight=False).print(table)
        if device not in ("", "-h", "--help"):
            print(f"{' '.join(words[:2])}: none of these", file=sys.stderr)
            return 2
        return 0
    # Imported once it is asked for: its packages take seconds, or are not there.
    from benchmarks import runner

    benchmark = importlib.import_module(f"benchmarks.{module}").BENCHMARK
    prog = f"python -m benchmarks {device} {name}"
    args = runner.parsed(benchmark, words[2:], prog, about(module), device == "gpu")
    if args.on_gpu and not args.dry:
        import torch

        if not torch.cuda.is_available():
            args.error("it needs an NVIDIA GPU and PyTorch for CUDA; --dry lists its cases")
    return runner.run(benchmark, f"{device} {name}", args)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
