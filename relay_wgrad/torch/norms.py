"""Training normalizations in graphs of PyTorch's, with what follows each as one op.

The gradient of a normalization and an activation needs neither the normalized images nor a mask
where it knows gamma and beta: it computes the activation's operand again.  ATen's backward op is
not given beta, so the two become `relay_wgrad::norm_train` and `relay_wgrad::norm_train_backward`,
which are `relax.nn.batch_norm_train`, `relax.nn.group_norm_train` and their gradients, while
forward and backward are one graph.  With a residual that is added before an activation, the result
tells where the gradient passes.

Group and instance normalization are taken out of Dynamo's graph already: in AOTAutograd's they are
a batch's of views of contiguous copies, and what PyTorch's decompositions make of groups.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import library as torch_library
from torch.nn import functional as F

from ..ops.activations import ACTIVATIONS
from .whole import Whole, Writer

aten = torch.ops.aten
_library = torch_library.Library("relay_wgrad", "FRAGMENT")
_library.define(
    "norm_train(Tensor x, Tensor? weight, Tensor? bias, Tensor? residual, Tensor? running_mean,"
    " Tensor? running_var, int groups, float momentum, float epsilon, str activation, float alpha)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_library.define(
    "norm_train_backward(Tensor grad, Tensor x, Tensor? weight, Tensor? bias, Tensor mean, Tensor"
    " rstd, Tensor? y, int groups, float epsilon, str activation, float alpha)"
    " -> (Tensor, Tensor, Tensor, Tensor)"
)


class _Activation(NamedTuple):
    """What may follow: its op, its backward op, settings that each has for it, the name of its
    parameter in both, and that of the operand of the backward op, which may be the result."""

    op: Any
    backward: Any
    settings: Mapping[str, Any] = {}
    backward_settings: Mapping[str, Any] = {}
    parameter: str = ""
    operand: str = "self"


_SIX = {"min_val": 0, "max_val": 6}
_UNSCALED = {"scale": 1, "input_scale": 1}
_ACTIVATIONS = {
    "relu": _Activation(
        aten.relu.default, aten.threshold_backward.default, backward_settings={"threshold": 0}
    ),
    "relu6": _Activation(aten.hardtanh.default, aten.hardtanh_backward.default, _SIX, _SIX),
    "leaky_relu": _Activation(
        aten.leaky_relu.default, aten.leaky_relu_backward.default, parameter="negative_slope"
    ),
    "silu": _Activation(aten.silu.default, aten.silu_backward.default),
    **{
        name: _Activation(
            aten.gelu.default, aten.gelu_backward.default, {"approximate": how},
            {"approximate": how},
        )
        for name, how in (("gelu", "none"), ("gelu_tanh", "tanh"))
    },
    "hardswish": _Activation(aten.hardswish.default, aten.hardswish_backward.default),
    "elu": _Activation(
        aten.elu.default, aten.elu_backward.default, _UNSCALED, _UNSCALED, "alpha", "self_or_result"
    ),
}  # fmt: skip

KEPT = tuple(dict.fromkeys(a.backward for a in _ACTIVATIONS.values()))
"""Backward ops that are looked for here: whoever traces a joint graph does not decompose them."""


# ---- the two ops, as PyTorch runs them -----------------------------------------------------------


def _act(z: torch.Tensor, activation: str, alpha: float) -> torch.Tensor:
    if not activation:
        return z
    found = _ACTIVATIONS[activation]
    more = {found.parameter: alpha} if found.parameter else {}
    result: torch.Tensor = found.op(z, **found.settings, **more)
    return result


def _act_backward(grad: Any, z: Any, y: Any, activation: str, alpha: float) -> Any:
    """By the operand, or where that is None by the result."""
    if not activation:
        return grad
    found = _ACTIVATIONS[activation]
    settings = dict(found.backward_settings)
    if found.parameter:
        settings[found.parameter] = alpha
    for flag in ("self_is_result", "is_result"):
        if any(a.name == flag for a in found.backward._schema.arguments):
            settings[flag] = z is None
    return found.backward(grad, **{found.operand: y if z is None else z}, **settings)


def _in_groups(x: torch.Tensor, groups: int) -> tuple[torch.Tensor, tuple[int, int, int, int]]:
    """x in the dtype of the sums, and how ATen is told what is normalized."""
    n, c = x.shape[:2]
    wide = x if x.dtype is torch.float64 else x.float()
    return wide.contiguous(), (n, c, math.prod(x.shape[2:]), groups)


def _like(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A value in the dtype and the memory order of x."""
    return torch.empty_like(x).copy_(value)


