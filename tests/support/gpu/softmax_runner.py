"""Softmax on a GPU, run and held against float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from byoc_cudnn.softmax import SOFTMAX, Added, SoftmaxCall
from byoc_cudnn.softmax.call import padded
from tests.support.batched_products import apart
from tests.support.gpu.norm_runner import load_source
from tests.support.softmax import LIMITS, values

COLUMNS = (1, 7, 49, 197, 1025, 3001, 17000)
ROWS = 300


def calls(dtype: str) -> list[SoftmaxCall]:
    """Both directions of rows of every length, one with what is added to it."""
    made = []
    for i, columns in enumerate(COLUMNS):
        bias = (Added("float32", ((1, 20, columns),), 20 * columns),) if i % 2 else ()
        one = SoftmaxCall(f"f{columns}", "forward", dtype, dtype, columns, 0.3, bias)
        back = replace(one, symbol=f"b{columns}", direction="backward", added=(), wide=bool(bias))
        made += [one, back]
    return made


def wrong(folder: Path, dtype: str) -> list[str]:
    """What is wrong of all calls, in words; results are NaN before, and what is behind rows too."""
    functions = load_source(SOFTMAX.generate, SOFTMAX.inputs, calls(dtype), folder)
    kind, lines = getattr(torch, dtype), []
    for call in calls(dtype):
        for pitch in {call.columns, padded(call.columns, dtype)}:
            generator = torch.Generator("cuda").manual_seed(pitch)
            given = [_rows(generator, call.columns, pitch, kind)]
            if call.direction == "backward":
                given.append(torch.zeros_like(given[0]))
                given[1][:, : call.columns] = given[0][:, : call.columns].softmax(-1)
            given += [torch.randn(a.extent, device="cuda", generator=generator) for a in call.added]
            want = values(call, [t.double().cpu().numpy() for t in given])
            twice = []
            for _ in range(2):
                out = [torch.full((ROWS, pitch), torch.nan, device="cuda", dtype=kind)]
                if call.wide:
                    out.append(torch.full((ROWS, call.columns), torch.nan, device="cuda"))
                functions[call.symbol](*given, *out)
                twice.append([t.double().cpu().numpy() for t in out])
            for made, again, exact in zip(*twice, want, strict=True):
                limit = 2 * LIMITS[dtype] + 3e-6
                if not apart(made[:, : call.columns], exact) < limit:
                    lines.append(f"{call.problem} rows of {pitch}: {apart(made, exact)}")
                if np.any(made[:, call.columns :]):
                    lines.append(f"{call.problem} rows of {pitch}: something is behind them")
                if made.tobytes() != again.tobytes():
                    lines.append(f"{call.problem} rows of {pitch}: two runs differ")
    return lines


def _rows(generator: torch.Generator, columns: int, pitch: int, kind: torch.dtype) -> torch.Tensor:
    made = torch.full((ROWS, pitch), torch.nan, device="cuda", dtype=kind)
    made[:, :columns] = 3 * torch.randn((ROWS, columns), device="cuda", generator=generator)
    return made
