"""`register()` and `unregister()`: our rules into TVM's op registry, and upstream's back.

TVM keeps one value per (op, rule), with a level; a higher level wins, the same level fails, and no
value can be lowered or removed, only reset.  So each upstream value is saved before ours goes in
above it, and put back at upstream's level.  An op itself can't be removed: after `unregister()` the
new ops refuse at type inference.

A rule that someone else registers above ours while ours is in place is theirs: `unregister()`
leaves it alone, and a later `register()` goes above it and gives it back in the end.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import Op
from tvm.te import tag as te_tag

from . import opdef
from .conditions import Conditions
from .opdef import OpDef
from .ops import ALL, FAMILY
from .per_thread import PerThread, Tags

UPSTREAM_LEVEL = 10
_TAG_SCOPE: Any = te_tag.TagScope
LEVEL = 11
SUPPORTED = ((0, 27), (0, 28))  # tested TVM: from, up to
_OWNER = "relay_wgrad.owner"  # marks ops that are ours, whichever copy of this module made them

_DECIDE = (opdef.INFER_TYPE, opdef.GRADIENT)  # what passes over Relax make of a module
_lock = threading.RLock()
_saved: dict[tuple[str, str], Any] = {}  # (op, rule) -> upstream's value, None where it had none
_installed: dict[tuple[str, str], Any] = {}  # (op, rule) -> ours, as TVM gives it back
_legalizations: dict[str, Callable[..., Any]] = {}  # op -> its legalization in our pipelines
_registered = False


def is_registered() -> bool:
    """Whether the rules are in place."""
    return _registered


def _owned(op: Op) -> bool:
    return bool(op.has_attr(_OWNER)) and op.get_attr(_OWNER) is not None


def check_tvm() -> None:
    """Raises RuntimeError naming every hook of TVM that is missing, or a version out of range."""
    problems = []
    numbers = re.match(r"(\d+)\.(\d+)", tvm.__version__)
    version = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    low, high = SUPPORTED
    if not low <= version < high:
        problems.append(
            f"apache-tvm {tvm.__version__}: needs >={low[0]}.{low[1]},<{high[0]}.{high[1]}"
        )
    hooks = [
        "ir.RegisterOp", "ir.OpResetAttr", "ir.RegisterOpAttr", "relax.transform.Gradient",
        "relax.transform.LegalizeOps", "relax.op.nn.conv2d", "relax.op.nn.conv2d_transpose",
    ]  # fmt: skip
    problems += [
        f"global function {name} is missing"
        for name in hooks
        if tvm.get_global_func(name, allow_missing=True) is None
    ]
    names = {str(name) for name in Op.list_op_names()}
    for definition in ALL:
        if definition.is_new:
            taken = definition.name in names and not _owned(Op.get(definition.name))
            if taken or _foreign_attribute(definition):
                problems.append(f"{definition.name} exists already and is not ours")
        elif definition.name not in names:
            problems.append(f"op {definition.name} is missing")
    for definition in FAMILY.values():
        if not definition.is_new and definition.name in names:
            op = Op.get(definition.name)
            problems += [
                f"op {definition.name} has no {key}"
                for key in (opdef.INFER_TYPE, opdef.LEGALIZE)
                if not op.has_attr(key) or op.get_attr(key) is None
            ]
    if problems:
        raise RuntimeError("relay_wgrad cannot register with this TVM: " + "; ".join(problems))


def _foreign_attribute(definition: OpDef) -> bool:
    present = getattr(relax.op.nn, definition.short, None)
    return present is not None and present is not definition.constructor


def register() -> None:
    """Puts the convolution family's rules into TVM.  Calling it again changes nothing.

    The two new ops become `relax.op.nn.conv2d_backward_weight` and `…_data` (and so `R.nn.…` in
    TVMScript); conv2d and conv2d_transpose get our type relation, gradient and legalization; some
    ops that upstream cannot differentiate get a gradient.  `relax.BlockBuilder` can be used in
    several threads while registered, and so can `te.compute`.

    Raises
    ------
    RuntimeError : when TVM's version or one of its hooks is not what this package needs; nothing
        has changed then.
    """
    global _registered
    with _lock:
        if _registered:
            return
        check_tvm()
        try:
            for definition in ALL:
                _install(definition)
        except BaseException:
            _remove_all()
            raise
        relax.BlockBuilder._stack, te_tag.TagScope = PerThread(), Tags(_TAG_SCOPE)
        # Ctrl-C within a function of Python that TVM calls: TVM makes RuntimeError("") of it.
        tvm_ffi.register_error("KeyboardInterrupt", KeyboardInterrupt)
        _registered = True


def unregister() -> None:
    """Puts upstream's rules back; the new ops refuse from now on.  Idempotent.

    A rule that was registered above one of ours in the meantime stays.
    """
    global _registered
    with _lock:
        if _registered:
            _remove_all()
            relax.BlockBuilder._stack, te_tag.TagScope = [], _TAG_SCOPE
            _registered = False


def upstream_rule(op_name: str, key: str) -> Any:
    """Upstream's own value of a rule, whether ours stands above it at the moment or not."""
    if (op_name, key) in _saved:
        return _saved[op_name, key]
    op = Op.get(op_name)
    return op.get_attr(key) if op.has_attr(key) else None


