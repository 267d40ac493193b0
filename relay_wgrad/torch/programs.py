"""What `TrainingStep` calls: a module compiled for one kind of call, on PyTorch's tensors.

Tensors go both ways by DLPack, on CUDA on PyTorch's current stream.  What is copied: operands that
are not dense, or not aligned as kernels want it; the new running statistics, into the module's
buffers; a gradient that shares its memory with another, since PyTorch changes gradients in place.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_unflatten

from .. import keys
from ..ambient import outside
from . import host_library
from .backward_part import BackwardPart, Forward, keeps_graph
from .depends import Depends, is_dispatched
from .kernels import winograd_is_allowed
from .on_stream import Turns, replayed
from .reads import LostError, Reads
from .replayed import Written
from .several import CopyEach

if TYPE_CHECKING:
    from ..training.pieces import Piece

Place = tuple[dict[str, Any], str]  # a module's `_parameters` or `_buffers`, and the name in it


class Choices(NamedTuple):
    """What is said of the arithmetic of convolutions: for cuDNN, and for a CPU."""

    tf32: bool
    benchmark: bool
    deterministic: bool
    winograd: bool


def choices(device: torch.device | str) -> Choices:
    """Those that count on a device."""
    if torch.device(device).type == "cpu":
        return Choices(False, False, True, winograd_is_allowed())
    flags = torch.backends.cudnn
    same_bits = flags.deterministic or torch.are_deterministic_algorithms_enabled()
    return Choices(flags.allow_tf32, flags.benchmark, same_bits, False)


def compiled_at(device: torch.device, chosen: Choices) -> Any:
    """The `Place` that compiles for a device of PyTorch's."""
    from ..training.devices import place
    from ..training.options import Options

    options = Options(
        tf32=chosen.tf32, benchmark=chosen.benchmark, deterministic=chosen.deterministic,
        winograd=chosen.winograd,
    )  # fmt: skip
    return place(f"cuda:{device.index or 0}" if device.type == "cuda" else "cpu", options)


def module_at(where: Any, made: Any) -> Any:
    """The module of AOTAutograd's graph, `from_aot`'s, as the trainer's passes at a place take it:
    its function has the adjoint's name and the place's layout, or that of channels that lie last.
    """
    from ..training.step import ADJOINT, converted

    module = made.module.clone()
    main = module["main"]
    del module["main"]
    module[ADJOINT] = main.with_attr(keys.SYMBOL, ADJOINT)
    layout = where.layout
    if layout is None and any((*made.last[0], *made.last[1])):
        layout = "NHWC"
    return converted(module, layout, blocks=where.blocks)


class Asked(NamedTuple):
    """What a program is compiled for, besides the module's own state."""

    loss: Any  # of `from_torch`
    half: str | None
    gradients: bool  # whether autograd records
    differentiates: bool
    layout: str | None
    checkpoint: Any
    choices: Choices
    graphs: bool  # whether calls on CUDA become CUDA graphs
    pieces: tuple[int, int] | None  # of the backward part: `to_part`


class Arguments(NamedTuple):
    """Of a forward pass, and what is another object whenever those behind the inputs and what is
    drawn may be other tensors than before, or lie elsewhere (`Depends.settled`)."""

    tensors: list[torch.Tensor]
    settled: object


