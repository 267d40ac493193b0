"""A graph of AOTAutograd traced again: with numbers for sizes, and by PyTorch's decompositions."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from .aot_ops import AOT_OPS
from .half_precision import with_wide_statistics
from .names import op_of
from .program import pytorch

_ALIASES = ("detach.default", "alias.default")
# What takes elements by their places in memory -> where it says the first one.
_BY_PLACE = {
    "as_strided.default": 3, "as_strided_.default": 3, "as_strided_copy.default": 3,
    "as_strided_scatter.default": 4,
}  # fmt: skip
# Rules beyond PyTorch's core list, whose rules write nothing in place, as some others do.
_NAMES = """
    adaptive_max_pool2d.default adaptive_max_pool3d.default alpha_dropout.default any.default
    any.dim any.dims as_strided_copy.default bucketize.Scalar bucketize.Tensor cauchy.default
    conj_physical.default cumprod.default cumsum.default dropout.default exponential.default
    geometric.default grid_sampler_2d.default ldexp.Tensor log_normal.default narrow_copy.default
    native_group_norm.default native_layer_norm.default new_empty_strided.default
    normal.Tensor_Tensor normal.float_Tensor permute_copy.default remainder.Scalar_Tensor
    tril_indices.default triu_indices.default unbind_copy.int view_copy.default view_copy.dtype"""
_MORE = frozenset(_NAMES.split())


def number(value: Any) -> Any:
    """A size as a number, a symbolic one as its example."""
    node = getattr(value, "node", None)
    return value if node is None else node.hint


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions, but of what has a row: for `aot_autograd` and for `from_aot`."""
    rules = import_module("torch._decomp")
    table, core = rules.decomposition_table, rules.core_aten_decompositions()
    found = {overload: core[overload] for overload in core}
    found |= {overload: rule for overload, rule in table.items() if op_of(overload) in _MORE}
    aten = pytorch().ops.aten
    for norm in (aten.native_layer_norm.default, aten.native_group_norm.default):
        found[norm] = with_wide_statistics(found[norm])
    # The backward op of PyTorch's weight norm, by the form of it that can be differentiated.
    found[aten._weight_norm_interface_backward.default] = (
        aten._weight_norm_differentiable_backward.default.decompose
    )
    return {
        overload: rule for overload, rule in found.items()
        # Tensors that code makes of numbers are no fake ones yet: PyTorch lifts them, no rule can.
        if op_of(overload) not in (*AOT_OPS, "lift_fresh.default", "lift_fresh_copy.default")
    }  # fmt: skip


def retraced(torch: Any, title: str, graph: Any, values: Sequence[Any]) -> Any:
    """The graph with numbers for sizes, each node with its `meta["val"]`."""
    if not _stands(torch, graph.graph, values):
        graph = _traced(torch, title, graph, values)
    else:
        copied = torch.fx.Graph()
        copied.output(copied.graph_copy(graph.graph, {}))
        graph = torch.fx.GraphModule(graph, copied)
    for node in list(graph.graph.nodes):
        if op_of(node) in _ALIASES:
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    return graph


def _stands(torch: Any, graph: Any, values: Sequence[Any]) -> bool:
    """Whether a trace for these values would write each node again as it is: one of AOTAutograd's
    graphs for fixed sizes has gone through the same decompositions.

    A trace of ResNet-50's two graphs takes a fifth of the time from a warm cache.
    """
    implicit, overload = torch._C.DispatchKey.CompositeImplicitAutograd, torch._ops.OpOverload
    leaves = import_module("torch.utils._pytree").tree_leaves
    rules = decompositions()

    def is_fixed(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and all(
            isinstance(n, int) for n in (*value.shape, *value.stride())
        )

    def is_as_said(value: Any, said: Any) -> bool:
        if not is_fixed(value) or not is_fixed(said):
            return False
        strides = traced_strides([*value.shape], said) or [*value.stride()]
        lies = [*value.shape] == [*said.shape] and strides == [*said.stride()]
        return lies and value.dtype == said.dtype and value.device == said.device

    def is_final(node: Any) -> bool:
        op: Any = node.target
        if node.op != "call_function" or not (
            op is operator.getitem or (op not in rules and type(op) is overload)
        ):
            return False
        if op is not operator.getitem and (
            op_of(node) in _BY_PLACE or op.has_kernel_for_dispatch_key(implicit)
        ):
            return False
        made = [leaf for leaf in leaves(node.meta.get("val")) if leaf is not None]
        return bool(made) and all(map(is_fixed, made))

    inner = (node for node in graph.nodes if node.op not in ("placeholder", "output"))
    return all(map(is_as_said, values, inputs_of(graph))) and all(map(is_final, inner))


def _traced(torch: Any, title: str, graph: Any, values: Sequence[Any]) -> Any:
    tracing = import_module("torch._guards").tracing
    make_fx = import_module("torch.fx.experimental.proxy_tensor").make_fx
    fake_tensor = import_module("torch._subclasses.fake_tensor")
    mode = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)

    def fake(value: Any, said: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return number(value)
        sizes = [number(s) for s in value.shape]
        # The graph's views are of tensors that lie as they lay when it was made; by_place: where
        # elements are taken by their places, other orders are refused.
        strides = None if by_place else traced_strides(sizes, said)
        strides = strides or [number(s) for s in value.stride()]
        if not all(isinstance(s, int) for s in (*sizes, *strides)):
            raise ValueError(f"{title}: sizes {list(map(str, sizes))} are not known")
        return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)

    class Checked(torch.fx.Interpreter):
        """Refuses to take elements by their places in memory where those are others now."""

        def run_node(self, node: Any) -> Any:
            if op_of(node) in _BY_PLACE:
                said, now = node.args[0].meta.get("val"), self.env[node.args[0]]
                if said is not None and (
                    [*map(number, said.stride())] != [*now.stride()]
                    or (_has_offset(node) and number(said.storage_offset()) != now.storage_offset())
                ):
                    raise ValueError(f"{title}: {node.name} depends on its operand's memory order")
            return super().run_node(node)

    said = inputs_of(graph.graph)
    _check_places(torch, title, graph.graph)
    by_place = not _BY_PLACE.keys().isdisjoint(map(op_of, graph.graph.nodes))

    def run(*inputs: Any) -> Any:
        return Checked(graph).run(*inputs, enable_io_processing=False)

    try:
        with warnings.catch_warnings(), tracing(None), torch.no_grad():
            warnings.simplefilter("ignore")  # of PyTorch, about PyTorch
            with mode:
                fakes = [fake(v, s) for v, s in zip(values, said, strict=True)]
            trace = make_fx(
                run, decomposition_table=decompositions(), tracing_mode="fake",
                _allow_non_fake_inputs=True,
            )  # fmt: skip
            return trace(*fakes)
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{title}: cannot be traced: {first}") from error


