"""What `from_aot` keeps whole: beside `from_torch`'s rows those of backward ops, and of what
AOTAutograd makes of layers."""

from __future__ import annotations

from .backward import BACKWARD
from .call import Builder
from .convolutions import CONVOLUTIONS
from .normalizations import NORMALIZED
from .ops import OPS
from .scatter import SCATTERED

# Rows of the first result, and rows that take less than PyTorch's own decomposition.
_PARTIAL = ("native_layer_norm.default", "native_group_norm.default", "index_add.default",
            "cumsum.default")  # fmt: skip
_SAME = {
    "_adaptive_avg_pool2d.default": "adaptive_avg_pool2d.default",
    "_adaptive_avg_pool3d.default": "adaptive_avg_pool3d.default",
    "_unsafe_index.Tensor": "index.Tensor",
    **{f"prims::{name}.default": f"{name}.Tensor" for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "prims::prod.default": "prod.dim_int",
    "prims::sum.default": "sum.dim_IntList",
}
"""Other names of the same: of what checks less, of primitives that decompositions end in."""
AOT_OPS: dict[str, Builder] = {
    **{name: row for name, row in OPS.items() if name not in _PARTIAL},
    **BACKWARD,
    **CONVOLUTIONS,
    **NORMALIZED,
    **SCATTERED,
    **{name: OPS[same] for name, same in _SAME.items()},
}
"""ATen overload -> builder: what is kept whole."""
