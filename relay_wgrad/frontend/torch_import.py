"""The driver: a PyTorch module to a `TrainingGraph`, by `torch.export` and TVM's own importer."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Op

from .context import Context, Options, shape_of
from .graph import InputSpec, TrainingGraph
from .loss import LOSSES, add_loss
from .torch_layers import LAYERS, Call
from .weights import Array

_CHOICES = {
    "bn": ("module", "train", "eval"),
    "loss": (*LOSSES, "own"),
    "dropout": ("off", "mask"),
}
_IGNORED = ("_assert_tensor_metadata.default",)  # they check what has been checked on export
_NO_BATCH = "its first input has no axis for the batch"


def from_torch(
    module: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    bn: str = "module",
    loss: str = "cross_entropy",
    dropout: str = "off",
    output: int = 0,
    checkpoint: str | Sequence[str] | None = None,
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
    bn : "module" normalizes as each layer was when it was exported (`train()` or `eval()`), "train"
        by batch statistics, "eval" by running ones.
    loss : "cross_entropy" (int64 labels (N,); the module gives logits), "mse" (against a target
        of the output's shape) or "own": the output is the scalar loss.
    dropout : "off" makes it the identity; "mask" multiplies by masks that are inputs of `main`.
    output : which of several outputs.
    checkpoint : as for `from_onnx`; tensors go by their names in the exported graph.
    name : the graph's; by default the module's class.

    Raises
    ------
    ValueError : for a module that `torch.export` refuses, an op that is not supported or has no
        gradient (named), a size that is symbolic, an option's unknown value, parameters of
        another or of several dtypes.
    TypeError : for a `module` or `example_inputs` of another type.
    FileNotFoundError : for a path where there is no file.
    ModuleNotFoundError : without PyTorch.
    """
    given = {"bn": bn, "loss": loss, "dropout": dropout}
    for key, value in given.items():
        if value not in _CHOICES[key]:
            raise ValueError(f"{key}={value!r}: expected {' or '.join(_CHOICES[key])}")
    if isinstance(checkpoint, str) and checkpoint != "auto":
        raise ValueError(f"checkpoint={checkpoint!r}: expected 'auto' or a list of names")
    program, title = _exported(_torch(), module, example_inputs)
    return _Import(program, name or title, Options(_dtype(program), bn, dropout, 0)).graph(
        loss, output, checkpoint
    )


def _torch() -> Any:
    try:
        import_module("torch.export")
        return import_module("torch")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "from_torch needs PyTorch: pip install relay-wgrad[torch]", name=error.name
        ) from error


