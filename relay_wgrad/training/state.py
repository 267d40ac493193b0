"""A trainer's state as a safetensors file: parameters, running statistics, optimizer.

    state.save(trainer, "state.safetensors")
    state.restore(trainer, "state.safetensors")  # training goes on as if never interrupted

Tensors are `param.<name>` and `optimizer.<index>`; the metadata has the rest as text.  Needs the
extra `safetensors`.

A training of other parameters (`frontend.trainable`) goes on from it too: what was trained before
keeps its part of the optimizer's state, what was not starts with none.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import output
from ..extras import extra_module
from .arrays_file import printable
from .loss_scale import usable
from .optim import counts_for_all, initial_state, owners, sums_in_state
from .update import Update, update_of

if TYPE_CHECKING:
    from ..frontend import TrainingGraph
    from .trainer import Trainer

FORMAT = "relay-wgrad 1"
_PARAM, _OPTIMIZER = "param.", "optimizer."
# Its options, and the names of what is trained, as JSON; files from before these have none.
_UPDATE, _TRAINED = "update", "trained"
_COUNT = re.compile(r"[0-9]{1,18}")
_KEYS = ("format", "model", "optimizer", "lr", "steps", "loss_scale", "good_steps", "skipped")


def _safetensors(module: str) -> Any:
    return extra_module(module, "saving and resuming need safetensors", "safetensors")


def check_safetensors() -> None:
    """Raises ModuleNotFoundError where the extra is missing."""
    _safetensors("safetensors")


def _check_trainer(what: str, trainer: Any) -> None:
    if not hasattr(trainer, "progress"):
        raise TypeError(f"{what}: trainer must be a Trainer, got {type(trainer).__name__}")


def save(trainer: Trainer, path: str | os.PathLike[str]) -> None:
    """Writes the state; an old file stays whole until the new one is complete.

    Of several processes all call it, the first one writes, and all hear of its errors.

    Raises OSError for a path that cannot be written, ModuleNotFoundError without the extra,
    TypeError for what is no trainer.
    """
    _check_trainer("save", trainer)
    if trainer.processes is None:
        _save(trainer, path)
    else:
        trainer.together()
        trainer.processes.by_first(lambda: _save(trainer, path))


def _save(trainer: Trainer, path: str | os.PathLike[str]) -> None:
    tensors = {name: value.numpy() for name, value in _by_name(trainer.params).items()}
    tensors |= {f"{_OPTIMIZER}{i}": value.numpy() for i, value in enumerate(trainer.state)}
    now = trainer.progress()
    numbers = (str(now["steps"]), repr(now["loss_scale"]), str(now["good_steps"]))
    more = {_UPDATE: trainer.update.text(), _TRAINED: json.dumps(trainer.graph.trainable)}
    values = (FORMAT, trainer.graph.name, trainer.optimizer, repr(float(trainer.lr)), *numbers,
              str(now["skipped"]))  # fmt: skip
    write(path, tensors, dict(zip(_KEYS, values, strict=True)) | more)


def write(
    path: str | os.PathLike[str], tensors: Mapping[str, Any], metadata: dict[str, str]
) -> None:
    """Writes a safetensors file as `save` does, with any content.

    Raises OSError for a path that cannot be written, ModuleNotFoundError without the extra.
    """
    save_file = _safetensors("safetensors.numpy").save_file
    # A tensor without axes is not contiguous to safetensors unless it is copied.
    whole = {name: np.ascontiguousarray(v).reshape(v.shape) for name, v in tensors.items()}
    with output.replacing(path) as made:
        try:
            save_file(whole, made, metadata=metadata)
        except _safetensors("safetensors").SafetensorError as error:  # as when the disk is full
            raise OSError(f"{os.fspath(path)!r} cannot be written: {error}") from error


def header(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata of a file that `save` wrote: its optimizer, lr, model, steps.

    Reads the head of the file only.  Raises FileNotFoundError; ValueError for another kind of file,
    and for numbers that no training has.
    """
    with _opened(path) as file:
        found = _metadata(path, file)
    _Progress.parse(path, found)
    return found


def read(path: str | os.PathLike[str]) -> tuple[dict[str, str], dict[str, Any]]:
    """(metadata, tensors) of a file that `save` wrote.

    Raises FileNotFoundError; ValueError for another kind of file.
    """
    with _opened(path) as file:
        found = _metadata(path, file)
        return found, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    safetensors = _safetensors("safetensors")
    if not Path(path).is_file():
        raise FileNotFoundError(f"no state file {os.fspath(path)!r}")
    try:
        with safetensors.safe_open(os.fspath(path), "np") as file:
            yield file
    except safetensors.SafetensorError as error:
        reason = " ".join(str(error).split())  # it may quote the file
        raise ValueError(f"{os.fspath(path)!r} is not a safetensors file: {reason:.200}") from error


