"""One C++ source for convolutions that are known only when a program runs.

Its function `CONVOLUTION` takes what a row of a module's source has (`arguments`), and returns a
function of two operands and a result, of any sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relay_wgrad.problem import ConvProblem

from ...codegen.entry import KINDS
from ...codegen.templates import template
from .check import CODEGEN, LAYOUTS, Options
from .codegen import DTYPES, OPTIONS, PLANS, head_and_runtime

CONVOLUTION = f"{CODEGEN}_convolution"


def source() -> str:
    """The source; it is the same for all convolutions."""
    layouts = {"/".join(names): str(names[0] == "NHWC").lower() for names in LAYOUTS}
    return "\n".join([
        head_and_runtime(),
        "// ---- names " + "-" * 86 + "\n\nnamespace {\n",
        _table("kKinds", "Kind", {kind.value: f"Kind::{name}" for kind, name in KINDS.items()}),
        _table("kLayouts", "bool", layouts),
        _table("kDtypes", "cudnnDataType_t", DTYPES),
        _table("kOptions", "unsigned", OPTIONS),
        "\n}  // namespace\n",
        template("cudnn", "cudnn_any.h"),
        f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({CONVOLUTION}, convolution);",
        f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({PLANS}, plans);\n",
    ])  # fmt: skip


def _table(name: str, value_type: str, values: Mapping[str, str]) -> str:
    rows = ", ".join(f'{{"{key}", {value}}}' for key, value in values.items())
    return f"const std::pair<const char*, {value_type}> {name}[] = {{{rows}}};"


def arguments(problem: ConvProblem, options: Options) -> tuple[Any, ...]:
    """What `CONVOLUTION` takes for a problem, of which its sizes are for messages only."""
    p, limit = problem, options.workspace_limit
    return (
        p.repro(), p.kind.value, "/".join((p.data_layout, p.kernel_layout, p.grad_layout)),
        (p.data_dtype, p.weight_dtype, p.grad_dtype), p.strides, p.padding, p.dilation, p.groups,
        [name for name in OPTIONS if getattr(options, name)], -1 if limit is None else limit,
    )  # fmt: skip
