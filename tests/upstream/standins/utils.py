"""`tvm.contrib.utils`: temporary folders."""

from __future__ import annotations

import tempfile
from pathlib import Path


class TempDirectory:
    """A folder that goes with this object."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name)
        self.temp_dir = self.path

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def relpath(self, name: str) -> str:
        """The path of a file in it."""
        return str(self.path / name)

    def listdir(self) -> list[str]:
        """The names in it."""
        return sorted(entry.name for entry in self.path.iterdir())

    def remove(self) -> None:
        """Takes it away."""
        self._folder.cleanup()


def tempdir(*args: object) -> TempDirectory:
    """A new folder."""
    return TempDirectory()