def _metadata(path: str | os.PathLike[str], file: Any) -> dict[str, str]:
    found: dict[str, str] = file.metadata() or {}
    missing = [key for key in _KEYS if key not in found]
    if missing:
        raise ValueError(f"{os.fspath(path)!r} is no state of a training: it lacks {missing}")
    if found["format"] != FORMAT:
        raise ValueError(f"{os.fspath(path)!r} is a {found['format']!r:.60}, not a {FORMAT!r}")
    return found


@dataclass(frozen=True)
class _Progress:
    """Where a training stood: what the metadata says, as numbers."""

    steps: int
    good_steps: int
    skipped: int
    loss_scale: float | None
    lr: float

    @staticmethod
    def parse(path: str | os.PathLike[str], found: Mapping[str, str]) -> _Progress:
        """Raises ValueError with file, key and value for what no training can have."""

        def wrong(key: str, expected: str) -> ValueError:
            return ValueError(f"{os.fspath(path)!r}: {key} is {found[key]!r:.60}, not {expected}")

        counts = {}
        for key in ("steps", "good_steps", "skipped"):
            if not _COUNT.fullmatch(found[key]):
                raise wrong(key, "a number of steps")
            counts[key] = int(found[key])
            if counts[key] > counts["steps"]:
                raise wrong(key, f"at most its steps, {found['steps']!r}")
        numbers: dict[str, float] = {}
        for key in ("lr", "loss_scale"):
            if key == "loss_scale" and found[key] == "None":
                continue
            with contextlib.suppress(ValueError):
                numbers[key] = float(found[key])
            if not 0 < numbers.get(key, math.nan) < math.inf:
                raise wrong(key, "a positive number")
        scale = numbers.get("loss_scale")
        if scale is not None and not usable(scale):
            raise wrong("loss_scale", "one that float32 holds")
        return _Progress(**counts, loss_scale=scale, lr=numbers["lr"])


def check(
    path: str | os.PathLike[str],
    graph: TrainingGraph,
    optimizer: str,
    update: Update | None = None,
) -> None:
    """Raises ValueError where `restore` would, before compilation.

    For a state of another optimizer, update or network, or of other parameters where the optimizer
    cannot go on with them, it names what differs, with both values; FileNotFoundError and
    ValueError as `header` does.
    """
    _checked(path, graph, optimizer, Update() if update is None else update, graph.params)


def restore(trainer: Trainer, path: str | os.PathLike[str]) -> None:
    """Puts a saved state in place of the trainer's; its learning rate stays as it is.

    The trainer may train other parameters than were trained: those that were keep their momentum,
    the others start with none.  Adam goes on with fewer only.

    Raises FileNotFoundError; ValueError for a file of another kind, optimizer or network, and for
    values that no training has (negative steps, a loss scale or a tensor that is not finite):
    naming file, key and values; TypeError for what is no trainer.  Then it is unchanged.
    """
    _check_trainer("restore", trainer)
    progress, tensors, own = _checked(
        path, trainer.graph, trainer.optimizer, trainer.update, trainer.params
    )
    trainer.set_state(
        {name: tensors[_PARAM + name] for name in trainer.params},
        own,
        steps=progress.steps,
        skipped=progress.skipped,
        good_steps=progress.good_steps,
        loss_scale=progress.loss_scale,
    )


def _checked(
    path: str | os.PathLike[str],
    graph: TrainingGraph,
    optimizer: str,
    update: Update,
    params: Mapping[str, Any],
) -> tuple[_Progress, dict[str, Any], list[Any]]:
    """What a file has for a network's parameters, and its optimizer's state for what is trained."""
    found, tensors = read(path)
    _same_optimizer(path, found, optimizer, update)
    progress = _Progress.parse(path, found)
    before = replace(graph, trainable=trained_in(path, found) or graph.trainable)
    if unknown := [name for name in before.trainable if name not in params]:
        raise ValueError(
            f"{os.fspath(path)!r} is of {found['model']!r:.60}: it trained {printable(unknown[0])},"
            f" which {graph.name!r} has not"
        )
    state = initial_state(before, optimizer, update)
    wanted = _by_name(params) | {f"{_OPTIMIZER}{i}": v for i, v in enumerate(state)}
    _same_tensors(path, found, tensors, wanted, graph.name)
    # What overflowed is not taken, and overwritten.
    sums = {f"{_OPTIMIZER}{i}" for i in sums_in_state(before, optimizer, update)}
    _finite(path, {name: tensor for name, tensor in tensors.items() if name not in sums})
    each = update.accumulate
    updates = progress.steps // each - progress.skipped
    counted = int(tensors[f"{_OPTIMIZER}0"])  # by each of TVM's optimizers, first in its state
    if counted != updates:
        raise ValueError(
            f"{os.fspath(path)!r}: its {_OPTIMIZER}0 counts {counted} updates, but"
            f" {progress.steps} steps{f' by {each}' if each > 1 else ''} less {progress.skipped}"
            f" skipped are {updates}"
        )
    own = [tensors[f"{_OPTIMIZER}{i}"] for i in range(len(state))]
    if before.trainable != graph.trainable:
        new = [name for name in graph.trainable if name not in before.trainable]
        _may_go_on(path, optimizer, update, progress, new)
        own = _of_others(before, graph, optimizer, update, own, tensors)
    return progress, tensors, own


