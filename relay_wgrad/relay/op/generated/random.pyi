"""Written by `pytest --update-golden tests/relay_wgrad/relay/test_builders.py`."""

# fmt: off

from ...ast import Call, Expr
from ...make import Sizes

__all__ = ["normal", "threefry_generate", "threefry_split", "uniform"]
def normal(
    key: Expr, shape: Sizes, dtype: str = "float32", mean: Expr | float = 0.0, scale: Expr | float =
    1.0
) -> Call: ...
def threefry_generate(key: Expr, shape: Sizes) -> Call: ...
def threefry_split(key: Expr) -> Call: ...
def uniform(
    key: Expr, shape: Sizes, dtype: str = "float32", low: Expr | float = 0.0, high: Expr | float =
    1.0
) -> Call: ...
