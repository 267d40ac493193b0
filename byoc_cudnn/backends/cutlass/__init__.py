"""CUTLASS: what it takes, which kernel for what, its code generation and templates."""

from ..base import Backend, rows_of
from . import check, codegen, model, objects, tuning

BACKEND = Backend(
    name=check.NAME,
    codegen=check.CODEGEN,
    options=check.Options,
    layouts=check.LAYOUTS,
    accepts=check.check,
    rows=rows_of(check.NAME, check.EPILOGUES, check.check),
    bound=check.bound,
    wider=model.wider_channels,
    generate=codegen.generate,
    inputs=lambda source, toolchain, progress: objects.objects(
        source, toolchain, progress=progress
    ),
    pins=("kernel", "split_k"),
    check_pins=tuning.check_pins,
    tried=tuning.tried,
    version=objects.version,
)
