"""Relay's printed programs as flat lists of bindings: enough to check operators, call by call.

A scanner of lines, independent of the package's parser: every line binds one name to one call,
tuple, projection or other name; nested scopes only nest the bindings, whose names are unique.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from typing import Any

from relay_wgrad.relay.types import TensorType, TupleType, Type
from tests.fixtures.relay.inputs import HERE

_COMMENT = re.compile(r" /\* ty=(?!.* /\* )(.*?)(?: span=\S+)? \*/;?$")
_CALL = re.compile(r"(@?%?[\w.]+)\((.*)\)")
_PARAM = re.compile(r"(%\w+): [^/]*/\* ty=(.*?)(?: span=\S+)? \*/")
_META = re.compile(r"meta\[relay\.attrs\.(\w+)\]\[(\d+)\]")
# What stands for itself among the arguments: a number, or a tensor from the metadata.
_CONSTANT = re.compile(
    r"(-?[\d.]+(?:e[-+]?\d+)?f?|meta\[relay\.Constant\]\[\d+\]) /\* ty=(.*?)(?: span=\S+)? \*/"
)


# What a line binds that is no operator's call; "call" is one of a function.
PLAIN = ("tuple", "field", "same", "call", "param", "constant")


@dataclass(frozen=True)
class Constant:
    """A number, or a tensor of the metadata section, whose data is not read."""

    value: float | None
    ty: Type


@dataclass(frozen=True)
class Bound:
    """`name = op(args, attrs)`; op is an operator's name or one of `PLAIN`."""

    name: str
    op: str
    args: tuple[Any, ...]
    attrs: dict[str, Any]
    ty: Type | None


@dataclass(frozen=True)
class Program:
    params: dict[str, Type]
    body: list[Bound]

    @property
    def calls(self) -> list[Bound]:
        """The calls of operators."""
        return [b for b in self.body if b.op not in PLAIN]


def program_names() -> list[str]:
    return sorted(path.stem for path in HERE.glob("*.relay"))


def parse_type(text: str) -> Type:
    """Tensors and tuples, by way of Python's own grammar."""
    tree = ast.parse(text.strip().replace("?", "None"), mode="eval").body
    return _type(tree)


def _type(tree: ast.expr) -> Type:
    if isinstance(tree, ast.Tuple):
        return TupleType(tuple(map(_type, tree.elts)))
    if isinstance(tree, ast.Name):
        return TensorType((), tree.id)
    assert isinstance(tree, ast.Subscript)
    assert isinstance(tree.slice, ast.Tuple)
    shape, dtype = tree.slice.elts
    sizes = ast.literal_eval(shape)
    assert isinstance(dtype, ast.Name)
    return TensorType(sizes if isinstance(sizes, tuple) else (sizes,), dtype.id)


def parse_program(name: str) -> Program:
    """One fixture."""
    text, _, meta = (HERE / f"{name}.relay").read_text().partition("#[metadata]\n")
    nodes = json.loads(meta)["nodes"] if meta else []
    params: dict[str, Type] = {}
    body: list[Bound] = []
    open_names: list[str] = []
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith("def ") or " = fn (" in line:
            main = line.startswith("def @main")
            for param, ty in _PARAM.findall(line):
                if main:
                    params[param] = parse_type(ty)
                else:
                    body.append(Bound(param, "param", (), {}, parse_type(ty)))
            continue
        if not line or line.startswith(("#", "}")):
            continue
        if line.startswith(")"):
            body.append(Bound(open_names.pop(), "same", (body[-1].name,), {}, body[-1].ty))
            continue
        target, sep, value = line.partition(" = ")
        if not sep:
            target, value = f"%line_{len(body)}", line  # a block's result
        target = target.removeprefix("let ").split(":")[0]
        if value == "(":
            open_names.append(target)
        else:
            body.append(_bound(target, value, nodes))
    return Program(params, body)


def _bound(name: str, value: str, nodes: list[Any]) -> Bound:
    found = _COMMENT.search(value)
    ty = parse_type(found[1]) if found else None
    value = value[: found.start()] if found else value.rstrip(";")
    call = _CALL.fullmatch(value)
    if call is None:
        if value.startswith("("):
            return Bound(name, "tuple", tuple(re.findall(r"%\w+", value)), {}, ty)
        if not value.startswith("%"):
            return Bound(name, "constant", (float(value.rstrip("f")), ty), {}, ty)
        var, _, field = value.partition(".")
        if field:
            return Bound(name, "field", (var, int(field)), {}, ty)
        return Bound(name, "same", (var,), {}, ty)
    if call[1].startswith(("@", "%")):
        return Bound(name, "call", (), {}, ty)
    attrs: dict[str, Any] = {}
    constants: list[Constant] = []

    def constant(match: re.Match[str]) -> str:
        number = None if match[1].startswith("meta") else float(match[1].rstrip("f"))
        constants.append(Constant(number, parse_type(match[2])))
        return f"c_{len(constants) - 1}"

    def metadata(match: re.Match[str]) -> str:
        node = nodes[_meta_index(nodes, f"relay.attrs.{match[1]}", int(match[2]))]
        attrs.update({k: _value(nodes, int(v)) for k, v in node["attrs"].items() if v != ""})
        return "_=None"

    text = _META.sub(metadata, _CONSTANT.sub(constant, call[2]))
    tree = ast.parse(_literals(f"f({text})"), mode="eval").body
    assert isinstance(tree, ast.Call)
    args = [_argument(a, constants) for a in tree.args]
    attrs.update({str(k.arg): ast.literal_eval(k.value) for k in tree.keywords if k.arg != "_"})
    return Bound(name, call[1], tuple(args), attrs, ty)


def _argument(tree: ast.expr, constants: list[Constant]) -> str | Constant:
    assert isinstance(tree, ast.Name), ast.dump(tree)
    if tree.id.startswith("c_"):
        return constants[int(tree.id.removeprefix("c_"))]
    return f"%{tree.id.removeprefix('v_')}"


def _literals(text: str) -> str:
    """Names and numbers as Python spells them."""
    return re.sub(r"(?<=\d)f\b", "", text.replace("%", "v_"))


def _meta_index(nodes: list[Any], key: str, index: int) -> int:
    table = next(n for n in nodes if n["type_key"] == "Map")
    array = nodes[table["data"][table["keys"].index(key)]]
    return int(array["data"][index])


def _value(nodes: list[Any], index: int) -> Any:
    """A field of attributes: a node's number where there is such a node, else a plain number.

    Flags are plain numbers; the fixtures' flags are all 0, the number of the null node.
    """
    node = nodes[index]
    if node["type_key"] == "":
        return 0
    if node["type_key"] == "IntImm":
        return int(node["attrs"]["value"])
    if node["type_key"] == "Array":
        return [_value(nodes, i) for i in node.get("data", [])]
    assert node["type_key"] == "runtime.String", node
    return node.get("repr_str", "")
