"""Calls of a compiled function on CUDA as one CUDA graph, where nobody can tell the difference.

A virtual machine needs longer to start a thousand kernels than a small batch takes; a graph starts
them at once, at the addresses that they had when it was captured.  So what it is given must lie
where it lay then, or be copied there, and its results are the same memory each time.  Whether
someone still has those of the call before is looked at each time: then the function is called
kernel by kernel, into memory of its own.

A function whose results are the same memory anyway (`relay_wgrad.pipeline.chains`) is called in the
same way before it is a graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import is_
from typing import Any, NamedTuple, Protocol

import torch
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from ..picking import Pick, picked
from .kernels import FORMATS
from .several import Copies, CopyEach, increment_versions
from .tensor_facts import look_at

Addresses = AbstractSet[int]

ALL = range(1 << 31)
"""The places of all results."""

WARM, LATER = 2, 5
"""Calls before the one that is captured: libraries choose, memory is taken.  A backward pass is
given what its forward pass has made, which lies where it stays when that one is a graph; of a
backward pass in pieces each waits for the one before it."""
MISSES = 2
"""Calls in a row with operands elsewhere than when it was captured: then it is captured anew, and
those are copied.  Between other calls there may be twice as many of those: an allocator gives some
operands two places or three in turn."""
TRIES = 6
"""Captures of one function, those that failed among them."""
MOST = 64 << 20
"""Bytes that a backward pass may have copied to where its graph reads them."""


class Call(NamedTuple):
    """What a call gives: results, the addresses of what it read, its operands, of a graph that has
    one the token of its memory, whether what is to be written into operands has been, of a graph
    its stamp, which the next call may be told as `known`, and what results of memory of their own
    are to be cut out of (`Copies.cuts`): then they are None."""

    results: list[torch.Tensor]
    addresses: Addresses
    operands: Sequence[torch.Tensor]
    token: torch.Tensor | None
    written: bool = False
    stamp: object = None
    blocks: Sequence[torch.Tensor] | None = None


class Lane(Protocol):
    """Where work is captured: `relay_wgrad.training.capture.Lane`."""

    def done(self, function: Callable[[], Any]) -> Any:
        """What a function gives, when its work is over."""

    def captured(
        self, function: Callable[[], Any], work: Callable[[], None] | None = None
    ) -> tuple[Any, Callable[[], None]]:
        """(what a function gives, what does its work, and then some of PyTorch's, of which nothing
        is done here).

        Raises what a device has against either as a graph.
        """

    def also(self, launch: Callable[[], None], work: Callable[[], None]) -> Callable[[], None]:
        """What does what `launch` does, and then work of PyTorch's, of which nothing is done here.

        Raises what a device has against it as a graph.
        """


class Written(NamedTuple):
    """What is written into operands when a call is over.

    sources, targets : places of results, and of the operands that get them.  counts : places of
        operands that grow by 1, behind those that the function takes.
    """

    sources: Sequence[int] = ()
    targets: Sequence[int] = ()
    counts: Sequence[int] = ()


class Replayed:
    """A function of tensors of one device: its results, and the addresses of what it has read.

    prepare : makes dense tensors of what is given, axes of channels last where `last` says so.
    plain : calls it with those, on the current stream.
    raw : calls it with TVM's tensors, for TVM's.
    lane : where it can be captured; None: it never is.
    told : is given a few words where it cannot be.
    late : how many such functions come before it whose results are among its operands, as a forward
        pass's are among its backward pass's.
    own : the places of results that get memory of their own, and so does each single number.  The
        others lie in the graph's memory, and are the caller's as long as it has any of them.
    token : all but those of `own`, and the operands that are copied, are the same tensors each
        time, and are the caller's as long as it has the call's token.
    stands : with `token`, which of them stands for all, as another tensor of the same memory each
        time, where a caller has all or none; None: the token is a tensor more.
    private : the places of operands that another such function gives as the same tensors each time,
        and nobody else has: that they are the same is all that is looked at.
    written : is done by a graph itself where that can be, else by the caller (`Call.written`).
    apart : None, or what `plain` is of a function that gives the same in memory of its own: that of
        `plain` and `raw` gives the same memory each time, and wants `token`.
    fresh : the places of operands that are looked at in each call.  Those of the others need not be
        where a caller says that they are what they were: there are hundreds.

    One thread at a time may call it.
    """

    def __init__(
        self,
        plain: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]],
        raw: Callable[..., Any],
        lane: Lane | None,
        told: Callable[[str], None],
        late: int = 0,
        prepare: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]] = list,
        last: Sequence[bool] = (),
        own: Container[int] = (),
        token: bool = False,
        stands: int | None = None,
        private: Container[int] = (),
        written: Written | None = None,
        apart: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]] | None = None,
        fresh: Sequence[int] = (),
    ) -> None:
        self._apart, self._fresh = apart, frozenset(fresh)
        self._written = Written() if written is None else written
        self._writes = self._gathers = False  # of a graph: whether it does that, and gathers
        self._pick_written = picked([*self._written.targets, *self._written.counts])
        self._plain, self._raw, self._lane, self._told = plain, raw, lane, told
        self._prepare, self._last = prepare, last
        self._own, self._token, self._private, self._stands = own, token, private, stands
        self._warm = LATER + WARM * (late - 1) if late else WARM
        self._most = MOST if late else None
        self._calls = self._tries = 0
        self._missed_by = 0  # two for each call that missed, less one for each that did not
        self._seen: list[list[int]] = []  # addresses of the calls before
        self._launch: Callable[[], None] | None = None
        self._moving: set[int] = set()  # operands that a graph has missed
        self._places: list[tuple[int, torch.Tensor]] = []  # of a graph: where operands are copied
        self._lying = self._lying_fresh = _Lying({}, [], [])  # and where the others lie
        self._stamp: object = None  # of the graph, and of results that are the same each time
        self._addresses: Addresses = set()
        self._results: list[Any] = []
        self._copied: dict[int, torch.Tensor] = {}  # those that get memory of their own
        self._copies, self._copy_in = Copies({}), CopyEach()
        self._same: list[Any] = []  # all, of which those are the same tensors each time
        self._out: list[StorageWeakRef] = []  # who has the results

    @property
    def is_graph(self) -> bool:
        """Whether calls are a graph's by now."""
        return self._launch is not None

    @property
    def copies(self) -> Copies:
        """Of results of memory of their own, which says how they lie in a call's blocks."""
        return self._copies

    def __call__(
        self, given: Sequence[torch.Tensor], known: object = None, in_blocks: bool = False
    ) -> Call:
        """What the function gives for operands.

        known : the stamp of a call before, where since then all operands that are not `fresh` are
            the same tensors, of the same memory in the same order; else None.
        in_blocks : whether the caller cuts results of memory of their own out of blocks, where they
            are copied in those.
        """
        if any(not ref.expired() for ref in self._out):
            return self._called_apart(self._prepare(given))
        # Hooks may keep some of what a caller has for its backward pass, and give up others.
        if self._token and _top_saved_tensors_default_hooks(True) is not None:
            return self._called_apart(self._prepare(given))
        if self._lane is None:
            return self._called(self._prepare(given))
        # One that is copied may have been another one all the time.
        is_known = known is not None and known is self._stamp
        if self._launch is not None and (self._lying_fresh if is_known else self._lying).lie(given):
            self._missed_by -= self._missed_by > 0
            return self._replayed(given, in_blocks)
        args = self._prepare(given)
        if self._launch is not None:
            self._missed(given, args)
            return self._called(args)
        self._calls += 1
        if self._calls > self._warm:
            self._capture(self._lane, given, args)
            if self.is_graph:
                return self._replayed(given)
        self._seen = [*self._seen[1 - WARM :], [x.data_ptr() for x in args]]
        return self._called(args)

    def _called_apart(self, args: Sequence[torch.Tensor]) -> Call:
        """Into memory that no other call has."""
        made = (self._plain if self._apart is None else self._apart)(self._taken(args))
        return Call(made, _addresses(args), args, None)

    def _called(self, args: Sequence[torch.Tensor]) -> Call:
        if self._apart is None:
            return self._called_apart(args)
        made = self._plain(self._taken(args))
        if not self._same:
            self._keep(made)
        results, token = self._lent(gathers=False)
        return Call(results, _addresses(args), args, token)

    def _taken(self, args: Sequence[Any]) -> Sequence[Any]:
        """Those that the function takes."""
        counts = self._written.counts
        return args[: len(args) - len(counts)] if counts else args

    def _missed(self, given: Sequence[torch.Tensor], args: Sequence[torch.Tensor]) -> None:
        """Decides what becomes of a graph whose operands are elsewhere."""
        elsewhere = [
            i for some in self._lying.fixed
            for i, at in zip(some.places, some.addresses, strict=True)
            if args[i].data_ptr() != at or _is_made(given[i], args[i])
        ]  # fmt: skip
        elsewhere += [i for i, x in self._lying.known if args[i].data_ptr() != x.data_ptr()]
        self._missed_by += 2
        size = sum(args[i].nbytes for i in elsewhere)
        if self._missed_by > 2 * MISSES and (self._most is None or size <= self._most):
            self._moving |= set(elsewhere)
            self._launch, self._seen, self._out = None, [], []  # captured anew by the next call
        elif self._missed_by > 2 * (MISSES + LATER):  # another forward pass's: from the beginning
            self._launch, self._seen, self._out = None, [], []
            self._calls = 0

    def _capture(
        self, lane: Lane, asked: Sequence[torch.Tensor], args: Sequence[torch.Tensor]
    ) -> None:
        """Makes the graph, if that can be."""
        calls = [*self._seen, [x.data_ptr() for x in args]]
        moving = {
            i for i, (x, *addresses) in enumerate(zip(args, *calls, strict=True))
            if i in self._moving or (x.numel() == 1 and i not in self._written.counts)
            or len(set(addresses)) > 1 or _is_made(asked[i], x)
        }  # fmt: skip
        size = sum(args[i].nbytes for i in moving)
        self._tries += 1
        try:
            if self._most is not None and size > self._most:
                raise ValueError(f"{size} bytes of operands lie elsewhere each time")
            fixed = [x.clone() if i in moving else x for i, x in enumerate(args)]
            given = [tvm_tensor(x) for x in self._taken(fixed)]

            def call() -> Any:
                return list(self._raw(*given))

            if self._apart is None:  # else it writes over its operands, and needs no memory
                lane.done(call)  # its results are given up: then there is memory for the next ones
            is_known = self._apart is not None and bool(self._same)
            work = self._work(asked, moving) if is_known else None
            results, self._launch = self._captured(lane, call, work)
        except Exception as error:  # of whatever kind: no work has been done
            why = " ".join(str(error).split())
        else:
            why = "its operands lie elsewhere again and again"
            # The memory of what stays where it is belongs to the caller, who passes it each time.
            last = [*self._last, *[False] * (len(args) - len(self._last))]
            self._places = [
                (i, x.movedim(-1, 1) if last[i] else x)
                for i, x in enumerate(fixed) if i in moving
            ]  # fmt: skip
            stay = [i for i in range(len(args)) if i not in moving]
            known = {i: asked[i] for i in stay if i in self._private}
            at = [(i, args[i], last[i]) for i in stay if i not in self._private]
            self._lying = _Lying(known, at, asked)
            self._lying_fresh = _Lying(
                {i: x for i, x in known.items() if i in self._fresh},
                [one for one in at if one[0] in self._fresh],
                asked,
            )
            self._stamp = object()
            self._addresses = _addresses([args[i] for i in stay])
            self._copy_in = CopyEach()
            if not is_known:
                self._keep(results)
                self._end_with(lane, self._work(asked, moving))
        if self._tries >= TRIES and self._launch is None:
            self._lane = None
            self._told(f"its calls are not one CUDA graph: {why:.300}")

    def _keep(self, results: Sequence[Any]) -> None:
        """Takes results for those of all calls from now on."""
        self._results = [*results]
        self._copied = {
            i: _torch(x) for i, x in enumerate(results)
            if i in self._own or (not self._token and math.prod(map(int, x.shape)) == 1)
        }  # fmt: skip
        self._copies = Copies(self._copied)
        self._same = [
            None if i in self._copied or not self._token else _torch(x)
            for i, x in enumerate(results)
        ]

    def _work(
        self, asked: Sequence[torch.Tensor], moving: Container[int]
    ) -> Callable[[], None] | None:
        """What PyTorch would be called for after each launch, for the graph to end with."""
        sources, targets, counts = self._written
        places = {*targets, *counts}
        inside = {asked[i].data_ptr() for i in places}
        self._writes = bool(places) and not (
            any(i in moving for i in places)
            # A result in their memory is the caller's as it was before.
            or any(_torch(x).data_ptr() in inside for x in self._results)
        )
        self._gathers = self._copies.joins
        if not self._writes and not self._gathers:
            return None
        to, grown = [asked[i] for i in targets], [asked[i] for i in counts]
        what = [_torch(self._results[i]) for i in sources]
        copy_each = CopyEach()

        def work() -> None:
            with torch.no_grad():
                if self._gathers:
                    self._copies.gather()
                if self._writes:
                    copy_each(to, what)
                    if grown:
                        torch._foreach_add_(grown, 1)

        self._copies.gather()  # its memory is taken, and its kernels are loaded
        return work

    def _captured(
        self, lane: Lane, call: Callable[[], Any], work: Callable[[], None] | None
    ) -> tuple[Any, Callable[[], None]]:
        if work is None:
            return lane.captured(call)
        try:
            return lane.captured(call, work)
        except Exception as error:  # of whatever kind: it is done after each launch then
            found = lane.captured(call)
            self._does_apart(error)
            return found

    def _end_with(self, lane: Lane, work: Callable[[], None] | None) -> None:
        if work is None:
            return
        assert self._launch is not None
        try:
            self._launch = lane.also(self._launch, work)
        except Exception as error:  # as above
            self._does_apart(error)

    def _does_apart(self, error: Exception) -> None:
        """Leaves `_work` to PyTorch."""
        self._writes = self._gathers = False
        self._told(f"what its graph gives is copied apart: {' '.join(str(error).split()):.300}")

    def _replayed(self, given: Sequence[torch.Tensor], in_blocks: bool = False) -> Call:
        assert self._launch is not None
        if self._places:
            self._copy_in([p for _, p in self._places], [given[i] for i, _ in self._places])
        self._launch()
        operands = given
        if self._token and self._places:
            operands = [*given]
            for i, x in self._places:
                operands[i] = x
        in_blocks = in_blocks and (self._gathers or not self._copies.joins)
        results, token = self._lent(self._gathers, in_blocks)
        blocks = self._copies.blocks() if in_blocks else None
        if self._writes:
            increment_versions(self._pick_written(given))
        stamp = self._stamp if token is not None and self._stands is None else None
        return Call(results, self._addresses, operands, token, self._writes, stamp, blocks)

    def _lent(
        self, gathers: bool, in_blocks: bool = False
    ) -> tuple[list[Any], torch.Tensor | None]:
        """(the results, their token) for a caller, when the work has been given to the device."""
        token, results = None, self._same.copy()
        if not self._token:
            for i, x in enumerate(self._results):
                if i not in self._copied:
                    results[i] = _torch(x)
            mine = [x for x in results if x is not None]
            self._out = [StorageWeakRef(x.untyped_storage()) for x in mine]
        else:
            if self._stands is None:
                token = torch.empty(1)
            else:
                token = results[self._stands] = _torch(self._results[self._stands])
            shares = len(self._copied) < len(results)
            self._out = [StorageWeakRef(token.untyped_storage())] if shares else []
        if not in_blocks:
            self._copies.into(results, gathers)
        return results, token


