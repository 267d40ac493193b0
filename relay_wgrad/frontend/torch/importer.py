"""The driver: a PyTorch module to a `TrainingGraph`, by `torch.export` and a table of ATen ops."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax

from ...ambient import outside
from ...argument_types import check_type
from ...dtypes import HALVES
from ...graph.walk import bindings_of
from ...ir import op_name
from ..choices import OF_TORCH, check_choices
from ..context import Options, shape_of
from ..graph import InputSpec, TrainingGraph
from ..loss import Loss, loss_of
from ..loss_graph import add_loss
from ..sizes import NAME, limited
from ..trainable import Choice, Patterns
from ..weights import Array
from .batch import Batch
from .call import dtype_name
from .layers import WITH_STATISTICS
from .names import op_of
from .ops import OPS
from .program import Exported, exported, pytorch
from .reader import Reader

_NO_BATCH = "its first input has no axis for the batch"


@outside()
def from_torch(
    module: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    batch: str | None = None,
    bn: str = "module",
    loss: str | Loss = "cross_entropy",
    dropout: str | None = None,
    random: str = "input",
    output: int = 0,
    checkpoint: str | Sequence[str] | None = None,
    trainable: Patterns = None,
    freeze: Patterns = None,
    name: str | None = None,
) -> TrainingGraph:
    """The training graph of a PyTorch module, with the module's own parameters as initial values.

    Parameters
    ----------
    module : a `torch.nn.Module` in float32 or float64, a `torch.export.ExportedProgram`, or the
        path of a file that `torch.export.save` wrote.  Parameters with `requires_grad=False` are
        not trained.
    example_inputs : the module's arguments, tensors whose shapes and dtypes the graph takes; None
        for an exported program, which has them.
    batch : None, the example's; or "N", any: one compiled step takes any number of images, the
        first axis of the first tensor and of those that have as many there.  An exported program
        whose first axes are one dynamic `Dim` is so without asking.
    bn : "module" normalizes as each layer was when it was exported (`train()` or `eval()`), "train"
        by batch statistics, "eval" by running ones; "frozen" as "module", but by running ones,
        which stay, where a layer's weight and bias are not trained.
    loss : of `relay_wgrad.frontend.LOSSES`, by its record or as text with its options:
        "cross_entropy" (int64 labels (N,), or of each pixel; the module gives logits), "mse", "l1",
        "huber(delta=2)", … (against a target of the output's shape); or "own": the output is the
        scalar loss.  "none": the output comes in the loss's place, of any shape; such a graph can
        be differentiated by `relay_wgrad.torch` and not be trained as it is.
    dropout : "mask" draws masks, which are inputs of `main`, where a layer or a function was in
        training when it was exported; "off" makes all the identity, which the graph's `notes` say.
        None is "off" with bn="eval", which evaluates, else "mask".
    random : every other random op (`torch.rand`, `bernoulli_` as of stochastic depth, …) is
        "input", an input of `main` that is drawn for each batch (`TrainingGraph.draws`), or "off",
        its mean, which the graph's `notes` say.
    output : which of several outputs.
    checkpoint : as for `from_onnx`; tensors go by their names in the exported graph.
    trainable, freeze : patterns of parameters' names, as of `TrainingGraph.partial`: what is
        trained, by default all, and what of it is not.
    name : the graph's; by default the module's class.

    Raises
    ------
    ValueError : for a module that `torch.export` refuses or would change (a backward of its own,
        hooks on gradients), an op that is not supported or has no gradient, or cannot be for an
        open batch (named), a symbolic size that is none, an option's unknown value, parameters of
        another or of several dtypes.
    TypeError : for a `module` or `example_inputs` of another type.
    FileNotFoundError : for a path where there is no file.
    ModuleNotFoundError : without PyTorch.
    """
    check_type("from_torch: name", name, (str, type(None)), "text")
    given = {"bn": bn, "dropout": dropout, "random": random}
    check_choices(given, OF_TORCH, checkpoint, "names")
    if batch not in (None, NAME):
        raise ValueError(f"batch={batch!r}: expected {NAME!r}, or None and an example of that size")
    wanted = loss_of(loss, "own", "none")
    dropout = dropout or ("off" if bn == "eval" else "mask")
    made = exported(
        pytorch(), module, example_inputs, OPS, batch == NAME, dropout=dropout == "mask"
    )
    choice = Choice.from_patterns(trainable, freeze)
    options = Options(_dtype(made.program), bn, dropout, 0, random=random, choice=choice)
    return _Import(made, name or made.title, options).graph(wanted, output, checkpoint)


def _dtype(program: Any) -> str:
    """The dtype of all parameters."""
    found = {dtype_name(p) for _, p in program.named_parameters()}
    if not found:
        raise ValueError("from_torch: the module has no parameters: there is nothing to train")
    if len(found) != 1 or not found <= {"float32", "float64"}:
        is_half = found & set(HALVES)
        remedy = "; half precision is Trainer's dtype, a TrainingStep's torch.autocast"
        raise ValueError(
            f"from_torch: parameters must all be float32 or all float64, got"
            f" {', '.join(sorted(found))}{remedy if is_half else ''}"
        )
    return found.pop()


class _Import(Reader):
    """One exported program on its way."""

    def __init__(self, made: Exported, name: str, options: Options) -> None:
        self.program, self.two = made.program, made.two
        try:
            batch = Batch(self.program.range_constraints, _shapes(self.program))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        super().__init__(name, options, OPS, batch)
        self.ctx.note_dropout(made.off)
        self.arguments: list[tuple[InputSpec, relax.Var]] = []
        self.trainable: list[str] = []

    def graph(
        self, loss: Loss | str, output: int, checkpoint: str | Sequence[str] | None
    ) -> TrainingGraph:
        ctx, names, classes = self.ctx, ["loss"], None
        self._inputs()

        def body() -> tuple[list[Any], list[Any]]:
            nonlocal names, classes
            for node in self.program.graph.nodes:
                if node.op == "call_function" and not self.known.takes(node):
                    self.env[node] = self.call(node)
            result = self._output(output, loss)
            if loss == "own":
                outputs = [_scalar(result)]
            elif not isinstance(loss, Loss):
                outputs, names = [_of_floats(result)], ["output"]
            else:
                target, logits, scalar, classes = add_loss(ctx, loss, f"output {output}", result)
                self.arguments.append(target)
                outputs, names = [scalar, logits], ["loss", "logits"]
            self.arguments += ctx.masks
            params = [var for _, var in self.arguments] + list(ctx.parameters.values())
            return outputs + [new for _, new in ctx.states], params

        module = relax.transform.DeadCodeElimination(["main"])(ctx.main(body))
        if self.two and ctx.batch is not None:
            ctx.at_least(2, self.two)
        alive = {binding.var.name for binding in bindings_of(module["main"])}
        graph = ctx.training_graph(
            names,
            self.arguments,
            checkpoint,
            name=self.name,
            module=module,
            params=dict(ctx.initial),
            trainable=tuple(self.trainable),
            classes=classes,
            tensors={
                node.name: str(e.name)
                for node, e in self.env.items()
                if isinstance(e, relax.DataflowVar) and e.name in alive
            },
            notes=tuple(ctx.notes),
            loss=loss if isinstance(loss, Loss) else None,
            returned=self._tree() if loss == "none" else None,
            writes=self._changed("USER_INPUT_MUTATION"),
        )
        _check_gradients(graph)
        graph.checkpointed()  # raises for a name that cannot be one
        return replace(graph, module=limited(graph.module, self.name, ctx.limits))

    def _tree(self) -> Any:
        """What the module returns its tensor in, None where in nothing."""
        tree = self.program.call_spec.out_spec
        return None if tree is None or tree.is_leaf() else tree

    # ---- what goes in ------------------------------------------------------------------------

    def _inputs(self) -> None:
        signature = self.program.graph_signature
        nodes = {n.name: n for n in self.program.graph.nodes if n.op == "placeholder"}
        changed, first = self._states(), self._first_names(nodes)
        for spec in signature.input_specs:
            node, kind = nodes[spec.arg.name], spec.kind.name
            if kind == "USER_INPUT":
                self.env[node] = self._data(node)
            elif node.users:
                held = self._held(spec, kind)
                if kind == "PARAMETER" or spec.target in changed:
                    name = first.get(spec.target, spec.target)
                    self.env[node] = self._parameter(name, held, kind == "PARAMETER")
                else:
                    self.known.values[node] = held.detach().cpu()
        if not self.arguments:
            raise ValueError(f"{self.name}: the module has no input")
        if not self.arguments[0][0].shape:
            raise ValueError(f"{self.name}: {_NO_BATCH}")

    def _states(self) -> set[str]:
        """Names of the buffers that batch and instance normalizations read: running statistics."""
        found: set[str] = set()
        named = {s.arg.name: s.target for s in self.program.graph_signature.input_specs}
        for node in self.program.graph.nodes:
            if op_of(node) in WITH_STATISTICS:
                given = [a.name for a in node.args[3:5] if hasattr(a, "name")]
                held = {named.get(name, "") for name in given}
                if not set(given) <= set(named) or found & held:
                    raise ValueError(
                        f"{self.name}: {node.name!r} is a normalization that is used twice:"
                        " its running statistics are another use's results, which is not supported"
                    )
                found |= held
        return found

    def _first_names(self, nodes: dict[str, Any]) -> dict[str, str]:
        """A parameter's last name -> its first, as `named_parameters` has it.

        Of one that a module has under several names the exported graph uses the last.
        """
        found: dict[str, str] = {}
        unused: dict[Any, str] = {}
        for spec in self.program.graph_signature.input_specs:
            if spec.kind.name == "PARAMETER":
                held = self.program.state_dict[spec.target]
                looks = (held.data_ptr(), held.shape, held.stride())
                if not nodes[spec.arg.name].users:
                    unused.setdefault(looks, spec.target)
                elif looks in unused:
                    found[spec.target] = unused.pop(looks)
        return found

    def _held(self, spec: Any, kind: str) -> Any:
        if kind not in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            raise ValueError(
                f"{self.name}: an input of kind {kind} is not supported: {spec.target}"
            )
        program, name = self.program, spec.target
        held = program.state_dict[name] if name in program.state_dict else program.constants[name]
        if held.is_meta:
            raise ValueError(f"{self.name}: {name!r} has no values: its device is meta")
        return held

    def _data(self, node: Any) -> relax.Var:
        value = node.meta.get("val")
        if not hasattr(value, "shape"):
            raise ValueError(f"{self.name}: argument {node.name!r} is no tensor: {value!r}")
        dtype = dtype_name(value)
        if 0 in value.shape:
            raise ValueError(
                f"{self.name}: argument {node.name!r} has no elements: its shape is"
                f" {list(value.shape)}"
            )
        spec, var = self.ctx.input(node.name, "data", self.batch.shape(value.shape), dtype)
        self.arguments.append((spec, var))
        return var

    def _parameter(self, target: str, held: Any, trained: bool) -> relax.Var:
        ctx, name = self.ctx, self.ctx.unique(target)
        array: Array = np.array(held.detach().cpu().numpy(), dtype=ctx.options.dtype)
        var = relax.Var(name, relax.TensorType(array.shape, ctx.options.dtype))
        ctx.parameters[name], ctx.initial[name], ctx.onnx_names[name] = var, array, target
        if trained and held.requires_grad:
            self.trainable.append(name)
        elif trained:
            ctx.constant.add(name)
        return var

    # ---- what comes out ---------------------------------------------------------------------

    def _output(self, index: int, loss: Loss | str) -> Any:
        (node,) = (n for n in self.program.graph.nodes if n.op == "output")
        kinds = [s.kind.name for s in self.program.graph_signature.output_specs]
        given = [n for n, kind in zip(node.args[0], kinds, strict=True) if kind == "USER_OUTPUT"]
        if not (isinstance(index, int) and 0 <= index < len(given)):
            raise ValueError(f"{self.name}: there are {len(given)} outputs, got output={index!r}")
        if loss == "none" and len(given) > 1:
            raise ValueError(
                f"{self.name}: without a loss (loss='none', a TrainingStep's default)"
                f" a module has one output, got {len(given)}: return one, or take"
                " torch.compile(module, backend='relay_wgrad')"
            )
        if not hasattr(given[index], "op"):  # the graph has a number itself, and no node
            raise ValueError(f"{self.name}: output {index} is {given[index]!r}, and no tensor")
        changed: Sequence[str] = self._changed("PARAMETER_MUTATION")
        if changed:
            raise ValueError(f"{self.name}: it changes the parameter {changed[0]!r} in its forward")
        states = self._states()
        # A batch normalization counts its batches, and does not read how many there were.
        counters = {re.sub(r"[^.]+$", "num_batches_tracked", name) for name in states}
        changed = [x for x in self._changed("BUFFER_MUTATION") if x not in states | counters]
        if changed:
            raise ValueError(f"{self.name}: it changes the buffer {changed[0]!r}: not supported")
        return self.value(given[index])

    def _changed(self, kind: str) -> tuple[str, ...]:
        """The names of parameters, buffers or inputs that are given new values."""
        specs = self.program.graph_signature.output_specs
        return tuple(spec.target for spec in specs if spec.kind.name == kind)


def _shapes(program: Any) -> list[tuple[str, Any]]:
    """(name, shape) of each tensor that the module is given."""
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    given = [
        nodes[s.arg.name] for s in program.graph_signature.input_specs
        if s.kind.name == "USER_INPUT" and s.arg.name in nodes
    ]  # fmt: skip
    values = [(node.name, node.meta.get("val")) for node in given]
    return [(name, tuple(value.shape)) for name, value in values if hasattr(value, "shape")]


def _scalar(result: Any) -> Any:
    if shape_of(result) != ():
        raise ValueError(f"loss='own': the output must be a scalar, got {list(shape_of(result))}")
    return result


def _of_floats(result: Any) -> Any:
    """Raises ValueError for an output that has no gradient."""
    if not isinstance(result.ty, relax.TensorType) or "float" not in str(result.ty.dtype):
        raise ValueError(f"loss='none': the output must be a tensor of floats, got {result.ty}")
    return result


def _check_gradients(graph: TrainingGraph) -> None:
    """Raises ValueError for an op between a trained parameter and the loss without a gradient."""
    from ...registry import is_registered
    from ...transform.grad_paths import without_gradient

    loss = graph.main.body.body.fields[0]
    found = without_gradient(graph.main, graph.variables(graph.trainable), loss)
    if found is not None:
        nodes = [node for node, var in graph.tensors.items() if var == str(found.var.name)]
        at = f" ({nodes[0]})" if nodes else ""
        hint = "" if is_registered() else ": relay_wgrad.register() comes first"
        raise ValueError(f"{graph.name}: {op_name(found.value)}{at} has no gradient{hint}")
