"""StableHLO's modules through JAX's own bindings of MLIR: text, bytecode, types, constants."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np

from ...dtypes import numpy_dtype
from ..weights import Array

_DTYPES = {
    "i1": "bool", "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
    **{f"i{n}": f"int{n}" for n in (8, 16, 32, 64)},
    **{f"ui{n}": f"uint{n}" for n in (8, 16, 32, 64)},
}  # fmt: skip
_PORTABLE = b"StableHLO_v"  # in the first bytes of an artifact
_NEED = "a StableHLO program is read by JAX's bindings of MLIR: pip install 'relay-wgrad[jax]'"


def parsed(source: Any) -> Any:
    """The module of a program: text, bytecode, a portable artifact, or what holds one.

    Raises TypeError for something else, ValueError for what MLIR does not parse,
    ModuleNotFoundError without JAX.
    """
    if hasattr(source, "mlir_module_serialized"):  # jax.export.Exported
        source = bytes(source.mlir_module_serialized)
    elif hasattr(source, "compiler_ir"):  # jax.stages.Lowered
        source = source.compiler_ir("stablehlo")
    if hasattr(source, "body") and hasattr(source, "operation"):
        return source
    if not isinstance(source, (str, bytes)):
        raise TypeError(
            "from_stablehlo: expected text, bytecode, or what jax.jit(f).lower(...) gives, got"
            f" {type(source).__name__}"
        )
    try:
        context = import_module("jax.interpreters.mlir").make_ir_context()
        ir = import_module("jaxlib.mlir.ir")
        stablehlo = import_module("jaxlib.mlir.dialects.stablehlo")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{_NEED} ({error})") from error
    try:
        with context:
            if isinstance(source, bytes) and _PORTABLE in source[:32]:
                return stablehlo.deserialize_portable_artifact(context, source)
            return ir.Module.parse(source, context)
    except Exception as error:  # MLIRError, whose class is the bindings' own
        lines = [line for line in str(error).splitlines() if line.strip()]
        told = " ".join(lines[:2]) or type(error).__name__
        raise ValueError(f"from_stablehlo: not a module of StableHLO: {told}") from error


def functions(module: Any) -> tuple[Any, dict[str, Any]]:
    """(the program's function, all by name).  Raises ValueError where there is none."""
    found = {}
    for one in module.body.operations:
        if str(one.operation.name) == "func.func":
            found[text(one.operation.attributes["sym_name"])] = one.operation
    public = [
        f for name, f in found.items()
        if "sym_visibility" not in f.attributes or text(f.attributes["sym_visibility"]) == "public"
    ]  # fmt: skip
    if "main" not in found and len(public) != 1:
        raise ValueError(f"from_stablehlo: no function main among {', '.join(found) or 'none'}")
    return found.get("main", public[0] if public else None), found


def type_of(value: Any) -> tuple[tuple[int, ...], str]:
    """(shape, dtype) of a value.  Raises ValueError for what is no tensor of known sizes."""
    match = re.fullmatch(r"tensor<((?:\d+x)*)(\w+)(?:,.*)?>", str(value.type))
    if match is None or match[2] not in _DTYPES:
        raise ValueError(f"a value of type {value.type} is not supported")
    return tuple(int(n) for n in match[1].split("x") if n), _DTYPES[match[2]]


def text(attribute: Any) -> str:
    """A string, or a symbol's name."""
    return str(attribute).strip('@"')


def integers(attribute: Any) -> list[int]:
    """An array or a dense tensor of integers, in order."""
    if hasattr(attribute, "is_splat"):
        return [int(v) for v in np.asarray(attribute).reshape(-1)]
    return [int(v) for v in attribute]


def word(attribute: Any) -> str:
    """The last word of an enumeration's attribute: GT of `#stablehlo<comparison_direction GT>`."""
    return str(re.findall(r"\w+", str(attribute))[-1])


def constant(attribute: Any, shape: tuple[int, ...], dtype: str) -> Array:
    """The values of a constant, one where all are the same.

    Raises ValueError for values that are elsewhere.
    """
    wanted = numpy_dtype(dtype)
    if not hasattr(attribute, "is_splat"):
        raise ValueError("a constant whose values are not in the program is not supported")
    if attribute.is_splat:
        number = getattr(attribute.get_splat_value(), "value", None)
        return np.full((1,) * len(shape), number).astype(wanted)
    if dtype == "bfloat16":  # the bindings have no numbers of it
        return _printed(str(attribute), wanted).reshape(shape)
    return np.asarray(attribute).astype(wanted).reshape(shape)


def _printed(attribute: str, dtype: Any) -> Array:
    """The values of `dense<…> : …`: decimal numbers, bits of one, or bytes of all."""
    inside = attribute[attribute.index("<") + 1 : attribute.rindex(">", 0, attribute.rindex(":"))]
    if inside.startswith('"0x'):
        return np.frombuffer(bytes.fromhex(inside[3:-1]), dtype)
    words = re.findall(r"0x[0-9A-F]+|[-+.\deE]+", inside)
    bits = np.dtype(f"uint{8 * dtype.itemsize}")
    return np.asarray([
        np.asarray(int(word, 16), bits).view(dtype) if word.startswith("0x")
        else np.asarray(float(word)).astype(dtype)
        for word in words
    ])  # fmt: skip


def body(operation: Any, region: int = 0) -> str:
    """The one operation of a region that takes the region's arguments in order, "" of others."""
    block = operation.regions[region].blocks[0]
    steps = list(block.operations)
    if len(steps) != 2:
        return ""
    made, end = steps[0].operation, steps[1].operation
    given = list(block.arguments)
    if list(made.operands) != given or list(end.operands) != list(made.results):
        return ""
    name = str(made.name).rpartition(".")[2]
    if name == "compare":
        return word(made.attributes["comparison_direction"])
    return name


def steps(function: Any) -> Iterator[Any]:
    """A function's operations.  Raises ValueError where it is declared only, or has branches."""
    blocks = list(function.regions[0].blocks)
    if len(blocks) != 1:
        raise ValueError(f"function {text(function.attributes['sym_name'])!r} is not one block")
    for one in blocks[0].operations:
        yield one.operation
