"""Convolutions from a Relax module to results on a device, by `partition_for_cudnn`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm

import byoc_cudnn
from relay_wgrad.problem import ConvProblem
from tests.support.gpu.cudnn_runner import library_tolerance
from tests.support.partition_cases import conv_call, module
from tests.support.problems import random_operands, relative_error, torch_reference


def many(problems: Sequence[ConvProblem]) -> tvm.IRModule:
    """Every problem as one call of one function."""
    shapes = {
        f"{side}{i}": (p.shape(role), p.dtype(role))
        for i, p in enumerate(problems)
        for side, role in zip("ab", p.roles[:2], strict=True)
    }

    def body(emit: Any, *params: Any) -> list[Any]:
        pairs = zip(problems, params[::2], params[1::2], strict=True)
        return [emit(conv_call(p, a, b)) for p, a, b in pairs]

    return module(shapes, body)


def wrong_partitioned(problems: Sequence[ConvProblem], rng: np.random.Generator) -> list[str]:
    """Those whose results differ from PyTorch's in float64; all must have gone to cuDNN."""
    out, report = byoc_cudnn.partition_for_cudnn(many(problems), strict=True)
    assert report.share == 1
    device = tvm.cuda(0)
    vm = byoc_cudnn.build(out).virtual_machine(device)
    operands = [random_operands(p, rng) for p in problems]
    results = vm["main"](*[tvm.runtime.tensor(x, device) for pair in operands for x in pair])
    wrong = []
    for p, pair, result in zip(problems, operands, results, strict=True):
        error = relative_error(result.numpy(), torch_reference(p, *pair))
        if not error <= library_tolerance(p, tf32=True):
            wrong.append(f"{p}: {error:.3g}")
    return wrong
