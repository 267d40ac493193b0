"""What compilers made and is kept: contents by a digest of all that they depend on.

They are files of the private folder `built`.  Each is written under another name and then renamed,
and ends with its own digest, so a damaged one counts as not there.  Together they take at most
$RELAY_WGRAD_CACHE_MIB, 2048 without that variable, and a 64th of it more for each process that adds
some; those that were not used for longest go first.
With 0 nothing is kept and nothing is looked up.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..output import replacing
from .private_folder import FolderError, cache_folder, private_folder

FOLDER, MOST = "built", "RELAY_WGRAD_CACHE_MIB"
_MIB, _DEFAULT = 1 << 20, 2048
_SIZE = hashlib.sha256().digest_size
_NAME = re.compile(r"[0-9a-f]{64}")
_SLACK = 64  # a process adds so much of the limit, as a share, before it looks at the folder again
_added: dict[Path, int] = {}  # bytes since then, by folder; none of a folder not seen yet


def key_of(facts: Iterable[str | bytes]) -> str:
    """A digest of facts in their order, each told from its neighbours."""
    digest = hashlib.sha256()
    for fact in facts:
        content = fact.encode() if isinstance(fact, str) else fact
        digest.update(f"{len(content)}\n".encode() + content)
    return digest.hexdigest()


def most_bytes(environ: Mapping[str, str] | None = None) -> int:
    """How much is kept at most.  Raises ValueError where the variable is no whole number."""
    text = (os.environ if environ is None else environ).get(MOST, "").strip()
    if text and not (text.isascii() and text.isdigit()):
        raise ValueError(f"{MOST} must be a whole number of MiB, 0 to keep nothing, got {text!r}")
    return int(text or _DEFAULT) * _MIB


def read(path: Path) -> bytes | None:
    """What `write` wrote there; None where it is not there, damaged, or a link."""
    try:
        content = b"" if path.is_symlink() else path.read_bytes()
    except OSError:
        return None
    whole = content[-_SIZE:] == hashlib.sha256(content[:-_SIZE]).digest()
    return content[:-_SIZE] if whole else None


def write(path: Path, content: bytes) -> None:
    """The content and its digest, whole or not at all.  Raises OSError."""
    if path.is_symlink():  # nothing of ours, and what it points to is not this cache's
        path.unlink()
    with replacing(path, 0o600) as made:
        made.write_bytes(content + hashlib.sha256(content).digest())


def described(environ: Mapping[str, str] | None = None) -> str:
    """Where it is kept, how much is there, and how to be rid of it; makes no folder."""
    environ = os.environ if environ is None else environ
    folder = cache_folder(environ) / FOLDER
    try:
        most = most_bytes(environ) // _MIB
    except ValueError as error:
        return str(error)
    try:
        used = sum(size for _, size, _ in _files(folder)) / _MIB if folder.is_dir() else 0.0
    except OSError as error:  # another user's, say: a HOME that is not one's own
        return f"{folder}: {error.strerror}; set RELAY_WGRAD_CACHE to a folder that you may write"
    limit = f"at most {most} ({MOST})" if most else f"nothing more is kept ({MOST}=0)"
    return f"{folder}: {used:.1f} MiB, {limit}; may be deleted at any time"


class DiskCache:
    """The folder's contents.

    A folder that cannot be used is warned of, once for each `DiskCache`; then there is nothing in
    it.

    Raises ValueError for a limit that is no whole number.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self.most = most_bytes(environ)
        self.folder: Path | None = None
        if self.most:
            try:
                self.folder = private_folder(FOLDER, environ)
            except FolderError as error:
                self._warn(str(error))

    def get(self, key: str) -> bytes | None:
        """What was kept under a key."""
        if self.folder is None:
            return None
        content = read(self.folder / key)
        if content is not None:
            with contextlib.suppress(OSError):
                os.utime(self.folder / key)  # used now
        return content

    def put(self, key: str, content: bytes) -> None:
        """Keeps a content, and removes the oldest ones where there is too much."""
        if self.folder is None or len(content) + _SIZE > self.most:
            return
        try:
            write(self.folder / key, content)
            # To look at thousands of files takes longer than to write one.
            added = _added.get(self.folder, self.most) + len(content) + _SIZE
            if added > self.most // _SLACK:
                self._trim(self.folder, key)
                added = 0
            _added[self.folder] = added
        except OSError as error:
            self._warn(f"{self.folder}: {error.strerror}")
            self.folder = None

    def _trim(self, folder: Path, newest: str) -> None:
        files = _files(folder)
        size = sum(n for _, n, _ in files)
        for _, n, path in sorted(files):
            if size <= self.most:
                break
            if path.name != newest:
                path.unlink(missing_ok=True)
                size -= n

    def _warn(self, reason: str) -> None:
        warnings.warn(
            f"what compilers make is not kept, and is made anew in each process: {reason}",
            RuntimeWarning, stacklevel=2,
        )  # fmt: skip


def _files(folder: Path) -> list[tuple[float, int, Path]]:
    """(when it was used last, bytes, path) of each content."""
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process removes too
            if _NAME.fullmatch(path.name):
                info = path.lstat()
                found.append((info.st_mtime, info.st_size, path))
    return found
