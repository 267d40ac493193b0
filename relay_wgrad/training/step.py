"""The module of one training step: precision, checkpoints, loss scale, gradient, layout.

The order of the parts matters.  Casts go in before the gradient, so that the backward part has
them too; checkpoint regions after the casts, so that half-precision results are what is kept; the
loss scale before the gradient and its inverse after; the layout (`converted`) last, of all of it,
and blocks of pixels after that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from .. import keys
from ..argument_types import check_type, checked_bool
from ..dtypes import HALVES
from ..frontend import TrainingGraph
from ..frontend.graph import TRAINING_GRAPH
from ..graph.rebuild import Writer, substitute, with_bindings
from ..graph.walk import bindings_of, dataflow_block, functions_in
from ..pipeline.arena import NAME as ARENA
from ..pipeline.storages import static_bytes
from ..problem import DTYPES
from ..transform import grad
from ..transform.depth_forms import AUTO, Wanted
from ..transform.filled_channels import filled_channels
from ..transform.grad import adjoint_name
from ..transform.mask_order import masks_early
from ..transform.mixed_precision import accumulate_wide, mixed_precision
from ..transform.raise_norm import raise_batch_norm
from ..transform.unstacked import unstacked

ADJOINT = adjoint_name("main")
SCALE = "loss_scale"


def step_module(
    graph: TrainingGraph,
    *,
    dtype: str | None = None,
    checkpoint: str | Sequence[str] | None = None,
    scaled: bool = False,
    wide_weight_gradients: bool = True,
    raise_norms: bool = False,
) -> tvm.IRModule:
    """The module of `graph` with `main_adjoint`: (arguments…) to (outputs, gradients).

    Parameters
    ----------
    graph : in float32 for a half `dtype`.
    dtype : None or the graph's own, or "float16" ("f16") or "bfloat16" ("bf16") for mixed
        precision.
    checkpoint : None, "auto", or names of tensors in the file; see `TrainingGraph.checkpointed`.
    scaled : the last argument is a float32 scalar `loss_scale`: the loss is multiplied by it before
        differentiation and the gradients divided by it after, so that small ones survive float16.
    wide_weight_gradients : with a half `dtype`, weights' gradients and matrix products are float32
        sums that are never rounded to half; without, rounded once, as PyTorch's autocast does.
    raise_norms : training batch normalization becomes one operator with what follows it
        (`transform.raise_norm`), for which CUDA has kernels.  With a half `dtype` its results, and
        so residual sums, are half then.

    Raises
    ------
    ValueError : for a dtype that is neither, or another graph dtype than float32 with a half one.
    TypeError : for what is no graph, and for a switch that is neither True nor False.
    """
    check_type("step_module: graph", graph, TrainingGraph, TRAINING_GRAPH)
    for name, value in (("scaled", scaled), ("wide_weight_gradients", wide_weight_gradients),
                        ("raise_norms", raise_norms)):  # fmt: skip
        checked_bool(f"step_module: {name}", value)
    dtype = precision(graph, dtype)
    module = differentiated(
        graph, graph.trainable, SCALE if scaled else None, dtype, checkpoint,
        wide_weight_gradients, raise_norms,
    )  # fmt: skip
    if scaled:
        module[ADJOINT] = _unscaled(module[ADJOINT])
    return module


def precision(graph: TrainingGraph, dtype: str | None) -> str | None:
    """The long name of a step's dtype, which may be the short one, None for the graph's own.

    Raises ValueError for one that is neither half nor the graph's own, and for a half one of
    another graph than a float32 one.
    """
    found = DTYPES.get(dtype, dtype) if isinstance(dtype, str) else dtype
    if found not in (None, graph.dtype, *HALVES):
        raise ValueError(
            f"dtype={dtype!r}: expected {', '.join(HALVES)} or the graph's own, {graph.dtype}"
        )
    if is_half(graph, found) and graph.dtype != "float32":
        raise ValueError(f"dtype={dtype!r}: mixed precision needs a float32 graph")
    return found


def is_half(graph: TrainingGraph, dtype: str | None) -> bool:
    """Whether a step of a graph in `dtype` is in mixed precision."""
    return dtype in HALVES and dtype != graph.dtype


def differentiated(
    graph: TrainingGraph,
    wrt: Sequence[str],
    factor: str | None,
    dtype: str | None,
    checkpoint: str | Sequence[str] | None,
    wide_weight_gradients: bool,
    raise_norms: bool,
) -> tvm.IRModule:
    """The module with `main_adjoint` in the place of `main`: what a step and its parts are made of.

    wrt : what the graph's first result is differentiated by; without any `main_adjoint` is `main`.
    factor : the name of a last parameter that multiplies that result, and so its gradients; the
        sum of the product is the last of the results then.
    """
    kept, half, target = _cuts(graph, checkpoint), is_half(graph, dtype), 0
    module = unstacked(graph.module, "main", kept)
    if raise_norms:
        module, _ = raise_batch_norm(module, "main", keep=kept)
    if half:
        rounded = raise_norms and not wide_weight_gradients
        module = mixed_precision(
            module, "main", dtype=str(dtype), promoted=raise_norms, rounded_products=rounded
        )
        module = filled_channels(module, "main", kept) if raise_norms else module
    if factor is not None:
        module = _with_factor(module, factor)
        target = len(module["main"].body.body.fields) - 1
    if wrt:
        module = graph.checkpointed(module, checkpoint)
        module = grad(module, "main", wrt=list(wrt), target_index=target)
        module = masks_early(module, ADJOINT)
    else:
        module = module.clone()
        module[ADJOINT] = module["main"].with_attr(keys.SYMBOL, ADJOINT)
    # The forward function has done its part; a marked one could not be compiled.
    del module["main"]
    if half:
        module = accumulate_wide(module, ADJOINT, weight_gradients=wide_weight_gradients)
    return module


def _cuts(graph: TrainingGraph, checkpoint: str | Sequence[str] | None) -> list[str]:
    """The variables that a checkpoint names."""
    named = () if checkpoint is None or isinstance(checkpoint, str) else checkpoint
    return [graph.tensors[name] for name in named if name in graph.tensors]


def converted(
    module: tvm.IRModule, layout: str | None, *, blocks: Wanted = False, params: str = "keep"
) -> tvm.IRModule:
    """The step in another layout of activations; parameters and gradients keep theirs.

    blocks : in NHWC, convolutions of few channels are such of blocks of pixels, which libraries of
        a GPU compute faster (`relay_wgrad.transform.space_to_depth`); a name is the form of all;
        where kernels are known that take them as they are, those stay that are faster so.
    params : "convert": parameters and gradients get kernels' own (`stored_layout.kept_in_layout`).
    """
    if layout in (None, "NCHW"):
        return module
    from ..transform import ConvertLayout, SpaceToDepth

    module = ConvertLayout(str(layout), functions=[ADJOINT], params=params)(module)
    if not blocks or layout != "NHWC":
        return module
    form = blocks if isinstance(blocks, str) else AUTO
    return SpaceToDepth([ADJOINT], form=form, known=blocks if callable(blocks) else None)(module)


def changes(func: relax.Function) -> int:
    """The number of layout changes in a function."""
    from ..transform import layout_changes

    return len(layout_changes(func))


def _with_factor(module: tvm.IRModule, name: str) -> tvm.IRModule:
    """One more parameter, of the first result's type, and one more result: their inner product."""
    func = module["main"]
    fields = list(func.body.body.fields)
    factor = relax.Var(name, fields[0].ty)
    writer = Writer(dataflow_block(func), bindings_of(func))
    product = relax.op.multiply(fields[0], factor)
    if fields[0].ty.ndim:
        product = relax.op.sum(writer.emit("products", product))
    scalar = writer.output("product", product)
    out = module.clone()
    del out["main"]  # its GlobalVar has the old type
    out["main"] = with_bindings(
        func, writer.bindings, params=[*func.params, factor],
        result=relax.Tuple([*fields, scalar]),
    )  # fmt: skip
    return out


