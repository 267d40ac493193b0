"""The list of failures that are as they must be: `reasons.txt`."""

from __future__ import annotations

from pathlib import Path

REASONS = Path(__file__).with_name("reasons.txt")


def read_reasons(text: str) -> dict[str, str]:
    """Test -> reason.  A reason is a line, and its tests are indented below it.

    Raises ValueError for a test without a reason, or that is named twice.
    """
    out: dict[str, str] = {}
    reason = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith(" "):
            reason = line.strip()
            continue
        test = line.strip()
        if not reason:
            raise ValueError(f"reasons, line {number}: {test} has no reason above it")
        if test in out:
            raise ValueError(f"reasons, line {number}: {test} is named twice")
        out[test] = reason
    return out
