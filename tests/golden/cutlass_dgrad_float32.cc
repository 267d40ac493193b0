// ---- the convolutions of this module -------------------------------------------------------------

extern "C" __attribute__((visibility("hidden"))) RelayWgradKernel relay_wgrad_cutlass_dgrad_f32_f32_optimized_unit_64x64x8_32x64_s4_a1x1x1_bias_sm80;

namespace {

const Conv kConvs[] = {
    {"dgrad n=2 c=60 h=14 w=14 k=64 r=3 s=3 stride=1,1 pad=0,0,0,0 dil=2,1 groups=1 layout=NHWC/OHWI/NHWC dtype=f32/f32/f32 +bias",
     Kind::kDgrad, 1, {1, 1}, {0, 0, 0, 0}, {2, 1}, Element::kFloat, Element::kFloat, Element::kFloat, true,
     {{"relay_wgrad_cutlass_dgrad_f32_f32_optimized_unit_64x64x8_32x64_s4_a1x1x1_bias_sm80",
       relay_wgrad_cutlass_dgrad_f32_f32_optimized_unit_64x64x8_32x64_s4_a1x1x1_bias_sm80, {4, 4, 4}, 1, 80, false}}},
};

}  // namespace

extern "C" {

TVM_FFI_DLL_EXPORT int __tvm_ffi_dgrad_float32(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny*) {
  return call(kConvs[0], {kGradArg, kWeightArg, kBiasArg, kDataArg}, args, count);
}

}  // extern "C"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cutlass_plans, plans);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cutlass_release, release_workspaces);

// kernel for sm_80: relay_wgrad_cutlass_slices
// kernel for sm_80: relay_wgrad_cutlass_dgrad_f32_f32_optimized_unit_64x64x8_32x64_s4_a1x1x1_bias_sm80

// ---- dgrad_f32_f32_optimized_unit_64x64x8_32x64_s4_a1x1x1_bias_sm80

#include "cutlass/conv/kernel/default_conv2d_dgrad.h"

namespace {

using Default = cutlass::conv::kernel::DefaultConv2dDgrad<
    float, TensorNHWC,
    float, TensorNHWC,
    float, TensorNHWC,
    float, OpClassSimt, cutlass::arch::Sm80,
    GemmShape<64, 64, 8>,
    GemmShape<32, 64, 8>,
    GemmShape<1, 1, 1>,
    OutputOp<float, 1, true, false, false, false, false, false>,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<4>,
    4, cutlass::arch::OpMultiplyAdd,
    IteratorAlgorithm::kOptimized,
    StrideSupport::kUnity, 1, 1>;
using Kernel = Default::Kernel;

}  // namespace

extern "C" int relay_wgrad_cutlass_dgrad_f32_f32_optimized_unit_64x64x8_32x64_s4_a1x1x1_bias_sm80(const RelayWgradCall& call, cudaStream_t stream) {
  return launch<Kernel, true>(call, stream);
}
