"""The pages' tables of figures, from what was measured: `python -m benchmarks.figures`.

    python -m benchmarks.figures            # print them
    python -m benchmarks.figures --write    # put each into its page, between the page's marks

The README has two figures at its top and a row for each subject, docs/reference/performance.md a
table.  Each reads files of `benchmarks/results`: figures, machine, versions and date are theirs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

from benchmarks import cpu_compile
from benchmarks.gpu_steps import ratio
from benchmarks.runner import Column, Row, cell
from relay_wgrad.problem import ConvKind

RESULTS = Path(__file__).parent / "results"
README = RESULTS.parents[1] / "README.md"
PERFORMANCE = RESULTS.parents[1] / "docs" / "reference" / "performance.md"
BEGIN, END = "<!-- figures: python -m benchmarks.figures --write -->", "<!-- end of figures -->"
KINDS = tuple(kind.value for kind in ConvKind)
MIB = 2**20


class Result(NamedTuple):
    """A file of results."""

    facts: Row
    rows: list[Row]


def read(name: str) -> Result:
    """A file of results, of today's form (`benchmarks.runner`) or of one that is in the folder.

    Those have rows alone, or by keys, or by runs, and facts beside them, under "about", or in each
    row.
    """
    found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    found = {"rows": found} if isinstance(found, list) else found
    runs = found.pop("runs", [])
    rows = found.pop("rows", [row for run in runs for row in run.get("rows", [])])
    if isinstance(rows, dict):
        rows = [{"key": key, **row} for key, row in rows.items()]
    facts = {**rows[0], **(runs[0] if runs else {}), **found}
    for key in ("about", "machine", "versions", "options"):
        facts |= found[key] if isinstance(found.get(key), dict) else {}
    facts.setdefault("device", facts.get("gpu", facts.get("cpu")))
    facts.setdefault("dates", facts.get("date"))
    facts["date"] = str(facts.get("date"))[:10]
    facts["release"] = str(facts.get("torch")).partition("+")[0]
    facts["each"] = facts.get("cores_each") or facts.get("cores") or facts.get("threads")
    return Result(facts, rows)


class Figure(NamedTuple):
    """A row of the README's; texts are formatted with the file's facts and what `values` adds."""

    name: str
    what: str
    where: str
    figure: str
    values: Callable[[list[Row]], Row]


class Sheet(NamedTuple):
    """A table of the performance page: what is said above it, its rows, and their columns.

    rows : of the file's facts and rows those that are shown.
    """

    heading: str
    name: str
    where: str
    columns: Sequence[Column]
    rows: Callable[[list[Row]], Iterable[Row]] = lambda rows: rows
    values: Callable[[list[Row]], Row] = lambda rows: {}


# ---- what several have in common -----------------------------------------------------------------


def measured(rows: Iterable[Row]) -> list[Row]:
    """Those that have a ratio."""
    return [row for row in rows if row.get("ratio")]


def slowest(rows: Sequence[Row]) -> list[Row]:
    """Of three runs the slowest row of each problem."""
    found: dict[str, Row] = {}
    for row in (*rows, *read("cpu_avx2_2").rows, *read("cpu_avx2_3").rows):
        if row["ratio"] >= found.get(row["problem"], row)["ratio"]:
            found[row["problem"]] = row
    return list(found.values())


def by_kind(rows: Iterable[Row]) -> Row:
    """Means of the ratios by kind, how many there are, and the slowest."""
    ratios = defaultdict[str, list[float]](list)
    for row in rows:
        ratios[row["kind"]].append(row["ratio"])
    every = [each for own in ratios.values() for each in own]
    return {"count": len(every), "slowest": max(every),
            **{kind: geometric_mean(own) for kind, own in ratios.items()}}  # fmt: skip


def grouped(rows: Sequence[Row], field: str) -> list[Row]:
    """`by_kind` of each value of a field."""
    values = dict.fromkeys(row[field] for row in rows)
    return [{field: v, **by_kind(row for row in rows if row[field] == v)} for v in values]


def believed(rows: Sequence[Row]) -> list[Row]:
    """Those whose times are a call's: of several threads one may have waited for the system."""
    return [row for row in rows if "reason" not in row]


