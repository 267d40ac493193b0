"""What Relay's nodes and modules do beside being data: operators on them, their text.

The classes of `ast` inherit these; what they need of the layers above is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Number
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from ..keys import SYMBOL

if TYPE_CHECKING:
    from .ast import Call, Function, GlobalVar, IRModule, Op


def _call(name: str, *args: Any, **attrs: Any) -> Call:
    from .make import call

    for arg in args:
        if isinstance(arg, Number):
            # Relay's rule: a number has no dtype, and none is guessed.
            raise TypeError(f'{name}: convert "{arg}" with `const` first')
        if not isinstance(arg, ExprMethods):
            raise TypeError(f"{name}: type {type(arg)} not supported")
    return call(name, *args, **attrs)


class ExprMethods:
    """Python's operators on an expression, which make calls."""

    __slots__ = ()

    def __neg__(self) -> Call:
        return _call("negative", self)

    def __add__(self, other: Any) -> Call:
        return _call("add", self, other)

    def __sub__(self, other: Any) -> Call:
        return _call("subtract", self, other)

    def __mul__(self, other: Any) -> Call:
        return _call("multiply", self, other)

    def __truediv__(self, other: Any) -> Call:
        return _call("divide", self, other)

    def __radd__(self, other: Any) -> Call:
        return _call("add", other, self)

    def __rsub__(self, other: Any) -> Call:
        return _call("subtract", other, self)

    def __rmul__(self, other: Any) -> Call:
        return _call("multiply", other, self)

    def __rtruediv__(self, other: Any) -> Call:
        return _call("divide", other, self)

    def __lt__(self, other: Any) -> Call:
        return _call("less", self, other)

    def __le__(self, other: Any) -> Call:
        return _call("less_equal", self, other)

    def __gt__(self, other: Any) -> Call:
        return _call("greater", self, other)

    def __ge__(self, other: Any) -> Call:
        return _call("greater_equal", self, other)

    def __call__(self, *args: Any) -> Call:
        """A call of this, which must be a function or an operator."""
        from .ast import Call

        return Call(self, args)  # type: ignore[arg-type]

    def same_as(self, other: object) -> bool:
        """Whether the other is this very node."""
        return self is other

    def astype(self, dtype: str) -> Call:
        """`relay.cast` to a dtype."""
        return _call("cast", self, dtype=dtype)

    def astext(
        self, show_meta_data: bool = True, annotate: Callable[[Any], str] | None = None
    ) -> str:
        """The expression as text, with a header; a variable that nothing binds as `free_var`."""
        from .text.printer import expr_text

        return expr_text(self, show_meta_data, annotate)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.astext(show_meta_data=False).partition("\n")[2]


class FunctionMethods(ExprMethods):
    """What a function has beside an expression's."""

    __slots__ = ()

    def with_attr(self: Any, attr_key_or_dict: Any, attr_value: Any = None) -> Function:
        """A copy with one attribute more, or with those of a dict."""
        new = (
            attr_key_or_dict
            if isinstance(attr_key_or_dict, Mapping)
            else {attr_key_or_dict: attr_value}
        )
        return replace(self, attrs={**self.attrs, **new})

    def without_attr(self: Any, attr_key: str) -> Function:
        """A copy without an attribute."""
        kept = {name: value for name, value in self.attrs.items() if name != attr_key}
        return replace(self, attrs=kept)


def _registration() -> ModuleType:
    """Where what users register for operators is kept: it is built on the tree."""
    from .op import registration

    return registration


class OpMethods(ExprMethods):
    """An operator's registration; `relay.op.get` and `relay.op.register` give the operator.

    Each method changes the one operator of that name.  ValueError for an operator that the package
    has: what it takes is fixed, and `relay.op.register_…` change what is done with it.
    """

    __slots__ = ()
    name: str

    def add_type_rel(
        self, rel_name: str, type_rel_func: Callable[[list[Any], Any], Any] | None = None
    ) -> None:
        """Sets the type relation: `type_rel_func(arg_types, attrs)` gives the result's type.

        Without a function `rel_name` is one of Relay's: Identity, Broadcast, BroadcastComp.
        """
        _registration().add_type_rel(self.name, rel_name, type_rel_func)

    def add_argument(self, name: str, type: str, description: str) -> None:  # noqa: A002
        """Names the next argument; type and description are for the reader."""
        _registration().add_argument(self.name, name, type, description)

    def set_num_inputs(self, n: int) -> None:
        """How many arguments the operator takes."""
        _registration().set_num_inputs(self.name, n)

    @staticmethod
    def get(op_name: str) -> Op:
        """The operator of that name, as `relay.op.get`."""
        return _registration().get(op_name)

    @staticmethod
    def list_op_names() -> list[str]:
        """The names of all operators."""
        return _registration().list_op_names()

    @property
    def num_inputs(self) -> int:
        """How many arguments the operator takes; -1 for any number."""
        return _registration().num_inputs(self.name)

    @property
    def support_level(self) -> int:
        """Relay's level of support; 10 for an operator that nobody gave one."""
        found = self.get_attr("support_level")
        return 10 if found is None else int(found)

    def set_support_level(self, level: int) -> None:
        """Relay's level of support, a number for the reader."""
        self.set_attr("support_level", level)

    def set_attrs_type_key(self, key: str) -> None:
        """The name of the attributes' type, for the reader: calls may have any attributes."""
        self.set_attr("attrs_type_key", key)

    def set_attr(self, attr_name: str, value: Any, plevel: int = 10) -> None:
        """Sets what `get_attr` gives; FPrimalGradient and its like are hooks."""
        _registration().set_attr(self.name, attr_name, value, plevel)

    def get_attr(self, attr_name: str) -> Any:
        """What is set with the highest level, or None."""
        return _registration().get_attr(self.name, attr_name)

    def has_attr(self, attr_name: str) -> bool:
        """Whether one is set."""
        return self.get_attr(attr_name) is not None

    def reset_attr(self, attr_name: str) -> None:
        """Takes back what `set_attr` has set, at all levels."""
        _registration().reset_attr(self.name, attr_name)


