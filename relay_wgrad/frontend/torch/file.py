"""Files of `torch.export.save`: what PyTorch would run while it reads them is refused before.

`torch.export.load` trusts its file.  It unpickles whole objects where tensors will not do, loads
compiled libraries, evaluates the text of symbolic sizes and guards as Python, imports what a
container's type names, and calls any function under `torch` that a node names.  A program that can
be imported needs none of that: so members go by a list of names, pickles hold tensors, nodes call
PyTorch's own operators, and sizes are numbers.  Sizes that the archive claims are compared with the
file's before memory is asked for.
"""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

_MEMBERS = re.compile(
    r"archive_(format|version)|byteorder|\.data/\w+|extra/.*|models/model\.json"
    r"|data/(weights/(model_weights_config\.json|weight_\d+)|sample_inputs/model\.pt"
    r"|constants/(model_constants_config\.json|tensor_\d+))"
)
# Of PyTorch before 2.8.
_OLD = re.compile(
    r"version|serialized_exported_program\.json|extra_files/.*"
    r"|serialized_(state_dict|constants|example_inputs)\.pt"
)
_OPERATOR = re.compile(r"torch\.ops\.(aten|higher_order)\.(\w+)(?:\.(\w+))?")
# A number of images that is open, as PyTorch writes it: it evaluates the text as Python.
_SIZE = re.compile(
    r"Symbol\('[su]\d{1,9}'(, (positive|nonnegative|integer)=True)*\)|Integer\(-?\d{1,18}\)"
    r"|\b[su]\d{1,9}\b"
)
_SIZES = re.compile(r"(Add|Mul)\(\0(, \0)+\)")  # of what are sizes
_REFUSED_OPERATORS = ("from_file",)  # maps a file, and makes it where there is none
_IMPORTS = ("__enum__", "default_factory")  # contexts of containers
_SAVE_AGAIN = "save it anew by torch.export.save"


class _Archive(NamedTuple):
    sizes: dict[str, int]
    """Member -> the bytes that it claims, uncompressed."""
    read: Callable[[str], bytes]


def check_file(torch: Any, path: str) -> None:
    """Raises ValueError for a file whose reading would run more than an import needs.

    What is damaged may pass: reading it raises then.
    """
    size = os.path.getsize(path)
    try:
        archive, members = _archive(torch.PyTorchFileReader(path), path), _MEMBERS
    except (RuntimeError, ValueError) as error:  # none of PyTorch's archives: it tries a plain zip
        said = f"it is no archive of PyTorch's: {first_line(error)}"
        try:
            archive, members = _plain(path), _OLD
        except (zipfile.BadZipFile, ValueError, NotImplementedError):
            raise ValueError(said) from error
        if "version" not in archive.sizes:
            raise ValueError(said) from error
    _check_sizes(archive, size)
    for name in archive.sizes:
        if not members.fullmatch(name):
            raise ValueError(f"a member {name[:80]!r} is none of a program's: {_SAVE_AGAIN}")
    for name in archive.sizes:
        if name.startswith(("extra", ".data")):
            continue
        if name.endswith(".pt"):
            _check_tensors(torch, name, archive.read(name))
        elif name.endswith("_config.json"):
            _check_payloads(name, _json(name, archive.read(name)), archive.sizes)
        elif name.endswith(".json"):
            _check_program(torch, _json(name, archive.read(name)))


def first_line(error: BaseException) -> str:
    """What an error says, short."""
    return str(error).strip().partition("\n")[0][:300] or type(error).__name__


def _archive(reader: Any, file: str | BinaryIO) -> _Archive:
    names = reader.get_all_records()
    if hasattr(reader, "get_record_size"):
        sizes = {name: reader.get_record_size(name) for name in names}
    else:  # an older PyTorch (2.11): names are without the folder that holds all members
        sizes = {name.partition("/")[2]: n for name, n in _plain(file).sizes.items()}
        if {*sizes} != {*names}:
            raise ValueError("its members are not those that a reader of zip files finds")
    return _Archive(sizes, reader.get_record)