def of_kinds(field: str, head: str) -> tuple[Column, ...]:
    return ((head, field), ("layers", "count"), *((kind, None, ".2f") for kind in KINDS),
            ("slowest", None, ".2f"))  # fmt: skip


OF_STEPS = (
    ("network", lambda row: f"{row['model']}, {row['dtype']}"), ("threads",), ("batch",),
    ("ours, ms", "ms", ".0f"), ("eager, ms", "torch_ms", ".0f"),
    ("Inductor, ms", "inductor_ms", ".0f"), ("ratio", None, ".2f"),
)  # fmt: skip


def by_network(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["model"], row["dtype"], row["threads"]))


LAYERS_OF_VOLUMES = (
    " Layers of a network of volumes, float32, one thread, by a processor's time: ours over the"
    " better of PyTorch's two memory orders. {cpu}, PyTorch {torch}, {date};"
)
BY_KIND = "time ratio fprop {fprop:.2f}, dgrad {dgrad:.2f}, wgrad {wgrad:.2f}"


def mean_and_range(ratios: Sequence[float]) -> Row:
    return {"count": len(ratios), "mean": geometric_mean(ratios), "least": min(ratios),
            "most": max(ratios)}  # fmt: skip


def of_batch(rows: Iterable[Row], batch: int = 128) -> list[Row]:
    found = [{**row, "ratio": ratio(row)} for row in rows if row["batch"] == batch]
    return sorted(found, key=lambda row: (row["dtype"], row["model"]))


def of_instances(rows: Iterable[Row]) -> dict[str, float]:
    """Of the U-Net with InstanceNorm, beside the fastest, and the smallest, of PyTorch's ways."""
    found = {row["dtype"]: row for row in rows if row["model"] == "unet3d_instance"}
    memory = {side: values["memory"] for side, values in found["bf16"]["sides"].items()}
    return {"ratio": found["bf16"]["ratio"], "memory": memory.pop("ours") / min(memory.values()),
            "tf32": found["tf32"]["ratio"]}  # fmt: skip


def partial(rows: list[Row]) -> list[Row]:
    """Ours and eager's of a network and a part of its parameters."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        network, part, side = row.get("key", "").split() or (
            row["network"], row["part"], row["side"]
        )  # fmt: skip
        found.setdefault((network, part), {})[side] = row
    return [{"what": f"{network}, {PARTS[part]}", **sides}
            for (network, part), sides in found.items()]  # fmt: skip


PARTS = {"all": "all", "last": "the last ten tensors", "norms": "scale and bias of the norms",
         "biases": "`*.bias`"}  # fmt: skip


def inside_jax(rows: Iterable[Row]) -> list[Row]:
    """Milliseconds of each case by side."""
    found: dict[str, Row] = {}
    for row in rows:
        found.setdefault(row["row"], {"what": row["what"]})[row["side"]] = row.get("ms")
    return list(found.values())


def beside_jax(rows: list[Row]) -> Row:
    found = [each for each in inside_jax(rows) if each.get("ours")]
    slow = [each["lax"] / each["ours"] for each in found if (each["lax"] or 0) > 5 * each["ours"]]
    beside = [each["ours"] / each["torch"] for each in found if each["torch"]]
    return {**mean_and_range(beside), "times": geometric_mean(slow), "slow": len(slow)}


def steps_of_jax(rows: Iterable[Row]) -> list[Row]:
    """Each network's step by side, the faster of its processes; the first call of the first."""
    found: dict[str, Row] = {}
    for row in rows:
        if "ms" not in row:
            continue
        sides = found.setdefault(row["row"], {"what": row["what"]})
        side = row["side"].partition(" ")[0]
        sides[f"{side} ms"] = min(row["ms"], sides.get(f"{side} ms", row["ms"]))
        sides.setdefault(f"{side} first", row["first_s"])
    return list(found.values())


