"""Attention on a GPU, run and held against float64, and timed beside PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_split import on_device, trace_of
from byoc_cudnn.attention import ATTENTION, AttentionCall
from byoc_cudnn.softmax import Added
from tests.support.attention import LIMITS, computed, joined, operands_of, results_of
from tests.support.batched_products import apart
from tests.support.gpu.norm_runner import load_source

# (width, rows, columns): tokens of one head and image each, of all that a tile ends with.
CASES = {
    "float16": (
        (8, 49, 49), (24, 70, 70), (64, 1, 1), (64, 64, 64), (64, 197, 197), (64, 1000, 1000),
        (64, 5, 300), (64, 130, 7), (80, 197, 197), (128, 63, 63), (128, 257, 257),
    ),
    "bfloat16": ((64, 197, 197), (64, 49, 130)),
}  # fmt: skip
BIASED = (0, 5, 6, 9)  # of the cases
# (images, heads, tokens, width): ViT-S/16's, ViT-B/16's, a window's, those of an image of 512².
TIMED = (
    (64, 6, 197, 64),
    (64, 12, 197, 64),
    (1024, 4, 49, 32),
    (16, 8, 1024, 64),
    (64, 6, 197, 128),
)


def calls(
    cases: Sequence[tuple[int, ...]], dtype: str, sizes: tuple[int, int] = (3, 2),
    biased: Sequence[int] = (),
) -> list[AttentionCall]:  # fmt: skip
    """Both directions of each case, with symbols; some with a bias of pairs and its gradient."""
    found = []
    for i, (width, rows, columns) in enumerate(cases):
        forward, backward = joined(dtype, width, rows, columns, sizes, width**-0.5)
        count = sizes[1] * rows
        bias = (Added("float32", ((1, count, columns),), count * columns),) if i in biased else ()
        forward = replace(forward, symbol=f"f{i}", added=bias)
        found += [forward, replace(backward, symbol=f"b{i}", added=bias, wide=bool(bias))]
    return found


class Tensors:
    """Random tensors of an attention and its gradient; what is written is NaN before."""

    def __init__(self, call: AttentionCall, seed: int = 0) -> None:
        self.generator, self.kind = (
            torch.Generator("cuda").manual_seed(seed),
            getattr(torch, call.dtype),
        )
        heads = int(np.prod(call.sizes))
        one, rows = heads * int(call.width), heads * call.rows
        if call.results == (0, 0, 0):
            self.given = [self.random(3 * one * call.rows)] * 3
            self.made = [self.nan(3 * one * call.rows)]
        else:
            lines = (call.rows, call.columns, call.columns)
            self.given = [self.random(one * n) for n in lines]
            self.made = [self.nan(one * n) for n in lines]
        self.out, self.dout = self.nan(one * call.rows), self.random(one * call.rows)
        self.logs, self.inner = (
            torch.full((rows,), torch.nan, device="cuda") for _ in range(2)
        )  # fmt: skip

        self.added = [
            torch.randn(a.extent, device="cuda", generator=self.generator) for a in call.added
        ]
        slopes = rows * call.columns if call.wide else 0
        self.wide = [torch.full((slopes,), torch.nan, device="cuda")] if call.wide else []

    def random(self, count: int) -> torch.Tensor:
        return torch.randn(count, device="cuda", generator=self.generator).to(self.kind)

    def nan(self, count: int) -> torch.Tensor:
        return torch.full((count,), torch.nan, device="cuda", dtype=self.kind)

    def run(self, forward: Any, backward: Any) -> None:
        forward(*self.given, *self.added, self.out, self.logs)
        read = (*self.given, self.out, self.logs, self.dout, *self.added)
        backward(*read, *self.made, *self.wide, self.inner)


def wrong(folder: Path, dtype: str) -> list[str]:
    """What is wrong of all calls, in words."""
    made = calls(CASES[dtype], dtype, biased=BIASED)
    functions = load_source(ATTENTION.generate, ATTENTION.inputs, made, folder)
    lines = []
    for forward, backward in zip(made[::2], made[1::2], strict=True):
        twice = []
        for _ in range(2):
            t = Tensors(backward)
            t.run(functions[forward.symbol], functions[backward.symbol])
            twice.append([x.cpu() for x in (t.out, t.logs, *t.made, *t.wide)])
        bits = [[x.view(torch.uint8) for x in one] for one in twice]
        if not all(torch.equal(a, b) for a, b in zip(*bits, strict=True)):
            lines.append(f"{backward.problem}: two runs differ")
        lines += far(forward, backward, t)
    return lines


def far(forward: AttentionCall, backward: AttentionCall, t: Tensors) -> Iterator[str]:
    """What is further from float64 than roundings."""
    limit = LIMITS[forward.dtype]
    out, logs, dout, *made = (
        x.double().cpu().numpy() for x in (t.out, t.logs, t.dout, *t.made)
    )  # fmt: skip
    given = [x.double().cpu().numpy() for x in t.given]
    added = [x.double().cpu().numpy() for x in t.added]
    want = computed(forward, operands_of(forward, [*given, *added]))
    got = {"out": results_of(forward, [out])["out"], "logs": logs}
    want["logs"] = want["logs"].reshape(-1)
    of_gradients = computed(backward, operands_of(backward, [*given, out, logs, dout, *added]))
    got |= results_of(backward, made)
    if t.wide:
        got["wide"] = t.wide[0].double().cpu().numpy()
        of_gradients["wide"] = of_gradients["wide"].reshape(-1)
    least = 0.05 * np.linalg.norm(of_gradients["dv"])
    for name, matrices in got.items():
        exact = (want | of_gradients)[name]
        norm = np.linalg.norm(exact)
        off = apart(matrices, exact) * norm / max(norm, least if name[0] == "d" else 0)
        if not off < 2 * limit:
            yield f"{forward.problem}: {name} is {off:.1e} off, at most {2 * limit:.1e}"


def times(folder: Path, dtype: str = "float16") -> Iterator[str]:
    """Microseconds of each kernel, and of PyTorch's, for tensors as a step has them."""
    for i, (images, heads, tokens, width) in enumerate(TIMED):
        made = calls([(width, tokens, tokens)], dtype, (images, heads))
        functions = load_source(ATTENTION.generate, ATTENTION.inputs, made, folder / str(i))
        t = Tensors(made[1])
        ours = partial(t.run, functions["f0"], functions["b0"])
        found, in_all = microseconds(ours), [_in_all(ours)]
        qkv = t.given[0].view(images, tokens, 3, heads, width)
        q, k, v = (x.detach().requires_grad_() for x in qkv.permute(2, 0, 3, 1, 4).unbind(0))
        dout = t.dout.view(images, tokens, heads, width).transpose(1, 2)

        def theirs() -> None:
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v)  # noqa: B023
            torch.autograd.grad(out, (q, k, v), dout)  # noqa: B023

        other = microseconds(theirs)
        in_all.append(_in_all(theirs))
        flops = 4 * images * heads * tokens**2 * width
        yield f"{images} images, {heads} heads, {tokens} tokens of {width}, {dtype}:"
        yield from (
            f"  ours {us:8.1f} us  {name}" + _rate(name, us, flops) for name, us in found.items()
        )
        yield f"  ours {in_all[0]:8.1f} us in all; PyTorch {in_all[1]:8.1f}"
        yield from (f"  PyTorch {us:8.1f} us  {name[:90]}" for name, us in other.items())


def _rate(name: str, us: float, flops: float) -> str:
    """TFLOP/s of a kernel by its name: two products forward, and backward three or four."""
    products = {"forward": 2, "rows": 3, "columns": 4}
    count = next((n for word, n in products.items() if word in name), 0)
    return f", {count / 2 * flops / us / 1e6:.0f} TFLOP/s"


def _in_all(run: Callable[[], None], times: int = 50) -> float:
    """Microseconds of a run among others: kernels begin before the last one has ended."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    run()
    begin.record()
    for _ in range(times):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / times


def microseconds(run: Callable[[], None], times: int = 20) -> dict[str, float]:
    """Of each kernel, the mean."""

    def often() -> None:
        for _ in range(times):
            run()

    found: dict[str, float] = {}
    for event in on_device(trace_of(often)):
        name = str(event["name"]).replace("(anonymous namespace)::", "")
        found[name] = found.get(name, 0) + event["dur"] / times
    return dict(sorted(found.items(), key=lambda item: -item[1]))
