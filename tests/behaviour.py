"""What a change of structure must leave as it is: kernels, programs, decisions, as digests.

    python -m tests.behaviour before.json          # in the old tree
    python -m tests.behaviour --against before.json

Kernels for CPUs and CUDA of the benchmarks' layers, partitions and converted layouts of bundled
networks' training steps, generated C++ of the golden cases, and Relay's programs: printed,
differentiated, partitioned.  `--against` names every entry that differs and exits with 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track

import byoc_cudnn
import relay_wgrad
from legalize import cpu, cuda
from relay_wgrad import output, relay
from relay_wgrad.frontend import from_onnx
from relay_wgrad.transform import ConvertLayout
from tests.support.layers import LAYOUTS, SUITES, suite
from tests.support.relay.fixtures import fixture_names, load

Entry = tuple[str, Callable[[], str]]
TARGETS = {
    "v3": "{'kind': 'llvm', 'mcpu': 'x86-64-v3', 'num-cores': 2}",
    "v4": "{'kind': 'llvm', 'mcpu': 'x86-64-v4', 'num-cores': 2}",
}
NETWORKS = ("squeezenet", "shufflenet", "resnet50", "vgg19")


def kernels() -> Iterator[Entry]:
    for name in SUITES:
        for layout in LAYOUTS:
            for layer in suite(name, 8, "f32", layout, LAYOUTS):
                for problem in layer.problems():
                    line = problem.repro()
                    for target, text in TARGETS.items():
                        yield (
                            f"cpu {target} {line}",
                            lambda p=problem, t=text: str(
                                cpu.prim_func(p, eval_target(t)).script()
                            ),
                        )
                    yield f"cuda {line}", lambda p=problem: str(cuda.prim_func(p).script())


def eval_target(text: str) -> object:
    import ast

    from tvm.target import Target

    return Target(ast.literal_eval(text))


def networks() -> Iterator[Entry]:
    for name in NETWORKS:
        graph = from_onnx(name, batch=2)

        def step(graph: object = graph) -> object:
            return graph.gradient()  # type: ignore[attr-defined]

        def converted(graph: object = graph) -> object:
            return ConvertLayout("NHWC")(step(graph))

        yield f"gradient {name}", lambda f=step: str(f().script())
        yield f"NHWC {name}", lambda f=converted: str(f().script())
        for backend in ("cudnn", "cutlass"):
            yield (
                f"{backend} {name}",
                lambda f=converted, b=backend: _partitioned(*byoc_cudnn.partition(f(), [b])),
            )


def _partitioned(mod: object, report: byoc_cudnn.Report) -> str:
    entries = "\n".join(str(entry) for entry in report.entries)
    return f"{mod.script()}\n{entries}"  # type: ignore[attr-defined]


def sources() -> Iterator[Entry]:
    for path in sorted((Path(__file__).parent / "golden").iterdir()):
        yield f"golden {path.name}", path.read_text


def relay_programs() -> Iterator[Entry]:
    for name in fixture_names("*"):
        text = load(name)[2]

        def typed(text: str = text) -> object:
            return relay.transform.InferType()(relay.fromtext(text))

        yield f"relay text {name}", lambda f=typed: str(relay.astext(f()))
        yield f"relay gradient {name}", lambda f=typed: _gradient(f())
        yield (
            f"relay cudnn {name}",
            lambda f=typed: str(relay.astext(byoc_cudnn.partition_for_cudnn(f())[0])),
        )


def _gradient(mod: object) -> str:
    derived = relay.transform.gradient(mod["main"], mod=mod)  # type: ignore[index]
    return str(relay.astext(relay.IRModule.from_expr(derived)))


def digest(make: Callable[[], str]) -> str:
    try:
        text = make()
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        text = f"{type(error).__name__}: {error}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.behaviour", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="write the digests there")
    parser.add_argument("--against", type=Path, help="compare with such a file")
    parser.add_argument("--only", default="", help="entries whose name begins so")
    args = parser.parse_args(argv)
    console = Console(soft_wrap=True, highlight=False)
    warnings.simplefilter("ignore")  # partitions tell of composites
    relay_wgrad.register()
    entries = [
        (name, make)
        for part in (kernels, sources, relay_programs, networks)
        for name, make in part()
        if name.startswith(args.only)
    ]
    found = {name: digest(make) for name, make in track(entries, "digests", console=console)}
    if args.file:
        output.write_json(args.file, found)
    if not args.against:
        return 0
    old = json.loads(args.against.read_text(encoding="utf-8"))
    wrong = sorted(name for name in {**old, **found} if old.get(name) != found.get(name))
    wrong = [name for name in wrong if name.startswith(args.only)]
    for name in wrong:
        console.print(f"differs: {name}")
    console.print(f"{len(found)} entries, {len(wrong)} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
