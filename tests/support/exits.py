"""A process that trains on a GPU, or on `cuda_fake`, and ends: python -m tests.support.exits HOW.

Whatever it holds then: arrays, pinned memory, streams, a graph, a thread that is in a step.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from itertools import repeat

CODES = {"end": 0, "error": 1, "interrupt": 130, "thread": 0, "thread of graphs": 0}


def main(how: str, fake: bool) -> None:
    from tvm.support import nvcc

    import relay_wgrad
    from byoc_cudnn.codegen import direct
    from relay_wgrad.frontend import from_onnx
    from relay_wgrad.training import Trainer
    from relay_wgrad.training.options import Options
    from tests.support.training_models import residual_net

    # A shell's background jobs ignore it, and what they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    relay_wgrad.register()
    options = Options(graph=how != "thread")
    if fake:
        nvcc.compile_cuda = lambda *args, **named: b"no kernel"
        direct.missing = lambda *args: "no kernels of our own"
        options = Options(graph=how != "thread", backends=[], norms=False)
    graph = from_onnx(residual_net(blocks=1), batch=4)
    trainer = Trainer(graph, "cuda", on_gpu=options)
    batch = graph.random_batch(0)
    for _ in range(4):
        trainer.step(batch)
    begun = threading.Event()

    def train() -> None:
        for _ in trainer.train(repeat(batch)):
            begun.set()

    if how == "error":
        raise ValueError("of the user's")
    if how == "interrupt":
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            train()
        except KeyboardInterrupt:
            sys.exit(CODES[how])
    if how.startswith("thread"):
        threading.Thread(target=train, daemon=True).start()
        begun.wait()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] == ["fake"])
