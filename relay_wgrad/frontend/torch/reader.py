"""A graph of ATen ops, node by node, by a table: what the importers of PyTorch's graphs share."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from tvm import relax

from ...dtypes import HALVES
from ...ir import constant
from ..context import Context, Options, shape_of
from ..sizes import is_open, is_size
from .batch import FIXED, Batch, is_symbolic
from .call import Builder, Call, Noted, NotedNames, Unset, array, check_result, dtype_name
from .constant_folding import Known
from .names import op_of
from .ops import FILLING, HINTS
from .program import pytorch

_IGNORED = ("_assert_tensor_metadata.default",)  # they check what has been checked on export
_DTYPES = ("float32", "float64", "bool", "uint8", "int8", "int16", "int32", "int64")
_OF_NUMBERS = ("Cannot use and / or", "types of integer divisions")  # TVM's words for a size
_MIXED = "import in float32 or float64; half precision is an option of Trainer and step_module"


def check_dtype(what: str, dtype: str, halves: bool = False) -> None:
    """Raises ValueError for a dtype that no builder computes in; `halves`: but for those two."""
    if dtype not in _DTYPES and not (halves and dtype in HALVES):
        raise ValueError(f"{what} {dtype}: {'' if halves else _MIXED}".removesuffix(": "))


class Reader:
    """One graph on its way: what its nodes have become, and the function under construction.

    name : of the graph, in errors.
    ops : ATen overload -> builder.
    batch : its open batch, if any.
    """

    halves = False  # whether half precision is taken

    def __init__(
        self, name: str, options: Options, ops: Mapping[str, Builder], batch: Batch | None = None
    ) -> None:
        self.name, self.ops = name, ops
        self.batch = Batch({}, []) if batch is None else batch
        self.env: dict[Any, Any] = {}
        self.known = Known(pytorch())
        self.ctx = Context(options, relax.BlockBuilder(), {})
        self.ctx.batch, self.ctx.limits = self.batch.variable, self.batch.limits

    def call(self, node: Any) -> Any:
        """What a node becomes.  Raises ValueError naming an op without a row, or one it refuses."""
        op = op_of(node)
        if op in _IGNORED or not node.users:
            return None
        label = f"PyTorch op {op} ({node.name})"
        result = node.meta.get("val")
        if is_symbolic(result):
            try:
                if op == "item.default":
                    raise ValueError(HINTS["item"])
                return self.batch.size(result)
            except ValueError as error:
                raise ValueError(f"{self.name}: {label}: {error}") from error
        if node.target is operator.getitem:
            source, index = node.args
            found = self.env[source][index]
            if found is None:
                raise ValueError(
                    f"{self.name}: {label}: result {index} of {source.target} is not supported"
                )
            return found
        if op not in self.ops:
            hint = HINTS.get(
                op.partition(".")[0],
                "write it by those that are (relay_wgrad.frontend.torch.ops.OPS)",
            )
            raise ValueError(f"{self.name}: {label} is not supported: {hint}")
        args = self.operands(list(node.args))
        values = tuple(a.meta.get("val") if hasattr(a, "meta") else a for a in node.args)
        kwargs = NotedNames({key: self.operands(value) for key, value in node.kwargs.items()})
        call = Call(node.name, Noted(args), kwargs, node, values, result, self.batch.shape)
        try:
            check_dtype("computes in", call.dtype, self.halves)
            unset = [a for a in (*args, *kwargs.values()) if isinstance(a, Unset)]
            if unset and op not in FILLING:
                raise ValueError("it takes values that were never set (torch.empty)")
            return self.built(op, call)
        except (ArithmeticError, LookupError, AttributeError, AssertionError) as error:
            what = f"{type(error).__name__}: {error}"
            hint = self._hint(args, result)
            raise ValueError(f"{self.name}: {label} cannot be built ({what}){hint}") from error
        except (ValueError, TypeError, RuntimeError) as error:
            hint = self._hint(args, result)
            of_numbers = isinstance(error, TypeError) or any(t in str(error) for t in _OF_NUMBERS)
            what = "it wants a number" if hint and of_numbers else str(error)
            raise ValueError(f"{self.name}: {label}: {what}{hint}") from error

    def built(self, op: str, call: Call) -> Any:
        """What an op's row makes of a call.  Raises ValueError for another result than PyTorch's,
        and for arguments that nobody has read."""
        made = self.ops[op](self.ctx, call)
        if unread := call.unread():
            raise ValueError(f"{', '.join(unread)} is not supported")
        check_result(call, made)
        return made

    def operands(self, value: Any) -> Any:
        """What the graph's nodes have become, within lists too."""
        if isinstance(value, (list, tuple)):
            return [self.operands(v) for v in value]
        return self.value(value) if hasattr(value, "op") and hasattr(value, "users") else value

    def value(self, node: Any) -> Any:
        """What a node has become, a constant where PyTorch has computed it."""
        if node not in self.env:
            known = self.known.values[node]
            if not hasattr(known, "dtype"):
                return known
            dtype = dtype_name(known)
            check_dtype("computes in", dtype, self.halves)
            self.env[node] = constant(array(known), dtype)
        return self.env[node]

    def _hint(self, args: list[Any], result: Any) -> str:
        """For an error: that a size may have to be a number; "" where all are."""
        made = result if isinstance(result, (tuple, list)) else [result]
        shapes = [r.shape for r in made if hasattr(r, "shape")]
        shapes += [
            shape_of(a) for a in args if isinstance(getattr(a, "ty", None), relax.TensorType)
        ]
        is_numbers = not any(map(is_open, shapes)) and not any(map(is_size, args))
        if is_numbers or self.batch.variable is None:
            return ""
        return f"; the batch is open here: {FIXED}"
