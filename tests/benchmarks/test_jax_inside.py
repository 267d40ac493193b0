"""The sides of `benchmarks gpu jax` compute the same: on a CPU, of small layers like its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jax")

from benchmarks.jax_inside import CONVOLUTIONS
from benchmarks.jax_sides import OfJax, OfTorch

SMALL = {
    "depthwise1d": ((2, 6, 20), (6, 1, 5), {"groups": 6, "layers": 2}),
    "grouped2d": ((2, 8, 6, 7), (8, 4, 3, 3), {"groups": 2}),
    "transposed3d": ((2, 4, 3, 4, 5), (4, 1, 3, 3, 3), {}),
}


@pytest.mark.parametrize("name", SMALL)
def test_sides_agree(name: str, tmp_path: Path) -> None:
    data, weight, others = SMALL[name]
    row = CONVOLUTIONS[name]._replace(data=data, weight=weight, **others)
    theirs, ours = OfTorch(row), OfJax(row, is_ours=True)
    for side in (theirs, ours):
        side.call()
        np.savez(tmp_path / "results", **side.results())
        assert np.isfinite(side.wait())
        error = theirs.compared(str(tmp_path / "results.npz"))["error"]
        assert 0 < error < (1e-6 if row.dtype == "float32" else 1e-2)
