"""Relay as a surface on Relax: its text, its syntax tree, its operators, `build`.

    mod = relay.fromtext(text)
    text = relay.astext(mod)
    lib = relay.build(mod, target="llvm", params=params)
    module = relay.graph_executor.GraphModule(lib["default"](tvm.cpu()))

TVM has no Relay any more; this reads and writes the text of its last version, 0.0.5.
"""

from . import graph_executor
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
    Tuple,
    TupleGetItem,
    Var,
)
from .build import build, load_module
from .equal import structural_equal
from .errors import RelayTextError, UnsupportedConstructError
from .lower import lower
from .spans import Span
from .text.parser import fromtext
from .text.printer import astext
from .types import ANY, FuncType, TensorType, TupleType, Type

__all__ = [
    "ANY",
    "Call",
    "Constant",
    "Expr",
    "FuncType",
    "Function",
    "GlobalVar",
    "IRModule",
    "If",
    "Let",
    "MetaAttrs",
    "Op",
    "RelayTextError",
    "Span",
    "TensorType",
    "Tuple",
    "TupleGetItem",
    "TupleType",
    "Type",
    "UnsupportedConstructError",
    "Var",
    "astext",
    "build",
    "fromtext",
    "graph_executor",
    "load_module",
    "lower",
    "structural_equal",
]
