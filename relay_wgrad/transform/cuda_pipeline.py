"""The public path of `cuda_pipeline`, which is in `pipeline.cuda`."""

from ..pipeline.cuda import cuda_pipeline

__all__ = [
    "cuda_pipeline",
]
