"""Files that commands write: whole, or as they were before."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def check(path: str | os.PathLike[str]) -> None:
    """Raises OSError where `write` would; makes no file.  Better to know before than after."""
    target = Path(os.path.realpath(path))
    for wrong, code in (
        (target.is_dir(), errno.EISDIR),
        (not target.parent.is_dir(), errno.ENOENT),
        (not os.access(target if target.exists() else target.parent, os.W_OK), errno.EACCES),
    ):
        if wrong:
            raise OSError(code, os.strerror(code), os.fspath(path))


def write(path: str | os.PathLike[str], text: str) -> None:
    """Writes beside the file, then puts the new one in its place.

    Raises OSError where it cannot; then, and when interrupted, what was there stays.
    """
    check(path)
    target = Path(os.path.realpath(path))  # a link stays one
    if (target.exists() and not target.is_file()) or not os.access(target.parent, os.W_OK):
        target.write_text(text, encoding="utf-8")  # a pipe, or a file in another's folder
        return
    made = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        made.write_text(text, encoding="utf-8")
        if target.exists():
            made.chmod(target.stat().st_mode & 0o7777)
        os.replace(made, target)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
