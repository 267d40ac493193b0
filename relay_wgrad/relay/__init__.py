"""Relay as a surface on Relax: its builders, its text, its syntax tree, its operators, `build`.

    x = relay.var("x", shape=(1, 3, 32, 32))
    w = relay.var("w", shape=(8, 3, 3, 3))
    mod = relay.IRModule.from_expr(relay.nn.relu(relay.nn.conv2d(x, w, padding=1)))

    mod = relay.fromtext(text)
    text = relay.astext(mod)
    lib = relay.build(mod, target="llvm", params=params)
    module = relay.graph_executor.GraphModule(lib["default"](tvm.cpu()))

TVM has no Relay any more; this reads and writes the text of its last version, 0.0.5.
"""

from . import (
    adt,
    analysis,
    backend,
    base,
    build_module,
    dataflow_pattern,
    expr,
    expr_functor,
    function,
    graph_executor,
    op,
    prelude,
    te,
    testing,
    transform,
    ty,
)
from .adt import (
    Clause,
    Constructor,
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    PatternWildcard,
    TypeData,
)
from .ast import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    IRModule,
    Let,
    MetaAttrs,
    Op,
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    Var,
)
from .build import build, load_module
from .equal import structural_equal
from .errors import RelayTextError, UnsupportedConstructError
from .executor import create_executor
from .expr import TupleWrapper, bind, const, var
from .expr_functor import ExprFunctor, ExprMutator, ExprVisitor
from .hashing import structural_hash
from .lower import lower
from .op import annotation, image, nn, random, vision
from .op.indexing import *  # noqa: F403
from .op.reduce import *  # noqa: F403
from .op.tensor import *  # noqa: F403
from .op.transform import *  # noqa: F403
from .param_dict import load_param_dict, save_param_dict
from .scope_builder import ScopeBuilder
from .spans import SourceName, Span
from .text.parser import fromtext, parse, parse_expr
from .text.printer import astext
from .type_functor import TypeFunctor, TypeMutator, TypeVisitor
from .types import (
    ANY,
    Any,
    FuncType,
    GlobalTypeVar,
    IncompleteType,
    RelayRefType,
    TensorType,
    TupleType,
    Type,
    TypeCall,
    TypeKind,
    TypeRelation,
    TypeVar,
    scalar_type,
)

RefType = RelayRefType

__all__ = [
    "ANY",
    "Any",
    "Call",
    "Clause",
    "Constant",
    "Constructor",
    "Expr",
    "ExprFunctor",
    "ExprMutator",
    "ExprVisitor",
    "FuncType",
    "Function",
    "GlobalTypeVar",
    "GlobalVar",
    "IRModule",
    "If",
    "IncompleteType",
    "Let",
    "Match",
    "MetaAttrs",
    "Op",
    "Pattern",
    "PatternConstructor",
    "PatternTuple",
    "PatternVar",
    "PatternWildcard",
    "RefCreate",
    "RefRead",
    "RefType",
    "RefWrite",
    "RelayRefType",
    "RelayTextError",
    "ScopeBuilder",
    "SourceName",
    "Span",
    "TensorType",
    "Tuple",
    "TupleGetItem",
    "TupleType",
    "TupleWrapper",
    "Type",
    "TypeCall",
    "TypeData",
    "TypeFunctor",
    "TypeKind",
    "TypeMutator",
    "TypeRelation",
    "TypeVar",
    "TypeVisitor",
    "UnsupportedConstructError",
    "Var",
    "adt",
    "analysis",
    "annotation",
    "astext",
    "backend",
    "base",
    "bind",
    "build",
    "build_module",
    "const",
    "create_executor",
    "dataflow_pattern",
    "expr",
    "expr_functor",
    "fromtext",
    "function",
    "graph_executor",
    "image",
    "load_module",
    "load_param_dict",
    "lower",
    "nn",
    "op",
    "parse",
    "parse_expr",
    "prelude",
    "random",
    "save_param_dict",
    "scalar_type",
    "structural_equal",
    "structural_hash",
    "te",
    "testing",
    "transform",
    "ty",
    "var",
    "vision",
]
__all__ += op.BUILDERS
