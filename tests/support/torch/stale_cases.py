"""What a module can hold, and how it changes after a step of it was compiled.

A case makes a layer from 6 to 6 features, and has changes by name, each done alike to the module
and to its twin.  Global variables and class attributes are set to a value, so that it does not
matter how often.
"""

from __future__ import annotations

import functools
import operator
from collections import OrderedDict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from . import holders
from .holders import (
    WIDTH,
    Branches,
    Buffered,
    Caller,
    Counts,
    Globals,
    Holds,
    Kind,
    Settings,
    Slotted,
    Teacher,
    Unread,
    closure,
    twice,
)  # fmt: skip

Change = Callable[[Any], Any]


class Case(NamedTuple):
    """make : the layer.  changes : by name, of the layer.  undo : puts back what is global."""

    make: Callable[[], nn.Module]
    changes: dict[str, Change]
    undo: Callable[[], Any] = lambda: None


def _do(*names: str) -> Change:
    """Statements about `m`, the layer."""

    def change(layer: Any) -> None:
        for text in names:
            torch.manual_seed(1)
            exec(text, {**vars(holders), "holders": holders, "m": layer})

    return change


def _with(make: Callable[[], nn.Module], *changes: str, undo: Any = lambda: None) -> Case:
    return Case(make, {text: _do(text) for text in changes}, undo)


def _norm_and_conv() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (2, 3, 1)), nn.Conv2d(2, 2, (3, 1), padding=(1, 0)), nn.BatchNorm2d(2),
        nn.LeakyReLU(), nn.Flatten(),
    )  # fmt: skip


def _pools() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.AvgPool1d(3, 1, 1), nn.Softshrink(0.1), nn.Flatten(),
        nn.LayerNorm(6), nn.ELU(), nn.Dropout(0.0), nn.Softmax(1),
    )  # fmt: skip


def _restore() -> None:
    holders.SCALE = 1.5
    holders.TABLE["a"][1] = 2.0
    holders.Globals.factor, holders.Constants.scale = 1.5, 1.25
    holders.Holds.forward = _FORWARD  # type: ignore[method-assign]


_FORWARD = holders.Holds.forward


def _linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def _two() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