class Program:
    """A module's forward part, and the pieces of the backward part where gradients are wanted.

    module : as it is now: in training or not, layer by layer.
    inputs : its arguments.  Gradients are computed by those that require them.

    lost : why there is nothing compiled, or "": what the module does besides its result would not
        be done.

    Raises ValueError as `from_torch` does, and for tensors on several devices.
    """

    @outside()
    def __init__(self, module: torch.nn.Module, inputs: Sequence[Any], asked: Asked) -> None:
        from ..frontend import from_torch
        from ..frontend.torch.program import hooks_lost
        from ..frontend.torch.trace_lock import at_end, tracing_alone
        from ..training.capture import refusal
        from ..training.compiled import silent
        from ..training.origins import compiled_graph

        self.device = _device(module, inputs)
        _check_sharding(module)
        reads, self.notes = Reads(module), []
        self.lost = hooks_lost(module) or _norms_lost(module) or _tensors_lost(module)
        try:
            if self.lost:
                raise LostError(self.lost)
            with tracing_alone(), at_end(reads.put_back), _plain(module), reads.recording():
                graph = from_torch(
                    module, tuple(x.detach() for x in inputs), loss=asked.loss, dropout="mask"
                )
            self._effects = reads.effects()
            if graph.writes:
                raise LostError(f"{graph.name} changes its argument {graph.writes[0]!r} in place")
        except LostError as error:
            self.lost, self.notes = str(error), [f"PyTorch runs this: {error}"]
            self.depends = Depends(reads, (), asked.gradients)
            return
        finally:
            reads.put_back()
        self.name, self.specs, self._returned = graph.name, graph.inputs, graph.returned
        self.drawn = [spec for spec in graph.inputs if spec.kind in ("mask", "random")]
        targets = list(graph.onnx_names.values())
        self.places = [_place(module, target) for target in targets]
        self.statistics, self.counters = _statistics(module, graph, reads)
        given = {id(held[name]) for held, name in (*self.places, *self.counters)}
        self.depends = Depends(reads, given, asked.gradients)
        wrt: list[str] = []
        if asked.differentiates:
            wrt = [s.name for s, x in zip(graph.inputs, inputs, strict=False) if x.requires_grad]
            wrt += graph.trainable
        where = compiled_at(self.device, asked.choices)
        if asked.graphs and where.is_gpu:
            host_library.begin()  # beside what compiles the program
        how = {
            "wrt": wrt, "dtype": asked.half,
            "layout": where.layout if asked.layout is None else asked.layout,
            "checkpoint": asked.checkpoint, "wide_weight_gradients": where.wide,
            "raise_norms": where.norms, "blocks": where.blocks, "pieces": asked.pieces,
        }  # fmt: skip
        compiled, parts = compiled_graph(where, graph, silent, how)
        self.outputs = parts.outputs
        order = [*(spec.name for spec in graph.inputs), *graph.params]
        self.wrt = [order.index(name) for name in parts.wrt]
        opaque = [
            f"{what} is taken as it was when this was compiled" for what in self.depends.opaque
        ]
        self.compiled, self.notes = compiled, [*graph.notes, *where.notes, *opaque]
        names, why = parts.names, ""
        if asked.graphs and where.is_gpu:
            why = refusal(parts.module, names)
        if why:
            self.notes.append(f"its calls are not one CUDA graph: {why}")
        make = partial(
            replayed, where=where, device=self.device, told=self.notes.append,
            graphs=asked.graphs and not why,
        )  # fmt: skip
        # Functions that write over what they need no more, where a backward pass can be told from
        # one that comes again.
        joined = [None] * len(names) if keeps_graph is None else compiled.joined(names)
        # The output is the caller's, who may keep it; so are gradients, which autograd adopts.
        self._forward = make(
            compiled.vm[names[0]], own={0}, token=True, written=self._written(len(order)),
            joined=joined[0], fresh=range(len(order) - len(self.places)),
        )  # fmt: skip
        # Of what the backward part reads, what nobody but the two parts has.
        self._private = {i for i, source in enumerate(parts.sources) if source.kind == "kept"}

        def backward(functions: Sequence[Any]) -> list[Any]:
            return [
                make(
                    compiled.vm[piece.name], own=range(len(piece.gradients)), token=True,
                    private=self._private_of(piece), late=number, joined=over,
                    fresh=self._fresh_of(piece),
                )
                for number, (piece, over) in enumerate(zip(parts.pieces, functions, strict=True), 1)
            ]  # fmt: skip

        functions = backward([None] * len(parts.pieces))
        last = functions if joined[0] is None else backward(joined[1:])
        end = len(order) + len(self.counters)  # of the operands
        first = {"argument": 0, "output": end, "kept": end + parts.outputs}
        read = [first[source.kind] + source.index for source in parts.sources]
        self._turns = Turns(self.device)
        self.backward = BackwardPart(
            parts.pieces, functions, last,
            [[self.wrt[i] for i in piece.gradients] for piece in parts.pieces],
            [[read[i] for i in piece.given] for piece in parts.pieces], first["kept"], self._turns,
        )  # fmt: skip
        self._copy_statistics = CopyEach()
        self._settled: object = None  # the state of `depends` whose tensors these are
        self._operands: list[torch.Tensor] = []
        # For which operands the last call was, `Arguments.settled`, and its stamp.
        self._known: tuple[object, object] = (None, None)

    @property
    def is_graph(self) -> bool:
        """Whether its parts are CUDA graphs by now."""
        if self.lost:
            return False
        return self._forward.is_graph and self.backward.is_graph

    def arguments(self, inputs: Sequence[torch.Tensor]) -> Arguments:
        """The forward part's: inputs, what is drawn, parameters, statistics and batch counters,
        which are those that `depends` has found to be there.

        Raises TypeError or ValueError for an input that is not the one that was compiled for.
        """
        expected = self.specs[: len(self.specs) - len(self.drawn)]
        if len(inputs) != len(expected):
            names = ", ".join(f"{s.name} {s.dtype}{list(s.shape)}" for s in expected)
            raise TypeError(f"{self.name}: takes {names}; got {len(inputs)} arguments")
        for spec, x in zip(expected, inputs, strict=True):
            dtype = str(x.dtype).removeprefix("torch.")
            if tuple(x.shape) != spec.shape or dtype != spec.dtype:
                raise ValueError(
                    f"{self.name}: {spec.name} is {spec.dtype}{list(spec.shape)}, got"
                    f" {dtype}{list(x.shape)}"
                )
            if x.device != self.device:
                raise ValueError(
                    f"{self.name}: {spec.name} must be on {self.device}, got {x.device}"
                )
        numbers = [drawn(spec, self.device) for spec in self.drawn]
        if self._settled is not self.depends.settled:
            self._settled = self.depends.settled
            self._operands = [held[name] for held, name in (*self.places, *self.counters)]
        return Arguments([*inputs, *numbers, *self._operands], self._settled)

    def returned(self, result: torch.Tensor) -> Any:
        """What the module returns, of its one tensor."""
        return result if self._returned is None else tree_unflatten([result], self._returned)

    def forward(self, arguments: Arguments) -> Forward:
        """The forward pass; statistics are updated."""
        with self._turns:
            of, known = self._known
            call = self._forward(arguments.tensors, known if of is arguments.settled else None)
            self._known = (arguments.settled, call.stamp)
        made, args, token = call.results, call.operands, call.token
        for held, name, value in self._effects:
            held[name] = value
        result, kept = made[0], made[self.outputs :]
        # A view of an operand or of what is kept would be changed with it, or change it, unseen.
        shared = () if token is not None else {x.data_ptr() for x in (*args, *kept) if x.numel()}
        if result.numel() and result.data_ptr() in shared:
            result = result.clone()
        if not call.written and (self.statistics or self.counters):
            with torch.no_grad():
                buffers = [held[name] for held, name in self.statistics]
                first = self.outputs - len(buffers)
                if buffers:
                    self._copy_statistics(buffers, made[first : self.outputs])
                counters = [held[name] for held, name in self.counters]
                if counters:
                    torch._foreach_add_(counters, 1)
        # Autograd makes of the result itself one that holds whoever reads it.
        outputs = [result.detach(), *made[1 : self.outputs]]
        return Forward(result, (*args, *outputs), kept, token, call.stamp)

    def _written(self, arguments: int) -> Written:
        """The new statistics, each of them one of so many arguments of the forward part, and the
        counters, which are behind those."""
        at = {
            (id(held), name): i
            for i, (held, name) in enumerate(self.places, start=arguments - len(self.places))
        }
        targets = [at[id(held), name] for held, name in self.statistics]
        sources = range(self.outputs - len(targets), self.outputs)
        return Written(sources, targets, range(arguments, arguments + len(self.counters)))

    def _private_of(self, piece: Piece) -> set[int]:
        """Of a piece's operands what nobody but the parts has."""
        kept = {at for at, i in enumerate(piece.given) if i in self._private}
        return kept | {at for at, i in enumerate(piece.takes, start=len(piece.given)) if i}

    def _fresh_of(self, piece: Piece) -> list[int]:
        """Of a piece's operands all but those that a stamp of the forward pass stands for."""
        watched = [at for at, i in enumerate(piece.given) if i not in self._private]
        return [*watched, *range(len(piece.given), len(piece.given) + len(piece.takes))]


