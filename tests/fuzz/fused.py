"""Random small graphs, most of halves among wider types, whose kernels are fused, against float64.

    python -m tests.fuzz.fused --minutes 30

TVM has no arithmetic of bfloat16 on a CPU: what a kernel says of them is rewritten by passes, each
of which has forms that it passes over, and a number is its bits then, in silence.  Whether a kernel
has such a form depends on what is fused, on sizes (what is large is vectors, parts, two sums in one
kernel) and types.  A case is a tensor's shape and dtype, a chain of steps on the values so far (by
number; 0 and 1 are operands), on sizes at both sides of the passes' thresholds, and a way:

    ours      the CPU pipeline, as trainers compile       apart   the same, nothing fused
    exported  the same by tvm.compile, as a library       stock   TVM's own pipeline
    relay     relay.build                                 many    ours, for sixteen threads

A way with `?` has the first axis open.  Every value is a result that no step reads, and some
others; each element is as near to float64's as roundings allow (`fused_ops`).

    ours 4x31x29x24 bfloat16 17: cast 0 float32 | mask 1 2 | pair 2 3 012
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from . import fused_ops as of
from .harness import Generator, main

Shape = tuple[int, ...]
WAYS = (
    "ours", "ours", "ours?", "many", "many?", "apart", "exported", "stock", "relay", "relay?",
)  # fmt: skip
# Sides of images and of rows; of bytes 64 KiB and 1 MiB are between the products.
_PIXELS = (1, 2, 3, 5, 7, 8, 14, 16, 28, 31, 37)
_CHANNELS = (1, 3, 4, 16, 24, 31, 32, 37, 48, 64, 96, 128, 257, 512)
_LONG = (1, 7, 64, 100, 257, 300, 400, 1000, 1024, 4096, 4099)
_GIVEN = ("bfloat16", "bfloat16", "bfloat16", "float16", "float32")
_LEAST, _MOST = 1 << 6, 1 << 19  # elements
_TVMS_OWN = ("tanh", "cumsum")  # which its own pipeline computes in halves
MOVES = ("turn", "flat", "part", "cat", "split", "fold", "shuffle")
_FACTORS = (2, 2, 3, 4, 4, 7, 8, 16)
# What likely follows, so that pixels are shuffled and images are cut into windows.
_NEXT = {"fold": ("turn", "fold"), "turn": ("flat", "flat", "two")}


def _shape(rng: random.Random) -> Shape:
    while True:
        rank = rng.choice((1, 2, 2, 3, 4, 4, 4, 4))
        if rank == 4:
            sides = (rng.choice((1, 2, 3, 4, 8)), rng.choice(_PIXELS), rng.choice(_PIXELS))
            channels = rng.choice(_CHANNELS)
            n, h, w = sides
            shape: Shape = (n, h, w, channels) if rng.random() < 0.7 else (n, channels, h, w)
        else:
            shape = tuple(rng.choice(_LONG) for _ in range(rank))
        if _LEAST <= math.prod(shape) <= _MOST:
            return shape


def case(seed: int, index: int) -> str:
    rng = random.Random(f"{seed}/{index}")
    shape, dtype = _shape(rng), rng.choice(_GIVEN)
    way = WAYS[index % len(WAYS)]
    made = [(shape, dtype), (shape, dtype)]
    steps: list[str] = []
    wanted = rng.choice((2, 3, 4, 6, 8))
    while len(steps) < wanted:
        last = steps[-1].split()[0] if steps else ""
        likely = rng.choice(_NEXT[last]) if last in _NEXT and rng.random() < 0.7 else ""
        step = _step(rng, made, "?" in way, likely)
        if step is not None and not (way == "stock" and step[0].startswith(_TVMS_OWN)):
            steps.append(step[0])
            made += step[1]
    sides = "x".join(map(str, shape))
    return f"{way} {sides} {dtype} {rng.randrange(1000)}: {' | '.join(steps)}"


def _left(shape: Shape, axes: list[int], keep: bool) -> Shape:
    return tuple(1 if i in axes else n for i, n in enumerate(shape) if keep or i not in axes)


def _step(
    rng: random.Random, made: list[tuple[Shape, str]], is_open: bool, likely: str
) -> tuple[str, list[tuple[Shape, str]]] | None:
    """A step's words and what it makes; None where what was drawn does not fit.

    likely : a kind, or a move, of the last value; drawn if it is empty.
    """
    at = rng.randrange(len(made)) if rng.random() < 0.3 and not likely else len(made) - 1
    shape, dtype = made[at]
    kind = "move" if likely in MOVES else likely or rng.choice(
        ("one", "one", "two", "two", "two", "cast", "cast", "reduce", "reduce", "pair", "along",
         "arg", "pool", "move")
    )  # fmt: skip
    if dtype == "int64" or not shape:
        return None
    if kind == "one":
        return f"{rng.choice([*of.ONE])} {at}", [(shape, dtype)]
    if kind == "cast":
        to = rng.choice([name for name in of.DTYPES if name != dtype])
        return f"cast {at} {to}", [(shape, to)]
    axes = sorted(rng.sample(range(len(shape)), rng.randint(1, len(shape))))
    if len(shape) == 4 and rng.random() < 0.5:
        axes = rng.choice(([0, 1, 2], [1, 2], [0, 2, 3], [2, 3]))
    if is_open and 0 in axes and kind in ("along", "arg"):
        return None
    digits = "".join(map(str, axes))
    if kind in ("two", "pair"):
        other = _other(rng, made, at, is_open)
        if other is None:
            return None
        if kind == "pair":
            both = tuple(np.broadcast_shapes(shape, made[other][0]))
            if both != shape:
                return None
            return f"pair {at} {other} {digits}", [(_left(shape, axes, False), dtype)] * 2
        joint = tuple(np.broadcast_shapes(shape, made[other][0]))
        return f"{rng.choice([*of.TWO])} {at} {other}", [(joint, dtype)]
    if kind == "reduce":
        name, keep = rng.choice([*of.REDUCED]), rng.random() < 0.5
        if is_open and 0 in axes and name != "sum":
            return None
        words = f"{name} {at} {digits} {'keep' if keep else 'drop'}"
        return words, [(_left(shape, axes, keep), dtype)]
    if kind == "along":
        return f"{rng.choice([*of.ALONG])} {at} {axes[0]}", [(shape, dtype)]
    if kind == "arg":
        name = rng.choice(("argmax", "argmin"))
        return f"{name} {at} {axes[0]}", [(_left(shape, axes[:1], False), "int64")]
    if kind == "pool":
        layout = rng.choice(("NCHW", "NHWC"))
        if len(shape) != 4:
            return None
        size, rows = rng.choice((2, 3)), layout.index("H")
        if min(shape[rows : rows + 2]) < size:
            return None
        after = list(shape)
        after[rows : rows + 2] = [(n - size) // 2 + 1 for n in shape[rows : rows + 2]]
        return f"{rng.choice(('avg', 'most'))} {at} {size} {layout}", [(tuple(after), dtype)]
    return _moved(rng, made, at, is_open, likely or rng.choice(MOVES))


def _other(rng: random.Random, made: list[tuple[Shape, str]], at: int, is_open: bool) -> int | None:
    """A value of the same dtype that fits, whether or not the first axis is of one element."""
    shape, dtype = made[at]

    def fits(other: Shape) -> bool:
        if is_open and len(other) != len(shape):
            return False
        try:
            return math.prod(np.broadcast_shapes(shape, other)) <= 2 * _MOST
        except ValueError:
            return False

    found = [i for i, (s, d) in enumerate(made) if d == dtype and i != at and fits(s)]
    return rng.choice(found) if found else None


def _moved(
    rng: random.Random, made: list[tuple[Shape, str]], at: int, is_open: bool, name: str
) -> tuple[str, list[tuple[Shape, str]]] | None:
    shape, dtype = made[at]
    first = 1 if is_open else 0
    if len(shape) <= first:
        return None
    axis = rng.randrange(first, len(shape))
    if name == "turn":
        order = rng.sample(range(first, len(shape)), len(shape) - first)
        order = [*range(first), *order]
        words = f"turn {at} {''.join(map(str, order))}"
        return words, [(tuple(shape[i] for i in order), dtype)]
    if name == "flat":
        if axis == len(shape) - 1:
            return None
        return f"flat {at} {axis}", [
            ((*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]), dtype)
        ]
    if name == "shuffle":  # pixels, from channels
        factor, axis = rng.choice((2, 3, 4, 4, 8)), rng.choice((1, 3))
        if len(shape) != 4 or shape[axis] % factor**2:
            return None
        wide = [n * factor for n in shape]
        wide[0], wide[axis] = shape[0], shape[axis] // factor**2
        return f"shuffle {at} {factor} {axis}", [(tuple(wide), dtype)]
    if name == "fold":
        factor = rng.choice(_FACTORS)
        if shape[axis] % factor or len(shape) > 5:
            return None
        halves = (shape[axis] // factor, factor)
        return f"fold {at} {factor} {axis}", [((*shape[:axis], *halves, *shape[axis + 1 :]), dtype)]
    if name == "part":
        if shape[axis] < 3:
            return None
        return f"part {at} {axis}", [((*shape[:axis], shape[axis] - 2, *shape[axis + 1 :]), dtype)]
    if name == "split":
        if shape[axis] % 2:
            return None
        half = (*shape[:axis], shape[axis] // 2, *shape[axis + 1 :])
        return f"split {at} {axis}", [(half, dtype)] * 2

    def rest(of: Shape) -> tuple[Shape, Shape]:
        return of[:axis], of[axis + 1 :]

    same = [
        i for i, (s, d) in enumerate(made)
        if d == dtype and len(s) == len(shape) and rest(s) == rest(shape)
    ]  # fmt: skip
    other = rng.choice(same)
    whole = shape[axis] + made[other][0][axis]
    after = (*shape[:axis], whole, *shape[axis + 1 :])
    return (f"cat {at} {other} {axis}", [(after, dtype)]) if math.prod(after) <= _MOST else None


def labels(line: str) -> dict[str, str]:
    way, _, dtype, _ = line.partition(":")[0].split()
    return {"way": way, "dtype": dtype}


# ---- both sides ------------------------------------------------------------------------------


class _Relax:
    """What steps are made of, on Relax."""

    def __init__(self, emit: Any) -> None:
        from tvm import relax

        self.emit, self.relax, self.ops = emit, relax, relax.op

    def call(self, name: str, *args: Any, **named: Any) -> Any:
        function = self.ops
        for part in name.split("."):
            function = getattr(function, part)
        return self.emit(function(*args, **named))

    def number(self, value: float, dtype: str) -> Any:
        return self.relax.const(value, dtype)

    def along(self, name: str, x: Any, axis: int, known: of.Known) -> Any:
        return self.call(name, x, axis)

    def flat(self, x: Any, axis: int, known: of.Known) -> Any:
        sizes = list(x.ty.shape.values)
        return self.call(
            "reshape", x, [*sizes[:axis], sizes[axis] * sizes[axis + 1], *sizes[axis + 2 :]]
        )

    def fold(self, x: Any, axis: int, factor: int, known: of.Known) -> Any:
        sizes = list(x.ty.shape.values)
        pieces = [sizes[axis] // factor, factor]
        return self.call("reshape", x, [*sizes[:axis], *pieces, *sizes[axis + 1 :]])

    def part(self, x: Any, axis: int, known: of.Known) -> Any:
        return self.call("strided_slice", x, [axis], [1], [known.shape[axis] - 1])

    def split(self, x: Any, axis: int) -> list[Any]:
        both = self.call("split", x, 2, axis)
        return [self.emit(self.relax.TupleGetItem(both, i)) for i in (0, 1)]


_RELAYS = {"astype": "cast", "permute_dims": "transpose", "concat": "concatenate"}


class _Relay(_Relax):
    """The same on Relay."""

    def __init__(self) -> None:
        from relay_wgrad import relay

        super().__init__(lambda x: x)
        self.ops = relay

    def call(self, name: str, *args: Any, **named: Any) -> Any:
        return super().call(_RELAYS.get(name, name), *args, **named)

    def number(self, value: float, dtype: str) -> Any:
        return self.ops.const(value, dtype)

    def flat(self, x: Any, axis: int, known: of.Known) -> Any:
        # -1: what is left; an open axis stays with 0.
        after = [*([0] * axis), -1, *known.shape[axis + 2 :]]
        return self.call("reshape", x, after)

    def fold(self, x: Any, axis: int, factor: int, known: of.Known) -> Any:
        after = [*([0] * axis), -1, factor, *known.shape[axis + 1 :]]
        return self.call("reshape", x, after)

    def part(self, x: Any, axis: int, known: of.Known) -> Any:
        return self.call("strided_slice", x, [1], [known.shape[axis] - 1], axes=[axis])

    def split(self, x: Any, axis: int) -> list[Any]:
        both = self.ops.split(x, 2, axis)
        return [both[0], both[1]]


def _applied(on: Any, words: list[str], values: list[tuple[Any, of.Known]]) -> list[Any]:
    """A step's results, as pairs of the surface's and the known one."""
    name, (x, known), rest = words[0], values[int(words[1])], words[2:]
    dtype = known.dtype

    def number(value: float) -> Any:
        return on.number(value, dtype)

    if name in of.ONE:
        made = {
            "half": lambda: on.call("multiply", x, number(0.5)),
            "shift": lambda: on.call("add", x, number(1.5)),
            "square": lambda: on.call("multiply", x, x),
            "clip": lambda: on.call("clip", x, -1.0, 1.0),
            "relu": lambda: on.call("nn.relu", x),
        }.get(name, lambda: on.call(name, x))()
        return [(made, of.ONE[name](known))]
    if name == "cast":
        return [(on.call("astype", x, rest[0]), of.cast(known, rest[0]))]
    if name in of.TWO or name == "pair":
        y, other = values[int(rest[0])]
        both = of.broadcast([known, other])
        passes = on.call("greater", x, number(0.25)) if name in ("mask", "pair") else None
        if name == "mask":
            return [(on.call("where", passes, y, number(0.0)), of.mask(*both))]
        if name == "pair":
            axes = tuple(map(int, rest[1]))
            masked = on.call("where", passes, y, number(0.0))
            product = on.call("multiply", masked, x)
            right = of.mask(*both)
            return [
                (on.call("sum", each, list(axes)), of.total(k, axes, False))
                for each, k in ((masked, right), (product, of.multiply(right, known)))
            ]
        if name == "choose":
            made = on.call("where", on.call("greater", x, y), y, x)
        else:
            made = on.call(name, x, y)
        return [(made, of.TWO[name](*both))]
    if name in of.REDUCED:
        axes, keep = tuple(map(int, rest[0])), rest[1] == "keep"
        return [(on.call(name, x, list(axes), keepdims=keep), of.REDUCED[name](known, axes, keep))]
    if name in of.ALONG:
        axis = int(rest[0])
        full = name if name == "cumsum" else f"nn.{name}"
        return [(on.call(full, x, axis), of.ALONG[name](known, axis))]
    if name.startswith("arg"):
        axis = int(rest[0])
        return [(on.call(name, x, axis), (name, axis, known))]
    if name in ("avg", "most"):
        size, layout = int(rest[0]), rest[1]
        full = "nn.avg_pool2d" if name == "avg" else "nn.max_pool2d"
        made = on.call(full, x, (size, size), (2, 2), layout=layout)
        return [(made, of.windows(known, layout, size, name == "most"))]
    if name == "turn":
        order = [int(i) for i in rest[0]]
        return [(on.call("permute_dims", x, order), of.same(known, lambda v: v.transpose(order)))]
    axis = int(rest[-1])
    if name == "cat":
        y, other = values[int(rest[0])]
        return [(on.call("concat", [x, y], axis=axis), of.joined([known, other], axis))]
    if name == "flat":
        return [_flattened(on, x, known, axis)]
    if name == "shuffle":
        return [_shuffled(on, x, known, int(rest[0]), axis)]
    if name == "fold":
        return [_folded(on, x, known, int(rest[0]), axis)]
    if name == "part":
        piece = [slice(None)] * len(known.shape)
        piece[axis] = slice(1, known.shape[axis] - 1)
        return [(on.part(x, axis, known), of.same(known, lambda v: v[tuple(piece)]))]
    parts = [of.same(known, lambda v, i=i: np.split(v, 2, axis)[i]) for i in (0, 1)]
    return [*zip(on.split(x, axis), parts, strict=True)]


def _shuffled(on: Any, x: Any, known: of.Known, factor: int, axis: int) -> tuple[Any, of.Known]:
    """Of an image's channels, on `axis`, blocks of so many rows and columns of pixels."""
    for _ in "rows", "columns":
        x, known = _folded(on, x, known, factor, axis)
    order = [0, 1, 4, 2, 5, 3]  # channels first as well as last
    x, known = on.call("permute_dims", x, order), of.same(known, lambda v: v.transpose(order))
    rows = 2 if axis == 1 else 1
    for at in (rows, rows + 1):
        x, known = _flattened(on, x, known, at)
    return x, known


