from . import conventions as conventions
from . import cores as cores
from . import frontend as frontend
from . import inspection as inspection
from . import jax as jax
from . import layouts as layouts
from . import ops as ops
from . import problem as problem
from . import relay as relay
from . import threads as threads
from . import torch as torch
from . import training as training
from . import transform as transform
from .ops.call_problem import problem_of as problem_of
from .ops.conv import conv2d as conv2d
from .ops.conv import conv3d as conv3d
from .ops.conv_backward_data import conv2d_backward_data as conv2d_backward_data
from .ops.conv_backward_data import conv3d_backward_data as conv3d_backward_data
from .ops.conv_backward_weight import conv2d_backward_weight as conv2d_backward_weight
from .ops.conv_backward_weight import conv3d_backward_weight as conv3d_backward_weight
from .ops.conv_transpose import conv2d_transpose as conv2d_transpose
from .ops.conv_transpose import conv2d_transpose_backward_data as conv2d_transpose_backward_data
from .ops.conv_transpose import (
    conv2d_transpose_backward_weight as conv2d_transpose_backward_weight,
)
from .problem import ConvKind as ConvKind
from .problem import ConvProblem as ConvProblem
from .registry import check_tvm as check_tvm
from .registry import is_registered as is_registered
from .registry import register as register
from .registry import unregister as unregister
from .training import state as state

__version__: str
