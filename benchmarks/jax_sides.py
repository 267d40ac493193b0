"""The rows of `benchmarks gpu jax`, and a side: JAX's programs, this package's in them, PyTorch's.

A process of its own (`benchmarks.child.Worker`) is asked to `begin`, to `build` a row, `time` it,
write its `results`, and, of PyTorch's, to `compare` a side's with its own in float64.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from benchmarks.runner import Row

_SECONDS, _MOST = 0.25, 200  # of calls that are timed together
_FEW = 20  # calls that the device's queue has room for
Arrays = dict[str, np.ndarray]


class Layers(NamedTuple):
    """Convolutions one after another, in PyTorch's arguments and canonical shapes.

    weight : of one layer; of a transposed convolution as PyTorch has it, with the inputs first.
    last : channels last.
    """

    what: str
    data: tuple[int, ...]
    weight: tuple[int, ...]
    dtype: str
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    extra: int = 0  # output_padding
    is_transposed: bool = False
    layers: int = 1
    last: bool = False


CONVOLUTIONS = {
    "depthwise2d": Layers(
        "256 channels, 28x28, 5x5, batch 32, bf16",
        (32, 256, 28, 28), (256, 1, 5, 5), "bfloat16", padding=2, groups=256, last=True,
    ),
    "depthwise1d": Layers(
        "12 layers, 512 channels, 1024 long, 5 taps, batch 32, f32",
        (32, 512, 1024), (512, 1, 5), "float32", padding=2, groups=512, layers=12,
    ),
    "dilated1d": Layers(
        "3 of them, dilation 4",
        (32, 512, 1024), (512, 1, 5), "float32", padding=8, dilation=4, groups=512, layers=3,
    ),
    "grouped2d": Layers(
        "32 groups of 8 channels, 56x56, batch 32, bf16",
        (32, 256, 56, 56), (256, 8, 3, 3), "bfloat16", padding=1, groups=32, last=True,
    ),
    "transposed3d": Layers(
        "64 to 1 channels, 64x64x32, 3x3x3, stride 2, batch 2, bf16",
        (2, 64, 64, 64, 32), (64, 1, 3, 3, 3), "bfloat16", stride=2, padding=1, extra=1,
        is_transposed=True,
    ),
    "dense2d": Layers(
        "128 channels, 28x28, 3x3, batch 32, bf16",
        (32, 128, 28, 28), (128, 128, 3, 3), "bfloat16", padding=1, last=True,
    ),
    "transposed1d": Layers(
        "512 to 1 channels, 256 long, 1024 taps, stride 256, batch 8, f32",
        (8, 512, 256), (512, 1, 1024), "float32", stride=256, is_transposed=True,
    ),
}  # fmt: skip


class Network(NamedTuple):
    """One of `tests.support.jax.networks`, n samples of a size."""

    what: str
    dtype: str
    n: int
    size: int
    sizes: dict[str, int]


NETWORKS = {
    "resnet18": Network(
        "flax's ResNet-18, batch 64 of 224x224, bf16", "bfloat16", 64, 224, {"width": 64}
    ),
    "wavenet": Network(
        "a WaveNet of flax's linen, 128 channels, 8 dilations, batch 8 of 4096, f32",
        "float32", 8, 4096, {"width": 128, "layers": 8},
    ),
    "unet": Network(
        "equinox's U-Net, 32 to 256 channels, batch 16 of 256x256, f32",
        "float32", 16, 256, {"width": 32, "depth": 3},
    ),
}  # fmt: skip


class Program(Protocol):
    """A row of a side, built: a call enqueues it, `wait` waits for all that are."""

    def call(self) -> None: ...
    def wait(self) -> float: ...
    def results(self) -> Arrays: ...


def operands(row: Layers) -> tuple[np.ndarray, list[np.ndarray]]:
    """Data, and a weight of each layer, of which a result's elements are as large as the data's."""
    rng = np.random.default_rng(0)
    terms = math.prod(row.weight[2:]) * row.weight[0 if row.is_transposed else 1]
    if row.is_transposed:
        terms /= row.stride ** (len(row.data) - 2)
    x = rng.standard_normal(row.data, dtype="float32")
    return x, [
        rng.standard_normal(row.weight, dtype="float32") / np.float32(math.sqrt(terms))
        for _ in range(row.layers)
    ]


# ---- JAX -----------------------------------------------------------------------------------------


class OfJax:
    """A value and its gradients, as `jax.jit` has them."""

    def __init__(self, row: Layers, is_ours: bool) -> None:
        import jax
        from jax import lax
        from jax import numpy as jnp

        import relay_wgrad.jax as rj

        conv = rj.conv_general_dilated if is_ours else lax.conv_general_dilated
        self._row, self._jax, rank = row, jax, len(row.data) - 2
        pixels = "DHW"[-rank:]
        numbers = (
            (f"N{pixels}C", f"{pixels}IO", f"N{pixels}C")
            if row.last
            else (f"NC{pixels}", f"OI{pixels}", f"NC{pixels}")
        )
        strides, dilation = (row.stride,) * rank, (row.dilation,) * rank
        reach = [row.dilation * (taps - 1) for taps in row.weight[2:]]
        before = [end - row.padding if row.is_transposed else row.padding for end in reach]
        pads = [(least, least + row.extra) for least in before]

        def loss(x: Any, weights: list[Any]) -> Any:
            for w in weights:
                x = conv(
                    x, w, (1,) * rank if row.is_transposed else strides, pads,
                    lhs_dilation=strides if row.is_transposed else None, rhs_dilation=dilation,
                    dimension_numbers=numbers, feature_group_count=row.groups,
                )  # fmt: skip
            return jnp.mean(jnp.square(x.astype("float32")))

        x, weights = operands(row)
        to = [jnp.asarray(self._there(x, True), row.dtype)]
        to += [jnp.asarray(self._there(self._turned(w), False), row.dtype) for w in weights]
        self._given = (to[0], to[1:])
        self._step = jax.jit(jax.value_and_grad(loss, (0, 1)))
        self._made: Any = None

    def _turned(self, w: np.ndarray) -> np.ndarray:
        """A transposed convolution's weight as that of a convolution of dilated data, or back."""
        if not self._row.is_transposed:
            return w
        return np.flip(w.swapaxes(0, 1), tuple(range(2, w.ndim)))

    def _there(self, a: np.ndarray, is_data: bool) -> np.ndarray:
        if not self._row.last:
            return a
        return np.moveaxis(a, 1, -1) if is_data else np.moveaxis(a, (0, 1), (-1, -2))

    def _back(self, a: np.ndarray, is_data: bool) -> np.ndarray:
        if not self._row.last:
            return a
        return np.moveaxis(a, -1, 1) if is_data else np.moveaxis(a, (-1, -2), (0, 1))

    def call(self) -> None:
        self._made = self._step(*self._given)

    def wait(self) -> float:
        return float(self._jax.block_until_ready(self._made)[0])

    def results(self) -> Arrays:
        _, (data, weights) = self._made
        wide = [np.asarray(a).astype("float32") for a in (data, *weights)]
        turned = [self._turned(self._back(w, False)) for w in wide[1:]]
        return {"data": self._back(wide[0], True)} | {f"w{i}": w for i, w in enumerate(turned)}