def _folded(on: Any, x: Any, known: of.Known, factor: int, axis: int) -> tuple[Any, of.Known]:
    after = (*known.shape[:axis], -1, factor, *known.shape[axis + 1 :])
    return on.fold(x, axis, factor, known), of.same(known, lambda v: v.reshape(after))


def _flattened(on: Any, x: Any, known: of.Known, axis: int) -> tuple[Any, of.Known]:
    after = (*known.shape[:axis], -1, *known.shape[axis + 2 :])
    return on.flat(x, axis, known), of.same(known, lambda v: v.reshape(after))


def _graph(
    on: Any, params: list[Any], known: list[of.Known], body: str
) -> tuple[list[Any], list[Any]]:
    """Results that are asked for: those that no step reads, and each third one."""
    values: list[tuple[Any, Any]] = [*zip(params, known, strict=True)]
    read: set[int] = set()
    for step in body.split(" | "):
        words = step.split()
        read.add(int(words[1]))
        if words[0] in (*of.TWO, "pair", "cat"):
            read.add(int(words[2]))
        values += _applied(on, words, values)
    wanted = [i for i in range(2, len(values)) if i not in read or i % 3 == 0]
    return [values[i][0] for i in wanted], [values[i][1] for i in wanted]


def _wrong(got: Any, want: Any) -> str | None:
    if isinstance(want, of.Known):
        return of.worst(got, want)
    name, axis, known = want  # any of those that may be the extremum
    if got.shape != tuple(n for i, n in enumerate(known.shape) if i != axis):
        return f"{name}: shape {got.shape}"
    places = np.expand_dims(got, axis)
    sign = 1 if name == "argmax" else -1
    if (places < 0).any() or (places >= known.shape[axis]).any():
        return f"{name}: no place"
    value, away = (np.take_along_axis(a, places, axis) for a in (sign * known.value, known.away))
    best = (sign * known.value - known.away).max(axis, keepdims=True)
    return None if (value + away >= best)[np.isfinite(best)].all() else f"{name}: not the extremum"


