"""Names among backends, in records, reports and options; no TVM is loaded for them."""

from __future__ import annotations

STOCK = "tvm"
"""The kernel that a convolution gets where no library has it."""