def _plain(file: str | BinaryIO) -> _Archive:
    content = zipfile.ZipFile(file)
    return _Archive({item.filename: item.file_size for item in content.infolist()}, content.read)


def _check_sizes(archive: _Archive, size: int) -> None:
    claimed = sum(archive.sizes.values())
    if claimed > size:  # PyTorch compresses nothing
        raise ValueError(f"its members claim {claimed} bytes, the file has {size}")


def _check_tensors(torch: Any, name: str, content: bytes) -> None:
    """That a pickle holds tensors in plain containers: PyTorch unpickles it without a limit."""
    if content.startswith(b"PK"):
        file = io.BytesIO(content)
        _check_sizes(_archive(torch.PyTorchFileReader(file), file), len(content))
    try:
        torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:  # many kinds, of zip files and pickles
        # Its own words are how to do without this check.
        raise ValueError(f"{name} holds no tensors alone, or is damaged") from error


def _json(name: str, content: bytes) -> Any:
    try:
        return json.loads(content.decode())
    except RecursionError as error:
        raise ValueError(f"{name} is too deeply nested") from error
    except ValueError as error:
        raise ValueError(f"{name} is no JSON: {first_line(error)}") from error


def _check_payloads(name: str, config: Any, sizes: dict[str, int]) -> None:
    """That weights and constants are plain bytes, as many as their sizes say."""
    try:
        rows = config["config"].items()
        for key, row in rows:
            member = os.path.dirname(name) + "/" + row["path_name"]
            if row["use_pickle"] is not False or not _MEMBERS.fullmatch(member):
                raise ValueError(f"{key[:80]!r} of {name} is no plain tensor")
            if member not in sizes:
                raise ValueError(f"{key[:80]!r} of {name} is in {member}, which is missing")
            lengths = [int(n["as_int"]) for n in row["tensor_meta"]["sizes"]]
            if min(lengths, default=0) < 0 or (not sizes[member] and all(lengths)):
                raise ValueError(f"{key[:80]!r} of {name} has {sizes[member]} bytes of {lengths}")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{name} is damaged: {type(error).__name__}") from error


def _check_program(torch: Any, program: Any) -> None:
    if not isinstance(program, dict) or program.get("guards_code"):
        raise ValueError("it has conditions on its inputs: export it with fixed sizes")
    left: list[tuple[str, Any]] = [("", program)]
    while left:
        key, value = left.pop()
        if key == "expr_str" and not _is_size(value):
            raise ValueError(f"a size is symbolic ({str(value)[:80]!r}): export it with numbers")
        if key in ("target", "as_operator"):
            _check_operator(torch, value)
        if isinstance(value, dict):
            left += [(k, v) for k, v in value.items() if k != "metadata"]
        elif isinstance(value, list):
            left += [("", v) for v in value]
        elif key in ("in_spec", "out_spec") and any(word in str(value) for word in _IMPORTS):
            raise ValueError("inputs or outputs are containers of a type that would be imported")


def _is_size(text: Any) -> bool:
    """Whether a text is sums and products of numbers and of sizes' names, and nothing else."""
    if not isinstance(text, str) or "\0" in text:
        return False
    found, left = _SIZE.sub("\0", text), ""
    while found != left:
        left, found = found, _SIZES.sub("\0", found)
    return found == "\0"


def _check_operator(torch: Any, target: Any) -> None:
    found = _OPERATOR.fullmatch(target) if isinstance(target, str) else None
    if found and found[2] not in _REFUSED_OPERATORS:
        kinds = (type(torch.ops.aten.relu.default), torch._ops.HigherOrderOperator)
        value: Any = getattr(torch.ops, found[1])
        for name in filter(None, found.groups()[1:]):
            value = getattr(value, name, None)
        if isinstance(value, kinds):
            return
    raise ValueError(f"{str(target)[:80]!r} is none of PyTorch's operators")
