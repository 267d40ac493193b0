"""The pages' tables of figures, from what was measured: `python -m benchmarks.figures`.

    python -m benchmarks.figures            # print them
    python -m benchmarks.figures --write    # put each into its page, between the page's marks

The README has a row for each subject, docs/reference/performance.md a table.  Each reads files of
`benchmarks/results`: figures, machine, versions and date are theirs.
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

RESULTS = Path(__file__).parent / "results"
README = RESULTS.parents[1] / "README.md"
PERFORMANCE = RESULTS.parents[1] / "docs" / "reference" / "performance.md"
BEGIN, END = "<!-- figures: python -m benchmarks.figures --write -->", "<!-- end of figures -->"
KINDS = ("fprop", "dgrad", "wgrad")


class Result(NamedTuple):
    """A file of results."""

    facts: dict[str, Any]
    rows: list[dict[str, Any]]


def read(name: str) -> Result:
    """A file of results, of today's form (`benchmarks.runner`) or of one that is in the folder.

    Those have rows alone, or by keys, and facts beside them, under "about", or in each row.
    """
    found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    found = {"rows": found} if isinstance(found, list) else found
    rows = found.pop("rows")
    if isinstance(rows, dict):
        rows = [{"key": key, **row} for key, row in rows.items()]
    nested = [found[key] for key in ("about", "machine", "versions", "options") if key in found]
    facts = {**rows[0], **found}
    for each in nested:
        facts |= each if isinstance(each, dict) else {}
    facts.setdefault("device", facts.get("gpu", facts.get("cpu")))
    facts.setdefault("dates", facts.get("date"))
    return Result(facts, rows)


def _by_kind(rows: Iterable[dict[str, Any]]) -> str:
    found = defaultdict(list)
    for row in rows:
        found[row["kind"]].append(row["ratio"])
    return ", ".join(f"{kind} {geometric_mean(found[kind]):.2f}" for kind in KINDS)


def _range(ratios: Sequence[float]) -> str:
    return f"({min(ratios):.2f} to {max(ratios):.2f})"


def _slowest_cpu_rows() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The machine, and of three runs the slowest row of each problem."""
    runs = [read(f"cpu_avx2_{i}") for i in (1, 2, 3)]
    slowest: dict[str, dict[str, Any]] = {}
    for row in (row for run in runs for row in run.rows):
        if row["ratio"] >= slowest.get(row["problem"], row)["ratio"]:
            slowest[row["problem"]] = row
    return runs[0].facts, list(slowest.values())


def cpu_layers() -> list[str]:
    machine, rows = _slowest_cpu_rows()
    return [
        f"{len(rows)} convolutions of six networks, float32, NHWC, batch 8, beside oneDNN's",
        f"{machine['cpu']}, {machine['threads']} cores, {machine['date']}",
        f"time ratio {_by_kind(rows)}; slowest {max(row['ratio'] for row in rows):.2f}",
    ]


def cpu_step() -> list[str]:
    facts, rows = read("cpu_step")
    ours = min(rows, key=lambda row: row["ms"])
    theirs = min(row["torch_ms"] for row in rows)
    return [
        f"{ours['model']}, batch {ours['batch']}, loss and gradients",
        f"{facts['cpu']}, {ours['threads']} cores, {ours['date']}",
        f"{ours['ms']:.0f} ms, PyTorch eager {theirs:.0f}",
    ]


def first_gradients() -> list[str]:
    facts, runs = read("cpu_first")
    found = cpu_compile.medians(runs)
    small = {row["way"]: row for row in found if row["network"] == "small"}
    ways = (
        ("trainer", "`Trainer`"),
        ("compile", "`torch.compile`, ours"),
        ("inductor", "Inductor"),
    )
    said = (f"{name} {small[way]['cold first']:.1f} / {small[way]['warm first']:.1f}"
            for way, name in ways)  # fmt: skip
    beside = [row for row in found if "warm first ratio" in row and row["way"] != "inductor"]
    cold, warm = ([row[f"{state} first ratio"] for row in beside] for state in ("cold", "warm"))
    networks = len({row["network"] for row in beside})
    ratios = " / ".join(f"{geometric_mean(each):.2f} {_range(each)}" for each in (cold, warm))
    ratios = f"ratio to Inductor {ratios}"
    cores = facts.get("cores_each") or facts["cores"]
    return [
        "seconds to the first gradients, 25,000 parameters, first / second process",
        f"{facts['cpu']}, {cores} cores, PyTorch {facts['torch']}, {facts['date']}",
        f"{', '.join(said)}; of {networks} networks, three ways, {ratios}",
    ]


