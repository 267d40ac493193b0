"""Relay modules: partitioned as Relay modules, and built by the same code generators.

    mod, report = byoc_cudnn.partition_for_cudnn(mod)  # functions with Compiler="cudnn"
    lib = relay.build(mod, target="cuda")

The Relay module is partitioned by Relay's own passes with the rows as their pattern table.  At the
build the functions of a backend are lowered to Relax, where `partition` makes of them what it makes
of any module, and are put back into @main.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from typing import Any

import tvm
from tvm.target import Target

from relay_wgrad import registry
from relay_wgrad.keys import COMPILER, COMPOSITE, RELAY_OPTIONS
from relay_wgrad.problem import ConvKind
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.ast import Call, Expr, Function, GlobalVar, IRModule, Op, post_order
from relay_wgrad.relay.dataflow_pattern import is_op, wildcard
from relay_wgrad.relay.dataflow_pattern.partition import extract
from relay_wgrad.relay.expr import bind_params_by_name
from relay_wgrad.relay.external import register_external
from relay_wgrad.relay.transform.raise_conv_backward import find_conv_backward
from relay_wgrad.relay.types import TensorType

from ..backends.base import Backend
from ..building.compiled import Library, build
from ..report import Entry, Report
from ..split.partition import TAKEN, bound_backends, partition_relax
from ..table import BACKENDS
from .table import Candidates, convolutions, register_tables

_MAIN = "main"
_KINDS = ("cuda",)


def register_relay() -> None:
    """Makes the backends known to Relay: their pattern tables, and to `relay.build`.

    `partition` of a Relay module does this; a program that only reads and builds a partitioned
    module calls it first.
    """
    registry.register()
    register_tables()
    for name in BACKENDS:
        register_external(name, _KINDS, build_functions)


def with_params(mod: IRModule, params: Mapping[str, Any]) -> IRModule:
    """The module with arrays for parameters of @main, simplified for inference and folded.

    A name that no parameter has is ignored, as in Relay.
    """
    bound = bind_params_by_name(mod[_MAIN], params)
    mod = replace(mod, functions={**mod.functions, _MAIN: bound})
    return T.FoldConstant()(T.SimplifyInference()(mod))


def partition_relay(
    mod: IRModule, chosen: Sequence[Backend], options: Mapping[str, Any]
) -> tuple[IRModule, Report]:
    """`partition` of a Relay module: a Relay module, and what became of each convolution."""
    register_relay()
    mod = T.InferType()(mod)
    composites = find_conv_backward(mod).raised
    candidates = Candidates(chosen, options)
    table = [row for backend in chosen for row in candidates.rows(backend)]
    before = set(mod.functions)
    for pass_ in (
        T.MergeComposite(table),
        T.AnnotateTarget([backend.name for backend in chosen], include_non_call_ops=False),
        T.PartitionGraph(bind_constants=False),
    ):
        mod = pass_(mod)
    functions = dict(mod.functions)
    new = set(functions) - before
    for name in new:
        given = _changed(options[_compiler(functions[name])])
        if given:
            functions[name] = functions[name].with_attr(RELAY_OPTIONS, json.dumps(given))
    out = replace(mod, functions=functions)
    return out, Report(_Entries(candidates, new).of(out), composites)


def _changed(options: Any) -> dict[str, Any]:
    """The options that are not at their defaults."""
    default = asdict(type(options)())
    return {name: value for name, value in asdict(options).items() if value != default[name]}


def _compiler(function: Function) -> str:
    return str(function.attrs.get(COMPILER, ""))


def _options(function: Function) -> dict[str, Any]:
    """The options of a function's backend that are not at their defaults."""
    found: dict[str, Any] = json.loads(str(function.attrs.get(RELAY_OPTIONS, "{}")))
    return found


def _composite_of(function: Function) -> Function | None:
    """The composite function of which a backend's function is a single call."""
    call = function.body
    if not (isinstance(call, Call) and call.args == function.params):
        return None
    callee = call.op
    return callee if isinstance(callee, Function) and COMPOSITE in callee.attrs else None