def _norm(
    x: Any, weight: Any, bias: Any, residual: Any, mean: Any, var: Any, groups: int,
    momentum: float, epsilon: float, activation: str, alpha: float,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    rest: list[torch.Tensor]
    if groups:
        wide, sizes = _in_groups(x, groups)
        y, *rest = aten.native_group_norm(wide, weight, bias, *sizes, epsilon)
        y, rest = _like(x, y), [*rest, *(v.new_empty(0) for v in rest)]
    else:
        y, *rest = aten._native_batch_norm_legit_functional(
            x, weight, bias, mean, var, True, momentum, epsilon
        )
    return _act(y if residual is None else y + residual, activation, alpha), *rest


def _norm_backward(
    grad: Any, x: Any, weight: Any, bias: Any, mean: Any, rstd: Any, y: Any, groups: int,
    epsilon: float, activation: str, alpha: float,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    z = None
    if y is None and activation:
        shown = [mean, rstd]
        if groups:
            shown = [v.repeat_interleave(x.shape[1] // groups, 1) for v in shown]
        columns = [
            None if v is None else v.reshape(-1, x.shape[1], *(1,) * (x.dim() - 2))
            for v in (*shown, weight, bias)
        ]
        center, scale, gamma, beta = columns
        z = (x - center) * (scale if gamma is None else scale * gamma)
        z = (z if beta is None else z + beta).to(x.dtype)
    g = _act_backward(grad, z, y, activation, alpha)
    more = grad.new_empty(0) if y is None else g
    if not groups:
        made = aten.native_batch_norm_backward(
            g, x, weight, None, None, mean, rstd, True, epsilon, [True, True, True]
        )
        return (*made, more)
    wide, sizes = _in_groups(x, groups)
    wanted = [v is not None for v in (x, weight, bias)]
    dx, *sums = aten.native_group_norm_backward(
        g.to(wide.dtype).contiguous(), wide, mean, rstd, weight, *sizes, wanted
    )
    # Of parameters that are not there nobody reads them.
    sums = [_wide_like(x, x.shape[1:2]) if v is None else v for v in sums]
    return (_like(x, dx), *sums, more)


def _wide_like(x: Any, shape: Any) -> torch.Tensor:
    result: torch.Tensor = x.new_empty(
        shape, dtype=torch.float64 if x.dtype is torch.float64 else torch.float32
    )
    return result


def _norm_fake(x: Any, weight: Any, bias: Any, residual: Any, mean: Any, var: Any, groups: int,
               *_: Any) -> Any:  # fmt: skip
    if groups:
        shapes: tuple[Any, ...] = ((x.shape[0], groups),) * 2 + ((0,),) * 2
        return (torch.empty_like(x), *(_wide_like(x, shape) for shape in shapes))
    return (torch.empty_like(x), *(torch.empty_like(weight) for _ in range(2)),
            *(torch.empty_like(mean) for _ in range(2)))  # fmt: skip


def _norm_backward_fake(grad: Any, x: Any, weight: Any, bias: Any, mean: Any, rstd: Any, y: Any,
                        *_: Any) -> Any:  # fmt: skip
    more = grad.new_empty(0) if y is None else torch.empty_like(x)
    sums = [_wide_like(x, x.shape[1:2]) if v is None else torch.empty_like(v)
            for v in (weight, bias)]  # fmt: skip
    return torch.empty_like(x), *sums, more


for _name, _run, _fake in (
    ("norm_train", _norm, _norm_fake),
    ("norm_train_backward", _norm_backward, _norm_backward_fake),
):
    _library.impl(_name, _run, "CompositeExplicitAutograd")
    torch_library.register_fake(f"relay_wgrad::{_name}", _fake, lib=_library)


# ---- groups, in Dynamo's graph -------------------------------------------------------------------

_WIDE = (torch.float32,)  # of parameters
_TAKEN = (torch.float32, torch.float16, torch.bfloat16)  # of images


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias, _, _, _, groups, _, epsilon, activation, alpha = inputs
    ctx.save_for_backward(x, weight, bias, *output[1:3])
    ctx.rest = (groups, epsilon, activation, alpha)
    ctx.mark_non_differentiable(*output[1:])


def _gradient(ctx: Any, grad: Any, *_: Any) -> tuple[Any, ...]:
    x, weight, bias, mean, rstd = ctx.saved_tensors
    dx, dweight, dbias, _ = torch.ops.relay_wgrad.norm_train_backward(
        grad, x, weight, bias, mean, rstd, None, *ctx.rest
    )
    sums = (None if of is None else d for of, d in ((weight, dweight), (bias, dbias)))
    return (dx, *sums, *(None,) * 8)


# Only what is written below is ever differentiated: groups without residual and activation.
torch_library.register_autograd(
    "relay_wgrad::norm_train", _gradient, setup_context=_keep, lib=_library
)


def _groups(given: Mapping[str, Any], said: Any, made: Any) -> Whole | str:
    weight, bias = (given[name] for name in ("weight", "bias"))
    parameters = [n.meta.get("example_value") for n in (weight, bias) if n is not None]
    if not all(isinstance(v, torch.Tensor) for v in (said, made, *parameters)):
        return "PyTorch says nothing of its operands"
    groups = given.get("num_groups")
    if groups is None:
        groups = said.shape[1]
        if given["running_mean"] is not None or not given["use_input_stats"]:
            return "it has running statistics"
    if said.dim() < 3 or not isinstance(groups, int) or not isinstance(said.shape[1], int):
        return f"x of shape {list(said.shape)} has no images, channels and pixels that are known"
    if made.dtype not in _TAKEN or any(v.dtype not in _WIDE for v in parameters):
        types = ", ".join(str(v.dtype) for v in (made, *parameters))
        return f"its result and parameters are {types}"
    rest = (weight, bias, None, None, None, groups, 0.0, float(given["eps"]), "", 0.0)
    return Whole(torch.ops.relay_wgrad.norm_train.default, rest, is_first=True)


GROUPS: dict[Any, Writer] = {F.group_norm: _groups, F.instance_norm: _groups}


# ---- finding them --------------------------------------------------------------------------------


class _Norm(NamedTuple):
    """A normalization in a joint graph; `backward` is None where nobody wants its gradients."""

    forward: Any
    operands: tuple[Any, ...]  # x, weight, bias
    running: tuple[Any, Any]
    groups: int
    momentum: float
    epsilon: float
    results: dict[int, Any]  # by the place in the tuple
    last: Any = None  # what the new op's first result stands for
    backward: Any = None
    incoming: Any = None  # the gradient of `last`
    passed: Any = None  # what the activation lets pass of it, where there is one
    residual: Any = None
    activation: str = ""
    alpha: float = 0.0

    def is_gradient(self, user: Any) -> bool:
        """Whether it is the backward op of this."""
        x, weight, _ = self.operands
        places = (4, 5) if self.groups else (5, 6)
        own = torch.ops.relay_wgrad.norm_train_backward.default
        op = own if self.groups else aten.native_batch_norm_backward.default
        return user.target is op and (
            user.args[1] is x
            and user.args[2] is weight
            and all(user.args[at] is self.results.get(i) for i, at in enumerate(places, 1))
        )


def whole_norms(graph: torch.fx.Graph) -> int:
    """Makes each training normalization of a joint graph, with the residual and the activation
    after it, and their backward ops one op forward and one backward; the number of them."""
    count = 0
    for node in list(graph.nodes):
        norm = _read(node)
        found = norm and _found(norm, {n: i for i, n in enumerate(graph.nodes)})
        if found is not None:
            _write(graph, found)
            count += 1
    if count:
        graph.eliminate_dead_code()
        graph.lint()
    return count


def _read(node: Any) -> _Norm | None:
    """The normalization that a node is, with its results, which are read one by one."""
    if node.target is torch.ops.relay_wgrad.norm_train.default:
        *operands, _, mean, var, groups, momentum, epsilon, activation, _ = node.args
        if not groups or activation:
            return None  # written here
    elif node.target is aten._native_batch_norm_legit_functional.default:
        *operands, mean, var, training, momentum, epsilon = node.args
        groups = 0
        if training is not True or None in operands:
            return None
    else:
        return None
    x, *parameters = operands
    if any(_dtype(v) not in _WIDE for v in parameters if v is not None):
        return None  # of a half module: the operator's vectors are float32
    if _dtype(x) not in _TAKEN:
        return None
    parts = [user for user in node.users if user.target is operator.getitem]
    results = {int(user.args[1]): user for user in parts}
    if len(parts) < len(node.users) or len(results) < len(parts) or 0 not in results:
        return None
    return _Norm(node, tuple(operands), (mean, var), groups, momentum, epsilon, results)


def _found(norm: _Norm, place: dict[Any, int]) -> _Norm | None:
    """The normalization with its backward op and what follows."""
    results, backward = norm.results, None
    if 1 in results:
        wanted = [user for user in results[1].users if norm.is_gradient(user)]
        if len(wanted) != len(results[1].users) or len(wanted) > 1:
            return None
        backward = wanted[0] if wanted else None
        given = () if backward is None or norm.groups else backward.args
        if given and not (given[7] is True and given[9][0]):
            return None
    norm = norm._replace(backward=backward)
    whole = _followed(norm, place)
    if whole is None:
        incoming = None if backward is None else backward.args[0]
        whole = norm._replace(last=results[0], incoming=incoming)
    types = {_dtype(n) for n in (norm.operands[0], whole.last, whole.incoming) if n is not None}
    return whole if len(types) == 1 else None


def _followed(norm: _Norm, place: dict[Any, int]) -> _Norm | None:
    """The normalization with an activation; None where none follows, or more than one op reads."""
    results, backward = norm.results, norm.backward
    y = results[0]
    for name, activation in _ACTIVATIONS.items():
        total = residual = None
        reads = _users(y)
        if ACTIVATIONS[name].by_result:
            added = [user for user in reads if user.target is aten.add.Tensor]
            if len(added) == len(reads) == 1 and _is_sum(added[0], y):
                total = added[0]
                residual = total.args[1] if total.args[0] is y else total.args[0]
        z = y if total is None else total
        acts = [u for u in _users(z) if _parameter(u, activation) is not None]
        if len(acts) != 1:
            continue
        (act,) = acts
        alpha = _parameter(act, activation)
        if total is not None:
            # The op is written where the activation is: what else it makes may not be read before.
            others = [u for i, v in results.items() if i for u in v.users]
            if any(place[u] < place[act] for u in others):
                continue
        # The operand is computed again, or the result tells: either may be what it is given.
        backs = {at: [u for u in _users(at) if _passes(u, at, act, activation, alpha)]
                 for at in (z, act)}  # fmt: skip
        if set(_users(z)) != {act, *backs[z]}:
            continue
        either = [*backs[z], *backs[act]]
        found = norm._replace(last=act, residual=residual, activation=name, alpha=alpha or 0.0)
        if backward is None:
            if either and (residual is None or backs[z]):
                continue  # a gradient goes elsewhere, by an operand that would be no more
            return found
        passed = backward.args[0]
        if len(either) != 1 or either[0] is not passed:
            continue
        if residual is None and set(passed.users) != {backward}:
            continue
        return found._replace(incoming=passed.args[0], passed=passed)
    return None


def _parameter(node: Any, activation: _Activation) -> float | None:
    """The parameter with which a node is an activation, 0 of one without; None where it is none,
    or has one that the operators do not take."""
    if node.target is not activation.op:
        return None
    given = _arguments(node)
    if any(given[name] != value for name, value in activation.settings.items()):
        return None
    alpha = float(given[activation.parameter]) if activation.parameter else 0.0
    return alpha if 0 <= alpha < math.inf else None


def _passes(node: Any, at: Any, act: Any, activation: _Activation, alpha: float | None) -> bool:
    """Whether a node is the activation's backward op, with `at`, its operand or its result, as
    what tells the slope."""
    if node.target is not activation.backward:
        return False
    given = _arguments(node)
    by_result = given.get("self_is_result", given.get("is_result", at is act))
    return bool(
        _base(given[activation.operand]) is at
        and bool(by_result) is (at is act)
        and all(given[name] == value for name, value in activation.backward_settings.items())
        and (not activation.parameter or given[activation.parameter] == alpha)
    )


def _arguments(node: Any) -> dict[str, Any]:
    """What an op is given, by name, with defaults."""
    schema = node.target._schema.arguments
    made = {a.name: a.default_value for a in schema if a.has_default_value()}
    made |= zip((a.name for a in schema), node.args, strict=False)
    return made | dict(node.kwargs)


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
    at = norm.last if norm.residual is not None else norm.forward
    tail = (norm.epsilon, norm.activation, norm.alpha)
    _, made = _call(
        graph, at, torch.ops.relay_wgrad.norm_train.default,
        (*norm.operands, norm.residual, *norm.running, norm.groups, norm.momentum, *tail),
    )  # fmt: skip
    old = {**norm.results, 0: norm.last}
    for index, part in old.items():
        part.replace_all_uses_with(made[index])
    if norm.backward is None:
        return
    by_result = norm.residual is not None
    # The residual's gradient may be read before this normalization's others.
    before = norm.backward if norm.passed is None else norm.passed
    y = made[0] if by_result else None
    grads, parts = _call(
        graph, before, torch.ops.relay_wgrad.norm_train_backward.default,
        (norm.incoming, *norm.operands, made[1], made[2], y, norm.groups, *tail),
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
