"""`from_aot`: graphs that AOTAutograd or `torch.export` made, forward, backward or both, in Relax.

The graph is traced again for the sizes of the example, which makes numbers of symbolic ones, and by
PyTorch's decompositions of the ops that have no row.  Whole stay convolutions, batch
normalization, pooling, resampling and their backward ops, softmax, attention, scatters.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from tvm import relax

from ...argument_types import check_type, checked_bool
from ...dtypes import FLOATS
from ...ops.algebra import WGRAD_NAME, get_op
from ..context import Options
from ..gradient_graph import GradientGraph, Result
from ..graph import InputSpec
from ..weights import Array
from .aot_ops import AOT_OPS
from .call import Call, array, dtype_name
from .half_precision import WIDE, is_summed, results_of, rounded, stays, widened
from .names import op_of
from .program import pytorch
from .reader import Reader, check_dtype
from .retracing import lies_last, retraced
from .trace_lock import tracing_alone

_OF_MAXIMA = tuple(f"max_pool{rank}d_with_indices_backward.default" for rank in (2, 3))


def _to_last(rank: int) -> list[int]:
    """The axes of (N, C, …) in the order with the channels last."""
    return [0, *range(2, rank), 1]


def _to_first(rank: int) -> list[int]:
    """And back."""
    return [0, rank - 1, *range(1, rank - 1)]


def from_aot(
    graph: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    name: str | None = None,
    channels_last: bool = False,
) -> GradientGraph:
    """A graph of ATen ops in which gradients are ops already, as a Relax function.

    Parameters
    ----------
    graph : a `torch.fx.GraphModule` as AOTAutograd gives it to compilers: functional, its inputs
        and outputs flat; or as `make_fx` of a function with `torch.func.grad` does; or a
        `torch.export.ExportedProgram` of one (its parameters, buffers and constants come first, as
        its graph has them).
    example_inputs : tensors (also fake ones) and numbers, in the graph's order, whose sizes the
        function has; by default what the graph's placeholders say.
    name : in errors; by default the graph's class.
    channels_last : whether tensors of four or five axes that lie so in the example, and results
        that the graph gives so, are (N, H, W, C) and (N, D, H, W, C) in Relax; else all are as
        PyTorch indexes them.

    Returns
    -------
    GradientGraph : each `convolution_backward` in it is `conv2d_backward_data`,
        `conv2d_backward_weight` and a sum, only what its mask asks for and someone reads.

    Raises
    ------
    ValueError : for an op that is neither in `AOT_OPS` nor decomposed by PyTorch (named), other
        dtypes than floating point's, integers and bool, sizes that are unknown, a program of which
        `torch.export` lost values.
    TypeError : for a `graph` of another type.
    RuntimeError : before `relay_wgrad.register()`.
    ModuleNotFoundError : without PyTorch.
    """
    torch = pytorch()
    get_op(WGRAD_NAME)
    checked_bool("from_aot: channels_last", channels_last)
    check_type("from_aot: name", name, (str, type(None)), "text")
    state: dict[str, Array] = {}
    title = name or type(graph).__name__
    with tracing_alone():
        if isinstance(graph, torch.export.ExportedProgram):
            title = name or "exported program"
            graph, state = _of_program(title, graph)
        if not isinstance(graph, torch.fx.GraphModule):
            kind = type(graph).__name__
            raise TypeError(f"from_aot: expected a torch.fx.GraphModule, got {kind}")
        values = _examples(title, graph, example_inputs)
        names = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
        traced = retraced(torch, title, graph, values)
        return _Import(title, traced, names).graph(state, channels_last)


def _of_program(title: str, program: Any) -> tuple[Any, dict[str, Array]]:
    """(the graph after its decompositions, values of what it lifted, by placeholder)."""
    wrapped = pytorch()._C._functorch.is_functorch_wrapped_tensor
    lost = [name for name, value in program.constants.items() if wrapped(value)]
    if lost:
        raise ValueError(
            f"{title}: torch.export made constants of {len(lost)} values within torch.func.grad:"
            " trace the function by make_fx, and pass that graph or what is exported of it"
        )
    program = program.run_decompositions({})
    held = {**program.state_dict, **program.constants}
    state = {
        spec.arg.name: array(held[spec.target])
        for spec in program.graph_signature.input_specs
        if spec.target in held
    }
    return program.graph_module, state


def _examples(title: str, graph: Any, given: Sequence[Any] | None) -> list[Any]:
    """A value for each placeholder: tensors, or numbers."""
    nodes = [n for n in graph.graph.nodes if n.op == "placeholder"]
    values = [n.meta.get("val") for n in nodes] if given is None else list(given)
    if len(values) != len(nodes):
        raise ValueError(f"{title}: takes {len(nodes)} inputs, got {len(values)} example_inputs")
    for node, value in zip(nodes, values, strict=True):
        if value is None and node.users:
            raise ValueError(f"{title}: nothing is known of input {node.name!r}: example_inputs")
    return values


# ---- reading -------------------------------------------------------------------------------------


class _Import(Reader):
    """One traced graph on its way."""

    halves = True

    def __init__(self, title: str, traced: Any, names: Sequence[str]) -> None:
        options = Options("float32", "module", "mask", 0)
        super().__init__(title, options, AOT_OPS)
        self.known.most = 4 << 20  # what is larger is computed, and lies in no library
        self.traced, self.names = traced, list(names)
        self.nodes = list(traced.graph.nodes)
        self.inputs: list[tuple[InputSpec, relax.Var] | None] = []
        self.of_input: dict[Any, int] = {}  # placeholder -> its number
        self.casts: dict[Any, Any] = {}  # half variable -> it in float32

    def graph(self, state: dict[str, Array], channels_last: bool) -> GradientGraph:
        """What `from_aot` gives."""
        last: list[bool] = []
        flags: list[bool] = []
        outputs: list[Result] = []
        ctx = self.ctx

        def body() -> tuple[list[Any], list[Any]]:
            last.extend(self._arguments(channels_last))
            for node in self.nodes:
                if node.op == "get_attr":
                    self.known.values[node] = self._attribute(node)
                elif node.op == "call_function" and not self.known.takes(node):
                    self.env[node] = self.call(node)
            found, exprs, are_last = self._results(channels_last)
            outputs.extend(found)
            flags.extend(are_last)
            given = [pair[1] for pair in self.inputs if pair is not None]
            return exprs, given + [var for _, var in ctx.masks]

        module = relax.transform.DeadCodeElimination(["main"])(ctx.main(body))
        return GradientGraph(
            self.name, module, tuple(None if p is None else p[0] for p in self.inputs),
            tuple(outputs), tuple(spec for spec, _ in ctx.masks), state,
            (tuple(last), tuple(flags)),
        )  # fmt: skip

    def call(self, node: Any) -> Any:
        """As `Reader.call`; constants are of the dtype in which the node computes."""
        if node.target is operator.getitem and all(_finds_places(user) for user in node.users):
            return self.env[node.args[0]][node.args[1]]
        made = node.meta.get("val")
        values = [*(made if isinstance(made, (tuple, list)) else [made])]
        values += [n.meta.get("val") for n in node.all_input_nodes]
        for value in values:
            if hasattr(value, "dtype") and dtype_name(value) in FLOATS:
                self.ctx.options.dtype = dtype_name(value)
                break
        return super().call(node)

    def built(self, op: str, call: Call) -> Any:
        """As `Reader.built`; of half precision, in float32 and rounded."""
        if stays(op, call):
            return super().built(op, call)
        self.ctx.options.dtype = WIDE
        made = super().built(op, widened(self.ctx, call, self.casts))
        if is_summed(op, call.node):
            return made
        return rounded(self.ctx, made, results_of(op, call))

    def _arguments(self, channels_last: bool) -> list[bool]:
        last = []
        nodes = [n for n in self.nodes if n.op == "placeholder"]
        for i, (node, name) in enumerate(zip(nodes, self.names, strict=True)):
            self.of_input[node] = i
            value = node.meta.get("val")
            if not hasattr(value, "shape"):
                self.known.values[node] = value
                self.inputs.append(None)
                continue
            if not node.users:
                self.inputs.append(None)
                continue
            dtype = dtype_name(value)
            check_dtype(f"{self.name}: input {name!r} is", dtype, self.halves)
            is_last = channels_last and lies_last(value)
            shape = [int(s) for s in value.shape]
            shape = [shape[a] for a in _to_last(len(shape))] if is_last else shape
            spec = InputSpec(self.ctx.unique(name), "data", tuple(shape), dtype)
            var = relax.Var(spec.name, relax.TensorType(shape, dtype))
            self.inputs.append((spec, var))
            last.append(is_last)
            if is_last:
                var = self.ctx.emit(relax.op.permute_dims(var, _to_first(len(shape))))
            self.env[node] = var
        return last

    def _attribute(self, node: Any) -> Any:
        owner, _, attribute = str(node.target).rpartition(".")
        return getattr(self.traced.get_submodule(owner), attribute).detach().cpu()

    def _results(self, channels_last: bool) -> tuple[list[Result], list[Any], list[bool]]:
        (output,) = (n for n in self.nodes if n.op == "output")
        given = output.args[0]
        given = list(given) if isinstance(given, (tuple, list)) else [given]
        outputs: list[Result] = []
        exprs: list[Any] = []
        last: list[bool] = []
        seen: dict[Any, Any] = {}  # variable -> (its result, the node that it is of)
        for i, pair in enumerate(zip(self.of_input, self.inputs, strict=True)):
            if pair[1] is not None:
                seen[self.env[pair[0]]] = (Result("input", i), pair[0])
        for node in given:
            if not hasattr(node, "op"):
                outputs.append(Result("value", node))
                continue
            value = node.meta.get("val")
            if not hasattr(value, "shape"):
                outputs.append(Result("value", self.known.values.get(node, value)))
                continue
            expr = self.value(node)
            if expr in seen:
                result, of = seen[expr]
                copied = f"copy of {result.kind}"
                outputs.append(result if of is node else Result(copied, result.value))
                continue
            outputs.append(Result("result", len(exprs)))
            seen[expr] = (outputs[-1], node)
            last.append(channels_last and lies_last(value))
            order = _to_last(value.dim())
            exprs.append(relax.op.permute_dims(expr, order) if last[-1] else expr)
        return outputs, exprs, last


def _finds_places(node: Any) -> bool:
    """Whether a node is a maximum's backward op, whose row does not read the places."""
    return op_of(node) in _OF_MAXIMA


def convolution_gradients(graph: Any) -> int:
    """How many gradients of convolutions by data or weight a graph asks for, and someone reads."""
    count = 0
    for node in graph.graph.nodes:
        if op_of(node) == "convolution_backward.default":
            read = {u.args[1] for u in node.users if u.target is operator.getitem and u.users}
            count += len(read & {0, 1})
    return count
