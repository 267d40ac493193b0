"""Our own CUDA C++ for convolutions that libraries leave slow: families of kernels in a table."""

from ..base import Backend, rows_of
from . import check, codegen, faster, loaded, model, objects

BACKEND = Backend(
    name=check.NAME,
    codegen=check.CODEGEN,
    options=check.Options,
    layouts=check.LAYOUTS,
    accepts=check.check,
    rows=rows_of(check.NAME, check.EPILOGUES, check.check),
    bound=faster.bound,
    helps=True,
    microseconds=faster.microseconds,
    generate=codegen.generate,
    inputs=lambda source, toolchain, progress: objects.objects(
        source, toolchain, progress=progress
    ),
    pins=("kernel",),
    check_pins=model.check_pins,
    tried=model.tried,
    version=objects.version,
    alone=loaded.convolution,
)
