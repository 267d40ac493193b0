"""Training batch normalization in a joint graph of AOTAutograd, with what follows it as one op.

The gradient of a normalization and an activation needs neither the normalized images nor a mask
where it knows gamma and beta: it computes the activation's operand again.  ATen's backward op is
not given beta, so the two become `relay_wgrad::norm_train` and `relay_wgrad::norm_train_backward`,
which are `relax.nn.batch_norm_train` and its gradient, while forward and backward are one graph.
With a residual that is added before a ReLU, the result tells where the gradient passes.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import library as torch_library

aten = torch.ops.aten
_library = torch_library.Library("relay_wgrad", "FRAGMENT")
_library.define(
    "norm_train(Tensor x, Tensor weight, Tensor bias, Tensor? residual, Tensor running_mean, Tensor"
    " running_var, float momentum, float epsilon, str activation)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_library.define(
    "norm_train_backward(Tensor grad, Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor"
    " rstd, Tensor? y, float epsilon, str activation) -> (Tensor, Tensor, Tensor, Tensor)"
)

KEPT = (aten.threshold_backward.default, aten.hardtanh_backward.default, aten.silu_backward.default)
"""Backward ops that are looked for here: whoever traces a joint graph does not decompose them."""


class _Activation(NamedTuple):
    """What may follow: its op, its backward op, the numbers that both have, and whether the
    backward op is given the result and not the operand."""

    op: Any
    backward: Any
    numbers: tuple[float, ...] = ()
    backward_numbers: tuple[float, ...] = ()
    by_result: bool = False


_ACTIVATIONS = {
    "relu": _Activation(aten.relu.default, KEPT[0], (), (0,), by_result=True),
    "relu6": _Activation(aten.hardtanh.default, KEPT[1], (0, 6), (0, 6)),
    "silu": _Activation(aten.silu.default, KEPT[2]),
}


# ---- the two ops, as PyTorch runs them -----------------------------------------------------------


def _act(z: torch.Tensor, activation: str) -> torch.Tensor:
    if not activation:
        return z
    found = _ACTIVATIONS[activation]
    result: torch.Tensor = found.op(z, *found.numbers)
    return result


def _norm(
    x: Any, weight: Any, bias: Any, residual: Any, mean: Any, var: Any, momentum: float,
    epsilon: float, activation: str,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    y, *rest = aten._native_batch_norm_legit_functional(
        x, weight, bias, mean, var, True, momentum, epsilon
    )
    return _act(y if residual is None else y + residual, activation), *rest


def _norm_backward(
    grad: Any, x: Any, weight: Any, bias: Any, mean: Any, rstd: Any, y: Any, epsilon: float,
    activation: str,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    column = (1, -1, *(1,) * (x.dim() - 2))
    g, found = grad, _ACTIVATIONS.get(activation)
    if found is not None:
        at = y
        if y is None:
            scale = (rstd * weight).view(column)
            z = ((x - mean.view(column)) * scale + bias.view(column)).to(x.dtype)
            at = _act(z, activation) if found.by_result else z
        g = found.backward(grad, at, *found.backward_numbers)
    made = aten.native_batch_norm_backward(
        g, x, weight, None, None, mean, rstd, True, epsilon, [True, True, True]
    )
    return (*made, grad.new_empty(0) if y is None else g)


def _norm_fake(x: Any, weight: Any, bias: Any, residual: Any, mean: Any, *_: Any) -> Any:
    return (torch.empty_like(x), *(torch.empty_like(weight) for _ in range(2)),
            *(torch.empty_like(mean) for _ in range(2)))  # fmt: skip


def _norm_backward_fake(grad: Any, x: Any, weight: Any, bias: Any, mean: Any, rstd: Any, y: Any,
                        *_: Any) -> Any:  # fmt: skip
    more = grad.new_empty(0) if y is None else torch.empty_like(x)
    return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias), more


for _name, _run, _fake in (
    ("norm_train", _norm, _norm_fake),
    ("norm_train_backward", _norm_backward, _norm_backward_fake),
):
    _library.impl(_name, _run, "CompositeExplicitAutograd")
    torch_library.register_fake(f"relay_wgrad::{_name}", _fake, lib=_library)


# ---- finding them --------------------------------------------------------------------------------


class _Norm(NamedTuple):
    """A normalization in a joint graph; `backward` is None where nobody wants its gradients."""

    forward: Any
    results: dict[int, Any]  # by the place in the tuple
    last: Any  # what the new op's first result stands for
    backward: Any
    incoming: Any  # the gradient of `last`
    passed: Any  # what the activation lets pass of it, where there is one
    residual: Any = None
    activation: str = ""


def whole_norms(graph: torch.fx.Graph) -> int:
    """Makes each training normalization of a joint graph, with the residual and the activation
    after it, and their backward ops one op forward and one backward; the number of them."""
    count = 0
    for node in list(graph.nodes):
        if node.target is aten._native_batch_norm_legit_functional.default:
            found = _found(node, {n: i for i, n in enumerate(graph.nodes)})
            if found is not None:
                _write(graph, found)
                count += 1
    if count:
        graph.eliminate_dead_code()
        graph.lint()
    return count


def _found(node: Any, place: dict[Any, int]) -> _Norm | None:
    x, weight, bias, _, _, training = node.args[:6]
    if training is not True or weight is None or bias is None:
        return None
    if _dtype(weight) is not torch.float32 or _dtype(bias) is not torch.float32:
        return None  # of a half module: the operator's vectors are float32
    if _dtype(x) not in (torch.float32, torch.float16, torch.bfloat16):
        return None
    parts = [user for user in node.users if user.target is operator.getitem]
    results = {int(user.args[1]): user for user in parts}
    if len(parts) < len(node.users) or len(results) < len(parts) or 0 not in results:
        return None
    backward = None
    if 1 in results:
        wanted = [
            user for user in results[1].users
            if user.target is aten.native_batch_norm_backward.default
            and user.args[1] is x and user.args[2] is weight
            and user.args[5] is results[1] and user.args[6] is results.get(2)
        ]  # fmt: skip
        if len(wanted) != len(results[1].users) or len(wanted) > 1:
            return None
        backward = wanted[0] if wanted else None
        if backward is not None and not (backward.args[7] is True and backward.args[9][0]):
            return None
    whole = _followed(node, results, backward, place)
    if whole is None:
        incoming = None if backward is None else backward.args[0]
        whole = _Norm(node, results, results[0], backward, incoming, None)
    types = {_dtype(n) for n in (x, whole.last, whole.incoming) if n is not None}
    return whole if len(types) == 1 else None


def _followed(
    node: Any, results: dict[int, Any], backward: Any, place: dict[Any, int]
) -> _Norm | None:
    """The normalization with an activation; None where none follows, or more than one op reads."""
    y = results[0]
    for name, activation in _ACTIVATIONS.items():
        total = residual = None
        reads = _users(y)
        if activation.by_result:
            added = [user for user in reads if user.target is aten.add.Tensor]
            if len(added) == len(reads) == 1 and _is_sum(added[0], y):
                total = added[0]
                residual = total.args[1] if total.args[0] is y else total.args[0]
        z = y if total is None else total
        acts = [user for user in _users(z) if user.target is activation.op
                and tuple(user.args[1:]) == activation.numbers]  # fmt: skip
        if len(acts) != 1:
            continue
        (act,) = acts
        if total is not None:
            # The op is written where the activation is: what else it makes may not be read before.
            others = [u for i, v in results.items() if i for u in v.users]
            if any(place[u] < place[act] for u in others):
                continue
        at = act if activation.by_result else z
        backs = [user for user in _users(at) if user.target is activation.backward
                 and _base(user.args[1]) is at
                 and tuple(user.args[2:]) == activation.backward_numbers]  # fmt: skip
        inner = {act} if activation.by_result else {act, *backs}
        if set(_users(z)) != inner:
            continue
        if backward is None:
            if backs and residual is None:
                continue  # a gradient goes elsewhere, by an operand that would be no more
            return _Norm(node, results, act, None, None, None, residual, name)
        passed = backward.args[0]
        if len(backs) != 1 or backs[0] is not passed:
            continue
        if residual is None and set(passed.users) != {backward}:
            continue
        return _Norm(node, results, act, backward, passed.args[0], passed, residual, name)
    return None


def _is_sum(node: Any, y: Any) -> bool:
    """Whether it adds another tensor of y's shape and type to it."""
    a, b = node.args[:2]
    other = b if a is y else a
    if node.kwargs or len(node.args) != 2 or a is b or not isinstance(other, torch.fx.Node):
        return False
    one, two, made = (n.meta["val"] for n in (y, other, node))
    return bool(one.shape == two.shape and one.dtype == two.dtype == made.dtype)


