"""Where a model comes from: a path, a ModelProto, or one of the nine that `onnx` ships.

The `onnx` package carries nine real architectures for its own backend tests.  Their weights are
fills (mostly the constant 0.02), so they are architectures rather than trained models; that is
all a gradient needs, once the weights are seeded.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import onnx

from . import file as onnx_file

BUNDLED: dict[str, str] = {
    "resnet50": "light_resnet50.onnx",
    "vgg19": "light_vgg19.onnx",
    "densenet121": "light_densenet121.onnx",
    "inception_v1": "light_inception_v1.onnx",
    "inception_v2": "light_inception_v2.onnx",
    "squeezenet": "light_squeezenet.onnx",
    "shufflenet": "light_shufflenet.onnx",
    "alexnet": "light_bvlc_alexnet.onnx",
    "zfnet512": "light_zfnet512.onnx",
}
"""Name of each model that the `onnx` package ships -> its file in `bundled_folder()`."""


def bundled_folder() -> Path:
    """The folder of the installed `onnx` package that holds the files of `BUNDLED`."""
    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def near(word: str, known: list[str], count: int = 3) -> list[str]:
    """Entries of `known` that resemble `word`, best first, whatever their case."""
    lower = {k.lower(): k for k in known}
    close = difflib.get_close_matches(word.lower(), list(lower), n=count, cutoff=0.6)
    return [lower[c] for c in close]


def load(model: str | os.PathLike[str] | onnx.ModelProto) -> tuple[str, onnx.ModelProto]:
    """(name, model).

    Raises FileNotFoundError for a missing file, ValueError for a name that is not in `BUNDLED`
    (with near alternatives) and for what is not an ONNX model (`file`), TypeError for
    anything else.
    """
    if isinstance(model, onnx.ModelProto):
        name = model.graph.name or "model"
        onnx_file.check(name, model)
        return name, model
    if not isinstance(model, (str, os.PathLike)):
        raise TypeError(f"model: expected a path, a name or a ModelProto, got {type(model)}")
    text = os.fspath(model)
    path = Path(text)
    name = path.stem
    if isinstance(model, str) and text in BUNDLED:
        name, path = text, bundled_folder() / BUNDLED[text]
    elif isinstance(model, str) and not path.exists() and not path.suffix and path.name == text:
        close = near(text, list(BUNDLED))
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise ValueError(
            f"no bundled model {text!r}: {hint}there are {', '.join(BUNDLED)}; "
            "for a file of your own give its path"
        )
    if not path.exists():
        raise FileNotFoundError(f"no ONNX file {text!r}")
    proto = onnx_file.read(path)
    onnx_file.check(repr(text), proto)
    return name, proto
