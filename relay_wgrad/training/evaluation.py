"""Loss and accuracy of parameters on samples that are not trained on.

evaluate = Evaluator(from_onnx("mine.onnx", batch=8, bn="eval"), "cpu")
print(evaluate(trainer.params, data).accuracy)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm.target import Target

from .. import threads
from ..argument_types import check_type, checked_bool
from ..frontend import TrainingGraph
from ..frontend.loss_graph import loss_alone
from ..uncopied import Uncopied
from .compiled import Compiled, Progress, silent
from .devices import compiled_here, place
from .forward_backward import two_parts
from .options import Options
from .origins import options_of
from .processes import Processes, local_device
from .size_cache import BySize
from .step import ADJOINT, precision


class Evaluation(NamedTuple):
    """`loss`: the mean of all samples' losses, of each batch's by its samples; `accuracy`: the part
    of labels that the largest logit names, NaN where there are none; `samples`: how many."""

    loss: float
    accuracy: float
    samples: int


class Evaluator(Uncopied, instead="make another of its graph"):
    """A network's forward part, compiled.

    graph : imported with `bn="eval"`, and without dropout and random inputs; else it evaluates as
        it trains.
    device, dtype, layout, on_gpu, progress : as of `Trainer`.
    distributed : whether several processes, as of a trainer's, each take a part of the batches;
        all get the same evaluation.

    Raises as `Trainer` does.
    """

    def __init__(
        self,
        graph: TrainingGraph,
        device: str | Target = "cpu",
        *,
        dtype: str | None = None,
        layout: str | None = None,
        on_gpu: Options | None = None,
        distributed: bool = False,
        progress: Progress = silent,
    ) -> None:
        if checked_bool("Evaluator: distributed", distributed):
            device = local_device(device)
        self.graph, self.place = graph, place(device, on_gpu)
        self.processes = Processes.join(self.place.name) if distributed else None
        self._dtype = precision(graph, dtype)
        self._layout = self.place.layout if layout is None else layout
        self._of_counts: dict[int, Any] = {}  # programs of the loss of a part of a batch
        self._sized = BySize(graph, self.place, self._compiled, progress)
        if self._sized.is_one:
            self._sized.for_batch()

    @property
    def compiled(self) -> Compiled:
        """What was used last.  Raises ValueError where that is of a batch that has not come."""
        return self._sized.last

    def _compiled(self, graph: TrainingGraph, progress: Progress) -> Compiled:
        progress("the network for evaluation")
        how: dict[str, Any] = {
            "wrt": (), "dtype": self._dtype, "layout": self._layout,
            "raise_norms": self.place.norms, "wide_weight_gradients": self.place.wide,
            "blocks": self.place.blocks,
        }  # fmt: skip
        options = {"what": "an evaluation", **how, "graph": options_of(graph)}
        origin = self.place.recall(graph.module, options)
        if (found := origin.found(progress)) is not None:
            return found[0]
        with self.place.memory_errors():
            compiled = self.place.compile(two_parts(graph, **how).module, progress)
        origin.keep(compiled, {})
        return compiled

    def __call__(self, params: Mapping[str, Any], data: Any) -> Evaluation:
        """Of parameters by name, a trainer's or arrays, on all samples of `Data` or `ImageFolder`.

        Where the graph's batch is open the last one is short.  A fixed one is filled up, and the
        loss of those that count is computed of their logits by a second program; a loss of the
        model's own is of whole batches, and so are `samples` then, where there is one.

        Raises ValueError for a parameter that is missing or of another shape, TypeError for
        parameters that are no dict and data that are no samples.
        """
        check_type("Evaluator: params", params, Mapping, "a dict of tensors by name")
        if not hasattr(data, "part"):
            raise TypeError(f"Evaluator: data must be Data or the like, got {type(data).__name__}")
        given = []
        for name, initial in self.graph.params.items():
            if name not in params:
                raise ValueError(f"{self.graph.name}: no value for parameter {name!r}")
            value = params[name]
            if tuple(value.shape) != initial.shape:
                raise ValueError(
                    f"{self.graph.name}: parameter {name!r} is {list(initial.shape)}, got"
                    f" {list(value.shape)}"
                )
            given.append(self._tensor(value))
        labels = next((s for s in self.graph.inputs if s.kind == "labels"), None)
        losses: list[float] = []
        weights: list[int] = []
        right = asked = 0
        rank, step = 0, 1
        if self.processes is not None:
            rank, step = self.processes.rank, self.processes.world
        for index in range(rank, data.parts, step):
            batch, count = data.part(index)
            values = [self._tensor(v) for v in self.graph.batch_values(batch)]
            vm = self._sized.for_batch(batch).vm
            with self.place.memory_errors():
                outputs = threads.run(vm[ADJOINT], *values, *given)
            is_whole = self.graph.is_open or count == data.size
            if is_whole or self.graph.loss is not None or index == 0:
                loss = outputs[0] if is_whole else self._of_some(outputs, batch, count)
                losses.append(float(loss.numpy()) * count)
                weights.append(count)
            if labels is not None and self.graph.classes:
                wanted = batch[labels.name][:count]
                found = outputs[1].numpy()[:count].argmax(1).reshape(wanted.shape)
                counts = np.ones_like(wanted, bool)
                if labels.ignored is not None:
                    counts = wanted != labels.ignored
                right += int(((found == wanted) & counts).sum())
                asked += int(counts.sum())
        sums = [math.fsum(losses), sum(weights), right, asked]
        if self.processes is not None:
            sums = self.processes.sum(sums)
        loss, samples, hits, labelled = sums
        return Evaluation(loss / samples, hits / labelled if labelled else math.nan, int(samples))

    def _of_some(self, outputs: Any, batch: Mapping[str, Any], count: int) -> Any:
        """The loss of a batch's first samples; of all, where it is the model's own."""
        if self.graph.loss is None:
            return outputs[0]
        logits = outputs[1].numpy()[:count].astype(self.graph.dtype)
        target = next(s.name for s in self.graph.inputs if s.kind in ("labels", "target"))
        if count not in self._of_counts:
            module = loss_alone(self.graph.loss, logits.shape, self.graph.dtype)
            self._of_counts[count] = compiled_here(module, "main")
        values = (logits, np.asarray(batch[target])[:count])
        return threads.run(self._of_counts[count]["main"], *map(tvm.runtime.tensor, values))

    def _tensor(self, value: Any) -> Any:
        array = value.numpy() if hasattr(value, "numpy") else value
        return tvm.runtime.tensor(array, self.place.device)
