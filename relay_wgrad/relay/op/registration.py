"""`relay.op`: users' operators, and what is done with any operator.

    relay.op.register("my.scale", "data times factor")
    op = relay.op.get("my.scale")
    op.set_num_inputs(1)
    op.add_argument("data", "Tensor", "the input")
    op.add_type_rel("MyScale", lambda args, attrs: args[0])
    relay.op.register_compute("my.scale", lambda attrs, inputs, out: [...])  # on TE tensors
    relay.op.register_gradient("my.scale", lambda orig, grad: [...])

    relay.Call(op, [x], {"factor": 2})

`unregister` takes a user's operator back, with all that was registered for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

from ..ast import Attrs, Op
from ..records import REGISTRY, RelayOp, hooks, lookup, relations, show
from ..records.table import Call, Site
from ..types import FuncType, TensorType, TupleType, Type

F = TypeVar("F", bound=Callable[..., Any])
TypeRel = Callable[[list[Any], Any], Any]

# Type relations that Relay has by name.
_RELATIONS: Mapping[str, Callable[[Call], Type]] = {
    "Identity": relations.identity,
    "Broadcast": relations.binary,
    "BroadcastComp": relations.comparison,
}
# Attributes that are hooks: Relay's key, and the table that the rest of the package reads.
_HOOKS: Mapping[str, hooks.Hooks[Any]] = {
    "FPrimalGradient": hooks.GRADIENTS,
    "FTVMLegalize": hooks.LEGALIZE,
    "FTVMConvertOpLayout": hooks.CONVERT_LAYOUT,
    "FTVMCompute": hooks.COMPUTE,
}
# What an operator's record says: Relay's key -> the field.
_FIELDS = {"TOpPattern": "kind", "support_level": "level"}
# Other attributes: (operator, key) -> value by level.
_ATTRS: dict[tuple[str, str], dict[int, Any]] = {}


def get(op_name: str) -> Op:
    """The operator of that name.

    Raises ValueError for an unknown name; the message has near ones.
    """
    lookup(op_name)
    return Op(op_name)


def list_op_names() -> list[str]:
    """The names of all operators."""
    return list(REGISTRY)


def register(op_name: str, describe: str = "") -> None:
    """Makes a new operator, of any number of arguments and with any attributes.

    Raises
    ------
    TypeError : if the name is no string, or is empty.
    ValueError : if there is one of this name: `get` gives it, `register_gradient` and its like
        change what is done with it, `unregister` takes a user's one back.
    """
    if not isinstance(op_name, str) or not op_name:
        raise TypeError(f"register: expected an operator's name, got {op_name!r}")
    if op_name in REGISTRY:
        user = REGISTRY[op_name].open_attrs
        remedy = (
            "relay.op.unregister takes it back"
            if user
            else "the package has it, so there is nothing to register"
        )
        raise ValueError(
            f"register: operator {op_name} exists already: {remedy};"
            " relay.op.get gives it, and relay.op.register_gradient, register_legalize,"
            " register_compute and register_convert_op_layout change what is done with it"
        )
    REGISTRY[op_name] = RelayOp(
        op_name, (), (), _no_relation, _no_builder, "user", open_attrs=True, variadic=True
    )
    _ATTRS[(op_name, "description")] = {hooks.DEFAULT_LEVEL: describe}


def unregister(op_name: str) -> None:
    """Takes a user's operator back, with its hooks; nothing happens if there is none.

    Raises ValueError for an operator of the package.
    """
    if op_name not in REGISTRY:
        return
    _own(op_name)
    del REGISTRY[op_name]
    for kind in _HOOKS.values():
        kind.clear(op_name)
    for key in [key for key in _ATTRS if key[0] == op_name]:
        del _ATTRS[key]


def _no_relation(call: Call) -> NoReturn:
    call.fail(f"has no type relation: relay.op.get({call.op!r}).add_type_rel sets it")


def _no_builder(site: Site) -> NoReturn:
    site.fail(
        "has no computation: relay.op.register_compute sets one, register_legalize another form"
    )


def _own(op_name: str) -> RelayOp:
    op = lookup(op_name)
    if not op.open_attrs:
        raise ValueError(
            f"{op_name} is the package's own operator: its arguments and its type relation are"
            " fixed, and it can't be taken back"
        )
    return op


# ---- an operator's record; the methods of `ast.Op` come here --------------------------------


def add_type_rel(op_name: str, rel_name: str, type_rel_func: TypeRel | None = None) -> None:
    """See `Op.add_type_rel`."""
    op = _own(op_name)
    if type_rel_func is None:
        if rel_name not in _RELATIONS:
            raise ValueError(
                f"{op_name}: type relation {rel_name!r} needs a function; without one there are"
                f" {', '.join(_RELATIONS)}"
            )
        REGISTRY[op_name] = replace(op, relation=_RELATIONS[rel_name])
        return
    if not callable(type_rel_func):
        raise TypeError(f"{op_name}: type_rel_func must be callable, got {type_rel_func!r}")
    function = type_rel_func

    def relation(call: Call) -> Type:
        out = function(list(call.types), Attrs(call.attrs))
        if not isinstance(out, (TensorType, TupleType, FuncType)):
            raise TypeError(
                f"{call.op}: type relation {rel_name} must give a Relay type, got {out!r} for"
                f" ({', '.join(map(show, call.types))})"
            )
        return out

    REGISTRY[op_name] = replace(op, relation=relation)


def add_argument(op_name: str, name: str, type: str, description: str) -> None:  # noqa: A002
    """See `Op.add_argument`."""
    op = _own(op_name)
    names = [n for n in op.inputs if not n.startswith("#")]
    missing = [f"#{i}" for i in range(len(names) + 1, len(op.inputs))]
    REGISTRY[op_name] = replace(op, inputs=(*names, name, *missing))
    notes = get_attr(op_name, "arguments") or ()
    set_attr(op_name, "arguments", (*notes, (name, type, description)))


def set_num_inputs(op_name: str, n: int) -> None:
    """See `Op.set_num_inputs`."""
    op = _own(op_name)
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise TypeError(
            f"{op_name}: the number of inputs must be an integer of at least 0, got {n!r}"
        )
    names = (*op.inputs[:n], *(f"#{i}" for i in range(len(op.inputs), n)))
    REGISTRY[op_name] = replace(op, inputs=names, variadic=False)


def num_inputs(op_name: str) -> int:
    """See `Op.num_inputs`."""
    op = lookup(op_name)
    return -1 if op.variadic else len(op.inputs)


def set_attr(op_name: str, key: str, value: Any, level: int = hooks.DEFAULT_LEVEL) -> None:
    """See `Op.set_attr`."""
    lookup(op_name)
    if isinstance(level, bool) or not isinstance(level, int) or level <= hooks.PACKAGE_LEVEL:
        raise ValueError(
            f"{op_name}: the level of {key} must be an integer above {hooks.PACKAGE_LEVEL}, the"
            f" package's own, got {level!r}"
        )
    if key in _HOOKS:
        _HOOKS[key].add(op_name, value, level)
    else:
        _ATTRS.setdefault((op_name, key), {})[level] = value


def get_attr(op_name: str, key: str) -> Any:
    """See `Op.get_attr`."""
    lookup(op_name)
    if key in _HOOKS:
        return _HOOKS[key].find(op_name)
    levels = _ATTRS.get((op_name, key))
    if not levels:
        return getattr(REGISTRY[op_name], _FIELDS[key]) if key in _FIELDS else None
    return levels[max(levels)]


def is_stateful(op_name: str) -> bool:
    """Whether two calls of an operator with the same arguments are two things.

    Then neither is computed ahead of the run, nor are they made one, nor dropped.
    """
    found = get_attr(op_name, "TOpIsStateful")
    return REGISTRY[op_name].stateful if found is None else bool(found)


def reset_attr(op_name: str, key: str) -> None:
    """See `Op.reset_attr`."""
    lookup(op_name)
    if key in _HOOKS:
        _HOOKS[key].clear(op_name)
    else:
        _ATTRS.pop((op_name, key), None)


# ---- what is done with an operator ----------------------------------------------------------


def _register(op_name: str, key: str, function: Any, level: int) -> Any:
    """Registers at once, or gives a decorator that does."""
    lookup(op_name)

    def add(value: F) -> F:
        set_attr(op_name, key, value, level)
        return value

    return add if function is None else add(function)


def register_gradient(op_name: str, fgradient: Any = None, level: int = hooks.DEFAULT_LEVEL) -> Any:
    """Sets the gradient: `fgradient(orig, grad)` gives the gradient by each argument, as a list.

    Without a function it is a decorator.  Of several levels the highest counts.

    Raises
    ------
    ValueError : for an unknown operator.
    TypeError : if the function is none.
    """
    return _register(op_name, "FPrimalGradient", fgradient, level)


def register_legalize(op_name: str, legal_op: Any = None, level: int = hooks.DEFAULT_LEVEL) -> Any:
    """Sets another form: `legal_op(attrs, inputs, types)` gives an expression, or None for as is.

    `types` are those of the inputs and the result.  As `register_gradient` in all else.
    """
    return _register(op_name, "FTVMLegalize", legal_op, level)


def register_convert_op_layout(
    op_name: str, convert_layout: Any = None, level: int = hooks.DEFAULT_LEVEL
) -> Any:
    """Sets what ConvertLayout does: `convert_layout(attrs, inputs, tinfos, desired_layouts)`.

    It gives an expression.  As `register_gradient` in all else.
    """
    return _register(op_name, "FTVMConvertOpLayout", convert_layout, level)


def register_alter_op_layout(
    op_name: str, alter_layout: Any = None, level: int = hooks.DEFAULT_LEVEL
) -> Any:
    """Sets what AlterOpLayout does: `alter_layout(attrs, inputs, tinfos, out_type)`.

    It gives a call of an operator, or None for as is.  As `register_gradient` in all else.
    """
    return _register(op_name, "FTVMAlterOpLayout", alter_layout, level)


def register_infer_correct_layout(
    op_name: str, infer_layout: Any = None, level: int = hooks.DEFAULT_LEVEL
) -> Any:
    """Sets how layouts go on: `infer_layout(attrs, new_in_layouts, old_in_layouts, old_in_types)`.

    It gives a `transform.infer_layout_utils.InferCorrectLayoutOutput`, and is asked without new
    layouts first.  As `register_gradient` in all else.
    """
    return _register(op_name, "FInferCorrectLayout", infer_layout, level)


def register_compute(op_name: str, compute: Any = None, level: int = hooks.DEFAULT_LEVEL) -> Any:
    """Sets what is built: `compute(attrs, inputs, out_type)`, TE tensors to a list of TE tensors.

    For an operator of the package it takes the place of its own form.  As `register_gradient` in
    all else.
    """
    return _register(op_name, "FTVMCompute", compute, level)


def register_mixed_precision_conversion(
    op_name: str, func: Any = None, level: int = hooks.DEFAULT_LEVEL
) -> Any:
    """Sets what ToMixedPrecision does: `func(call, dtype)` gives [kind, dtype of sums, of result].

    The kinds are in `relay.transform.mixed_precision`.  As `register_gradient` in all else.
    """
    return _register(op_name, "FTVMMixedPrecisionConversionType", func, level)


def register_op_attr(
    op_name: str, attr_key: str, value: Any = None, level: int = hooks.DEFAULT_LEVEL
) -> Any:
    """Sets an attribute of an operator, as TVM's own function of this name did.

    `target.<compiler>`, a function of a call, says whether `transform.AnnotateTarget` gives the
    call to the compiler.  As `register_gradient` in all else.
    """
    return _register(op_name, attr_key, value, level)


def register_pattern(op_name: str, pattern: int, level: int = hooks.DEFAULT_LEVEL) -> None:
    """Keeps an `OpPattern` as attribute TOpPattern; TVM's fusion judges by the computation."""
    set_attr(op_name, "TOpPattern", pattern, level)


def register_stateful(op_name: str, stateful: bool, level: int = hooks.DEFAULT_LEVEL) -> None:
    """Says whether passes may compute, share and drop calls (`is_stateful`)."""
    set_attr(op_name, "TOpIsStateful", stateful, level)
