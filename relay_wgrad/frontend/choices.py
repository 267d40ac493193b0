"""What options of the front ends may be by name; needs no TVM, so that the command line has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

BN = ("train", "eval", "frozen")
DROPOUT = ("mask", "off")
RANDOM = ("input", "off")
WEIGHTS = ("seeded", "initial", "auto")
OF_TORCH: dict[str, Sequence[Any]] = {
    "bn": ("module", *BN), "dropout": (None, *DROPOUT), "random": RANDOM,
}  # fmt: skip
OF_ONNX: dict[str, Sequence[Any]] = {
    "dtype": ("float32", "float64"), "bn": BN, "weights": WEIGHTS, "dropout": (None, *DROPOUT),
    "random": RANDOM,
}  # fmt: skip


def check_choices(
    given: Mapping[str, Any], known: Mapping[str, Sequence[Any]], checkpoint: Any, names: str
) -> None:
    """Raises ValueError for an option of a front end that has another value, or a checkpoint that
    is a word beside "auto"; `names` says what else it may list."""
    for key, value in given.items():
        if value not in known[key]:
            words = " or ".join(filter(None, known[key]))
            raise ValueError(f"{key}={value!r}: expected {words}")
    if isinstance(checkpoint, str) and checkpoint != "auto":
        raise ValueError(f"checkpoint={checkpoint!r}: expected 'auto' or a list of {names}")