def gpu_steps() -> list[str]:
    facts, rows = read("gpu_against_h200")
    rows = [row for row in rows if row["batch"] == 128]
    ratios = [ratio(row) for row in rows]
    models = {row["model"] for row in rows}
    sides = "beside the best of eager, torch.compile and torch.compile with CUDA graphs"
    return [
        f"forward and backward of {len(models)} networks, batch 128, three dtypes, {sides}",
        f"{facts['gpu']}, PyTorch {facts['torch'].partition('+')[0]}, {facts['dates']}",
        f"time ratio {geometric_mean(ratios):.2f} of {len(ratios)} {_range(ratios)}",
    ]


def cudnn_layers() -> list[str]:
    about, rows = read("cudnn_h200")
    rows = [row for row in rows if row.get("ratio")]
    return [
        f"{len(rows)} convolutions offloaded to cuDNN, beside PyTorch's with `benchmark`",
        f"{about['gpu']}, PyTorch {about['torch'].partition('+')[0]}, {about['date'][:10]}",
        f"time ratio {_by_kind(rows)}",
    ]


def depthwise() -> list[str]:
    facts, rows = read("gpu_depthwise_batches_h200")
    ratios = [row["ratio"] if "ratio" in row else row["us"] / row["torch_us"] for row in rows]
    return [
        f"{len(ratios)} depthwise convolutions by kernels of our own, float16, beside PyTorch's",
        f"{facts['device']}, PyTorch 2.11, {facts['date']}",
        f"time ratio {geometric_mean(ratios):.2f}; slowest {max(ratios):.2f}",
    ]


def volumes() -> list[str]:
    facts, (row,) = read("gpu_volumes_h200")
    sides = row["sides"]
    other = sides["compile"]  # the best of PyTorch's
    return [
        f"a step of nnU-Net's U-Net, batch {row['batch']} of 128³, bfloat16, beside torch.compile",
        f"{facts['gpu']}, PyTorch {facts['torch']}, {facts['date']}",
        f"time ratio {row['ratio']:.2f}, memory {sides['ours']['memory'] / other['memory']:.2f}",
    ]


def inside_jax() -> list[str]:
    facts, rows = read("jax_inside_h200")
    found = _inside_jax(rows)
    slow = [each for each in found.values() if each.get("lax", 0) > 5 * each["ours"]]
    against = geometric_mean([each["lax"] / each["ours"] for each in slow])
    beside = [each["ours"] / each["torch"] for each in found.values() if "torch" in each]
    times = f"{against:.0f} times as fast as `lax`'s of {len(slow)} that XLA computes slowly"
    return [
        "value and gradients of convolutions inside `jax.jit`",
        f"{facts['gpu']}, JAX {facts['jax']}, PyTorch {facts['torch']}, {facts['date']}",
        f"{times}; time ratio to PyTorch's {geometric_mean(beside):.2f} {_range(beside)}",
    ]


