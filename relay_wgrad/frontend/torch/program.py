"""A module's exported program with its gradient stops said by ops: the form that is imported.

`torch.export` shows `torch.no_grad()` as regions (`wrap_with_set_grad_enabled`), which its
decompositions inline without a trace; so before them each result of a region gets a `detach`.
What only autograd sees, and `torch.export` drops without a word, is refused while it is traced.
"""

from __future__ import annotations

import contextlib
import operator
import os
import warnings
from collections.abc import Container, Iterator, Sequence
from importlib import import_module
from threading import get_ident
from typing import Any, NamedTuple, NoReturn

from ...ambient import default_device, hooks_of_all
from .batch import even_parts, opened
from .batch_of_one import EXPORTED, difference
from .composed import decompositions
from .dropouts import without_dropout
from .file import check_file, first_line
from .functionalization import functionalized
from .names import op_of
from .program_copy import copied
from .refusals import reason, unlogged, without_graph
from .trace_lock import trace_ended, tracing_alone

_REGION = "higher_order::wrap_with_set_grad_enabled"
_AUTOCAST = "higher_order::wrap_with_autocast"  # switched off, it is what is in it
_FLOW = "branches and loops by values are not supported: choose by torch.where"
_EXPORT_AGAIN = "pass the module, or the program as torch.export.export returns it"


class RefusedError(ValueError):
    """Of this file's rules, whatever torch.export makes of an exception on its way."""


class Exported(NamedTuple):
    """What `torch.export` made of a module.

    two : why its batch, where that is open, may not be one image; "" where it may.
    off : names of the nodes whose dropout was switched off.
    """

    program: Any
    title: str
    two: str
    off: list[str]


def pytorch() -> Any:
    """The package.  Raises ModuleNotFoundError naming the extra."""
    try:
        import_module("torch.export")
        return import_module("torch")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "from_torch needs PyTorch: pip install relay-wgrad[torch]", name=error.name
        ) from error


