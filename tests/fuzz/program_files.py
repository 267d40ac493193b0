"""Damaged files of `torch.export.save`, for `tests.fuzz.files`.

Members are removed, renamed, replaced by pickles that would run code, or have a value of their JSON
changed; the archive's bytes are damaged as any file's.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzz import mutate

NAMES = (
    "/etc/passwd", "../../w.bin", "a" * 3000, "", "data/aotinductor/model/x.so", "models/é.json",
    "extra/" + "b/" * 400, "data/weights/weight_0", "models/model.json", "version",
)  # fmt: skip
TEXTS = ("torch.os.mkdir", "torch.ops.aten.from_file.default", "_operator.call", "#x:y", "")


class Evil:
    """A pickle of it makes a file when it is read."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (self.path, "w"))


@functools.cache
def _members(is_open: bool) -> dict[str, bytes]:
    """The same bytes in every process: without stack traces and identifiers.

    is_open : whether the batch is, so that sizes are texts, which PyTorch evaluates.
    """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3)
            self.linear, self.scale = nn.Linear(3, 4), torch.full((3,), 2.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                mean = x.mean()
            y = torch.relu(self.norm(self.conv(x))) + mean
            return self.linear(y.mean((2, 3)) * self.scale)

    torch.manual_seed(0)
    buffer = io.BytesIO()
    axes = ({0: torch.export.Dim("images")},) if is_open else None
    example = (torch.rand(2, 2, 5, 5),)
    torch.export.save(torch.export.export(Net(), example, dynamic_shapes=axes), buffer)
    found = {}
    with zipfile.ZipFile(buffer) as content:
        for name in content.namelist():
            inner = name.partition("/")[2]
            if inner != ".data/serialization_id":
                found[inner] = content.read(name)
    program = json.loads(found["models/model.json"])
    left = [program]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            if "metadata" in node:
                node["metadata"] = {}
            left += node.values()
        elif isinstance(node, list):
            left += node
    found["models/model.json"] = json.dumps(program).encode()
    return found


def _evil(path: str) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save(((Evil(path),), {}), buffer)
    return buffer.getvalue()


def _deep(rng: mutate.Rng, value: Any, marker: str) -> Any:
    """The value with one that lies deep in it changed, most often to one of its own kind."""
    if isinstance(value, dict) and value and rng.random() < 0.97:
        key = mutate.choice(rng, list(value))
        if rng.random() < 0.02:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: _deep(rng, value[key], marker)}
    if isinstance(value, list) and value and rng.random() < 0.95:
        at = int(rng.integers(len(value)))
        if rng.random() < 0.04:
            return value[:at] + value[at + 1 :]
        return [*value[:at], _deep(rng, value[at], marker), *value[at + 1 :]]
    code = f"open({marker!r}, 'w').write('') or 2"
    if isinstance(value, str) and rng.random() < 0.7:
        within = value.replace("integer=True", f"integer={code}"), f"Mul(Integer(2), {code})"
        return mutate.choice(rng, (*TEXTS, *mutate.TEXTS, code, *within, "x", "p_conv_weight"))
    if isinstance(value, int) and rng.random() < 0.8:
        return mutate.choice(rng, mutate.INTEGERS)
    if rng.random() < 0.2:
        return {"as_expr": {"expr_str": code, "hint": None}}
    return mutate.json_value(rng, value)


def program(rng: mutate.Rng, folder: Path) -> Callable[[], None]:
    members, marker = dict(_members(bool(rng.integers(2)))), "ran"  # in the working directory
    for _ in range(int(rng.integers(0, 3))):
        name = mutate.choice(rng, list(members))
        kind = int(rng.integers(8))
        if kind == 0:
            del members[name]
        elif kind == 1:
            members[mutate.choice(rng, NAMES)] = members.pop(name)
        elif kind == 2:
            members[name] = _evil(marker)
        elif kind == 3:
            members[name] = mutate.damaged(rng, members[name])
        else:
            name = mutate.choice(rng, [n for n in members if n.endswith(".json")] or [name])
            with contextlib.suppress(ValueError):  # it is no JSON any more
                value = _deep(rng, json.loads(members[name]), marker)
                members[name] = json.dumps(value).encode()
    compression = zipfile.ZIP_DEFLATED if rng.random() < 0.1 else zipfile.ZIP_STORED
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(f"n/{name}" if rng.random() < 0.99 else name)
            info.compress_type = compression
            archive.writestr(info, content)
    content = out.getvalue()
    if rng.random() < 0.3:
        content = mutate.damaged(rng, content)
    path = folder / "net.pt2"
    path.write_bytes(content)

    def read() -> None:
        from relay_wgrad.frontend import from_torch

        was = Path.cwd()
        os.chdir(folder)
        try:
            from_torch(path, loss="mse")
        finally:
            os.chdir(was)
            assert not (folder / "ran").exists(), "the file ran code"

    return read
