"""What Dynamo's code calls for a pair: both passes as one function of autograd, and nothing else.

AOTAutograd puts around two graphs what aliases, writes outside of them, subclasses, tokens and
saved tensors want, which it looks at tensor by tensor in each call, and gives autograd every
operand.  Where its records say that there is nothing of that, autograd gets here what requires a
gradient alone; calls in modes of which AOTAutograd has to know go its way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from ..picking import picked
from .host_library import functions
from .pairs import Pair
from .programs import foreign
from .step_node import Backward, Gradients, is_recorded

_NAME = "Passes"

NOTHING = {
    "num_mutated_inp_runtime_indices": 0, "num_intermediate_bases": 0, "tokens": {},
    "num_backward_tokens": 0, "is_rng_op_functionalized": False, "num_graphsafe_rng_states": 0,
    "grad_enabled_mutation": None, "act_input_indices": [], "dynamic_outputs": False,
    "indices_of_inputs_that_requires_grad_with_mutations_in_bw": [],
    "num_opaque_objects_saved_for_bw": 0,
}  # fmt: skip
"""Of AOTAutograd's records what is so where it has nothing to do, or is not known yet."""
KNOWN = frozenset(NOTHING) | {
    "input_info", "output_info", "keep_input_mutations", "traced_tangents", "bw_donated_idxs",
    "traced_tangents_descs", "subclass_inp_meta", "subclass_fw_graph_out_meta", "deterministic",
    "subclass_tangent_meta", "traced_tangent_metas", "num_symints_saved_for_bw", "is_train",
    "num_tensors_saved_with_no_vc_check", "static_input_indices", "graphsafe_rng_state_index",
    "graphsafe_rng_device", "mutated_inp_stream_indices", "compile_id_str",
    "tangent_source_stack_traces",
}  # fmt: skip
"""Its records; one that is not among them may be of something that would be lost here."""


def as_function(pair: Pair, around: Callable[..., Any], example: Sequence[Any]) -> Any:
    """What to call with a graph's operands.

    around : AOTAutograd's function.  example : the operands, without values.
    """
    if not _is_all(pair, example):
        return around
    said = pair.records
    quiet = [i for i, output in enumerate(said.output_info) if not output.requires_grad]
    taken = [i for i, output in enumerate(said.output_info) if output.requires_grad]
    wrt = [
        i for i, x in enumerate(example)
        if isinstance(x, torch.Tensor) and x.requires_grad and pair.results[i] is not None
    ]  # fmt: skip
    if not wrt or sum(x is not None for x in pair.results) != len(wrt):
        return around
    apply, recorded = _function(pair, quiet, taken), _recorded(pair, taken)
    pick, pick_taken = picked(wrt), picked(taken)

    def call(*operands: Any) -> Any:
        if (
            not torch.is_grad_enabled()
            or _top_saved_tensors_default_hooks(True) is not None
            or torch._C._are_functorch_transforms_active()
            or forward_ad._current_level >= 0
        ):
            return around(*operands)
        if functions() is None:
            return apply(operands, *pick(operands))
        with torch.no_grad(), _no_autocast():
            results, carrier, _, watched = pair.passed(operands)
        outputs = pick_taken(results)
        ours = {*map(id, outputs)}
        if not ours.isdisjoint(map(id, watched)):  # which would hold who holds them
            watched = [x.detach() if id(x) in ours else x for x in watched]
        is_recorded(recorded, (carrier, *watched), pick(operands), outputs)
        return tuple(results)

    return call


def _is_all(pair: Pair, example: Sequence[Any]) -> bool:
    """Whether a call is the pair's forward pass and nothing before or after it."""
    said = pair.records
    if said is None or {field.name for field in fields(said)} - KNOWN:
        return False
    tensors = [x for x in example if isinstance(x, torch.Tensor)]
    memory = {x.untyped_storage()._cdata for x in tensors if _is_dense(x)}
    return (
        all(getattr(said, name, nothing) in (nothing, None) for name, nothing in NOTHING.items())
        and len(said.input_info) == len(example) == pair.primals
        and len(memory) == len(tensors)  # none is there twice, nor a view of another
        and not any(_is_changed(info) for info in said.input_info)
        and all(map(_is_new, said.output_info))
        and sum(output.requires_grad for output in said.output_info) == pair.tangents
    )


def _is_dense(x: torch.Tensor) -> bool:
    kind = torch.utils._python_dispatch.is_traceable_wrapper_subclass(x)
    return x.layout is torch.strided and not x.is_nested and not kind


def _is_changed(info: Any) -> bool:
    """Whether an operand is written in a way that autograd would have to see."""
    data = info.mutates_data and info.requires_grad
    return data or info.mutates_metadata or info.mutates_storage_metadata


