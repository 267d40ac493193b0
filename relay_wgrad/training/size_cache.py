"""What is compiled for a number of images: when it first comes, and kept for the last few."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from ..frontend import TrainingGraph
from .compiled import Progress
from .places import Place

T = TypeVar("T")


class BySize(Generic[T]):
    """Something compiled of a graph, by the number of images that it takes.

    make : compiles it, for a graph of that number, or for an open batch where one is for all; what
        the second argument is told is progress.
    progress : where that goes to, with the number.

    The least recently used one goes where there are more than the place keeps (`Place.sizes`).
    """

    def __init__(
        self,
        graph: TrainingGraph,
        place: Place,
        make: Callable[[TrainingGraph, Progress], T],
        progress: Progress,
    ) -> None:
        self._graph, self._place, self._make, self._progress = graph, place, make, progress
        self._made: OrderedDict[int | None, T] = OrderedDict()

    @property
    def is_one(self) -> bool:
        """Whether one is for all batches that the graph takes."""
        return self._place.sizes is None or not self._graph.is_open

    @property
    def sizes(self) -> tuple[int, ...]:
        """Those that there are, the least recently used one first."""
        return tuple(size for size in self._made if size is not None)

    def for_batch(self, batch: Mapping[str, Any] | None = None) -> T:
        """The one for a batch, which is the last one from now on; None: the one for all.

        Raises ValueError for a batch whose number of images is unknown, or none of the graph's.
        """
        images = None if self.is_one else self._images(batch)
        found = self._made.get(images)
        if found is None:
            found = self._made[images] = self._new(images)
            self._bounded()
        self._made.move_to_end(images)
        return found

    @property
    def last(self) -> T:
        """The one that was used last.  Raises ValueError where there is none yet."""
        if not self._made:
            raise ValueError(
                f"{self._graph.name}: its batch is open, and for this device nothing is compiled"
                " before the first batch is there"
            )
        return next(reversed(self._made.values()))

    def _images(self, batch: Mapping[str, Any] | None) -> int:
        images = None if batch is None else self._graph.images(batch)
        if images is None:
            self._graph.batch_values({} if batch is None else batch)  # says what is missing
            raise ValueError(f"{self._graph.name}: no input says how many images there are")
        return images

    def _new(self, images: int | None) -> T:
        if images is None:
            return self._make(self._graph, self._progress)
        text = f" for {images} image{'s' * (images != 1)}"
        made = self._make(self._graph.of_batch(images), lambda words: self._progress(words + text))
        notes = self._place.notes
        notes[:] = dict.fromkeys(notes)  # for another number the same may have been said
        return made

    def _bounded(self) -> None:
        """Lets go of what is too many; its memory may be in use until the device is done."""
        most = self._place.sizes
        if most is None or len(self._made) <= most:
            return
        self._place.wait()
        while len(self._made) > most:
            self._made.popitem(last=False)
        self._place.give_back()
