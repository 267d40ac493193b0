"""Updates of all parameters on the GPU in a few launches, in place; counts of what is not finite.

A training step ends in some operators for each parameter, hundreds of kernels that are mostly
launching.  Here a launch takes `kMost` tensors.
"""

from .call import UpdatesCall, check
from .codegen import UPDATES

__all__ = ["UPDATES", "UpdatesCall", "check"]