def first_gradients(runs: list[Row]) -> Row:
    found = cpu_compile.medians(runs)
    small = {row["way"]: row for row in found if row["network"] == "small"}
    beside = [row for row in found if "warm first ratio" in row and row["way"] != "inductor"]
    ratios = {
        state: mean_and_range([row[f"{state} first ratio"] for row in beside])
        for state in cpu_compile.STATES
    }
    said = [
        f"{name} {small[way]['cold first']:.1f} / {small[way]['warm first']:.1f}"
        for way, name in (("trainer", "`Trainer`"), ("compile", "`torch.compile`, ours"),
                          ("inductor", "Inductor"))
    ]  # fmt: skip
    return {**ratios, "said": ", ".join(said), "networks": len({r["network"] for r in beside})}


def ms_and_mib(side: str) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        found = row["sides"].get(side, {})
        return f"{found['ms']:.2f} ({found['memory'] / MIB:.0f})" if "ms" in found else ""

    return text


def _short(row: Row) -> str:
    return f"`{row['words'].replace('{folder}/', '')}`"


def _processor(row: Row) -> str:
    return f"{row['processor']:.{2 if row['processor'] < 1 else 1}f}"


# ---- the pages -----------------------------------------------------------------------------------

FIGURES = (
    Figure(
        "cpu_avx2_1",
        "{count} convolutions of six networks, float32, NHWC, batch 8, beside oneDNN's",
        "{cpu}, {threads} cores, {date}", BY_KIND + "; slowest {slowest:.2f}",
        lambda rows: by_kind(slowest(rows)),
    ),
    Figure(
        "cpu_step", "{model}, batch {batch}, loss and gradients", "{cpu}, {threads} cores, {date}",
        "{ms:.0f} ms, PyTorch eager {torch_ms:.0f}",
        lambda rows: {key: min(row[key] for row in rows) for key in ("ms", "torch_ms")},
    ),
    Figure(
        "cpu_first", "seconds to the first gradients, 25,000 parameters, first / second process",
        "{cpu}, {each} cores, PyTorch {torch}, {date}",
        "{said}; of {networks} networks, three ways, ratio to Inductor"
        " {cold[mean]:.2f} ({cold[least]:.2f} to {cold[most]:.2f})"
        " / {warm[mean]:.2f} ({warm[least]:.2f} to {warm[most]:.2f})",
        first_gradients,
    ),
    Figure(
        "gpu_against_h200",
        "forward and backward of {models} networks, batch 128, three dtypes, beside the best of"
        " eager, torch.compile and torch.compile with CUDA graphs",
        "{gpu}, PyTorch {release}, {dates}",
        "time ratio {mean:.2f} of {count} ({least:.2f} to {most:.2f})",
        lambda rows: {**mean_and_range([row["ratio"] for row in of_batch(rows)]),
                      "models": len({row["model"] for row in of_batch(rows)})},
    ),
    Figure(
        "gpu_others_h200",
        "the same of {count} other networks, most of timm, in half precision, beside torch.compile"
        " with CUDA graphs",
        "{gpu}, PyTorch {torch}, {date}", "time ratio {mean:.2f} ({least:.2f} to {most:.2f})",
        lambda rows: mean_and_range([row["ratio"] for row in rows]),
    ),
    Figure(
        "gpu_volumes_h200",
        "a step of nnU-Net's U-Net, batch {batch} of 128³, bfloat16, beside PyTorch's best",
        "{gpu}, PyTorch {torch}, {date}",
        "time ratio {ratio:.2f}, memory {memory:.2f}; with tf32 time ratio {tf32:.2f}",
        of_instances,
    ),
    Figure(
        "cudnn_h200", "{count} convolutions offloaded to cuDNN, beside PyTorch's with `benchmark`",
        "{gpu}, PyTorch {release}, {date}", BY_KIND, lambda rows: by_kind(measured(rows)),
    ),
    Figure(
        "gpu_depthwise_batches_h200",
        "{count} depthwise convolutions by kernels of our own, float16, beside PyTorch's",
        "{device}, PyTorch 2.11, {date}", "time ratio {mean:.2f}; slowest {most:.2f}",
        lambda rows: mean_and_range([
            row["ratio"] if "ratio" in row else row["us"] / row["torch_us"] for row in rows
        ]),
    ),
    Figure(
        "jax_inside_h200", "value and gradients of convolutions inside `jax.jit`",
        "{gpu}, JAX {jax}, PyTorch {torch}, {date}",
        "{times:.0f} times as fast as `lax`'s of {slow} that XLA computes slowly; time ratio to"
        " PyTorch's {mean:.2f} ({least:.2f} to {most:.2f})",
        beside_jax,
    ),
)  # fmt: skip

