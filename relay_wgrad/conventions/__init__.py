"""What Keras, ONNX, PyTorch, JAX and cuDNN call a transposed convolution, as one problem and back.

    from relay_wgrad.conventions import cudnn, keras
    found = keras.conv2d_transpose((8, 8, 8, 256), 128, 2, strides=2)
    found.problem              # ConvProblem: dgrad n=8 c=128 h=16 w=16 k=256 …
    cudnn.to_descriptors(found)

Each module has functions that read its framework's arguments and give a `Conversion`, and `to_…`
functions that write arguments from one.  They are pure: no framework is imported, nothing runs.

A transposed convolution is a convolution's data gradient.  So its problem is of the kind DGRAD,
its input is the problem's `grad` with K channels, and its output the problem's `data` with C.
"""

from . import cudnn, jax, keras, onnx, pytorch
from .common import Conversion, Written

__all__ = ["Conversion", "Written", "cudnn", "jax", "keras", "onnx", "pytorch"]