def _check_places(torch: Any, title: str, graph: Any) -> None:
    """Raises ValueError where elements are taken by their places in what does not lie as PyTorch's
    shape functions say, by whose word a graph is traced: a roll's result, for one, is contiguous to
    them and has its operand's order.  Each op before such a place is run, on zeros."""
    unset_fake = import_module("torch._subclasses.fake_tensor").unset_fake_temporarily
    pytree = import_module("torch.utils._pytree")
    tree_map, tree_leaves = pytree.tree_map, pytree.tree_leaves

    def strides(value: Any) -> Any:
        """Those by which something is reached, of each tensor."""

        def of(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return None
            pairs = zip(leaf.shape, leaf.stride(), strict=True)
            return [number(stride) for size, stride in pairs if number(size) > 1]

        return tree_map(of, value)

    def zeros(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return number(leaf)
        sizes, steps = ([*map(number, given)] for given in (leaf.shape, leaf.stride()))
        made = torch.empty_strided(sizes, steps, dtype=leaf.dtype, device=leaf.device)
        return made.zero_()

    asked = [node.args[0] for node in graph.nodes if op_of(node) in _BY_PLACE]
    if not asked:
        return
    seen: set[Any] = set()
    values = [value for node in graph.nodes for value in tree_leaves(node.meta.get("val"))]
    # Of one machine's GPUs only those that are used: PyTorch would start each of them.
    cuda = {v.device.index for v in values if isinstance(v, torch.Tensor) and v.is_cuda}
    with unset_fake(), torch.no_grad(), torch.random.fork_rng(sorted(cuda)):
        while asked:
            node = asked.pop()
            if node in seen or not op_of(node) or "val" not in node.meta:
                continue
            seen.add(node)
            asked += node.all_input_nodes
            taken = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            args, kwargs = tree_map(zeros, taken)
            try:
                lies = strides(node.target(*args, **kwargs)) == strides(node.meta["val"])
            except Exception:  # of any kind: zeros are not what every op takes
                lies = False
            if not lies:
                raise ValueError(
                    f"{title}: elements are taken by their places in memory behind {node.name},"
                    f" whose result need not lie as {op_of(node)}'s shape function says"
                )


def inputs_of(graph: Any) -> list[Any]:
    """What an FX graph says of each of its placeholders, None of one of which nothing is known."""
    return [node.meta.get("val") for node in graph.nodes if node.op == "placeholder"]


def traced_strides(sizes: Sequence[Any], said: Any) -> list[Any] | None:
    """The strides of a dense tensor of these sizes, its axes in the order that `said` has, a tensor
    of as many axes; None where that is none, or not dense itself."""
    if not hasattr(said, "stride") or said.dim() != len(sizes):
        return None
    known, strides = ([number(n) for n in given] for given in (said.shape, said.stride()))
    if not all(isinstance(n, int) for n in (*known, *strides)):
        return None
    order = sorted(range(len(sizes)), key=lambda axis: (strides[axis], -axis))
    made, dense, step = list(strides), 1, 1
    for axis in order:
        if known[axis] != 1 and strides[axis] != dense:
            return None
        made[axis] = step
        dense *= known[axis]
        step *= max(sizes[axis], 1)
    return strides if known == list(sizes) else made


def _has_offset(node: Any) -> bool:
    """Whether an op of `_BY_PLACE` says at which place of the memory it begins."""
    at = _BY_PLACE[op_of(node)]
    given = node.args[at] if len(node.args) > at else node.kwargs.get("storage_offset")
    return given is not None


def lies_last(value: Any) -> bool:
    """Whether images or volumes lie channels last, and not as PyTorch indexes them too."""
    torch = pytorch()
    order = {4: torch.channels_last, 5: torch.channels_last_3d}.get(value.dim())
    return (
        order is not None
        and not value.is_contiguous()
        and bool(value.is_contiguous(memory_format=order))
    )
