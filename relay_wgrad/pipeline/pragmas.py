"""Marks on statements that TVM's code generator for CPUs does not know, and warns of.

Its sorts, scatters and searches say `pragma_scope`, which means something to a GPU's kernels alone;
LLVM's part prints "Unknown pragma pragma_scope" to standard error for each kernel, and generates
what it would without.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_map

from ..graph.rebuild import kernel_pass

_UNKNOWN = "pragma_scope"


def without_unknown_pragmas() -> tvm.transform.Pass:
    """A pass over a CPU's kernels after they are scheduled."""

    def change(func: tirx.PrimFunc) -> tirx.PrimFunc:
        body = structural_map(func.body, (tirx.AttrStmt, _known))
        return func if body.same_as(func.body) else func.with_body(body)

    return kernel_pass("without_unknown_pragmas", change)


def _known(mark: Any) -> Any:
    return mark.body if str(mark.attr_key) == _UNKNOWN else mark