def check(line: str) -> str | None:
    import tvm
    from tvm import relax, tirx

    from relay_wgrad import registry
    from relay_wgrad.dtypes import numpy_dtype

    registry.register()
    head, _, body = line.partition(": ")
    way, sides, dtype, seed = head.split()
    shape = tuple(map(int, sides.split("x")))
    rng = np.random.default_rng(int(seed))
    given = [rng.standard_normal(shape).astype(numpy_dtype(dtype)) for _ in range(2)]
    known = [of.Known(x.astype("float64"), np.zeros(shape), dtype) for x in given]
    is_open, way = way.endswith("?"), way.rstrip("?")
    if way == "relay":
        got, wants = _built(is_open, given, known, body)
    else:
        first = tirx.Var("n", "int64") if is_open else shape[0]
        params = [relax.Var(f"x{i}", relax.TensorType((first, *shape[1:]), dtype)) for i in (0, 1)]
        bb = relax.BlockBuilder()
        with bb.function("main", params):
            if way == "apart":
                outs, wants = _graph(_Relax(bb.emit), params, known, body)
                bb.emit_func_output(outs)
            else:
                with bb.dataflow():
                    outs, wants = _graph(_Relax(bb.emit), params, known, body)
                    out = bb.emit_output(outs)
                bb.emit_func_output(out)
        machine = _machine(way, bb.get())
        got = [x.numpy() for x in machine["main"](*map(tvm.runtime.tensor, given))]
    for i, (each, want) in enumerate(zip(got, wants, strict=True)):
        wrong = _wrong(each, want)
        if wrong:
            return f"result {i} of {len(wants)}: {wrong}"
    return None


