"""JPEGs that threads of our own read: the parts and pixels of Pillow's, whatever the file is."""

from __future__ import annotations

import gc
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relay_wgrad.cores import usable_processors
from relay_wgrad.frontend import TrainingGraph, from_onnx
from relay_wgrad.training import jpeg_reader
from relay_wgrad.training.images import ImageFolder, Reading, draws_of, part
from tests.support.children import run_code
from tests.support.training_models import residual_net

Image = pytest.importorskip("PIL.Image")

SIDE = 24
RAW = {"mean": (0.0,), "std": (1.0,)}
SIZES = [(61, 47), (47, 61), (200, 33), (24, 24), (17, 130), (3, 2), (1, 1), (31, 500)]
KINDS: list[dict[str, Any]] = [
    {"quality": 90}, {"quality": 95, "subsampling": 0}, {"quality": 60, "subsampling": 1},
    {"quality": 80, "progressive": True}, {"quality": 90, "restart_marker_blocks": 2},
]  # fmt: skip


@pytest.fixture(scope="module")
def graph() -> TrainingGraph:
    import relay_wgrad

    relay_wgrad.register()
    return from_onnx(residual_net(blocks=0, size=SIDE))


def picture(rng: np.random.Generator, width: int, height: int, channels: int = 3) -> Any:
    """Of smooth colours with some noise, as photographs are."""
    coarse = rng.integers(0, 256, (4, 4, channels), "uint8").squeeze()
    pixels = np.asarray(Image.fromarray(coarse).resize((width, height), Image.BICUBIC), "int16")
    noise = rng.integers(-9, 10, pixels.shape)
    return Image.fromarray((pixels + noise).clip(0, 255).astype("uint8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs of all sizes and kinds, some in grey, and a PNG among them."""
    made, rng = tmp_path_factory.mktemp("jpegs"), np.random.default_rng(0)
    (made / "a").mkdir()
    for number, size in enumerate(SIZES):
        for kind, options in enumerate(KINDS):
            channels = 1 if (number + kind) % 4 == 3 else 3
            ending = "JPG" if kind == 1 else "jpeg"
            place = made / "a" / f"{number}{kind}.{ending}"
            picture(rng, *size, channels).save(place, "JPEG", **options)
    picture(rng, 40, 30).save(made / "a" / "whole.png")
    return made


def test_it_is_here() -> None:
    assert jpeg_reader.reason() == ""
    assert "libjpeg" in jpeg_reader.described()


def test_parts_are_those_of_python() -> None:
    rng = np.random.default_rng(0)
    for number in range(4000):
        width, height, rows, columns = (int(n) for n in rng.integers(1, 700, 4))
        draws = draws_of(number, 1, [3])[0]
        augment = ("crop", "crop", "flip", "none")[number % 4]
        want = part(augment, draws, width, height, rows, columns)
        assert jpeg_reader.part(augment, draws, width, height, rows, columns) == want
        left, top, right, bottom = want
        assert 0 <= left < right <= width * (1 + 1e-15)
        assert 0 <= top < bottom <= height * (1 + 1e-15)


def test_draws() -> None:
    """Uniform, and another row for each image, epoch and seed."""
    draws = draws_of(0, 0, range(4000))
    assert 0 <= draws.min() < draws.max() < 1
    np.testing.assert_allclose(draws.mean(0), 0.5, atol=0.02)
    np.testing.assert_allclose(np.corrcoef(draws.T), np.eye(draws.shape[1]), atol=0.08)
    np.testing.assert_array_equal(draws_of(0, 0, [17, 3]), draws[[17, 3]])
    others = [draws_of(*key, [1, 2])[0] for key in ((0, 1), (1, 0), (2, 1), (1, 2))]
    assert len({row.tobytes() for row in (*others, draws[1], draws[2])}) == 6


def weights(start: float, end: float, size: int, count: int) -> Any:
    """float64[count, size]: triangles as wide as a pixel of the result, at least 1, cut at the
    image's ends."""
    scale = (float(np.float32(end)) - float(np.float32(start))) / count
    wide = max(scale, 1.0)
    centres = np.float32(start) + (np.arange(count)[:, None] + 0.5) * scale
    places = np.arange(size)
    low = np.maximum(0, (centres - wide + 0.5).astype(int))
    high = np.minimum(size, (centres + wide + 0.5).astype(int))
    made = np.maximum(0, 1 - abs((places + 0.5 - centres) / wide))
    made = np.where((places >= low) & (places < high), made, 0)
    return made / made.sum(1, keepdims=True)


@pytest.mark.parametrize("augment", ["crop", "flip", "none"])
def test_pixels(graph: TrainingGraph, folder: Path, augment: str) -> None:
    """Of the decoded image, in float64, rounded once; Pillow rounds twice."""
    reading = Reading(augment, **RAW)
    data, other = (
        ImageFolder(graph, folder, 5, reading, threads=2, decoder=decoder)
        for decoder in ("auto", "pillow")
    )
    assert data.notes == other.notes == []
    flips = 0
    for step in range(2 * data.batches):
        order = np.random.default_rng([5, step // data.batches]).permutation(data.samples)
        chosen = order[step % data.batches * data.size :][: data.size]
        found, pillows = data.batch(step), other.batch(step)
        np.testing.assert_array_equal(found["labels"], pillows["labels"])
        assert abs(found["x"] - pillows["x"]).max() * 255 < 1.01
        draws = draws_of(5, step // data.batches, chosen)
        for index, image, row in zip(chosen, found["x"], draws, strict=True):
            with Image.open(data.files[index][0]) as file:
                pixels = np.asarray(file.convert("RGB"), "float64")
            height, width = pixels.shape[:2]
            left, top, right, bottom = part(augment, row, width, height, SIDE, SIDE)
            rows, columns = weights(top, bottom, height, SIDE), weights(left, right, width, SIDE)
            want = np.einsum("ih,hwc,jw->cij", rows, pixels, columns, optimize=True)
            if augment != "none" and row[-1] < 0.5:
                want, flips = want[:, :, ::-1], flips + 1
            assert abs(image * 255 - want).max() < (1.01 if index == data.samples - 1 else 0.51)
    assert (flips > 0) is (augment != "none")


def test_normalized_as_pillows(graph: TrainingGraph, tmp_path: Path) -> None:
    """Of equal levels the numbers are the same, bit for bit."""
    (tmp_path / "a").mkdir()
    for level in range(0, 256, 15):
        picture = Image.new("RGB", (SIDE, SIDE), (level, 255 - level, level // 2))
        picture.save(tmp_path / "a" / f"{level}.jpg", quality=100, subsampling=0)
    found, pillows = (
        ImageFolder(graph, tmp_path, decoder=decoder).batch(1)["x"]
        for decoder in ("auto", "pillow")
    )
    np.testing.assert_array_equal(found, pillows)


def test_a_batch_depends_on_seed_and_step_alone(graph: TrainingGraph, folder: Path) -> None:
    """Not on the threads, on what was asked before, or on how many processes read it."""
    first = ImageFolder(graph, folder, 3, threads=1)
    want = [first.batch(step) for step in range(2 * first.batches)]
    again = ImageFolder(graph, folder, 3, threads=5)
    for step in (7, 2, 2, 9, 0):
        np.testing.assert_array_equal(again.batch(step)["x"], want[step]["x"])
    two = [ImageFolder(graph, folder, 3, shard=(rank, 2), threads=2) for rank in range(2)]
    for step in range(3):
        parts = [data.batch(step)["x"] for data in two]
        np.testing.assert_array_equal(
            np.concatenate(parts), np.concatenate([want[2 * step]["x"], want[2 * step + 1]["x"]])
        )


def test_processes_of_a_machine_share_its_processors(
    graph: TrainingGraph, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = usable_processors()
    for world in (1, 2, 1000):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(world))
        assert ImageFolder(graph, folder).threads == max(1, here // world)
    assert ImageFolder(graph, folder, threads=3).threads == 3


def test_parts_are_the_same_in_any_order(graph: TrainingGraph, folder: Path) -> None:
    """The next one is read before it is asked for, by guess; each sample is there once."""
    data, pillows = ImageFolder(graph, folder), ImageFolder(graph, folder, decoder="pillow")
    want = [pillows.part(index) for index in range(data.parts)]
    assert sum(count for _, count in want) == data.samples
    for index in (*range(data.parts), *range(1, data.parts, 3), 5, 5, 2, 0, data.parts - 1):
        batch, count = data.part(index)
        assert count == want[index][1]
        assert abs(batch["x"] - want[index][0]["x"]).max() < 1.01 / 255 / 0.22
        np.testing.assert_array_equal(batch["labels"], want[index][0]["labels"])


def everything(data: ImageFolder) -> None:
    for index in range(data.parts):
        data.part(index)


def test_others_are_pillows(graph: TrainingGraph, tmp_path: Path) -> None:
    """Four colours, another format of that name, and what Pillow refuses too."""
    place, rng = tmp_path / "a", np.random.default_rng(0)
    place.mkdir()
    for number in range(4):
        picture(rng, 50, 40).save(place / f"{number}.jpg")
    picture(rng, 50, 40).convert("CMYK").save(place / "four.jpg")
    picture(rng, 50, 40).save(place / "png.jpg", "PNG")
    picture(rng, 50, 40).save(place / "after.jpg")
    after = place / "after.jpg"
    after.write_bytes(after.read_bytes() + b"more")
    damaged = bytearray((place / "2.jpg").read_bytes())
    damaged[-300:-200:7] = b"\xff\xd3" * 7 + b"\0"
    (place / "2.jpg").write_bytes(damaged)
    both = [
        ImageFolder(graph, tmp_path, decoder=decoder, least=1) for decoder in ("auto", "pillow")
    ]
    same = []
    for index in range(both[0].parts):
        found, pillows = (data.part(index)[0]["x"] for data in both)
        assert abs(found - pillows).max() < 1.01 / 255 / 0.22
        same += (found == pillows).all((1, 2, 3)).tolist()[: both[0].samples - len(same)]
    names = {path.stem for (path, _), is_same in zip(both[0].files, same, strict=True) if is_same}
    assert names == {"2", "after", "four", "png"}
    whole = (place / "3.jpg").read_bytes()
    for content, message in (
        (whole[: len(whole) // 2], "is no image"),
        (whole[:300] + b"\xff\xd9", "is no image"), (b"\xff\xd8 nothing\xff\xd9", "is no image"),
        (b"", "is no image: cannot identify"),
    ):  # fmt: skip
        (place / "3.jpg").write_bytes(content)
        with pytest.raises(ValueError, match=rf"3\.jpg' {message}"):
            everything(both[0])
    (place / "3.jpg").unlink()
    with pytest.raises(ValueError, match=r"is no image: .*No such file"):
        everything(both[0])
    with pytest.raises(ValueError, match=re.escape("decoder must be auto or pillow, got 'mine'")):
        ImageFolder(graph, tmp_path, decoder="mine", least=1)
    for threads in (0, -1, 1.5):
        with pytest.raises(ValueError, match=f"threads must be a number from 1 on, got {threads}"):
            ImageFolder(graph, tmp_path, least=1, threads=threads)  # type: ignore[arg-type]


def many(path: Path, count: int, side: int) -> list[Path]:
    image = path / "one.jpg"
    picture(np.random.default_rng(0), side, side).save(image, quality=95)
    return [image] * count


def test_who_is_interrupted_does_not_wait_for_the_rest(tmp_path: Path) -> None:
    """And its memory is its own again when the threads are through with it."""
    reader = jpeg_reader.Reader((8, 8), np.zeros((3, 256), "float32"), 1)
    paths = many(tmp_path, 400, 1500)
    images = np.full((len(paths), 3, 8, 8), np.nan, "float32")
    job = reader.begin(jpeg_reader.Job(paths, draws_of(0, 0, range(400)), list(images)), "none")

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    began = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            reader.end(job)
    finally:
        signal.signal(signal.SIGALRM, before)
    reader.drop(job)
    took, done = time.monotonic() - began, int(np.isfinite(images[:, 0, 0, 0]).sum())
    assert done < 200, f"{done} in {took} s"
    images[...] = np.nan
    time.sleep(0.1)
    assert np.isnan(images).all()
    # The threads go on with what is asked for next, and end with it on its way.
    job = reader.begin(
        jpeg_reader.Job(paths[:3], draws_of(0, 0, range(3)), list(images[:3])), "crop"
    )
    assert reader.end(job) == []
    assert (images[:3] == 0).all()
    reader.begin(jpeg_reader.Job(paths, draws_of(0, 0, range(400)), list(images)), "none")
    del reader
    gc.collect()


def test_a_child_of_fork_has_threads_of_its_own(graph: TrainingGraph, folder: Path) -> None:
    data = ImageFolder(graph, folder, 1, threads=2)
    data.batch(0)
    want = data.batch(1)["x"].copy()
    child = os.fork()
    if not child:
        is_same = False
        try:
            is_same = bool((data.batch(1)["x"] == want).all())
        finally:
            os._exit(0 if is_same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(data.batch(1)["x"], want)


def test_without_a_compiler(folder: Path) -> None:
    """Pillow reads all, and the reason is told."""
    done = run_code(
        "import relay_wgrad; relay_wgrad.register()\n"
        "from relay_wgrad.frontend import from_onnx\n"
        "from relay_wgrad.training import jpeg_reader\n"
        "from relay_wgrad.training.images import ImageFolder\n"
        "from tests.support.training_models import residual_net\n"
        f"data = ImageFolder(from_onnx(residual_net(blocks=0, size={SIDE})), {str(folder)!r})\n"
        "print(data.notes, data.batch(0)['x'].shape, jpeg_reader.described())",
        env={"CXX": "/nowhere/g++"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"{folder}: JPEGs are read by Pillow: a C++17 compiler: CXX=" in done.stdout
    assert "(4, 3, 24, 24) Pillow alone: a C++17 compiler" in done.stdout
