// ---- the convolutions of this module -------------------------------------------------------------

extern "C" __attribute__((visibility("hidden"))) RelayWgradKernel relay_wgrad_cutlass_dgrad_bf16_bf16_optimized_unit_64x64x32_32x32_s5_a8x8x8_mask_sm80;

namespace {

const Conv kConvs[] = {
    {"dgrad n=2 c=64 h=14 w=14 k=64 r=3 s=3 stride=1,1 pad=1,1,1,1 dil=1,1 groups=1 layout=NHWC/OHWI/NHWC dtype=bf16/bf16/bf16 +mask",
     Kind::kDgrad, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}, Element::kBfloat16, Element::kBfloat16, Element::kBfloat16, false,
     {{"relay_wgrad_cutlass_dgrad_bf16_bf16_optimized_unit_64x64x32_32x32_s5_a8x8x8_mask_sm80",
       relay_wgrad_cutlass_dgrad_bf16_bf16_optimized_unit_64x64x32_32x32_s5_a8x8x8_mask_sm80, {16, 16, 16}, 1, 80, false}}},
};

}  // namespace

extern "C" {

TVM_FFI_DLL_EXPORT int __tvm_ffi_dgrad_mask(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny*) {
  return call(kConvs[0], {kGradArg, kWeightArg, kMaskArg, kDataArg}, args, count);
}

}  // extern "C"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cutlass_plans, plans);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cutlass_release, release_workspaces);

// kernel for sm_80: relay_wgrad_cutlass_slices
// kernel for sm_80: relay_wgrad_cutlass_dgrad_bf16_bf16_optimized_unit_64x64x32_32x32_s5_a8x8x8_mask_sm80

// ---- dgrad_bf16_bf16_optimized_unit_64x64x32_32x32_s5_a8x8x8_mask_sm80

#include "cutlass/conv/kernel/default_conv2d_dgrad.h"

namespace {

using Default = cutlass::conv::kernel::DefaultConv2dDgrad<
    cutlass::bfloat16_t, TensorNHWC,
    cutlass::bfloat16_t, TensorNHWC,
    cutlass::bfloat16_t, TensorNHWC,
    float, OpClassTensorOp, cutlass::arch::Sm80,
    GemmShape<64, 64, 32>,
    GemmShape<32, 32, 32>,
    GemmShape<16, 8, 16>,
    OutputOp<cutlass::bfloat16_t, 8, false, false, false, false, true, false>,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<4>,
    5, cutlass::arch::OpMultiplyAdd,
    IteratorAlgorithm::kOptimized,
    StrideSupport::kUnity, 8, 8>;
using Kernel = Default::Kernel;

}  // namespace

extern "C" int relay_wgrad_cutlass_dgrad_bf16_bf16_optimized_unit_64x64x32_32x32_s5_a8x8x8_mask_sm80(const RelayWgradCall& call, cudaStream_t stream) {
  return launch<Kernel, false>(call, stream);
}
