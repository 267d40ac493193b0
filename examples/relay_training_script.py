"""An autoencoder's training step, written for TVM 0.19's Relay; only its import lines changed.

They were:

    from tvm import relay
    from tvm.contrib.graph_executor import GraphModule
    from tvm.ir import IRModule
    from tvm.relay.op import register_gradient
    from tvm.runtime import load_module
    from tvm.transform import PassContext, Sequential
"""

import sys
import tempfile

import numpy as np
import tvm

from relay_wgrad import relay
from relay_wgrad.relay import IRModule, load_module
from relay_wgrad.relay.graph_executor import GraphModule
from relay_wgrad.relay.op import register_gradient
from relay_wgrad.relay.transform import PassContext, Sequential

BATCH, SIZE, STEPS, RATE = 8, 16, 20, 0.5


@register_gradient("nn.conv2d_transpose")
def conv2d_transpose_gradient(orig, grad):
    """Relay has none.  The data's is a convolution, the weight's one with both operands swapped."""
    data, weight = orig.args
    shared = {"strides": orig.attrs.strides, "padding": orig.attrs.padding}
    channels, _, r, s = weight.checked_type.shape
    return [
        relay.nn.conv2d(grad, weight, **shared),
        relay.nn.conv2d_backward_weight(
            data, grad, **shared, channels=channels, kernel_size=(r, s),
            grad_layout="NCHW", data_layout="NCHW", kernel_layout="OIHW",
        ),
    ]  # fmt: skip


def loss():
    """The mean squared difference between an image and what came back."""
    image = relay.var("image", shape=(BATCH, 1, SIZE, SIZE))
    down = relay.var("down", shape=(8, 1, 4, 4))
    up = relay.var("up", shape=(8, 1, 4, 4))
    code = relay.nn.relu(relay.nn.conv2d(image, down, strides=2, padding=1))
    back = relay.nn.conv2d_transpose(code, up, strides=(2, 2), padding=(1, 1))
    difference = back - image
    return relay.Function([image, down, up], relay.mean(difference * difference))


mod = Sequential([relay.transform.InferType(), relay.transform.FirstOrderGradient()])(
    IRModule.from_expr(loss())
)
with PassContext(opt_level=3):
    lib = relay.build(mod, target="llvm")
with tempfile.TemporaryDirectory() as folder:
    lib.export_library(f"{folder}/step.so")
    step = GraphModule(load_module(f"{folder}/step.so")["default"](tvm.cpu()))

rng = np.random.default_rng(0)
image = np.cumsum(rng.normal(0, 0.1, (BATCH, 1, SIZE, SIZE)), axis=3).astype("float32")
weights = {name: rng.normal(0, 0.2, (8, 1, 4, 4)).astype("float32") for name in ("down", "up")}
losses = []
for _ in range(STEPS):
    step.set_input("image", image)
    step.set_input(**weights)
    step.run()
    losses.append(float(step.get_output(0).numpy()))
    for i, name in enumerate(weights):
        weights[name] -= RATE * step.get_output(2 + i).numpy()
print(f"{step.get_num_outputs()} outputs, loss {losses[0]:.4f} -> {losses[-1]:.4f}")
sys.exit(0 if losses[-1] < 0.5 * losses[0] else 1)
