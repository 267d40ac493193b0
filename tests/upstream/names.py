"""What upstream's names of TVM stand for here.

`relay` is this package's; a name that stands in `TABLE` is what the table says; any other is the
installed TVM's of the same name.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, NamedTuple


class Row(NamedTuple):
    """What stands for a name: "module" or "module:attribute", and why."""

    stands: str
    why: str


_HERE = "tests.upstream.standins"
_RELAY = "relay_wgrad.relay"
_NODES = "Relay's node, where TVM 0.27's of that name is Relax's"
_PASSES = "of Relay's modules"

TABLE = {
    "tvm.relay": Row(_RELAY, "what is tested"),
    # Relay's tree.
    "tvm.IRModule": Row(f"{_RELAY}:IRModule", _NODES),
    "tvm.ir.IRModule": Row(f"{_RELAY}:IRModule", _NODES),
    "tvm.ir.module.IRModule": Row(f"{_RELAY}:IRModule", _NODES),
    "tvm.ir.GlobalVar": Row(f"{_RELAY}:GlobalVar", _NODES),
    "tvm.ir.Op": Row(f"{_RELAY}:Op", _NODES),
    **{
        f"tvm.ir.{name}": Row(f"{_RELAY}:{name}", _NODES)
        for name in (
            "TensorType", "TupleType", "FuncType", "TypeVar", "GlobalTypeVar", "TypeCall",
            "IncompleteType", "RelayRefType", "TypeKind", "TypeRelation",
        )
    },
    "tvm.ir.structural_equal": Row(f"{_HERE}:structural_equal", "Relay's nodes, and all others"),
    "tvm.ir.structural_hash": Row(f"{_HERE}:structural_hash", "Relay's nodes, and all others"),
    "tvm.ir.assert_structural_equal": Row(
        f"{_HERE}:assert_structural_equal", "Relay's nodes, and all others"
    ),
    "tvm.ir.save_json": Row(f"{_HERE}:save_json", "a Relay program is kept as its text"),
    "tvm.ir.load_json": Row(f"{_HERE}:load_json", "a Relay program is kept as its text"),
    "tvm.runtime.load_module": Row(f"{_RELAY}:load_module", "reads what relay.build exported"),
    "tvm.runtime.container.tuple_object": Row("builtins:tuple", "tuples are Python's here"),
    "tvm.runtime.convert": Row(f"{_HERE}:convert", "lists of Relay's nodes are Python's"),
    "tvm.ir.make_node": Row(f"{_HERE}:make_node", "attributes of Relay's operators"),
    "tvm.ir.register_op_attr": Row(f"{_RELAY}.op:register_op_attr", "of Relay's operators"),
    # Passes.
    "tvm.transform.Sequential": Row(f"{_RELAY}.transform:Sequential", _PASSES),
    "tvm.transform.PassContext": Row(f"{_RELAY}.transform:PassContext", _PASSES),
    "tvm.transform.Pass": Row(f"{_RELAY}.transform:Pass", _PASSES),
    "tvm.transform.PassInfo": Row(f"{_RELAY}.transform:PassInfo", _PASSES),
    "tvm.transform.ModulePass": Row(f"{_RELAY}.transform:ModulePass", _PASSES),
    "tvm.transform.PrintIR": Row(f"{_RELAY}.transform:PrintIR", _PASSES),
    "tvm.transform.module_pass": Row(f"{_RELAY}.transform:module_pass", _PASSES),
    "tvm.ir.transform.Sequential": Row(f"{_RELAY}.transform:Sequential", _PASSES),
    "tvm.ir.transform.PassContext": Row(f"{_RELAY}.transform:PassContext", _PASSES),
    # Modules that 0.27 has under another name, or not any more.
    "tvm.tir": Row("tvm.tirx", "its name in 0.27"),
    "tvm.script.tir": Row("tvm.script.tirx", "its name in 0.27"),
    "tvm.target.VirtualDevice": Row(f"{_HERE}:VirtualDevice", "devices are not planned"),
    "tvm.runtime.name_transforms": Row(f"{_RELAY}.backend.name_transforms", "0.27 has none"),
    "tvm.tir.SizeVar": Row("tvm.tirx:Var", "0.27 has one kind of variable"),
    "tvm.ir.EnvFunc": Row(f"{_HERE}:EnvFunc", "0.27 has none of Relay's type relations"),
    "tvm.ir.supply": Row(f"{_RELAY}.name_supply", "0.27 has it for its own functions"),
    "tvm.tir.Any": Row(f"{_RELAY}:Any", "a size that only the run knows is Relay's alone"),
    "tvm.tir.layout": Row(
        f"{_RELAY}.transform.infer_layout_utils:layout", "0.27's of that name is another thing"
    ),
    "tvm.te.size_var": Row("relay_wgrad.relay.te:size_var", "0.27 has one kind of variable"),
    "tvm.nd": Row(f"{_HERE}.nd", "arrays are tvm.runtime's in 0.27"),
    "tvm.runtime.ndarray": Row(f"{_HERE}.nd", "arrays are tvm.runtime's in 0.27"),
    "tvm.runtime.NDArray": Row("tvm.runtime:Tensor", "its name in 0.27"),
    "tvm.runtime.save_param_dict": Row(f"{_RELAY}:save_param_dict", "0.27's gives other bytes"),
    "tvm.runtime.container.ADT": Row("builtins:list", "0.27 has none; results are lists"),
    "tvm.container.Map": Row(f"{_HERE}:MAPS", "its place in 0.27; maps are Python's here"),
    "tvm.ir.container.Map": Row("tvm.ir:Map", "its place in 0.27"),
    "tvm.runtime.container.ShapeTuple": Row("tvm.runtime:ShapeTuple", "its place in 0.27"),
    "tvm.runtime.container.String": Row("builtins:str", "strings are Python's in 0.27"),
    "tvm.ir.container.Array": Row("tvm.ir:Array", "its place in 0.27"),
    "tvm.cpu": Row(f"{_HERE}:cpu", "0.27's has no device_type"),
    "tvm.runtime.cpu": Row(f"{_HERE}:cpu", "0.27's has no device_type"),
    "tvm.device": Row(f"{_HERE}:device", "0.27 does not take a target's name"),
    "tvm.runtime.device": Row(f"{_HERE}:device", "0.27 does not take a target's name"),
    "tvm.register_func": Row("tvm:register_global_func", "its name in 0.27"),
    "tvm._ffi.register_func": Row("tvm:register_global_func", "its name in 0.27"),
    "tvm._ffi.get_global_func": Row("tvm:get_global_func", "its place in 0.27"),
    "tvm._ffi.base.py_str": Row(f"{_HERE}:py_str", "strings are Python's in 0.27"),
    "tvm.contrib.graph_executor": Row(f"{_RELAY}.graph_executor", "0.27 has no graph executor"),
    "tvm.contrib.graph_runtime": Row(f"{_RELAY}.graph_executor", "its older name"),
    "tvm.contrib.utils": Row(f"{_HERE}.utils", "temporary folders"),
    "tvm.contrib.nvcc.have_fp16": Row(f"{_HERE}:no", "no GPU here"),
    # Errors: here they are Python's, as in all of this package.
    "tvm.TVMError": Row(f"{_HERE}:ERRORS", "refusals are ValueError and TypeError here"),
    "tvm.error.TVMError": Row(f"{_HERE}:ERRORS", "refusals are ValueError and TypeError here"),
    "tvm._ffi.base.TVMError": Row(f"{_HERE}:ERRORS", "refusals are ValueError and TypeError here"),
    "tvm.error.DiagnosticError": Row(f"{_HERE}:ERRORS", "refusals are ValueError and TypeError"),
    # Pytest's fixtures of upstream's, for one target.
    "tvm.ir.diagnostics": Row(f"{_HERE}.diagnostics", "0.27 has no renderer of diagnostics"),
    "tvm.testing": Row(f"{_HERE}.testing", "0.27's has a part of it; here it is for LLVM alone"),
}  # fmt: skip
_PREFIXES = {name.rpartition(".")[0] for name in TABLE}
_PREFIXES |= {prefix.rpartition(".")[0] for prefix in _PREFIXES}


class MissingNameError(BaseException):
    """An import that neither the surface nor TVM 0.27 has; no test expects this one."""


class Missing:
    """What an import gives whose name is not there: any use of it raises."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise MissingNameError(f"missing name {self._name}")

    __call__ = __getitem__ = __iter__ = __or__ = __instancecheck__ = _refuse

    def __getattr__(self, name: str) -> Any:
        # pytest asks all that it finds in a module for attributes.
        raise AttributeError(f"missing name {self._name}.{name}")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (type(self._name, (), {"__init__": self._refuse}),)


