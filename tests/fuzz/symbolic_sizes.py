"""Programs of symbolic sizes, in Relax and in Relay, at sizes down to 0 and below their windows.

    python -m tests.fuzz.symbolic_sizes --minutes 30

A case is a program of tensors some of whose sizes only the run knows: convolutions, transposed
ones, pools, means and centring of images with one to three dimensions, products of matrices,
softmaxes, reductions by any operator along any axes; its value, or with it the gradients of the
sum of its squares.  It is compiled once, by our CPU pipeline or by TVM's own under `register()`,
and run at several sizes, in memory that is full of NaN.  At each it gives what PyTorch does in
float64, or raises ValueError where there is no such value: a window that is larger than its image,
a maximum of nothing.

A case counts as refused where one of its runs is, as PyTorch's, or the program is not built, by
name.  `--tree DIR` with the packages of 3e5fcea finds what was wrong there.
"""

from __future__ import annotations

import random
import re
import sys
from typing import Any

from tests.fuzz.harness import REFUSED, Generator, main
from tests.fuzz.symbolic_sizes_ops import InRelax, InRelay, InTorch, NoValueError
from tests.support.compiled import virtual_machine

TOLERANCE = {"float32": 2e-4, "float16": 3e-2, "int32": 0.0}
UPSTREAM = 1e-3  # of TVM's own kernels, which add hundreds of thousands of numbers in a row
CHANNELS = 4
CONV = ("strides", "padding", "dilation", "groups")  # what a step's numbers after the size are
PADS = ("reflect", "replicate", "constant")  # which has no gradient but the last
TRANSPOSED = ("strides", "padding", "output_padding")
USUAL = {"n": 2, "c": 3, "d": 9, "h": 10, "w": 11, "k": 5, "m": 3}
RUNS = 5  # at sizes of which some are small, after one at the usual ones
_REDUCED = {
    "relax": ("sum", "mean", "prod", "max", "min", "variance", "std", "argmax", "argmin"),
    "relay": ("sum", "mean", "prod", "max", "min", "variance", "argmax", "argmin", "any", "all"),
}
_SMOOTH = ("sum", "mean")  # of which both have gradients
# How a program that is not built says so: what has no gradient or needs a size that is a number.
_BY_NAME = re.compile(
    "no gradient|needs? (a )?known|must be static|symbolic|unknown|cannot be|TVM cannot compile"
)