# What the README's first screen says, of the same results.
HEADLINE = {
    "cpu_step": "Loss and gradients of {model} on {threads} cores of a CPU: **{ms:.0f} ms**,"
    " PyTorch eager {torch_ms:.0f}.",
    "gpu_others_h200": "Forward and backward of {count} networks on an {gpu}: **{mean:.2f}** of"
    " the time of torch.compile with CUDA graphs.",
}

LOOPS = {
    "trainer": "`Trainer(distributed=True)`", "step": "`TrainingStep` in DDP",
    "compile": "torch.compile in DDP",
}  # fmt: skip
VOLUMES = {
    "unet3d_instance": "nnU-Net's U-Net, InstanceNorm", "resenc_m": "nnU-Net's ResEnc M",
    "unet3d": "the U-Net with BatchNorm",
}  # fmt: skip


def of_images(rows: Iterable[Row]) -> list[Row]:
    """A row for each source and number of readers: what is read, and what a trainer takes of it."""
    found: dict[Any, Row] = {}
    for row in rows:
        if "images" in row:
            of = {name: row[name] for name in ("source", "readers")}
            new = {"read": row["images"]}
            if row["source"] != "loader":  # whose processes have times of their own
                new["core_ms"] = row["core_ms"]
            if row["trainer"]:
                new = {"images": row["images"], "share": row["images"] / row["alone"]}
            found.setdefault(tuple(of.values()), of).update(new)
    return list(found.values())


READERS = {"own": "`ImageFolder`", "pillow": "`ImageFolder(decoder=\"pillow\")`",
           "loader": "`DataLoader` of torchvision's `ImageFolder`"}  # fmt: skip