def _inside_jax(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Case -> side -> milliseconds, of the last call of each."""
    found = defaultdict[str, dict[str, float]](dict)
    for row in rows:
        found[row["row"]][row["side"]] = row["ms"]
    return found


FIGURES = (
    cpu_layers, cpu_step, first_gradients, gpu_steps, volumes, cudnn_layers, depthwise, inside_jax,
)  # fmt: skip


def table() -> str:
    """README's: ratios are ours over the other's, geometric means."""
    return _markdown(["what", "where", "figure"], (row() for row in FIGURES))


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)] if len(head) > 3 else ["---"] * 3, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# --- docs/reference/performance.md: (heading, what and where, columns, rows) of each table

Table = tuple[str, str, Sequence[str], list[list[str]]]
MIB = 2**20


def cpu_networks() -> Table:
    machine, rows = _slowest_cpu_rows()
    lines = []
    for network in dict.fromkeys(row["suite"] for row in rows):
        own = [row for row in rows if row["suite"] == network]
        means = [_mean([row["ratio"] for row in own if row["kind"] == kind]) for kind in KINDS]
        lines.append([network, str(len(own)), *means, f"{max(row['ratio'] for row in own):.2f}"])
    where = (
        "The distinct layers of each network, float32, NHWC, batch 8: our time over that of PyTorch"
        f" {machine['torch']} with oneDNN, of three runs the slowest of each. {machine['cpu']},"
        f" {machine['threads']} threads, {machine['date']}; `cpu_avx2_1.json` to `_3`."
    )
    return "Convolutions on a CPU", where, ["network", "layers", *KINDS, "slowest"], lines


def _mean(ratios: Sequence[float]) -> str:
    return f"{geometric_mean(ratios):.2f}" if ratios else "–"


def cpu_steps() -> Table:
    first, rows = read("cpu_step")
    where = (
        f"{first['model']}, float32, batch {first['batch']}, loss and gradients. {first['cpu']},"
        f" {first['threads']} threads, {first['date']}; `cpu_step.json`."
    )
    head = ["layout", "ours, ms", "PyTorch eager, ms", "ratio"]
    lines = [
        [row["layout"], f"{row['ms']:.0f}", f"{row['torch_ms']:.0f}", f"{row['ratio']:.2f}"]
        for row in rows
    ]
    return "A training step on a CPU", where, head, lines


def partial_steps() -> Table:
    facts, found = read("partial_training_cuda")
    rows = {_partial(row): row for row in found}
    names = {"all": "all", "last": "the last ten tensors",
             "norms": "scale and bias of the norms", "biases": "`*.bias`"}  # fmt: skip
    lines = []
    for key, ours in rows.items():
        network, what, side = key
        if side != "ours":
            continue
        eager = rows[network, what, "channels_last"]
        figures = (f"{1e3 * ours['seconds']:.1f}", f"{1e3 * eager['seconds']:.1f}",
                   f"{ours['peak'] / MIB:.0f}", f"{eager['peak'] / MIB:.0f}")  # fmt: skip
        lines.append([f"{network}, {names[what]}", *figures])
    where = (
        f"{facts['dtype']}, batch {facts['batch']}, beside PyTorch eager in channels_last with"
        f" autocast and `benchmark`. {facts['device']}, {found[0]['date']};"
        " `partial_training_cuda.json`."
    )
    head = ["network, what is trained", "ours, ms", "eager, ms", "ours, MiB", "eager, MiB"]
    return "A part of the parameters on a GPU", where, head, lines


def _partial(row: dict[str, Any]) -> tuple[str, ...]:
    """(network, part, side) of a row."""
    return tuple(row["key"].split() if "key" in row else (row["network"], row["part"], row["side"]))


def gpu_networks() -> Table:
    facts, rows = read("gpu_against_h200")
    rows = [row for row in rows if row["batch"] == 128]
    sides = {"ours": "ours", "eager": "eager", "compile": "torch.compile", "graphs": "CUDA graphs"}
    lines = []
    for row in sorted(rows, key=lambda row: (row["dtype"], row["model"])):
        cells = [_ms_and_mib(row["sides"].get(side)) for side in sides]
        when = row.get("when", row.get("date", ""))[:10]
        lines.append([f"{row['model']}, {row['dtype']}", *cells, f"{ratio(row):.2f}", when])
    where = (
        'Forward and backward at batch 128: ms, in brackets MiB of the device. "CUDA graphs" are'
        " torch.compile's; the ratio is to the best of PyTorch's. One call a row."
        f" {facts['gpu']}, PyTorch {facts['torch']}; `gpu_against_h200.json`."
    )
    head = ["network", *(f"{name}, ms (MiB)" for name in sides.values()), "ratio", "date"]
    return "Training steps on a GPU", where, head, lines


def _ms_and_mib(side: dict[str, Any] | None) -> str:
    return f"{side['ms']:.2f} ({side['memory'] / MIB:.0f})" if side else "–"


def gpu_layers() -> Table:
    about, rows = read("cudnn_h200")
    rows = [row for row in rows if row.get("ratio")]
    networks = {name for row in rows for name in row["uses"]}
    lines = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        own = [row for row in rows if row["mode"] == mode]
        means = [_mean([row["ratio"] for row in own if row["kind"] == kind]) for kind in KINDS]
        lines.append([mode, str(len(own)), *means, f"{max(row['ratio'] for row in own):.2f}"])
    where = (
        f"Layers of {len(networks)} networks, our time over PyTorch's with `benchmark`."
        f" {about['gpu']}, driver {about['driver']}, CUDA {about['cuda']}, cuDNN {about['cudnn']},"
        f" PyTorch {about['torch']}, {about['date'][:10]}; `cudnn_h200.json`."
    )
    head = ["dtype", "layers", *KINDS, "slowest"]
    return "Convolutions by cuDNN on a GPU", where, head, lines


def gpu_volumes() -> Table:
    facts, (row,) = read("gpu_volumes_h200")
    names = {
        "ours": "ours", "written": "ours, without its norms as operators", "eager": "eager",
        "compile": "torch.compile",
    }  # fmt: skip
    lines = [
        [name, f"{side['ms']:.2f}", f"{side['memory'] / MIB:.0f}"]
        for key, name in names.items()
        if (side := row["sides"].get(key))
    ]
    where = (
        "Forward and backward of a U-Net as nnU-Net's (InstanceNorm, LeakyReLU, 32 to 320 channels,"
        f" five levels), batch {row['batch']} of 128³ voxels, bfloat16, beside other work on the"
        f" host. {facts['gpu']}, PyTorch {facts['torch']}, {facts['date']};"
        " `gpu_volumes_h200.json`."
    )
    return "A step of volumes on a GPU", where, ["side", "step, ms", "MiB"], lines


def own_loop() -> Table:
    facts, rows = read("gpu_loop_h200")
    names = {
        "ours": "whole step", "step": "`TrainingStep`", "backend": "`torch.compile`, ours",
        "graphs": "torch.compile with CUDA graphs", "eager": "eager",
    }  # fmt: skip
    lines = [
        [f"{row['model']}, {row['batch']}", *(f"{row['sides'][key]['ms']:.2f}" for key in names)]
        for row in sorted(rows, key=lambda row: row["batch"])
    ]
    where = (
        "Forward and backward in PyTorch's own loop, bfloat16, milliseconds, beside other work on"
        f" the host. {facts['gpu']}, PyTorch {facts['torch']}, {facts['date']};"
        " `gpu_loop_h200.json`."
    )
    return "PyTorch's own loop on a GPU", where, ["network, batch", *names.values()], lines


def several_gpus() -> Table:
    found = json.loads((RESULTS / "several_gpus_h200.json").read_text(encoding="utf-8"))
    rows = {row["how"]: row for run in found["runs"] for row in run["rows"]}
    alone = {"DDP, eager": "eager", "torch.compile(DDP)": "torch.compile"}
    alone |= {"DDP, pieces": "no DDP, one piece", "DDP, one piece": "no DDP, one piece"}
    alone |= dict.fromkeys(("distributed", "distributed, all at the end"), "alone")
    names = {
        "DDP, pieces": "`TrainingStep` in DDP", "DDP, one piece": "the same in one piece",
        "distributed": "`Trainer`", "distributed, all at the end": "`Trainer`, all at the end",
        "torch.compile(DDP)": "torch.compile in DDP", "DDP, eager": "eager in DDP",
    }  # fmt: skip
    lines = [
        [names[how], f"{(two := rows[how]['images_s']):.0f}",
         f"{(one := rows[alone[how]]['images_s']):.0f}", f"{two / (2 * one):.2f}"]
        for how in names
    ]  # fmt: skip
    first = found["runs"][0]
    where = (
        f"{found['benchmark']}: images a second, and the share of two times one GPU's."
        f" {first['device']}, PyTorch {first['torch'].partition('+')[0]}, {found['date']}, two"
        " calls; `several_gpus_h200.json`."
    )
    return "Two GPUs", where, ["loop", "two GPUs", "one GPU", "share"], lines


def jax_inside() -> Table:
    facts, rows = read("jax_inside_h200")
    names = {"ours": "ours, ms", "lax": "`lax`'s, ms", "torch": "PyTorch, ms"}
    lines = [
        [facts["what"][case], *(f"{sides[s]:.2f}" if s in sides else "–" for s in names)]
        for case, sides in _inside_jax(rows).items()
    ]
    where = (
        "Value and both gradients of each, inside `jax.jit`, in one process a side. Where a case"
        " was run again with kernels chosen by measured times, that run counts. `lax`'s transposed"
        f" one in one dimension was not run. {facts['gpu']}, JAX {facts['jax']}, PyTorch"
        f" {facts['torch']}, {facts['date']}; `jax_inside_h200.json`."
    )
    return "Convolutions inside jax.jit", where, ["convolutions", *names.values()], lines


def commands() -> Table:
    facts, rows = read("commands")
    lines = [
        [row["command"], f"`{row['words'].replace('{folder}/', '')}`",
         f"{row['processor']:.{2 if row['processor'] < 1 else 1}f}"]
        for row in rows
    ]  # fmt: skip
    turns = " or ".join(map(str, sorted({row["turns"] for row in rows})))
    where = (
        "Seconds of processor time from the command's start to its end, with an empty cache but for"
        f" the second `train`; the shortest of {turns} runs on a machine that others used too."
        f" {facts['cpu']}, {facts['cores']} cores, {facts['date']}; `commands.json`."
    )
    return "Commands", where, ["command", "words", "processor, s"], lines


TABLES: tuple[Callable[[], Table], ...] = (
    cpu_networks, cpu_steps, gpu_networks, gpu_volumes, own_loop, several_gpus, partial_steps,
    gpu_layers, jax_inside, commands,
)  # fmt: skip


def tables() -> str:
    """The performance page's."""
    parts = []
    for heading, where, head, rows in (make() for make in TABLES):
        parts.append(f"## {heading}\n\n{where}\n\n{_markdown(head, rows)}")
    return "\n\n".join(parts)


PAGES = {README: table, PERFORMANCE: tables}


def with_figures(path: Path) -> str:
    """A page with its figures between its marks."""
    head, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{path.name} has no {BEGIN!r} and {END!r}")
    return f"{head}{BEGIN}\n\n{PAGES[path]()}\n\n{END}{tail}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.figures", description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="into their pages")
    write = parser.parse_args(argv).write
    for path, made in PAGES.items():
        if write:
            path.write_text(with_figures(path), encoding="utf-8")
        else:
            print(made())
    return 0


if __name__ == "__main__":
    sys.exit(main())
