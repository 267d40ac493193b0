"""Factors of channels into the weights of convolutions: forward and backward.

Forward, `multiply(x, s)` gives its factor to the convolutions that take the product; backward, to
the convolution that it multiplies.  On the way it passes `nn.relu`, if it is positive, and sums,
whose other operand is divided or multiplied by it.

Both ask first: a factor moves only where all that it must pass takes it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from ..ast import Call, Expr, Function, children, operator_of, post_order
from ..iterative_walks import order
from ..make import call
from ..rewrite import with_children
from .scale_axis import (
    CONVOLUTIONS,
    Wish,
    broadcast_factor,
    channels,
    common_wish,
    fits,
    is_factor,
    squeezed_factor,
    tensor,
    weighted,
)
from .user_hooks import attributes, kernels

_CONSUMERS = (*CONVOLUTIONS, "nn.dense")
_RELUS = ("nn.relu", "nn.leaky_relu")
_SUMS = ("add", "subtract")
_PAIRS = ((0, 1), (1, 0))  # which operand of a product is the tensor, and which the factor


# ---- forward -------------------------------------------------------------------------------------


def forward_fold_scale_axis(function: Function) -> Function:
    """The function with factors of a convolution's data in its weight.  Needs types."""
    return _Forward(function).folded()


class _Forward:
    """`wishes`: what factor all of a value's consumers take; `factors`: those taken out of one."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.new: dict[Expr, Expr] = dict(kernels(function))
        self.nodes = list(post_order(function, lambda n: n not in self.new))
        self.wishes: dict[Expr, Wish | None] = {}
        self.factors: dict[Expr, Expr] = {}

    def folded(self) -> Function:
        for node in reversed(self.nodes):
            asked = _scaled_argument(node, self.wishes.get(node))
            for index, child in enumerate(children(node), -1):  # the first is a call's operator
                wish = asked[1] if asked is not None and index == asked[0] else None
                known = child in self.wishes
                self.wishes[child] = common_wish(self.wishes[child], wish) if known else wish
        for node in self.nodes:
            if node not in self.new and not self._taken_out(node):
                args = node.args if isinstance(node, Call) else ()
                carried = next((arg for arg in args if arg in self.factors), None)
                self.new[node] = (
                    with_children(node, self.new)
                    if carried is None
                    else self._passed(node, carried)
                )
        out = self.new[self.function]
        assert isinstance(out, Function)
        return out

    def _taken_out(self, node: Expr) -> bool:
        """Whether a product is its tensor alone now, with a factor that its consumers take."""
        wish = self.wishes.get(node)
        if wish is None or operator_of(node) != "multiply":
            return False
        assert isinstance(node, Call)
        for data, factor in _PAIRS:
            x, s = node.args[data], node.args[factor]
            if is_factor(x, s, wish):
                self.factors[node] = squeezed_factor(self.new[s], s, x, wish.axes)
                self.new[node] = self.new[x]
                return True
        return False

    def _passed(self, node: Expr, arg: Expr) -> Expr:
        """A call of which an argument stands without its factor."""
        assert isinstance(node, Call)
        factor = self.factors[arg]
        if operator_of(node) in _CONSUMERS:
            found = channels(node, of_result=False)
            assert found is not None
            return weighted(node, self.new, factor, found)
        self.factors[node] = factor
        wish = self.wishes[node]
        assert wish is not None
        if operator_of(node) in _RELUS:
            return with_children(node, self.new)
        by = broadcast_factor(factor, arg, wish.axes)
        args = (self.new[a] if a is arg else call("divide", self.new[a], by) for a in node.args)
        return replace(node, args=tuple(args))


def _scaled_argument(node: Expr, wish: Wish | None) -> tuple[int, Wish] | None:
    """The argument of a call that may have a factor, and which; None if none may."""
    if not isinstance(node, Call):
        return None
    name = operator_of(node)
    if name in _CONSUMERS:
        found = channels(node, of_result=False)
        return None if found is None else (0, Wish(found.axes))
    if wish is not None and name in _RELUS:
        return 0, replace(wish, positive=True)
    if wish is not None and name in _SUMS:
        for data, other in _PAIRS:
            if fits(node.args[data], node.args[other], wish.axes):
                return data, replace(wish, divides=True)
    return None


# ---- backward ------------------------------------------------------------------------------------


def backward_fold_scale_axis(function: Function) -> Function:
    """The function with factors of a convolution's result in its weight.  Needs types."""
    return _Backward(function).folded()