class Training:
    """Steps of a network, one batch over and over."""

    def __init__(self, name: str, network: Network, is_ours: bool) -> None:
        import jax

        import relay_wgrad.jax as rj
        from tests.support.jax.networks import NETWORKS as MADE
        from tests.support.jax.networks import batches

        dtype = jax.numpy.dtype(network.dtype)
        self._jax, self._loss = jax, None
        (self._batch,) = batches(name, 1, network.n, network.size, dtype)
        around = rj.optimize if is_ours else (lambda function: function)
        self._step = MADE[name](around, False, dtype, **network.sizes)

    def call(self) -> None:
        self._loss = self._step(*self._batch)

    def wait(self) -> float:
        return float(self._jax.block_until_ready(self._loss))

    def results(self) -> Arrays:
        return {}


# ---- PyTorch -------------------------------------------------------------------------------------


class OfTorch:
    def __init__(self, row: Layers) -> None:
        import torch

        self._torch, self._row = torch, row
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = True
        self._given = self._operands(row.dtype, row.last)
        self._made: Any = None

    def _operands(self, dtype: str, last: bool) -> list[Any]:
        x, weights = operands(self._row)
        form = {2: "channels_last", 3: "channels_last_3d"}.get(x.ndim - 2)
        made = []
        for a in (x, *weights):
            t = self._torch.from_numpy(a).to(self._device)
            # What the dtype of the row cannot hold is not in the float64 ones either.
            t = t.to(getattr(self._torch, self._row.dtype)).to(getattr(self._torch, dtype))
            if last and form:
                t = t.contiguous(memory_format=getattr(self._torch, form))
            made.append(t.requires_grad_())
        return made

    def _computed(self, given: list[Any]) -> Any:
        row, torch = self._row, self._torch
        x, *weights = given
        rank = len(row.data) - 2
        for w in weights:
            if row.is_transposed:
                conv = getattr(torch.nn.functional, f"conv_transpose{rank}d")
                x = conv(x, w, None, row.stride, row.padding, row.extra, row.groups, row.dilation)
            else:
                conv = getattr(torch.nn.functional, f"conv{rank}d")
                x = conv(x, w, None, row.stride, row.padding, row.dilation, row.groups)
        wide = x.double() if x.dtype == torch.float64 else x.float()
        loss = wide.square().mean()
        return loss, torch.autograd.grad(loss, given)

    def call(self) -> None:
        self._made = self._computed(self._given)

    def wait(self) -> float:
        if self._device == "cuda":
            self._torch.cuda.synchronize()
        return float(self._made[0].detach())

    def results(self) -> Arrays:
        names = ["data", *(f"w{i}" for i in range(self._row.layers))]
        grads = self._made[1]
        return {n: g.float().cpu().numpy() for n, g in zip(names, grads, strict=True)}

    def compared(self, path: str) -> Row:
        """How far a side's gradients are from those in float64, the furthest of them."""
        exact = self._computed(self._operands("float64", False))[1]
        with np.load(path) as found:
            names = ["data", *(f"w{i}" for i in range(self._row.layers))]
            far = []
            for name, want in zip(names, exact, strict=True):
                got = self._torch.from_numpy(found[name]).to(want)
                far.append(float((got - want).norm() / want.norm()))
        return {"error": max(far), "data_error": far[0]}