def trained_in(path: Any, found: Mapping[str, str]) -> tuple[str, ...]:
    """The names of what a state's training trained; () of a file that does not say.

    Raises ValueError for what is no list of names.
    """
    names = None
    with contextlib.suppress(ValueError, RecursionError):
        names = json.loads(found.get(_TRAINED, "[]"))
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{os.fspath(path)!r}: {_TRAINED} is {found[_TRAINED]!r:.60}, not names")
    return tuple(names)


def _may_go_on(
    path: Any, optimizer: str, update: Update, progress: _Progress, new: Sequence[str]
) -> None:
    """Raises ValueError where a training of other parameters, `new` among them, cannot."""
    if new and counts_for_all(optimizer) and progress.steps:
        raise ValueError(
            f"{os.fspath(path)!r} did not train {printable(new[0])}{_more(new)}: {optimizer} counts"
            f" updates for all parameters together, and would take its first moments for those of"
            f" {progress.steps} steps; start a training from the saved parameters (--export)"
            " instead"
        )
    if new and (rest := progress.steps % update.accumulate):
        raise ValueError(
            f"{os.fspath(path)!r} did not train {printable(new[0])}{_more(new)}, and has gradients"
            f" of {rest} of accumulate={update.accumulate} batches without it; save after"
            " a multiple"
        )


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _of_others(
    before: TrainingGraph, graph: TrainingGraph, optimizer: str, update: Update,
    state: Sequence[Any], tensors: Mapping[str, Any],
) -> list[Any]:  # fmt: skip
    """The state for what a graph trains, of that for what was trained before."""

    fresh = initial_state(graph, optimizer, update)
    start = [v if isinstance(v, np.ndarray) else v.numpy() for v in fresh]
    if update.ema is not None:  # an average begins at the parameter as it is
        last = len(start) - len(graph.trainable)
        start[last:] = [tensors[_PARAM + name] for name in graph.trainable]
    found = dict(zip(_places(before, optimizer, update), state, strict=True))
    places = _places(graph, optimizer, update)
    return [found.get(place, value) for place, value in zip(places, start, strict=True)]


def _places(graph: TrainingGraph, optimizer: str, update: Update) -> list[tuple[str, int]]:
    """Of each tensor of an optimizer's state: whose it is, and which of that parameter's."""
    seen: Counter[str] = Counter()
    places = []
    for name in owners(graph, optimizer, update):
        places.append((name, seen[name]))
        seen[name] += 1
    return places


def _by_name(params: Mapping[str, Any]) -> dict[str, Any]:
    return {_PARAM + name: value for name, value in params.items()}


def update_in(path: Any, found: Mapping[str, str]) -> Update:
    """The options of the update that a state was saved with.  Raises ValueError for others."""
    try:
        return update_of(found.get(_UPDATE, "{}"))
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)!r}: {_UPDATE}: {error}") from error


def _same_optimizer(path: Any, found: dict[str, str], optimizer: str, update: Update) -> None:
    saved = update_in(path, found)
    if saved.accumulate != update.accumulate:
        raise ValueError(
            f"{os.fspath(path)!r} was saved with accumulate={saved.accumulate}, not"
            f" {update.accumulate}"
        )
    if (saved.ema is None) != (update.ema is None):  # an average is part of the state
        raise ValueError(
            f"{os.fspath(path)!r} was saved with ema={saved.ema}, not ema={update.ema}"
        )
    if found["optimizer"] != optimizer:
        raise ValueError(
            f"{os.fspath(path)!r} was saved with optimizer={found['optimizer']!r:.60},"
            f" not {optimizer!r}"
        )


def _same_tensors(
    path: Any, found: dict[str, str], tensors: dict[str, Any], wanted: dict[str, Any], name: str
) -> None:
    for tensor in sorted({*wanted, *tensors}):
        here, there = _described(wanted.get(tensor)), _described(tensors.get(tensor))
        if here != there:
            raise ValueError(
                f"{os.fspath(path)!r} is of {found['model']!r:.60}: its {printable(tensor)} is"
                f" {there}, but {name!r} has {here}"
            )


def _finite(path: Any, tensors: dict[str, Any]) -> None:
    for name, value in tensors.items():
        if value.dtype.kind == "f" and not (good := np.isfinite(value)).all():
            index = tuple(np.argwhere(~good)[0].tolist())
            raise ValueError(
                f"{os.fspath(path)!r}: {int((~good).sum())} of {value.size} values of its"
                f" {printable(name)} are not finite: {value[index]} at index {list(index)}"
            )


def _described(value: Any) -> str:
    return "missing" if value is None else f"{value.dtype}{list(value.shape)}"
