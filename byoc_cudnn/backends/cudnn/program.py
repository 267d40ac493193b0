"""A stand-alone C++ program that runs one convolution problem on cuDNN, checks it and times it.

The program needs a host compiler, cuDNN 9 and CUDA's runtime; it is meant to be read, too.  Its
text is `templates/program.cc.in`, where `//? word` … `//? end` brackets lines for some problems
only, and `@NAME@` stands for a number or a word.  Everything that is put in comes from a checked
`ConvProblem`, as a number or out of the tables below; no text of a caller's reaches the source.
"""

from __future__ import annotations

import re

from relay_wgrad.argument_types import check_type, checked_bool, checked_integer
from relay_wgrad.dtypes import HALVES
from relay_wgrad.layouts import ACTIVATION, KERNEL, is_permutation
from relay_wgrad.problem import ConvKind, ConvProblem

from ...codegen.templates import template
from .check import CUDNN_TYPES, workspace_of

_MOST_ELEMENTS = 2**31  # of a tensor, and the bound of each number: int64 products cannot overflow

# role -> (name in the program, axis letter of a layout -> size in the program)
_TENSORS = {
    "data": ("x", {"N": "N", "C": "C", "H": "H", "W": "W"}),
    "weight": ("w", {"O": "K", "I": "Cg", "H": "R", "W": "S"}),
    "grad": ("y", {"N": "N", "C": "K", "H": "P", "W": "Q"}),
}
_CPP_TYPE = {
    "float16": "Half",
    "bfloat16": "BFloat16",
    "float32": "float",
    "float64": "double",
}
_TAGS = {"float32": "CUDNN_TYPE_FLOAT", "float64": "CUDNN_TYPE_DOUBLE"}
# A few times the rounding of the result (and of TF32's operands); a wrong kernel is off by about 1.
_TOLERANCE = {"float16": "2e-3", "bfloat16": "2e-2", "float32": "1e-4", "float64": "1e-12"}
_TF32_TOLERANCE = "3e-3"


def emit(
    problem: ConvProblem, *, allow_tf32: bool = True, workspace_limit: int | None = None
) -> str:
    """The program for `problem`, whose sizes are all numbers.

    With `allow_tf32=False` no engine is taken that rounds float32 operands to TF32.  Raises
    ValueError for a problem that does not fit, or is too large for a GPU program of this kind;
    TypeError for another type of an argument.
    """
    check_type("emit: problem", problem, ConvProblem, "a ConvProblem")
    checked_bool("emit: allow_tf32", allow_tf32)
    if workspace_limit is not None:
        checked_integer("emit: workspace_limit", workspace_limit, 0)
    _check(problem, workspace_limit or 0)
    if workspace_limit is None:
        workspace_limit = workspace_of(problem)
    values = _values(problem, allow_tf32, workspace_limit)
    return render(template("cudnn", "program.cc.in"), _conditions(problem), values)


def render(text: str, conditions: set[str], values: dict[str, str]) -> str:
    """Fills a template: keeps the brackets whose word is in `conditions`, puts in `values`."""
    kept: list[str] = []
    keep = True
    for line in text.splitlines():
        if line.startswith("//? "):
            word = line[4:]
            keep = word == "end" or word in conditions
        elif keep:
            kept.append(re.sub(r"@([A-Z0-9_]+)@", lambda match: values[match[1]], line))
    return "\n".join(kept) + "\n"


def _check(problem: ConvProblem, workspace_limit: int) -> None:
    if not problem.is_static:
        raise ValueError(f"a program is for sizes that are numbers, got {problem}")
    numbers = (problem.groups, *problem.strides, *problem.padding, *problem.dilation)
    if not all(isinstance(number, int) and number < _MOST_ELEMENTS for number in numbers):
        raise ValueError(f"groups, strides, padding and dilation must be below 2^31, got {numbers}")
    for role in _TENSORS:
        if problem.dtype(role) not in CUDNN_TYPES:
            raise ValueError(f"{role} dtype must be one of {', '.join(CUDNN_TYPES)}")
    problem.check()
    for role in _TENSORS:
        layout, canonical = problem.layout(role), KERNEL if role == "weight" else ACTIVATION
        if not is_permutation(layout, canonical):
            raise ValueError(f"{role} layout {layout!r} is no permutation of {canonical}")
        elements = 1
        for size in problem.canonical_shape(role):
            elements *= size
        if elements >= _MOST_ELEMENTS:
            raise ValueError(f"{role} has {elements} elements; at most 2^31 - 1 are supported")
    if not 0 <= workspace_limit < 2**63:
        raise ValueError(f"the workspace limit must be at least 0, got {workspace_limit}")


