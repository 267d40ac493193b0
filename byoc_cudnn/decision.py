"""`Decision`: yes, or no with the reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Decision:
    """What a check says.  True where it accepts; `reason` says why it does not."""

    ok: bool
    reason: str = ""

    def __post_init__(self) -> None:
        if self.ok == bool(self.reason):
            raise ValueError(f"a refusal has a reason and nothing else has one, got {self!r}")

    def __bool__(self) -> bool:
        return self.ok


YES = Decision(True)


def no(reason: str) -> Decision:
    """A refusal."""
    return Decision(False, reason)