def exported(
    torch: Any,
    module: Any,
    inputs: Sequence[Any] | None,
    known: Container[str],
    open_batch: bool = False,
    dropout: bool = True,
) -> Exported:
    """A module, or an exported program, without regions and in-place ops; `known` are ops taken.

    open_batch : of a module: exported for any number of images.
    dropout : whether it stays where it is on.

    Raises what `from_torch` does for a module that cannot be exported as it trains.
    """
    title = type(module).__name__
    if isinstance(module, (str, os.PathLike)):
        title, module = _loaded(torch, os.fspath(module))
    program = isinstance(module, torch.export.ExportedProgram)
    if not program and not isinstance(module, torch.nn.Module):
        raise TypeError(f"from_torch: expected a torch.nn.Module, got {type(module).__name__}")
    if program != (inputs is None):
        rule = "has them already" if program else "must be a tuple of tensors"
        raise TypeError(f"from_torch: example_inputs of a {title} {rule}")
    if program and open_batch:
        raise TypeError(
            f"from_torch: batch of a {title} is what it was exported with:"
            " torch.export.export(…, dynamic_shapes=…) opens it"
        )
    if inputs is not None and not isinstance(inputs, (tuple, list)):
        raise TypeError(f"from_torch: example_inputs must be a tuple, got {type(inputs).__name__}")
    if program and module.dialect != "TRAINING":
        raise ValueError(
            f"{title}: run_decompositions was called, after which torch.no_grad() cannot be seen:"
            f" {_EXPORT_AGAIN}"
        )
    # Of those that `torch.inference_mode` has made autograd, which traces, would keep none.
    given = tuple(
        x.clone() if isinstance(x, torch.Tensor) and x.is_inference() else x for x in inputs or ()
    )
    axes, one = None, None
    if not program:
        _check_hooks(title, module)
        if open_batch:
            given, axes, one = opened(torch, given)
    with tracing_alone(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PyTorch, about PyTorch
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", r"The tensor attributes? .*_flat_weights")  # of nn.LSTM
        warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor")  # of torch.cond
        seen: list[str] = []
        try:
            source = module
            if not program:
                with _exporting(torch, source, seen, open_batch):
                    module = torch.export.export(source, given, dynamic_shapes=axes)
            stopped = _without_regions(torch, module, program)
            refused = EXPORTED if one is None else _one_image(torch, source, one, stopped)
            off: list[str] = []
            if not dropout:
                stopped, off = without_dropout(stopped, program)
            made = functionalized(torch, stopped, known)
            if made is None:
                made = stopped.run_decompositions(decompositions(stopped.graph))
            return Exported(made, title, refused, off)
        except RefusedError as error:
            raise ValueError(f"{title}: {error}") from error
        except Exception as error:  # any kind: it runs the module's own code
            why = seen[0] if seen else reason(error)
            raise ValueError(f"torch.export refuses {title}: {why}") from error


@contextlib.contextmanager
def _exporting(torch: Any, module: Any, seen: list[str], open_batch: bool) -> Iterator[None]:
    """Around `torch.export`: out of the caller's modes; `seen` gets what it would lose."""
    parts = even_parts(torch) if open_batch else contextlib.nullcontext()
    with (
        default_device(), torch.enable_grad(), _watched(torch, seen), parts, without_graph(),
        _as_it_is(module),
    ):  # fmt: skip
        yield


def _one_image(torch: Any, module: Any, inputs: Any, several: Any) -> str:
    """Why a module's program of several images is none of one, or ""."""
    try:
        with _exporting(torch, module, [], True):
            alone_ = torch.export.export(module, inputs)
        return difference(torch, several, _without_regions(torch, alone_, False))
    except Exception as error:  # any kind: it runs the module's own code
        return f"of one image torch.export refuses the module: {first_line(error)}"


def _loaded(torch: Any, path: str) -> tuple[str, Any]:
    if not os.path.isfile(path):
        raise FileNotFoundError(f"no file {path!r}")
    try:
        with warnings.catch_warnings(), unlogged():  # or a traceback of what is raised here
            warnings.simplefilter("ignore")  # of members that an older PyTorch wrote
            check_file(torch, path)
            return os.path.splitext(os.path.basename(path))[0], torch.export.load(path)
    except Exception as error:  # many kinds, of zip files, pickles and versions
        said = first_line(error)
        raise ValueError(f"{path!r} is not an exported program: {said}") from error


# ---- what torch.export drops ---------------------------------------------------------------------


def hooks_lost(module: Any) -> str:
    """Which hooks of its layers an exported program would not have, or ""."""
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            return f"backward hooks of {name or 'the module'!r} would be lost"
    return "hooks of all modules would be lost" if hooks_of_all() else ""


def _check_hooks(title: str, module: Any) -> None:
    """Raises for hooks that change gradients, and those of all modules, of which `torch.export` has
    some of its own."""
    if lost := hooks_lost(module):
        raise ValueError(f"{title}: {lost}")
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks:
            raise ValueError(f"{title}: hooks on the gradient of {name!r} would be lost")


@contextlib.contextmanager
def _watched(torch: Any, seen: list[str]) -> Iterator[None]:
    """Within: a backward of one's own, or a hook, raises RefusedError; `seen` keeps the message.

    Of this thread: others, which train meanwhile, find both as they were.
    """
    tensor, meta, thread = torch.Tensor, type(torch.autograd.Function), get_ident()
    look: Any = meta.__getattribute__
    hook = tensor.register_hook

    def refuse(what: str, remedy: str) -> NoReturn:
        seen.append(f"{what}, which would be lost: {remedy}")
        raise RefusedError(seen[-1])

    # Not `apply`: programs keep `f = Function.apply`, which then is not looked up again.
    def looked_up(cls: Any, name: str) -> Any:
        def no_forward(*args: Any, **kwargs: Any) -> None:
            if cls.__module__.startswith("torch._higher_order_ops"):
                seen.append(f"{cls.__name__.removesuffix('AutogradOp')} (control flow): {_FLOW}")
                raise RefusedError(seen[-1])
            refuse(
                f"the autograd.Function {cls.__name__} has a backward of its own",
                "write it by ops, a gradient that passes straight through as"
                " x + (f(x) - x).detach()",
            )

        if name != "forward" or get_ident() != thread:
            return look(cls, name)
        # Those of operators, this package's and a user's custom ones, are seen as operators.
        is_operator = cls.__module__ == "torch._library.autograd"
        is_watched = issubclass(cls, torch.autograd.Function) and not is_operator
        return no_forward if is_watched else look(cls, name)

    def no_hook(self: Any, *args: Any, **kwargs: Any) -> Any:
        if get_ident() != thread:
            return hook(self, *args, **kwargs)
        return refuse("register_hook on a tensor changes its gradient", "write the change by ops")

    tensor.register_hook = no_hook
    type.__setattr__(meta, "__getattribute__", looked_up)
    try:
        yield
    finally:
        type.__delattr__(meta, "__getattribute__")
        tensor.register_hook = hook


@contextlib.contextmanager
def _as_it_is(module: Any) -> Iterator[None]:
    """Puts attributes back, which a trace leaves as it has set them, and lists as copies."""
    before = [(part.__dict__, dict(part.__dict__)) for part in module.modules()]
    inside: dict[int, tuple[Any, Any]] = {}
    for _, attributes in before:
        for name in attributes.keys() - {"_parameters", "_buffers", "_modules"}:
            _copy(attributes[name], inside)
    try:
        yield
    finally:
        trace_ended()
        for held, attributes in before:
            for name in [name for name in held if name not in attributes]:
                del held[name]
            held.update(attributes)
        for value, was in inside.values():
            if len(value) != len(was) or not all(map(operator.is_, _values(value), _values(was))):
                value.clear()
                (value.update if isinstance(value, dict) else value.extend)(was)


def _values(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value


def _copy(value: Any, copies: dict[int, tuple[Any, Any]]) -> None:
    """Copies the lists and dictionaries in a value, it among them, to (it, the copy) by its id."""
    if isinstance(value, (list, tuple, dict)) and id(value) not in copies:
        if not isinstance(value, tuple):
            copies[id(value)] = value, value.copy()
        for inner in _values(value):
            _copy(inner, copies)


# ---- regions -------------------------------------------------------------------------------------


def _without_regions(torch: Any, program: Any, theirs: bool) -> Any:
    """The program with every `no_grad` region inlined, its results detached; `theirs` is copied."""
    _check_in_place(program.graph_module, {})
    if not any(_is_region(n) for n in program.graph.nodes):
        return program
    program = copied(program) if theirs else program
    graph = program.graph
    regions = [n for n in graph.nodes if _is_region(n)]
    detach = torch.ops.aten.detach.default
    for node in regions:
        stops, holder, operands = _region(node)
        if not stops and op_of(node) == _REGION:
            raise RefusedError(f"it was exported under torch.no_grad(): {_EXPORT_AGAIN}")
        body = getattr(program.graph_module, holder.target).graph
        values = dict(zip((n for n in body.nodes if n.op == "placeholder"), operands, strict=True))
        with graph.inserting_before(node):
            for inner in body.nodes:
                if inner.op == "placeholder":
                    continue
                if inner.op != "output":
                    values[inner] = graph.node_copy(inner, values.__getitem__)
                    continue
                results = []
                for result in (_itself(torch, x) for x in inner.args[0]):
                    new = values[result]
                    if stops and result.op != "placeholder" and _floats(result):
                        new = graph.call_function(detach, (new,))
                        new.meta = dict(result.meta)
                    results.append(new)
        for user in list(node.users):
            if user.target is not operator.getitem:
                raise RefusedError(
                    f"a result of torch.no_grad() goes to {user.target}: not supported"
                )
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)
    graph.eliminate_dead_code()
    program.graph_module.recompile()
    return program


def _is_region(node: Any) -> bool:
    return op_of(node) in (_REGION, _AUTOCAST)


def _region(node: Any) -> tuple[bool, Any, list[Any]]:
    """(whether gradients stop at it, what holds its body, its operands).

    Raises RefusedError for another kind of region.
    """
    if op_of(node) == _REGION:
        enabled, holder, *operands = node.args
        return not enabled, holder, operands
    if op_of(node) == _AUTOCAST:
        _, _, enabled, _, holder, *operands = node.args
        if not enabled:
            return False, holder, operands
    raise RefusedError(f"{op_of(node)} ({node.name}) is not supported")


def _itself(torch: Any, node: Any) -> Any:
    """The operand that the node's op gives back as it is, else the node.

    `y.float()` of a float32 y is y, also under `no_grad`, and y keeps its gradient; but from there
    on the exported program calls y by that op's name.  `contiguous`, `broadcast_tensors`, dropout
    in evaluation do so too: which ones is asked of PyTorch, on tensors without memory.
    """
    while node.op == "call_function":
        made, index = node, None
        if node.target is operator.getitem:
            made, index = node.args
        if not hasattr(made.target, "_schema"):
            return node
        args, kwargs = torch.fx.node.map_arg((made.args, made.kwargs), lambda n: n.meta["val"])
        found = made.target(*args, **kwargs)
        found = found if index is None else found[index]
        same = [x for x in made.all_input_nodes if x.meta["val"] is found]
        if not same:
            return node
        node = same[0]
    return node


def _floats(node: Any) -> bool:
    value = node.meta.get("val")
    return hasattr(value, "is_floating_point") and bool(value.is_floating_point())


def _check_in_place(module: Any, outside: dict[Any, Any]) -> None:
    """Raises for a change in place behind autograd's back, and for what is no op.

    `y.detach().mul_(2)`, or `y.mul_(2)` under `no_grad`, doubles y and leaves its gradient as it
    was; in the functional graph both would scale it or stop it.
    """
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        if getattr(node.target, "namespace", "") == "higher_order":
            _, holder, _ = _region(node)
            inside = outside if op_of(node) == _AUTOCAST else {node: True}
            _check_in_place(getattr(module, holder.target), inside)
            continue
        for argument in _written(node):
            if _shares_memory(module, argument, bool(outside)):
                raise RefusedError(
                    f"{node.target} ({node.name}) changes in place a tensor that autograd does not"
                    " see changed (by detach, or under torch.no_grad()): make a new tensor"
                )


def _aliases(node: Any) -> Any:
    return getattr(getattr(node.target, "_schema", None), "arguments", ())


def _written(node: Any) -> list[Any]:
    """The operands that an op changes in place."""
    found = []
    for i, argument in enumerate(_aliases(node)):
        if argument.alias_info is not None and argument.alias_info.is_write and i < len(node.args):
            found.append(node.args[i])
    return [n for n in found if hasattr(n, "op")]


def _shares_memory(module: Any, node: Any, inside: bool) -> bool:
    """Whether a tensor shares memory with another by `detach`, or from outside of a region."""
    while node.op == "call_function":
        if op_of(node) in ("detach.default", "detach_.default"):
            return True
        if node.target is operator.getitem and op_of(node.args[0]) == _REGION:
            region = getattr(module, node.args[0].args[1].target)
            (output,) = (n for n in region.graph.nodes if n.op == "output")
            return _shares_memory(region, output.args[0][node.args[1]], True)
        shared = [
            node.args[i]
            for i, argument in enumerate(_aliases(node))
            if argument.alias_info is not None and i < len(node.args)
        ]
        if node.target is operator.getitem:
            shared = [node.args[0]]
        shared = [n for n in shared if hasattr(n, "op")]
        if not shared:
            return False
        node = shared[0]
    return inside
