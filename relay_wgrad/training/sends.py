"""A step whose gradients leave for the other processes as they are made, while it goes on.

`main_adjoint` gives the loss, new statistics and gradients as means over the processes: where the
last tensor of a bucket is made it calls `SEND`, which packs the bucket and starts its all-reduce,
and gives tensors that `Exchange.finish` writes once the step is over.  Nothing reads them before.

What is in a bucket, and in which order buckets are sent, follows from the parameters alone: the
loss and statistics first, then gradients from the last one on.  The processes may have programs for
other sizes of batches.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx

from ..dtypes import HALVES
from ..frontend import TrainingGraph
from ..graph.def_use import Graph
from ..graph.rebuild import Writer, substitute, with_bindings
from ..graph.walk import bindings_of, dataflow_block
from .exchange import SEND, Kind, buckets
from .step import ADJOINT


def with_sends(module: tvm.IRModule, graph: TrainingGraph) -> tuple[tvm.IRModule, list[list[int]]]:
    """(the module of a step, in which its results become means over the processes; of each bucket
    the places of its gradients among all).

    Those results are the loss, the graph's new statistics and all gradients; the loss is the first
    tensor of bucket 0, and no bucket has both gradients and others.
    """
    func = relax.transform.CanonicalizeBindings()(module)[ADJOINT]  # no other names for results
    outputs, gradients = (list(part.fields) for part in func.body.body.fields)
    averaged = [0, *(graph.outputs.index(name) for name in graph.updates)]
    backwards = list(reversed(range(len(gradients))))
    # (which list of results, the places in it of each bucket), in the order of sending.
    places: list[tuple[list[Any], list[int]]] = []
    for some, order in ((outputs, averaged), (gradients, backwards)):
        kinds = [_kind(some[place].ty) for place in order]
        places += [(some, [order[i] for i in members]) for members in buckets(kinds)]
    values = {some[place] for some, members in places for place in members}
    view, sent = Graph(func), dict[int, list[int]]()
    for number, (some, members) in enumerate(places):
        last = max(view.index.get(some[place], -1) for place in members)
        sent.setdefault(last, []).append(number)
    narrow = {value: view.value[value].args[0] for value in values if _is_widened(value, view)}
    writer, own = Writer(dataflow_block(func)), dict[Any, Any]()

    def send(at: int) -> None:
        for number in sent.get(at, ()):
            some, members = places[number]
            own_values = [some[place] for place in members]
            given = [narrow.get(value, value) for value in own_values]
            given = [own.get(value, value) for value in given]
            means = _means(writer, number, given, [value.ty for value in own_values])
            for place, mean in zip(members, means, strict=True):
                some[place] = mean

    send(-1)
    for at, binding in enumerate(bindings_of(func)):
        if binding.var in values:  # no result any more, so its memory is the step's
            value = substitute(binding.value, own)
            if binding.var not in narrow:
                own[binding.var] = writer.emit(binding.var.name, value, binding.span)
        else:
            writer.keep(binding, own)
        send(at)
    others = [own.get(output, output) for output in outputs]
    module = module.clone()
    module[ADJOINT] = with_bindings(
        func, writer.bindings, result=relax.Tuple([relax.Tuple(others), relax.Tuple(gradients)])
    )
    return module, [members if some is gradients else [] for some, members in places]


def _is_widened(value: Any, view: Graph) -> bool:
    """Whether it is there for the result alone, of a half tensor that the bucket can take."""
    call = view.call(value, "relax.astype")
    return call is not None and not view.uses.get(value) and str(call.args[0].ty.dtype) in HALVES


def _kind(ty: relax.TensorType) -> Kind:
    return tuple(map(int, ty.shape.values)), str(ty.dtype)


def _means(writer: Writer, number: int, given: list[Any], types: list[Any]) -> list[Any]:
    """The results of a call of `SEND`, of these types."""
    args = (tirx.IntImm("int64", number), *given)
    call = relax.op.call_dps_packed(SEND, args, types if types[1:] else types[0])
    if not types[1:]:
        return [writer.output(f"bucket_{number}", call)]
    made = writer.emit(f"bucket_{number}", call)
    return [
        writer.output(f"mean_{number}_{i}", relax.TupleGetItem(made, i)) for i in range(len(types))
    ]
