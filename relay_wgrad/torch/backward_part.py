"""The backward part of a compiled module: its pieces, and each as a function of autograd.

It knows nothing of the module, which may hold a result, which holds its function: nobody could
give the two up, since no collector of garbage looks into autograd's nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..picking import picked
from .on_stream import Turns
from .replayed import Replayed
from .step_node import Backward, Cuts, Gradients, is_recorded

if TYPE_CHECKING:
    from ..training.pieces import Piece

keeps_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
"""Whether the backward pass that runs may come again (`retain_graph`); None: PyTorch is too old to
say."""

_NAME = "TrainingStepBackward"
_numbers = itertools.count(1)


class Forward(NamedTuple):
    """A forward pass: the first output, and what the backward part may read: arguments and outputs,
    and what is kept.

    token : whoever has it has the memory of what is kept, which the next pass writes again once
        nobody has; None: each tensor has its own.
    stamp : passes of the same one keep the same tensors; None: each keeps others.
    """

    result: torch.Tensor
    given: Sequence[torch.Tensor]
    kept: Sequence[torch.Tensor]
    token: torch.Tensor | None
    stamp: object


class Handed(NamedTuple):
    """What a piece of a backward pass gives for later ones: values by number (`Piece.hands`), and
    tokens of the memory that some of them lie in."""

    values: dict[int, torch.Tensor]
    tokens: list[torch.Tensor]


class _Reading:
    """What a piece of the backward part reads of its forward pass, apart: what callers may change
    in place in the meantime, after which autograd looks, and what is `private`.

    places : among what a forward pass gives and what it keeps, in the piece's order.  private :
        from which place on nobody but the parts has it.
    """

    def __init__(self, places: Sequence[int], private: int) -> None:
        hidden = [i for i in places if i >= private]
        watched = [i for i in places if i < private]
        self.hidden, self.watched = picked([i - private for i in hidden]), picked(watched)
        at = {i: place for place, i in enumerate((*hidden, *watched))}
        self._whole = picked([at[i] for i in places])

    def whole(self, hidden: Sequence[Any], watched: Sequence[Any]) -> Sequence[Any]:
        """All of it, as the piece takes it."""
        return self._whole((*hidden, *watched))


class BackwardPart:
    """Pieces of one.

    functions, last : of each piece what computes it, and what does where nobody will want what the
        two passes have in memory.
    wrt : of each piece the places of those arguments that it gives gradients of.
    read : what each piece is given, by places among what a forward pass gives, and what it keeps,
        which begins at `kept`.
    """

    def __init__(
        self, pieces: Sequence[Piece], functions: Sequence[Replayed], last: Sequence[Replayed],
        wrt: Sequence[Sequence[int]], read: Sequence[Sequence[int]], kept: int, turns: Turns,
    ) -> None:  # fmt: skip
        self.pieces, self.functions, self.last = pieces, functions, last
        self._wrt, self._turns = [*map(picked, wrt)], turns
        # Of each piece; and of a forward pass whose memory one token stands for.
        end = 1 + max((i for some in read for i in some), default=0)
        self._reading, self._reading_shared = (
            [_Reading(some, private) for some in read] for private in (end, kept)
        )
        self._hidden: tuple[object, Sequence[Any]] = (None, ())  # of the last stamp
        self._later = [
            {i for after in pieces[number:] for i in after.takes}
            for number in range(1, 1 + len(pieces))
        ]
        # Of the last call of each piece the forward pass's stamp and its own.
        self._known: list[tuple[object, object]] = [(None, None)] * len(pieces)
        self._cuts = [
            [Cuts(range(len(piece.gradients)), first=i + 1 < len(pieces)) for _ in range(2)]
            for i, piece in enumerate(pieces)
        ]  # fmt: skip
        self._number = next(_numbers)

    @property
    def is_graph(self) -> bool:
        """Whether its pieces are CUDA graphs by now."""
        both = zip(self.functions, self.last, strict=True)
        return all(a.is_graph or b.is_graph for a, b in both)

    def differentiable(self, made: Forward, arguments: Sequence[torch.Tensor]) -> torch.Tensor:
        """The result of a forward pass, with the pieces behind it, the last one first."""
        behind: list[torch.Tensor] = []
        for number in reversed(range(len(self.pieces))):
            hidden, watched = self._read(number, made)
            passed = _Passed(self, number, hidden, made.stamp, made.token is not None)
            saved = watched if made.token is None else (made.token, *watched)
            operands = (*behind, *self._wrt[number](arguments))
            result = _link(made.result) if number else made.result
            backward = Backward(_NAME, passed, self._number)
            if not is_recorded(backward, saved, operands, [result]):
                result = _apply(passed, [result], saved, *operands)
            behind = [result]
        return behind[0]

    def _read(
        self, number: int, made: Forward
    ) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
        """What a piece reads of a forward pass: (what that one's token stands for, the rest)."""
        if made.token is None:
            return (), self._reading[number].watched((*made.given, *made.kept))
        stamp, hidden = self._hidden
        if stamp is None or stamp is not made.stamp:
            hidden = [reading.hidden(made.kept) for reading in self._reading_shared]
            self._hidden = (made.stamp, hidden)
        return hidden[number], self._reading_shared[number].watched(made.given)

    def gradients(
        self, number: int, hidden: Sequence[torch.Tensor], watched: Sequence[torch.Tensor],
        stamp: object, handed: Handed, ends: bool, in_blocks: bool,
    ) -> tuple[Gradients, Handed]:  # fmt: skip
        """(the gradients of a piece, in its order, what it and those before it hand on).

        hidden, watched : of `_read`.  stamp : of the forward pass.
        ends : whether that is of a forward pass with a token, and no backward pass will come again
            for it: then what the two passes have in memory may be written over.
        in_blocks : whether gradients may be cut out of few tensors.
        """
        piece = self.pieces[number]
        reading = (self._reading_shared if hidden else self._reading)[number]
        operands = [
            *reading.whole(hidden, watched), *(handed.values[i] for i in piece.takes)
        ]  # fmt: skip
        function = (self.last if ends else self.functions)[number]
        with self._turns:
            of, known = self._known[number]
            call = function(operands, known if of is stamp else None, in_blocks)
            self._known[number] = (stamp, None if stamp is None else call.stamp)
        count, made, token = len(piece.gradients), call.results, call.token
        gradients, new = made[:count], made[count:]
        if token is None:
            seen = {*call.addresses, *(x.data_ptr() for x in new)}
            for i, found in enumerate(gradients):
                if found.numel() and found.data_ptr() in seen:
                    gradients[i] = found.clone()
                seen.add(found.data_ptr())
        if call.blocks is None:
            given: Gradients = gradients, None
        else:
            given = call.blocks, self._cuts[number][ends].of(function.copies)
        if number + 1 == len(self.pieces):
            return given, Handed({}, [])
        values = {**handed.values, **dict(zip(piece.hands, new, strict=True))}
        tokens = [*handed.tokens, *([] if token is None else [token])]
        later = {i: values[i] for i in self._later[number] if i in values}
        return given, Handed(later, tokens)


class _Passed:
    """What a piece's backward pass goes by of its forward pass.

    has_token : whether the first of what is saved is the forward pass's token.
    """

    __slots__ = ("has_token", "hidden", "number", "part", "stamp")

    def __init__(
        self, part: BackwardPart, number: int, hidden: Sequence[torch.Tensor], stamp: object,
        has_token: bool,
    ) -> None:  # fmt: skip
        self.part, self.number, self.hidden, self.stamp = part, number, hidden, stamp
        self.has_token = has_token

    def __call__(
        self, saved: Sequence[torch.Tensor], gradient: Any, in_blocks: bool = True
    ) -> Gradients:
        """The gradients of the link to the next piece, where there is one, and of the arguments.

        What pieces hand on goes with the link's gradient, as an attribute, which a tensor keeps on
        its way through autograd: so each run of a backward pass has its own.
        """
        if torch.is_grad_enabled():
            raise RuntimeError(
                "TrainingStep: create_graph=True: its gradients have no gradients of their own"
            )
        handed = gradient.handed if self.number else Handed({0: gradient}, [])
        ends = self.has_token and keeps_graph is not None and not keeps_graph()
        (gradients, cuts), handed = self.part.gradients(
            self.number, self.hidden, saved[1:] if self.has_token else saved, self.stamp, handed,
            ends, in_blocks,
        )  # fmt: skip
        if self.number + 1 == len(self.part.pieces):
            return tuple(gradients), cuts
        link = _link(gradient)
        link.handed = handed
        return (link, *gradients), cuts


class _Piece(torch.autograd.Function):
    """A piece, differentiable by the arguments that it gives gradients of and by a link: an empty
    tensor, the result of the piece that runs after it."""

    @staticmethod
    def forward(
        ctx: Any, passed: _Passed, results: list[torch.Tensor], saved: Sequence[torch.Tensor],
        *_: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        ctx.passed = passed
        ctx.save_for_backward(*saved)
        return results[0]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        gradients, _ = ctx.passed(ctx.saved_tensors, gradient, in_blocks=False)
        return None, None, None, *gradients


_Piece.__name__ = _NAME.removesuffix("Backward")
_apply: Any = super(torch.autograd.Function, _Piece).apply
"""Not `_Piece.apply`, which looks at each argument for what `torch.func` has left: whose transforms
are refused here."""


def _link(like: torch.Tensor) -> Any:
    # On the device, for autograd to run all pieces on the forward pass's stream.
    return torch.empty(0, dtype=torch.float32, device=like.device)
