"""Plants faults one by one and names the test that catches each: `python -m tests.planted`.

Each fault is a replacement in a copy of the tree; the named tests must fail there (and pass without
it, which `make test` shows).  Exit code 1 if a fault goes unnoticed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Fault:
    what: str
    file: str
    old: str
    new: str
    tests: str  # where to look; pytest stops at the first failure


FAULTS = (
    Fault("a sum of one term: its first value and its term are both what reads it",
          "relay_wgrad/pipeline/fused_kernels.py", "        SingleTerms(),\n", "",
          "tests/relay_wgrad/pipeline/test_single_terms.py"),
    Fault("cache: a program's digest without the target", "relay_wgrad/building/programs.py",
          "_constants(module), *settings(target), *facts,",
          "_constants(module), *settings(target)[1:], *facts,",
          "tests/relay_wgrad/building/test_program.py"),
    Fault("threads: another's exporter loses its modes", "relay_wgrad/ambient.py",
          "if torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PreDispatch):",
          "if True:", "tests/relay_wgrad/frontend/torch/test_trace_lock.py"),
    Fault("wrong padding: reversed in the emitted convolution", "relay_wgrad/ops/algebra.py",
          "data, weight, a.strides, a.padding,", "data, weight, a.strides, a.padding[::-1],",
          "tests/relay_wgrad/transform/test_grad.py"),
    Fault("JAX: a weight not read backwards", "relay_wgrad/frontend/stablehlo/roles.py",
          "factors[tensor] * factors[data] > 0:", "factors[tensor] * factors[data] > 9:",
          "tests/relay_wgrad/frontend/stablehlo/test_roles.py"),
    Fault("JAX's jvp: the second operand's tangent is dropped", "relay_wgrad/jax/primitive.py",
          "ad.defbilinear(convolution_p, partial(_transposed, 0), partial(_transposed, 1))",
          "ad.defbilinear(convolution_p, partial(_transposed, 0), partial(_transposed, 1))\n"
          "ad.defjvp(convolution_p, lambda t, a, b, **how: convolution_p.bind(t, b, **how), None)",
          "tests/fuzz/test_jax_convolutions_share.py"),
    Fault("JAX's transpose: of every operand by the first", "relay_wgrad/jax/primitive.py",
          "problem.roles[1 - index]: (second, first)[index]}",
          "problem.roles[1 - index]: (second, second)[index]}",
          "tests/fuzz/test_jax_convolutions_share.py"),
    Fault("JAX's vmap: groups are not apart in what comes back", "relay_wgrad/jax/primitive.py",
          "_unfolded(made, count, letters[result], problem.layout(result), cut[result])",
          "_unfolded(made, count, letters[result], problem.layout(result), 1)",
          "tests/fuzz/test_jax_convolutions_share.py"),
    Fault("JAX's types: an operand of another dtype is taken", "relay_wgrad/jax/primitive.py",
          "if (given.shape, str(given.dtype)) != (shape, dtype):", "if given.shape != shape:",
          "tests/relay_wgrad/jax/test_primitive.py"),
    Fault("JAX's sharding: parts of a weight gradient are not summed",
          "relay_wgrad/jax/sharding.py",
          "return lax.psum(out, axes) if axes and places[2] is None else out", "return out",
          "tests/relay_wgrad/jax/test_convolutions.py"),
    Fault("JAX's shard_map: its body stays as it is", "relay_wgrad/jax/replacing.py",
          "    made: Sequence[Any] = jax.shard_map(run, **arguments)(*given)\n    return made",
          "    return None", "tests/relay_wgrad/jax/test_convolutions.py"),
    Fault("JAX's choice: what is not dilated is kin of what is", "relay_wgrad/jax/choice.py",
          "dilated = [step > 1 for step in problem.dilation]", "dilated = problem.rank",
          "tests/relay_wgrad/jax/test_choice.py"),
    Fault("JAX: what is written into nnx objects is lost", "relay_wgrad/jax/objects.py",
          "    nnx.update(objects, after)\n", "", "tests/relay_wgrad/jax/test_networks.py"),
    Fault("images: a part's edge has no neighbours' colours",
          "relay_wgrad/training/templates/jpeg_reader.cc",
          "constexpr int kEdge = 2;", "constexpr int kEdge = 0;",
          "tests/relay_wgrad/training/test_jpeg_reader.py"),
    Fault("batches: memory that a device still copies from is free",
          "relay_wgrad/training/transfers.py", "                slot.held.append(value)\n", "",
          "tests/relay_wgrad/training/test_transfers.py"),
    Fault("batches: others' pinned memory is not waited for", "relay_wgrad/training/transfers.py",
          "slot.is_lent = slot.is_lent or is_pinned", "slot.is_lent = False",
          "tests/relay_wgrad/training/test_transfers.py"),
    Fault("dropped group: data's channel without its group", "legalize/generic.py",
          "channel = c0 if problem.groups == 1 else", "channel = c0 if problem.groups else",
          "tests/legalize/test_generic_kernels.py"),
    Fault("swapped layout: I and O not exchanged for conv2d_transpose", "relay_wgrad/layouts.py",
          'str.maketrans("OI", "IO")', 'str.maketrans("OI", "OI")',
          "tests/relay_wgrad/ops/test_gradient_ir.py"),
    Fault("group normalization: gamma outside the sums of a group", "relay_wgrad/ops/train_norm.py",
          "return self.emit(R.sum(self.times(sums, gamma), [2]))",
          "return self.emit(R.sum(sums, [2]))",
          "tests/relay_wgrad/transform/test_raise_norm.py"),
    Fault("group normalization: a group's variance is its channels' own",
          "byoc_cudnn/norm/templates/norm_forward.h",
          "return from[shape.channels + c] + rows * apart * apart;",
          "return from[shape.channels + c] + 0 * rows * apart;",
          "tests/byoc_cudnn/norm/test_norm_emulated.py"),
    Fault("group normalization: gamma outside the kernel's sums of a group",
          "byoc_cudnn/norm/templates/norm_backward.h",
          "const A factor = shape.is_single() ? scale[i] : shift[i];", "const A factor = scale[i];",
          "tests/byoc_cudnn/norm/test_norm_emulated.py"),
    Fault("group normalization: each image by the first one's statistics",
          "byoc_cudnn/norm/templates/norm_device.h",
          "image * (channels / group) + channel / group;", "channel / group;",
          "tests/byoc_cudnn/norm/test_norm_emulated.py"),
    Fault("instance normalization: each image by the first one's statistics",
          "byoc_cudnn/norm/templates/norm_device.h",
          "load_columns(to, from + at.image * shape.real(), at, shape);",
          "load_columns(to, from, at, shape);",
          "tests/byoc_cudnn/norm/test_norm_emulated.py"),
    Fault("a gate: the mean's share of the parameters' gradients is left out",
          "byoc_cudnn/norm/templates/norm_gated.h",
          "lift[i] * sums[(which + 2) * all + i];", "0 * lift[i];",
          "tests/byoc_cudnn/norm/test_gates_emulated.py"),
    Fault("a gate: ReLU after the residual is dropped", "byoc_cudnn/norm/gates.py",
          'last = "relu"', 'last = ""', "tests/byoc_cudnn/norm/test_gates.py"),
    Fault("a gate: bits are told by ReLU6", "byoc_cudnn/norm/templates/norm_gated.h",
          "passing<Activation::kRelu>(out)", "passing<Activation::kRelu6>(out)",
          "tests/byoc_cudnn/norm/test_gates_emulated.py"),
    Fault("a gate: the second gradient is left out", "byoc_cudnn/norm/gates.py",
          "summed=len(through.of) > 1", "summed=False", "tests/byoc_cudnn/norm/test_gates.py"),
    Fault("standardized weights: a gradient's mean is left",
          "byoc_cudnn/standardized/templates/standardized_device.h",
          "wide(d[place(i)]) - level -", "wide(d[place(i)]) -",
          "tests/byoc_cudnn/standardized/test_standardized.py"),
    Fault("standardized weights: gains' gradients without the factor",
          "byoc_cudnn/standardized/lower.py", "return _last(view, scaled.var) if",
          "return last if", "tests/byoc_cudnn/standardized/test_standardized.py"),
    Fault("casts: a reshape alone is a cast", "byoc_cudnn/cast_transpose/lower.py",
          "if not cast and moved is None and scale is None and not (copies and reshaped):",
          "if False:",
          "tests/byoc_cudnn/cast_transpose/test_cast_transpose.py"),
    Fault("weights of one pixel: rows beyond a turn are read again",
          "byoc_cudnn/point_weights/templates/point_weights_device.h",
          "load_rows(next_x, x, first + kStep, rows", "load_rows(next_x, x, first, rows",
          "tests/byoc_cudnn/point_weights/test_point_weights.py"),
    Fault("weights of one pixel: what an operand is made of waits for all",
          "byoc_cudnn/point_weights/lower.py",
          "if operands & _made_of(view, one.results)]", "if False]",
          "tests/byoc_cudnn/point_weights/test_point_weights.py"),
    Fault("made sums: what is only there later is an operand", "relay_wgrad/pipeline/made_sums.py",
          "if any(place.get(arg, -1) >= at for arg in others):", "if False:",
          "tests/relay_wgrad/pipeline/test_made_sums.py"),
    Fault("made sums: a view becomes a kernel", "relay_wgrad/pipeline/made_sums.py",
          " and not relax.analysis.has_reshape_pattern(maker)", "",
          "tests/relay_wgrad/pipeline/test_made_sums.py"),
    Fault("a gate: images' means are not apart", "byoc_cudnn/norm/templates/norm_gated.h",
          "return parts.m2(i) + parts.rows(i) * apart * apart;", "return parts.m2(i);",
          "tests/byoc_cudnn/norm/test_gates_emulated.py"),
    Fault("rows side by side: the first row's statistics are all",
          "byoc_cudnn/norm/templates/norm_forward.h",
          "2 * (i / fold) * shape.channels + i % fold * shape.real();",
          "2 * (i / fold) * shape.channels + 0 * (i % fold);",
          "tests/byoc_cudnn/norm/test_norm_emulated.py"),
    Fault("a gradient that is a part: of rows side by side the first one's",
          "byoc_cudnn/norm/templates/norm_device.h",
          "first = side * (stride - shape.real()) + at.channel;",
          "first = at.channel - side * shape.real();",
          "tests/byoc_cudnn/norm/test_norm_emulated.py"),
    Fault("joins: sums of sums are added from the left", "byoc_cudnn/joins/channels.py",
          "if len(one.sources) > 1 and len(two.sources) > 1:", "if False:",
          "tests/byoc_cudnn/joins/test_joins_lower.py"),
    Fault("joins: a cut of a cut begins where the first did", "byoc_cudnn/joins/channels.py",
          "Source(s.tensor, s.first + begin - at)", "Source(s.tensor, begin - at)",
          "tests/byoc_cudnn/joins/test_joins_lower.py"),
    Fault("joins: of rows that are read together all are the first",
          "byoc_cudnn/joins/templates/joins_device.h",
          "more[g][u] = read<T, V>(from + u * apart);", "more[g][u] = read<T, V>(from);",
          "tests/byoc_cudnn/joins/test_joins_emulated.py"),
    Fault("instance normalization in Dynamo's graph: all channels one group",
          "relay_wgrad/torch/norms.py", "        groups = said.shape[1]\n", "        groups = 1\n",
          "tests/relay_wgrad/torch/test_norms.py"),
    Fault("swapped arguments: wgrad(data, grad)", "relay_wgrad/ops/algebra.py",
          "make_call(WGRADS[a.rank], [grad, data]", "make_call(WGRADS[a.rank], [data, grad]",
          "tests/relay_wgrad/ops/test_gradient_ir.py"),
    Fault("missing dilation in every gradient", "relay_wgrad/ops/algebra.py",
          "a = replace(a, out_dtype=None if plain else dtype)",
          "a = replace(a, out_dtype=None if plain else dtype, dilation=(1, 1))",
          "tests/relay_wgrad/ops/test_gradient_ir.py"),
    Fault("off-by-one size: transposed convolution", "relay_wgrad/problem.py",
          "(kernel - 1) + 1 + output_padding", "(kernel - 1) + output_padding",
          "tests/relay_wgrad/test_problem.py"),
    Fault("an operator's namespace is lost", "relay_wgrad/frontend/torch/names.py",
          'return str(name) if namespace == "aten" else', "return str(name) if name else",
          "tests/relay_wgrad/frontend/torch/test_names.py"),
    Fault("rules that write in place go to AOTAutograd", "relay_wgrad/frontend/torch/retracing.py",
          "found = {overload: core[overload] for overload in core}", "found = {**table}",
          "tests/relay_wgrad/torch/test_compiler_operators.py"),
    Fault("elements by their places in what lies otherwise",
          "relay_wgrad/frontend/torch/retracing.py", "            if not lies:",
          "            if None:",
          "tests/relay_wgrad/frontend/torch/test_aot_places.py"),
    Fault("bfloat16 that is read again is not rounded", "relay_wgrad/pipeline/bfloat16.py",
          "tirx.Select(is_nan, bits, nearest)", "bits",
          "tests/relay_wgrad/pipeline/test_ieee.py"),
    Fault("a capture lets go of what its rehearsal wrote over",
          "relay_wgrad/training/graph_replay.py",
          "copies = self._rehearse(places, fixed)", "self._rehearse(places, fixed); copies = None",
          "tests/relay_wgrad/training/test_graph_replay.py"),
    Fault("a rehearsal takes part in what other processes do", "relay_wgrad/training/capture.py",
          "elif not self._is_rehearsal:", "else:", "tests/relay_wgrad/training/test_capture.py"),
    Fault("products of batches: the last columns begin too late",
          "legalize/cpu/batched_products.py", "T.min(i * block, columns - block)", "i * block",
          "tests/legalize/cpu/test_batched_products.py"),
    Fault("sums of nothing keep what memory held", "relay_wgrad/pipeline/reduction_init.py",
          "if not any(map(_may_have_no_term, found)):", "if True:",
          "tests/relay_wgrad/pipeline/test_reduction_init.py"),
    Fault("a window larger than its image is not compared at the run", "relay_wgrad/conditions.py",
          "        if self._found:\n            bb.emit", "        if False:\n            bb.emit",
          "tests/relay_wgrad/test_conditions.py"),
    Fault("open batches: no images clear no sums", "legalize/cpu/emitters/memory.py",
          "parts = parts if isinstance(parts, int) else T.max(parts, 1)", "parts = parts",
          "tests/relay_wgrad/pipeline/test_reduction_init.py"),
    Fault("sizes are compared where they stand", "relay_wgrad/pipeline/fused_kernels.py",
          "        SizesFirst(),\n", "", "tests/relay_wgrad/relay/test_nothing_at_the_run.py"),
    Fault("depthwise weights: filters of a channel are apart", "relay_wgrad/relay/records/conv.py",
          'order.insert(order.index("O") + 1, "I")', 'order.insert(order.index("O"), "I")',
          "tests/relay_wgrad/relay/test_depthwise_multiplier.py"),
    Fault("cotangent in the wrong slot", "relay_wgrad/ops/algebra.py",
          "tensors = {first: a, second: b, result: cotangent}",
          "tensors = {first: cotangent, second: b, result: a}",
          "tests/relay_wgrad/ops/test_gradient_ir.py tests/relay_wgrad/transform/test_grad.py"),
    Fault("kernel cache forgets the stride", "legalize/rules.py",
          "kernel(problem, Target(given))",
          "kernel(replace(problem, strides=(1, 1)) if problem.strides == (2, 1) else problem,"
          " Target(given))",
          "tests/relay_wgrad/transform/test_grad.py"),
    Fault("unregister leaves our rules in place", "relay_wgrad/registry.py",
          "        op.reset_attr(key)\n        if upstream is not None:",
          "        if upstream is not None and not op.has_attr(key):",
          "tests/relay_wgrad/test_registry.py"),
    Fault("composite: groups tiled whole, as Relay did", "legalize/composite.py",
          "between = g > 1 and cg > 1", "between = False",
          "tests/legalize/test_composite_numbers.py"),
    Fault("max pooling: the last of equal maxima wins elsewhere", "legalize/pooling.py",
          "a[0] < b[0]", "a[0] > b[0]", "tests/legalize/test_pooling.py"),
    Fault("max pooling: the last of equal maxima wins on CPUs", "legalize/cpu/max_pool.py",
          "found > most[here]", "found >= most[here]", "tests/legalize/test_pooling.py"),
    Fault("a window outside the image counts", "legalize/pooling.py",
          "row >= 0, column >= 0, p < grad.shape[axes[0]], q < grad.shape[axes[1]],",
          "row >= 0, column >= 0, p < grad.shape[axes[0]],", "tests/legalize/test_pooling.py"),
    Fault("offloading: a crop that starts at zero", "byoc_cudnn/split/adapt.py",
          "begin = [before for before, _ in around.values()]", "begin = [0 for _ in around]",
          "tests/byoc_cudnn/split/test_partition_adapt.py"),
    Fault("epilogues: any bounds are ReLU6's", "byoc_cudnn/fused.py",
          "bool(expr.value == number.value)", "bool(expr.value < 7)",
          "tests/byoc_cudnn/test_fused.py"),
    Fault("epilogues: our kernels clip at 5", "byoc_cudnn/backends/cuda_direct/templates/"
          "direct_epilogue.h", "value > 6.f ? 6.f", "value > 5.f ? 5.f",
          "tests/byoc_cudnn/backends/cuda_direct/test_direct_emulated.py"),
    Fault("offloading: asymmetric padding goes to cuDNN", "byoc_cudnn/backends/cudnn/check.py",
          "(_layouts, _dtypes, known_channels, _padding, _elements)",
          "(_layouts, _dtypes, known_channels, _elements)",
          "tests/byoc_cudnn/split/test_partition_refusals.py"),
    Fault("generated code: operands in their roles' order", "byoc_cudnn/codegen/entry.py",
          "for name in [*region.operands, region.problem.roles[2]]",
          "for name in sorted([*region.operands, region.problem.roles[2]])",
          "tests/byoc_cudnn/backends/cudnn/test_cudnn_codegen.py"),
    Fault("generated code: options forgotten", "byoc_cudnn/backends/cudnn/codegen.py",
          "options = [flag for name, flag in OPTIONS.items() if getattr(o, name)]",
          "options = []", "tests/byoc_cudnn/backends/cudnn/test_cudnn_codegen.py"),
    Fault("scaled float16: sums that leave its range",
          "byoc_cudnn/backends/cudnn/templates/scaled_half_device.h",
          "(2 * z.bound - 1 - e) >> 1", "(2 * z.bound + 5 - e) >> 1",
          "tests/byoc_cudnn/backends/cudnn/test_scaled_half.py"),
    Fault("scaled float16: a group's filters take another group's channels",
          "byoc_cudnn/backends/cudnn/templates/scaled_half_device.h",
          "exponent + filter / call.filters * call.channels", "exponent",
          "tests/byoc_cudnn/backends/cudnn/test_scaled_half.py"),
    Fault("depthwise volumes: a plane behind the last is read",
          "legalize/cpu/depthwise/register_sums.py", "read < problem.d)", "read <= problem.d)",
          "tests/legalize/cpu/test_volume.py"),
    Fault("wgrad: exchanged operands, but not the result's axes", "legalize/cpu/wgrad/packed.py",
          'other = {"O": "I", "I": "O"}', "other: dict[str, str] = {}",
          "tests/legalize/cpu/test_wgrad_packed.py"),
    Fault("depthwise volumes: dgrad by the taps of fprop", "legalize/cpu/depthwise/volumes.py",
          "own = p.s - 1 - s if p.kind is ConvKind.DGRAD else s", "own = s",
          "tests/legalize/cpu/test_volume.py"),
    Fault("a tuning record that others may write is used",
          "byoc_cudnn/backends/cudnn/templates/cudnn_record.h",
          "(info.st_mode & (S_IWGRP | S_IWOTH)) != 0 ||", "",
          "tests/byoc_cudnn/backends/cudnn/test_cudnn_codegen.py"),
    Fault("ties: ReLU's gradient passes at zero in training graphs", "relay_wgrad/ops/ties.py",
          "op.where(op.less_equal(y, zero), zero, ct)",
          "op.where(op.less(y, zero), zero, ct)", "tests/relay_wgrad/ops/test_ties.py"),
    Fault("gradient stops: from_torch ignores detach", "relay_wgrad/frontend/torch/math.py",
          '"detach.default": _stopped', '"detach.default": identity',
          "tests/relay_wgrad/frontend/torch/test_torch_ops.py"),
    Fault("half sums are accumulated in half", "legalize/half_reductions.py",
          "isinstance(given, te.Tensor) and given.dtype in HALVES",
          "isinstance(given, te.Tensor) and given.dtype in ()",
          "tests/legalize/test_half_reductions.py"),
    Fault("forward mode: the second operand's tangent is dropped", "relay_wgrad/torch/ops.py",
          "tangent = other if tangent is None else tangent + other",
          "tangent = other if tangent is None else tangent",
          "tests/relay_wgrad/torch/test_torch_forward_mode.py"),
    Fault("a step's parts: what a later part reads goes with its own",
          "relay_wgrad/pipeline/chains.py",
          "made.last = max(made.last, last)", "pass",
          "tests/relay_wgrad/pipeline/test_chains.py"),
    Fault("a step's parts: a backward pass that comes again is taken for the last one",
          "relay_wgrad/torch/training_step.py",
          "keeps_graph is not None and not keeps_graph()", "keeps_graph is not None",
          "tests/relay_wgrad/torch/test_replayed.py"),
    Fault("a step's parts: parted before a forward call and its backward call are seen together",
          "byoc_cudnn/building/compiled.py",
          "((_PAIRS, cut), (_SINGLE, None))", "(((), cut), (_PAIRS + _SINGLE, None))",
          "tests/relay_wgrad/training/test_forward_backward.py"),
    Fault("a module's dictionary in another's place goes unseen", "relay_wgrad/torch/depends.py",
          "and all(map(is_, map(_attributes, self._modules), self._dicts))", "",
          "tests/relay_wgrad/torch/test_dict_watch.py"),
    Fault("a step's programs forget what functions and lists hold", "relay_wgrad/torch/depends.py",
          "if not was.fixed:", "if not was.fixed and False:",
          "tests/fuzz/test_staleness_share.py"),
    Fault("compiling stays in the caller's saved-tensor hooks", "relay_wgrad/ambient.py",
          "autograd._pop_saved_tensors_default_hooks()", "break",
          "tests/relay_wgrad/test_ambient.py"),
    Fault("open batch: one image is as several are", "relay_wgrad/frontend/torch/batch_of_one.py",
          "if not _equal(a, b, same):", "if False:",
          "tests/relay_wgrad/frontend/torch/test_open_batch.py"),
    Fault("joined batches: each part's gradient begins a size late", "relay_wgrad/ops/auxiliary.py",
          "bounds = zip(types, [0, *ends], ends, strict=False)",
          "bounds = zip(types, ends, ends, strict=False)",
          "tests/relay_wgrad/ops/test_joined.py"),
    Fault("dropout: alpha dropout stays on", "relay_wgrad/frontend/torch/dropouts.py",
          '("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")',
          '("dropout", "feature_dropout")',
          "tests/relay_wgrad/frontend/torch/test_dropout.py"),
    Fault("a file for training keeps its batch's statistics",
          "relay_wgrad/frontend/onnx/inference.py",
          'if a.name == "training_mode"]', 'if a.name == ""]',
          "tests/relay_wgrad/frontend/onnx/test_inference_mode.py"),
    Fault("the cache of kernels drops none", "relay_wgrad/torch/cache.py",
          "over = len(self.slots) - size", "over = 0",
          "tests/relay_wgrad/torch/test_torch_cache.py"),
    Fault("record: an elementwise operator computes another", "relay_wgrad/ops/elementwise.py",
          "return _relax(self.name)(*operands)",
          'return _relax(self.name.replace("sinh", "sin"))(*operands)',
          "tests/relay_wgrad/relay/records/test_ops_numeric.py"),
    Fault("record: the gradient of a filling is 0", "relay_wgrad/ops/auxiliary.py",
          "return [no_grad(call.args[0]), relax.op.sum(ct)]",
          "return [no_grad(call.args[0]), relax.op.sum(relax.op.subtract(ct, ct))]",
          "tests/relay_wgrad/ops/test_joined.py"),
    Fault("record: a made builder's arguments in another order",
          "relay_wgrad/relay/op/generated/__init__.py",
          "[values[name] for name in op.inputs]",
          "[values[name] for name in op.inputs[::-1]]",
          "tests/relay_wgrad/relay/test_builders.py"),
    Fault("record: places turned round at the wrong ends", "relay_wgrad/ops/sampling.py",
          "half = emit(op.abs(op.divide(op.add(places, one), two)))",
          "half = emit(op.abs(op.divide(op.subtract(places, one), two)))",
          "tests/relay_wgrad/relay/records/test_ops_numeric.py"),
    Fault("recurrent layers: read backwards, the steps stay reversed",
          "relay_wgrad/frontend/recurrent.py",
          "return stacked(ctx, made[:: -1 if back else 1], 0), states",
          "return stacked(ctx, made, 0), states",
          "tests/relay_wgrad/frontend/onnx/test_frontend_onnx_curves.py"),
    Fault("resizing: places are half a pixel late", "relay_wgrad/frontend/interpolation.py",
          "return shift + back(p + 0.5) - 0.5", "return shift + back(p + 0.5)",
          "tests/relay_wgrad/frontend/test_interpolation.py"),
    Fault("losses: a positive label's weight is one less", "relay_wgrad/frontend/loss_terms.py",
          "factor = ctx.emit(op.add(factor, ones))", "factor = ctx.emit(factor)",
          "tests/relay_wgrad/frontend/test_losses.py"),
    Fault("JAX: a transposed view keeps the order of its axes",
          "relay_wgrad/frontend/stablehlo/tensors.py",
          "dims=tuple(self.dims[axis] for axis in order)", "dims=self.dims",
          "tests/relay_wgrad/frontend/stablehlo/test_stablehlo.py"),
    Fault("schedules: the warm-up begins with a rate of 0", "relay_wgrad/training/schedules.py",
          "return (step + 1) / self.warmup if", "return step / self.warmup if",
          "tests/relay_wgrad/training/test_update.py"),
    Fault("samples: each epoch has the first one's order", "relay_wgrad/training/data.py",
          "np.random.default_rng([seed, epoch])", "np.random.default_rng([seed, 0])",
          "tests/relay_wgrad/training/test_own_data.py"),
    Fault("loss scale: an overflow leaves it as it is", "relay_wgrad/training/loss_scale.py",
          "scale * tirx.const(2.0, \"float64\"), scale), half)",
          "scale * tirx.const(2.0, \"float64\"), scale), scale)",
          "tests/relay_wgrad/training/test_update.py tests/relay_wgrad/training/test_training.py"),
    Fault("accumulated gradients: each step is the last of some",
          "relay_wgrad/training/update.py",
          "values += [place == 0, place == update.accumulate - 1]",
          "values += [place == 0, True]", "tests/relay_wgrad/training/test_update.py"),
    Fault("vmap: what is batched is not brought to its axis", "relay_wgrad/torch/batching.py",
          "return tensor.movedim(dim, axis).flatten(axis, axis + 1)",
          "return tensor.movedim(dim, 0).flatten(0, 1)",
          "tests/relay_wgrad/torch/test_torch_transforms.py"),
    Fault("mostly padding: what no tap meets keeps what memory held",
          "relay_wgrad/torch/mostly_padding.py",
          "        out.zero_()\n        views[2].copy_(dense[2])",
          "        views[2].copy_(dense[2])", "tests/relay_wgrad/torch/test_torch_numbers.py"),
    Fault("a step's programs take True for 1", "relay_wgrad/torch/snapshots.py",
          "return type(value) is type(self.value) and repr(value) == repr(self.value)",
          "return bool(value == self.value)",
          "tests/relay_wgrad/torch/test_training_step_changes.py"),
)  # fmt: skip


def copy_of_tree(target: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\n")  # fmt: skip
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


def caught_by(fault: Fault) -> str | None:
    """The first test that fails with the fault planted, or None."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_of_tree(tree)
        path = tree / fault.file
        path.write_text(path.read_text().replace(fault.old, fault.new))
        search = filter(None, (folder, os.environ.get("PYTHONPATH")))
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider",
             "-m", "not gpu and not longer",  # what make test catches
             *fault.tests.split()],
            cwd=tree, capture_output=True, text=True, check=False,
            # Processes that tests start import this tree, too.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(search)},
        )  # fmt: skip
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    return found[1] if run.returncode == 1 and found else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="faults whose description holds this word")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time, each in a copy")
    args = parser.parse_args()
    faults = [f for f in FAULTS if args.only in f.what]
    for fault in faults:
        if fault.old not in (ROOT / fault.file).read_text():
            parser.error(f"{fault.file} no longer holds {fault.old!r}: mend the table of faults")
    table = Table("fault", "file", "caught by")
    missed = 0
    with ThreadPoolExecutor(args.jobs) as jobs:
        tests = jobs.map(caught_by, faults)
        for fault, test in track(
            zip(faults, tests, strict=True), total=len(faults), console=Console(stderr=True)
        ):
            missed += test is None
            table.add_row(fault.what, fault.file, test or "[red]nothing[/]")
    Console(width=170).print(table)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
