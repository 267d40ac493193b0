"""`relay.backend`: what a script for Relay 0.19 names of the parts below `relay.build`."""

from . import executor as executor
from . import name_transforms as name_transforms
from . import runtime as runtime
from . import te_compiler as te_compiler
from . import utils as utils
from .names import Executor, Runtime, check_backend

__all__ = ["Executor", "Runtime", "check_backend"]
