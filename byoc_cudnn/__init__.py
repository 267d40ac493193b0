"""Offloading of the convolution family to vendor libraries.

    import byoc_cudnn
    module, report = byoc_cudnn.partition_for_cudnn(module)

decides for each convolution of a module, and needs neither a GPU nor a library for it.
"""

from .backends.base import Backend, Row
from .building.compiled import Library, build
from .codegen.regions import Region, read_region
from .decision import Decision
from .partition import partition, partition_for_cudnn, partition_for_cutlass
from .report import Entry, Report
from .table import BACKENDS, ROWS, patterns, register_backend
from .unpartition import unpartition

__all__ = [
    "BACKENDS",
    "ROWS",
    "Backend",
    "Decision",
    "Entry",
    "Library",
    "Region",
    "Report",
    "Row",
    "build",
    "partition",
    "partition_for_cudnn",
    "partition_for_cutlass",
    "patterns",
    "read_region",
    "register_backend",
    "unpartition",
]