def _unscaled(func: relax.Function) -> relax.Function:
    """The gradients divided by the scale; the scaled loss is no longer among the results."""
    scale = func.params[-1]
    outputs, gradients = func.body.body.fields
    writer = Writer(dataflow_block(func))
    inner: dict[relax.Var, Any] = {}  # gradients are no results any more
    for binding in bindings_of(func):
        if binding.var in gradients.fields:
            # A gradient may be that of two parameters: then one is a name for the other.
            value = substitute(binding.value, inner)
            inner[binding.var] = writer.emit(binding.var.name, value, binding.span)
        else:
            writer.keep(binding, inner)
    inverse = writer.emit("inverse", relax.op.divide(relax.const(1.0, "float32"), scale))
    divided = [
        writer.output(f"{g.name}_unscaled", relax.op.multiply(inner.get(g, g), inverse))
        for g in gradients.fields
    ]
    result = relax.Tuple([relax.Tuple(list(outputs.fields)[:-1]), relax.Tuple(divided)])
    return with_bindings(func, writer.bindings, result=result)


@tvm.instrument.pass_instrument
class PlannedMemory:
    """Within a PassContext: what the static plan sets aside for intermediate results.

    `bytes[function]` is the sum of all storages of a function, in which tensors are at places that
    others had before.  Arguments, results and kernels' own scratch are not in it.
    """

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}

    def run_after_pass(self, mod: tvm.IRModule, info: Any) -> None:
        """Reads the plan where it has just been made, and where it has been packed."""
        if str(info.name) not in ("StaticPlanBlockMemory", ARENA):
            return
        for var, func in functions_in(mod):
            self.bytes[str(var.name_hint)] = sum(
                static_bytes(binding.value) or 0 for binding in bindings_of(func)
            )
