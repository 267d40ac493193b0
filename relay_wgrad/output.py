"""Files that are written whole, or stay as they were before."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


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
    with replacing(target) as made:
        made.write_text(text, encoding="utf-8")


def write_json(
    path: str | os.PathLike[str], value: Any, *, default: Callable[[Any], Any] | None = None
) -> None:
    """`write` of JSON, a line for each leaf.  TypeError for what JSON does not know, unless
    `default` turns it into something else."""
    write(path, json.dumps(value, indent=1, ensure_ascii=False, default=default) + "\n")


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], mode: int = 0o666) -> Iterator[Path]:
    """A new file beside `path`, with its ending, to be written; it takes the place of `path`,
    also where that is a link.

    `mode`: of a file that was not there, less the process's mask.  After an error or an
    interruption what was there stays.  Raises OSError where it cannot write.
    """
    target = Path(path)
    made = target.with_name(f".{secrets.token_hex(4)}.{target.name}")
    os.close(os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
    try:
        yield made
        if target.is_file() and not target.is_symlink():
            made.chmod(target.stat().st_mode & 0o7777)
        os.replace(made, target)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
