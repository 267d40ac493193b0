"""Folders of images as samples: order, augmentation, evaluation, what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relay_wgrad.frontend import TrainingGraph, from_onnx
from relay_wgrad.training.data import Data, order_of
from relay_wgrad.training.images import ImageFolder, Reading
from tests.support.training_models import residual_net

Image = pytest.importorskip("PIL.Image")

SIZES = [(9, 7), (6, 6), (20, 5), (4, 12), (8, 8), (7, 9), (6, 8)]
RAW = {"mean": (0.0,), "std": (1.0,)}


@pytest.fixture(scope="module")
def graph(registered_module: None) -> TrainingGraph:
    return from_onnx(residual_net(blocks=0, size=6))


@pytest.fixture(scope="module")
def registered_module() -> None:
    import relay_wgrad

    relay_wgrad.register()


def folder(path: Path, classes: int = 3) -> Path:
    """Images of each class, each of one colour on its left and another on its right."""
    rng = np.random.default_rng(0)
    for label in range(classes):
        (path / f"c{label}" / "deep").mkdir(parents=True)
        for i, (width, height) in enumerate(SIZES):
            pixels = np.zeros((height, width, 3), "uint8")
            pixels[:, : width // 2] = rng.integers(0, 256, 3)
            pixels[:, width // 2 :] = rng.integers(0, 256, 3)
            kind = "png" if i % 2 else "PNG"
            place = path / f"c{label}" / ("deep" if i == 3 else ".") / f"{i}.{kind}"
            Image.fromarray(pixels).save(place)
    (path / "c0" / "notes.txt").write_text("no image")
    return path


def test_batches(graph: TrainingGraph, tmp_path: Path) -> None:
    """Each image once in an epoch, the same batch whenever it is asked, another part each time."""
    data = ImageFolder(graph, folder(tmp_path), 3, Reading(**RAW), threads=2)
    assert (data.samples, data.batches, data.classes) == (21, 5, ["c0", "c1", "c2"])
    first = [data.batch(step) for step in range(12)]
    for batch in first:
        graph.batch_values(batch)  # as Trainer wants it
        assert 0 <= batch["x"].min() <= batch["x"].max() <= 1
    labels = np.concatenate([b["labels"] for b in first[:5]])
    assert np.bincount(labels).max() <= len(SIZES)
    again = ImageFolder(graph, tmp_path, 3, Reading(**RAW), threads=1)
    for step in (7, 2, 11):  # out of order
        np.testing.assert_array_equal(again.batch(step)["x"], first[step]["x"])
        np.testing.assert_array_equal(again.batch(step)["labels"], first[step]["labels"])
    other = ImageFolder(graph, tmp_path, 4, Reading(**RAW))
    assert (other.batch(0)["x"] != first[0]["x"]).any()


def test_augmentation(graph: TrainingGraph, tmp_path: Path) -> None:
    """Without it an image is its middle; else mirrored half of the time, a part of it."""
    path = folder(tmp_path, 1)
    for augment, mirrored in (("none", False), ("flip", True), ("crop", True)):
        data = ImageFolder(graph, path, 0, Reading(augment, **RAW))
        index = next(i for i, (p, _) in enumerate(data.files) if p.name.startswith("4."))
        middle, seen = data.part(index // data.size)[0]["x"][index % data.size], []
        for step in range(40):
            chosen = order_of(data, step).tolist()
            if index not in chosen:
                continue
            image = data.batch(step)["x"][chosen.index(index)]
            seen.append(
                "same" if np.array_equal(image, middle)
                else "mirror" if np.array_equal(image, middle[:, :, ::-1]) else "part"
            )  # fmt: skip
        assert len(seen) > 15
        assert ("mirror" in seen) == (mirrored and augment == "flip") or augment == "crop"
        assert ("part" in seen) == (augment == "crop")
        if augment == "flip":
            assert 0.2 < seen.count("mirror") / len(seen) < 0.8


def test_numbers(graph: TrainingGraph, tmp_path: Path) -> None:
    """Of one colour, an image becomes (colour / 255 - mean) / std, in grey too."""
    (tmp_path / "a").mkdir()
    Image.new("RGB", (9, 9), (255, 51, 0)).save(tmp_path / "a" / "x.png")
    data = ImageFolder(graph, tmp_path, 0, Reading("none"), least=1)
    want = (np.array([1, 0.2, 0]) - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    batch, count = data.part(0)
    assert (count, data.parts) == (1, 1)
    assert batch["x"].shape == (4, 3, 6, 6)
    np.testing.assert_allclose(batch["x"], np.broadcast_to(want[:, None, None], (4, 3, 6, 6)), 1e-5)


def test_parts_have_each_sample_once(graph: TrainingGraph) -> None:
    arrays: dict[str, Any] = {
        "x": np.arange(10)[:, None, None, None] * np.ones((1, 3, 6, 6)),
        "labels": np.arange(10) % 5,
    }
    data = Data(graph, arrays, least=1)
    seen = []
    for index in range(data.parts):
        batch, count = data.part(index)
        seen += batch["x"][:count, 0, 0, 0].astype(int).tolist()
        assert (batch["x"][:, 0, 0, 0] % 5 == batch["labels"]).all()
    assert seen == list(range(10))


def test_refused(graph: TrainingGraph, tmp_path: Path) -> None:
    def refused(message: str, *args: Any, **options: Any) -> None:
        with pytest.raises((ValueError, OSError), match=re.escape(message)):
            ImageFolder(*args, **options)

    path = folder(tmp_path / "six", 6)
    refused("no folder", graph, tmp_path / "nowhere")
    refused("has folders of 6 classes, but residual has 5", graph, path)
    refused("has folders of 0 classes", graph, path / "c0" / "deep")
    refused("images are for an input", from_onnx(residual_net(blocks=0), loss="mse"), path)
    few = folder(tmp_path / "few", 1)
    (few / "empty").mkdir()
    refused("has no images: .jpg", graph, few)
    (few / "empty").rmdir()
    broken = few / "c0" / "0.PNG"
    broken.write_bytes(b"\x89PNG nothing")
    data = ImageFolder(graph, few, least=1)
    with pytest.raises(ValueError, match="is no image: cannot identify"):
        data.part(0)
    for options, message in (
        ({"augment": "turn"}, "augment must be crop, flip, none, got 'turn'"),
        ({"mean": (1, 2)}, "mean must be a number or one for each channel, got (1, 2)"),
        ({"std": (0.0,)}, "std must be positive, got (0.0,)"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            Reading(**options)  # type: ignore[arg-type]
