"""Random small networks for any number of images: one compiled step beside autograd's answers.

    python -m tests.fuzz.open_batch --minutes 60

A case is a chain of steps behind a convolution, from one to four of `open_cases.ALL` (layers,
normalizations, attention, windows as a batch of their own, tokens, borders, interpolation, dropouts
and noise; branches of Python on the number of images; views joined along the batch and parted
again), a loss and a mode.  It is imported once with an open batch and compiled once; loss, all
gradients and running statistics are compared with PyTorch's in float64 for batches of 1, 2, 3, 7
and a number of the case's own, which is also the example's.

A case with a branch may be refused, on import or for one image, which the compiled step itself
must refuse then; any other must be taken.

    train 12 huber(delta=0.5) 5: bn | windows | drop path
"""

from __future__ import annotations

import random
import sys

from .harness import REFUSED, Generator, main

_BOUND = 1e-9


def case(seed: int, index: int) -> str:
    from tests.support.torch.open_cases import BRANCHES, LOSSES, STEPS, VIEWS

    rng = random.Random(f"{seed}/{index}")
    kinds = [rng.choice((STEPS, STEPS, BRANCHES, VIEWS)) for _ in range(rng.choice((1, 2, 3, 4)))]
    steps = [rng.choice(list(kind)) for kind in kinds]
    mode = "train" if rng.random() < 0.8 else "eval"
    words = [mode, str(rng.randrange(1000)), rng.choice(list(LOSSES)), str(rng.randint(1, 12))]
    return f"{' '.join(words)}: {' | '.join(steps)}"


def labels(line: str) -> dict[str, str]:
    head, _, body = line.partition(": ")
    mode, _, loss, count = head.split()
    return {"mode": mode, "loss": loss, "example": count, "op": body.split(" | ")[0]}


def check(line: str) -> str | None:
    import torch

    import relay_wgrad
    from tests.support.torch.open_cases import (
        BATCHES,
        IMAGE,
        WITHOUT_ONE,
        compiled,
        difference,
        network,
        open_graph,
        refusal,
    )  # fmt: skip

    relay_wgrad.register()
    head, _, body = line.partition(": ")
    mode, seed, loss, count = head.split()
    steps = body.split(" | ")
    try:
        network(steps, int(seed), mode == "train")(
            torch.zeros(int(count), *IMAGE, dtype=torch.float64)
        )
    except Exception as error:  # a view of what does not lie so
        return f"{REFUSED}skipped: PyTorch: {type(error).__name__}"
    module = network(steps, int(seed), mode == "train")
    may_refuse = not WITHOUT_ONE.isdisjoint(steps)
    try:
        graph = open_graph(module, loss, int(count))
    except ValueError as error:
        return f"refused: {error}" if may_refuse else f"refused without a branch: {error}"
    step, refused = compiled(graph), ""
    for batch in (*BATCHES, int(count)):
        if batch < graph.limits.least:
            refused = refusal(graph, step, batch)
            if not may_refuse or batch > 1 or not refused:
                return f"{batch}: refused without a branch, or not by the step: {refused!r}"
            continue
        far = difference(module, graph, step, batch, loss)
        if not far <= _BOUND:
            return f"off by {far:.2g} for a batch of {batch}"
    return f"refused: {refused}" if refused else None


GENERATOR = Generator(
    "open_batch", "one compiled step for several batches, against autograd in float64",
    case=case, labels=labels, check=check,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
