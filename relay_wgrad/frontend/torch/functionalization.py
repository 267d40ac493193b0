"""An exported program without ops in place, in one pass, where that is plain to see.

`ExportedProgram.run_decompositions({})` is the rule: this gives its graph node by node, in a
twentieth of the time, or None: for what it does not know, and for tensors that change in place
while others that share their memory are still read.  It traces nothing but views, one op at a time.
Names differ where a view changed in place, as PyTorch then makes all views of its memory anew.
"""

from __future__ import annotations

import operator
from collections.abc import Container
from importlib import import_module
from typing import Any, NamedTuple

from .names import op_of


class Functional(NamedTuple):
    """What is read of an exported program, of one with other nodes."""

    graph: Any
    graph_signature: Any
    state_dict: Any
    constants: Any
    range_constraints: Any
    call_spec: Any

    def named_parameters(self) -> Any:
        """(name, parameter) of each."""
        names = self.graph_signature.parameters
        return ((name, self.state_dict[name]) for name in names)


class _UnknownError(Exception):
    """Something for PyTorch's own pass."""


# In place and not; others lose their underscore and keep the overload's name.
_PAIRS = {"bernoulli_.float": "bernoulli.p", "normal_.default": "normal_functional.default"}
# Made of other ops, of which none gives an operand back, nor a view of it.
_FRESH = ("conv", "linear", "matmul", "batch_norm", "layer_norm", "group_norm", "max_pool2d",
          "softmax", "cross_entropy")  # fmt: skip
_BATCH_NORM = "batch_norm.default"
_CHECK = "_assert_tensor_metadata.default"  # of what the export has checked


def functionalized(torch: Any, program: Any, known: Container[str]) -> Functional | None:
    """The program as `run_decompositions({})` would give it, or None; `known` are ops to end in."""
    if not hasattr(torch.Tag, "maybe_aliasing_or_mutating"):  # an older PyTorch
        return None
    try:
        made = _Pass(torch, program).run()
    except _UnknownError:
        return None
    calls = (n for n in made.graph.nodes if n.op == "call_function")
    ops = {op_of(n) for n in calls if n.target is not operator.getitem}
    return made if all(op in known for op in ops) else None


