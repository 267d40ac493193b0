"""Joins' kernels on a GPU, bit for bit NumPy's; a step of joins, cuts and sums against float64."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from byoc_cudnn.joins import JoinsCall, generate, inputs
from byoc_cudnn.joins.call import Piece, Term
from tests.support.gpu.norm_runner import load_source
from tests.support.joins import DTYPES, expected, random_call

pytestmark = pytest.mark.gpu


def calls() -> list[JoinsCall]:
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


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_source(generate, inputs, calls(), tmp_path_factory.mktemp("joins"))


def on_gpu(array: np.ndarray) -> torch.Tensor:
    kind = "int16" if array.dtype.itemsize == 2 else array.dtype
    found = torch.from_numpy(np.ascontiguousarray(array).view(kind)).cuda()
    name = array.dtype.name
    return found.view(getattr(torch, name)) if array.dtype.itemsize == 2 else found


@pytest.mark.parametrize("call", calls(), ids=lambda call: call.symbol)
def test_bits(functions: Any, call: JoinsCall) -> None:
    rng, dtype = np.random.default_rng(1), DTYPES[call.dtype]
    for rows in ((1,), (3, 5), (4, 61, 67)):
        tensors = [rng.standard_normal((*rows, n)).astype(dtype) for n in call.channels]
        want = expected(call, tensors)
        given = [on_gpu(a) for a in tensors]
        got = [torch.full_like(on_gpu(a), float("nan")) for a in want]
        functions[call.symbol](*given, *got)
        for ours, right in zip(got, want, strict=True):
            bits = ours.view(torch.int8).cpu().numpy().tobytes()
            assert bits == right.tobytes(), rows