SHEETS = (
    Sheet(
        "Convolutions on a CPU", "cpu_avx2_1",
        "The distinct layers of each network, float32, NHWC, batch 8: our time over that of PyTorch"
        " {torch} with oneDNN, of three runs the slowest of each. {cpu}, {threads} threads, {date};"
        " `cpu_avx2_1.json` to `_3`.",
        of_kinds("suite", "network"), lambda rows: grouped(slowest(rows), "suite"),
    ),
    Sheet(
        "Convolutions on sixteen cores, with Winograd", "cpu_cores_winograd",
        "The layers that take most of the work, float32, NHWC, batch 8: our time over that of"
        " PyTorch {torch} with oneDNN, with Winograd's kernels, as `Trainer` has them. {cpu}, 16"
        " threads, {date}; `cpu_cores_winograd.json`. A time of whole ticks of the system's clock"
        " is left out.",
        of_kinds("suite", "network"), lambda rows: grouped(believed(rows), "suite"),
    ),
    Sheet(
        "Convolutions on sixteen cores, direct", "cpu_cores",
        "The layers that take most of the work, float32, NHWC, batch 8: our time over that of"
        " PyTorch {torch} with oneDNN, with direct kernels alone, as `relay.build` has them. {cpu},"
        " 16 threads, {date}; `cpu_cores.json`. Likewise.",
        of_kinds("suite", "network"), lambda rows: grouped(believed(rows), "suite"),
    ),
    Sheet(
        "A training step on a CPU", "cpu_step",
        "{model}, float32, batch {batch}, loss and gradients. {cpu}, {threads} threads, {date};"
        " `cpu_step.json`.",
        (("layout",), ("ours, ms", "ms", ".0f"), ("PyTorch eager, ms", "torch_ms", ".0f"),
         ("ratio", None, ".2f")),
    ),
    Sheet(
        "bfloat16 on a CPU with AMX", "cpu_tiles",
        "The layers of each network with a twentieth of its work or more, bfloat16, NHWC, batch 8:"
        " our time over that of PyTorch {torch} with oneDNN in bfloat16, the shortest times of some"
        " runs beside other work. {cpu}, 16 of its virtual"
        " processors, {date}; `cpu_tiles.json`.",
        of_kinds("suite", "network"), lambda rows: grouped(rows, "suite"),
    ),
    Sheet(
        "bfloat16 on a CPU with AVX512_BF16", "cpu_pairs",
        "Likewise, one thread beside other work, the shortest times of some runs. {cpu}, PyTorch"
        " {torch}, {date}; `cpu_pairs.json`.",
        of_kinds("suite", "network"), lambda rows: grouped(rows, "suite"),
    ),
    Sheet(
        "Volumes on a CPU, with Winograd", "cpu_volumes_winograd",
        "As `Trainer` has it." + LAYERS_OF_VOLUMES + " `cpu_volumes_winograd.json`.",
        of_kinds("layout", "memory order"), lambda rows: grouped(rows, "layout"),
    ),
    Sheet(
        "Volumes on a CPU, without Winograd", "cpu_volumes",
        "As PyTorch's functions have it." + LAYERS_OF_VOLUMES + " `cpu_volumes.json`.",
        of_kinds("layout", "memory order"), lambda rows: grouped(rows, "layout"),
    ),
    Sheet(
        "Training steps of networks on a CPU", "cpu_step_cores",
        "Loss and gradients, NHWC, beside PyTorch {torch}, eager and by Inductor, in bfloat16 by"
        " autocast; the ratio is to the faster. {cpu}, beside other work; `cpu_step_cores.json`.",
        (*OF_STEPS, ("date",)), by_network,
    ),
    Sheet(
        "Training steps of networks on two cores", "cpu_step_two",
        "Likewise. {cpu}, PyTorch {torch}, 2 threads, {date}; `cpu_step_two.json`.",
        OF_STEPS, by_network,
    ),
    Sheet(
        "Training steps on a GPU", "gpu_against_h200",
        'Forward and backward at batch 128: ms, in brackets MiB of the device. "CUDA graphs" are'
        " torch.compile's; the ratio is to the best of PyTorch's. One call a row."
        " {gpu}, PyTorch {torch}; `gpu_against_h200.json`.",
        (("network", lambda row: f"{row['model']}, {row['dtype']}"),
         *((f"{name}, ms (MiB)", ms_and_mib(side)) for side, name in (
             ("ours", "ours"), ("eager", "eager"), ("compile", "torch.compile"),
             ("graphs", "CUDA graphs"))),
         ("ratio", None, ".2f"), ("date", lambda row: row.get("when", row.get("date", ""))[:10])),
        of_batch,
    ),
    Sheet(
        "Other networks on a GPU", "gpu_others_h200",
        "Forward and backward, of timm's networks: ms, in brackets MiB of the device; the ratio is"
        " to torch.compile with CUDA graphs, PyTorch's best where all of its ways were measured."
        " {gpu}, PyTorch {torch}, {date}; `gpu_others_h200.json`.",
        (("network", lambda row: f"{row['model']}, {row['dtype']}, {row['batch']}"),
         *((f"{name}, ms (MiB)", ms_and_mib(side)) for side, name in (
             ("ours", "ours"), ("graphs", "CUDA graphs"))),
         ("ratio", None, ".2f")),
        lambda rows: sorted(rows, key=lambda row: row["model"]),
    ),
    Sheet(
        "A step of volumes on a GPU", "gpu_volumes_h200",
        "Forward and backward, batch {batch} of 128³ voxels: ms, in brackets MiB of the device."
        " {gpu}, PyTorch {torch}, {date}; `gpu_volumes_h200.json`.",
        (("network", lambda row: f"{VOLUMES[row['model']]}, {row['dtype']}"),
         *((f"{name}, ms (MiB)", ms_and_mib(side)) for side, name in (
             ("ours", "whole step"), ("graphs", "CUDA graphs"),
             ("compile", "torch.compile, channels last"), ("contiguous", "channels first"))),
         ("ratio", None, ".2f")),
    ),
    Sheet(
        "PyTorch's own loop on a GPU", "gpu_loop_h200",
        "Forward and backward in PyTorch's own loop, bfloat16: ms, in brackets MiB of the device."
        " A row's sides in one call; where the whole step has no figure it was not in it."
        " {gpu}, PyTorch {torch}, {date}; `gpu_loop_h200.json`.",
        (("network, batch", lambda row: f"{row['model']}, {row['batch']}"),
         *((name, ms_and_mib(side)) for side, name in (
             ("ours", "whole step"), ("step", "`TrainingStep`"),
             ("backend", '`torch.compile(backend="relay_wgrad")`'),
             ("graphs", "torch.compile with CUDA graphs")))),
        lambda rows: sorted(rows, key=lambda row: row["batch"]),
    ),
    Sheet(
        "Two GPUs", "several_gpus_h200",
        "Bfloat16, {batch} images a GPU, SGD with momentum, two GPUs of one host: images a second,"
        " the share of two times one GPU's, and what a step waits for all-reduces."
        " {gpu}, PyTorch {torch}, {dates}; `several_gpus_h200.json`.",
        (("network", "model"), ("loop", lambda row: LOOPS[row["way"]]), ("two GPUs", "all", ".0f"),
         ("one GPU", "one", ".0f"), ("share", "scaling", ".2f"),
         ("waits, ms", "exposed_ms", ".2f")),
    ),
    Sheet(
        "Reading images", "gpu_images_h200",
        "JPEGs of 500x375 pixels, of which random parts become 224x224: images a second that are"
        " read by a host of {cores} processors, which others used too, and a processor's time for"
        " one; those that a `Trainer` of ResNet-50 takes of them, bfloat16, batch {batch}, and the"
        " share of the {alone:.0f} that it takes of a batch that is there. {gpu}, {cpu}, PyTorch"
        " {torch}, {date}; `gpu_images_h200.json`.",
        (("read by", lambda row: READERS[row["source"]]), ("threads or processes", "readers"),
         ("images/s", "read", ".0f"), ("processor, ms", "core_ms", ".2f"),
         ("a `Trainer` takes", "images", ".0f"), ("share", None, ".2f")),
        of_images,
        lambda rows: {"alone": max(row.get("alone", 0) for row in rows)},
    ),
    Sheet(
        "A part of the parameters on a GPU", "partial_training_cuda",
        "{dtype}, batch {batch}, beside PyTorch eager in channels_last with autocast and"
        " `benchmark`. {device}, {date}; `partial_training_cuda.json`.",
        (("network, what is trained", "what"), ("ours, ms", "ours.seconds", ".1f", 1e3),
         ("eager, ms", "channels_last.seconds", ".1f", 1e3),
         ("ours, MiB", "ours.peak", ".0f", 1 / MIB),
         ("eager, MiB", "channels_last.peak", ".0f", 1 / MIB)),
        partial,
    ),
    Sheet(
        "Convolutions by cuDNN on a GPU", "cudnn_h200",
        "Layers of {networks} networks, our time over PyTorch's with `benchmark`. {gpu}, driver"
        " {driver}, CUDA {cuda}, cuDNN {cudnn}, PyTorch {torch}, {date}; `cudnn_h200.json`.",
        of_kinds("mode", "dtype"), lambda rows: grouped(measured(rows), "mode"),
        lambda rows: {"networks": len({name for row in measured(rows) for name in row["uses"]})},
    ),
    Sheet(
        "Convolutions inside jax.jit", "jax_inside_h200",
        "Value and both gradients of each, inside `jax.jit`, in one process a side, whose calls are"
        " timed in turns; the last row in a call of its own. {gpu}, JAX {jax},"
        " PyTorch {torch}, {date}; `jax_inside_h200.json`.",
        (("convolutions", "what"), ("ours, ms", "ours", ".2f"), ("`lax`'s, ms", "lax", ".2f"),
         ("PyTorch, ms", "torch", ".2f")),
        inside_jax,
    ),
    Sheet(
        "Networks inside jax.jit", "jax_steps_h200",
        "A training step of each by `optimize`, beside plain `jax.jit`, timed in turns: ms of a"
        " step; seconds from the model's making to the first loss, with empty caches."
        " {gpu}, {cores} cores, JAX {jax}, {date}; `jax_steps_h200.json`.",
        (("network", "what"), ("ours, ms", "ours ms", ".2f"), ("plain, ms", "lax ms", ".2f"),
         ("ours, first, s", "ours first", ".1f"), ("plain, first, s", "lax first", ".1f")),
        steps_of_jax,
    ),
    Sheet(
        "Commands", "commands",
        "Seconds of processor time from the command's start to its end, with an empty cache but for"
        " the second `train`; the shortest of {turns} runs on a machine that others used too."
        " {cpu}, {cores} cores, {date}; `commands.json`.",
        (("command",), ("words", _short), ("processor, s", _processor)),
        values=lambda rows: {"turns": " or ".join(map(str, sorted({r["turns"] for r in rows})))},
    ),
)  # fmt: skip


