"""cuDNN regions of random problems: built without TVM's compiler, run on torch's tensors."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tvm_ffi

from byoc_cudnn.backends.cudnn.codegen import generate
from byoc_cudnn.building.compiled import library_command
from byoc_cudnn.codegen.regions import Region
from byoc_cudnn.fused import STEPS, operand_shape, reference
from relay_wgrad.dtypes import numpy_dtype
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.problems import UNIT, poisoned, tolerance

TORCH = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def regions_of(problems: Sequence[ConvProblem], **options: Any) -> list[Region]:
    """Each problem as a region, as `partition` would make it of a call that nothing follows."""
    return [Region.of(f"f{i}", p, **options) for i, p in enumerate(problems)]


def load(regions: Iterable[Region], folder: Path) -> Any:
    """The module of the regions' functions."""
    source, library = folder / "regions.cc", folder / "regions.so"
    source.write_text(generate(list(regions)), encoding="utf-8")
    subprocess.run(library_command(source, library), check=True)
    return tvm_ffi.load_module(str(library))


def on_device(value: np.ndarray[Any, Any], dtype: str) -> torch.Tensor:
    """The same numbers on the device; float32 carries bfloat16's, which numpy has not."""
    return torch.from_numpy(value.astype(np.float32)).to("cuda", TORCH[dtype])


def operands_on_device(problem: ConvProblem, *values: np.ndarray[Any, Any]) -> list[torch.Tensor]:
    return [on_device(v, problem.dtype(r)) for v, r in zip(values, problem.roles, strict=False)]


def destination(problem: ConvProblem) -> torch.Tensor:
    """A result full of NaN."""
    return on_device(poisoned(problem), problem.dtype(problem.roles[2]))


def to_numpy(value: torch.Tensor) -> np.ndarray[Any, Any]:
    return value.float().cpu().numpy()


def library_tolerance(problem: ConvProblem, *, tf32: bool) -> float:
    """Largest relative error in norm that a library's rounding explains.

    On top of `tolerance`: tf32 rounds both operands to 10 bits of fraction; and an engine may split
    the sum, round the parts to the result's type, and add them: twice the result's rounding.
    """
    first, _, result = problem.roles
    extra = 4 * 2.0**-11 if tf32 and problem.dtype(first) == "float32" else 0.0
    return tolerance(problem) + 2 * UNIT[problem.dtype(result)] + extra


def kind_problems(
    rng: np.random.Generator, kind: ConvKind, count: int, draw: Any, **limits: Any
) -> list[ConvProblem]:
    """Distinct random problems."""
    found: dict[str, ConvProblem] = {}
    while len(found) < count:
        problem = draw(rng, kind, **limits)
        found.setdefault(problem.repro(), problem)
    return list(found.values())


def after(
    region: Region, values: np.ndarray, rng: np.random.Generator
) -> tuple[list[torch.Tensor], np.ndarray]:
    """(operands of the region's epilogue on the device, what it makes of a convolution's values).

    Normal numbers; what is compared with 0 are integers with many zeros, and NaN: masks let NaN
    pass, and differ where it is 0.
    """
    p, steps = region.problem, [STEPS[name] for name in region.epilogue]
    dtype = p.dtype(p.roles[2])
    operands: dict[str, np.ndarray] = {}
    for step in (step for step in steps if step.operand):
        shape = operand_shape(step, p)
        x = rng.standard_normal(shape)
        if step.form.inner is not None:
            x = rng.integers(-2, 3, shape).astype(np.float64)
            x.reshape(-1)[::7] = np.nan
        operands[step.operand] = x.astype(numpy_dtype(dtype)).astype(np.float64)
    made = [on_device(operand, dtype) for operand in operands.values()]
    return made, reference(steps, values, operands, p)
