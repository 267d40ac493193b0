"""Arrays of a file of `numpy.savez`, read by name, without trusting what the file says of itself.

NumPy allocates what an array's header claims before it looks for the data; here the claim must
first be the size that the archive has.  Nothing is ever unpickled, and what is not asked for is not
looked at.
"""

from __future__ import annotations

import ast
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import IO, Any

import numpy as np

from ..frontend.weights import Array

_MAGIC = b"\x93NUMPY"
_LENGTHS = {1: "<H", 2: "<I", 3: "<I"}  # of a header, by the format's version
_LONGEST = 64 << 10  # of a header, bytes: NumPy writes some hundred
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_CHUNK = 1 << 24
# OSError: zipfile seeks to where the archive says.
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError, OSError)


class ArraysFile(Mapping[str, Array]):
    """The arrays of an open `.npz` file; each is read when it is asked for.

    Raises FileNotFoundError, or another OSError; ValueError for another kind of file, and where an
    array is asked for that is damaged, or none of numbers: naming file, array and both values.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._raw: IO[bytes] = open(path, "rb")  # noqa: SIM115
        try:
            self._size = os.fstat(self._raw.fileno()).st_size
            self._zip = zipfile.ZipFile(self._raw)
        except (*_DAMAGED, struct.error) as error:
            self._raw.close()
            raise ValueError(f"{self.path!r} is no file of numpy.savez: {_line(error)}") from error
        except BaseException:
            self._raw.close()
            raise
        self._members: dict[str, list[zipfile.ZipInfo]] = {}
        for info in self._zip.infolist():
            name = info.filename
            self._members.setdefault(name.removesuffix(".npy"), []).append(info)
        if not self._members:
            self.close()
            raise ValueError(f"{self.path!r} is no file of numpy.savez: it has no arrays")

    def __enter__(self) -> ArraysFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        self._zip.close()
        self._raw.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def describe(self, name: str) -> str:
        """An array's name, dtype and shape by its header, without its data."""
        try:
            with self._zip.open(self._one(name)) as file:
                _, shape, _, dtype = self._header(name, file)
        except (ValueError, *_DAMAGED):
            return f"{printable(name)} (not readable)"
        return f"{printable(name)} {dtype}{list(shape)}"

    def __getitem__(self, name: str) -> Array:
        if name not in self._members:
            raise KeyError(name)
        try:
            return self._read(name)
        except _ArrayError as error:
            raise ValueError(str(error)) from error.__cause__

    def _read(self, name: str) -> Array:
        info = self._one(name)
        try:
            with self._zip.open(info) as file:
                begin, shape, fortran, dtype = self._header(name, file)
                size, there = math.prod(shape) * dtype.itemsize, info.file_size - begin
                if size != there:
                    raise self._wrong(
                        name, f"its header says {dtype}{list(shape)}, {size} bytes, but it has"
                        f" {there}"
                    )  # fmt: skip
                array = np.frombuffer(self._data(name, file, size), dtype, math.prod(shape))
        except _DAMAGED as error:
            if isinstance(error, _ArrayError):
                raise
            raise self._wrong(name, _line(error)) from error
        return array.reshape(shape, order="F" if fortran else "C")

    def _one(self, name: str) -> zipfile.ZipInfo:
        found = self._members[name]
        if len(found) > 1:
            raise self._wrong(name, f"the file has {len(found)} arrays of that name")
        (info,) = found
        if info.compress_type not in _METHODS or info.flag_bits & 1:
            raise self._wrong(name, "it is encrypted, or compressed otherwise than NumPy does")
        # What is stored cannot be longer than the file, nor deflate make it 1032 times as long.
        most = self._size * (1 if info.compress_type == zipfile.ZIP_STORED else 1032)
        if info.file_size > most:
            raise self._wrong(
                name, f"the archive says {info.file_size} bytes, but the file has {self._size}"
            )
        return info

    def _data(self, name: str, file: IO[bytes], size: int) -> bytearray:
        data = bytearray()
        while len(data) <= size and (part := file.read(min(_CHUNK, size + 1 - len(data)))):
            data += part
        if len(data) != size:
            raise self._wrong(name, f"{size} bytes are wanted, it has {len(data)}")
        return data

    def _header(
        self, name: str, file: IO[bytes]
    ) -> tuple[int, tuple[int, ...], bool, np.dtype[Any]]:
        """(bytes up to the data, shape, whether columns come first, dtype) of an array."""
        start = file.read(8)
        form = _LENGTHS.get(start[6]) if len(start) == 8 and start[:6] == _MAGIC else None
        if form is None:
            raise self._wrong(name, "it is no array of numpy.save")
        word = file.read(struct.calcsize(form))
        length = struct.unpack(form, word)[0] if len(word) == struct.calcsize(form) else _LONGEST
        if length >= _LONGEST:
            raise self._wrong(name, "its header is cut off, or too long")
        try:
            said = ast.literal_eval(
                file.read(length).decode("utf-8" if start[6] == 3 else "latin1")
            )
            shape, fortran, dtype = said["shape"], said["fortran_order"], np.dtype(said["descr"])
        except (*_DAMAGED, TypeError, KeyError, SyntaxError, MemoryError, RecursionError) as error:
            raise self._wrong(name, "its header cannot be read") from error
        if (
            not isinstance(shape, tuple)
            or not all(type(x) is int and 0 <= x < 1 << 63 for x in shape)
            or len(shape) > 32
            or not isinstance(fortran, bool)
        ):
            raise self._wrong(name, f"its header says shape={shape!r:.60}")
        if dtype.kind not in "biufc" or dtype.subdtype is not None:
            raise self._wrong(name, f"it is {dtype!s:.60}{list(shape)}, not an array of numbers")
        return 8 + len(word) + length, shape, fortran, dtype

    def _wrong(self, name: str, reason: str) -> ValueError:
        return _ArrayError(f"{self.path!r}: array {name!r:.80}: {reason}")


def _line(error: Exception) -> str:
    """The error's text in one line that is not long: it may quote the file."""
    return f"{' '.join(str(error).split()) or type(error).__name__:.200}"


class _ArrayError(ValueError):
    """An error that is complete."""


def printable(name: str) -> str:
    """A name that a file has, for an error of one line."""
    return name if name.isprintable() and len(name) <= 80 else f"{name!r:.80}"