class ModuleMethods:
    """What a module has beside its functions."""

    functions: Mapping[str, Function]
    type_definitions: Mapping[Any, Any]
    standard_module: ClassVar[Callable[[str], Any]]  # set by `prelude`
    attrs: Any

    @staticmethod
    def from_expr(expr: Any, functions: Mapping[Any, Function] | None = None) -> IRModule:
        """A module with the expression as @main: a function, or one of its free variables.

        A function with the attribute `global_symbol` gets that name.
        """
        from .ast import Function, IRModule, as_node
        from .variables import free_vars

        body = as_node(expr, "from_expr: the expression")
        main = body if isinstance(body, Function) else Function(tuple(free_vars(body)), body)
        mod = IRModule(functions or {})
        mod[str(main.attrs.get(SYMBOL, "main"))] = main
        return mod

    def get_global_var(self, name: str) -> GlobalVar:
        """The name of a function, to call it.

        Raises ValueError if the module has none of that name.
        """
        from .ast import GlobalVar

        if name not in self.functions:
            raise ValueError(f"the module has no @{name}, but {', '.join(self.functions)}")
        return GlobalVar(name)

    def get_global_vars(self) -> list[GlobalVar]:
        """The names of all functions."""
        return [self.get_global_var(name) for name in self.functions]

    def get_global_type_var(self, name: str) -> Any:
        """The name of a type.  Raises ValueError if the module defines none of that name."""
        for header in self.type_definitions:
            if header.name_hint == name:
                return header
        raise ValueError(f"the module has no type {name}, but {', '.join(self._type_names())}")

    def _type_names(self) -> list[str]:
        return [header.name_hint for header in self.type_definitions]

    def get_global_type_vars(self) -> list[Any]:
        """The names of all types."""
        return list(self.type_definitions)

    def get_type(self, name: str) -> tuple[Any, ...]:
        """The name of a type, and its constructors."""
        header = self.get_global_type_var(name)
        return (header, *self.type_definitions[header].constructors)

    def get_constructor(self, tag: int) -> Any:
        """The constructor of that tag; ValueError if there is none."""
        for data in self.type_definitions.values():
            for constructor in data.constructors:
                if constructor.tag == tag:
                    return constructor
        raise ValueError(f"the module has no constructor of tag {tag}")

    def import_from_std(self: Any, file_to_import: str) -> None:
        """Takes over one of Relay's standard modules: prelude.rly, nat.rly, gradient.rly.

        Nothing for `core.rly`, which has the storage type of Relay's VM alone.
        """
        if file_to_import != "core.rly":
            self.update(ModuleMethods.standard_module(file_to_import))

    def update_func(self: Any, var: GlobalVar, func: Function) -> None:
        """Replaces a function, or adds one."""
        self[var] = func

    def _add(self: Any, var: GlobalVar | str, val: Function, update: bool = False) -> None:
        """Adds a function, or with `update` replaces one; Relay's scripts use this one too."""
        if var in self and not update:
            raise ValueError(f"the module has @{getattr(var, 'name', var)} already")
        self[var] = val

    def update(self: Any, other: IRModule | Mapping[Any, Function]) -> None:
        """Takes over another module's functions and types."""
        functions: Any = getattr(other, "functions", other)
        for header, data in dict(getattr(other, "type_definitions", {})).items():
            self[header] = data
        for name, function in functions.items():
            self[name] = function

    def with_attr(self: Any, attr_key: str, attr_value: Any) -> IRModule:
        """A copy with one attribute more."""
        return replace(self, attrs={**self.attrs, attr_key: attr_value})

    def same_as(self, other: object) -> bool:
        """Whether the other is this very module."""
        return self is other

    def astext(
        self: Any, show_meta_data: bool = True, annotate: Callable[[Any], str] | None = None
    ) -> str:
        """The module's text, as `relay.astext`."""
        from .text.printer import astext

        return astext(self, show_meta_data, annotate)

    def __str__(self) -> str:
        return self.astext(show_meta_data=False).partition("\n")[2]