_SAME = (aten.detach.default, aten.alias.default)


def _base(node: Any) -> Any:
    while node.target in _SAME:
        node = node.args[0]
    return node


def _users(node: Any) -> list[Any]:
    """Who reads it, also by another name."""

    def walk(of: Any) -> Iterator[Any]:
        for user in of.users:
            if user.target in _SAME:
                yield from walk(user)
            else:
                yield user

    return list(dict.fromkeys(walk(node)))


def _dtype(node: Any) -> Any:
    return node.meta["val"].dtype


# ---- writing -------------------------------------------------------------------------------------


def _write(graph: torch.fx.Graph, norm: _Norm) -> None:
    node = norm.forward
    x, weight, bias, mean, var, _, momentum, epsilon = node.args
    at = norm.last if norm.residual is not None else node
    _, made = _call(
        graph, at, torch.ops.relay_wgrad.norm_train.default,
        (x, weight, bias, norm.residual, mean, var, momentum, epsilon, norm.activation),
    )  # fmt: skip
    old = {**norm.results, 0: norm.last}
    for index, part in old.items():
        part.replace_all_uses_with(made[index])
    if norm.backward is None:
        return
    by_result = norm.residual is not None
    # The residual's gradient may be read before this normalization's others.
    before = norm.backward if norm.passed is None else norm.passed
    grads, parts = _call(
        graph, before, torch.ops.relay_wgrad.norm_train_backward.default,
        (norm.incoming, x, weight, bias, made[1], made[2], made[0] if by_result else None, epsilon,
         norm.activation),
    )  # fmt: skip
    for user in list(norm.backward.users):
        user.replace_all_uses_with(parts[int(user.args[1])])
    if by_result:
        norm.passed.replace_all_uses_with(parts[3], delete_user_cb=lambda u: u is not grads)


def _call(graph: torch.fx.Graph, before: Any, op: Any, args: Any) -> tuple[Any, list[Any]]:
    """(a call, its results) with what PyTorch says of them."""
    with graph.inserting_before(before):
        call = graph.call_function(op, args)
        values = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
        with values[0].fake_mode:
            said = op(*values)
        call.meta = {**before.meta, "val": said}
        call.meta.pop("tensor_meta", None)
        parts = []
        for i, value in enumerate(said):
            part = graph.call_function(operator.getitem, (call, i))
            part.meta = {**before.meta, "val": value}
            part.meta.pop("tensor_meta", None)
            parts.append(part)
    return call, parts