class _Pass:
    """One program on its way: what its nodes have become."""

    def __init__(self, torch: Any, program: Any) -> None:
        self.torch, self.program = torch, program
        self.graph = torch.fx.Graph()
        self.env: dict[Any, Any] = {}
        self.specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs
                      if hasattr(spec.arg, "name")}  # fmt: skip
        self.changed: dict[Any, Any] = {}
        self.shares = _Shares(program.graph)

    def run(self) -> Functional:
        """Raises _UnknownError."""
        output = None
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self.env[node] = self._placeholder(node)
            elif node.op == "call_function":
                self.env[node] = self._call(node)
            elif node.op == "output":
                output = node
            else:
                raise _UnknownError(node.op)
        assert output is not None
        outputs = [self.changed[node] for node in self.env if node in self.changed]
        outputs += [self._mapped(x) for x in output.args[0]]
        if not all(isinstance(x, self.torch.fx.Node) for x in outputs):
            raise _UnknownError("an output that is no tensor")
        self.graph.output(tuple(outputs))
        self.graph.eliminate_dead_code()
        program = self.program
        signature = self._signature(program.graph_signature, outputs)
        held = program.state_dict, program.constants, program.range_constraints, program.call_spec
        return Functional(self.graph, signature, *held)

    def _signature(self, was: Any, outputs: list[Any]) -> Any:
        api = import_module("torch.export.graph_signature")
        targets = [self.specs[n.name].target for n in self.env if n in self.changed]
        specs = [
            api.OutputSpec(api.OutputKind.BUFFER_MUTATION, api.TensorArgument(node.name), target)
            for node, target in zip(outputs, targets, strict=False)
        ]
        for spec, node in zip(was.output_specs, outputs[len(specs) :], strict=True):
            if spec.kind.name != "USER_OUTPUT":
                raise _UnknownError(spec.kind.name)
            specs.append(api.OutputSpec(spec.kind, api.TensorArgument(node.name), None))
        return api.ExportGraphSignature(list(was.input_specs), specs)

    # ---- nodes -------------------------------------------------------------------------------

    def _placeholder(self, node: Any) -> Any:
        self._plain(node.meta.get("val"))
        made = self.graph.placeholder(node.name)
        made.name = node.name  # also where it is a function's of Python, as `input`
        made.meta = dict(node.meta)
        return made

    def _call(self, node: Any) -> Any:
        target = node.target
        if target is operator.getitem:
            source, index = node.args
            return self.env[source][index]
        if getattr(target, "namespace", "") != "aten" or not hasattr(target, "_schema"):
            raise _UnknownError(str(target))
        if op_of(target) == _CHECK:
            return None
        self._plain(node.meta.get("val"))
        if op_of(target) == _BATCH_NORM:
            return self._batch_norm(node)
        if target._schema.is_mutable:
            return self._in_place(node)
        return self._same_op(target, node)

    def _same_op(self, target: Any, node: Any) -> Any:
        """The node's op, or its counterpart that changes nothing, of what its operands became."""
        args, kwargs = self._operands(node)
        if _may_alias(self.torch, target):
            return self._traced(target, args, kwargs)
        return self._made(target, args, kwargs, node.meta["val"])

    def _made(self, target: Any, args: Any, kwargs: Any, value: Any) -> Any:
        """A new node, or a list of those that take its results."""
        name = target.overloadpacket.__name__
        name = name.strip("_") if name.startswith("__") else name
        node = self.graph.create_node("call_function", target, tuple(args), kwargs, name)
        node.meta["val"] = value
        if not isinstance(value, (list, tuple)):
            return node
        parts = []
        for i, part in enumerate(value):
            parts.append(self.graph.create_node("call_function", operator.getitem, (node, i)))
            parts[-1].meta["val"] = part
        return parts

    def _batch_norm(self, node: Any) -> Any:
        aten = self.torch.ops.aten
        x, weight, bias, mean, variance, train, momentum, eps, *_ = node.args
        if mean is None or variance is None or node.kwargs:
            raise _UnknownError("batch normalization without running statistics")
        args = self._mapped([x, weight, bias, mean, variance])
        value = node.meta["val"]
        if not train:
            empty = value.new_empty(0)
            return self._made(aten._native_batch_norm_legit_no_training.default,
                              [*args, momentum, eps], {}, (value, empty, empty))[0]  # fmt: skip
        held = [self._mapped(n).meta["val"] for n in (mean, variance)]
        batch = [value.new_empty(value.shape[1])] * 2
        made = self._made(aten._native_batch_norm_legit_functional.default,
                          [*args, True, momentum, eps], {}, (value, *batch, *held))  # fmt: skip
        for old, new in ((mean, made[3]), (variance, made[4])):
            self._change(old, new, node)
        return made[0]

    def _in_place(self, node: Any) -> Any:
        """The op that gives a new tensor, which takes the changed one's place from here on."""
        target, schema = node.target, node.target._schema
        written = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
        if op_of(target) == "dropout_.default":
            made = self._dropout(node)
            self._change(node.args[0], made, node)
            return made
        name, _, overload = op_of(target).partition(".")
        if written != [True] + [False] * (len(written) - 1) or not name.endswith("_"):
            raise _UnknownError(str(target))
        pair = _PAIRS.get(op_of(target), f"{name[:-1]}.{overload}")
        name, _, overload = pair.partition(".")
        new = getattr(getattr(self.torch.ops.aten, name, None), overload, None)
        if new is None or new._schema.is_mutable:
            raise _UnknownError(pair)
        rest = [[a.name for a in x.arguments[1:]] for x in (new._schema, schema)]
        if rest[0] != rest[1]:
            raise _UnknownError(pair)
        made = self._same_op(new, node)
        self._change(node.args[0], made, node)
        return made

    def _dropout(self, node: Any) -> Any:
        """What PyTorch makes of dropout in place: a mask that is drawn as any random number."""
        aten, x = self.torch.ops.aten, self._mapped(node.args[0])
        (_, p, train), value = node.args, node.meta["val"]
        if not train or p == 0:
            return x
        if p == 1 or node.kwargs:
            raise _UnknownError("dropout of everything")
        drawn = self._made(aten.empty_like.default, [x], {}, value)
        drawn = self._made(aten.bernoulli.p, [drawn, 1 - p], {}, value)
        drawn = self._made(aten.div.Scalar, [drawn, 1 - p], {}, value)
        return self._made(aten.mul.Tensor, [x, drawn], {}, value)

    def _change(self, old: Any, new: Any, at: Any) -> None:
        """From node `at` on `old` is `new`, and so is what was the same tensor."""
        if _shape_and_dtype(old.meta["val"]) != _shape_and_dtype(new.meta["val"]):
            raise _UnknownError(f"{old.name} becomes another kind of tensor")
        same, holder = self.shares.written(old, at)
        if holder is not None:
            spec = self.specs[holder.name]
            if spec.kind.name != "BUFFER":
                raise _UnknownError(f"{holder.name} changes")
            self.changed[holder] = new
        for node in same:
            if node in self.env:
                self.env[node] = new

    def _traced(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A view as the ops that it is made of, for an operand as it lies in memory."""
        modes = import_module("torch.utils._python_dispatch")
        python = import_module("torch._dispatch.python")
        nodes: dict[int, Any] = {}
        alive = []  # what is compared by its identity must not go

        def value_of(operand: Any) -> Any:
            value = operand.meta["val"]
            nodes[id(value)] = operand
            return value

        def node_of(value: Any) -> Any:
            if isinstance(value, self.torch.Tensor) and id(value) not in nodes:
                raise _UnknownError("a tensor from nowhere")
            return nodes[id(value)] if isinstance(value, self.torch.Tensor) else value

        outer = self

        class Record(modes.TorchDispatchMode):  # type: ignore[name-defined]
            """Makes nodes of what is called."""

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (),
                                   kwargs: Any = None) -> Any:  # fmt: skip
                result = func(*args, **(kwargs or {}))
                if getattr(func, "namespace", "") == "prim":  # a tensor's device and such
                    return result
                if func._schema.is_mutable or getattr(func, "namespace", "") != "aten":
                    raise _UnknownError(str(func))
                many = isinstance(result, (list, tuple))
                outer._plain(result)
                taken = outer._tree(args, node_of), outer._tree(dict(kwargs or {}), node_of)
                made = outer._made(func, *taken, result)
                for value, new in zip(result, made, strict=True) if many else [(result, made)]:
                    nodes[id(value)] = new
                    alive.append(value)
                return result

        given = self.torch.fx.node.map_arg((tuple(args), kwargs), value_of)
        with self.torch.no_grad(), python.enable_python_dispatcher(), Record():
            result = target(*given[0], **given[1])
        if isinstance(result, (list, tuple)):
            return [node_of(value) for value in result]
        return node_of(result)

    # ---- operands ----------------------------------------------------------------------------

    def _operands(self, node: Any) -> tuple[Any, Any]:
        return self._mapped(list(node.args)), self._mapped(dict(node.kwargs))

    def _mapped(self, value: Any) -> Any:
        return self._tree(value, lambda x: self.env[x] if isinstance(x, self.torch.fx.Node) else x)

    def _tree(self, value: Any, leaf: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._tree(v, leaf) for v in value]
        if isinstance(value, dict):
            return {key: self._tree(v, leaf) for key, v in value.items()}
        return leaf(value)

    def _plain(self, value: Any) -> None:
        """Raises for what is not a tensor of known sizes, or several."""
        for part in value if isinstance(value, (list, tuple)) else [value]:
            if not isinstance(part, self.torch.Tensor):
                raise _UnknownError(f"a value of type {type(part).__name__}")
            if not all(type(size) is int for size in (*part.shape, *part.stride())):
                raise _UnknownError("symbolic sizes")


class _Shares:
    """Which nodes of a graph may lie in the same memory, and until when each is read."""

    def __init__(self, graph: Any) -> None:
        self.place = {node: i for i, node in enumerate(graph.nodes)}
        self.memory: dict[Any, set[Any]] = {}
        self.same: dict[Any, set[Any]] = {}
        for node in graph.nodes:
            self.memory[node] = {node}
            self.same[node] = {node}
            if node.op != "call_function":
                continue
            given_back = _aliased_operands(node)
            whole = _mutates_first_operand(node)
            for operand in given_back:
                joined = self.memory[node] | self.memory[operand]
                for other in joined:
                    self.memory[other] = joined
                if whole:
                    together = self.same[node] | self.same[operand]
                    for other in together:
                        self.same[other] = together

    def written(self, node: Any, at: Any) -> tuple[set[Any], Any]:
        """(the nodes that are this one's tensor, the placeholder that it is, if any).

        Raises _UnknownError where another tensor in its memory is read after the node `at`.
        """
        same, holder, now = self.same[node], None, self.place[at]
        for other in self.memory[node]:
            if other in same:
                holder = other if other.op == "placeholder" else holder
            elif other.op == "placeholder":
                raise _UnknownError(f"a part of {other.name} changes")
            elif self.place[other] < now and any(self.place[u] > now for u in other.users):
                raise _UnknownError(f"{other.name} would change with {node.name}")
        return same, holder


def _mutates_first_operand(node: Any) -> bool:
    """Whether an op gives its first operand back as it is, changed."""
    return node.target is not operator.getitem and bool(node.target._schema.is_mutable)


def _aliased_operands(node: Any) -> list[Any]:
    """The operands in whose memory a node's result may be."""
    if node.target is operator.getitem:
        return [node.args[0]]
    if not hasattr(node.target, "_schema"):
        raise _UnknownError(str(node.target))
    schema, name = node.target._schema, op_of(node)
    if schema.is_mutable:
        return [n for n in node.args[:1] if hasattr(n, "op")]
    torch = import_module("torch")
    if _may_alias(torch, node.target) or _is_composite(torch, node.target):
        return [] if name.startswith(_FRESH) else list(node.all_input_nodes)
    return []


def _is_composite(torch: Any, target: Any) -> bool:
    """Whether an op is made of others by PyTorch: its schema need not say that it gives views."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(
        target.name(), "CompositeImplicitAutograd"
    ))  # fmt: skip


def _may_alias(torch: Any, target: Any) -> bool:
    """Whether an op's result may be its operand or a view of it, or PyTorch does not know."""
    said = any(a.alias_info is not None for a in target._schema.arguments)
    return said or torch.Tag.maybe_aliasing_or_mutating in target.tags


def _shape_and_dtype(value: Any) -> tuple[Any, ...]:
    return tuple(value.shape), value.dtype
