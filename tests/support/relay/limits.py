"""What Relay's pages say is refused: rows of `tests.support.limits`.

Of the values without a meaning each is a constant here: what is known before the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm

from relay_wgrad import relay
from relay_wgrad.frontend import from_relax_script
from relay_wgrad.relay import te, transform
from tests.support.relay.texts import HEADER

OPERATORS = "docs/reference/relay_operators.md"
LAYOUTS = "docs/reference/relay_layouts.md"
PASSES = "docs/reference/relay_passes.md"
RELAY = "docs/howto/relay.md"
DIALECTS = "docs/reference/dialects.md"
API = "docs/reference/relay_api.md"
VECTOR = "%x: Tensor[(4), float32]"


def read(body: str, parameters: str = VECTOR, release: str | None = None) -> relay.IRModule:
    return relay.fromtext(f"{HEADER}def @main({parameters}) {{ {body} }}", release=release)


def typed(body: str, parameters: str = VECTOR) -> relay.IRModule:
    return transform.InferType()(read(body, parameters))


def built(body: str, parameters: str = VECTOR, target: Any = "llvm", **options: Any) -> Any:
    return relay.build(typed(body, parameters), target, **options)


def of(result: relay.Expr, *parameters: relay.Var) -> relay.IRModule:
    return transform.InferType()(relay.IRModule.from_expr(relay.Function(parameters, result)))


def ran(body: Callable[..., relay.Expr], *arguments: tuple[relay.Var, Any]) -> Any:
    """What a program gives for the values of its parameters."""
    parameters = [parameter for parameter, _ in arguments]
    mod = relay.IRModule.from_expr(relay.Function(parameters, body(*parameters)))
    run = relay.create_executor("graph", mod, tvm.cpu(), "llvm").evaluate()
    return run(*(np.asarray(value, p.type_annotation.dtype) for p, value in arguments))


def recursion() -> Any:
    one = "(%x: Tensor[(4), float32]) -> Tensor[(4), float32]"
    text = f"{HEADER}def @f{one} {{ @f(%x) }}\ndef @main{one} {{ @f(%x) }}"
    return relay.build(relay.fromtext(text), "llvm")


def _weight_gradient() -> relay.IRModule:
    grad, data = (relay.var(name, shape=(relay.Any(), 8, 5, 5)) for name in ("grad", "data"))
    out = relay.nn.conv2d_backward_weight(grad, data, padding=1, channels=8, kernel_size=3)
    return of(out, grad, data)


def _joined() -> relay.IRModule:
    """Tensors that each take four of a kernel's arguments."""
    parts = [relay.var(f"p{i}", shape=(relay.Any(), 3)) for i in range(5)]
    return of(relay.concatenate(parts, axis=1), *parts)


def _two_of_one_name() -> relay.IRModule:
    ty = "Tensor[(4), float32]"
    own = f'fn (%y: {ty}, Compiler="own", global_symbol="own_0") -> {ty} {{ tanh(%y) }}'
    return read(f"%0 = {own}; %1 = {own}; %0(%1(%x))")


def _loss_of_no_class() -> Any:
    scores, target, weight = (
        relay.const(value, dtype)
        for value, dtype in (([[1.0, 2.0]], "float32"), ([9], "int32"), ([1, 1], "float32"))
    )
    return relay.build(of(relay.nn.nll_loss(scores, target, weight)), "llvm")


def _two_sizes_that_broadcast() -> relay.IRModule:
    x, y = relay.var("x", shape=(te.size_var("n"),)), relay.var("y", shape=(5,))
    return of(x + y, x, y)


def _tiled() -> relay.IRModule:
    x = relay.var("x", shape=(te.size_var("n"), 3))
    return transform.FirstOrderGradient()(of(relay.tile(x, (2, 1)), x))


def _sevens() -> Any:
    x = relay.var("x", shape=(te.size_var("n"), 3))
    return relay.build(of(relay.reshape(x, (-1, 7)), x), "llvm")


def _one_at_the_run() -> Any:
    x, y = (relay.var(name, shape=(relay.Any(),)) for name in "xy")
    return ran(lambda x, y: x + y, (x, np.ones(3)), (y, np.ones(1)))


