"""Which TVM printed a text: releases, and the versions between two of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_VERSION = re.compile(r"v?0\.(\d{1,2})(?!\w)(?:\.(\w+))?")


@dataclass(frozen=True)
class Release:
    """The releases 0.`low` to 0.`high` that may have printed a text; equal where it is known.

    A development version (`0.9.dev0`) lies between two releases: it has some of the changes.
    """

    low: int
    high: int

    @classmethod
    def named(cls, text: str) -> Release | None:
        """The release of a version string, what a fork adds to it aside; None if it is none."""
        match = _VERSION.match(text.strip())
        if match is None:
            return None
        minor = int(match[1])
        is_development = (match[2] or "").startswith("dev")
        return cls(max(minor - 1, 0) if is_development else minor, minor)

    @classmethod
    def given(cls, text: str) -> Release:
        """As `named`, of a caller's argument.  Raises TypeError, ValueError."""
        if not isinstance(text, str):
            raise TypeError(f"release is a version of TVM as a str, not {type(text).__name__}")
        found = cls.named(text)
        if found is None:
            raise ValueError(f"release is a version of TVM, '0.8' say, not {text[:40]!r}")
        return found

    def within(self, first: int, last: int) -> bool | None:
        """Whether it is one of 0.`first` to 0.`last`; None if it may be."""
        if self.low >= first and self.high <= last:
            return True
        return False if self.high < first or self.low > last else None