@dataclass(frozen=True)
class _Entries:
    """The decision on each convolution of a module.

    Those in a compiler's function are entered where the program calls it: `function` is the user's
    own, and `node` the operator with a number that counts the function's convolutions.
    """

    candidates: Candidates
    new: Set[str]  # functions that this partition made, in which its candidates are

    def of(self, mod: IRModule) -> list[Entry]:
        regions = {name: f for name, f in mod.functions.items() if _compiler(f)}
        entries: list[Entry] = []
        for name, function in mod.functions.items():
            if not _compiler(function):
                entries += self._of_function(name, function, regions)
        for name, function in regions.items():  # that nothing calls
            entries += _numbered(name, self._of_region(name, function))
        return entries

    def _of_function(
        self, name: str, function: Function, regions: dict[str, Function]
    ) -> list[Entry]:
        """Takes the regions that it calls out of `regions`."""
        found: list[Entry] = []
        for node in post_order(function):
            callee = node.op if isinstance(node, Call) else None
            if isinstance(callee, GlobalVar) and callee.name in regions:
                found += self._of_region(callee.name, regions.pop(callee.name))
            elif _is_convolution(node):
                found.append(self._alone(node))
        return _numbered(name, found)

    def _of_region(self, name: str, function: Function) -> list[Entry]:
        calls = [node for node in post_order(function) if _is_convolution(node)]
        backend, candidates = _compiler(function), self.candidates
        tensors = all(isinstance(p.type_annotation, TensorType) for p in function.params)
        if not (calls and backend in BACKENDS and tensors):
            return [self._alone(call) for call in calls]
        if name not in self.new:
            given = {backend: _options(function)}
            candidates = Candidates(*bound_backends((backend,), given, fuse=True))
        chosen = [one for one in candidates.chosen if one.name == backend]
        found = candidates.entries(_composite_of(function) or function, chosen)
        return [_placed(entry, call) for entry, call in zip(found, calls, strict=True)]

    def _alone(self, call: Expr) -> Entry:
        """Of a call that no backend took."""
        assert isinstance(call, Call)
        assert isinstance(call.op, Op)
        function = extract(_PLAIN[call.op.name], call)
        assert function is not None
        (entry,) = self.candidates.entries(function, self.candidates.chosen)
        reason = entry.reason or TAKEN
        return _placed(replace(entry, backend="", row="", adapted="", reason=reason), call)


_PLAIN = {op: is_op(op)(wildcard(), wildcard()) for kind in ConvKind for op in convolutions(kind)}


def _is_convolution(node: Expr) -> bool:
    return isinstance(node, Call) and isinstance(node.op, Op) and node.op.name in _PLAIN


def _placed(entry: Entry, call: Expr) -> Entry:
    return replace(entry, source=str(call.span) if call.span is not None else "")


def _numbered(function: str, entries: Sequence[Entry]) -> list[Entry]:
    return [
        replace(entry, function=function, node=f"{entry.op}_{number}")
        for number, entry in enumerate(entries)
    ]


def build_functions(
    mod: tvm.IRModule, functions: Mapping[str, Function], target: Target
) -> Library:
    """`relay.build`'s part of a backend: a library that runs the functions' convolutions."""
    return build(offload_functions(mod, functions), target)


def offload_functions(mod: tvm.IRModule, functions: Mapping[str, Function]) -> tvm.IRModule:
    """@main with composites where it called `functions`, which are given in their Relay form.

    Warns of a convolution that a backend does not take after all: TVM's kernels compute it.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for name, function in functions.items():
        key = (_compiler(function), str(function.attrs.get(RELAY_OPTIONS)))
        groups.setdefault(key, []).append(name)
    # Partitioned apart from @main, whose other convolutions are TVM's.
    apart = tvm.IRModule()
    for (backend, _), names in groups.items():
        for name in names:
            apart[mod.get_global_var(name)] = mod[name]
        given = {backend: _options(functions[names[0]])}
        chosen, made = bound_backends((backend,), given, fuse=True)
        apart, entries = partition_relax(apart, chosen, made)
        for entry in (entry for entry in entries if not entry.backend):
            warnings.warn(
                f"build: TVM's own kernels compute {entry.op} of @{entry.function}: {entry.reason}",
                UserWarning,
                stacklevel=2,
            )
    inlined = {mod.get_global_var(name): apart[name] for name in functions}
    main = mod[_MAIN].inline_functions(inlined)
    out = mod.clone()
    out.update_func(mod.get_global_var(_MAIN), main)
    for name in functions:
        del out[name]
    for var, func in apart.functions_items():
        if str(var.name_hint) not in functions:
            out[var] = func
    return out