def _place(module: torch.nn.Module, name: str) -> Place:
    path, _, last = name.rpartition(".")
    owner = module.get_submodule(path)
    return (owner._parameters if last in owner._parameters else owner._buffers), last


def _statistics(
    module: torch.nn.Module, graph: Any, reads: Reads
) -> tuple[list[Place], list[Place]]:
    """(the buffers that the graph's outputs renew, in their order, the batch counters of those)."""
    statistics, counters = [], {}

    def counts(part: torch.nn.Module) -> bool:
        """Whether its forward reads its count of batches, which is for adding to it."""
        is_read = (id(part.__dict__), "num_batches_tracked") in reads.buffers
        return is_read and part._buffers.get("num_batches_tracked") is not None

    for output in graph.outputs:
        if output in graph.updates:
            target = graph.onnx_names[graph.updates[output]]
            statistics.append(_place(module, target))
            owner = module.get_submodule(target.rpartition(".")[0])
            if counts(owner):  # an InstanceNorm has the buffer, and leaves it alone
                counters[id(owner)] = (owner._buffers, "num_batches_tracked")
    # A layer without statistics counts its batches all the same, where it is called.
    for part in module.modules():
        if isinstance(part, _BatchNorm) and counts(part) and part.training:
            counters[id(part)] = (part._buffers, "num_batches_tracked")
    return statistics, list(counters.values())