def _reshaped_to_another_number() -> Any:
    x, shape = relay.var("x", shape=(6,)), relay.var("shape", shape=(2,), dtype="int64")
    return ran(relay.reshape, (x, np.ones(6)), (shape, [5, 1]))


TRANSPOSED = "%x: Tensor[(1, 4, 5, 5), float32], %w: Tensor[(4, 4, 3, 3), float32]"
LINES = "%x: Tensor[(1, 4, 5), float32], %w: Tensor[(4, 4, 3), float32]"
BLOCKED = "%x: Tensor[(1, 2, 6, 6, 4), float32], %w: Tensor[(2, 2, 3, 3, 4, 4), float32]"
# The second line has a form of another release.
POOL = """@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((2, 4, 6, 6), "float32")) -> R.Tensor((2, 4, 6, 6), "float32"):
        y: R.Tensor((2, 4, 6, 6), "float32") = R.nn.avg_pool2d(x, pool_size=[3, 3], padding=[1, 1])
        z: R.Tensor((2, 4, 6, 6), "float32") = R.cumsum(y, axis=1, dtype="void")
        return y
"""

PROBES = [
    (OPERATORS, "Relay ignores theirs, here one other than 1 is refused", "dilation must be 1",
     lambda: typed("nn.max_pool2d_grad(%x, %x, pool_size=[1, 1], dilation=[2, 2])",
                   "%x: Tensor[(1, 2, 6, 6), float32]")),
    (OPERATORS, "Division of a size that does not go up (`reshape` with -1 or -4, blocks): refused",
     "reshape", lambda: typed("reshape(%x, newshape=[3, -1])")),
    (OPERATORS, "`take` with `batch_dims`", "only batch_dims=0",
     lambda: typed("take(%x, %i, axis=1, batch_dims=1)",
                   "%x: Tensor[(4, 5), float32], %i: Tensor[(4, 2), int32]")),
    (OPERATORS, "`bicubic` upsampling: refused", "bicubic",
     lambda: typed('nn.upsampling(%x, scale_h=2f, scale_w=2f, method="bicubic")',
                   "%x: Tensor[(1, 2, 6, 6), float32]")),
    (OPERATORS, "by `nn.upsampling` that is bilinear or by a fraction, which refuse it",
     "with sizes that only the run knows",
     lambda: relay.build(typed('nn.upsampling(%x, scale_h=2f, scale_w=2f, method="bilinear")',
                               "%x: Tensor[(1, 2, ?, 6), float32]"), "llvm")),
    (LAYOUTS, "Sizes that the blocks do not divide are refused", "cannot be split into blocks",
     lambda: typed('layout_transform(%x, src_layout="NCHW", dst_layout="NCHW16c")',
                   "%x: Tensor[(1, 10, 6, 6), float32]")),
    (LAYOUTS, "and so are other convolutions in them", "convertible from NCHW",
     lambda: typed('nn.conv2d_transpose(%x, %w, data_layout="NCHW4c", kernel_layout="IOHW4i4o")',
                   BLOCKED)),
    (LAYOUTS, "A size that is `?` is refused", "its composite needs all sizes",
     lambda: transform.Legalize()(_weight_gradient())),
    (PASSES, "a bound that two tensors do not keep is refused", "can't join two of 4 each",
     lambda: transform.SplitArgs(8)(_joined())),
    (PASSES, "two of one name are refused", "two functions are @own_0",
     lambda: transform.OutlineCompilerFunctionsWithExistingGlobalSymbols()(_two_of_one_name())),
    (PASSES, "TVM's own context refuses them", "relay.FuseOps.max_depth",
     lambda: tvm.transform.PassContext(config={"relay.FuseOps.max_depth": 3})),
    (RELAY, ("`relay.build` and the passes that must know what a function computes refuse them "
     "with the same error"), "not supported: references",
     lambda: transform.FoldConstant()(typed("let %r = ref(1f); ref_read(%r)", ""))),
    (RELAY, "without one for it refused", "one must be the CPU's",
     lambda: built("tanh(%x)", target=["cuda", "opencl"])),
    (RELAY, '`"aot"`, `"crt"`, `system-lib` and memory pools are refused', "'aot' is not there",
     lambda: built("tanh(%x)", executor=relay.backend.Executor("aot"))),
    (RELAY, "Branches whose values have sizes that only the run knows are refused",
     "has sizes which only the run knows",
     lambda: built("if (%c) { %x } else { tanh(%x) }", "%c: bool, %x: Tensor[(?), float32]")),
    (RELAY, "and so is recursion", "recursion has no lowering", recursion),
    (RELAY, ("What is known before the run is refused with operator and place (`FoldConstant` "
     "leaves such a call as it is, and `build` refuses it)"), "divided by zero",
     lambda: relay.build(transform.FoldConstant()(typed("divide(1, 0)", "")), "llvm")),
    (RELAY, "`floor_mod`, `trunc_mod` by zero | refused |", "divided by zero",
     lambda: built("floor_mod(1, 0)", "")),
    (RELAY, "by less than 0, or by the width or more | refused |", "shifts by 0 to 31 bits",
     lambda: built("left_shift(1, -1)", "")),
    (RELAY, '`take(mode="fast")` outside the axis | refused |', "indices must be in [0, 4)",
     lambda: built('take(%x, 7, axis=0, mode="fast")')),
    (RELAY, "a target that is no class, nor `ignore_index` | refused |", "targets must be in",
     _loss_of_no_class),
    (RELAY, "`argmin` of nothing; `take` from nothing | refused | refused |", "no element to",
     lambda: built("max(%x)", "%x: Tensor[(0), float32]")),
    (RELAY, "`mean` of no integers | refused | refused |", "no int32 is the mean of",
     lambda: built("mean(%x)", "%x: Tensor[(0), int32]")),
    (RELAY, "a tensor of a negative size | refused | refused, with the sizes |",
     "the window does not fit: size 6",
     lambda: typed("nn.max_pool2d(%x, pool_size=[9, 9], padding=[0, 0, 0, 0])",
                   "%x: Tensor[(1, 2, 6, 6), float32]")),
    (RELAY, "a result of more than 1 TiB | refused | refused |", "more than 1,099,511,627,776",
     lambda: built("repeat(%x, repeats=1000000000000, axis=0)")),
    (API, "`const` refuses strings by TypeError", "expected a number", lambda: relay.const("a")),
    (API, ("Relations refuse what they refused in 0.19: two sizes that broadcast must be provably "
     "equal (`n` with `m`, or with 5, is refused)"), "Incompatible broadcast type",
     _two_sizes_that_broadcast),
    (API, "cross entropy, and `concatenate` along such an axis, which refuse by name",
     "the gradient of tile: needs known sizes", _tiled),
    (API, ("the run compares, and refuses where it is not; where it can't compare (whether `n * 3` "
     "is a multiple of 7, in `reshape(x, (-1, 7))`) `relay.build` refuses by name"),
     "reshape: only the run knows whether", _sevens),
    (API, "one that is 1 at the run is refused then", "Mismatched", _one_at_the_run),
    (API, "It refuses what does not fit (a reshape to another number of elements", "shape[0]",
     _reshaped_to_another_number),
    (DIALECTS, "what has changed its meaning is refused, with its place, and not guessed",
     "from_string:2:",
     lambda: read('(nn.conv2d_transpose(%x, %w, kernel_layout="IOHW"), '
                  "nn.conv2d_transpose(%x, %w))", TRANSPOSED)),
    (DIALECTS, "what is in doubt between two releases is refused likewise",
     "the text is of TVM 0.11 or 0.12",
     lambda: read("nn.conv2d_transpose(%x, %w)", TRANSPOSED, "0.12.dev0")),
    (DIALECTS, "refused: types went by it, kernels ignored it", "read the weight in two ways",
     lambda: read('nn.conv1d_transpose(%x, %w, kernel_layout="OIW")', LINES, "0.11")),
    (DIALECTS, "refused where the text has another of these forms", "until 0.15",
     lambda: from_relax_script(POOL)),
]  # fmt: skip