def _machine(way: str, module: Any) -> Any:
    import tvm
    from tvm import relax

    from legalize.cpu import host_target
    from relay_wgrad.pipeline.cpu import cpu_pipeline
    from tests.support.compiled import virtual_machine

    if way != "exported":
        pipeline = "default" if way == "stock" else cpu_pipeline()
        return virtual_machine(module, host_target(16 if way == "many" else None), pipeline)
    built = tvm.compile(module, target=host_target(), relax_pipeline=cpu_pipeline())
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "library.so")
        built.export_library(path)
        return relax.VirtualMachine(tvm.runtime.load_module(path), tvm.cpu())


def _built(
    is_open: bool, given: list[Any], known: list[of.Known], body: str
) -> tuple[list[Any], list[Any]]:
    import tvm

    from legalize.cpu import host_target
    from relay_wgrad import relay

    shape = given[0].shape
    sizes = (relay.Any(), *shape[1:]) if is_open else shape
    params = [relay.var(f"x{i}", shape=sizes, dtype=known[0].dtype) for i in (0, 1)]
    outs, wants = _graph(_Relay(), params, known, body)
    module = relay.IRModule.from_expr(relay.Function(params, relay.Tuple(outs)))
    if is_open:
        made = relay.create_executor("vm", mod=module, target=host_target()).evaluate()(*given)
        return [x.numpy() for x in made], wants
    executor = relay.graph_executor.GraphModule(
        relay.build(module, host_target())["default"](tvm.cpu())
    )
    executor.run(x0=given[0], x1=given[1])
    return [executor.get_output(i).numpy() for i in range(len(outs))], wants


GENERATOR = Generator(
    "fused",
    "graphs of halves among wider types, fused by each way to compile, against float64",
    case=case,
    labels=labels,
    check=check,
    timeout=240.0,
)

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
