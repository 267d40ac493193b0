"""Files that are written whole, or stay as they were before.

A file is made beside its place under a name of ours and then takes that place.  Links stay links,
modes are the old file's, or the process's mask's for a new one.  What a killed run left behind is
removed by the next one that writes into the same folder: each temporary is locked by who writes it,
so one that can be locked is nobody's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

Name = str | os.PathLike[str]

_FILE, _FOLDER = ".relay-wgrad-made-", "relay-wgrad-work-"
_OURS = re.compile(rf"(?:{re.escape(_FILE)}|{_FOLDER})[0-9a-f]{{16}}(?:\.[^.]*)?")
_PAUSE = 0.02  # seconds between two looks at a lock
_BLOCK = b"\0" * 4096  # what a check writes: a full disk still makes files


def check(path: Name) -> None:
    """Raises OSError where `replacing` would.  Better to know before long work than after it.

    A file is made beside `path` and removed; what is at `path` is not touched.
    """
    target, direct = _place(path)
    if not direct:
        with _errors_name_path(path):
            made, lock = _new(target)
            try:
                os.write(lock, _BLOCK)
            finally:
                made.unlink(missing_ok=True)
                os.close(lock)


def check_all(
    outputs: Mapping[str, Name | None],
    inputs: Mapping[str, Name | None] | None = None,
    same: Collection[tuple[str, str]] = (),
) -> None:
    """`check` of every output of a command, before its first step of long work.

    `outputs`, `inputs`: option -> path, None where it was not given.  `same`: pairs (output, input)
    that may be one file.  Raises OSError as `check` does; ValueError for two outputs, or an output
    and an input, that are one file.
    """
    files: dict[str, tuple[str, Name]] = {}
    for option, path in (inputs or {}).items():
        if path is not None and os.path.exists(path):  # else it is a name, as of a bundled model
            files[os.path.realpath(path)] = (option, path)
    for option, path in outputs.items():
        if path is None:
            continue
        target, direct = _place(path)
        if direct and not target.is_file():
            continue  # a pipe or a terminal takes what it gets
        real = os.path.realpath(path)
        other, there = files.get(real, (option, path))
        if other != option and (option, other) not in same:
            raise ValueError(f"{option} {os.fspath(path)} would overwrite {other} {there}")
        files[real] = (option, path)
        check(path)


def write(path: Name, text: str) -> None:
    """Writes beside the file, then puts the new one in its place.

    Raises OSError where it cannot; then, and when interrupted, what was there stays.
    """
    with replacing(path) as made:
        made.write_text(text, encoding="utf-8")


def write_json(path: Name, value: Any, *, default: Callable[[Any], Any] | None = None) -> None:
    """`write` of JSON, a line for each leaf.  TypeError for what JSON does not know, unless
    `default` turns it into something else."""
    write(path, json.dumps(value, indent=1, ensure_ascii=False, default=default) + "\n")


@contextlib.contextmanager
def replacing(path: Name, mode: int = 0o666) -> Iterator[Path]:
    """A new file, with the ending of `path`, to be written; it takes the place of `path`.

    A link stays one, and its target is replaced.  `mode`: of a file that was not there, less the
    process's mask; an old file's mode stays.  After an error or an interruption what was there
    stays; but a pipe, a device, and a file in a folder that is not ours to write are written to as
    they are, after the new file is complete.  Raises OSError naming `path` where it cannot write.
    """
    target, direct = _place(path)
    with _errors_name_path(path):
        beside = Path(tempfile.gettempdir(), target.name) if direct else target
        made, lock = _new(beside, 0o600 if direct else mode)
    written = lock
    try:
        with _errors_name_path(path, made):
            yield made
            # Some writers, as safetensors', put a file of their own in this one's place.
            if not os.path.samestat(made.stat(), os.fstat(lock)):
                written = os.open(made, os.O_RDONLY)
                _lock(written, wait=True)
            if direct:
                with made.open("rb") as source, target.open("wb") as sink:
                    shutil.copyfileobj(source, sink)
                return
            like = target.stat() if target.exists() else os.fstat(lock)
            made.chmod(stat.S_IMODE(like.st_mode))
            os.fsync(written)
            os.replace(made, target)
    finally:
        made.unlink(missing_ok=True)
        for descriptor in {written, lock}:
            os.close(descriptor)


@contextlib.contextmanager
def working_folder(within: Name | None = None) -> Iterator[Path]:
    """A new folder, this user's alone, for as long as it is needed; those of killed runs go.

    `within`: the folder that it is made in, by default the system's for temporary files.
    """
    place = Path(tempfile.gettempdir() if within is None else within)
    _remove_leftovers(place)
    folder, lock = _new_folder(place)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextlib.contextmanager
def turn_at(path: Path, patience: float = 60) -> Iterator[None]:
    """Within it nobody else is about to make a file, as far as that is known.

    Who comes later looks again whether it is there: this spares work, and keeps nothing whole.
    What is locked is a file beside `path`, which goes afterwards; one of a killed run holds nobody
    up.  One that stays locked, by a child that hangs, say, is waited for so many seconds.
    """
    beside = path.with_name(f"{path.name}.lock")
    descriptor = os.open(beside, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    until = time.monotonic() + patience
    try:
        while not path.exists() and time.monotonic() < until:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_PAUSE)
                continue
            except OSError:  # the file system knows no locks
                pass
            break
        yield
    finally:
        beside.unlink(missing_ok=True)
        os.close(descriptor)


def _place(path: Name) -> tuple[Path, bool]:
    """(the file to write, whether it is written to as it is).  Raises OSError where none can be."""
    target = Path(os.path.realpath(path))
    try:
        kind = os.stat(path).st_mode
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise  # a loop of links, a name too long
        kind = 0
    if not stat.S_ISREG(kind) and kind:
        target = Path(path)  # what /dev/stdout points to may have no name
    if stat.S_ISDIR(kind):
        code = errno.EISDIR
    elif not target.parent.is_dir():
        code = errno.ENOENT
    elif not os.access(target if kind else target.parent, os.W_OK):
        code = errno.EACCES
    else:
        odd = bool(kind) and not (stat.S_ISREG(kind) and os.access(target.parent, os.W_OK))
        return target, odd
    what = "no such folder" if code == errno.ENOENT else os.strerror(code)
    raise OSError(code, what, os.fspath(path))


@contextlib.contextmanager
def _errors_name_path(path: Name, made: Path | None = None) -> Iterator[None]:
    """Errors of the system name the user's own path, not the file beside it."""
    try:
        yield
    except OSError as error:
        odd = made is None or error.filename in (None, str(made))
        if error.errno is None or not odd:
            raise
        raise OSError(error.errno, os.strerror(error.errno), os.fspath(path)) from error


