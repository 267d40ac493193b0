"""What generated sources share: the names of kinds, and the exported functions.

A function calls `call` of `templates/cuda_entry.h` with its row of `kConvs` and the roles of its
operands.
"""

from __future__ import annotations

from relay_wgrad.problem import ConvKind, ConvProblem

from ..fused import STEPS
from .regions import Region

KINDS = {ConvKind.FPROP: "kFprop", ConvKind.DGRAD: "kDgrad", ConvKind.WGRAD: "kWgrad"}
_ROLES = {"data": "kDataArg", "weight": "kWeightArg", "grad": "kGradArg"} | {
    step.operand: "kBiasArg" if step.per_channel else "kMaskArg"
    for step in STEPS.values()
    if step.operand
}
"""Operand -> what `templates/cuda_entry.h` calls it: one value per channel, or a whole tensor."""


def release_of(plans: str) -> str:
    """The function of a generated source that gives back workspaces, by `plans`."""
    return plans.removesuffix("_plans") + "_release"


def report_exports(plans: str) -> str:
    """What the end of a generated source exports beside its calls."""
    functions = ((plans, "plans"), (release_of(plans), "release_workspaces"))
    return "".join(f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({name}, {f});\n" for name, f in functions)


def called(region: Region) -> str:
    """What plans and messages call a region: its problem and its steps, as a C string."""
    return f'"{region.problem.repro()}{"".join(f" +{name}" for name in region.epilogue)}"'


def window(problem: ConvProblem) -> list[str]:
    """Strides, padding and dilation, each as an initializer."""
    vectors = (problem.strides, problem.padding, problem.dilation)
    return ["{" + ", ".join(map(str, vector)) + "}" for vector in vectors]


def exported(region: Region, index: int) -> str:
    """The definition of a region's function, which runs row `index`."""
    roles = ", ".join(_ROLES[name] for name in [*region.operands, region.problem.roles[2]])
    return (
        f"TVM_FFI_DLL_EXPORT int __tvm_ffi_{region.symbol}"
        "(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny*) {\n"
        f"  return call(kConvs[{index}], {{{roles}}}, args, count);\n}}"
    )