class _Space(ModuleType):
    """A module of TVM's with the table's names in it."""

    def __init__(self, name: str, base: ModuleType | None) -> None:
        super().__init__(name)
        self.__dict__["_base"] = base

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = _find(f"{self.__name__}.{name}", self._base, name)
        if isinstance(found, Missing):
            raise AttributeError(f"missing name {self.__name__}.{name}")
        self.__dict__[name] = found
        return found


_SPACES: dict[str, _Space] = {}


def _find(full: str, base: Any, name: str) -> Any:
    if full in TABLE and full not in _PREFIXES:
        return _load(TABLE[full].stands)
    if full in _PREFIXES and full != "tvm.relay":
        if full not in _SPACES:
            own = _load(TABLE[full].stands) if full in TABLE else _attribute(base, name)
            _SPACES[full] = _Space(full, None if isinstance(own, Missing) else own)
        return _SPACES[full]
    found = _attribute(base, name)
    return Missing(full) if isinstance(found, Missing) else found


def _attribute(base: Any, name: str) -> Any:
    if hasattr(base, name):
        return getattr(base, name)
    if isinstance(base, ModuleType):
        full = f"{base.__name__}.{name}"
        try:
            return importlib.import_module(full)
        except ModuleNotFoundError as error:
            if error.name is None or not full.startswith(error.name):
                raise
    return Missing(name)


def _load(stands: str) -> Any:
    module, _, attribute = stands.partition(":")
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError:
        return Missing(stands)
    if not attribute:
        return loaded
    return getattr(loaded, attribute, Missing(stands))


def resolve(name: str) -> Any:
    """What a dotted name of TVM's stands for: a `Missing` where nothing does."""
    if "tvm" not in _SPACES:
        _SPACES["tvm"] = _Space("tvm", importlib.import_module("tvm"))
    found: Any = _SPACES["tvm"]
    full = "tvm"
    for part in name.split(".")[1:]:
        full = f"{full}.{part}"
        if isinstance(found, _Space):
            found = (
                found.__dict__[part] if part in found.__dict__ else _find(full, found._base, part)
            )
        else:
            found = _attribute(found, part)
        if isinstance(found, Missing):
            return Missing(name)
    return found
