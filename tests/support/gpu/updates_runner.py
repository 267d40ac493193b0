"""Updates' kernels on a GPU beside NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from byoc_cudnn.updates import UPDATES
from tests.support.gpu.norm_runner import load_source
from tests.support.updates import expected, operands, some_calls


def wrong_updates(folder: Path) -> list[str]:
    """What is wrong of some calls, in words; the last bits are nvcc's, which fuses products."""
    calls = some_calls()
    functions = load_source(UPDATES.generate, UPDATES.inputs, list(calls.values()), folder)
    rng, wrong = np.random.default_rng(0), []
    for name, call in calls.items():
        if name == "count":
            continue
        for flags in ((True, True), (False, True), (False, False)):
            given = operands(call, rng, *flags)
            want = expected(call, given, *flags)
            results = [np.zeros_like(a) for a in want[len(given) :]]
            tensors = [torch.from_numpy(np.array(a)).cuda() for a in (*given, *results)]
            functions[call.symbol](*tensors)
            for i, (got, exact) in enumerate(zip(tensors, want, strict=True)):
                if not np.allclose(got.cpu().numpy(), exact, rtol=1e-5, atol=1e-6):
                    wrong.append(f"{name} {flags}: operand {i}")
    call = calls["count"]
    values = [rng.standard_normal(n).astype("float32") for n in call.counts]
    values[2][::7] = np.nan
    values[0][1] = -np.inf
    tensors = [torch.from_numpy(v).cuda() for v in values]
    partial = torch.full((call.blocks,), -1, dtype=torch.int32, device="cuda")
    found = torch.full((), -1.0, dtype=torch.float64, device="cuda")
    functions[call.symbol](*tensors, partial, found)
    count = sum(int((~np.isfinite(v)).sum()) for v in values)
    if float(found) != count:
        wrong.append(f"count: {float(found)}, expected {count}")
    return wrong
