"""Parts of kernels that many kernels have: each compiled once, and called.

A kernel is one function, as any compiler of TVM's takes it, so a part stands in it as statements.
They are marked with the call that does the same, and what compiles kernels apart (`objects`) puts
that in their place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tvm import DataType, tirx
from tvm.ir import Call, PointerType, PrimType
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T
from tvm_ffi.structural import structural_map, structural_walk

from ..keys import PART

_CONVENTION = "calling_conv"
_PLAIN = 2  # TVM's for functions that are called with their arguments as they are
KNOWN: dict[str, tirx.PrimFunc] = {}  # parts by their names


@contextlib.contextmanager
def part(name: str, arguments: Sequence[Any], make: Callable[..., None]) -> Iterator[None]:
    """What is written within it does the same as the part of that name with these arguments.

    arguments : pointers, of `tirx.address_of`, and int64s.  name : says all that the part depends
        on but its arguments.
    make : writes the part, of as many arguments: for each pointer a flat buffer.
    """
    if name not in KNOWN:
        KNOWN[name] = _function(name, arguments, make)
    # A loop of one step, which its annotation keeps: TVM's plan of memory wants one around what
    # reads a pointer, and drops loops of one step that have none.
    mark = tirx.call_extern("void", name, *arguments)
    with T.serial(1, annotations={PART: name}), T.attr(0, PART, mark):
        yield


def _function(name: str, arguments: Sequence[Any], make: Callable[..., None]) -> tirx.PrimFunc:
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name(name)
        T.func_attr({_CONVENTION: _PLAIN})
        given = [_parameter(f"a{i}", each) for i, each in enumerate(arguments)]
        make(*(_buffer(v, each) for v, each in zip(given, arguments, strict=True)))
    return builder.get()


def _dtype(argument: Any) -> str | None:
    """That of what a pointer points to."""
    is_pointer = isinstance(argument, Call) and argument.op.name == "tirx.address_of"
    return str(argument.args[0].ty.dtype) if is_pointer else None


def _parameter(name: str, argument: Any) -> Any:
    dtype = _dtype(argument)
    return T.arg(name, tirx.Var(name, PointerType(PrimType(dtype)) if dtype else "int64"))


def _buffer(parameter: Any, argument: Any) -> Any:
    dtype = _dtype(argument)
    if dtype is None:
        return parameter
    size = max(1, int(DataType(dtype).bits) // 8)
    return T.decl_buffer((1,), dtype, data=parameter, align=size)


def outlined(function: tirx.PrimFunc, symbol: Callable[[str, tirx.PrimFunc], str]) -> tirx.PrimFunc:
    """A kernel with calls in the places of its parts.

    symbol : what a part is called in its object.
    """
    found: list[Any] = []
    structural_walk(function.body, (tirx.AttrStmt, found.append))
    if not any(each.attr_key == PART for each in found):
        return function

    def call(statement: Any) -> Any:
        if statement.attr_key != PART:
            return statement
        name, *arguments = statement.value.args
        made = KNOWN.get(name.value)
        if made is None:  # of a text, say, that another process has written
            return statement
        return tirx.Evaluate(tirx.call_extern("void", symbol(name.value, made), *arguments))

    return function.with_body(structural_map(function.body, (tirx.AttrStmt, call), order="pre"))
