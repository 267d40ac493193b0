"""Relax as TVM 0.16 to 0.25, and the unity branch before them, printed it: `from_relax_script`.

A training graph differs in little from what today's parser takes, for Relax prints all attributes:

    until 0.25  out_dtype="void" for no dtype            None
    until 0.25  out_sinfo=, sinfo_args=                   out_ty=, ty_args=
    until 0.24  T.prim_func of blocks                     T.prim_func(s_tir=True)
    until 0.23  "tir.noalias" and its kin in T.func_attr  "tirx.noalias"
    until 0.22  T.block, T.alloc_buffer                   T.sblock, T.sblock_alloc_buffer
    until 0.15  avg_pool2d without count_include_pad      count_include_pad=True

Only the last means something else today, and nothing in a text says its release: where the text has
another of the old forms and leaves the attribute out, it is refused unless `release` says more.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import tvm

from ..releases import Release

_KEYWORDS = {"out_sinfo": "out_ty", "sinfo_args": "ty_args"}
_BLOCKS = {
    "block": "sblock", "block_attr": "sblock_attr", "alloc_buffer": "sblock_alloc_buffer",
}  # fmt: skip
_GONE = {
    "tir_vars": "symbolic sizes among a kernel's arguments",
    "axis_separators": "axis separators of layout_transform",
    "input_axis_separators": "axis separators of layout_transform",
}
_POOLS = ("R.nn.avg_pool2d", "R.grad.avg_pool2d_backward")
_PADDED = "count_include_pad"
_NEWEST_UNITY = 15  # its attribute is of March 2024, before 0.16
_ALL = Release(13, 27)


def from_relax_script(text: str, release: str | None = None) -> tvm.IRModule:
    """The module of a TVMScript text of Relax that TVM 0.13 to 0.27 printed.

    Parameters
    ----------
    text : `mod.script()`, functions of `R` and of `T` within one module.  TVM's parser evaluates
        what it reads as Python does: read no text that you wouldn't run.
    release : the TVM that printed it, "0.20" say.

    Raises
    ------
    TypeError : for a text that is no str.
    ValueError : for a release that is no version of TVM; what the text has that is not meant any
        more, or whose meaning is in doubt; constants in a `metadata` section; no module in it.
    SyntaxError : for a text that is no Python.
    tvm.error.DiagnosticError : as TVM's parser.
    """
    if not isinstance(text, str):
        raise TypeError(f"a Relax script is a str, not {type(text).__name__}")
    known = None if release is None else Release.given(release)
    tree = ast.parse(text)
    _one_module(tree)
    has_blocks = any(_name(node) in ("T.block", "T.sblock") for node in ast.walk(tree))
    today = _Today(known, has_blocks)
    changed = ast.fix_missing_locations(today.visit(tree))
    today.settle()
    return tvm.script.from_source(ast.unparse(changed))


def _one_module(tree: ast.Module) -> None:
    modules = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for node in tree.body:
        assigned = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "metadata"
        if assigned:
            raise ValueError(f"line {node.lineno}: not supported: constants in `metadata`")
    if len(modules) != 1:
        raise ValueError(
            f"a Relax script has one module (@I.ir_module class …), got {len(modules)}"
        )
    # Imports say what I, R and T are, which the parser knows.
    tree.body = [modules[0]]


def _name(node: ast.AST) -> str:
    """`R.nn.conv2d` of such an expression; empty for another."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


class _Today(ast.NodeTransformer):
    """A script's tree in today's words."""

    def __init__(self, release: Release | None, has_blocks: bool) -> None:
        self._release, self._has_blocks = release, has_blocks
        self._marks: list[str] = []  # what today's printer does not write
        self._doubts: list[str] = []

    def settle(self) -> None:
        """Raises ValueError where old words stand beside what may have meant something else."""
        if self._doubts and (self._marks or self._release is not None):
            raise ValueError(f"{self._doubts[0]}: from_relax_script(text, release=…) says it")

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Calls of operators, and T.func_attr."""
        self.generic_visit(node)
        name = _name(node.func)
        change = _CALLS.get(name.partition(".")[0])
        if change is not None:
            change(self, node, name)
        return node

    def _relax(self, node: ast.Call, name: str) -> None:
        for keyword in node.keywords:
            if keyword.arg in _GONE:
                what = f"{name}({keyword.arg}=), {_GONE[keyword.arg]}"
                raise ValueError(f"line {node.lineno}: not supported: {what}")
            if keyword.arg in _KEYWORDS:
                self._marks.append(keyword.arg)
                keyword.arg = _KEYWORDS[keyword.arg]
            is_dtype = keyword.arg in ("dtype", "out_dtype") and name != "R.Tensor"
            if is_dtype and ast.unparse(keyword.value) == "'void'":
                self._marks.append(f'{keyword.arg}="void"')
                keyword.value = ast.Constant(None)
        if name in _POOLS and all(keyword.arg != _PADDED for keyword in node.keywords):
            self._pool(node, name)

    def _pool(self, node: ast.Call, name: str) -> None:
        old = (self._release or _ALL).within(0, _NEWEST_UNITY)
        if old is None:
            told = f"until 0.{_NEWEST_UNITY} {name} counted what it pads"
            self._doubts.append(f"line {node.lineno}: {told}, since then {_PADDED} says it")
        elif old:
            node.keywords.append(ast.keyword(_PADDED, ast.Constant(True)))

    def _kernel(self, node: ast.Call, name: str) -> None:
        if name != "T.func_attr":
            return
        for given in node.args:
            for key in given.keys if isinstance(given, ast.Dict) else []:
                if isinstance(key, ast.Constant) and str(key.value).startswith("tir."):
                    key.value = "tirx." + str(key.value).removeprefix("tir.")

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """T's names of blocks, where the text has blocks."""
        self.generic_visit(node)
        if self._has_blocks and isinstance(node.value, ast.Name) and node.value.id == "T":
            node.attr = _BLOCKS.get(node.attr, node.attr)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """A kernel of blocks says so in its decorator."""
        self.generic_visit(node)
        if any(_name(part) == "T.sblock" for part in ast.walk(node)):
            node.decorator_list = [_of_blocks(item) for item in node.decorator_list]
        return node


_CALLS: dict[str, Callable[[_Today, ast.Call, str], None]] = {
    "R": _Today._relax,
    "T": _Today._kernel,
}


def _of_blocks(decorator: Any) -> Any:
    call = decorator if isinstance(decorator, ast.Call) else ast.Call(decorator, [], [])
    if _name(call.func) != "T.prim_func" or any(k.arg == "s_tir" for k in call.keywords):
        return decorator
    call.keywords.append(ast.keyword("s_tir", ast.Constant(True)))
    return call