def _conditions(problem: ConvProblem) -> set[str]:
    """The words of the template's brackets that hold."""
    top, left, bottom, right = problem.padding
    dtypes = {problem.dtype(role) for role in _TENSORS}
    words = {problem.kind.value, *dtypes & set(HALVES)}
    words.add("double" if problem.accum_dtype == "float64" else "float")
    if _is_tf32(problem):
        words.add("tf32")
    if (top, left) != (bottom, right):
        words.add("asymmetric")
    return words


def _is_tf32(problem: ConvProblem) -> bool:
    """Whether tensor cores would round operands: float32 ones, summed in float32."""
    first, second, _ = problem.roles
    operands = {problem.dtype(first), problem.dtype(second)}
    return "float32" in operands and problem.accum_dtype == "float32"


def _values(problem: ConvProblem, allow_tf32: bool, workspace_limit: int) -> dict[str, str]:
    top, left, bottom, right = problem.padding
    first, second, result = problem.roles
    tf32 = _is_tf32(problem) and allow_tf32
    tolerance = _TOLERANCE[problem.dtype(result)]
    reason = problem.dtype(result)
    if tf32 and float(tolerance) < float(_TF32_TOLERANCE):
        tolerance, reason = _TF32_TOLERANCE, "TF32 operands"
    values = {name.upper(): str(getattr(problem, name)) for name in "nchwkpqrs"}
    values |= {
        "PROBLEM": problem.repro(),
        "GROUPS": str(problem.groups),
        "STRIDE": _join(problem.strides),
        "DILATION": _join(problem.dilation),
        "PRE": _join((top, left)),
        "POST": _join((bottom, right)),
        "TF32": str(tf32).lower(),
        "WORKSPACE": str(workspace_limit),
        "TOLERANCE": tolerance,
        "TOLERANCE_OF": reason,
        "TERMS": {
            ConvKind.FPROP: "Cg * R * S",
            ConvKind.DGRAD: "K / kGroups * R * S",
            ConvKind.WGRAD: "N * P * Q",
        }[problem.kind],
        "REMEDY": "compute dx with its padding as a part of H and W, and crop it"
        if problem.kind is ConvKind.DGRAD
        else "pad x with zeros first, as a part of H and W",
        "SCALAR": "double" if problem.accum_dtype == "float64" else "float",
        "SCALAR_TAG": _TAGS[problem.accum_dtype],
    }
    places = {first: "FIRST", second: "SECOND", result: "RESULT"}
    for role, (name, sizes) in _TENSORS.items():
        layout = problem.layout(role)
        # A step along an axis passes over all axes that follow it in the layout.
        steps = {
            letter: " * ".join(sizes[later] for later in layout[i + 1 :]) or "1"
            for i, letter in enumerate(layout)
        }
        is_gradient = problem.kind is not ConvKind.FPROP and role in (result, "grad")
        shown = ("d" if is_gradient else "") + name
        values |= {
            f"{name.upper()}_NAME": shown,
            f"{name.upper()}_TYPE": CUDNN_TYPES[problem.dtype(role)],
            f"{name.upper()}_STRIDES": ", ".join(
                steps[letter] for letter in (KERNEL if role == "weight" else ACTIVATION)
            ),
            f"{name.upper()}_LAYOUT": "".join(sizes[letter][0] for letter in layout),
            places[role]: name,
            f"{places[role]}_NAME": shown,
            f"{places[role]}_CPP": _CPP_TYPE[problem.dtype(role)],
        }
    return values


def _join(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
