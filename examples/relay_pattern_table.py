"""A compiler of one's own on the Relay surface: a pattern table, and the parts it takes.

The table is of a compiler that fuses a convolution with what follows it, in NHWC alone.  Nobody
here generates code for it, so `relay.build` lets TVM compute its functions, and says so.
"""

import warnings

import numpy as np
import tvm

from relay_wgrad import relay
from relay_wgrad.relay import transform
from relay_wgrad.relay.dataflow_pattern import (
    DFPatternCallback,
    is_constant,
    is_op,
    rewrite,
    wildcard,
)
from relay_wgrad.relay.op.contrib import get_pattern_table, register_pattern_table

NAME = "npu"


def same_shapes(relu):
    """The residual is a tensor of the convolution's shape, not broadcast."""
    first, second = (arg.checked_type.shape for arg in relu.args[0].args)
    return first == second


@register_pattern_table(NAME)
def table():
    """(name, pattern) or (name, pattern, check) rows, the large ones first."""
    conv = is_op("nn.conv2d")(wildcard(), wildcard()).has_attr({"data_layout": "NHWC", "groups": 1})
    biased = is_op("nn.bias_add")(conv, wildcard())
    residual = is_op("add")(biased, wildcard())  # in either order
    return [
        (f"{NAME}.conv_bias_add_relu", is_op("nn.relu")(residual), same_shapes),
        (f"{NAME}.conv_bias_relu", biased.optional(is_op("nn.relu"))),
        (f"{NAME}.conv", conv),
    ]


# Pooling of this compiler needs no pattern: an operator's attribute says whether it takes a call.
@relay.op.register_op_attr("nn.max_pool2d", f"target.{NAME}")
def takes_pool(call):
    return call.attrs.layout == "NHWC" and not any(call.attrs.padding)


class Halve(DFPatternCallback):
    """`x * 0.5 + x * 0.5` is `x`: a rewriting before the partition."""

    def __init__(self):
        super().__init__(require_type=True)
        self.x = wildcard()
        self.half = is_constant()
        self.pattern = self.x * self.half + self.x * self.half

    def callback(self, pre, post, node_map):
        is_half = np.all(node_map[self.half][0].data == 0.5)
        return node_map[self.x][0] if is_half else post


def network():
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO", "padding": 1, "kernel_size": (3, 3)}
    x = relay.var("x", shape=(2, 16, 16, 8))
    for i in range(3):
        w, b = relay.var(f"w{i}", shape=(3, 3, 8, 8)), relay.var(f"b{i}", shape=(8,))
        y = relay.nn.conv2d(x, w, channels=8, **layouts)
        y = relay.nn.bias_add(y, b, axis=3)
        y = y + x if i == 1 else y
        x = relay.nn.relu(y)
    x = relay.nn.max_pool2d(x, (2, 2), (2, 2), layout="NHWC")
    half = relay.const(0.5)
    return relay.tanh(x * half + x * half)


mod = relay.IRModule.from_expr(rewrite(Halve(), network()))
partition = transform.Sequential(
    [
        transform.MergeComposite(get_pattern_table(NAME)),
        transform.AnnotateTarget(NAME),
        transform.MergeCompilerRegions(),
        transform.PartitionGraph(),
    ]
)
parts = partition(mod)
for name, function in parts.functions.items():
    if function.attrs.get("Compiler") == NAME:
        print(f"@{name}")
        for node in relay.ast.post_order(function):
            if isinstance(node, relay.Function) and "Composite" in node.attrs:
                print("   ", node.attrs["Composite"], "of", node.attrs["PartitionedFromPattern"])
            elif isinstance(node, relay.Call) and node.op == relay.Op("nn.max_pool2d"):
                print("   ", node.op.name)

rng = np.random.default_rng(0)
inputs = {
    p.name: rng.standard_normal(p.checked_type.shape).astype("f") for p in parts["main"].params
}


def run(module):
    executor = relay.graph_executor.GraphModule(relay.build(module, "llvm")["default"](tvm.cpu()))
    executor.run(**inputs)
    return executor.get_output(0).numpy()


with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    result = run(parts)
print(said[0].message)
np.testing.assert_allclose(result, run(mod), rtol=1e-5, atol=1e-5)
