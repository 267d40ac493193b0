"""`python -m relay_wgrad export`: a training step as an ONNX model."""

from __future__ import annotations

import argparse
import sys

from .. import output, registry
from ..display import Display
from ..frontend import gradient_to_onnx
from ..training.step import converted
from . import arguments


def run(args: argparse.Namespace) -> int:
    """Writes the file; 1 for what cannot be written."""
    if args.dtype not in ("float32", "float64"):
        print("export: --dtype must be f32 or f64: mixed precision is not written", file=sys.stderr)
        return 2
    output.check_all({"--output": args.output}, {"MODEL": args.model})
    registry.register()
    display = Display(args.quiet)
    with display.progress:
        with display.part("importing"):
            graph = arguments.graph_of(args)
        with display.part("differentiating"):
            module = converted(graph.gradient(), args.layout)
        with display.part("writing"):
            model = gradient_to_onnx(graph, module=module, learning_rate=args.learning_rate)
            with output.replacing(args.output) as made:
                made.write_bytes(model.SerializeToString())
    if not args.quiet:
        print(f"wrote {args.output}: {len(model.graph.node)} nodes", file=sys.stderr)
    return 0