def _norms_lost(module: torch.nn.Module) -> str:
    """Which layer's statistics a compiled pass would not renew as it does, or ""."""
    for name, part in module.named_modules():
        tracks = part.training and getattr(part, "track_running_stats", False)
        if tracks and getattr(part, "momentum", 0.0) is None:
            return (
                f"{name or 'the module'} has momentum=None, so its statistics depend on the number"
                " of batches: give it a momentum"
            )
    return ""


def _tensors_lost(module: torch.nn.Module) -> str:
    """Which parameter or buffer kernels cannot be given, and why, or ""."""
    for name, x in (*module.named_parameters(), *module.named_buffers()):
        if reason := foreign(x):
            return f"{name!r}: {reason} (fully_shard goes around a step)"
    return ""


def foreign(*tensors: torch.Tensor) -> str:
    """Why kernels cannot be given one of these tensors, or "": they read dense memory."""
    for x in tensors:
        if is_dispatched(x) or x.layout is not torch.strided or x.is_nested:
            kind = type(x).__name__ if is_dispatched(x) else f"tensor of layout {x.layout}"
            return f"a {'nested tensor' if x.is_nested else kind} has no dense memory of its own"
    return ""


def _check_sharding(module: torch.nn.Module) -> None:
    """Raises ValueError where parameters are views of one whose memory comes and goes, and for a
    wrapper that belongs around the step."""
    for part in module.modules():
        if isinstance(part, torch.nn.parallel.DistributedDataParallel):
            raise ValueError(
                "TrainingStep: DistributedDataParallel goes around the step, not into it"
            )
        sharded = getattr(part, "_is_fsdp_managed_module", False)
        if sharded and not getattr(part, "_fsdp_use_orig_params", True):
            raise ValueError(
                "TrainingStep: FullyShardedDataParallel needs use_orig_params=True here; or take"
                " fully_shard"
            )


def _device(module: torch.nn.Module, inputs: Sequence[Any]) -> torch.device:
    try:
        return one_device((*inputs, *module.parameters(), *module.buffers()))
    except ValueError as error:
        raise ValueError(f"TrainingStep: all {error}") from None


def one_device(values: Sequence[Any]) -> torch.device:
    """The device of all tensors.  Raises ValueError for several, and for others than these two."""
    found = {x.device for x in values if isinstance(x, torch.Tensor)}
    if len(found) != 1 or not found <= {d for d in found if d.type in ("cpu", "cuda")}:
        names = ", ".join(sorted(map(str, found))) or "none"
        raise ValueError(f"tensors must be on one device, cpu or cuda: {names}")
    return found.pop()


@contextlib.contextmanager
def _plain(module: torch.nn.Module) -> Iterator[None]:
    """Within it the module is traced without the hooks of parameters, which autograd runs all the
    same when it gets the gradients, and without PyTorch's warning of what `Reads` refuses.  What
    `torch.func.functional_call` has put in a parameter's place is a parameter to `torch.export`."""
    hooks = [(p, p._backward_hooks) for p in module.parameters() if p._backward_hooks]
    for parameter, _ in hooks:
        parameter._backward_hooks = None
    swapped = [
        (part._parameters, name, x)
        for part in module.modules()
        for name, x in part._parameters.items()
        if x is not None and not isinstance(x, torch.nn.Parameter)
    ]
    stand_ins = {
        id(x): torch.nn.Parameter(x.detach(), requires_grad=x.requires_grad) for _, _, x in swapped
    }
    for held, name, x in swapped:
        held[name] = stand_ins[id(x)]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The tensor attributes? ")
            yield
    finally:
        for held, name, x in swapped:
            held[name] = x
        for parameter, given in hooks:
            parameter._backward_hooks = given


def drawn(spec: Any, device: torch.device) -> torch.Tensor:
    """A mask of dropout, or other random numbers, by PyTorch's generator of the device."""
    dtype = getattr(torch, spec.dtype)
    out = torch.empty(spec.shape, dtype=dtype, device=device)
    if spec.kind == "mask":
        return out.zero_() if spec.keep <= 0 else out.bernoulli_(spec.keep).div_(spec.keep)
    kind, *numbers = spec.distribution
    if kind == "bernoulli":
        return out.bernoulli_(numbers[0])
    if kind == "normal":
        return out.normal_(*numbers)
    if kind == "integers":
        return out.random_(int(numbers[0]), int(numbers[1]))
    return out.uniform_(*numbers)
