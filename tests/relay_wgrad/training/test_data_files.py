"""Samples in files and arrays of every kind: what is taken, what is refused and how."""

from __future__ import annotations

import io
import os
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relay_wgrad.frontend import from_onnx
from relay_wgrad.training.arrays_file import ArraysFile
from relay_wgrad.training.data import Data
from tests.support.training_models import residual_net

pytestmark = pytest.mark.usefixtures("registered")
COUNT, CLASSES = 6, 5


@pytest.fixture(scope="module")
def graph() -> Any:
    import relay_wgrad

    relay_wgrad.register()
    return from_onnx(residual_net(blocks=0, size=6), batch=2)


def samples(**change: Any) -> dict[str, Any]:
    images = np.random.default_rng(0).standard_normal((COUNT, 3, 6, 6), dtype="float32")
    return {"x": images, "labels": np.arange(COUNT) % CLASSES, **change}


def with_value(value: Any, dtype: str) -> Any:
    array = np.zeros((COUNT, 3, 6, 6), dtype)
    array[4, 2, 1, 3] = value
    return array


TAKEN = {
    "uint8": with_value(255, "uint8"),
    "bool": with_value(True, "bool"),
    "int64": with_value(-(2**62) + 1, "int64"),  # rounded, as float64 is
    "uint64": with_value(2**64 - 1, "uint64"),
    "float16": with_value(65504, "float16"),
    "float64": with_value(1 + 1e-12, "float64"),
    "largest": with_value(np.finfo("float32").max, "float64"),
    "tiny": with_value(1e-300, "float64"),  # rounds to zero
    "swapped": with_value(1.5, ">f4"),
    "columns": np.asfortranarray(with_value(1.5, "float32")),
    "list": with_value(1.5, "float32").tolist(),
}


@pytest.mark.parametrize("kind", TAKEN)
def test_what_is_taken(kind: str, graph: Any, tmp_path: Path) -> None:
    given = TAKEN[kind]
    np.savez(tmp_path / "a.npz", **samples(x=given))
    for data in (
        Data(graph, samples(x=given)), Data.load(tmp_path / "a.npz", graph)
    ):  # fmt: skip
        values = np.concatenate([data.batch(i)["x"] for i in range(3)])
        assert values.dtype == np.float32
        assert np.isfinite(values).all()
        wanted = np.asarray(given).astype("float32")
        np.testing.assert_array_equal(np.sort(values.ravel()), np.sort(wanted.ravel()))


