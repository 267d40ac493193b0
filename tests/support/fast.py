"""A CPU without LLVM's optimizations: half of what compiling a test's module takes.

For tests of what is computed.  How it is compiled for users is what tests of kernels and of
pipelines see, and the generator `targets`.
"""

from __future__ import annotations

import tvm

FAST = tvm.target.Target({"kind": "llvm", "opt-level": 0})
