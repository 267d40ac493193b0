"""What the kernel of joins computes, on a device that is the CPU: bit for bit NumPy's."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from byoc_cudnn.joins import JoinsCall, check
from byoc_cudnn.joins.call import Piece, Term
from tests.support import cuda_emulated
from tests.support.cuda_emulated import DTYPES, aligned
from tests.support.joins import expected, random_call


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def compared(folder: Path, call: JoinsCall, rows: int, seed: int) -> None:
    assert check(call)
    rng, dtype = np.random.default_rng(seed), DTYPES[call.dtype]
    tensors = [aligned(rng.standard_normal((rows, n)).astype(dtype)) for n in call.channels]
    wanted = expected(call, tensors)
    results = [aligned(np.full(a.shape, np.nan, dtype)) for a in wanted]
    cuda_emulated.join(folder, call, tensors, results)
    for got, want in zip(results, wanted, strict=True):
        assert got.tobytes() == want.tobytes(), (call, rows)


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_calls(folder: Path, dtype: str) -> None:
    """Odd widths and places, several results, zeros, sums; rows of one block, and of so many that a
    thread has eight."""
    rng = random.Random(0)
    for seed in range(12):
        call = random_call(rng, dtype, whole=seed % 3 == 0)
        compared(folder, call, rng.choice([1, 7, 64, 129, 300, 3000]), seed)


def test_more_channels_than_a_block_has_threads(folder: Path) -> None:
    pieces = (Piece(2601, (Term(0, 2),)), Piece(700, (Term(0, 1), Term(1, 3))), Piece(4, ()))
    compared(folder, JoinsCall("f", "float16", (2603, 704), (pieces,)), 9, 0)


def test_as_many_pieces_and_terms_as_there_may_be(folder: Path) -> None:
    pieces = tuple(Piece(2 + i % 3, tuple(Term(j, i) for j in range(2))) for i in range(40))
    compared(folder, JoinsCall("f", "bfloat16", (50, 44), (pieces[:15], pieces[15:])), 33, 0)
