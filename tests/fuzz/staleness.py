"""What a module holds is changed after its step was compiled: the step beside the module.

    python -m tests.fuzz.staleness --minutes 30

A case is a layer of `stale_cases` between two others, one to three of its changes, and a kind of
call, made after each change to a `TrainingStep` and to PyTorch's twin, to which the same was done.
Output, gradients and buffers are those of the twin in float64, and a second call of the same kind
compiles nothing.  A case that PyTorch runs itself, which a warning says, counts as refused.

    list/batch 0,2
"""

from __future__ import annotations

import copy
import pickle
import random
import sys
import warnings
from typing import Any

from .harness import REFUSED, Generator, main

CALLS = ("same", "same", "batch", "both", "eval", "no_grad", "deepcopy", "pickle", "load", "inputs")
BOUND = 1e-9


def case(seed: int, index: int) -> str:
    from tests.support.torch.stale_cases import CASES

    rng = random.Random(f"staleness {seed} {index}")
    name = rng.choice(list(CASES))
    count = len(CASES[name].changes)
    changes = [rng.randrange(count) for _ in range(rng.choice((1, 2, 2, 3)))]
    return f"{name}/{rng.choice(CALLS)} {','.join(map(str, changes))}"


def labels(line: str) -> dict[str, str]:
    name, _, rest = line.partition("/")
    return {"holds": name, "call": rest.partition(" ")[0]}


def check(line: str) -> str | None:
    import torch

    import relay_wgrad
    from tests.support.torch import holders, stale_cases

    relay_wgrad.register()
    torch.manual_seed(0)
    name, _, rest = line.partition("/")
    call, _, numbers = rest.partition(" ")
    found = stale_cases.CASES[name]
    changes = [list(found.changes.items())[int(i)] for i in numbers.split(",")]
    holders.SEEN.clear()
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            wrong = _compared(found, changes, call)
    finally:
        found.undo()
    if any(type(x) is not torch.Tensor for x in holders.SEEN):
        return f"a hook has kept {type(holders.SEEN[0]).__name__}s"
    own = [str(w.message) for w in said if "PyTorch runs this" in str(w.message)]
    return wrong or (f"{REFUSED}fell back: {own[0].partition(': ')[2]}" if own else None)


def _compared(found: Any, changes: list[Any], call: str) -> str | None:
    import torch

    import relay_wgrad.torch as rt
    from tests.support.torch.holders import Whole

    twin = Whole(found.make()).double()
    x = torch.randn(4, 5, dtype=torch.float64)
    try:
        step = rt.TrainingStep(copy.deepcopy(twin), x)
    except ValueError as error:
        return f"{REFUSED}{error}"
    for text, change in changes:
        for module in (step._wrapped, twin):
            try:
                change(module.layer)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError) as e:
                return f"{REFUSED}no such change: {type(e).__name__} in {text}"
        if call in ("deepcopy", "pickle"):
            try:
                step, twin = _copied(step, call), _copied(twin, call)
            except (AttributeError, TypeError, RuntimeError, pickle.PicklingError) as error:
                return f"{REFUSED}no such call: {type(error).__name__} in {call}"
        _prepare(step, twin, call)
        wrong = _called(step, twin, x, call)
        if wrong:
            return wrong if wrong.startswith(REFUSED) else f"{wrong} after {text}"
        before = step._programs.made.total()
        wrong = _called(step, twin, x, call)
        if wrong or step._programs.made.total() != before:
            return f"{wrong or 'compiled'} again after {text}"
    return None


def _copied(module: Any, call: str) -> Any:
    return copy.deepcopy(module) if call == "deepcopy" else pickle.loads(pickle.dumps(module))


def _prepare(step: Any, twin: Any, call: str) -> None:
    if call == "load":
        state = {k: v * 1.25 if v.is_floating_point() else v for k, v in twin.state_dict().items()}
        twin.load_state_dict(state)
        step.load_state_dict(state)
    if call == "eval":
        twin.eval()
        step.eval()


def _called(step: Any, twin: Any, x: Any, call: str) -> str | None:
    """What differs, or ""."""
    import torch

    batches = {"batch": [x[:3]], "both": [x, x[:3], x]}.get(call, [x])
    results: list[list[Any]] = []
    for module in (twin, step):
        module.zero_grad()
        given = [b.detach().clone().requires_grad_(call == "inputs") for b in batches]
        try:
            with torch.set_grad_enabled(call != "no_grad"):
                outputs = [module(b) for b in given]
            for out in outputs:
                if out.requires_grad:
                    (out * out).sum().backward()
        except Exception as error:
            if module is twin:
                return f"{REFUSED}PyTorch's own: {type(error).__name__}"
            if isinstance(error, (ValueError, TypeError)):
                return f"{REFUSED}{' '.join(str(error).split())}"
            raise
        results.append([*outputs, *(b.grad for b in given), *(p.grad for p in module.parameters())])
        results[-1] += module.buffers()
    for i, (want, got) in enumerate(zip(*results, strict=True)):
        if (want is None) != (got is None):
            return f"result {i} is {got}, PyTorch's {want}"
        if want is not None and not _is_close(got, want):
            far, size = float((got - want).double().norm()), float(want.double().norm())
            return f"result {i} is off by {far:.2g} of {size:.2g}"
    return None


def _is_close(got: Any, want: Any) -> bool:
    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    if got.dtype.is_floating_point:
        return bool((got - want).norm() <= BOUND * (1 + want.norm()))
    return bool((got == want).all())


GENERATOR = Generator(
    "staleness", "a TrainingStep whose module is changed later, against the module in float64",
    case=case, labels=labels, check=check, timeout=200, recycle=60,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