@dataclass(frozen=True)
class _Given:
    """A factor on its way: the product that has it, which operand it is, and its axes."""

    product: Call
    index: int
    axes: tuple[int, ...]

    @property
    def source(self) -> Expr:
        return self.product.args[self.index]


class _Backward:
    """`offers`: what factor a value's own operands take; `given`: those that values get."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.new: dict[Expr, Expr] = dict(kernels(function))
        self.nodes = list(post_order(function, lambda n: n not in self.new))
        self.uses = Counter(child for node in self.nodes for child in children(node))
        self.offers: dict[Expr, Wish] = {}
        self.given: dict[Expr, _Given] = {}
        self.factors: dict[_Given, Expr] = {}

    def folded(self) -> Function:
        for node in self.nodes:
            # A value that others need too must stay as it is.
            offer = self._offer(node) if self.uses[node] == 1 else None
            if offer is not None:
                self.offers[node] = offer
        for node in reversed(self.nodes):
            if operator_of(node) == "multiply":
                self._give(node)
            elif node in self.given and operator_of(node) not in _CONSUMERS:
                for arg in self._takers(node):
                    self.given[arg] = self.given[node]
        for node in order(self.function, self._below):
            if node not in self.new:
                self.new[node] = self._rebuilt(node)
        out = self.new[self.function]
        assert isinstance(out, Function)
        return out

    def _offer(self, node: Expr) -> Wish | None:
        if not isinstance(node, Call):
            return None
        name = operator_of(node)
        if name in _CONSUMERS:
            found = channels(node, of_result=True)
            return None if found is None else Wish(found.axes)
        offers = [self.offers.get(arg) for arg in node.args]
        if name in _RELUS and offers[0] is not None:
            return replace(offers[0], positive=True)
        if name == "nn.bias_add" and offers[0] is not None:
            ty = tensor(node.args[0])
            axis = int(attributes(node, name).axis)
            is_of = ty is not None and offers[0].axes == (axis % len(ty.shape),)
            return offers[0] if is_of else None
        if name in _SUMS:
            if None not in offers:
                types = [tensor(arg) for arg in node.args]
                return common_wish(*offers) if types[0] == types[1] else None
            for data, other in _PAIRS:
                offer = offers[data]
                if offer is not None and fits(node.args[data], node.args[other], offer.axes):
                    return offer
        return None

    def _takers(self, node: Expr) -> list[Expr]:
        return [arg for arg in children(node) if arg in self.offers]

    def _give(self, node: Expr) -> None:
        """A product's factor to its tensor, if that takes it."""
        assert isinstance(node, Call)
        for data, factor in _PAIRS:
            offer = self.offers.get(node.args[data])
            if offer is not None and is_factor(node.args[data], node.args[factor], offer):
                given = _Given(node, factor, offer.axes)
                self.given[node] = self.given[node.args[data]] = given
                return

    def _below(self, node: Expr) -> tuple[Expr, ...]:
        if node in self.new:
            return ()
        if node in self.given and operator_of(node) in _CONSUMERS:
            return (*children(node), self.given[node].source)
        return children(node)

    def _factor(self, given: _Given) -> Expr:
        if given not in self.factors:
            x = given.product.args[1 - given.index]
            new, source = self.new[given.source], given.source
            self.factors[given] = squeezed_factor(new, source, x, given.axes)
        return self.factors[given]

    def _rebuilt(self, node: Expr) -> Expr:
        given, name = self.given.get(node), operator_of(node)
        if given is None:
            return with_children(node, self.new)
        assert isinstance(node, Call)
        if name == "multiply":
            return self.new[node.args[1 - given.index]]
        if name in _CONSUMERS:
            found = channels(node, of_result=True)
            assert found is not None
            return weighted(node, self.new, self._factor(given), found)
        takers = self._takers(node)
        args = []
        for arg in node.args:
            made = self.new[arg]
            if arg not in takers:
                by = self._factor(given)
                by = by if name == "nn.bias_add" else broadcast_factor(by, node, given.axes)
                made = call("multiply", made, by)
            args.append(made)
        return replace(node, args=tuple(args))
