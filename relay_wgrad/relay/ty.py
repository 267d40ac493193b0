"""Relay's name for the module of types."""

from .types import ANY as ANY
from .types import Any as Any
from .types import FuncType as FuncType
from .types import IncompleteType as IncompleteType
from .types import TensorType as TensorType
from .types import TupleType as TupleType
from .types import Type as Type
from .types import scalar_type as scalar_type