def rules_are_known() -> bool:
    """Whether the rules that decide what differentiation makes of a module are ours, and else
    those that were there when this package was loaded.

    One that someone else has registered since, of an operator of theirs say, is a function that no
    digest can tell from another.
    """
    known = {**_loaded, **_installed}
    return all(
        known.get(of) is not None and known[of].same_as(rule)
        for of, rule in _rules().items() if rule is not None
    )  # fmt: skip


def _rules() -> dict[tuple[str, str], Any]:
    """The rules of Relax's operators that decide on a module, None where there is none."""
    return {
        (name, key): op.get_attr(key) if op.has_attr(key) else None
        for name in map(str, Op.list_op_names()) if name.startswith("relax.")
        for op in [Op.get(name)] for key in _DECIDE
    }  # fmt: skip


_loaded = _rules()


def legalizations() -> dict[str, Callable[..., Any]]:
    """The legalizations of our pipelines, by operator: those of the registry are for any pipeline
    (`legalize.foreign_pipeline`)."""
    return dict(_legalizations)


def _legalization(definition: OpDef, upstream: Any) -> Callable[..., Any]:
    """The rule, before which the run compares what the operator's rules leave to it."""
    rule, sizes = _legalizer(definition, upstream), definition.sizes
    if sizes is None:
        return rule

    def compared(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        conditions = Conditions()
        sizes(call, conditions)
        conditions.emit(bb, definition.short)
        return rule(bb, call)

    return compared


def _legalizer(definition: OpDef, upstream: Any) -> Any:
    if definition.legalizer is None:
        return upstream
    return loaded(definition.legalizer)(definition, upstream)


def loaded(name: str) -> Any:
    """What stands in a package above this one: "module:function"."""
    module, _, function = name.partition(":")
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in (module, module.partition(".")[0]):
            raise
        raise ImportError(
            f"{error}: if another distribution's package of that name hides this one's,"
            " `python -m relay_wgrad env` says where it is",
            name=error.name,
        ) from error
    return getattr(found, function)


def _install(definition: OpDef) -> None:
    if definition.is_new:
        _create(definition)
    op = Op.get(definition.name)
    rules = dict(definition.rules)
    if definition.legalizer is not None or definition.sizes is not None:

        def legalization(upstream: Any) -> Callable[..., Any]:
            rule = _legalizations[definition.name] = _legalization(definition, upstream)
            return loaded("legalize.foreign_pipeline:for_foreign_pipeline")(rule)

        rules[opdef.LEGALIZE] = legalization
    for key, rule in rules.items():
        upstream = op.get_attr(key) if op.has_attr(key) else None
        wraps = not definition.is_new or key == opdef.LEGALIZE
        value = rule(upstream) if wraps else rule
        # A new op's type relation is, after `unregister`, the one that refuses: nothing to keep.
        mine = definition.is_new and key == opdef.INFER_TYPE
        _saved[definition.name, key] = None if mine else upstream
        _set(op, key, value, LEVEL)
        _installed[definition.name, key] = op.get_attr(key)


def _create(definition: OpDef) -> None:
    import tvm.ir._ffi_api as ir_api

    names = {str(name) for name in Op.list_op_names()}
    if definition.name not in names:
        ir_api.RegisterOp(definition.name, definition.summary)
        op = Op.get(definition.name)
        op.set_num_inputs(-1 if definition.variadic else len(definition.arguments))
        for argument in definition.arguments:
            op.add_argument(*argument)
        op.set_attrs_type_key("ir.DictAttrs")
        tvm.ir.register_op_attr(definition.name, _OWNER, "relay_wgrad", UPSTREAM_LEVEL)
    setattr(relax.op.nn, definition.short, definition.constructor)


def _set(op: Op, key: str, value: Any, level: int) -> None:
    """Sets a rule whatever level is there: resets it first."""
    if op.has_attr(key):
        op.reset_attr(key)
    tvm.ir.register_op_attr(str(op.name), key, value, level)


def _is_ours(op: Op, key: str) -> bool:
    """Whether the rule in TVM's registry is the one that we put there."""
    put = _installed.get((str(op.name), key))
    now = op.get_attr(key) if op.has_attr(key) else None
    if put is None or now is None:  # ours has not gone in yet, or somebody took it out
        return True
    # A function comes back in a new wrapper each time; other rules are numbers and flags.
    objects = hasattr(put, "same_as") and hasattr(now, "same_as")
    return bool(now.same_as(put) if objects else now == put)


def _remove_all() -> None:
    kept = set()
    for (name, key), upstream in reversed(list(_saved.items())):
        op = Op.get(name)
        if not _is_ours(op, key):
            kept.add((name, key))
            continue
        op.reset_attr(key)
        if upstream is not None:
            tvm.ir.register_op_attr(name, key, upstream, UPSTREAM_LEVEL)
    _saved.clear()
    _installed.clear()
    _legalizations.clear()
    for definition in ALL:
        if definition.is_new and definition.name in {str(n) for n in Op.list_op_names()}:
            if (definition.name, opdef.INFER_TYPE) not in kept:
                op = Op.get(definition.name)
                _set(op, opdef.INFER_TYPE, _tombstone(definition), UPSTREAM_LEVEL)
            if getattr(relax.op.nn, definition.short, None) is definition.constructor:
                delattr(relax.op.nn, definition.short)


def _tombstone(definition: OpDef) -> Callable[..., Any]:
    def refuse(call: relax.Call, ctx: relax.BlockBuilder) -> relax.Type:
        raise RuntimeError(
            f"{definition.name} was unregistered: call relay_wgrad.register() to use it again"
        )

    return refuse