def _is_new(output: Any) -> bool:
    """Whether a result is a tensor of memory of its own."""
    is_tensor = issubclass(output.raw_type, torch.Tensor) and not output.dynamic_dims
    counts = getattr(output, "requires_grad_for_backward", output.requires_grad)
    return output.output_type.name == "non_alias" and is_tensor and counts == output.requires_grad


def _recorded(pair: Pair, taken: Sequence[int]) -> Backward:
    """What autograd calls, of a pair whose results at these places have gradients."""
    passes = _Passes(pair)

    def backward(saved: Sequence[torch.Tensor], *tangents: torch.Tensor) -> Gradients:
        return passes.gradients(saved, tangents, in_blocks=True)

    _skip(backward)
    return Backward(f"{_NAME}Backward", backward, pair.number)


def _function(pair: Pair, quiet: Sequence[int], taken: Sequence[int]) -> Callable[..., Any]:
    """The function of autograd, applied to all operands and those that require a gradient.

    quiet, taken : the places of results without and with gradients.
    """
    passes = _Passes(pair)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, operands: Sequence[Any], *_: torch.Tensor) -> Any:
            with _no_autocast():
                results, carrier, _, watched = pair.passed(operands)
            # As AOTAutograd does: a view may be of what is changed in place.
            ctx.save_for_backward(carrier, *(x.detach() if x._is_view() else x for x in watched))
            if quiet:
                ctx.mark_non_differentiable(*(results[i] for i in quiet))
                ctx._materialize_non_diff_grads = False
            return tuple(results)

        @staticmethod
        def backward(ctx: Any, *given: Any) -> Any:
            found, _ = passes.gradients(ctx.saved_tensors, [given[i] for i in taken])
            return None, *found

    Function.__name__ = _NAME
    _skip(Function.backward)
    # As in `training_step`: `Function.apply` looks at each argument.
    apply: Callable[..., Any] = super(torch.autograd.Function, Function).apply
    return apply


def _skip(function: Any) -> None:
    """Has Dynamo leave it alone where a caller compiles what is around a backward pass."""
    with contextlib.suppress(AttributeError):
        torch._C._dynamo.eval_frame.skip_code(function.__code__)


class _Passes:
    """A pair's backward pass, as it is called."""

    def __init__(self, pair: Pair) -> None:
        self._number, self._slots = pair.number, pair.slots
        self._same_bits = torch.are_deterministic_algorithms_enabled()
        self._differentiated = torch.compiler.disable(pair.differentiated)
        _skip(_Passes.gradients)

    def gradients(
        self, saved: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor],
        in_blocks: bool = False,
    ) -> Gradients:  # fmt: skip
        """Those of operands that have one; `in_blocks`: or what they are cut out of."""
        carrier, *watched = saved
        # Compiled autograd's trace, of the function in Python and of the node in C++.
        if torch.compiler.is_compiling() or isinstance(carrier, FakeTensor):
            rest = [carrier] * (self._slots - len(watched) + 1)
            op = torch.ops.relay_wgrad.backward_of_pair.default
            return tuple(op([carrier, *watched, *rest, *tangents], self._number)), None
        _check(self._same_bits, tangents)
        if not torch.is_grad_enabled():
            return _gradients(self._differentiated, carrier, watched, tangents, in_blocks)
        start = torch.empty(0, requires_grad=True)
        return _Last.apply(start, self._differentiated, carrier, watched, tangents), None


class _Last(torch.autograd.Function):
    """Gradients that require one, which they do not have."""

    @staticmethod
    def forward(ctx: Any, _: torch.Tensor, *how: Any) -> Any:
        found, _ = _gradients(*how)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(
            "relay_wgrad: torch.compile with aot_autograd does not currently support double"
            " backward"
        )


def _gradients(
    differentiated: Any, carrier: Any, watched: Any, tangents: Any, in_blocks: bool = False
) -> Gradients:
    with _no_autocast():
        found, cuts = differentiated(carrier, watched, carrier, tangents, in_blocks)
    return tuple(found if cuts is not None else [x for x in found if x is not None]), cuts


def _no_autocast() -> Any:
    return torch._C._DisableAutocast()


def _check(same_bits: bool, tangents: Sequence[torch.Tensor]) -> None:
    """Raises RuntimeError where a backward pass is asked for what it was not compiled for."""
    if torch._C._are_functorch_transforms_active():
        raise RuntimeError(
            "relay_wgrad: transforms of torch.func do not look into a compiled backward pass"
        )
    if not same_bits and torch.are_deterministic_algorithms_enabled():
        raise RuntimeError(
            "relay_wgrad: torch.use_deterministic_algorithms(True) was called after the forward"
            " pass, whose backward pass need not be deterministic"
        )
    if reason := foreign(*tangents):
        raise RuntimeError(f"relay_wgrad: a gradient that comes back: {reason}")