def _new(target: Path, mode: int = 0o600) -> tuple[Path, int]:
    """An empty file beside `target` and the descriptor that holds its lock."""
    _remove_leftovers(target.parent)
    while True:
        made = target.with_name(f"{_FILE}{secrets.token_hex(8)}{target.suffix}")
        lock = os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        if _locked_new(made, lock):
            return made, lock


def _new_folder(place: Path) -> tuple[Path, int]:
    """An empty folder and the descriptor that holds its lock."""
    while True:
        folder = place / f"{_FOLDER}{secrets.token_hex(8)}"
        folder.mkdir(mode=0o700)
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY)
            if _locked_new(folder, lock):
                return folder, lock


def _locked_new(path: Path, descriptor: int) -> bool:
    """Locks what was just made.

    False, and closed, where another run or thread took it for a leftover before it was locked: that
    one has the lock until it has removed it, so this waits.
    """
    _lock(descriptor, wait=True)
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.stat(path), os.fstat(descriptor)):
            return True
    os.close(descriptor)
    return False


def _lock(descriptor: int, wait: bool = False) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # somebody has it, or the file system knows no locks
        return False
    return True


def _remove_leftovers(folder: Path) -> None:
    """Removes what killed runs of this user left in a folder."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _OURS.fullmatch(entry.name) and not entry.is_symlink():
                _remove_unlocked(Path(entry.path))


def _remove_unlocked(path: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            info = os.fstat(descriptor)
            if info.st_uid != os.geteuid() or not _lock(descriptor):
                return
            if stat.S_ISDIR(info.st_mode):
                shutil.rmtree(path, ignore_errors=True)
            elif stat.S_ISREG(info.st_mode):
                path.unlink()
        finally:
            os.close(descriptor)
