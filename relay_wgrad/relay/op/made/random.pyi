"""Written by `pytest --update-golden tests/relay_wgrad/relay/test_builders.py`."""

# fmt: off

from ...ast import Call, Expr

__all__ = ["threefry_split"]
def threefry_split(key: Expr) -> Call: ...
