"""`tvm.te` with `size_var`, which TVM no longer has: `from relay_wgrad.relay import te`."""

from tvm.te import *  # noqa: F403
from tvm.te import var as var

from .dims import size_var as size_var
