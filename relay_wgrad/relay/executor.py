"""`relay.create_executor`: compile an expression and call it from Python, as in Relay's tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm

from .ast import Constant, Expr, Function, GlobalVar, IRModule, Tuple, Var
from .build import build
from .executor_factory import MAIN
from .expr import as_constant, bind, bind_params_by_name
from .expr_methods import ExprMethods
from .graph_executor import GraphModule
from .infer import infer_module
from .surface import check_relay_module
from .types import TupleType, Type

_KINDS = ("debug", "graph", "vm", "aot")


class ExpressionExecutor:
    """What `create_executor` gives."""

    def __init__(self, mod: IRModule, device: Any, target: Any, params: Mapping[str, Any]) -> None:
        self.mod = mod
        self.device = device
        self.target = target
        self.params = params

    def evaluate(
        self, expr: Expr | None = None, binds: Mapping[Var, Any] | None = None
    ) -> Callable[..., Any] | Any:
        """A function compiled, as a Python function; the value of an expression that is none.

        `expr` is by default the module's @main; a GlobalVar is another function of it.  The Python
        function takes arrays or constants by place or by name (lists of them for tuples), and gives
        a tensor, or a list for a tuple.  `binds` has arrays, numbers or expressions for variables.

        Raises
        ------
        TypeError, ValueError : as `build`; for a variable that nothing binds.
        """
        main = self._main(expr, binds or {})
        mod = infer_module(IRModule({**self.mod.functions, MAIN: main}))
        # Names need not differ in Relay, but inputs' do.
        inputs: list[Var] = []
        given = {param: _input(param.checked_type, inputs) for param in mod[MAIN].params}
        body = bind(mod[MAIN].body, given)
        mod[MAIN] = Function(tuple(inputs), body)
        module = GraphModule(build(mod, self.target)["default"](self.device))
        names = [param.name for param in main.params]
        types = [param.checked_type for param in given]
        result = body.checked_type

        def call(*args: Any, **kwargs: Any) -> Any:
            placed = zip(types, _placed(names, args, kwargs), strict=True)
            values = (leaf for ty, value in placed for leaf in _tensors(ty, value))
            for i, value in enumerate(values):
                module.set_input(
                    i, np.asarray(value.data) if isinstance(value, Constant) else value
                )
            module.run()
            return _nested(module, result, iter(range(module.get_num_outputs())))

        if expr is not None and not isinstance(expr, (Function, GlobalVar)):
            return call()
        return call

    def _main(self, expr: Expr | None, binds: Mapping[Var, Any]) -> Function:
        if expr is None or isinstance(expr, GlobalVar):
            name = expr.name if isinstance(expr, GlobalVar) else MAIN
            if name not in self.mod:
                raise ValueError(f"evaluate: the module has no @{name}")
            expr = self.mod[name]
        out = bind(expr, {var: _argument(value) for var, value in binds.items()})
        main = out if isinstance(out, Function) else Function((), out)
        return bind_params_by_name(main, self.params)


def _input(ty: Type | None, inputs: list[Var]) -> Expr:
    """A parameter of that type: a tuple is one of inputs of its own, for `build` takes tensors."""
    if isinstance(ty, TupleType):
        return Tuple(tuple(_input(part, inputs) for part in ty.fields))
    inputs.append(Var(f"p{len(inputs)}", ty))
    return inputs[-1]


def _tensors(ty: Type | None, value: Any) -> list[Any]:
    """A value's tensors, in the order of `_input`."""
    if not isinstance(ty, TupleType):
        return [value]
    if not isinstance(value, (tuple, list)) or len(value) != len(ty.fields):
        raise TypeError(f"expected a tuple of {len(ty.fields)} values for {ty}, got {value!r}")
    pairs = zip(ty.fields, value, strict=True)
    return [leaf for part, each in pairs for leaf in _tensors(part, each)]


def _argument(value: Any) -> Expr:
    """A value for a variable: an expression as it is, arrays and numbers as constants."""
    if isinstance(value, (tuple, list)) and any(hasattr(part, "shape") for part in value):
        return Tuple(tuple(_argument(part) for part in value))
    return value if isinstance(value, ExprMethods) else as_constant(value)  # type: ignore[return-value]


def _placed(names: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments in the order of the parameters."""
    rest = names[len(args) :]
    if len(args) > len(names) or sorted(rest) != sorted(kwargs):
        raise TypeError(
            f"expected arguments for {', '.join(names) or 'no parameters'},"
            f" got {len(args)} by place and {', '.join(kwargs) or 'none'} by name"
        )
    return [*args, *(kwargs[name] for name in rest)]


def _nested(module: GraphModule, ty: Type | None, at: Any) -> Any:
    if isinstance(ty, TupleType):
        return [_nested(module, part, at) for part in ty.fields]
    return module.get_output(next(at))


def create_executor(
    kind: str = "debug",
    mod: IRModule | None = None,
    device: Any = None,
    target: Any = "llvm",
    params: Mapping[str, Any] | None = None,
) -> ExpressionExecutor:
    """What evaluates expressions on a device, by default the CPU.

    Relay's kinds, debug, graph, vm and aot, are one here: a program is compiled.  `params` has
    values for parameters by name.

    Raises ValueError for another kind.
    """
    if kind not in _KINDS:
        raise ValueError(f"create_executor: kind must be one of {', '.join(_KINDS)}, got {kind!r}")
    if mod is not None:
        check_relay_module("create_executor", mod)
    device = tvm.cpu() if device is None else device
    return ExpressionExecutor(mod or IRModule({}), device, target, params or {})
