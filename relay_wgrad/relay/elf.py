"""Whether a shared library is whole, as far as its headers tell.

The dynamic loader maps what the headers say, and a page beyond the file's end kills the process
with SIGBUS where it is first read: no `except` catches that.
"""

from __future__ import annotations

import struct
from pathlib import Path

# 64-bit, little-endian: what TVM's LLVM and the compilers here write.
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_IDENT = b"\x7fELF\x02\x01\x01"
_SHARED = 3  # ET_DYN
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NO_BITS = 8  # SHT_NOBITS: a section without bytes in the file


def check_elf(path: str | Path) -> None:
    """Raises ValueError where the headers, or what they point to, are not within the file."""
    data = Path(path).read_bytes()
    if len(data) < _HEADER.size or not data.startswith(_IDENT):
        raise ValueError(f"{path}: no shared library (64-bit ELF), or the beginning of one")
    _, kind, *_, segments, sections, _, _, segment, count, section, number, _ = _HEADER.unpack_from(
        data
    )
    if kind != _SHARED or (count and segment != _SEGMENT.size) or not count:
        raise ValueError(f"{path}: an ELF file, but no shared library")
    if number and section != _SECTION.size:
        raise ValueError(f"{path}: its section headers are damaged")
    _within(path, data, "segments' headers", segments, count * _SEGMENT.size)
    _within(path, data, "sections' headers", sections, number * _SECTION.size)
    for i in range(count):
        _, _, offset, _, _, size, _, _ = _SEGMENT.unpack_from(data, segments + i * _SEGMENT.size)
        _within(path, data, f"segment {i}", offset, size)
    for i in range(number):
        _, type_, _, _, offset, size, *_ = _SECTION.unpack_from(data, sections + i * _SECTION.size)
        if type_ != _NO_BITS:
            _within(path, data, f"section {i}", offset, size)


def _within(path: str | Path, data: bytes, what: str, offset: int, size: int) -> None:
    if offset + size > len(data):
        raise ValueError(
            f"{path}: cut off: its {what} end at byte {offset + size}, the file at {len(data)}"
        )
