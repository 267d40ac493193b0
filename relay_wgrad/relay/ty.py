"""Relay's name for the module of types."""

from .type_functor import TypeFunctor as TypeFunctor
from .type_functor import TypeMutator as TypeMutator
from .type_functor import TypeVisitor as TypeVisitor
from .types import ANY as ANY
from .types import Any as Any
from .types import FuncType as FuncType
from .types import GlobalTypeVar as GlobalTypeVar
from .types import IncompleteType as IncompleteType
from .types import RelayRefType as RelayRefType
from .types import TensorType as TensorType
from .types import TupleType as TupleType
from .types import Type as Type
from .types import TypeCall as TypeCall
from .types import TypeKind as TypeKind
from .types import TypeRelation as TypeRelation
from .types import TypeVar as TypeVar
from .types import scalar_type as scalar_type

RefType = RelayRefType
