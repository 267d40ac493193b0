"""What became of the graphs that `torch.compile` gave, for whoever asks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass
class CompiledGraph:
    """What became of one graph of AOTAutograd.

    name : "graph 3, backward".  sizes : for how many kinds of call it was compiled.
    convolutions : its convolutions and their gradients, by whose kernel, "conv2d cudnn.fprop"; of
        two passes that were compiled as a whole the forward pass names those of both.
    reason : why PyTorch runs it as it is, or "".
    captured : whether its last call was ready to be one CUDA graph.
    notes : what else a user should know of it.
    """

    name: str
    sizes: int = 0
    convolutions: list[str] = field(default_factory=list)
    reason: str = ""
    captured: bool = False
    notes: list[str] = field(default_factory=list)


_graphs: deque[CompiledGraph] = deque(maxlen=1000)


def compiled_graphs() -> list[CompiledGraph]:
    """What became of this process's last graphs, in the order in which they came."""
    return list(_graphs)


def reported(name: str) -> CompiledGraph:
    """A new entry."""
    _graphs.append(CompiledGraph(name))
    return _graphs[-1]
