"""Dtypes as benchmarks name them: of tensors, and `tf32`, of float32 that is multiplied so."""

from __future__ import annotations

from relay_wgrad.dtypes import HALVES
from relay_wgrad.problem import DTYPES

MODES = {"f16": ("f16", False), "bf16": ("bf16", False), "tf32": ("f32", True),
         "f32": ("f32", False)}  # fmt: skip
"""The tensors' dtype, and whether tf32 may be used."""
HALF: dict[str, str | None] = {
    mode: DTYPES[short] if DTYPES[short] in HALVES else None for mode, (short, _) in MODES.items()
}
"""The half precision that a step in mixed precision is given; None for one in float32."""