def _exported(torch: Any, module: Any, inputs: Sequence[Any] | None) -> tuple[Any, str]:
    """(the exported program without in-place ops, its name)."""
    title = type(module).__name__
    if isinstance(module, (str, os.PathLike)):
        path = os.fspath(module)
        if not os.path.isfile(path):
            raise FileNotFoundError(f"no file {path!r}")
        title = os.path.splitext(os.path.basename(path))[0]
        log = logging.getLogger("torch.export")
        was = log.disabled
        log.disabled = True  # it prints a traceback of what is raised here
        try:
            module = torch.export.load(path)
        except Exception as error:  # many kinds, of zip files, pickles and versions
            raise ValueError(f"{path!r} is not an exported program: {error}") from error
        finally:
            log.disabled = was
    program = isinstance(module, torch.export.ExportedProgram)
    if not program and not isinstance(module, torch.nn.Module):
        raise TypeError(f"from_torch: expected a torch.nn.Module, got {type(module).__name__}")
    if program != (inputs is None):
        rule = "has them already" if program else "must be a tuple of tensors"
        raise TypeError(f"from_torch: example_inputs of a {title} {rule}")
    if inputs is not None and not isinstance(inputs, (tuple, list)):
        raise TypeError(f"from_torch: example_inputs must be a tuple, got {type(inputs).__name__}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PyTorch, about PyTorch
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            found = module if program else torch.export.export(module, tuple(inputs or ()))
            return found.run_decompositions({}), title
        except Exception as error:  # any kind: it runs the module's own code
            first = str(error).strip().partition("\n")[0]
            raise ValueError(f"torch.export refuses {title}: {first}") from error


def _dtype(program: Any) -> str:
    """The dtype of all parameters."""
    found = {str(p.dtype).removeprefix("torch.") for _, p in program.named_parameters()}
    if len(found) != 1 or not found <= {"float32", "float64"}:
        raise ValueError(
            f"from_torch: parameters must all be float32 or all float64, got {sorted(found)}"
        )
    return found.pop()


class _Import:
    """One exported program on its way."""

    def __init__(self, program: Any, name: str, options: Options) -> None:
        from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

        self.program, self.name = program, name
        self.importer = ExportedProgramImporter()
        self.importer.block_builder = relax.BlockBuilder()
        self.env: dict[Any, Any] = self.importer.env
        self.ctx = Context(options, self.importer.block_builder, {})
        self.arguments: list[tuple[InputSpec, relax.Var]] = []
        self.trainable: list[str] = []

    def graph(
        self, loss: str, output: int, checkpoint: str | Sequence[str] | None
    ) -> TrainingGraph:
        ctx, builder = self.ctx, self.importer.block_builder
        self._inputs()
        with builder.function("main"):
            try:
                with builder.dataflow():
                    for node in self.program.graph.nodes:
                        if node.op == "call_function":
                            self.env[node] = self._call(node)
                    result = self._output(output)
                    if loss == "own":
                        outputs, names = [_scalar(result)], ["loss"]
                    else:
                        target, logits, scalar = add_loss(ctx, loss, f"output {output}", result)
                        self.arguments.append(target)
                        outputs, names = [scalar, logits], ["loss", "logits"]
                    outputs += [new for _, new in ctx.states]
                    returned = relax.Tuple([builder.emit_output(e) for e in outputs])
            except Exception:
                builder.emit_func_output(relax.Tuple([]), [])  # or TVM warns of an open block
                raise
            self.arguments += ctx.masks
            params = [var for _, var in self.arguments] + list(ctx.parameters.values())
            builder.emit_func_output(returned, params)
        module = relax.transform.DeadCodeElimination(["main"])(builder.get())
        alive = {b.var.name for block in module["main"].body.blocks for b in block.bindings}
        graph = TrainingGraph(
            name=self.name,
            module=module,
            inputs=tuple(spec for spec, _ in self.arguments),
            params=dict(ctx.initial),
            trainable=tuple(self.trainable),
            outputs=(*names, *(f"{n}_new" for n, _ in ctx.states)),
            updates={f"{n}_new": n for n, _ in ctx.states},
            onnx_names=dict(ctx.onnx_names),
            classes=shape_of(outputs[1])[1] if loss == "cross_entropy" else None,
            dtype=ctx.options.dtype,
            checkpoint=checkpoint if isinstance(checkpoint, (str, type(None))) else (*checkpoint,),
            tensors={
                node.name: str(e.name)
                for node, e in self.env.items()
                if isinstance(e, relax.DataflowVar) and e.name in alive
            },
        )
        _check_gradients(graph)
        graph.checkpointed()  # raises for a name that cannot be one
        return graph

    # ---- what goes in ------------------------------------------------------------------------

    def _inputs(self) -> None:
        signature = self.program.graph_signature
        nodes = {n.name: n for n in self.program.graph.nodes if n.op == "placeholder"}
        changed = self._states()
        for spec in signature.input_specs:
            node, kind = nodes[spec.arg.name], spec.kind.name
            if kind == "USER_INPUT":
                self.env[node] = self._data(node)
            elif node.users:
                held = self._held(spec, kind)
                if kind == "PARAMETER" or spec.target in changed:
                    self.env[node] = self._parameter(spec.target, held, kind == "PARAMETER")
                else:
                    array = held.detach().cpu().numpy()
                    self.env[node] = relax.const(array, str(array.dtype))
        if not self.arguments:
            raise ValueError(f"{self.name}: the module has no input")
        if not self.arguments[0][0].shape:
            raise ValueError(f"{self.name}: {_NO_BATCH}")

    def _states(self) -> set[str]:
        """Names of the buffers that batch normalization reads: its running statistics."""
        found = set()
        named = {s.arg.name: s.target for s in self.program.graph_signature.input_specs}
        for node in self.program.graph.nodes:
            if node.op == "call_function" and "batch_norm" in node.target.__name__:
                found |= {named[a.name] for a in node.args[3:5] if hasattr(a, "name")}
        return found

    def _held(self, spec: Any, kind: str) -> Any:
        if kind not in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            raise ValueError(
                f"{self.name}: an input of kind {kind} is not supported: {spec.target}"
            )
        if spec.target in self.program.state_dict:
            return self.program.state_dict[spec.target]
        return self.program.constants[spec.target]

    def _data(self, node: Any) -> relax.Var:
        value = node.meta.get("val")
        if not hasattr(value, "shape"):
            raise ValueError(f"{self.name}: argument {node.name!r} is no tensor: {value!r}")
        sizes = tuple(value.shape)
        if not all(isinstance(size, int) for size in sizes):
            raise ValueError(
                f"{self.name}: argument {node.name!r} has symbolic sizes {list(map(str, sizes))}"
            )
        dtype = str(value.dtype).removeprefix("torch.")
        spec = InputSpec(self.ctx.unique(node.name), "data", sizes, dtype)
        var = relax.Var(spec.name, relax.TensorType(sizes, dtype))
        self.arguments.append((spec, var))
        return var

    def _parameter(self, target: str, held: Any, trained: bool) -> relax.Var:
        ctx, name = self.ctx, self.ctx.unique(target)
        array: Array = np.array(held.detach().cpu().numpy(), dtype=ctx.options.dtype)
        var = relax.Var(name, relax.TensorType(array.shape, ctx.options.dtype))
        ctx.parameters[name], ctx.initial[name], ctx.onnx_names[name] = var, array, target
        if trained and held.requires_grad:
            self.trainable.append(name)
        return var

    # ---- ops -----------------------------------------------------------------------------------

    def _call(self, node: Any) -> Any:
        op = node.target.__name__
        if op in _IGNORED or not node.users:
            return None
        label = f"PyTorch op {op} ({node.name})"
        try:
            if op in LAYERS:
                args = self.importer.retrieve_args(node)
                return LAYERS[op](self.ctx, Call(node.name, list(args), dict(node.kwargs)))
            if op not in self.importer.convert_map:
                raise ValueError(f"{self.name}: {label} is not supported")
            return self.importer.convert_map[op](node)
        except (ArithmeticError, LookupError, AttributeError, AssertionError) as error:
            what = f"{type(error).__name__}: {error}"
            raise ValueError(f"{self.name}: {label} cannot be built ({what})") from error
        except (ValueError, TypeError, NotImplementedError, tvm.error.InternalError) as error:
            if str(error).startswith(f"{self.name}: "):
                raise
            raise ValueError(f"{self.name}: {label}: {error}") from error

    def _output(self, index: int) -> Any:
        (node,) = (n for n in self.program.graph.nodes if n.op == "output")
        kinds = [s.kind.name for s in self.program.graph_signature.output_specs]
        given = [n for n, kind in zip(node.args[0], kinds, strict=True) if kind == "USER_OUTPUT"]
        if not 0 <= index < len(given):
            raise ValueError(f"{self.name}: there are {len(given)} outputs, got output={index}")
        changed = [
            spec.target for spec in self.program.graph_signature.output_specs
            if spec.kind.name == "BUFFER_MUTATION"
            and spec.target not in self._states()
            and not spec.target.endswith("num_batches_tracked")
        ]  # fmt: skip
        if changed:
            raise ValueError(f"{self.name}: it changes the buffer {changed[0]!r}: not supported")
        return self.env[given[index]]


def _scalar(result: Any) -> Any:
    if shape_of(result) != ():
        raise ValueError(f"loss='own': the output must be a scalar, got {list(shape_of(result))}")
    return result


def _check_gradients(graph: TrainingGraph) -> None:
    """Raises ValueError for an op between a trained parameter and the loss without a gradient."""
    func = graph.main
    bindings = [b for block in func.body.blocks for b in block.bindings]
    trained = set(graph.variables(graph.trainable))
    for binding in bindings:
        if any(v in trained for v in relax.analysis.free_vars(binding.value)):
            trained.add(binding.var)
    needed = {func.body.body.fields[0]}
    for binding in reversed(bindings):
        if binding.var not in needed:
            continue
        needed.update(relax.analysis.free_vars(binding.value))
        op = getattr(binding.value, "op", None)
        if not isinstance(op, Op) or op.get_attr("FPrimalGradient") is not None:
            continue
        if binding.var in trained:
            nodes = [node for node, var in graph.tensors.items() if var == str(binding.var.name)]
            at = f" ({nodes[0]})" if nodes else ""
            raise ValueError(f"{graph.name}: {op.name}{at} has no gradient")
