"""The stubs of the builders that are made of operators' records."""

from __future__ import annotations

import builtins
import json
import textwrap
from functools import partial
from inspect import Parameter
from pathlib import Path

from relay_wgrad.relay.op import generated
from relay_wgrad.relay.records import REGISTRY

FOLDER = Path(generated.__file__).parent
NAMES = ("tensor", "nn", "image", "vision", "random", "annotation")
HEAD = "Written by `pytest --update-golden tests/relay_wgrad/relay/test_builders.py`."


def _written(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _argument(parameter: Parameter) -> str:
    text = f"{parameter.name}: {parameter.annotation}"
    if parameter.default is Parameter.empty:
        return text
    return f"{text} = {_written(parameter.default)}"


def stub(name: str) -> str:
    """The text of a module's stub."""
    within = "" if name == "tensor" else name
    found = [(op.rpartition(".")[2], REGISTRY[op]) for op in REGISTRY]
    operators = dict(
        sorted(
            ((each, op) for each, op in found if op.doc and op.name.rpartition(".")[0] == within),
            key=lambda pair: pair[0],
        )
    )
    wrap = partial(textwrap.wrap, width=100, subsequent_indent="    ", break_on_hyphens=False)
    lines = wrap(f"__all__ = {json.dumps(list(operators))}")
    for each, op in operators.items():
        signature = generated.signature_of(op)
        arguments = [_argument(p) for p in signature.parameters.values()]
        gives = f") -> {signature.return_annotation}: ..."
        line = f"def {each}({', '.join(arguments)}{gives}"
        if len(line) > 100:
            inner = wrap("    " + ", ".join(arguments))
            line = "\n".join([f"def {each}(", *inner, gives])
        lines.append(line)
    body = "\n".join(lines)
    imports = ["from collections.abc import Sequence\n"] if "Sequence[" in body else []
    imports.append("from ...ast import Call, Expr")
    imports += ["from ...expr import TupleWrapper"] if "TupleWrapper" in body else []
    kinds = [kind for kind in ("Pairs", "Sizes") if f": {kind}" in body]
    imports += [f"from ...make import {', '.join(kinds)}"] if kinds else []
    shadows = any(hasattr(builtins, each) for each in operators)
    names = "# ruff: noqa: A001, RUF022  Relay's names\n" if shadows else ""
    head = f'"""{HEAD}"""\n\n# fmt: off\n{names}'
    return "\n".join([head, *imports, "", body, ""])