def case(seed: int, index: int) -> str:
    rng = random.Random(f"{seed} {index}")
    lang = rng.choice(("relax", "relax", "relay"))
    pipe = rng.choice(("cpu", "cpu", "upstream")) if lang == "relax" else "cpu"
    order = int(rng.random() < 0.4)
    start = rng.choice(("image", "image", "product", "matrix"))
    dtype, layout, dims = "float32", "NC", "var"
    if not order and start == "matrix":
        dtype = rng.choice(("float32", "float16", "int32"))
    steps: list[str] = []
    if start == "image":
        rank = rng.choice((1, 2, 2, 3))
        ndim, pixels = rank + 2, list("dhw"[3 - rank :])
        steps = _image_steps(rng, pipe, order)
        first = "c" if steps[0].startswith("conv") and steps[0].endswith(":1") else str(CHANNELS)
        if lang == "relay" and order:  # whose gradients need them
            pixels = [str(USUAL[x]) for x in pixels]
        letters = _some(rng, ["n", first, *pixels])
        if rank == 2 and rng.random() < 0.3:
            layout, letters = "N_C", [letters[0], *letters[2:], letters[1]]
        if lang == "relay" and letters[1] != "c" and rng.random() < 0.3:
            dims = "any"
        shapes = [",".join(letters)]
    elif start == "product":
        kind = rng.choice(("matmul", "dense", "batch", "einsum" if not order else "matmul"))
        steps = [kind]
        letters = dict(zip("nkm", _some(rng, ["n", "k", "m"]), strict=True))  # type: ignore[assignment]
        n, k, m = (letters[x] for x in "nkm")  # type: ignore[call-overload]
        shapes = {
            "dense": [f"{n},{k}", f"{m},{k}"], "batch": [f"h,{n},{k}", f"h,{k},{m}"],
        }.get(kind, [f"{n},{k}", f"{k},{m}"])  # fmt: skip
        ndim = 3 if kind == "batch" else 2
    else:
        ndim = rng.choice((1, 2, 3))
        shapes = [",".join(_some(rng, list("nmk")[:ndim]))]
    if dtype.startswith("float") and rng.random() < 0.2:
        steps.append(f"{rng.choice(('softmax', 'log_softmax'))}:{rng.randrange(ndim)}")
    names = _SMOOTH if order else _REDUCED[lang]
    if dtype == "int32":
        names = tuple(n for n in names if n in ("sum", "mean", "prod", "max", "min", "argmax"))
    end = "none"
    is_matrix = start == "matrix" and ndim == 2 and dtype == "float32"
    if lang == "relax" and is_matrix and shapes[0][-1].isdigit() and rng.random() < 0.3:
        end, steps = "nll:1", ["log_softmax:1"]
    elif rng.random() < 0.8:
        axes = sorted(rng.sample(range(ndim), rng.randint(1, ndim)))
        name = rng.choice(names)
        if name.startswith("arg") and {"centre", "average"} & set(steps):
            name = "max"  # of which rounding makes little difference
        if name.startswith("arg") and len(axes) > 1:
            axes = list(range(ndim))
        end = f"{name}:{'.'.join(map(str, axes))}:{rng.randint(0, 1)}"
    sizes = [_sizes(rng, shapes) for _ in range(RUNS)]
    return (
        f"lang={lang} pipe={pipe} order={order} dtype={dtype} start={start} layout={layout}"
        f" dims={dims} shapes={'/'.join(shapes)} steps={'+'.join(steps) or 'none'} end={end}"
        f" sizes={'/'.join(sizes)} seed={rng.randrange(10**6)}"
    )


def _some(rng: random.Random, letters: list[str]) -> list[str]:
    """Some sizes as letters, at least one; the others as numbers."""
    kept = [rng.random() < 0.7 or not x.isalpha() for x in letters]
    if not any(k and x.isalpha() for k, x in zip(kept, letters, strict=True)):
        kept[0] = True
    return [x if k else str(USUAL[x]) for k, x in zip(kept, letters, strict=True)]


def _image_steps(rng: random.Random, pipe: str, order: int) -> list[str]:
    """Steps and the numbers of each: of a window its size, stride, padding, and more."""
    kept = "tanh" if pipe == "upstream" else "relu"  # upstream's ReLU of NaN is 0
    steps: list[str] = []
    for _ in range(rng.randint(1, 3)):
        size, stride = rng.randint(1, 4), rng.randint(1, 3)
        conv = f"conv:{size}:{stride}:{rng.randint(0, 2)}:{rng.randint(1, 2)}"
        steps.append(rng.choice([
            f"{conv}:1", f"{conv}:1", f"{conv}:2",
            f"transposed:{size}:{stride}:{rng.randint(0, 2)}:{rng.randrange(stride)}",
            # A maximum of NaN and others is any of them, where a pool is TVM's.
            f"{'avg' if 'average' in steps else 'max'}:{size}:{stride}:{rng.randint(0, size // 2)}",
            f"avg:{size}:{stride}:{rng.randint(0, size // 2)}",
            kept, "centre", "average",
            *([] if order else [f"pad:{rng.choice(list(PADS))}:{rng.randint(1, 4)}"]),
        ]))  # fmt: skip
    return steps


def _sizes(rng: random.Random, shapes: list[str]) -> str:
    """A choice for each letter: many as usual, others small."""
    found = dict.fromkeys(x for shape in shapes for x in shape.split(",") if x.isalpha())
    small = {x for x in found if rng.random() < 0.5} or {rng.choice(list(found))}
    return ",".join(f"{x}{rng.randint(0, 4) if x in small else USUAL[x]}" for x in found)