def _addresses(args: Sequence[torch.Tensor]) -> set[int]:
    return {x.data_ptr() for x in args if x.numel()}


def _is_made(given: torch.Tensor, dense: torch.Tensor) -> bool:
    """Whether an operand is a dense copy, which may lie in one place time after time by chance."""
    return given.data_ptr() != dense.data_ptr()


class _InOrder(NamedTuple):
    """Operands of one memory order: their places among all, and the addresses where they lie."""

    places: list[int]
    pick: Pick
    addresses: list[int]
    order: torch.memory_format

    def lie(self, given: Sequence[torch.Tensor]) -> bool:
        """Whether those given lie in that order; loops in C, since there are hundreds."""
        some = self.pick(given)
        if self.order is torch.contiguous_format:
            dense = all(map(torch.Tensor.is_contiguous, some))
        else:
            dense = all(x.is_contiguous(memory_format=self.order) for x in some)
        return dense and not any(map(torch.Tensor.is_neg, some))


class _Lying:
    """Where some operands lie.

    known : by their places, private ones.  others : (place, tensor, whether channels are last).
    given : all, which lie there and so.
    """

    def __init__(
        self, known: Mapping[int, torch.Tensor],
        others: Sequence[tuple[int, torch.Tensor, bool]], given: Sequence[torch.Tensor],
    ) -> None:  # fmt: skip
        self.known = [*known.items()]
        self._pick, self._tensors = picked([*known]), [*known.values()]
        orders: dict[Any, list[tuple[int, torch.Tensor]]] = {}
        for place, x, is_last in others:
            order = FORMATS[x.dim() - 2] if is_last else torch.contiguous_format
            orders.setdefault(order, []).append((place, x))
        self.fixed = [
            _InOrder(
                [i for i, _ in some], picked([i for i, _ in some]), [x.data_ptr() for _, x in some],
                order,
            )
            for order, some in orders.items()
        ]  # fmt: skip
        places = [place for place, _, _ in others]
        self._pick_others = picked(places)
        self._addresses = [x.data_ptr() for _, x, _ in others]
        self._look = look_at([given[place] for place in places])

    def lie(self, given: Sequence[torch.Tensor]) -> bool:
        """Whether they lie where the graph reads them, as it reads them."""
        if not all(map(is_, self._pick(given), self._tensors)):
            return False
        others = self._pick_others(given)
        if self._look(others):  # as they were is enough
            return True
        if [*map(torch.Tensor.data_ptr, others)] != self._addresses:
            return False
        return all(some.lie(given) for some in self.fixed)


def tvm_tensor(tensor: torch.Tensor) -> Any:
    import tvm

    return tvm.runtime.from_dlpack(tensor.detach())


def _torch(tensor: Any) -> torch.Tensor:
    """Another tensor of the same memory, with a storage of its own."""
    made: torch.Tensor = torch.utils.dlpack.from_dlpack(tensor.__dlpack__())
    return made
