"""`from_stablehlo`: programs of StableHLO, gradients as JAX writes them, in Relax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...ops.algebra import WGRAD_NAME, get_op
from ...transform.raising.report import RaiseReport
from ..context import Context, Options
from ..gradient_graph import GradientGraph, Result
from ..graph import InputSpec
from .convolutions import Convolutions
from .data_movement import MOVING
from .elementwise import ELEMENTWISE
from .indexing import INDEXING
from .operation import Builder, Step
from .products import PRODUCTS
from .reader import functions, parsed, steps, text, type_of
from .reductions import REDUCING
from .tensors import Tensor, of_expr

STABLEHLO_OPS: dict[str, Builder] = {
    **ELEMENTWISE, **INDEXING, **MOVING, **PRODUCTS, **REDUCING,
}  # fmt: skip
"""Operation of `stablehlo` or `chlo` -> builder, beside `convolution`, calls and annotations."""

_ANNOTATIONS = ("Sharding", "annotate_device_placement", "SPMDFullToShardShape")
_DEPTH = 64  # of calls
_ENDS = ("func.return", "stablehlo.return")


def from_stablehlo(program: Any, *, name: str = "stablehlo") -> GradientGraph:
    """A program of StableHLO, in which gradients are operations already, as a Relax function.

    Each convolution, whatever its dimension numbers, dilations, groups, padding and reversal,
    becomes `conv2d`, `conv2d_backward_data` or `conv2d_backward_weight` (or their kin of volumes)
    in the layouts that it has, as far as it is one.

    Parameters
    ----------
    program : text, MLIR's bytecode, a portable artifact, or what has one of them: what
        `jax.jit(f).lower(...)`, `jax.export.export(f)(...)` or its `mlir_module()` give.
    name : in errors.

    Returns
    -------
    GradientGraph : `report` has an entry for each convolution that is a gradient, or was written
        in a general way, with the reason.

    Raises
    ------
    TypeError : for another `program`.
    ValueError : for a program that MLIR does not parse, an operation that is neither in
        `STABLEHLO_OPS` nor taken apart (named), a custom call (named), sizes that are unknown.
    RuntimeError : before `relay_wgrad.register()`.
    ModuleNotFoundError : without JAX.
    """
    get_op(WGRAD_NAME)
    return _Import(name, parsed(program)).graph()


class _Import:
    """One module on its way."""

    def __init__(self, name: str, module: Any) -> None:
        self.name = name
        self.module = module  # its operations live as long as it does
        self.main, self.functions = functions(module)
        self.ctx = Context(Options("float32", "module", "mask", 0), relax.BlockBuilder(), {})
        self.convolutions = Convolutions()

    def graph(self) -> GradientGraph:
        """What `from_stablehlo` gives."""
        specs: list[InputSpec] = []
        outputs: list[Result] = []

        def body() -> tuple[list[Any], list[relax.Var]]:
            given: list[relax.Var] = []
            for i, value in enumerate(self.main.regions[0].blocks[0].arguments):
                spec, var = self.ctx.input(f"arg{i}", "data", *type_of(value))
                specs.append(spec)
                given.append(var)
            tensors = [of_expr(var, argument=True) for var in given]
            found, exprs = self._results(given, self._run(self.main, tensors, 0))
            outputs.extend(found)
            return exprs, given

        module = relax.transform.DeadCodeElimination(["main"])(self.ctx.main(body))
        gradients = [e for e in self.convolutions.entries if e.kind != "fprop" or e.reason]
        return GradientGraph(
            self.name, module, tuple(specs), tuple(outputs), report=RaiseReport(gradients)
        )

    def _results(
        self, given: list[relax.Var], results: list[Tensor]
    ) -> tuple[list[Result], list[Any]]:
        outputs: list[Result] = []
        exprs: list[Any] = []
        seen = {var: Result("input", i) for i, var in enumerate(given)}
        for tensor in results:
            if tensor.known:
                outputs.append(Result("value", np.asarray(tensor.array(), order="C")))
                continue
            expr = tensor.full(self.ctx)
            if expr in seen:
                outputs.append(seen[expr])
                continue
            seen[expr] = Result("result", len(exprs))
            outputs.append(seen[expr])
            exprs.append(expr)
        return outputs, exprs

    # ---- functions and operations ----------------------------------------------------------------

    def _run(self, function: Any, given: list[Tensor], depth: int) -> list[Tensor]:
        """A function's results."""
        if depth > _DEPTH:
            raise ValueError(f"{self.name}: calls are nested more than {_DEPTH} deep")
        block = function.regions[0].blocks[0]
        env: dict[Any, Tensor] = dict(zip(block.arguments, given, strict=True))
        for operation in steps(function):
            name = str(operation.name)
            operands = [env[value] for value in operation.operands]
            if name in _ENDS:
                return operands
            made = self._call(name, operation, operands, depth)
            env |= zip(operation.results, made, strict=True)
        raise ValueError(f"{self.name}: {text(function.attributes['sym_name'])!r} returns nothing")

    def _call(self, name: str, operation: Any, operands: list[Tensor], depth: int) -> list[Tensor]:
        """What an operation becomes.  Raises ValueError naming it where it is refused."""
        called = _called(name, operation)
        if called:
            if called not in self.functions:
                raise ValueError(f"{self.name}: {name} of {called!r}, which is no function here")
            return self._run(self.functions[called], operands, depth + 1)
        kind = name.rpartition(".")[2]
        if kind == "custom_call":
            target = text(operation.attributes["call_target_name"])
            if target in _ANNOTATIONS:
                return operands
            raise ValueError(f"{self.name}: custom call {target!r} is not supported")
        if name == "sdy.sharding_constraint":
            return operands
        results = list(operation.results)
        node = str(results[0].get_name()).lstrip("%") if results else kind
        label = f"{name} (%{node})"
        builder = self.convolutions.build if kind == "convolution" else STABLEHLO_OPS.get(kind)
        if builder is None or name.partition(".")[0] not in ("stablehlo", "chlo"):
            raise ValueError(f"{self.name}: {label} is not supported")
        try:
            step = Step(kind, node, operation, operands, [type_of(value) for value in results])
            if any(0 in shape for shape, _ in step.results):
                raise ValueError("an empty tensor is not supported")
            made = builder(self.ctx, step)
            tensors = [made] if isinstance(made, Tensor) else list(made)
            for tensor, (shape, dtype) in zip(tensors, step.results, strict=True):
                if (tensor.shape, tensor.dtype) != (shape, dtype):
                    raise ValueError(
                        f"makes {tensor.dtype}{list(tensor.shape)} in Relax for"
                        f" {dtype}{list(shape)}"
                    )
        except (ArithmeticError, LookupError, AttributeError, AssertionError) as error:
            what = f"{type(error).__name__}: {error}"
            raise ValueError(f"{self.name}: {label} cannot be built ({what})") from error
        except (ValueError, TypeError, tvm.error.InternalError) as error:
            raise ValueError(f"{self.name}: {label}: {error}") from error
        return tensors


def _called(name: str, operation: Any) -> str:
    """The function that an operation stands for, "" for others."""
    attributes: Mapping[str, str] = {
        "func.call": "callee", "call": "callee", "stablehlo.composite": "decomposition",
    }  # fmt: skip
    return text(operation.attributes[attributes[name]]) if name in attributes else ""