def fields(line: str) -> dict[str, str]:
    return dict(item.split("=", 1) for item in line.split())


def labels(line: str) -> dict[str, str]:
    found = fields(line)
    keys = ("lang", "pipe", "order", "dtype", "start", "layout", "dims")
    shown = {key: found[key] for key in keys}
    first = found["steps"].split("+")[0].split(":")[0]
    return {**shown, "step": first, "end": found["end"].split(":")[0]}


# ---- a program -----------------------------------------------------------------------------------


def shapes_of(line: str) -> list[list[str]]:
    """Those of the parameters: the operands, then the weights of its steps."""
    found = fields(line)
    shapes = [shape.split(",") for shape in found["shapes"].split("/")]
    if found["start"] == "image":
        rank, channels = len(shapes[0]) - 2, shapes[0][-1 if found["layout"] == "N_C" else 1]
        for step in found["steps"].split("+"):
            name, *numbers = step.split(":")
            if name == "conv":
                groups = int(numbers[-1])
                share = channels if groups == 1 else str(int(channels) // groups)
                shapes.append([str(CHANNELS), share, *[numbers[0]] * rank])
            elif name == "transposed":
                shapes.append([channels, str(CHANNELS), *[numbers[0]] * rank])
            else:
                continue
            channels = str(CHANNELS)
    return shapes


def result(line: str, words: Any, params: list[Any]) -> Any:
    """The program's value by the steps of a language."""
    found = fields(line)
    x, *rest = params
    rank = len(found["shapes"].split("/")[0].split(",")) - 2
    pixels = range(1, 1 + rank) if found["layout"] == "N_C" else range(2, 2 + rank)
    words.last = found["layout"] == "N_C"
    for step in [] if found["steps"] == "none" else found["steps"].split("+"):
        name, *given = step.split(":")
        numbers = [int(number) for number in given if name != "pad"]
        if name in ("matmul", "dense", "batch", "einsum"):
            x = words.product(name, x, rest.pop(0))
        elif name == "conv":
            window = dict(zip(CONV, numbers[1:], strict=True))
            x = words.conv(x, rest.pop(0), rank, **window)
        elif name == "transposed":
            window = dict(zip(TRANSPOSED, numbers[1:], strict=True))
            x = words.transposed(x, rest.pop(0), rank, **window)
        elif name in ("max", "avg"):
            x = words.pool(name, x, rank, *numbers)
        elif name == "pad":
            x = words.pad(x, given[0], int(given[1]), rank)
        elif name in ("centre", "average"):
            mean = words.reduce("mean", x, pixels, True)
            x = words.subtract(x, mean) if name == "centre" else mean
        else:
            x = getattr(words, name)(x, *numbers)
    if found["end"] == "nll:1":
        x = words.nll(x)
    elif found["end"] != "none":
        name, axes, keep = found["end"].split(":")
        x = words.reduce(name, x, [int(axis) for axis in axes.split(".")], keep == "1")
    if found["order"] == "1":
        whole = words.multiply(x, x)
        x = words.sum(whole)
    return x


def by_relax(line: str) -> Any:
    """The program compiled, as a function of arrays."""
    import tvm
    from tvm import relax, tirx

    import legalize.cpu
    from relay_wgrad.pipeline.cpu import cpu_pipeline
    from relay_wgrad.transform import grad

    found, letters = fields(line), dict[str, Any]()
    params = []
    for i, shape in enumerate(shapes_of(line)):
        sizes = [
            letters.setdefault(x, tirx.Var(x, "int64")) if x.isalpha() else int(x) for x in shape
        ]
        params.append(relax.Var(f"p{i}", relax.TensorType(sizes, found["dtype"])))
    bb = relax.BlockBuilder()
    with bb.function("main", params):
        with bb.dataflow():
            out = bb.emit_output(result(line, InRelax(bb), params))
        bb.emit_func_output(out)
    module = bb.get()
    if found["order"] == "1":
        module = grad(module)
    pipeline = cpu_pipeline() if found["pipe"] == "cpu" else "default"
    target = legalize.cpu.host_target()
    machine = virtual_machine(module, target, pipeline)
    main = machine["main_adjoint" if found["order"] == "1" else "main"]

    def run(*arrays: Any) -> list[Any]:
        made = main(*map(tvm.runtime.tensor, arrays))
        return [made] if found["order"] == "0" else [made[0], *made[1]]

    return run


def by_relay(line: str) -> Any:
    import tvm

    from relay_wgrad import relay
    from relay_wgrad.relay import te

    found, letters = fields(line), dict[str, Any]()
    params = []

    def unknown(x: str) -> Any:
        return relay.Any() if found["dims"] == "any" else letters.setdefault(x, te.size_var(x))

    for i, shape in enumerate(shapes_of(line)):
        sizes = tuple(int(x) if x.isdigit() else unknown(x) for x in shape)
        params.append(relay.var(f"p{i}", shape=sizes, dtype=found["dtype"]))
    function = relay.Function(params, result(line, InRelay(), params))
    if found["order"] == "1":
        module = relay.transform.InferType()(relay.IRModule.from_expr(function))
        function = relay.transform.gradient(module["main"], mode="first_order")
    main = relay.create_executor(
        "graph", relay.IRModule.from_expr(function), tvm.cpu(), "llvm"
    ).evaluate()

    def run(*arrays: Any) -> list[Any]:
        made = main(*arrays)
        return [made] if found["order"] == "0" else [made[0], *made[1]]

    return run


# ---- what is right -------------------------------------------------------------------------------


def arrays_of(line: str, sizes: dict[str, int]) -> list[Any]:
    import numpy as np

    found = fields(line)
    rng = np.random.default_rng([int(found["seed"]), *sizes.values()])
    out = []
    for shape in shapes_of(line):
        lengths = [sizes[x] if x.isalpha() else int(x) for x in shape]
        values = rng.standard_normal(lengths)
        out.append((values * 3 if found["dtype"] == "int32" else values).astype(found["dtype"]))
    return out


def wanted(line: str, arrays: list[Any]) -> list[Any]:
    """The value and the gradients; raises NoValueError where there are none."""
    import torch

    order = fields(line)["order"] == "1"
    given = [torch.from_numpy(a) for a in arrays]
    if given[0].dtype.is_floating_point:
        given = [x.double().requires_grad_(order) for x in given]
    try:
        out = result(line, InTorch(), given)
    except (RuntimeError, IndexError) as error:
        raise NoValueError(f"PyTorch: {error}") from error
    if not order:
        return [out.detach().numpy()]
    grads = torch.autograd.grad(out, given, allow_unused=True) if out.requires_grad else given
    return [
        out.detach().numpy(),
        *(
            (torch.zeros_like(x) if g is None else g).detach().numpy()
            for g, x in zip(grads, given, strict=True)
        ),
    ]


def check(line: str) -> str | None:
    """Each run against PyTorch's, or both refused."""
    import numpy as np

    from tests.fuzz.poison import poison_bytes
    from tests.fuzz.ties import registered

    found = fields(line)
    with registered(), np.errstate(all="ignore"):
        try:
            run = (by_relax if found["lang"] == "relax" else by_relay)(line)
        except ValueError as error:
            reason = str(error).strip().splitlines()[-1]
            is_refused = _BY_NAME.search(reason) or _has_no_value(line, USUAL)
            return f"{REFUSED}not built: {reason}" if is_refused else reason
        refused = ""
        tolerance = max(TOLERANCE[found["dtype"]], UPSTREAM if found["pipe"] == "upstream" else 0)
        usual = ",".join(f"{x}{n}" for x, n in USUAL.items())
        for text in (usual, *found["sizes"].split("/")):
            sizes = {**USUAL, **{item[0]: int(item[1:]) for item in text.split(",")}}
            arrays = arrays_of(line, sizes)
            poison_bytes({4096, 8192, 12288})
            try:
                want = wanted(line, arrays)
            except NoValueError as error:
                try:
                    run(*arrays)
                except ValueError as said:
                    refused = refused or f"{said}".strip().splitlines()[-1]
                    continue
                return f"at {text}: not refused, where {error}"
            try:
                got = [made.numpy() for made in run(*arrays)]
            except Exception as error:
                return f"at {text}: {type(error).__name__}: {str(error)[-300:]}"
            # A gradient may be what is left of numbers as large as the value.
            whole = np.abs(want[0]).max(initial=0) if found["order"] == "1" else 0.0
            scale = max(float(whole) if np.isfinite(whole) else 0.0, _added(line, arrays))
            for i, (mine, right) in enumerate(zip(got, want, strict=True)):
                if i and not np.isfinite(whole):
                    # Of NaN beside padding, which PyTorch multiplies and we do not read.
                    mine = np.where(np.isfinite(right), mine, right)
                if not i:
                    mine = np.where(_overflows(line, arrays), right, mine)
                if wrong := _differs(mine, right, tolerance, scale):
                    return f"at {text}: {'gradient' if i else 'value'} {i}: {wrong}"
        return f"{REFUSED}{refused}" if refused else None


def _added(line: str, arrays: list[Any]) -> float:
    """The magnitude of the numbers that a sum at the end adds: of 0 they leave their roundings."""
    import numpy as np

    found = fields(line)
    if not found["end"].startswith(("sum:", "mean:")):
        return 0.0
    before = line.replace(f"end={found['end']}", "end=none").replace("order=1", "order=0")
    axes = tuple(int(axis) for axis in found["end"].split(":")[1].split("."))
    total = np.abs(wanted(before, arrays)[0]).sum(axes).max(initial=0)
    return float(total) if np.isfinite(total) else 0.0


def _overflows(line: str, arrays: list[Any]) -> Any:
    """Where a product at the end may overflow on its way, in another order than PyTorch's."""
    import numpy as np

    found = fields(line)
    if not found["end"].startswith("prod:"):
        return False
    _, axes, keep = found["end"].split(":")
    factors = np.abs(wanted(line.replace(f"end={found['end']}", "end=none"), arrays)[0])
    at = tuple(int(axis) for axis in axes.split("."))
    most = np.maximum(factors, 1.0).prod(at, keepdims=keep == "1")
    return ~np.isfinite(most.astype(found["dtype"])) if found["dtype"] != "int32" else False


def _has_no_value(line: str, sizes: dict[str, int]) -> bool:
    try:
        wanted(line, arrays_of(line, sizes))
    except NoValueError:
        return True
    return False


def _differs(got: Any, want: Any, tolerance: float, scale: float) -> str:
    """How, or ""; `scale`: of numbers of which small differences may be what is left."""
    import numpy as np

    if got.shape != want.shape:
        return f"shape {got.shape} for {want.shape}"
    one, two = (np.asarray(x, "float64") for x in (got, want))
    # Neither an overflow of the dtype nor near it, where a product in another order is one.
    fits = np.isfinite((two * 2.0**20).astype(got.dtype)) | ~np.isfinite(two)
    one, two = one[fits], two[fits]
    finite = np.isfinite(two)
    if not np.array_equal(one[~finite], two[~finite], equal_nan=True):
        return f"{one[~finite][:3]} for {two[~finite][:3]}"
    distance, size = np.linalg.norm(one[finite] - two[finite]), np.linalg.norm(two[finite])
    if distance <= tolerance * max(1.0, size, scale):
        return ""
    return f"{distance / max(1.0, size, scale):.2g} off, {one[:3]} for {two[:3]}"


GENERATOR = Generator(
    "symbolic_sizes",
    "programs of symbolic sizes, at sizes down to 0, against PyTorch in float64 or refused",
    case=case,
    labels=labels,
    check=check,
)

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
