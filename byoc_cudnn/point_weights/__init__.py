"""Weight gradients of convolutions of one pixel, and of their biases, many in one launch.

Gates have two such convolutions each: products of a few hundred rows, of which a kernel each, and
two for each bias, are mostly launching.
"""

from .call import PointWeightsCall, Product, check
from .codegen import POINT_WEIGHTS

__all__ = ["POINT_WEIGHTS", "PointWeightsCall", "Product", "check"]