def headline() -> str:
    """README's first two figures."""
    values = {figure.name: figure.values for figure in FIGURES}
    found = ((name, text, read(name)) for name, text in HEADLINE.items())
    return " ".join(text.format(**r.facts | values[name](r.rows)) for name, text, r in found)


def figures() -> str:
    """README's table: ratios are ours over the other's, geometric means."""
    lines = []
    for name, *texts, values in FIGURES:
        facts, rows = read(name)
        facts |= values(rows)
        lines.append([text.format(**facts) for text in texts])
    return _markdown(["what", "where", "figure"], lines)


def sheets() -> str:
    """The performance page's."""
    parts = []
    for sheet in SHEETS:
        facts, rows = read(sheet.name)
        where = sheet.where.format(**facts | sheet.values(rows))
        lines = [[cell(row, column) or "–" for column in sheet.columns] for row in sheet.rows(rows)]
        table = _markdown([head for head, *_ in sheet.columns], lines)
        parts.append(f"## {sheet.heading}\n\n{where}\n\n{table}")
    return "\n\n".join(parts)


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)] if len(head) > 3 else ["---"] * 3, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


PAGES = {README: (headline, figures), PERFORMANCE: (sheets,)}


def with_figures(path: Path) -> str:
    """A page with its figures between its marks."""
    head, *rest = path.read_text(encoding="utf-8").split(BEGIN)
    ends = [after.partition(END) for after in rest]
    if len(ends) != len(PAGES[path]) or not all(end for _, end, _ in ends):
        raise ValueError(f"{path.name} has not {len(PAGES[path])} times {BEGIN!r} and {END!r}")
    texts = (made() for made in PAGES[path])
    return head + "".join(
        f"{BEGIN}\n\n{text}\n\n{END}{tail}" for text, (_, _, tail) in zip(texts, ends, strict=True)
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.figures", description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="into their pages")
    write = parser.parse_args(argv).write
    for path, made in PAGES.items():
        if write:
            path.write_text(with_figures(path), encoding="utf-8")
        else:
            print(*(text() for text in made), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
