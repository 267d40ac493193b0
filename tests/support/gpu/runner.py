"""Compiles and runs many kernels on the device, in worker processes that each compile a share.

Compilation takes nearly all of the time, about a second per kernel; it runs beside the others'
when each process has its own compiler.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
from collections.abc import Sequence
from typing import NamedTuple


class Case(NamedTuple):
    """A problem, and optionally the kernel: an index into the tiles (-1: direct), and the rest."""

    repro: str
    tile: int | None = None
    outputs: int = 0
    splits: int = 1


class Outcome(NamedTuple):
    case: Case
    error: float  # relative to the tolerance
    repeatable: bool  # a second run gave the same bits


def run_all(cases: Sequence[Case], seed: int) -> list[Outcome]:
    workers = max(1, min(16, os.cpu_count() or 1, len(cases)))
    shares = [(list(cases[i::workers]), seed) for i in range(workers)]
    # Not forked: a child would inherit a CUDA context that it cannot use.
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return [outcome for share in pool.starmap(_run, shares) for outcome in share]


def choose_compiler() -> None:
    """TVM compiles CUDA with NVRTC through NVIDIA's Python bindings, or else with nvcc."""
    if importlib.util.find_spec("cuda") is None:
        os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")


def _run(cases: list[Case], seed: int) -> list[Outcome]:
    choose_compiler()
    import numpy as np
    import torch
    import tvm

    from legalize.cuda import gemm, prim_func
    from legalize.cuda.plan import Plan
    from relay_wgrad.problem import ConvProblem
    from tests.support.problems import (
        poisoned,
        random_operands,
        relative_error,
        tolerance,
        torch_reference,
    )

    torch.set_num_threads(1)  # the processes share the CPU
    device = tvm.cuda(0)
    target = tvm.target.Target.from_device(device)
    funcs = {}
    for i, case in enumerate(cases):
        choice = None
        if case.tile is not None:
            tile = None if case.tile < 0 else gemm.TILES[case.tile]
            choice = Plan(tile, case.outputs, case.splits)
        func = prim_func(ConvProblem.parse(case.repro), target, choice=choice)
        funcs[f"f{i}"] = func.with_attr("global_symbol", f"f{i}")
    module = tvm.compile(tvm.IRModule(funcs), target=target)
    outcomes = []
    for i, case in enumerate(cases):
        problem = ConvProblem.parse(case.repro)
        operands = random_operands(problem, np.random.default_rng((seed, i)))
        results = []
        for _ in range(2):
            out = tvm.runtime.tensor(poisoned(problem), device)
            module[f"f{i}"](*(tvm.runtime.tensor(x, device) for x in operands), out)
            device.sync()
            results.append(out.numpy())
        error = relative_error(results[0], torch_reference(problem, *operands))
        same = results[0].tobytes() == results[1].tobytes()
        outcomes.append(Outcome(case, error / tolerance(problem), same))
    return outcomes
