"""Joins' kernels on a GPU beside NumPy, bit for bit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from byoc_cudnn.joins import JoinsCall, generate, inputs
from byoc_cudnn.joins.call import Piece, Term
from tests.support.gpu.norm_runner import load_source
from tests.support.joins import DTYPES, expected, random_call


def some_calls() -> list[JoinsCall]:
    """Random ones of each dtype, as many pieces as there may be, more channels than a block has."""
    rng = random.Random(0)
    found = [
        random_call(rng, dtype, f"{dtype}_{i}", whole=i % 3 == 0)
        for dtype in DTYPES
        for i in range(12)
    ]
    many = tuple(Piece(2 + i % 3, tuple(Term(j, i) for j in range(2))) for i in range(40))
    wide = (Piece(2601, (Term(0, 2),)), Piece(700, (Term(0, 1), Term(1, 3))), Piece(4, ()))
    found.append(JoinsCall("many", "bfloat16", (50, 44), (many[:15], many[15:])))
    found.append(JoinsCall("wide", "float16", (2603, 704), (wide,)))
    return found


def _on_gpu(array: np.ndarray) -> torch.Tensor:
    kind = "int16" if array.dtype.itemsize == 2 else array.dtype
    found = torch.from_numpy(np.ascontiguousarray(array).view(kind)).cuda()
    return found.view(getattr(torch, array.dtype.name)) if array.dtype.itemsize == 2 else found


def wrong_joins(functions: Any, call: JoinsCall) -> list[str]:
    """What is wrong of a call of one row, of several and of many, in words."""
    rng, dtype, wrong = np.random.default_rng(1), DTYPES[call.dtype], []
    for rows in ((1,), (3, 5), (4, 61, 67)):
        tensors = [rng.standard_normal((*rows, n)).astype(dtype) for n in call.channels]
        want = expected(call, tensors)
        got = [torch.full_like(_on_gpu(a), float("nan")) for a in want]
        functions[call.symbol](*map(_on_gpu, tensors), *got)
        for i, (ours, right) in enumerate(zip(got, want, strict=True)):
            if ours.view(torch.int8).cpu().numpy().tobytes() != right.tobytes():
                wrong.append(f"{call}: result {i} of {rows} rows")
    return wrong


def load(folder: Path) -> Any:
    """The functions of the calls."""
    return load_source(generate, inputs, some_calls(), folder)


def wrong_of_all(folder: Path) -> list[str]:
    """Of all calls."""
    functions = load(folder)
    return [line for call in some_calls() for line in wrong_joins(functions, call)]