def test_arrays_on_disk(graph: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", samples()["x"])
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    data = Data(graph, samples(x=mapped))
    assert np.shares_memory(data.arrays["x"], mapped)  # it is not read into memory as a whole
    np.testing.assert_array_equal(data.batch(1)["x"], Data(graph, samples()).batch(1)["x"])


def test_names_in_a_file_stay_in_one_line(graph: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **{"a\nb": np.zeros(2), "c" * 5000: np.zeros(2)})
    with pytest.raises(ValueError, match=r"no samples for x, .*got 'a\\nb' float64\[2\]") as caught:
        Data.load(tmp_path / "a.npz", graph)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


AT = "at index [4, 2, 1, 3]"
REFUSED = {
    "overflow": (with_value(1e300, "float64"), f"x is 1e+300 {AT}, which float32 does not hold"),
    "-overflow": (with_value(-4e38, "float64"), f"x is -4e+38 {AT}, which float32 does not hold"),
    "nan": (with_value(np.nan, "float32"), f"x is nan {AT}"),
    "inf": (with_value(-np.inf, "float16"), f"x is -inf {AT}"),
    "complex": (with_value(1j, "complex64"), "got complex64[6, 3, 6, 6]"),
    "structured": (np.zeros((COUNT, 3, 6, 6), "f4,f4"), "[6, 3, 6, 6]"),
    "unicode": (np.full((COUNT, 3, 6, 6), "1"), "<U1"),
    "bytes": (np.full((COUNT, 3, 6, 6), b"1"), "|S1"),
    "dates": (np.zeros((COUNT, 3, 6, 6), "M8[s]"), "datetime64[s]"),
    "empty": (np.zeros((0, 3, 6, 6)), "not the same number of samples in each: {'x': 0, 'labels'"),
    "scalar": (np.float32(1), "got float32[]"),
    "shape": (np.zeros((COUNT, 3, 6, 7)), "got float64[6, 3, 6, 7]"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused(kind: str, graph: Any, tmp_path: Path) -> None:
    given, message = REFUSED[kind]
    path = tmp_path / "a.npz"
    np.savez(path, **samples(x=given))
    with pytest.raises(ValueError, match=re.escape(message.strip("<|"))) as caught:
        Data.load(path, graph)
    assert str(caught.value).startswith(f"{str(path)!r}: ")
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=re.escape(graph.name)):
        Data(graph, samples(x=given))


@pytest.mark.parametrize(("labels", "message"), [
    (np.full(COUNT, CLASSES), "labels must be 0 … 4, got 5 at index 0"),
    (np.array([0, 1, -1, 0, 0, 0]), "labels must be 0 … 4, got -1 at index 2"),
    (np.array([0, 2**64 - 1, 0, 0, 0, 0], "uint64"), "got 18446744073709551615 at index 1"),
    (np.zeros(COUNT), "samples are labels int64[samples], got float64[6]"),
    (np.zeros((COUNT, CLASSES), "int64"), "labels int64[samples], got int64[6, 5]"),
    (np.zeros(COUNT - 1, "int64"), "not the same number of samples in each"),
])  # fmt: skip
def test_labels(labels: Any, message: str, graph: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Data(graph, samples(labels=labels))


def test_arrays_that_are_no_numbers(graph: Any) -> None:
    masked = np.ma.masked_greater(samples()["x"], 1.0)
    for given, message in (
        ([[1.0], [1.0, 2.0]], "x is no array of numbers"),
        (masked, "x has masked values"),
        (np.full((COUNT, 3, 6, 6), None), "got object["),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            Data(graph, samples(x=given))


def test_an_integer_that_an_input_does_not_hold() -> None:
    from relay_wgrad.training.data import _representable

    with pytest.raises(ValueError, match=r"^x is 300 at index \[1\], which uint8 does not hold$"):
        _representable("x", np.array([3, 300]), np.dtype("uint8"))
    with pytest.raises(ValueError, match="which int64 does not hold"):
        _representable("x", np.array([2**63], "uint64"), np.dtype("int64"))
    _representable("x", np.array([0, 255]), np.dtype("uint8"))


# ---- the file ---------------------------------------------------------------------------------


def npz(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def npy(array: Any, **change: Any) -> bytes:
    """The bytes of an array, with another header."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        out, {**np.lib.format.header_data_from_array_1_0(array), **change}
    )
    return out.getvalue() + array.tobytes()


def test_only_what_is_used_is_read(graph: Any, tmp_path: Path) -> None:
    """An object array beside the samples stays where it is, and is never unpickled."""
    path, marker = tmp_path / "a.npz", tmp_path / "unpickled"

    class Bad:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(marker),)

    np.savez(path, notes=np.array([Bad()], dtype=object), **samples())
    assert Data.load(path, graph).samples == COUNT
    np.savez(path, **samples(x=np.array([Bad()] * COUNT, dtype=object)))
    with pytest.raises(ValueError, match=r"array 'x': it is object\[6\], not an array of numbers"):
        Data.load(path, graph)
    np.savez(path, notes=np.array([Bad()], dtype=object))
    with pytest.raises(ValueError, match=r"got notes \(not readable\)"):
        Data.load(path, graph)
    assert not marker.exists()


HUGE = (10**7, 3, 6, 6, 10**3)
X = np.zeros((2, 3), "float32")


@pytest.mark.parametrize(("content", "message"), [
    (npy(X, shape=HUGE), "its header says float32[10000000, 3, 6, 6, 1000], 4320000000000 bytes"),
    (npy(X, shape=(2**62, 2**62)), "bytes, but it has 24"),
    (npy(X, shape=(1, 3)), "its header says float32[1, 3], 12 bytes, but it has 24"),
    (npy(X, shape=(-2, 3)), "its header says shape=(-2, 3)"),
    (npy(X, shape=(2.0, 3)), "its header says shape=(2.0, 3)"),
    (npy(X, descr="nonsense"), "its header cannot be read"),
    (npy(X, fortran_order=7), "its header says shape="),
    (npy(X)[:20], "its header cannot be read"),
    (npy(X)[:4], "it is no array of numpy.save"),
    (b"", "it is no array of numpy.save"),
    (b"\x93NUMPY\x03\x00" + struct.pack("<I", 2**31), "its header is cut off, or too long"),
    (b"\x93NUMPY\x01\x00" + struct.pack("<H", 60000) + b"(" * 60000, "its header cannot be read"),
])  # fmt: skip
def test_headers_are_not_believed(content: bytes, message: str, tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", {"x.npy": content})
    with ArraysFile(path) as file, pytest.raises(ValueError, match=re.escape(message)) as caught:
        file["x"]
    assert str(caught.value).startswith(f"{str(path)!r}: array 'x': ")
    assert "\n" not in str(caught.value)


def test_archives_are_not_believed(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", {"x.npy": npy(X, shape=(10**9, 3))})
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\x01\x02")
    struct.pack_into("<II", content, at + 20, 4 * 10**9, 4 * 10**9)
    path.write_bytes(content)
    with ArraysFile(path) as file, pytest.raises(ValueError, match="the archive says 4000000000"):
        file["x"]
    twice = npz(tmp_path / "b.npz", {"x.npy": npy(X), "x": npy(X)})
    with ArraysFile(twice) as file, pytest.raises(ValueError, match="has 2 arrays of that name"):
        file["x"]
    with pytest.raises(ValueError, match="it has no arrays"):
        ArraysFile(npz(tmp_path / "c.npz", {}))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("array", [
    np.zeros(0), np.float64(3.5), np.zeros((3, 0, 2), "int8"), np.arange(6).reshape(2, 3).T,
    np.array([1, 2], ">i2"), np.array([True]), np.ones((2, 2), "complex64"),
], ids=str)  # fmt: skip
def test_what_numpy_wrote_is_read(save: Any, array: Any, tmp_path: Path) -> None:
    save(tmp_path / "a.npz", x=array)
    with ArraysFile(tmp_path / "a.npz") as file:
        got = file["x"]
        assert (list(file), len(file)) == (["x"], 1)
    np.testing.assert_array_equal(got, array)
    assert got.dtype == array.dtype
