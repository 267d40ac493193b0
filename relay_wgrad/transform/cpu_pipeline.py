"""The public path of `cpu_pipeline`, which is in `pipeline.cpu`."""

from ..pipeline.cpu import cpu_pipeline

__all__ = [
    "cpu_pipeline",
]
