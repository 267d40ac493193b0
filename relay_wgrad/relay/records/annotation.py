"""Where a region of another compiler begins and ends, which `transform.AnnotateTarget` writes, and
what a gradient may compute again.

They compute nothing, and the value may be a tuple.
"""

from __future__ import annotations

from ..types import Type
from .facts import OPAQUE
from .table import REQUIRED, Attr, Call, define

BEGIN, END = "annotation.compiler_begin", "annotation.compiler_end"
STOP = "annotation.stop_fusion"  # nothing is fused over it; `transform.SplitArgs` writes it


def _same(call: Call) -> Type:
    return call.types[0]


define("annotation.checkpoint", "data", _same, lambda s: s.args[0], "numpy", kind=OPAQUE, level=10,
       doc="`data`, as what a gradient computes again rather than keeps; here that is the "
           "compiler's.")  # fmt: skip
define(BEGIN, "data", _same, lambda s: s.args[0], "numpy", Attr("compiler", REQUIRED, "str"),
       kind=OPAQUE, level=10,
       doc="`data`, as an operand of a region that `compiler` compiles.")  # fmt: skip
define(END, "data", _same, lambda s: s.args[0], "numpy", Attr("compiler", REQUIRED, "str"),
       kind=OPAQUE, level=10,
       doc="`data`, as a result of a region that `compiler` compiles.")  # fmt: skip
define(STOP, "data", _same, lambda s: s.args[0], "numpy", kind=OPAQUE, level=10,
       doc="`data`, with which no operator after it is fused.")  # fmt: skip
