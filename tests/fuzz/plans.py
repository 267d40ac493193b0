"""Plans of memory, and orders of kernels, that change no bit.

A case is a function of random operators: element-wise ones, concatenations, splits, sums and views,
of which some results are returned, some twice.  Its plan is run on memory whose pages know who
wrote them last; then the function is compiled for the CPU with and without order and places, and
the results must be the same bits.
"""

from __future__ import annotations

import random
import sys

from .harness import Generator, main


def case(seed: int, index: int) -> str:
    rng = random.Random(f"plans {seed} {index}")
    return f"seed={rng.randrange(1 << 30)} ops={rng.choice((4, 8, 14, 24, 40))}"


def labels(line: str) -> dict[str, str]:
    return dict([line.split()[1].split("=")])


def check(line: str) -> str | None:
    import tvm

    from relay_wgrad.pipeline import cpu, fused_kernels
    from relay_wgrad.pipeline.arena import Arena
    from relay_wgrad.pipeline.kernel_order import Order
    from relay_wgrad.pipeline.last_passes import with_arena
    from tests.support.memory_plans import Machine, network, planned, run, same, storages

    seed, ops = (int(part.split("=")[1]) for part in line.split())
    module = network(seed, ops)
    with tvm.target.Target("llvm"):
        fused = tvm.transform.Sequential(fused_kernels.fused_kernels())(module)
    for given in (module, fused):
        before = planned(given)
        after = Arena()(before)
        (flat,), (joined, picked, _) = Machine(after["main"], after).results
        if not (flat[1] and joined[1] and picked[1]):
            return "a result lies in the function's memory"
        sizes = [sum(storages(mod["main"])) for mod in (before, after)]
        if sizes[1] > sizes[0]:
            return f"the plan takes {sizes[1]} bytes, where it took {sizes[0]}"
    ours = run(module)
    passes = fused_kernels.fused_kernels
    try:
        cpu.with_arena = list
        cpu.fused_kernels = lambda: [p for p in passes() if p.info.name != Order().info.name]
        upstream = run(module)
    finally:
        cpu.with_arena, cpu.fused_kernels = with_arena, passes
    return None if same(ours, upstream) else "other bits than with TVM's plan"


GENERATOR = Generator(
    "plans",
    "places and orders of intermediate results, against TVM's plan and order",
    case=case,
    labels=labels,
    check=check,
    timeout=120.0,
)

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