CASES: dict[str, Case] = {
    "float": _with(
        lambda: Holds(1.5), "m.value = 0.1", "m.value = 1.5", "m.value = 2", "m.value = -0.0"
    ),
    "written directly": _with(
        lambda: Holds(1.5),
        "m.__dict__['value'] = 2.5",
        "vars(m).update(value=3.5)",
        "m.__dict__.pop('value'); object.__setattr__(m, 'value', 0.5)",
        "m.__dict__ = {**m.__dict__, 'value': 4.5}",
        "m.__dict__['value'] = 5.5",
    ),
    "int": _with(lambda: Holds(2), "m.value = 3", "m.value = 2.5", "m.value = True"),
    "flag": _with(
        Branches,
        "m.flag = False",
        "m.mode = 'tanh'",
        "m.count = 3",
        "m.none = 0.5",
        "m.count = True",
    ),
    "tuple": _with(lambda: Holds((1.5, 2.0), sum), "m.value = (1.5, 3.0)", "m.value = (1.5, 2.0)"),
    "list": _with(
        lambda: Holds([1.5, 2.0], sum),
        "m.value[0] = 4.0",
        "m.value.append(1.0)",
        "m.value = [3.5]",
        "m.value.reverse()",
    ),
    "dict": _with(
        lambda: Holds({"a": 1.5, "b": {"c": [2.0]}}, lambda v: v["a"] * v["b"]["c"][0]),
        "m.value['a'] = 3.0",
        "m.value['b']['c'][0] = 5.0",
        "m.value['b'] = {'c': [1.0]}",
        "m.value.update(a=0.5)",
    ),
    "deque": _with(
        lambda: Holds(deque([1.5, 2.0]), sum), "m.value.appendleft(1.0)", "m.value.rotate(1)"
    ),
    "set": _with(lambda: Holds({1.5, 2.0}, sum), "m.value.add(4.0)", "m.value.discard(2.0)"),
    "ordered": _with(
        lambda: Holds(OrderedDict(a=1.5), lambda v: next(iter(v.values()))),
        "m.value['a'] = 2.0",
        "m.value.update(b=1.0); m.value.move_to_end('a')",
    ),
    "tensor": _with(
        lambda: Holds(torch.full((WIDTH,), 1.5).double()),
        "m.value.fill_(3)",
        "m.value = torch.full((6,), 2.0).double()",
        "m.value.data = torch.full((6,), 4.0).double()",
        "m.value.data.mul_(2)",
        "m.value[1] = 9",
        "m.value = m.value.clone()",
        "m.value = 2.5",
        "m.value.numpy()[2] = 5",
    ),
    "large tensor": _with(
        lambda: Holds(torch.ones(80, WIDTH).double(), lambda v: v.sum(0)),
        "m.value.fill_(3)",
        "m.value = m.value * 2",
        "m.value[3:5] = 1.5",
        "m.value.data = m.value * 3",
    ),
    "tensors": _with(
        lambda: Holds(
            [torch.ones(WIDTH).double(), {"b": torch.ones(1).double()}], lambda v: v[0] * v[1]["b"]
        ),
        "m.value[0].mul_(3)",
        "m.value[1]['b'].add_(2)",
        "m.value[0] = torch.full((6,), 4.0).double()",
        "m.value[1]['b'] = m.value[1]['b'] * 5",
    ),
    "array": _with(
        lambda: Holds(np.full(WIDTH, 1.5), torch.as_tensor),
        "m.value[2] = 7.0",
        "m.value = np.full(6, 2.0)",
        "m.value *= 3",
    ),
    "numpy number": _with(
        lambda: Holds(np.float64(1.5), float),
        "m.value = np.float64(3)",
        "m.value = np.float32(1.5)",
    ),
    "namespace": _with(
        lambda: Holds(SimpleNamespace(a=1.5, b=[2.0]), lambda v: v.a * v.b[0]),
        "m.value.a = 3.0",
        "m.value.b[0] = 4.0",
        "m.value = SimpleNamespace(a=1.0, b=[1.0])",
        "m.value.c = 3",
    ),
    "dataclass": _with(
        lambda: Holds(Settings(), lambda v: v.scale * v.inner.more[1]),
        "m.value.scale = 3.0",
        "m.value.inner.more[1] = 4.0",
        "m.value.inner = SimpleNamespace(more=[0.0, 1.0])",
    ),
    "enum": _with(lambda: Holds(Kind.TWICE, lambda v: v.value), "m.value = Kind.THRICE"),
    "dtype": _with(
        lambda: Holds(torch.float64, lambda v: torch.ones(1).to(v) / 3), "m.value = torch.float32"
    ),
    "function": _with(
        lambda: Holds(twice, lambda v: v(1.5)),
        "m.value = thrice",
        "m.value = lambda x: 4 * x",
        "m.value = functools.partial(operator.mul, 7)",
    ),
    "partial": _with(
        lambda: Holds(functools.partial(operator.mul, 2.0), lambda v: v(1.5)),
        "m.value = functools.partial(operator.mul, 5.0)",
    ),
    "closure": _with(
        lambda: Holds(closure(), lambda v: v(1.5)),
        "m.value.__closure__[0].cell_contents = 4.0",
        "m.value = closure()",
    ),
    "method": _with(
        lambda: Holds(Caller().method, lambda v: v(2.0)),
        "m.value.__self__.by = 4.0",
        "m.value = Caller().method",
    ),
    "slots": _with(
        lambda: Holds(Slotted(), lambda v: v(2.0)), "m.value.scale = 4.0", "m.value = Slotted()"
    ),
    "read": _with(lambda: Holds(1.5), "m.read = lambda v: v * 3", "m.read = thrice"),
    "globals": _with(
        Globals,
        "holders.SCALE = 3.0",
        "TABLE['a'][1] = 5.0",
        "Globals.factor = 4.0",
        "m.factor = 5.0",
        "Constants.scale = 7.0",
        undo=_restore,
    ),
    "unread": _with(
        Unread,
        "m.steps += 1",
        "m.log.append(2.0)",
        "m.note.add_(1)",
        "m.seen.add_(1)",
        "m.other = 3",
        "m.note = torch.zeros(2)",
    ),
    "counts": _with(lambda: Counts("number"), "m.n = 5"),
    "counts in a list": _with(lambda: Counts("list"), "m.calls.append(5)"),
    "keeps": _with(lambda: Counts("tensor"), "m.n = 5"),
    "teacher": _with(
        Teacher,
        "m.held[0].weight.data.mul_(2)",
        "m.held[0].bias.add_(1)",
        "m.held[0] = nn.Linear(6, 6).double().requires_grad_(False)",
        "nn.init.ones_(m.held[0].weight)",
        "m.held[0].register_forward_hook(lambda a, i, o: o * 2)",
    ),
    "forward": _with(
        lambda: Holds(1.5),
        "m.forward = lambda x: x * m.weight * 5",
        "Holds.forward = lambda self, x: x * self.weight * 7",
        "m.__class__ = type('Sub', (Holds,), {'forward': lambda self, x: x * self.weight * 3})",
        undo=_restore,
    ),
    "norm": _with(
        _norm_and_conv,
        "m[2].eps = 0.5",
        "m[2].momentum = 0.7",
        "m[2].eval()",
        "m[2].track_running_stats = False",
        "m[2].running_mean.add_(1)",
        "m[2].running_var = m[2].running_var * 4",
        "m[3].negative_slope = 0.4",
        "m[2].weight.requires_grad_(False)",
        "m[2] = nn.Identity()",
        "m[2].reset_running_stats()",
        "m[2].register_buffer('running_mean', None); m[2].register_buffer('running_var', None)",
    ),
    "conv": _with(
        _norm_and_conv,
        "m[1].padding = (2, 0); m[1].dilation = (2, 1)",
        "m[1].padding_mode = 'circular'",
        "m[1].weight.data = m[1].weight.data.flip(2)",
        "m[1].bias = None",
        "m[1] = nn.Conv2d(2, 2, 1).double()",
        "m[1].bias.requires_grad_(False)",
        "m[1].weight = nn.Parameter(m[1].weight.detach() * 3)",
        "m[1].groups = 2; m[1].weight = nn.Parameter(m[1].weight.detach()[:, :1].clone())",
    ),
    "pools": _with(
        _pools,
        "m[1].kernel_size = (1,); m[1].padding = (0,)",
        "m[2].lambd = 0.7",
        "m[4].eps = 0.5",
        "m[5].alpha = 0.2",
        "m[7].dim = 0",
        "m[4].weight.data.fill_(2)",
        "m[1].count_include_pad = False",
        "m[4].normalized_shape = (6,)",
    ),
    "dropout": _with(
        lambda: nn.Sequential(_linear(), nn.Dropout(0.0)),
        "m[1].p = 1.0",
        "m[1].p = 0",
        "m[1].eval()",
        "m[1].inplace = True",
    ),
    "hook": _with(
        _linear,
        "m.register_forward_hook(lambda a, i, o: o * 3)",
        "m.register_forward_hook(lambda a, i, o: o + 1, prepend=True)",
        "m._forward_hooks.clear()",
        "m._forward_hooks = OrderedDict()",
        "m.register_forward_hook(lambda a, i, k, o: o * 2, with_kwargs=True)",
        "m.register_forward_hook(lambda a, i, o: o - 1, always_call=True)",
    ),
    "pre hook": _with(
        _two,
        "m[0].register_forward_pre_hook(lambda a, i: (i[0] * 3,))",
        "m.register_forward_pre_hook(lambda a, i, k: ((i[0] - 1,), k), with_kwargs=True)",
        "m[2].register_forward_pre_hook(lambda a, i: i[0].sin())",
        "m[0]._forward_pre_hooks.clear()",
        "m[0]._forward_pre_hooks = OrderedDict()",
    ),
    "backward hook": _with(
        _two,
        "m[1].register_full_backward_hook(lambda a, gi, go: tuple(2 * g for g in gi))",
        "m[1].register_full_backward_pre_hook(lambda a, go: tuple(3 * g for g in go))",
        "m.register_full_backward_hook(lambda a, gi, go: tuple(2 * g for g in gi))",
        "m[1]._backward_hooks.clear()",
        "m[1].register_backward_hook(lambda a, gi, go: tuple(2 * g for g in gi))",
    ),
    "global hook": _with(
        _two,
        "add(register_module_forward_hook(lambda a, i, o: o * 2))",
        "add(register_module_forward_pre_hook(lambda a, i: (i[0] * 2,)))",
        "add(register_module_full_backward_hook(doubled))",
        "add(register_module_forward_hook(only_tanh))",
        "remove()",
        undo=holders.remove,
    ),
    "recording hook": _with(
        _two, "m[0].register_forward_hook(lambda a, i, o: SEEN.append(o.detach()))", "SEEN.clear()"
    ),
    "tensor hook": _with(
        _linear,
        "m.weight.register_hook(lambda g: g * 3)",
        "m.bias.register_post_accumulate_grad_hook(triple)",
        "m.weight.register_hook(lambda g: g + 1)",
    ),
    "parametrized": _with(
        _two,
        "parametrize.register_parametrization(m[0], 'weight', nn.Tanh())",
        "parametrizations.weight_norm(m[2])",
        "parametrize.remove_parametrizations(m[0], 'weight')",
        "parametrize.register_parametrization(m[2], 'bias', nn.Softplus())",
    ),
    "pruned": _with(
        _two,
        "prune.l1_unstructured(m[0], 'weight', 0.5)",
        "prune.remove(m[0], 'weight') if hasattr(m[0], 'weight_mask') else None",
        "prune.random_unstructured(m[2], 'bias', amount=0.0)",
        "m[0].weight_mask.mul_(0) if hasattr(m[0], 'weight_mask') else None",
    ),
    "tied": _with(
        _two,
        "m[2].weight = m[0].weight",
        "m[2].weight = nn.Parameter(m[2].weight.detach().clone())",
        "m[0].bias = m[2].bias",
        "m[2] = m[0]",
    ),
    "layers": _with(
        _two,
        "m.append(nn.ReLU())",
        "m[1] = nn.Sigmoid()",
        "del m[1]",
        "m.insert(1, nn.Hardtanh())",
        "m[0] = nn.Linear(6, 6, bias=False).double()",
        "nn.init.eye_(m[0].weight)",
        "m[2] = nn.Linear(6, 6).double().requires_grad_(False)",
    ),
    "parameters": _with(
        _two,
        "m[0].weight.requires_grad_(False)",
        "m.requires_grad_(False)",
        "m[0].weight.data = m[0].weight.data.t()",
        "m[2].bias = nn.Parameter(torch.ones(6).double())",
        "m[0].bias = None",
        "m[0].weight = nn.Parameter(torch.ones(6, 6).double(), requires_grad=False)",
        "m.requires_grad_(True)",
    ),
    "buffer": _with(
        lambda: Buffered(),
        "m.b.mul_(3)",
        "m.b = torch.full((6,), 4.0).double()",
        "m.b.data.fill_(7)",
        "m.register_buffer('b', None); m.b = 2.0",
        "m.load_state_dict({'b': torch.full((6,), 5.0).double()})",
        "m.b.data = torch.full((6,), 9.0).double()",
    ),
}
