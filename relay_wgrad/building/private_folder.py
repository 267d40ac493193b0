"""Folders for what was built and is kept: the user's alone, since what is in them is run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


class FolderError(RuntimeError):
    """A folder that cannot be used for what is run; the message says why, and what to do."""


def cache_folder(environ: Mapping[str, str]) -> Path:
    """$RELAY_WGRAD_CACHE, or else relay-wgrad in $XDG_CACHE_HOME or ~/.cache."""
    own, cache = environ.get("RELAY_WGRAD_CACHE"), environ.get("XDG_CACHE_HOME", "")
    if own:
        return Path(own)
    if cache.startswith("/"):
        return Path(cache) / "relay-wgrad"
    return Path(environ.get("HOME") or Path.home()) / ".cache" / "relay-wgrad"


def private_folder(name: str, environ: Mapping[str, str]) -> Path:
    """The folder of that name in `cache_folder`, made if it is not there.

    Raises FolderError if it is a link, another user's, or one that others may write.
    """
    folder = cache_folder(environ) / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.lstat()
    except OSError as error:
        raise FolderError(
            f"{folder}: {error.strerror}; set RELAY_WGRAD_CACHE to a folder that you may write"
        ) from error
    if folder.is_symlink() or info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise FolderError(
            f"{folder}: what is in it is run, so the folder must be yours alone;"
            " set RELAY_WGRAD_CACHE to another, or chmod it to 700"
        )
    return folder