# ---- the process ---------------------------------------------------------------------------------


class Answers:
    """What is asked of this process."""

    def __init__(self, side: str) -> None:
        self._side, self._program, self._count = side, None, 0

    def begin(self) -> Row:
        """Loads packages, and makes the GPU's context: a process does so before it is asked."""
        if self._side == "torch":
            import torch

            if torch.cuda.is_available():
                torch.zeros(1).cuda()
        else:
            import jax

            import relay_wgrad.jax

            jax.block_until_ready(jax.numpy.zeros(1) + 1)
            if self._side == "ours":
                import tvm  # noqa: F401
            assert relay_wgrad.jax
        return {}

    def build(self, row: str, batch: str) -> Row:
        """`batch`: images of a network; its own, if 0."""
        began = time.perf_counter()
        found: Row = {}
        if self._side == "torch":
            self._program = program = OfTorch(CONVOLUTIONS[row])
            program.call()
            loss = program.wait()
        else:
            import relay_wgrad.jax as rj

            is_ours = self._side == "ours"
            with rj.recorded() as records:
                made: Program
                if row in CONVOLUTIONS:
                    made = OfJax(CONVOLUTIONS[row], is_ours)
                else:
                    network = NETWORKS[row]
                    network = network._replace(n=int(batch) or network.n)
                    made = Training(row, network, is_ours)
                self._program = made
                made.call()
                loss = made.wait()
            if is_ours:
                found["records"] = dict(Counter(_word(r.reason) for r in records))
                found["compared"] = [
                    [r.problem.split(" h=")[0], r.ours_ms, r.lax_ms] for r in records if r.ours_ms
                ]
        seconds = time.perf_counter() - began
        self._program.call()
        self._program.wait()
        self._count = max(1, min(_MOST, int(_SECONDS / max(self._once(1)[0], 1e-6))))
        return {"first_s": seconds, "loss": loss, **found}

    def _once(self, count: int) -> tuple[float, float]:
        """Seconds of so many calls, and of the host's part."""
        assert self._program is not None
        began = time.perf_counter()
        for _ in range(count):
            self._program.call()
        host = time.perf_counter() - began
        self._program.wait()
        return time.perf_counter() - began, host

    def time(self) -> Row:
        few = min(self._count, _FEW)
        seconds, host = self._once(self._count)[0] / self._count, self._once(few)[1] / few
        return {"ms": 1e3 * seconds, "host_ms": 1e3 * host}

    def results(self, path: str) -> Row:
        assert self._program is not None
        np.savez(path, **self._program.results())
        return {}

    def compare(self, path: str) -> Row:
        assert isinstance(self._program, OfTorch)
        return self._program.compared(path)


def _word(why: str) -> str:
    return why.partition(":")[0] or "ours"


@cache
def _answers(side: str) -> Answers:
    return Answers(side)


def answer(side: str, do: str, *what: str) -> Row:
    """What this process's side answers to a word of `Answers`."""
    found: Row = getattr(_answers(side), do)(*what)
    return found
